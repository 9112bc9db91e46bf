"""The picture of `kvtier bench copy`: share of the link by fragment size and method.

matplotlib is imported by the call, draws off screen, and is used from the calling thread.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kvtier.bench.copy_report import SWEEP, CopyReport, CopyRow
from kvtier.bench.copy_rig import DIRECTIONS
from kvtier.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = {
    "copy_engine": "#7a8794",
    "staged": "#2a9d8f",
    "zero_copy": "#e9a23b",
    "auto": "#111111",
}


def draw_copies(report: CopyReport, path: Path) -> None:
    """Writes a file of the kind that its name says; raises ImportError without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(12, 4.4), sharey=True, layout="constrained")
    for axes, direction in zip(panels, DIRECTIONS, strict=True):
        _draw_direction(axes, report, direction)
    panels[0].set_ylabel("% of one large copy of the same run")
    figure.suptitle(str(report.device.get("name", "")), fontsize=10)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _draw_direction(axes: Axes, report: CopyReport, direction: str) -> None:
    rows = [row for row in report.rows if row.what == SWEEP and row.direction == direction]
    num_fragments = min((row.num_fragments or 0 for row in rows), default=0)
    rows = [row for row in rows if row.num_fragments == num_fragments]
    for method, colour in _COLOURS.items():
        points = sorted(_points(rows, method))
        if points:
            axes.plot(
                [fragment_bytes for fragment_bytes, _ in points],
                [share for _, share in points],
                color=colour,
                label=method.replace("_", " "),
                marker="o",
                markersize=4,
                linestyle="--" if method == "auto" else "-",
            )
    sizes = sorted({row.fragment_bytes or 0 for row in rows})
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [format_bytes(size) for size in sizes], rotation=30, fontsize=8)
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.axhline(100, color="black", linewidth=0.8)
    axes.set_title(f"{direction}: blocks of {num_fragments} fragments")
    axes.set_xlabel("bytes of a fragment")
    axes.grid(alpha=0.3)
    if rows:
        axes.legend(loc="lower right", fontsize=8)


def _points(rows: list[CopyRow], method: str) -> list[tuple[int, float]]:
    return [
        (row.fragment_bytes, 100 * row.ratio)
        for row in rows
        if row.method == method and row.fragment_bytes is not None and row.ratio is not None
    ]
