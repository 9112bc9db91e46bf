"""The one picture of a replay: hits over time, rates beside the bare device, latencies.

matplotlib is imported by the call, draws off screen, and is used from the calling thread.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kvtier.bench.replay import ReplayCounts
from kvtier.bench.report import RawRates, share, tier_gb_per_s

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = {"host": "#2a9d8f", "disk": "#e9a23b", "missed": "#d9d9d9", "raw": "#7a8794"}
_WINDOW_PARTS = 4


@dataclass(frozen=True, kw_only=True)
class Picture:
    """What is drawn: parts of one replay in order, and where it was interrupted."""

    parts: Sequence[ReplayCounts]
    total: ReplayCounts
    raw: RawRates
    interruptions: Sequence[tuple[int, str]]
    """Number of requests before it, and what happened."""


def draw_picture(picture: Picture, path: Path) -> None:
    """Writes a PNG file; raises ImportError without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (hits, rates, latencies) = pyplot.subplots(
        1, 3, figsize=(15, 4.2), width_ratios=[2.2, 1, 1.3], layout="constrained"
    )
    _draw_hits(hits, picture)
    _draw_rates(rates, picture)
    _draw_latencies(latencies, picture.total)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _draw_hits(axes: Axes, picture: Picture) -> None:
    num_requests = list(itertools.accumulate(part.requests for part in picture.parts))
    host, disk = [], []
    for index in range(len(picture.parts)):
        # A few parts together: single requests are all or nothing.
        window = picture.parts[max(0, index - _WINDOW_PARTS + 1) : index + 1]
        num_blocks = sum(part.blocks for part in window)
        host.append(share(sum(part.host.hits for part in window), num_blocks) or 0.0)
        disk.append(share(sum(part.disk.hits for part in window), num_blocks) or 0.0)
    axes.stackplot(
        num_requests,
        [100 * value for value in host],
        [100 * value for value in disk],
        colors=[_COLOURS["host"], _COLOURS["disk"]],
        labels=["from host memory", "from disk"],
    )
    for position, name in picture.interruptions:
        axes.axvline(position, color="black", linewidth=1, linestyle="--")
        axes.annotate(
            name,
            (position, 0.98),
            xycoords=("data", "axes fraction"),
            rotation=90,
            verticalalignment="top",
            horizontalalignment="right",
            fontsize=8,
        )
    axes.set_title("Blocks delivered instead of computed again")
    axes.set_xlabel("requests replayed")
    axes.set_ylabel("% of block references")
    axes.margins(x=0)
    axes.legend(loc="upper left", fontsize=8)


def _draw_rates(axes: Axes, picture: Picture) -> None:
    bars = {
        "host get": (tier_gb_per_s(picture.total.host) or 0.0, "host"),
        "disk get": (tier_gb_per_s(picture.total.disk) or 0.0, "disk"),
        "bare read": (picture.raw.read_gb_per_s, "raw"),
        "bare write": (picture.raw.write_gb_per_s, "raw"),
    }
    drawn = axes.bar(
        list(bars),
        [value for value, _ in bars.values()],
        color=[_COLOURS[colour] for _, colour in bars.values()],
    )
    axes.bar_label(drawn, fmt="%.2f", fontsize=8)
    axes.set_title("GB/s")
    axes.tick_params(axis="x", labelsize=8, rotation=20)


def _draw_latencies(axes: Axes, total: ReplayCounts) -> None:
    for name in ("host", "disk"):
        values = sorted(total.tier(name).latencies_us)
        if values:
            shares = [100 * (i + 1) / len(values) for i in range(len(values))]
            milliseconds = [value / 1000 for value in values]
            axes.plot(milliseconds, shares, color=_COLOURS[name], label=name)
    axes.set_xscale("log")
    axes.set_title("Latency of a get call")
    axes.set_xlabel("ms (log)")
    axes.set_ylabel("% of calls at or below")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", fontsize=8)
