"""docs/configuration.md: that it is current, and that its files load."""

import re
from pathlib import Path

import pytest
from make_configuration_doc import EDGE_EXAMPLE, TARGET, main, make_document, make_example

from kvtier.config import SETTINGS, Config
from kvtier.foreign_layer import list_foreign_names
from kvtier.settings import resolve_settings


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "kvtier.yaml"
    file.write_text(text)
    return file


def test_the_committed_document_is_current() -> None:
    committed = TARGET.read_text(encoding="utf-8")
    assert committed == make_document(), "run .venv/bin/python tools/make_configuration_doc.py"


def test_every_setting_with_its_variable_and_every_foreign_name_stand_there() -> None:
    document = make_document()
    for name in set(SETTINGS) - {"shared"}:
        assert f"`{name}`<br>`KVTIER_{name.upper()}`" in document
    # That variable is one of the repository's tools.
    assert "KVTIER_SHARED`" not in document
    flat_storage = {"chunk_size", "local_cpu", "max_local_cpu_size", "local_disk"}
    for name in set(list_foreign_names()) - flat_storage - {"max_local_disk_size"}:
        assert f"`{name}`" in document


def test_the_example_states_every_default(tmp_path: Path) -> None:
    example = make_example()
    assert resolve_settings({}, write(tmp_path, example), {}).config == Config()
    lines = [
        line[2:]
        for line in example.splitlines()
        if re.match(r"# (\w+): ", line) and line[2:].split(":")[0] in SETTINGS
    ]
    settings = resolve_settings({}, write(tmp_path, "\n".join(lines)), {})
    assert set(settings.places) == set(SETTINGS)
    assert settings.config == Config()
    assert settings.warnings == ()


def test_the_example_of_an_edge_box_loads(tmp_path: Path) -> None:
    settings = resolve_settings({}, write(tmp_path, EDGE_EXAMPLE), {})
    assert settings.config.path == "/mnt/nvme/kv"
    assert settings.config.disk_bytes == 500 * 10**9


def test_the_tool_writes_where_it_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "out.md")]) == 0
    assert (tmp_path / "out.md").read_text(encoding="utf-8") == make_document()
    assert "wrote" in capsys.readouterr().out
