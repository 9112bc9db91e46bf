"""One HTTP/1.1 exchange whose answer is read as it comes. Used from one event loop."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from kvtier.deadline import DeadlineError, within
from kvtier.errors import ConfigError

# The first event of a stream may repeat all ids of a long prompt.
PIECE_BYTES_MAX = 64 << 20
TEXT_BYTES_MAX = 64 << 20
_HEADERS_MAX = 200
_READ_BYTES = 1 << 16


class ServerError(Exception):
    """The server cannot be reached, or did not answer as HTTP and its interface say."""


@dataclass(frozen=True, kw_only=True)
class ServerUrl:
    """Where a server listens."""

    host: str
    port: int
    path: str = ""
    is_secure: bool = False

    @classmethod
    def parse(cls, text: str) -> ServerUrl:
        """Raises ConfigError that names the text. A `/v1` at the end is left out."""
        if "@" in text:
            # Not shown: it may hold a password.
            raise ConfigError(
                "url: there is an @ in it, and a user or password there would not be sent; write "
                "http://HOST:PORT (a key goes into an environment variable: --api-key-variable)"
            )
        try:
            parts = urlsplit(text)
            port = parts.port
            (parts.hostname or "").encode("idna")
            is_path = parts.path.isascii() and parts.path.isprintable() and " " not in parts.path
        except ValueError as error:
            raise ConfigError(f"url: {text!r} is none: {error}; write http://HOST:PORT") from error
        if parts.scheme not in ("http", "https") or not parts.hostname or not is_path:
            raise ConfigError(f"url: {text!r} is none; write http://HOST:PORT")
        is_secure = parts.scheme == "https"
        return cls(
            host=parts.hostname,
            port=port or (443 if is_secure else 80),
            path=parts.path.rstrip("/").removesuffix("/v1"),
            is_secure=is_secure,
        )

    def __str__(self) -> str:
        return f"{'https' if self.is_secure else 'http'}://{self.host}:{self.port}{self.path}"


class HttpAnswer:
    """Status, headers and what follows, once."""

    def __init__(self, reader: asyncio.StreamReader, status: int, headers: dict[str, str]) -> None:
        self.status = status
        self.headers = headers
        self._reader = reader

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    async def lines(self) -> AsyncIterator[bytes]:
        """Yields lines without their ends. Raises ServerError when the answer breaks off."""
        rest = b""
        async for piece in self._pieces():
            *whole, rest = (rest + piece).split(b"\n")
            for line in whole:
                yield line.rstrip(b"\r")
            if len(rest) > PIECE_BYTES_MAX:
                raise ServerError(f"a line of the answer has more than {PIECE_BYTES_MAX} bytes")
        if rest:
            yield rest

    async def text(self) -> str:
        """Returns all of it. Raises ServerError when it breaks off or does not end."""
        content = bytearray()
        async for piece in self._pieces():
            content += piece
            if len(content) > TEXT_BYTES_MAX:
                raise ServerError(f"the answer has more than {TEXT_BYTES_MAX} bytes")
        return content.decode(errors="replace")

    async def _pieces(self) -> AsyncIterator[bytes]:
        try:
            if self.headers.get("transfer-encoding", "").lower() == "chunked":
                async for piece in self._chunks():
                    yield piece
            elif "content-length" in self.headers:
                yield await self._reader.readexactly(_as_length(self.headers["content-length"]))
            else:
                while piece := await self._reader.read(_READ_BYTES):
                    yield piece
        except asyncio.IncompleteReadError as error:
            raise ServerError("the connection ended in the middle of an answer") from error
        except (OSError, ValueError) as error:
            raise ServerError(
                f"the connection broke in the middle of an answer: {error}"
            ) from error

    async def _chunks(self) -> AsyncIterator[bytes]:
        while True:
            line = await self._reader.readline()
            if not line.endswith(b"\n"):
                raise ServerError("the connection ended in the middle of an answer")
            length = _as_length(line.partition(b";")[0].decode(errors="replace"), base=16)
            if length == 0:
                return
            yield await self._reader.readexactly(length)
            await self._reader.readexactly(2)


@asynccontextmanager
async def open_exchange(
    server: ServerUrl,
    method: str,
    path: str,
    body: bytes = b"",
    *,
    bearer_token: str | None = None,
) -> AsyncIterator[HttpAnswer]:
    """Connects, sends, and yields the answer when its headers are there.

    bearer_token: what the server asks for as a key. Waits without a deadline: the caller has one.
    Raises ServerError.
    """
    try:
        reader, writer = await asyncio.open_connection(
            server.host,
            server.port,
            ssl=ssl.create_default_context() if server.is_secure else None,
        )
    except (OSError, UnicodeError) as error:
        raise ServerError(f"cannot connect to {server}: {error}") from error
    try:
        writer.write(_request_head(server, method, path, len(body), bearer_token) + body)
        try:
            await writer.drain()
            answer = await _read_head(reader)
        except asyncio.IncompleteReadError as error:
            raise ServerError(f"{server} closed the connection without an answer") from error
        except (OSError, ValueError, asyncio.LimitOverrunError) as error:
            raise ServerError(f"{server} did not answer in HTTP: {error}") from error
        yield answer
    finally:
        writer.close()


async def fetch_text(
    server: ServerUrl,
    path: str,
    *,
    timeout_s: float,
    body: bytes | None = None,
    bearer_token: str | None = None,
) -> tuple[int, str]:
    """Returns status and text of a GET, or of a POST of `body`.

    Raises ServerError, also after `timeout_s`.
    """
    method = "GET" if body is None else "POST"

    async def fetch() -> tuple[int, str]:
        async with open_exchange(
            server, method, path, body or b"", bearer_token=bearer_token
        ) as answer:
            return answer.status, await answer.text()

    try:
        return await within(timeout_s, fetch())
    except DeadlineError as error:
        raise ServerError(f"{server}{path} did not answer within {timeout_s:g} s") from error


def _request_head(
    server: ServerUrl, method: str, path: str, num_bytes: int, bearer_token: str | None
) -> bytes:
    lines = [
        f"{method} {server.path}{path} HTTP/1.1",
        f"Host: {server.host}:{server.port}",
        "Content-Type: application/json",
        f"Content-Length: {num_bytes}",
        "Connection: close",
    ]
    if bearer_token is not None:
        lines.append(f"Authorization: Bearer {bearer_token}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def _read_head(reader: asyncio.StreamReader) -> HttpAnswer:
    status_line = (await reader.readuntil(b"\n")).decode("latin-1").strip().split(None, 2)
    if len(status_line) < 2 or not status_line[0].startswith("HTTP/1"):
        raise ValueError(f"it began with {' '.join(status_line)!r:.80}")
    status = int(status_line[1])
    headers: dict[str, str] = {}
    for _ in range(_HEADERS_MAX):
        line = (await reader.readuntil(b"\n")).decode("latin-1").strip()
        if not line:
            return HttpAnswer(reader, status, headers)
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    raise ValueError(f"more than {_HEADERS_MAX} headers")


def _as_length(text: str, base: int = 10) -> int:
    try:
        length = int(text, base)
    except ValueError:
        length = -1
    if not 0 <= length <= PIECE_BYTES_MAX:
        raise ServerError(f"the answer names a length of {text.strip()!r:.40}")
    return length
