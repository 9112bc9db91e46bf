"""Addresses that are refused, and answers that break HTTP or have no end."""

from __future__ import annotations

import asyncio

import pytest

from kvtier import http_stream
from kvtier.errors import ConfigError
from kvtier.http_stream import ServerError, ServerUrl, fetch_text

HEAD = b"HTTP/1.1 200 OK\r\n"


def fetch_from(answer: bytes) -> tuple[int, str]:
    """Returns what a client makes of a server that says `answer` and hangs up."""

    async def run() -> tuple[int, str]:
        async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            # Else hanging up would break the connection, and the answer with it.
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            writer.close()

        server = await asyncio.start_server(say, "127.0.0.1", 0)
        url = ServerUrl(host="127.0.0.1", port=server.sockets[0].getsockname()[1])
        try:
            return await fetch_text(url, "/metrics", timeout_s=60)
        finally:
            server.close()

    return asyncio.run(run())


@pytest.mark.parametrize(
    "url",
    [
        "http://user:geheim@host:80",
        "http://geheim@host",
        "user:geheim@host:80",
        "http://user:ge/heim@host",
        "https://user:geheim@[host",
    ],
)
def test_a_user_or_password_in_an_address_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ConfigError, match="a user or password there would not be sent") as caught:
        ServerUrl.parse(url)
    assert "heim" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["http://a..b:80", "http://" + "a" * 64, "http://h\udcff", "http://h/a b", "http://h/é"]
)
def test_a_name_or_path_that_cannot_be_sent_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="write http://HOST:PORT"):
        ServerUrl.parse(url)


def test_names_that_have_no_encoding_cannot_be_connected_to() -> None:
    with pytest.raises(ServerError, match=r"cannot connect to http://a\.\.b:80"):
        asyncio.run(fetch_text(ServerUrl(host="a..b", port=80), "/", timeout_s=60))


@pytest.mark.parametrize("start", [b"", HEAD])
def test_a_line_of_the_head_without_end_is_named(start: bytes) -> None:
    with pytest.raises(ServerError, match="did not answer in HTTP"):
        fetch_from(start + b"X-Long: " + b"x" * (1 << 18))


@pytest.mark.parametrize(
    "answer",
    [
        HEAD + b"\r\n" + b"x" * 40,
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"a\r\n0123456789\r\n" * 4 + b"0\r\n\r\n",
        HEAD + b"Content-Length: 40\r\n\r\n" + b"x" * 40,
    ],
    ids=["until_the_end", "chunked", "with_length"],
)
def test_an_answer_is_read_up_to_the_bound_and_no_further(
    answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_stream, "TEXT_BYTES_MAX", 40)
    status, text = fetch_from(answer)
    assert (status, len(text)) == (200, 40)
    monkeypatch.setattr(http_stream, "TEXT_BYTES_MAX", 39)
    with pytest.raises(ServerError, match="more than 39 bytes"):
        fetch_from(answer)
