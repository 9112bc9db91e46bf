"""What the doctor prints: one line a finding, more for those that are not good, and the verdict.

Pure but for `print_report`, which writes to standard output.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import Final

from kvtier.cli.doctor.finding import Finding, Level, Verdict, judge

_MARKS: Final = {Level.OK: "ok", Level.NOTE: "note", Level.WARN: "WARN", Level.FAIL: "FAIL"}
_COLOURS: Final = {Level.OK: "green", Level.NOTE: "cyan", Level.WARN: "yellow", Level.FAIL: "red"}
_VERDICT_COLOURS: Final = {
    Verdict.OK: "bold green",
    Verdict.DEGRADED: "bold yellow",
    Verdict.UNUSABLE: "bold red",
}
_MARK_WIDTH: Final = 5
_NAME_WIDTH: Final = 14
_INDENT: Final = " " * (_MARK_WIDTH + _NAME_WIDTH)
_WIDTH_MIN: Final = 60

Line = tuple[str, str]
"""A line, and the colour of its mark."""


def print_report(findings: Sequence[Finding], seconds: float, *, is_verbose: bool) -> None:
    """Prints with colour, and lines of its width, on a terminal only."""
    if not sys.stdout.isatty():
        for text, _ in make_lines(findings, seconds, is_verbose=is_verbose):
            print(text)
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for text, colour in make_lines(findings, seconds, is_verbose=is_verbose):
        pieces = textwrap.wrap(text, max(_WIDTH_MIN, console.width - 1), subsequent_indent=_INDENT)
        for index, piece in enumerate(pieces):
            line = Text(piece, no_wrap=True)
            if index == 0 and colour:
                line.stylize(colour, 0, piece.index(" "))
            console.print(line, soft_wrap=True)


def make_lines(findings: Sequence[Finding], seconds: float, *, is_verbose: bool) -> Iterator[Line]:
    """Yields the lines: a reason stands behind what is, a remedy on a line of its own."""
    for finding in findings:
        is_long = is_verbose or not finding.is_good
        why = finding.why if is_long or finding.level is Level.OK else ""
        text = _printable(f"{finding.text}: {why}" if why else finding.text)
        mark = _MARKS[finding.level]
        yield (
            f"{mark:<{_MARK_WIDTH}}{finding.name:<{_NAME_WIDTH}}{text}",
            _COLOURS[finding.level],
        )
        if finding.remedy and is_long:
            yield f"{_INDENT}-> {_printable(finding.remedy)}", ""
    verdict, reasons = judge(findings)
    text = f"{verdict.value} ({_printable(reasons)})" if reasons else verdict.value
    yield f"{text}  [{seconds:.1f} s]", _VERDICT_COLOURS[verdict]


def _printable(text: str) -> str:
    """A path, or a name that the system reports, must not move the cursor."""
    return "".join(it if it.isprintable() else repr(it)[1:-1] for it in text)
