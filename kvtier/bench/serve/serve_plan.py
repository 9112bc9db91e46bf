"""What is to be measured: all choices of the command line, checked together. Pure but for looking
at the model's folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvtier.bench.serve.serve_mode import DISK_MODES, MODES, TierSizes
from kvtier.bench.serve.sweep import CONCURRENCY, DEVICE_SHARE, INPUT_TOKENS, IO_THREADS, Sweep
from kvtier.bench.serve.workload import (
    WorkloadShape,
    count_distinct_tokens,
    longest_request_tokens,
    make_sessions,
    with_input_tokens,
)
from kvtier.errors import ConfigError
from kvtier.http_stream import ServerUrl

_FLOAT32 = "float32"


@dataclass(frozen=True, kw_only=True)
class ServePlan:
    """Checked at construction by `check`; all modes get the same requests."""

    modes: tuple[str, ...]
    urls: Mapping[str, ServerUrl]
    """Of servers that run already; empty: vLLM is started for each mode."""
    model: str | None
    shape: WorkloadShape
    concurrency: int
    num_runs: int
    num_warm_up: int
    timeout_s: float
    start_s: float
    sweep: Sweep | None
    sizes: TierSizes
    folder: str | None
    python: str
    block_tokens: int
    device_tokens: int | None
    serve_arguments: tuple[str, ...]

    @property
    def points(self) -> tuple[Point, ...]:
        """What is measured in each mode, in order."""
        base = Point(
            value=None,
            shape=self.shape,
            concurrency=self.concurrency,
            device_tokens=self.device_tokens,
            num_io_threads=self.sizes.num_io_threads,
        )
        if self.sweep is None:
            return (base,)
        return tuple(
            self._point(dataclasses.replace(base, number=number, value=value), self.sweep.axis)
            for number, value in enumerate(self.sweep.values)
        )

    @property
    def is_exact(self) -> bool:
        """Whether engines are known to compute so that equal prompts give equal tokens."""
        return not self.urls and any(_FLOAT32 in it for it in self.serve_arguments)

    @property
    def context_tokens(self) -> int:
        """What the longest request of all points needs."""
        return max(longest_request_tokens(point.shape) for point in self.points)

    def check(self) -> None:
        """Raises ConfigError for what cannot be measured, before anything is started."""
        if self.urls and (self.serve_arguments or self.device_tokens is not None):
            raise ConfigError(
                "url: servers that run already take no --device-tokens and nothing after --; "
                "leave them out, or --url"
            )
        if not self.urls and self.model is None:
            raise ConfigError("model: vLLM has to be told which; give --model, or --url MODE=URL")
        if not self.urls and self.folder is None and set(self.modes) & set(DISK_MODES):
            raise ConfigError("path: modes disk and hybrid need a folder on an SSD; give --path")
        if not self.timeout_s > 0:
            raise ConfigError(f"timeout-s: {self.timeout_s:g} waits for nothing; give more than 0")
        if self.sweep is not None:
            num_sessions = len(make_sessions(self.points[0].shape, 0))
            self.sweep.check(modes=self.modes, has_urls=bool(self.urls), num_sessions=num_sessions)
        for point in self.points:
            point.check(self.block_tokens)

    def _point(self, point: Point, axis: str) -> Point:
        value = point.value
        assert value is not None
        if axis == CONCURRENCY:
            return dataclasses.replace(point, concurrency=int(value))
        if axis == INPUT_TOKENS:
            return dataclasses.replace(point, shape=with_input_tokens(self.shape, int(value)))
        if axis == IO_THREADS:
            return dataclasses.replace(point, num_io_threads=int(value))
        assert axis == DEVICE_SHARE
        tokens = count_distinct_tokens(make_sessions(self.shape, 0))
        return dataclasses.replace(point, device_tokens=math.ceil(value * tokens))


@dataclass(frozen=True, kw_only=True)
class Point:
    """One setting of what is swept; `value` None: nothing is."""

    value: float | None
    number: int = 0
    shape: WorkloadShape
    concurrency: int
    device_tokens: int | None
    num_io_threads: int | None

    def check(self, block_tokens: int) -> None:
        longest = longest_request_tokens(self.shape)
        if self.device_tokens is not None and self.device_tokens < longest + block_tokens:
            raise ConfigError(
                f"device-tokens: {self.device_tokens:,} tokens do not hold one request of "
                f"{longest:,} with a block to spare; give {longest + block_tokens:,} or more"
            )

    def engine_key(self) -> tuple[object, ...]:
        """Points with equal keys are measured on one engine."""
        return self.device_tokens, self.num_io_threads


def parse_urls(texts: Sequence[str]) -> dict[str, ServerUrl]:
    """Reads "MODE=URL". Raises ConfigError."""
    urls: dict[str, ServerUrl] = {}
    for text in texts:
        mode, separator, url = text.partition("=")
        if not separator or mode not in MODES:
            raise ConfigError(f"url: write MODE=URL with one of {', '.join(MODES)}, got {text!r}")
        if mode in urls:
            raise ConfigError(f"url: {mode} is named twice")
        urls[mode] = ServerUrl.parse(url)
    return urls


def parse_settings(texts: Sequence[str]) -> dict[str, str]:
    """Reads "NAME=VALUE". Raises ConfigError."""
    settings: dict[str, str] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise ConfigError(f"setting: write NAME=VALUE, got {text!r}")
        settings[name] = value
    return settings


def find_vocabulary_tokens(model: str | None) -> int | None:
    """Returns how many ids the model of a folder has; None where it does not say."""
    if model is None:
        return None
    with contextlib.suppress(OSError, ValueError, AttributeError):
        config = json.loads(Path(model, "config.json").read_text(encoding="utf-8"))
        value = config.get("vocab_size")
        return value if isinstance(value, int) else None
    return None
