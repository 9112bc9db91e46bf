"""The table of metrics: names after Prometheus' rules, and every number of stats() has a place."""

import ast
import re

from child_process import ROOT

import kvtier
from kvtier.metrics import METRICS, MetricType
from kvtier.metrics.metric import Scope

# What stays out: how often the live file was written, and what another number says already.
LEFT_OUT = {"live_updates", "live_failures", "unknown_files"}
JOBS_LEFT_OUT = {"suspended", "listed", "copy_threads"}
TIERS_LEFT_OUT = {"page_locked_bytes"}


def test_names_are_unique_and_follow_the_rules_of_prometheus() -> None:
    names = [it.name for it in METRICS]
    assert len(names) == len(set(names))
    for metric in METRICS:
        assert re.fullmatch(r"kvtier_[a-z][a-z_]*[a-z]", metric.name)
        assert metric.name.endswith("_total") == (metric.type is MetricType.COUNTER)
        assert not metric.name.endswith(("_s", "_ms", "_us", "_total_total"))
        assert set(metric.labels) <= {"tier", "kind", "state", "io", "direct", "version"}


def test_units_stand_in_the_names() -> None:
    for metric in METRICS:
        bare = metric.name.removesuffix("_total")
        assert ("bytes" in bare) == (metric.unit in {"bytes", "bytes/second"}), metric.name
        assert bare.endswith("_seconds") == (metric.unit == "seconds"), metric.name
        assert bare.endswith("_per_second") == (metric.unit == "bytes/second"), metric.name


def test_a_metric_has_the_name_of_its_field_and_says_what_it_means() -> None:
    by_field = {(it.scope, it.field): it for it in METRICS}
    assert by_field[Scope.TIER, "bytes_read"].name == "kvtier_bytes_read_total"
    assert by_field[Scope.TIER, "read_bytes_per_s"].name == "kvtier_read_bytes_per_second"
    assert by_field[Scope.STORE, "recover_s"].name == "kvtier_recover_seconds"
    assert by_field[Scope.JOBS, "ended"].name == "kvtier_jobs_ended_total"
    for metric in METRICS:
        assert metric.meaning.endswith(".")
        assert metric.advice


def test_every_number_of_stats_is_a_metric_or_left_out_on_purpose() -> None:
    with kvtier.open(host_bytes="4MiB") as store:
        stats = store.stats()
    fields = {scope: {it.field for it in METRICS if it.scope is scope} for scope in Scope}
    numbers = {name for name, value in stats.items() if isinstance(value, (int, float))}
    assert numbers - LEFT_OUT == fields[Scope.STORE] - LEFT_OUT
    jobs, tiers = stats["jobs"], stats["tiers"]
    assert isinstance(jobs, dict)
    assert isinstance(tiers, dict)
    kinds = {"puts", "gets", "loads", "saves"}
    assert set(jobs) - JOBS_LEFT_OUT - kinds == fields[Scope.JOBS]
    assert set(tiers["host"]) - TIERS_LEFT_OUT - {"mode", "health"} == fields[Scope.TIER]


def test_vllm_has_the_same_words_for_the_same_things() -> None:
    source = (ROOT / "kvtier/adapters/vllm/store_metrics.py").read_text(encoding="utf-8")
    tables = {
        node.target.id: ast.literal_eval(node.value)
        for node in ast.parse(source).body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and isinstance(node.value, ast.Dict)
    }
    assert set(tables) == {"_COUNTERS", "_GAUGES"}
    types = {it.field: it.type for it in METRICS if it.labels[:1] == ("tier",)}
    for name, kind in (("_COUNTERS", MetricType.COUNTER), ("_GAUGES", MetricType.GAUGE)):
        assert tables[name]
        for field in tables[name]:
            assert types[field] is kind, field
    # The one that is made of the tier's health.
    assert '_IS_HEALTHY: Final = "is_healthy"' in source
    assert types["is_healthy"] is MetricType.GAUGE
