"""Settings: sources, their order, their checks and their messages."""

import dataclasses
import pickle
from pathlib import Path

import pytest

import kvtier
from kvtier.config import DEFAULTS, SETTINGS, Config
from kvtier.errors import ConfigError
from kvtier.settings import resolve_settings
from kvtier.units import GIB, MIB


def resolve(source: object = None, environment: dict[str, str] | None = None, **arguments: object):
    return resolve_settings(arguments, source, environment or {})


def test_without_a_word_everything_is_default() -> None:
    settings = resolve()
    assert settings.config == Config()
    assert set(settings.origins.values()) == {"default"}
    assert set(settings.origins) == set(SETTINGS)


def test_arguments_win_over_variables_over_the_file_over_defaults_k1(tmp_path: Path) -> None:
    file = tmp_path / "kvtier.yaml"
    file.write_text("host_bytes: 1GiB\ndisk_bytes: 1GB\nstall_s: 3\ndirect: off\n")
    environment = {"KVTIER_HOST_BYTES": "2GiB", "KVTIER_DISK_BYTES": "2GB", "PATH": "/bin"}
    settings = resolve(file, environment, host_bytes="3GiB")
    config = settings.config
    assert (config.host_bytes, config.disk_bytes) == (3 * GIB, 2 * 10**9)
    assert (config.stall_s, config.direct) == (3.0, "off")
    assert settings.origins["host_bytes"] == "argument"
    assert settings.origins["disk_bytes"] == "environment"
    assert settings.origins["stall_s"] == "file"
    assert settings.origins["io"] == "default"


def test_an_argument_that_equals_the_default_still_wins() -> None:
    settings = resolve(None, {"KVTIER_CHECKSUM": "off"}, checksum=True)
    assert settings.config.checksum is True
    assert settings.origins["checksum"] == "argument"


@pytest.mark.parametrize(
    ("misspelt", "near"),
    [
        ("host_byte", "host_bytes"),
        ("hostbytes", "host_bytes"),
        ("HOST_BYTES", "host_bytes"),
        ("check_sum", "checksum"),
        ("disk_size_bytes", "disk_bytes"),
        ("on-exit", "on_exit"),
    ],
)
def test_a_misspelt_name_is_an_error_with_the_nearest_one_k1(
    misspelt: str, near: str, tmp_path: Path
) -> None:
    file = tmp_path / "kvtier.yaml"
    file.write_text(f"{misspelt}: 1GiB\n")
    for source in (file, str(file), {misspelt: "1GiB"}):
        with pytest.raises(ConfigError, match=f"did you mean {near}"):
            resolve(source)
    with pytest.raises(ConfigError, match=f"did you mean {near}"):
        resolve(**{misspelt: "1GiB"})


def test_a_misspelt_variable_is_an_error_but_a_foreign_one_is_not_k1() -> None:
    with pytest.raises(ConfigError, match="did you mean host_bytes"):
        resolve(None, {"KVTIER_HOST_BYTE": "1GiB"})
    # A tool of this repository and one of somebody else.
    assert not resolve(None, {"KVTIER_SHARED": "/x", "KVTIER_BUILD_TYPE": "Debug"}).warnings
    (warning,) = resolve(None, {"KVTIER_ZQX": "1"}).warnings
    assert "KVTIER_ZQX" in warning


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve({"host_byte": 1, "io": "urin"}, {"KVTIER_STALL_S": "-1"}, disk_bytes="5 gigs")
    text = str(caught.value)
    for part in ("4 settings", "host_byte", "io (config)", "stall_s (KVTIER_STALL_S)", "5 gigs"):
        assert part in text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("host_bytes", "-1"),
        ("host_bytes", "abc"),
        ("host_bytes", "0.5"),
        ("host_bytes", True),
        ("host_bytes", None),
        ("disk_bytes", float("nan")),
        ("staging_bytes", "auto"),
        ("staging_bytes", 0),
        ("io", "aio"),
        ("io", None),
        ("direct", 1),
        ("checksum", "maybe"),
        ("checksum", 2),
        ("default_timeout_s", -1),
        ("default_timeout_s", float("nan")),
        ("lock_wait_s", "soon"),
        ("stall_s", 0),
        ("stall_s", float("inf")),
        ("on_exit", "burn"),
        ("max_blocks", 0),
        ("max_blocks", 1 << 32),
        ("max_blocks", "9" * 10_000),
        ("num_io_threads", 1.5),
        ("num_io_threads", 257),
        ("numa", "on"),
        ("numa", True),
        ("numa", None),
        ("numa", -1),
        ("numa", ""),
        ("numa", "0-"),
        ("numa", "1-0"),
        ("numa", "0,,1"),
        ("numa", "1024"),
        ("numa", "٣"),
        ("numa", 0.0),
        ("numa", [0]),
        ("path", 7),
        ("path", "a\0b"),
        ("path", b"/bytes"),
    ],
)
def test_a_bad_value_is_refused_by_name_k1(name: str, value: object) -> None:
    for attempt in (lambda: resolve(**{name: value}), lambda: Config(**{name: value})):
        with pytest.raises(ConfigError, match=name):
            attempt()


def test_every_setting_states_its_meaning_range_and_price() -> None:
    for name, setting in SETTINGS.items():
        for text in (setting.unit, setting.range_text, setting.meaning, setting.price):
            assert text, name


