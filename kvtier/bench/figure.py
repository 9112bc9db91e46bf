"""Figure: a measured value beside the bound that it has to keep, and tables of such. Pure but for
printing.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from kvtier.machine import num_cpus

_LOAD_PER_CPU_MAX = 0.5


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured value with its bounds; `value` is None when `note` says why there is none."""

    name: str
    value: float | None
    unit: str = ""
    at_most: float | None = None
    at_least: float | None = None
    note: str = ""

    @property
    def is_good(self) -> bool:
        """Also of what was not measured: it proves nothing."""
        if self.value is None:
            return True
        is_low_enough = self.at_most is None or self.value <= self.at_most
        is_high_enough = self.at_least is None or self.value >= self.at_least
        return is_low_enough and is_high_enough

    @property
    def bound_text(self) -> str:
        least = f"≥ {self.at_least:g}" if self.at_least is not None else ""
        most = f"≤ {self.at_most:g}" if self.at_most is not None else ""
        return " ".join(text for text in (least, most) if text)

    def to_json(self) -> dict[str, object]:
        return {**dataclasses.asdict(self), "good": self.is_good}


def print_figures(figures: Sequence[Figure]) -> None:
    """Prints a table: value, bound, whether it is kept, note."""
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for heading in ("figure", "value", "bound", "", "note"):
        table.add_column(heading, justify="right" if heading in ("value", "bound") else "left")
    for figure in figures:
        table.add_row(
            figure.name,
            "-" if figure.value is None else f"{figure.value:,.3f} {figure.unit}".rstrip(),
            figure.bound_text,
            _judgement(figure),
            figure.note,
        )
    Console(width=None if sys.stdout.isatty() else 140).print(table, highlight=False)


def busy_note(load_before: float) -> str | None:
    """A sentence when others used the machine: rates and times then say little."""
    if load_before <= _LOAD_PER_CPU_MAX * num_cpus():
        return None
    return (
        f"note: load {load_before:.1f} on {num_cpus()} CPUs before the start: others used this "
        "machine, so rates, ratios and times say little. Repeat on an idle one."
    )


def load_average() -> float:
    return os.getloadavg()[0]


def _judgement(figure: Figure) -> str:
    if figure.value is None:
        return "skipped"
    if not figure.bound_text:
        return ""
    return "good" if figure.is_good else "[bold red]MISSED[/bold red]"
