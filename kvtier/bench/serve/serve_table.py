"""The tables of `kvtier bench serve`: modes side by side, and the articles' beside ours. Prints."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kvtier.bench.serve import articles
from kvtier.bench.serve.serve_figures import FIGURES, FigureKind, Figures
from kvtier.bench.serve.serve_mode import OFF
from kvtier.bench.serve.serve_report import Comparison, ModeResult, ServeReport

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_LINE_CHARACTERS = 130


def print_serve_report(report: ServeReport) -> None:
    """Prints a table for each point of the sweep, the articles' figures, notes and faults."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else _LINE_CHARACTERS)
    for point in report.points:
        console.print(_mode_table(report, point), highlight=False)
    if report.axis is None and report.points:
        figures = report.figures_at(report.points[0])
        for title, theirs in (
            (articles.SERVING_TITLE, articles.SERVING),
            (articles.EDGE_TITLE, articles.EDGE),
        ):
            _print_articles(console, title, theirs, figures)
    for text in report.remarks:
        console.print(f"note: {text}", markup=False, highlight=False, soft_wrap=True)
    for text in report.faults:
        console.print(f"FAULT: {text}", markup=False, highlight=False, soft_wrap=True)


def outputs_text(result: ModeResult, comparison: Comparison | None) -> str:
    """How the outputs compare, in a few words."""
    if not result.outputs or (comparison is not None and comparison.num_compared == 0):
        return "-"
    if comparison is None:
        return "reference"
    if comparison.num_different == 0:
        return f"all {comparison.num_compared} the same"
    return f"{comparison.num_different} of {comparison.num_compared} DIFFER"


def _mode_table(report: ServeReport, point: float | None) -> Table:
    from rich.table import Table

    results = report.at(point)
    table = Table(title=report.name_point(point).rstrip(": ") or None)
    table.add_column("median of the runs" if report.axis is None else "")
    for result in results:
        table.add_column(result.mode, justify="right")
    for kind in FIGURES:
        cells = [_cell(kind, result.figures) for result in results]
        if any(cell != "-" for cell in cells):
            table.add_row(kind.heading, *cells)
    table.add_row("outputs", *(outputs_text(it, report.compare(it)) for it in results))
    table.add_row("runs", *(str(len(it.runs)) for it in results))
    return table


def _print_articles(
    console: Console, title: str, theirs: Mapping[str, Figures], ours: Mapping[str, Figures]
) -> None:
    """Each mode as a ratio to off, in the article and here: machines differ, ratios compare."""
    from rich.table import Table

    modes = [mode for mode in theirs if mode != OFF and ours.get(mode)]
    if not modes or not ours.get(OFF):
        return
    table = Table(title=f"beside the article: {title}; share of off in brackets")
    table.add_column("")
    table.add_column("off: article", justify="right")
    table.add_column("here", justify="right")
    for mode in modes:
        table.add_column(f"{mode}: article", justify="right")
        table.add_column("here", justify="right")
    for kind in FIGURES:
        if theirs[OFF].get(kind.name) is None:
            continue
        row = [_cell(kind, theirs[OFF]), _cell(kind, ours[OFF])]
        for mode in modes:
            row.append(_with_ratio(kind, theirs[mode], theirs[OFF]))
            row.append(_with_ratio(kind, ours[mode], ours[OFF]))
        table.add_row(kind.heading.strip(), *row)
    console.print(table, highlight=False)


def _with_ratio(kind: FigureKind, figures: Figures, off: Figures) -> str:
    value, base = figures.get(kind.name), off.get(kind.name)
    text = _cell(kind, figures)
    return f"{text} ({value / base:.0%})" if value is not None and base else text


def _cell(kind: FigureKind, figures: Figures) -> str:
    value = figures.get(kind.name)
    return "-" if value is None else kind.form(value)
