"""Reads Markdown pages for the tests: code blocks, links, headings and commands. Pure functions."""

import re
import shlex
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RUNS_MARK = "<!-- runs -->"
_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,})\s*(?P<language>[^\s`]*)")
_HEADING = re.compile(r"^#{1,6} +(?P<text>.+?) *#*$")
_LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\((?P<target>[^()\s]+)\)")
_INLINE_CODE = re.compile(r"(`+)(?P<code>.+?)\1")


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeBlock:
    """One fenced block; `place` is "page:line" of its fence."""

    place: str
    language: str
    text: str
    is_run: bool


@dataclass(frozen=True)
class Page:
    """One Markdown page by its path."""

    path: Path
    text: str

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT))

    @cached_property
    def blocks(self) -> list[CodeBlock]:
        blocks: list[CodeBlock] = []
        lines = self.text.splitlines()
        index = 0
        while index < len(lines):
            match = _FENCE.match(lines[index])
            if match is None:
                index += 1
                continue
            end = index + 1
            while end < len(lines) and not lines[end].strip().startswith(match["fence"]):
                end += 1
            assert end < len(lines), f"{self.name}:{index + 1}: the block does not end"
            indent = len(match["indent"])
            before = next((line for line in reversed(lines[:index]) if line.strip()), "")
            blocks.append(
                CodeBlock(
                    place=f"{self.name}:{index + 1}",
                    language=match["language"],
                    text="\n".join(line[indent:] for line in lines[index + 1 : end]) + "\n",
                    is_run=before.strip() == RUNS_MARK,
                )
            )
            index = end + 1
        return blocks

    @cached_property
    def prose_lines(self) -> list[str]:
        """The lines outside of code blocks; those within are empty."""
        prose: list[str] = []
        fence = ""
        for line in self.text.splitlines():
            match = _FENCE.match(line)
            if fence:
                prose.append("")
                fence = "" if line.strip().startswith(fence) else fence
            elif match:
                prose.append("")
                fence = match["fence"]
            else:
                prose.append(line)
        return prose

    @cached_property
    def links(self) -> list[tuple[str, str]]:
        """(place, target) of each link and picture, without those in code."""
        return [
            (f"{self.name}:{number}", match["target"])
            for number, line in enumerate(self.prose_lines, start=1)
            for match in _LINK.finditer(_INLINE_CODE.sub("", line))
        ]

    @cached_property
    def inline_codes(self) -> list[tuple[str, str]]:
        """(place, code) of each stretch of code within a line."""
        return [
            (f"{self.name}:{number}", match["code"].strip())
            for number, line in enumerate(self.prose_lines, start=1)
            for match in _INLINE_CODE.finditer(line)
        ]

    @cached_property
    def anchors(self) -> set[str]:
        """The anchors that a forge makes from the headings."""
        seen: dict[str, int] = {}
        anchors: set[str] = set()
        for line in self.prose_lines:
            match = _HEADING.match(line)
            if match is None:
                continue
            anchor = slug_of(match["text"])
            count = seen.get(anchor, 0)
            seen[anchor] = count + 1
            anchors.add(f"{anchor}-{count}" if count else anchor)
        return anchors


def slug_of(heading: str) -> str:
    """Returns the anchor of a heading: lower case, without punctuation, "-" for each space."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")


def read_pages() -> list[Page]:
    """Returns all pages that users and contributors read."""
    paths = [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
        ROOT / "bench/README.md",
        *sorted((ROOT / "docs").rglob("*.md")),
    ]
    return [Page(path, path.read_text(encoding="utf-8")) for path in paths]


def split_commands(text: str) -> list[list[str]]:
    """Returns the commands of a shell block, each as its words, comments left out.

    A command ends with its line, unless that ends with a backslash or within quotes.
    """
    commands: list[list[str]] = []
    pending = ""
    for line in text.splitlines():
        pending = f"{pending}\n{line}" if pending else line.removeprefix("$ ")
        if pending.endswith("\\"):
            pending = pending[:-1]
            continue
        try:
            words = shlex.split(pending, comments=True)
        except ValueError:
            continue
        pending = ""
        if words:
            commands.append(words)
    assert not pending, f"the block ends within a command: {pending!r}"
    return commands


def synopsis_words(line: str) -> list[str]:
    """Returns the words of `command [OPTIONAL] ...   what it does`, the explanation left out."""
    command = re.split(r" {2,}", line.strip())[0]
    try:
        return shlex.split(command.replace("[", "").replace("]", ""))
    except ValueError:
        # An apostrophe: prose.
        return []
