"""The report of a replay: fields of the contract, verdict, and sums over interrupted parts."""

from __future__ import annotations

import dataclasses
import io
import json

import pytest

from kvtier.bench.replay import ReplayCounts, TierCounts, counts_from_json
from kvtier.bench.report import RawRates, TraceReport, percentile, print_report

RAW = RawRates(read_gb_per_s=1.2, write_gb_per_s=0.9)


def make_counts() -> ReplayCounts:
    return ReplayCounts(
        requests=2,
        blocks=20,
        offered_bytes=12_000,
        store_cpu_s=2e-5,
        host=TierCounts(hits=3, got_bytes=3000, got_s=1e-6, latencies_us=[5.0, 1.0]),
        disk=TierCounts(
            hits=5, got_bytes=5000, got_s=5e-6, latencies_us=[9.0], bytes_read=6000,
            bytes_written=12_600,
        ),
    )  # fmt: skip


def make_report(counts: ReplayCounts, *, raw: RawRates | None = RAW) -> TraceReport:
    return TraceReport(counts=counts, block_bytes=1000, raw=raw, medium="ssd" if raw else None)


def test_the_json_object_has_the_fields_of_the_contract() -> None:
    values = json.loads(json.dumps(make_report(make_counts()).to_json()))
    assert values == {
        "hit_rate": pytest.approx(0.4),
        "requests": 2,
        "blocks": 20,
        "wrong_bytes": 0,
        "cpu_s_per_gb": pytest.approx(1.0),
        "written_per_offered": pytest.approx(1.05),
        "tiers": {
            "host": {
                "hits": 3, "gb_per_s": pytest.approx(3.0), "p50_us": 1.0, "p99_us": 5.0,
                "bytes_read": 0, "bytes_written": 0,
            },
            "disk": {
                "hits": 5, "gb_per_s": pytest.approx(1.0), "p50_us": 9.0, "p99_us": 9.0,
                "bytes_read": 6000, "bytes_written": 12_600,
            },
        },
        "raw": {"read_gb_per_s": 1.2, "write_gb_per_s": 0.9},
        "medium": "ssd",
        "verdict": "good",
    }  # fmt: skip


def test_without_traffic_a_tier_has_no_rate() -> None:
    values = make_report(ReplayCounts(requests=1), raw=None).to_json()
    assert values["hit_rate"] == 0.0
    assert values["cpu_s_per_gb"] is None
    assert values["raw"] == {"read_gb_per_s": None, "write_gb_per_s": None}
    assert values["tiers"]["host"]["gb_per_s"] is None  # type: ignore[index]
    assert values["tiers"]["host"]["p99_us"] is None  # type: ignore[index]


def test_the_verdict_names_the_worst() -> None:
    counts = make_counts()
    assert make_report(counts).verdict == "good"
    counts.disk.bytes_read = 0
    assert make_report(counts).verdict == "no disk traffic"
    assert make_report(counts, raw=None).verdict == "good"
    counts.wrong_bytes = 1
    assert make_report(counts).verdict == "wrong bytes"


def test_people_are_told_about_no_disk_traffic_and_memory() -> None:
    from rich.console import Console

    counts = make_counts()
    counts.disk = TierCounts()
    text = io.StringIO()
    report = dataclasses.replace(make_report(counts), medium="memory")
    print_report(report, Console(file=text, width=200))
    assert "no disk traffic" in text.getvalue()
    assert "say nothing about a disk" in text.getvalue()


def test_parts_of_a_replay_add_up_after_a_passage_through_json() -> None:
    total = ReplayCounts()
    for _ in range(2):
        total.add(counts_from_json(json.loads(json.dumps(dataclasses.asdict(make_counts())))))
    assert total.blocks == 40
    assert total.disk.hits == 10
    assert total.host.latencies_us == [5.0, 1.0, 5.0, 1.0]
    assert total.store_cpu_s == pytest.approx(4e-5)


def test_percentiles_are_values_that_occurred() -> None:
    values = [float(value) for value in range(1, 101)]
    assert percentile(values, 50) == 50.0
    assert percentile(values, 99) == 99.0
    assert percentile(values[:1], 99) == 1.0
    assert percentile([], 50) is None
