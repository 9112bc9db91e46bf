"""Writes docs/observability/grafana_dashboard.json, and README.md's table, from one list of panels.

Usage: make_dashboard.py [FOLDER]. Tests compare the committed files with what this makes, and ask a
real Prometheus every expression. Pure functions but for main.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
TARGET: Final = ROOT / "docs/observability"
DASHBOARD_NAME: Final = "grafana_dashboard.json"
README_START: Final = "<!-- panels: written by tools/make_dashboard.py -->"
README_END: Final = "<!-- end of panels -->"

PATH_VARIABLE: Final = "$path"
RATE_VARIABLE: Final = "$__rate_interval"
_WIDTH: Final = 24
_PANEL_WIDTH: Final = 8
_PANEL_HEIGHT: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One graph."""

    title: str
    unit: str
    """Grafana's word for it."""
    text: str
    """What it shows, and what is worth a look."""
    expressions: tuple[tuple[str, str], ...]
    """Query and legend, with Grafana's variables."""
    maximum: float | None = None


def _series(name: str, *matchers: str) -> str:
    matched = ",".join((f'path=~"{PATH_VARIABLE}"', *matchers))
    return f"{name}{{{matched}}}"


def _rate(name: str, *matchers: str) -> str:
    return f"rate({_series(name, *matchers)}[{RATE_VARIABLE}])"


def _asked() -> str:
    # Who looks first gets only what is there: its share of hits would be 1 at all times.
    looked, got = (f"sum({_rate(f'kvtier_{it}_blocks_total')})" for it in ("lookup", "get"))
    return f"({looked} > {got} or {got})"


def _quantile(quantile: float) -> str:
    buckets = f"sum by (le, kind) ({_rate('kvtier_latency_seconds_bucket')})"
    return f"histogram_quantile({quantile:g}, {buckets})"


def _by_tier(name: str, legend: str, *matchers: str) -> tuple[str, str]:
    return f"sum by (tier) ({_rate(name, *matchers)})", legend


_DISK: Final = 'tier="disk"'

PANELS: Final = (
    Panel(
        title="Stores that are up",
        unit="none",
        text="1: open and telling. 0: closed or dead; `kvtier stats PATH` says which.",
        expressions=((_series("kvtier_up"), "{{path}}"),),
        maximum=1,
    ),
    Panel(
        title="Health of tiers",
        unit="none",
        text="The state that each tier is in; all but ok needs a look at the store's log.",
        expressions=((f"{_series('kvtier_health')} == 1", "{{path}} {{tier}}: {{state}}"),),
        maximum=1,
    ),
    Panel(
        title="Share of asked blocks that each tier delivered",
        unit="percentunit",
        text="Of what gets and loads asked for, or of what lookups asked for where that is more. "
        "0 with traffic: other keys than were stored, or tiers too small for what comes back.",
        expressions=(
            (f"sum by (tier) ({_rate('kvtier_hits_total')}) / scalar({_asked()})", "{{tier}}"),
        ),
        maximum=1,
    ),
    Panel(
        title="Blocks asked for, delivered, missed",
        unit="ops",
        text="Blocks a second. Missed ones are computed anew.",
        expressions=(
            (_asked(), "asked for"),
            (f"sum({_rate('kvtier_hit_blocks_total')})", "delivered"),
            (f"sum({_rate('kvtier_miss_blocks_total')})", "missed"),
        ),
    ),
    Panel(
        title="Bytes read and written by tier",
        unit="Bps",
        text="Bytes really moved, padding included. A disk that is written and never read wears "
        "for nothing.",
        expressions=(
            _by_tier("kvtier_bytes_read_total", "{{tier}} read"),
            _by_tier("kvtier_bytes_written_total", "{{tier}} written"),
        ),
    ),
    Panel(
        title="Time of gets, puts, loads and saves",
        unit="s",
        text="Upper bounds, exact to a factor of two. Loads that take as long as computing does "
        "are not worth it.",
        expressions=(
            (_quantile(0.5), "{{kind}} median"),
            (_quantile(0.99), "{{kind}} 99 %"),
        ),
    ),
    Panel(
        title="How full each tier is",
        unit="percentunit",
        text="Full is good: a cache keeps what it can.",
        expressions=(
            (
                f"{_series('kvtier_bytes_used')} / {_series('kvtier_bytes_capacity')}",
                "{{path}} {{tier}}",
            ),
        ),
        maximum=1,
    ),
    Panel(
        title="Blocks taken in, evicted, declined",
        unit="ops",
        text="Blocks a second. As many evicted as taken in, and few hits: the tier is too small. "
        "Declined by disk: not worth a write, or a backlog at its bound.",
        expressions=(
            _by_tier("kvtier_inserted_total", "{{tier}} taken in"),
            _by_tier("kvtier_evicted_total", "{{tier}} evicted"),
            _by_tier("kvtier_declined_total", "{{tier}} declined"),
        ),
    ),
    Panel(
        title="Bytes that wait for the disk",
        unit="bytes",
        text="At its bound blocks are declined: the disk writes slower than blocks come.",
        expressions=(
            (_series("kvtier_backlog_bytes", _DISK), "{{path}} waiting"),
            (_series("kvtier_backlog_bytes_max", _DISK), "{{path}} bound"),
        ),
    ),
    Panel(
        title="Rate of disk reads",
        unit="Bps",
        text="While any ran, as measured, and as expected now. Compare with `kvtier doctor PATH`.",
        expressions=(
            (_series("kvtier_read_bytes_per_second", _DISK), "{{path}} measured"),
            (_series("kvtier_expected_read_bytes_per_second", _DISK), "{{path}} expected"),
        ),
    ),
    Panel(
        title="Kept from eviction",
        unit="bytes",
        text="Leased and pinned bytes. What grows without end has an owner that forgets to "
        "release: `kvtier top` names it.",
        expressions=(
            (_series("kvtier_leased_bytes"), "{{path}} {{tier}} leased"),
            (_series("kvtier_pinned_bytes"), "{{path}} {{tier}} pinned"),
        ),
    ),
    Panel(
        title="Leases and jobs under way",
        unit="none",
        text="Both return to a level; a slope without traffic is a leak in the caller.",
        expressions=(
            (_series("kvtier_live_leases"), "{{path}} leases"),
            (_series("kvtier_jobs_unfinished"), "{{path}} jobs"),
        ),
    ),
    Panel(
        title="Errors",
        unit="none",
        text="Blocks in the interval that could not be delivered, of those corrupt ones, of those "
        "ones that a crash tore; and jobs refused. Anything above 0 is worth a look at the log.",
        expressions=tuple(
            (f"increase({_series(f'kvtier_{name}_total')}[{RATE_VARIABLE}])", legend)
            for name, legend in (
                ("load_failures", "{{path}} {{tier}} not delivered"),
                ("corrupt", "{{path}} {{tier}} corrupt"),
                ("torn", "{{path}} {{tier}} torn"),
                ("jobs_refused", "{{path}} jobs refused"),
            )
        ),
    ),
    Panel(
        title="Written for nothing",
        unit="bytes",
        text="Bytes written to a tier that has served nothing since it was opened. More than its "
        "capacity: make the disk tier larger, or leave it out.",
        expressions=((_series("kvtier_unserved_bytes"), "{{path}} {{tier}}"),),
    ),
    Panel(
        title="Memory beside the host tier",
        unit="bytes",
        text="Staging in use, the index, and what is known of uses.",
        expressions=(
            (_series("kvtier_staging_bytes_used"), "{{path}} staging"),
            (_series("kvtier_index_bytes"), "{{path}} index"),
            (_series("kvtier_history_bytes"), "{{path}} uses"),
        ),
    ),
)


