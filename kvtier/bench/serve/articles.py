"""What the two articles measured, and the order of their modes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from kvtier.bench.serve.serve_figures import Figures
from kvtier.bench.serve.serve_mode import CPU, DISK, HYBRID, OFF

SERVING_TITLE = "24 GB card, Qwen2.5-7B, random prompts of 4,096 tokens, 1,024 out, 32 at once"
SERVING: Mapping[str, Figures] = {
    OFF: {
        "ttft_mean_s": 1.34,
        "ttft_p99_s": 4.76,
        "tpot_mean_s": 0.038,
        "tpot_p99_s": 0.063,
        "tokens_per_s": 1187,
        "preemptions": 28,
        "completion_p99_s": 11.8,
    },
    CPU: {
        "ttft_mean_s": 1.26,
        "ttft_p99_s": 2.15,
        "tpot_mean_s": 0.039,
        "tpot_p99_s": 0.056,
        "tokens_per_s": 1452,
        "preemptions": 7,
        "completion_p99_s": 7.2,
    },
    DISK: {
        "ttft_mean_s": 1.92,
        "ttft_p99_s": 3.08,
        "tpot_mean_s": 0.042,
        "tpot_p99_s": 0.061,
        "tokens_per_s": 1321,
        "preemptions": 9,
        "completion_p99_s": 8.4,
    },
}
"""Hybrid stands there without figures: a P99 to the first token under 2.5 s, at 32K tokens."""

EDGE_TITLE = "edge boxes, Llama-3-8B: first visit and later ones"
EDGE: Mapping[str, Figures] = {
    OFF: {"ttft_cold_s": 1.2, "ttft_warm_s": 0.15},
    CPU: {"ttft_cold_s": 2.8, "ttft_warm_s": 0.28},
    DISK: {"ttft_cold_s": 3.5, "ttft_warm_s": 0.75},
    HYBRID: {"ttft_cold_s": 2.1, "ttft_warm_s": 0.18},
}

ORDER = (CPU, HYBRID, DISK, OFF)
"""Best first."""
LEVEL = 1.05
"""Times that are so near each other are told apart by no order: runs differ by as much."""


def judge_order(figures: Mapping[str, Figures]) -> str | None:
    """Says in one line whether the modes stand in the articles' order; None with fewer than two.

    By later visits where there are any: first ones are cold in every mode.
    """
    is_revisited = any(it.get("ttft_warm_s") for it in figures.values())
    name = "ttft_warm_s" if is_revisited else "ttft_mean_s"
    values = {mode: value for mode in ORDER if (value := figures.get(mode, {}).get(name))}
    if len(values) < 2:
        return None
    ours = sorted(values, key=lambda mode: values[mode])
    text = f"{ours[0]} {values[ours[0]] * 1e3:,.0f} ms"
    for before, mode in pairwise(ours):
        is_level = values[mode] <= LEVEL * values[before]
        text += f" {'≈' if is_level else '<'} {mode} {values[mode] * 1e3:,.0f} ms"
    is_same = all(values[better] <= LEVEL * values[mode] for better, mode in pairwise(values))
    which = " of later visits" if is_revisited else ""
    return f"mean first token{which}: {text}: {'the' if is_same else 'not the'} articles' order"
