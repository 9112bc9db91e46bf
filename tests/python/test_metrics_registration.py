"""Stores in a registry: exact numbers, several of them, and scrapes that outlive their store."""

import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from child_process import run_well
from payload import payloads
from store_setup import BLOCK_BYTES, OpenStore, namespace_of

import kvtier
from kvtier import metrics

prometheus_client: ModuleType = pytest.importorskip("prometheus_client")
Values = dict[tuple[str, str], float]


@pytest.fixture
def registry() -> Iterator[object]:
    return prometheus_client.CollectorRegistry(auto_describe=True)


def scrape(registry: object) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Returns what the text exposition says, read back by the client's own parser."""
    from prometheus_client.parser import text_string_to_metric_families

    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    text = prometheus_client.generate_latest(registry).decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def value_of(registry: object, name: str, **labels: str) -> float | None:
    found = [it for told, it in scrape(registry).get(name, []) if told.items() >= labels.items()]
    assert len(found) <= 1
    return found[0] if found else None


def test_a_script_of_a_hundred_calls_gives_exactly_these_numbers_k3(
    open_store: OpenStore, disk_folder: Path, registry: object
) -> None:
    store = open_store(disk_folder / "store")
    metrics.register(store, registry)
    ns = namespace_of(store)
    chains = [ns.keys(range(100 * i, 100 * i + 20)) for i in range(20)]  # 5 blocks each.
    for keys in chains:  # 20 puts: 100 blocks.
        ns.put(keys, payloads(keys, 1, BLOCK_BYTES))
    for keys in chains * 2:  # 40 gets: 200 blocks, all delivered.
        assert ns.get(keys, bytearray(5 * BLOCK_BYTES)).num_blocks == 5
    for i in range(20):  # 20 gets of a block that is there before two that are not.
        keys = ns.keys([*range(100 * i, 100 * i + 4), *range(10_000, 10_008)])
        assert ns.get(keys, bytearray(3 * BLOCK_BYTES)).num_blocks == 1
    for keys in chains:  # 20 lookups: 100 blocks.
        assert ns.lookup(keys).num_blocks == 5
    expected = {
        "get_blocks": 260,
        "hit_blocks": 220,
        "miss_blocks": 40,
        "lookups": 20,
        "lookup_blocks": 100,
    }
    for name, number in expected.items():
        assert value_of(registry, f"kvtier_{name}_total") == number, name
    host = {"hits": 220, "misses": 40, "inserted": 100, "declined": 0, "evicted": 0, "corrupt": 0}
    for name, number in host.items():
        assert value_of(registry, f"kvtier_{name}_total", tier="host") == number, name
    assert value_of(registry, "kvtier_hits_total", tier="disk") == 0
    assert value_of(registry, "kvtier_blocks", tier="host") == 100
    assert value_of(registry, "kvtier_bytes_read_total", tier="host") == 220 * BLOCK_BYTES
    for kind, calls in {"put": 20, "get": 60, "load": 0, "save": 0}.items():
        assert value_of(registry, "kvtier_latency_seconds_count", kind=kind) == calls
        assert value_of(registry, "kvtier_latency_seconds_bucket", kind=kind, le="+Inf") == calls
    seconds = value_of(registry, "kvtier_latency_seconds_sum", kind="get")
    assert seconds is not None
    assert seconds > 0


def test_what_is_told_is_what_stats_says(
    open_store: OpenStore, disk_folder: Path, registry: object
) -> None:
    store = open_store(disk_folder / "store", host_bytes=0)
    metrics.register(store, registry)
    ns = namespace_of(store)
    keys = ns.keys(range(12))
    ns.put(keys, payloads(keys, 1, BLOCK_BYTES))
    ns.get(keys, bytearray(3 * BLOCK_BYTES))
    tier = store.stats()["tiers"]["disk"]  # type: ignore[index]
    for name in ("hits", "inserted", "bytes_read", "bytes_written"):
        assert value_of(registry, f"kvtier_{name}_total", tier="disk") == tier[name]
    assert tier["hits"] == 3
    # There is no host tier.
    assert value_of(registry, "kvtier_hits_total", tier="host") is None


