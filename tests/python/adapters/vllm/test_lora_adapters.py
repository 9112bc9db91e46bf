"""Adapters: by their name, their files and when they were loaded."""

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvtier import core_log
from kvtier.adapters.vllm.lora_adapters import LoraAdapters


@pytest.fixture(autouse=True)
def nothing_said_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_log, "_said_once", set())


@pytest.fixture
def make_lora(tmp_path: Path) -> Callable[..., Any]:
    def make(name: str, lora_int_id: int = 1) -> Any:
        folder = tmp_path / "lora"
        folder.mkdir(exist_ok=True)
        (folder / "adapter_model.safetensors").write_bytes(b"adapter")
        os.utime(folder / "adapter_model.safetensors", ns=(10**18, 10**18))
        return SimpleNamespace(
            lora_name=name, lora_int_id=lora_int_id, lora_path=str(folder), load_inplace=False
        )

    return make


def find(lora: Any) -> bytes | None:
    """As another start of the engine would."""
    return LoraAdapters().find(lora)


def test_an_adapter_is_told_by_its_name_and_its_files(make_lora: Callable[..., Any]) -> None:
    digest = find(make_lora("a"))
    assert find(None) == b""
    assert digest is not None
    assert len(digest) == 16
    assert digest == find(make_lora("a", lora_int_id=7))
    assert digest != find(make_lora("b"))


def test_one_that_was_trained_on_is_another_when_it_is_loaded_anew(
    make_lora: Callable[..., Any],
) -> None:
    adapters, lora = LoraAdapters(), make_lora("a")
    before = adapters.find(lora)
    (Path(lora.lora_path) / "adapter_model.safetensors").write_bytes(b"retrained")
    # The device has the old weights still.
    assert adapters.find(lora) == before
    lora.lora_int_id = 2
    assert adapters.find(lora) not in {before, None}


@pytest.mark.parametrize("change", [{"lora_path": "someone/adapter"}, {"load_inplace": True}])
def test_blocks_that_nobody_can_vouch_for_are_not_kept(
    change: dict[str, object], make_lora: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    lora = make_lora("a")
    vars(lora).update(change)
    assert find(lora) is None
    assert find(lora) is None
    assert caplog.text.count("are not kept") == 1