def test_the_defaults_are_those_of_the_contract() -> None:
    contract = {
        "path": None,
        "host_bytes": "auto",
        "staging_bytes": 64 * MIB,
        "disk_bytes": "auto",
        "io": "auto",
        "direct": "auto",
        "checksum": True,
        "shared": False,
        "numa": "auto",
        "default_timeout_s": 30.0,
        "lock_wait_s": 0.0,
        "on_exit": "keep",
        "max_blocks": 16_777_216,
    }
    assert contract.items() <= dict(DEFAULTS).items()


@pytest.mark.parametrize(
    ("value", "taken"),
    [
        ("auto", "auto"),
        (" Interleave ", "interleave"),
        ("off", "off"),
        (False, "off"),  # As YAML reads off.
        ("0", "0"),
        (0, "0"),  # As YAML reads 0.
        (" 0-1, 3 ", "0-1,3"),
        ("1023", "1023"),
    ],
)
def test_numa_is_a_word_or_nodes_f9(value: object, taken: str) -> None:
    assert resolve(numa=value).config.numa == taken
    assert resolve(None, {"KVTIER_NUMA": str(taken)}).config.numa == taken


def test_a_config_is_frozen_and_takes_keywords_only() -> None:
    config = Config(host_bytes="1GiB")
    assert config.host_bytes == GIB
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.host_bytes = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        Config("/path")  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(config)) == config


def test_a_config_object_stands_where_a_file_stands() -> None:
    settings = resolve(Config(host_bytes="1GiB"), {"KVTIER_IO": "threads"}, direct="off")
    assert settings.config == Config(host_bytes=GIB, io="threads", direct="off")
    assert settings.origins["host_bytes"] == "file"


@pytest.mark.parametrize("value", ["0.5", "-1", "abc", "5 gigs", "5G", "true", "null", "[1]"])
def test_a_bad_size_in_a_file_is_refused_with_its_line_k1(value: str, tmp_path: Path) -> None:
    file = tmp_path / "kvtier.yaml"
    file.write_text(f"# sizes\nhost_bytes: {value}\n")
    with pytest.raises(ConfigError, match=rf"host_bytes \({file} line 2\)"):
        resolve(file)


@pytest.mark.parametrize(("value", "size_bytes"), [("5GB", 5 * 10**9), ("5GiB", 5 * GIB), ("5", 5)])
def test_a_size_in_a_file_has_the_unit_that_it_states_k1(
    value: str, size_bytes: int, tmp_path: Path
) -> None:
    file = tmp_path / "kvtier.yaml"
    file.write_text(f"host_bytes: {value}\n")
    assert resolve(file).config.host_bytes == size_bytes


@pytest.mark.parametrize(
    ("word", "is_on"),
    [("yes", True), ("no", False), ("on", True), ("off", False), ("'no'", False), ("True", True)],
)
def test_words_for_yes_and_no_are_booleans(word: str, is_on: bool, tmp_path: Path) -> None:
    file = tmp_path / "kvtier.yaml"
    file.write_text(f"checksum: {word}\n")
    assert resolve(file).config.checksum is is_on


@pytest.mark.parametrize("text", ["direct: off", "direct: 'off'", "direct: no", "direct: Off"])
def test_words_that_yaml_takes_for_booleans_mean_what_they_say(text: str, tmp_path: Path) -> None:
    file = tmp_path / "kvtier.yaml"
    file.write_text(text)
    assert resolve(file).config.direct == "off"


@pytest.mark.parametrize(
    ("text", "part_of_message"),
    [
        ("host_bytes: [", "not YAML"),
        ("- a\n- b\n", "no mapping"),
        ("just text", "no mapping"),
        ("host_bytes: 1GiB\nhost_bytes: 2GiB\n", "more than once"),
        ("host_bytes: 1.5\n", "host_bytes"),
        ("1: 2\n", "unknown setting"),
        ("a: !!python/object:os.system {}\n", "not YAML"),
        ("storage: {local_gpu: true}\n", "unknown setting 'storage.local_gpu'"),
        ("[" * 5000, "YAML"),
        ("host_bytes: \x00", "YAML"),
    ],
)
def test_a_damaged_file_is_refused(text: str, part_of_message: str, tmp_path: Path) -> None:
    file = tmp_path / "kvtier.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=part_of_message):
        resolve(file)


def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.yaml", tmp_path, "a\0b"):
        with pytest.raises(ConfigError, match="cannot read"):
            resolve(path)
    large = tmp_path / "large.yaml"
    large.write_text("#" * (2 << 20))
    with pytest.raises(ConfigError, match="larger than"):
        resolve(large)


def test_an_empty_file_and_an_empty_variable_say_nothing(tmp_path: Path) -> None:
    file = tmp_path / "kvtier.yaml"
    file.write_text("# nothing\n")
    assert resolve(file, {"KVTIER_HOST_BYTES": ""}).config == Config()


@pytest.mark.parametrize("source", [7, b"\xff", ["host_bytes"], object()])
def test_a_source_of_another_kind_is_refused(source: object) -> None:
    with pytest.raises(ConfigError, match="config"):
        resolve(source)


def test_a_shared_store_is_not_supported_yet(disk_folder: Path) -> None:
    with pytest.raises(kvtier.UnsupportedError, match="shared"):
        kvtier.open(disk_folder / "store", shared=True)
    assert not (disk_folder / "store").exists()
