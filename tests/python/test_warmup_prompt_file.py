"""Prompts of a file: text, objects, and what is wrong with them, before anything is sent."""

import io
import json
import sys
from pathlib import Path

import pytest

import kvtier
from kvtier.warmup.prompt_file import read_prompts


def write(folder: Path, text: str | bytes, name: str = "prompts.txt") -> str:
    file = folder / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(file)


def contents(path: str, **options: str) -> list[object]:
    return [prompt.content for prompt in read_prompts(path, **options)]  # type: ignore[arg-type]


def test_text_has_a_prompt_a_line_and_equal_ones_count_once(tmp_path: Path) -> None:
    path = write(tmp_path, "\ufefffirst one\r\n\n  \nsecond\u2028one\nfirst one\n")
    prompts = read_prompts(path)
    assert [it.content for it in prompts] == ["first one", "second\u2028one"]
    assert [it.line for it in prompts] == [1, 4]
    assert not any(it.is_chat for it in prompts)


def test_a_separator_keeps_lines_together(tmp_path: Path) -> None:
    path = write(tmp_path, "a\n\nb\n---\n\n---\nc\n----\n---\n")
    assert contents(path, separator="---") == ["a\n\nb", "c\n----"]
    assert [it.line for it in read_prompts(path, separator="---")] == [1, 7]


def test_objects_are_prompts_ids_or_chats(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "hello"}]
    lines = [{"prompt": "x", "name": "the x"}, {"prompt": [1, 2]}, {"messages": chat}]
    path = write(tmp_path, "\n".join(map(json.dumps, lines)) + "\n", "p.jsonl")
    prompts = read_prompts(path)
    assert [it.content for it in prompts] == ["x", [1, 2], chat]
    assert [it.is_chat for it in prompts] == [False, False, True]
    assert prompts[0].name == "the x"
    assert len({it.digest for it in prompts}) == 3


def test_the_standard_input_is_a_file_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\ntwo\n")))
    assert contents("-") == ["one", "two"]


def test_bad_encoding_is_named_by_line_and_byte(tmp_path: Path) -> None:
    path = write(tmp_path, b"good\nb\xe9d\n")
    with pytest.raises(kvtier.ConfigError, match=r"line 2, byte 2 is no UTF-8 \(0xe9\)"):
        read_prompts(path)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 1: "),
        ("[]", 'expected an object with "prompt" or "messages"'),
        ('{"promt": "x"}', "unknown field 'promt'"),
        ("{}", 'one of "prompt" and "messages"'),
        ('{"prompt": "x", "messages": []}', 'one of "prompt" and "messages"'),
        ('{"prompt": ""}', "text or a list of token ids"),
        ('{"prompt": [1, "2"]}', "text or a list of token ids"),
        ('{"prompt": [true]}', "text or a list of token ids"),
        ('{"prompt": [-1]}', "text or a list of token ids"),
        ('{"messages": ["hello"]}', "a list of objects with a role"),
        ("[" * 100_000, "line 1: "),
    ],
)
def test_lines_that_are_no_prompts_are_named(tmp_path: Path, line: str, words: str) -> None:
    path = write(tmp_path, line + "\n", "p.jsonl")
    with pytest.raises(kvtier.ConfigError) as caught:
        read_prompts(path)
    assert words in str(caught.value)
    assert path in str(caught.value)


def test_all_bad_lines_are_counted_and_the_first_named(tmp_path: Path) -> None:
    path = write(tmp_path, '{"prompt": "x"}\n' + "{}\n" * 30, "p.jsonl")
    with pytest.raises(kvtier.ConfigError) as caught:
        read_prompts(path)
    text = str(caught.value)
    assert "30 lines are no prompts" in text
    assert "line 2:" in text
    assert "and 20 more" in text


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_a_file_without_prompts_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(kvtier.ConfigError, match="there is no prompt"):
        read_prompts(write(tmp_path, text))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(kvtier.ConfigError, match="No such file"):
        read_prompts(str(tmp_path / "none"))
    with pytest.raises(kvtier.ConfigError, match="Is a directory"):
        read_prompts(str(tmp_path))
    with pytest.raises(kvtier.ConfigError, match="--separator"):
        read_prompts(write(tmp_path, "{}", "p.jsonl"), separator="-")