def test_a_closed_store_leaves_the_registry(open_store: OpenStore, registry: object) -> None:
    store = open_store()
    registration = metrics.register(store, registry)
    assert value_of(registry, "kvtier_up") == 1
    store.close()
    assert scrape(registry) == {}
    registration.unregister()
    # The names are free again.
    metrics.register(open_store(), registry)
    assert value_of(registry, "kvtier_up") == 1


def test_a_store_that_closes_during_a_scrape_is_down(
    open_store: OpenStore, registry: object
) -> None:
    store = open_store()
    metrics.register(store, registry)
    store._core_store.close(1.0)
    assert {name: len(them) for name, them in scrape(registry).items()} == {"kvtier_up": 1}
    assert value_of(registry, "kvtier_up") == 0


def test_a_registered_store_that_nobody_keeps_closes(registry: object) -> None:
    store = kvtier.open(host_bytes="4MiB")
    metrics.register(store, registry)
    core_store = store._core_store
    del store
    gc.collect()
    assert core_store.is_closed()
    assert scrape(registry) == {}


def test_several_stores_share_one_registry(
    open_store: OpenStore, disk_folder: Path, registry: object
) -> None:
    first, second = open_store(disk_folder / "a"), open_store(disk_folder / "b")
    metrics.register(first, registry)
    metrics.register(second, registry, {"model": "m"})
    up = scrape(registry)["kvtier_up"]
    assert sorted(labels["path"] for labels, _ in up) == [
        str(disk_folder / "a"),
        str(disk_folder / "b"),
    ]
    # One name stands once, however many stores.
    text = prometheus_client.generate_latest(registry).decode()
    assert text.count("# TYPE kvtier_up ") == 1
    assert value_of(registry, "kvtier_up", model="m") == 1
    first.close()
    assert value_of(registry, "kvtier_up", model="m") == 1
    assert len(scrape(registry)["kvtier_up"]) == 1


def test_stores_that_cannot_be_told_apart_are_refused(
    open_store: OpenStore, registry: object
) -> None:
    metrics.register(open_store(), registry)
    second = open_store()
    with pytest.raises(kvtier.UsageError, match="registered already"):
        metrics.register(second, registry)
    metrics.register(second, registry, {"store": "2"})
    assert len(scrape(registry)["kvtier_up"]) == 2


@pytest.mark.parametrize("labels", [{"tier": "x"}, {"le": "x"}, {"__a": "x"}, {"a-b": "x"}])
def test_names_of_labels_that_would_break_the_exposition_are_refused(
    open_store: OpenStore, registry: object, labels: dict[str, str]
) -> None:
    with pytest.raises(kvtier.UsageError, match="labels"):
        metrics.register(open_store(), registry, labels)
    assert scrape(registry) == {}


def test_what_is_no_store_and_no_text_is_refused(open_store: OpenStore, registry: object) -> None:
    with pytest.raises(kvtier.UsageError, match="expected a BlockStore or Monitor"):
        metrics.register(7, registry)  # type: ignore[arg-type]
    with pytest.raises(kvtier.UsageError, match="must be text"):
        metrics.register(open_store(), registry, {"a": 7})  # type: ignore[dict-item]


def test_values_of_labels_are_escaped(open_store: OpenStore, registry: object) -> None:
    metrics.register(open_store(), registry, {"model": 'a"b\\c\nd'})
    assert scrape(registry)["kvtier_up"] == [({"model": 'a"b\\c\nd'}, 1.0)]


def test_a_monitor_says_whether_its_store_is_up(
    open_store: OpenStore, disk_folder: Path, registry: object
) -> None:
    metrics.register(kvtier.Monitor(disk_folder / "store"), registry)
    assert value_of(registry, "kvtier_up") == 0  # There is no such folder yet.
    store = open_store(disk_folder / "store")
    while store.stats()["live_updates"] == 0:
        store.flush()
    assert value_of(registry, "kvtier_up") == 1
    age_s = value_of(registry, "kvtier_live_age_seconds")
    assert age_s is not None
    assert age_s >= 0
    store.close()
    assert value_of(registry, "kvtier_up") == 0
    assert list(scrape(registry)) == ["kvtier_up"]
    (disk_folder / "store" / "kvtier.live").write_bytes(b"\xff" * 100)
    assert value_of(registry, "kvtier_up") == 0


