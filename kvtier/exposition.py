"""Reads what servers tell at /metrics, in the text form of Prometheus. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One line: a name, its labels and a number."""

    name: str
    labels: Mapping[str, str]
    value: float


def sum_of(samples: Sequence[Sample], name: str, **labels: str) -> float:
    """Returns the sum of a metric over all samples with these labels."""
    return sum(
        sample.value
        for sample in samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def parse_samples(text: str) -> Iterator[Sample]:
    """Yields the samples of a page; what is none is left out."""
    for line in text.splitlines():
        match = _SAMPLE.match(line)
        if match is None:
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        yield Sample(name=match[1], labels=dict(_LABEL.findall(match[2] or "")), value=value)
