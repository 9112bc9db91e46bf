"""Files of edge boxes and of LMCache: what each name comes to, and what is refused."""

import contextlib
from pathlib import Path

import pytest
from foreign_files import EDGE_FILE, LMCACHE_FILE
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from kvtier.config import SETTINGS
from kvtier.errors import ConfigError
from kvtier.foreign_layer import list_foreign_names
from kvtier.foreign_settings import FOREIGN_SECTIONS
from kvtier.settings import Settings, resolve_settings
from kvtier.units import GIB


def resolve(source: object, environment: dict[str, str] | None = None, **arguments: object):
    return resolve_settings(arguments, source, environment or {})


def resolve_text(tmp_path: Path, text: str, **arguments: object) -> Settings:
    file = tmp_path / "edge.yaml"
    file.write_text(text)
    return resolve(file, **arguments)


def storage(**values: object) -> Settings:
    return resolve({"storage": values})


def test_the_file_of_an_edge_box_loads_unchanged(tmp_path: Path) -> None:
    settings = resolve_text(tmp_path, EDGE_FILE.format(folder="/mnt/nvme/kv"))
    config = settings.config
    assert (config.path, config.host_bytes) == ("/mnt/nvme/kv", "auto")
    assert (config.disk_bytes, config.num_io_threads) == (500 * 10**9, 4)
    assert settings.origins["disk_bytes"] == "file"
    assert settings.places["disk_bytes"].endswith("edge.yaml line 6, storage.max_local_disk_size")
    assert list(settings.mapped) == [
        *("storage.chunk_size", "storage.local_cpu", "storage.max_local_cpu_size"),
        *("storage.local_disk", "storage.max_local_disk_size", "storage.prefetch_ratio"),
        *("storage.per_instance_limit", "compression.algorithm", "compression.level"),
        *("compression.chunk_threshold", "concurrency.max_workers"),
        "concurrency.context_switch_interval",
    ]
    assert settings.mapped["storage.max_local_cpu_size"] == "host_bytes = auto"
    assert settings.mapped["storage.local_disk"] == "path = /mnt/nvme/kv"
    assert "engine's" in settings.mapped["storage.chunk_size"]
    assert "no meaning" in settings.mapped["concurrency.context_switch_interval"]
    # Nothing but what is to come is warned about.
    warned = [it.split(": ")[0] for it in settings.warnings]
    assert warned == [
        "storage.prefetch_ratio",
        "storage.per_instance_limit",
        "compression.algorithm, compression.level, compression.chunk_threshold",
    ]


def test_an_lmcache_file_loads_unchanged(tmp_path: Path) -> None:
    settings = resolve_text(tmp_path, LMCACHE_FILE)
    config = settings.config
    assert (config.path, config.host_bytes) == ("/mnt/nvme/kv", 5 * GIB)
    assert (config.disk_bytes, config.eviction) == (100 * GIB, "lru")
    assert settings.warnings == ()
    stated = [line.split(":")[0] for line in LMCACHE_FILE.splitlines()]
    free = ["extra_config.use_odirect", "extra_config.lookup_backoff_time"]
    assert list(settings.mapped) == [*stated[:-1], *free]
    assert settings.mapped["remote_url"] == "not set: it has no value"
    assert settings.mapped["max_local_cpu_size"] == f"host_bytes = {5 * GIB} (5 GiB)"


def test_foreign_names_and_native_ones_never_overlap() -> None:
    # A file may mix them: each name means one thing.
    names = [name for settings in FOREIGN_SECTIONS.values() for name in settings]
    assert not set(SETTINGS) & {*names, *FOREIGN_SECTIONS}
    assert len(list_foreign_names()) == len(set(list_foreign_names()))


@pytest.mark.parametrize("name", sorted(FOREIGN_SECTIONS[""]))
def test_each_flat_name_without_a_value_says_nothing(name: str) -> None:
    settings = resolve({name: None})
    assert settings.mapped == {name: "not set: it has no value"}
    assert set(settings.origins.values()) == {"default"}


@pytest.mark.parametrize("name", list_foreign_names())
def test_each_foreign_name_says_what_becomes_of_it(name: str) -> None:
    section, _, key = name.rpartition(".")
    setting = FOREIGN_SECTIONS[section][key]
    assert setting.becomes or setting.native
    assert not setting.native or setting.native in SETTINGS
    assert set(setting.governs) <= set(FOREIGN_SECTIONS[section])