def test_in_a_forked_child_a_store_is_down_and_a_scrape_goes_well() -> None:
    code = """
import os, kvtier
from kvtier import metrics
from prometheus_client import CollectorRegistry, generate_latest
registry = CollectorRegistry()
store = kvtier.open(host_bytes="4MiB")
metrics.register(store, registry)
child = os.fork()
if child == 0:
    text = generate_latest(registry).decode()
    store.close()
    os._exit(0 if "kvtier_up 0.0" in text and "hits" not in text else 1)
assert os.waitpid(child, 0)[1] == 0
assert "kvtier_up 1.0" in generate_latest(registry).decode()
print("well")
"""
    assert run_well(code) == "well\n"


ALARM = """
import gc, os, signal, threading, kvtier
from kvtier import metrics
from prometheus_client import CollectorRegistry, generate_latest
# Whoever waits for a lock of its own is ended by the kernel.
signal.alarm(60)
registry = CollectorRegistry()
kept = []
def keep_a_store(registry, **labels):
    kept.append(kvtier.open(host_bytes="4MiB"))
    metrics.register(kept[-1], registry, labels)
def drop_all():
    kept.clear()
    gc.collect()
"""


def test_a_store_that_is_collected_while_another_is_registered_leaves() -> None:
    code = """
class Registry(CollectorRegistry):
    def register(self, collector):
        drop_all()
        super().register(collector)
keep_a_store(registry, store="1")
store = kvtier.open(host_bytes="4MiB")
metrics.register(store, Registry(), {"store": "2"})
assert generate_latest(registry) == b""
print("well")
"""
    assert run_well(ALARM + code) == "well\n"


def test_a_store_that_is_collected_while_the_registry_is_locked_leaves() -> None:
    code = """
class Dropping:
    def describe(self):
        drop_all()
        return []
    def collect(self):
        return []
keep_a_store(registry, store="1")
registry.register(Dropping())
assert generate_latest(registry) == b""
keep_a_store(registry, store="1")
assert b"kvtier_up{" in generate_latest(registry)
print("well")
"""
    assert run_well(ALARM + code) == "well\n"


def test_a_store_that_is_collected_while_labels_are_compared_leaves() -> None:
    code = """
class Text(str):
    __hash__ = str.__hash__
    def __eq__(self, other):
        drop_all()
        return str.__eq__(self, other)
keep_a_store(registry, store=Text("1"))
kept_well = kvtier.open(host_bytes="4MiB")
try:
    metrics.register(kept_well, registry, {"store": Text("1")})
except kvtier.UsageError:
    pass
assert not kept
print("well")
"""
    assert run_well(ALARM + code) == "well\n"


def test_a_child_forked_while_a_collector_is_made_registers_its_own() -> None:
    code = """
class Registry(CollectorRegistry):
    def register(self, collector):
        is_held.set()
        may_go_on.wait()
        super().register(collector)
is_held, may_go_on = threading.Event(), threading.Event()
monitor = kvtier.Monitor("/nowhere")
thread = threading.Thread(target=metrics.register, args=(monitor, Registry()))
thread.start()
is_held.wait()
child = os.fork()
if child == 0:
    signal.alarm(60)
    os._exit(0 if metrics.register(monitor, registry).labels == {"path": "/nowhere"} else 1)
status = os.waitpid(child, 0)[1]
may_go_on.set()
thread.join()
assert status == 0, status
print("well")
"""
    assert run_well(ALARM + code) == "well\n"


def test_unregistering_twice_leaves_another_store_with_the_labels(
    open_store: OpenStore, registry: object
) -> None:
    registration = metrics.register(open_store(), registry, {"store": "1"})
    registration.unregister()
    assert scrape(registry) == {}
    metrics.register(open_store(), registry, {"store": "1"})
    registration.unregister()
    assert value_of(registry, "kvtier_up", store="1") == 1


def test_without_the_client_the_remedy_is_named(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(kvtier.UnsupportedError, match=r"pip install 'kvtier\[metrics\]'"):
        metrics.register(open_store())
    with pytest.raises(kvtier.UnsupportedError, match=r"kvtier\[metrics\]"):
        open_store(metrics_port=1)
