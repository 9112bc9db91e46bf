"""Settings that contradict each other, and settings without effect."""

from pathlib import Path

import pytest

from kvtier.config import SETTINGS
from kvtier.errors import ConfigError
from kvtier.setting_rules import CONTRADICTIONS, DISK_NAMES, USELESS
from kvtier.settings import resolve_settings


def warnings_of(**arguments: object) -> tuple[str, ...]:
    return resolve_settings(arguments, None, {}).warnings


def test_rules_name_settings_that_there_are() -> None:
    for rule in (*CONTRADICTIONS, *USELESS):
        assert set(rule.names) <= set(SETTINGS)
    assert set(DISK_NAMES) <= set(SETTINGS)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"host_bytes": 0}, "a store needs a tier"),
        ({"path": "/a", "disk_bytes": 0}, "disk_bytes: 0 with a path"),
    ],
)
def test_a_contradiction_is_an_error(arguments: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        resolve_settings(arguments, None, {})


def test_contradictions_stand_beside_other_problems_with_their_lines(tmp_path: Path) -> None:
    file = tmp_path / "kvtier.yaml"
    file.write_text("disk_bytes: 0\nio: aio\n")
    with pytest.raises(ConfigError) as caught:
        resolve_settings({"stall_s": -1}, file, {"KVTIER_PATH": "/a"})
    text = str(caught.value)
    assert text.startswith("3 settings are wrong")
    assert f"disk_bytes: {file} line 1; path: KVTIER_PATH" in text
    assert f"io ({file} line 2)" in text


def test_a_value_that_cannot_be_read_contradicts_nothing() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_settings({"host_bytes": 0, "path": 7}, None, {})
    assert "needs a tier" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"path": "/a", "io": "uring", "num_io_threads": 4}, "num_io_threads has no effect"),
        ({"path": "/a", "host_bytes": 0, "shared_arena": True}, "shared_arena has no effect"),
        ({"path": "/a", "unified": "on", "shared_arena": True}, "unified has no effect"),
        ({"path": "/a", "unified": "on", "host_bytes": "1GiB"}, "unified has no effect"),
        ({"metrics_host": "0.0.0.0"}, "metrics_host has no effect"),
        ({"disk_bytes": "1GB"}, "disk_bytes has no effect: there is no path"),
        ({"on_exit": "delete"}, "on_exit has no effect: there is no path"),
        ({"direct": "on", "io": "threads"}, "io, direct have no effect: there is no path"),
    ],
)
def test_what_has_no_effect_is_a_warning(arguments: dict[str, object], text: str) -> None:
    (warning,) = warnings_of(**arguments)
    assert warning.startswith(text)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"io": "auto", "direct": "auto", "checksum": True},
        {"path": "/a", "io": "threads"},
        {"path": "/a", "io": "threads", "num_io_threads": 4},
        {"path": "/a", "num_io_threads": 4},
        {"path": "/a", "on_exit": "delete", "direct": "on", "disk_bytes": "1GB"},
        {"path": "/a", "host_bytes": 0},
        {"path": "/a", "unified": "on"},
    ],
)
def test_what_goes_together_is_not_warned_about(arguments: dict[str, object]) -> None:
    assert warnings_of(**arguments) == ()
