"""Finding: one line of the doctor, the verdict over all of them, and the guard around each check.

Plain values and pure functions; thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final


class Level(str, Enum):
    """How much a finding matters, from not at all to everything."""

    OK = "ok"
    NOTE = "note"
    """Worth knowing; costs nothing, or nothing that is sure."""
    WARN = "warn"
    """kvtier works and is slower or smaller than it could be."""
    FAIL = "fail"
    """There is no disk tier, or no store, like this."""


class Verdict(str, Enum):
    """What all findings come to."""

    OK = "ok"
    DEGRADED = "degraded"
    UNUSABLE = "unusable"


# What a figure in bytes per second means: KV of 4,096 tokens of Qwen2.5-7B at 16 bits.
PROMPT_BYTES: Final = 4096 * 57_344
PROMPT_TEXT: Final = "a 4,096-token prompt of Qwen2.5-7B (235 MB)"
_REASONS_MAX: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What is, why it matters and what to do."""

    name: str
    level: Level = Level.OK
    text: str
    why: str = ""
    remedy: str = ""

    @property
    def is_good(self) -> bool:
        return self.level in (Level.OK, Level.NOTE)

    def describe(self) -> dict[str, object]:
        """Returns the finding as it stands in JSON."""
        return {
            "name": self.name,
            "level": self.level.value,
            "is_good": self.is_good,
            "text": self.text,
            "why": self.why,
            "remedy": self.remedy,
        }

    @staticmethod
    def from_description(fields: dict[str, Any]) -> Finding:
        """Undoes `describe`. Raises KeyError or ValueError for anything else."""
        return Finding(
            name=str(fields["name"]),
            level=Level(fields["level"]),
            text=str(fields["text"]),
            why=str(fields["why"]),
            remedy=str(fields["remedy"]),
        )


Check = Callable[[], "Iterable[Finding] | Finding"]


def run_check(name: str, check: Check) -> Iterator[Finding]:
    """Yields what a check finds; an error in it becomes a note, so that the others still run."""
    try:
        found = check()
        yield from (found,) if isinstance(found, Finding) else found
    except Exception as error:  # The doctor is asked when things are broken.
        yield Finding(
            name=name,
            level=Level.NOTE,
            text=f"could not be looked at: {type(error).__name__}: {error}",
            remedy="the other findings stand without it",
        )


def judge(findings: Iterable[Finding]) -> tuple[Verdict, str]:
    """Returns the verdict, and the first reasons for one that is not good."""
    listed = list(findings)
    for level, verdict in ((Level.FAIL, Verdict.UNUSABLE), (Level.WARN, Verdict.DEGRADED)):
        reasons = [f"{it.name}: {it.why or it.text}" for it in listed if it.level is level]
        if reasons:
            more = len(reasons) - _REASONS_MAX
            shown = [*reasons[:_REASONS_MAX], *([f"and {more} more"] if more > 0 else [])]
            return verdict, "; ".join(shown)
    return Verdict.OK, ""