@pytest.mark.parametrize(
    ("value", "size_bytes"), [("5GB", 5 * 10**9), ("5GiB", 5 * GIB), (0.5, GIB // 2), (2, 2 * GIB)]
)
def test_sizes_are_those_of_the_foreign_program_k1(value: object, size_bytes: int) -> None:
    assert storage(max_local_cpu_size=value).config.host_bytes == size_bytes


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        ("storage", "max_local_cpu_size", -1),
        ("storage", "max_local_cpu_size", "abc"),
        ("storage", "max_local_disk_size", "5 gigs"),
        ("storage", "chunk_size", "many"),
        ("storage", "local_cpu", "maybe"),
        ("storage", "local_disk", "s3://bucket"),
        ("storage", "prefetch_ratio", 30),
        ("storage", "per_instance_limit", "-2GB"),
        ("compression", "level", "high"),
        ("compression", "chunk_threshold", -1),
        ("concurrency", "max_workers", 0),
        ("concurrency", "max_workers", 1.5),
    ],
)
def test_a_bad_foreign_value_is_refused_by_its_own_name(
    section: str, name: str, value: object, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=rf"^{section}\.{name} \(config\): "):
        resolve({section: {name: value}})
    with pytest.raises(ConfigError, match=r"edge\.yaml line 2\): "):
        resolve_text(tmp_path, f"{section}:\n  {name}: {value}\n")


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ({"storage": {"chunk_siz": 1}}, "'storage.chunk_siz'.*did you mean storage.chunk_size?"),
        ({"storage": {"max_cpu_size": 1}}, "did you mean storage.max_local_cpu_size?"),
        ({"storage": {"host_bytes": 1}}, "host_bytes stands at the top"),
        ({"storage": {"zq": 1}}, "known are chunk_size, local_cpu"),
        ({"storag": {}}, "did you mean storage?"),
        ({"compresion": {"level": 3}}, "did you mean compression?"),
        ({"prefetch_ratio": 0.3}, "did you mean storage.prefetch_ratio?"),
        ({"remote_uri": "x"}, "did you mean remote_url?"),
        ({"max_local_cpu_sizes": 1}, "did you mean max_local_cpu_size?"),
        ({"host_byte": 1}, "did you mean host_bytes?"),
        ({"zq": 1}, "known are path, host_bytes"),
        ({"storage": 5}, "storage .*expected a mapping"),
        ({"storage": [{"chunk_size": 1}]}, "storage .*expected a mapping"),
    ],
)
def test_an_unknown_name_is_an_error_with_the_nearest_one_k1(
    source: dict[str, object], hint: str
) -> None:
    with pytest.raises(ConfigError, match=hint):
        resolve(source)


@pytest.mark.parametrize("name", ["chunk_size", "max_local_cpu_size", "storage"])
def test_foreign_names_count_in_files_only(name: str) -> None:
    with pytest.raises(ConfigError, match="unknown setting"):
        resolve(None, **{name: 1})


def test_a_folder_is_wanted_without_being_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"storage\.local_disk .*line 5.* add path:"):
        resolve_text(tmp_path, EDGE_FILE.format(folder="true"))
    text = EDGE_FILE.format(folder="yes")
    assert resolve_text(tmp_path, text, path="/a").config.path == "/a"
    assert resolve_text(tmp_path, text + "path: /b\n").config.path == "/b"
    assert resolve({"local_disk": True}, {"KVTIER_PATH": "/c"}).config.path == "/c"


@pytest.mark.parametrize("word", ["false", "no", "off", "False"])
def test_a_disk_that_is_off_takes_its_size_with_it(word: str, tmp_path: Path) -> None:
    settings = resolve_text(tmp_path, EDGE_FILE.format(folder=word))
    assert settings.config.path is None
    assert settings.config.disk_bytes == "auto"
    said = settings.mapped["storage.max_local_disk_size"]
    assert said == "no effect: storage.local_disk is false"


def test_a_disk_of_no_size_is_off_as_in_lmcache() -> None:
    settings = resolve({"local_disk": "/mnt/kv", "max_local_disk_size": 0})
    assert settings.config.path is None
    assert settings.mapped["local_disk"] == "no effect: max_local_disk_size is 0"
    assert settings.mapped["max_local_disk_size"] == "path = none"
    assert resolve({"local_disk": False, "max_local_disk_size": 0}).config.path is None