def make_dashboard() -> dict[str, object]:
    """Returns the dashboard as Grafana 9 and later import it."""
    source = {"type": "prometheus", "uid": "${datasource}"}
    return {
        "title": "kvtier",
        "uid": "kvtier",
        "tags": ["kvtier"],
        "schemaVersion": 37,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": _variables(source)},
        "panels": [_panel_fields(i, panel, source) for i, panel in enumerate(PANELS)],
    }


def fill_readme(text: str) -> str:
    """Returns README.md's text with the table of panels as it is now."""
    before, start, rest = text.partition(README_START)
    _, end, after = rest.partition(README_END)
    rows = [f"| {panel.title} | {panel.text} |" for panel in PANELS]
    table = "\n".join(["| panel | shows |", "|---|---|", *rows])
    return f"{before}{start}\n\n{table}\n\n{end}{after}"


def _variables(source: dict[str, str]) -> list[dict[str, object]]:
    return [
        {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "source"},
        {
            "name": "path",
            "type": "query",
            "label": "store",
            "datasource": source,
            "query": "label_values(kvtier_up, path)",
            "definition": "label_values(kvtier_up, path)",
            "refresh": 2,
            "multi": True,
            "includeAll": True,
            # A store without a folder has no such label.
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        },
    ]


def _panel_fields(panel_index: int, panel: Panel, source: dict[str, str]) -> dict[str, object]:
    per_row = _WIDTH // _PANEL_WIDTH
    row, column = divmod(panel_index, per_row)
    limits = {"min": 0} if panel.maximum is None else {"min": 0, "max": panel.maximum}
    return {
        "id": panel_index + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.text,
        "datasource": source,
        "gridPos": {
            "x": column * _PANEL_WIDTH,
            "y": row * _PANEL_HEIGHT,
            "w": _PANEL_WIDTH,
            "h": _PANEL_HEIGHT,
        },
        "fieldConfig": {"defaults": {"unit": panel.unit, **limits}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + i),
                "datasource": source,
                "expr": expression,
                "legendFormat": legend,
            }
            for i, (expression, legend) in enumerate(panel.expressions)
        ],
    }


def main(arguments: list[str]) -> int:
    """Writes both files to the folder named, or to docs/observability."""
    folder = Path(arguments[0]) if arguments else TARGET
    dashboard = json.dumps(make_dashboard(), indent=2) + "\n"
    (folder / DASHBOARD_NAME).write_text(dashboard, encoding="utf-8")
    readme = (TARGET / "README.md").read_text(encoding="utf-8")
    (folder / "README.md").write_text(fill_readme(readme), encoding="utf-8")
    print(f"wrote {DASHBOARD_NAME} and README.md in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
