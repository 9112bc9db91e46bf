"""What `kvtier bench copy` found: rows beside the limit of the same run, as a table or JSON. Pure
but for printing.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvtier.bench.figure import Figure
from kvtier.units import KIB, format_bytes

SWEEP = "sweep"
BOTH = "both"
SMALL = "small"
SUBMIT = "submit"
PAGE_LOCK = "page_lock"
HARM = "harm"
AUTO = "auto"

AUTO_RATIO_MIN = 0.97
AUTO_FRAGMENT_BYTES_MIN = 16 * KIB
AUTO_OF_BEST_MIN = 0.95
HARM_BEYOND_COPIES_MAX = 0.07
_LINE_CHARACTERS = 130
_UNITS = {"gib_per_s": "GiB/s", "gb_per_s": "GB/s", "us": "µs", "ms": "ms"}


@dataclass(frozen=True, kw_only=True)
class CopyRow:
    """One measured case. Medians; None: the case has no such value."""

    what: str
    direction: str | None = None
    """"save", "load" or "both"."""
    method: str | None = None
    used: str | None = None
    """The method that "auto" came to."""
    fragment_bytes: int | None = None
    num_fragments: int | None = None
    num_blocks: int | None = None
    gb_per_s: float | None = None
    limit_gb_per_s: float | None = None
    """One large copy, in turns with the case."""
    ratio: float | None = None
    """The median of the turns' own ratios."""
    ratio_min: float | None = None
    ratio_max: float | None = None
    num_turns: int | None = None
    extra: dict[str, float | str] = field(default_factory=dict)
    """Figures of this kind of case only; names end in their units."""

    def to_json(self) -> dict[str, object]:
        fields = dataclasses.asdict(self)
        extra = fields.pop("extra")
        return {**fields, **extra}


@dataclass(frozen=True, kw_only=True)
class CopyReport:
    """One run. `first_line` says what was measured and, without a GPU, why not one."""

    first_line: str
    device: dict[str, object]
    driver: str | None
    version: str
    commit: str | None
    is_on_gpu: bool
    is_judged: bool
    """Whether there are bounds: with all the data, on a GPU."""
    rows: Sequence[CopyRow]
    notes: Sequence[str]
    wrong_bytes: int

    @property
    def is_good(self) -> bool:
        return self.wrong_bytes == 0 and all(figure.is_good for figure in self.figures())

    def figures(self) -> list[Figure]:
        """The judged values, with their bounds; none where nothing is judged."""
        if not self.is_judged:
            return []
        return [*self._auto_figures(), *self._harm_figures()]

    def to_json(self) -> dict[str, object]:
        return {
            "device": self.device,
            "driver": self.driver,
            "version": self.version,
            "commit": self.commit,
            "first_line": self.first_line,
            "wrong_bytes": self.wrong_bytes,
            "good": self.is_good,
            "rows": [row.to_json() for row in self.rows],
            "figures": [figure.to_json() for figure in self.figures()],
            "notes": list(self.notes),
        }

    def _auto_figures(self) -> list[Figure]:
        figures: list[Figure] = []
        sweep = [row for row in self.rows if row.what == SWEEP]
        for row in sweep:
            if row.method != AUTO or row.gb_per_s is None or row.ratio is None:
                continue
            name = f"{row.direction} of {_shape_text(row)}"
            if (row.fragment_bytes or 0) >= AUTO_FRAGMENT_BYTES_MIN:
                figures.append(
                    Figure(name=f"{name} / limit", value=row.ratio, at_least=AUTO_RATIO_MIN)
                )
            rivals = [it.ratio for it in sweep if _is_rival(it, row) and it.ratio is not None]
            if rivals:
                share = row.ratio / max(rivals)
                figures.append(
                    Figure(name=f"{name} / best method", value=share, at_least=AUTO_OF_BEST_MIN)
                )
        return figures

    def _harm_figures(self) -> list[Figure]:
        return [
            Figure(
                name="kernel loop beside transfers, slower than beside large copies",
                value=float(row.extra["slowdown_beyond_copies"]),
                at_most=HARM_BEYOND_COPIES_MAX,
            )
            for row in self.rows
            if row.what == HARM
        ]


def print_copy_report(report: CopyReport) -> None:
    """Prints a table of the rows and what is judged; the first line was printed at the start."""
    from rich.console import Console
    from rich.table import Table

    table = Table()
    headings = ("case", "fragments", "direction", "method", "GB/s", "limit", "share", "also")
    for heading in headings:
        is_number = heading in ("GB/s", "limit", "share")
        table.add_column(heading, justify="right" if is_number else "left", no_wrap=is_number)
    for row in report.rows:
        used = f"{row.method} ({row.used})" if row.used and row.used != row.method else row.method
        table.add_row(
            row.what.replace("_", " "),
            _shape_text(row),
            row.direction or "",
            (used or "").replace("_", " "),
            _number(row.gb_per_s, ".2f"),
            _number(row.limit_gb_per_s, ".2f"),
            _number(row.ratio, ".1%"),
            _extra_text(row),
        )
    width = None if sys.stdout.isatty() else _LINE_CHARACTERS
    Console(width=width).print(table, highlight=False)
    for note in report.notes:
        print(f"note: {note}")


def _is_rival(row: CopyRow, auto: CopyRow) -> bool:
    return row.method != AUTO and all(
        getattr(row, name) == getattr(auto, name)
        for name in ("direction", "fragment_bytes", "num_fragments")
    )


def _shape_text(row: CopyRow) -> str:
    if row.fragment_bytes is None:
        return ""
    shape = f"{row.num_fragments} x {format_bytes(row.fragment_bytes)}"
    if row.what == SMALL:
        return f"one block of {shape}"
    return f"{row.num_blocks} blocks of {shape}" if row.what == SUBMIT else shape


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _extra_text(row: CopyRow) -> str:
    texts = [_named_text(name, value) for name, value in row.extra.items()]
    if row.ratio_min is not None and row.ratio_max is not None:
        texts.append(f"{row.num_turns} turns, {row.ratio_min:.1%} to {row.ratio_max:.1%}")
    return "; ".join(texts)


def _named_text(name: str, value: float | str) -> str:
    """ "one copy 25 µs" for one_copy_us."""
    if isinstance(value, str):
        return f"{value} {name}"
    if name.startswith("slowdown_"):
        return f"{name.removeprefix('slowdown_').replace('_', ' ')} {value:+.1%}"
    for ending, unit in _UNITS.items():
        if name.endswith(ending):
            words = name.removesuffix(ending).rstrip("_").replace("_", " ")
            return f"{words} {value:,.1f} {unit}".strip()
    return f"{value:,.1f} {name.removeprefix('num_').replace('_', ' ')}"
