"""Writes docs/metrics.md from the table of metrics.

Usage: make_metrics_doc.py [FILE]. A test compares the committed file with what this makes.
Pure functions but for main; nothing here is shared between threads.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Run as a script, the tool describes the package beside it, installed or not.
sys.path.insert(0, str(ROOT))

from kvtier.metrics import Metric  # noqa: E402
from kvtier.metrics.store_metrics import JOB_METRICS, MODE_METRICS, STORE_METRICS  # noqa: E402
from kvtier.metrics.tier_metrics import TIER_METRICS  # noqa: E402

TARGET = ROOT / "docs/metrics.md"

INTRODUCTION = """\
# Metrics

<!-- Written by tools/make_metrics_doc.py from the code; change the code and run it again. -->

Everything that `stats()` counts, for Prometheus. Needs the extra `metrics`: `pip install
'kvtier[metrics]'`. No port is opened unless you ask for one.

| you want | do |
|---|---|
| figures of stores in other processes | `kvtier metrics PATH [PATH ...] --port 9477` beside them |
| the process itself to answer | setting `metrics_port: 9477`; ends with the store |
| them in your application's endpoint | `kvtier.metrics.register(store)`, or of a `kvtier.Monitor` |
| a file for node_exporter | `kvtier metrics PATH --once` into a new file, then renamed |
| them under vLLM | see [vllm.md](vllm.md#metrics) |

A dashboard, alerts and an example of Prometheus' configuration:
[observability](observability/README.md).

- `kvtier metrics` reads the small file that a running store keeps in its folder: no lock, and no
  word to the store. A store without a folder can only be shown by its own process. Figures are at
  most a quarter of a second old under load.
- It runs as the store's user or as root, since the folder is closed to others. Several stores may
  be named, also some that are not there yet: those have `kvtier_up 0`. `--once` then exits with 1.
- Both ports answer on 127.0.0.1 unless `metrics_host` or `--host` says otherwise. There is no
  password and no encryption: open them to a network that you trust. The figures hold no prompts and
  no keys, but folders' names.
- Counters begin at 0 when a store is opened; use `rate` and `increase`, which know that.
- A store that is down has no series but `kvtier_up`; a tier that is not configured has none.

## Names and labels

A name is the field's in `stats()` with `kvtier_` before it (of `stats()["jobs"]` `kvtier_jobs_`),
`_total` behind it where it counts, and `_s` written out. vLLM's own endpoint has some of them as
`vllm:kvtier_…`, with the same words.

Every series has the label `path`, the store's folder, but of a store without one; and the labels
that you give to `register(labels={"model": "..."})`. By metric there are:

| label | values |
|---|---|
| `tier` | `host`, `disk` |
| `kind` | `get`, `put`: calls for bytes of the caller; `load`, `save`: of paged engines |
| `state` | `ok`, `degraded`, `stalled`, `off` |
| `io`, `direct` | words of `stats()["tiers"][tier]["mode"]` |
| `version` | of kvtier |

The share of blocks asked for that each tier delivered, and the 99th percentile of gets:

```
sum by (tier) (rate(kvtier_hits_total[5m])) / scalar(sum(rate(kvtier_get_blocks_total[5m])))
histogram_quantile(0.99, sum by (le) (rate(kvtier_latency_seconds_bucket{kind="get"}[5m])))
```

A caller that looks first asks only for what is there, and then the first of these is always 1:
divide by `kvtier_lookup_blocks_total` where that grows faster, as the dashboard does. A quantile is
exact to a factor of two: buckets are powers of two from 1 µs on.
"""

SECTIONS = (
    ("The store", STORE_METRICS),
    ("Its tiers", (*TIER_METRICS, *MODE_METRICS)),
    ("Its jobs", JOB_METRICS),
)


def make_document() -> str:
    """Returns the text of docs/metrics.md."""
    return "\n".join([INTRODUCTION, *(_section(title, them) for title, them in SECTIONS)])


def _section(title: str, metrics: tuple[Metric, ...]) -> str:
    head = [
        f"## {title}",
        "",
        "| name | type | unit | labels | meaning | what to look at when it moves |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *map(_row, metrics), ""])


def _row(metric: Metric) -> str:
    cells = (
        f"`{metric.name}`",
        metric.type.value,
        metric.unit,
        ", ".join(f"`{it}`" for it in metric.labels) or "-",
        metric.meaning,
        metric.advice,
    )
    return f"| {' | '.join(it.replace('|', chr(92) + '|') for it in cells)} |"


def main(arguments: list[str]) -> int:
    """Writes the document to the file named, or to docs/."""
    target = Path(arguments[0]) if arguments else TARGET
    target.write_text(make_document(), encoding="utf-8")
    print(f"wrote {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