def test_a_host_tier_that_is_off_takes_its_size_with_it() -> None:
    settings = storage(local_cpu=False, max_local_cpu_size=5, local_disk="/mnt/kv")
    assert settings.config.host_bytes == 0
    assert settings.mapped["storage.local_cpu"] == "host_bytes = 0 (0 B)"
    assert "no effect" in settings.mapped["storage.max_local_cpu_size"]
    with pytest.raises(ConfigError, match=r"needs a tier.*storage\.local_cpu"):
        storage(local_cpu=False)


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ({"storage": {"max_local_cpu_size": 1}, "host_bytes": "2GiB"}, "max_local_cpu_size"),
        ({"storage": {"local_cpu": False}, "host_bytes": "2GiB"}, "local_cpu"),
        ({"storage": {"local_disk": "/a"}, "path": "/b"}, "local_disk"),
        ({"storage": {"local_disk": False}, "path": "/b"}, "local_disk"),
        ({"storage": {"max_local_disk_size": "1GB"}, "disk_bytes": "1GiB"}, "max_local_disk"),
        ({"concurrency": {"max_workers": 4}, "num_io_threads": 8}, "max_workers"),
        ({"cache_policy": "LRU", "eviction": "adaptive"}, "cache_policy"),
        ({"storage": {"max_local_cpu_size": 1}, "max_local_cpu_size": 2}, "max_local_cpu_size"),
    ],
)
def test_a_foreign_name_and_a_native_one_that_differ_are_refused(
    source: dict[str, object], names: str
) -> None:
    with pytest.raises(ConfigError, match=rf"{names}.* means .* and .*: keep one of them"):
        resolve(source)


def test_a_foreign_name_and_a_native_one_that_agree_are_taken() -> None:
    source = {
        "storage": {"max_local_cpu_size": 1, "local_disk": "file:///a/"},
        "host_bytes": "1GiB",
        "path": "/a",
    }
    settings = resolve(source)
    assert (settings.config.host_bytes, settings.config.path) == (GIB, "/a")
    assert settings.mapped["storage.max_local_cpu_size"] == f"host_bytes = {GIB} (1 GiB)"


def test_what_a_variable_overrides_is_said() -> None:
    settings = resolve({"storage": {"max_local_cpu_size": 1}}, {"KVTIER_HOST_BYTES": "2GiB"})
    assert settings.config.host_bytes == 2 * GIB
    said = settings.mapped["storage.max_local_cpu_size"]
    assert said.endswith("; overridden by KVTIER_HOST_BYTES")


@pytest.mark.parametrize("word", ["none", "off", False])
def test_compression_that_is_off_is_not_warned_about(word: object) -> None:
    settings = resolve({"compression": {"algorithm": word, "level": 3}})
    assert settings.warnings == ()
    assert set(settings.mapped) == {"compression.algorithm", "compression.level"}


def test_what_is_asked_for_and_not_there_yet_is_warned_about() -> None:
    (warning,) = resolve({"remote_url": "redis://host:1"}).warnings
    assert "remote tier" in warning
    assert storage(prefetch_ratio=0, per_instance_limit=0).warnings == ()


@pytest.mark.parametrize("empty", [None, {}])
def test_an_empty_section_is_named_too(empty: object) -> None:
    assert resolve({"storage": empty, "compression": empty}).mapped == {
        "storage": "empty",
        "compression": "empty",
    }


def test_policies_and_numa_modes_without_a_counterpart_leave_the_default() -> None:
    settings = resolve({"cache_policy": "LFU", "numa_mode": "manual"})
    assert (settings.config.eviction, settings.config.numa) == ("adaptive", "auto")
    assert "no counterpart" in settings.mapped["cache_policy"]
    assert settings.origins["eviction"] == "default"


def test_a_section_merged_from_an_anchor_counts(tmp_path: Path) -> None:
    text = "storage: &s {max_local_cpu_size: 1}\nextra_config: {<<: *s}\n"
    settings = resolve_text(tmp_path, text)
    assert settings.config.host_bytes == GIB
    assert "extra_config.max_local_cpu_size" in settings.mapped


@hypothesis_settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.sampled_from([EDGE_FILE.format(folder="/d"), LMCACHE_FILE]),
    cuts=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    piece=st.sampled_from([b"&a ", b"*a", b"<<: ", b"{", b"[", b"!!int ", b"\t", b": ", b"? "])
    | st.binary(max_size=8),
)
def test_a_damaged_file_is_a_config_error_and_nothing_else(
    text: str, cuts: tuple[float, float], piece: bytes, tmp_path: Path
) -> None:
    data = text.encode()
    first, last = (round(cut * len(data)) for cut in sorted(cuts))
    file = tmp_path / "damaged.yaml"
    file.write_bytes(data[:first] + piece + data[last:])
    with contextlib.suppress(ConfigError):
        resolve(file)
