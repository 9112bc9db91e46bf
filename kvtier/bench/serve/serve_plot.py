"""The picture of `kvtier bench serve`: bars of the modes, or lines over what was swept.

matplotlib is imported by the call, draws off screen, and is used from the calling thread.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kvtier.bench.serve.serve_report import ServeReport
from kvtier.bench.serve.sweep import format_value

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = {
    "off": "#7a8794",
    "cpu": "#2a9d8f",
    "disk": "#e9a23b",
    "hybrid": "#3d6fb6",
    "native": "#a35fb0",
    "lmcache": "#c0504d",
}
_PANELS = (
    ("ttft_mean_s", "first token, mean: ms", 1e3),
    ("ttft_p99_s", "first token, P99: ms", 1e3),
    ("tpot_mean_s", "time per output token, mean: ms", 1e3),
    ("tokens_per_s", "output tokens/s", 1.0),
)


def draw_modes(report: ServeReport, path: Path) -> None:
    """Writes a file of the kind that its name says; raises ImportError without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(_PANELS), figsize=(16, 4), layout="constrained")
    for axes, (name, title, scale) in zip(panels, _PANELS, strict=True):
        if report.axis is None:
            _draw_bars(axes, report, name, scale)
        else:
            _draw_lines(axes, report, name, scale)
        axes.set_title(title, fontsize=10)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3, axis="y")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _draw_bars(axes: Axes, report: ServeReport, name: str, scale: float) -> None:
    for point in report.points:
        for mode, figures in report.figures_at(point).items():
            value = figures.get(name)
            if value is not None:
                axes.bar_label(axes.bar(mode, value * scale, color=_COLOURS[mode]), fmt="%.3g")


def _draw_lines(axes: Axes, report: ServeReport, name: str, scale: float) -> None:
    assert report.axis is not None
    points = [point for point in report.points if point is not None]
    for mode in dict.fromkeys(it.mode for it in report.results):
        values = {
            point: value * scale
            for point in points
            if (value := report.figures_at(point).get(mode, {}).get(name)) is not None
        }
        places = [points.index(point) for point in values]
        axes.plot(places, list(values.values()), marker="o", color=_COLOURS[mode], label=mode)
    labels = [format_value(report.axis, point) for point in points]
    axes.set_xticks(range(len(points)), labels, fontsize=8)
    axes.set_xlabel(report.axis)
    axes.legend(fontsize=8)
