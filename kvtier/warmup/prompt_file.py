"""Reads the prompts that a server is warmed up with. Pure but for reading the file."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from kvtier.errors import ConfigError
from kvtier.units import GIB, show

FILE_BYTES_MAX: Final = GIB
_FIELDS: Final = ("prompt", "messages", "name")
_SHOWN_CHARACTERS: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One prompt: text, token ids, or the messages of a chat."""

    line: int
    """Where it stands in the file, from 1 on."""
    content: str | list[int] | list[dict[str, object]]
    is_chat: bool
    name: str

    @property
    def digest(self) -> str:
        """Returns what tells one prompt from another."""
        text = json.dumps([self.is_chat, self.content], sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def read_prompts(path: str, *, separator: str | None = None) -> list[Prompt]:
    """Returns the prompts of a file, equal ones once; "-" is the standard input.

    A name that ends in .jsonl: one object a line with "prompt" (text or token ids) or "messages"
    (of a chat), and if wanted "name". Else text: one prompt a line, empty lines left out; or with
    `separator` what stands between lines that are equal to it, for prompts of several lines.
    Raises ConfigError that names file and line, before anything is sent.
    """
    text = _decode(_read_bytes(path), path)
    is_jsonl = path.endswith(".jsonl")
    if is_jsonl and separator is not None:
        raise ConfigError(f"--separator: {path} has one object a line")
    found = _parse_objects(text, path) if is_jsonl else _parse_text(text, separator)
    first_of: dict[str, Prompt] = {}
    for prompt in found:
        first_of.setdefault(prompt.digest, prompt)
    prompts = list(first_of.values())
    if not prompts:
        raise ConfigError(f"{path}: there is no prompt in it")
    return prompts


def _read_bytes(path: str) -> bytes:
    try:
        if path == "-":
            data = sys.stdin.buffer.read(FILE_BYTES_MAX + 1)
        else:
            with open(os.path.expanduser(path), "rb") as file:
                data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"cannot read the prompts: {path}: {error.strerror}") from error
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"{path}: more than {FILE_BYTES_MAX} bytes; split it")
    return data


def _decode(data: bytes, path: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - (data.rfind(b"\n", 0, error.start) + 1) + 1
        raise ConfigError(
            f"{path}: line {line}, byte {column} is no UTF-8 ({data[error.start]:#04x}); "
            "nothing was sent; convert the file, for instance with iconv"
        ) from error


def _parse_text(text: str, separator: str | None) -> Iterator[Prompt]:
    if separator is None:
        # Not splitlines(): that also ends lines at characters which a prompt may hold.
        for line, content in enumerate(text.split("\n"), start=1):
            if content.strip():
                yield _text_prompt(line, content.removesuffix("\r"))
        return
    first, lines = 1, text.split("\n")
    for line, content in enumerate([*lines, separator], start=1):
        if content.removesuffix("\r") != separator:
            continue
        piece = "\n".join(lines[first - 1 : line - 1])
        if piece.strip():
            yield _text_prompt(first, piece)
        first = line + 1


def _text_prompt(line: int, content: str) -> Prompt:
    return Prompt(line=line, content=content, is_chat=False, name=_shorten(content))


def _parse_objects(text: str, path: str) -> Iterator[Prompt]:
    problems = []
    prompts = []
    for line, content in enumerate(text.split("\n"), start=1):
        if not content.strip():
            continue
        try:
            prompts.append(_parse_object(json.loads(content), line))
        except (ValueError, RecursionError) as error:
            problems.append(f"line {line}: {error}")
    if problems:
        more = f"\n  and {len(problems) - 10} more" if len(problems) > 10 else ""
        listed = "".join(f"\n  {it}" for it in problems[:10])
        raise ConfigError(f"{path}: {len(problems)} lines are no prompts:{listed}{more}")
    yield from prompts


def _parse_object(said: object, line: int) -> Prompt:
    if not isinstance(said, Mapping):
        raise ValueError(f'expected an object with "prompt" or "messages", got {show(said)}')
    unknown = [name for name in said if name not in _FIELDS]
    if unknown:
        raise ValueError(f"unknown field {show(unknown[0])}; known are {', '.join(_FIELDS)}")
    prompt, messages = said.get("prompt"), said.get("messages")
    if (prompt is None) == (messages is None):
        raise ValueError('expected one of "prompt" and "messages"')
    content = messages if prompt is None else prompt
    is_chat = prompt is None
    if not content or not (_is_chat(content) if is_chat else _is_prompt(content)):
        kind = "a list of objects with a role" if is_chat else "text or a list of token ids"
        raise ValueError(f"expected {kind}, got {show(content)}")
    name = said.get("name")
    return Prompt(
        line=line,
        content=content,
        is_chat=is_chat,
        name=str(name) if name is not None else _shorten(str(content)),
    )


def _is_prompt(content: object) -> bool:
    if isinstance(content, list):
        return all(isinstance(it, int) and not isinstance(it, bool) and it >= 0 for it in content)
    return isinstance(content, str)


def _is_chat(content: object) -> bool:
    return isinstance(content, list) and all(
        isinstance(it, Mapping) and isinstance(it.get("role"), str) for it in content
    )


def _shorten(content: str) -> str:
    line = " ".join(content.split())
    return line if len(line) <= _SHOWN_CHARACTERS else line[: _SHOWN_CHARACTERS - 1] + "…"
