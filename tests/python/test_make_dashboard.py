"""Dashboard and alerts: current, of metrics that there are, and tried with a real Prometheus."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from child_process import ROOT
from make_dashboard import (
    DASHBOARD_NAME,
    PANELS,
    PATH_VARIABLE,
    RATE_VARIABLE,
    TARGET,
    fill_readme,
    main,
    make_dashboard,
)
from payload import payloads
from prometheus_server import PrometheusServer, find_program, wait_for
from store_setup import BLOCK_BYTES, OpenStore, namespace_of

import kvtier
from kvtier.metrics import METRICS

RULES_FILE = TARGET / "alert_rules.yml"
SERIES_NAMES = {name for metric in METRICS for name in metric.series_names}
PANEL_EXPRESSIONS = [expression for panel in PANELS for expression, _ in panel.expressions]


def list_rules() -> list[dict[str, str]]:
    groups = yaml.safe_load(RULES_FILE.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def names_in(expression: str) -> set[str]:
    return set(re.findall(r"\bkvtier_\w+", expression))


def fill_variables(expression: str) -> str:
    return expression.replace(PATH_VARIABLE, ".*").replace(RATE_VARIABLE, "20s")


def test_the_committed_dashboard_and_readme_are_current() -> None:
    hint = "run .venv/bin/python tools/make_dashboard.py"
    assert json.loads((TARGET / DASHBOARD_NAME).read_text()) == make_dashboard(), hint
    readme = (TARGET / "README.md").read_text(encoding="utf-8")
    assert readme == fill_readme(readme), hint
    assert all(f"| {panel.title} | {panel.text} |" in readme for panel in PANELS)


def test_the_tool_writes_where_it_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path)]) == 0
    for name in (DASHBOARD_NAME, "README.md"):
        assert (tmp_path / name).read_text() == (TARGET / name).read_text()
    assert "wrote" in capsys.readouterr().out


def test_panels_and_alerts_ask_for_metrics_that_there_are() -> None:
    for expression in [*PANEL_EXPRESSIONS, *(it["expr"] for it in list_rules())]:
        assert names_in(expression) <= SERIES_NAMES, expression
        assert names_in(expression) or "up{" in expression
    # The check itself finds a name that is none.
    assert not names_in("rate(kvtier_hits[1m])") <= SERIES_NAMES


def test_panels_follow_the_chosen_stores_and_stand_side_by_side() -> None:
    for expression in PANEL_EXPRESSIONS:
        assert len(names_in(expression)) <= expression.count(f'path=~"{PATH_VARIABLE}"')
    places = [tuple(it["gridPos"].values()) for it in make_dashboard()["panels"]]  # type: ignore
    assert len(set(places)) == len(PANELS)
    assert all(panel.title and panel.text.endswith(".") for panel in PANELS)


def test_every_alert_stands_in_the_readme_and_is_tested() -> None:
    readme = (TARGET / "README.md").read_text(encoding="utf-8")
    tests = (TARGET / "alert_rules_test.yml").read_text(encoding="utf-8")
    for rule in list_rules():
        assert f"| {rule['alert']} |" in readme
        assert f"alertname: {rule['alert']}\n" in tests
        assert rule["annotations"]["summary"]  # type: ignore[index]


@pytest.mark.prometheus
@pytest.mark.parametrize(
    "arguments",
    [
        ["check", "rules", "alert_rules.yml"],
        ["check", "config", "prometheus.yml"],
        ["test", "rules", "alert_rules_test.yml"],
    ],
)
def test_prometheus_own_checker_is_content(arguments: list[str]) -> None:
    command = [find_program("promtool"), *arguments]
    done = subprocess.run(command, cwd=TARGET, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def run_exporter(folder: Path) -> Iterator[str]:
    """Runs `kvtier metrics` and yields its host and port."""
    command = [sys.executable, "-m", "kvtier", "metrics", str(folder), "--port", "0", "--json"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        url = json.loads(process.stdout.readline())["url"]
        yield url.removeprefix("http://").removesuffix("/metrics")
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def use(store: kvtier.BlockStore, turn: int) -> None:
    """Puts four blocks, looks for them, gets them from both tiers, and four that are missing."""
    ns = namespace_of(store)
    keys, missing = (ns.keys(range(16 * it, 16 * it + 16)) for it in (turn, 10**6 + turn))
    ns.put(keys, payloads(keys, 1, BLOCK_BYTES))
    store.flush()
    assert ns.lookup(keys).num_blocks == 4
    ns.get(keys, bytearray(4 * BLOCK_BYTES))
    store.clear("host")
    ns.get(keys, bytearray(4 * BLOCK_BYTES))
    ns.get(missing, bytearray(4 * BLOCK_BYTES))


@pytest.mark.prometheus
def test_a_real_prometheus_answers_every_panel_and_alert(
    open_store: OpenStore, disk_folder: Path
) -> None:
    pytest.importorskip("prometheus_client")
    find_program("prometheus")
    folder = disk_folder / "store"
    store = open_store(folder)
    turn = 0

    def is_answered(expression: str) -> bool:
        nonlocal turn
        turn += 1
        use(store, turn)
        return any(math.isfinite(value) for _, value in server.query(fill_variables(expression)))

    with (
        run_exporter(folder) as target,
        PrometheusServer(disk_folder, target, RULES_FILE) as server,
    ):
        for expression in PANEL_EXPRESSIONS:
            wait_for(lambda it=expression: is_answered(it), expression)  # type: ignore[misc]
        for rule in list_rules():
            # None is to be done about a store that fares well.
            assert server.query(rule["expr"]) == [], rule["alert"]
        stats = store.stats()
        tiers = stats["tiers"]
        assert isinstance(tiers, dict)
        assert tiers["disk"]["hits"] == tiers["host"]["hits"] == 4 * turn
        for tier in ("host", "disk"):
            told = f'kvtier_hits_total{{tier="{tier}"}}'
            wait_for(lambda it=told: [v for _, v in server.query(it)] == [4 * turn], told)  # type: ignore[misc]
        assert [value for _, value in server.query("kvtier_up")] == [1]
        store.close()
        wait_for(lambda: [value for _, value in server.query("kvtier_up")] == [0], "it is down")
        # Its figures end with it: they are not those of a store at rest.
        assert server.query("kvtier_hits_total") == []
        wait_for(lambda: is_pending(server, "KvtierStoreDown"), "the alert waits for its time")
        assert not is_pending(server, "KvtierExporterDown")


def is_pending(server: PrometheusServer, alert: str) -> bool:
    groups = server.ask("rules")["groups"]
    assert isinstance(groups, list)
    rules = {rule["name"]: rule for group in groups for rule in group["rules"]}
    assert set(rules) == {it["alert"] for it in list_rules()}
    assert all(rule["health"] in {"ok", "unknown"} for rule in rules.values())
    return str(rules[alert]["state"]) == "pending"
