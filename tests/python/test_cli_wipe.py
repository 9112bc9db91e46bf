"""`kvtier wipe` of some of a store's blocks: by namespace, tenant, model and age."""

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from payload import payloads

import kvtier
from kvtier import _core
from kvtier.cli.main import main
from kvtier.cli.wipe_choice import WipeChoice, parse_age_s

BLOCK_BYTES = 40_000
NUM_BLOCKS = 30
TENANTS = ("one", "two", None)


def space_of(store: kvtier.BlockStore, salt: str | None, model: str = "m") -> kvtier.Namespace:
    return store.namespace(
        model=model, block_bytes=BLOCK_BYTES, block_tokens=4, fingerprint="f", salt=salt
    )


def open_at(folder: Path) -> kvtier.BlockStore:
    return kvtier.open(folder, host_bytes=0, disk_bytes="64MiB")


@pytest.fixture
def folder(disk_folder: Path) -> Path:
    """A store with the same keys for three tenants, and another model's blocks."""
    with open_at(disk_folder / "store") as store:
        for salt in TENANTS:
            put(space_of(store, salt))
        put(space_of(store, None, "other"))
        store.flush()
    return disk_folder / "store"


def put(ns: kvtier.Namespace) -> None:
    keys = ns.keys(range(NUM_BLOCKS * 4))
    assert ns.put(keys, payloads(keys, 0, BLOCK_BYTES)).num_accepted == NUM_BLOCKS


def count(store: kvtier.BlockStore, salt: str | None, model: str = "m") -> int:
    """Blocks of a tenant that are delivered, each with the right bytes."""
    ns = space_of(store, salt, model)
    keys = ns.keys(range(NUM_BLOCKS * 4))
    out = np.empty((NUM_BLOCKS, BLOCK_BYTES), np.uint8)
    num_blocks = ns.get(keys, out).num_blocks
    np.testing.assert_array_equal(out[:num_blocks], payloads(keys, 0, BLOCK_BYTES)[:num_blocks])
    return num_blocks


def counts(folder: Path) -> list[int]:
    with open_at(folder) as store:
        found = [count(store, salt) for salt in TENANTS]
        return [*found, count(store, None, "other")]


def wipe(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert main(["wipe", "--yes", "--json", *map(str, arguments)]) == 0
    summary: dict[str, Any] = json.loads(capsys.readouterr().out)
    return summary


def test_one_tenant_goes_and_the_others_stay(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dry = wipe(capsys, folder, "--salt", "one", "--dry-run")
    assert (dry["is_removed"], dry["blocks"], dry["bytes"]) == (False, NUM_BLOCKS, 0)
    done = wipe(capsys, folder, "--salt", "one")
    assert (done["is_removed"], done["blocks"]) == (True, NUM_BLOCKS)
    assert counts(folder) == [0, NUM_BLOCKS, NUM_BLOCKS, NUM_BLOCKS]
    (again,) = [wipe(capsys, folder, "--salt", "one")]
    assert (again["is_removed"], again["blocks"]) == (False, 0)


def test_a_model_and_a_namespace_go_by_name_and_id(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert wipe(capsys, folder, "--model", "other")["blocks"] == NUM_BLOCKS
    contents = _core.inspect_directory(str(folder))
    ids = [it["id"] for it in contents["namespaces"] if '"two"' in it["description"]]
    assert wipe(capsys, folder, "--namespace", ids[0].upper())["blocks"] == NUM_BLOCKS
    assert counts(folder) == [NUM_BLOCKS, 0, NUM_BLOCKS, 0]
    assert wipe(capsys, folder, "--model", "m", "--salt", "none")["namespaces"] == []


def test_old_segments_go_with_what_lies_in_them_and_space_comes_back(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert wipe(capsys, folder, "--older-than", "1d")["is_removed"] is False
    segments = sorted(folder.glob("segment-*"))
    assert len(segments) > 2
    for segment in segments[-2:]:
        os.utime(segment, (0, 1_000_000_000))
    done = wipe(capsys, folder, "--older-than", "1d")
    assert done["segments"] == [it.name for it in segments[-2:]]
    assert 0 < done["blocks"] < 4 * NUM_BLOCKS
    assert done["bytes"] > 0
    assert not any(segment.exists() for segment in segments[-2:])
    assert sum(counts(folder)) == 4 * NUM_BLOCKS - done["blocks"]


def test_without_a_yes_nothing_goes(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("no\n"))
    assert main(["wipe", str(folder), "--salt", "one"]) == 2
    error = capsys.readouterr().err
    assert "remove up to 30 blocks of 1 namespaces" in error
    assert "nothing was removed" in error
    assert counts(folder) == [NUM_BLOCKS] * 4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--namespace", "abc"], "32 hexadecimal digits"),
        (["--older-than", "soon"], "such as 12h or 30d"),
        (["--older-than=-1d"], "such as 12h or 30d"),
    ],
)
def test_what_is_no_choice_is_named_and_nothing_goes(
    folder: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["wipe", "--yes", str(folder), *arguments]) == 2
    assert words in capsys.readouterr().err
    assert counts(folder) == [NUM_BLOCKS] * 4


def test_a_store_in_use_is_not_wiped_from_outside_but_by_its_process(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_at(folder) as store:
        assert main(["wipe", "--yes", "--salt", "one", str(folder)]) == 2
        assert "call wipe() or clear() there" in capsys.readouterr().err
        two = space_of(store, "two")
        assert store.wipe(space_of(store, "one")) == NUM_BLOCKS
        lease = two.lease(two.keys(range(8)))
        # Two blocks are leased; what continues them goes.
        assert store.wipe(two.id) == NUM_BLOCKS - 2
        lease.release()
        for bad in ("x", 7, "g" * 32):
            with pytest.raises(kvtier.UsageError, match="32 hexadecimal digits"):
                store.wipe(bad)  # type: ignore[arg-type]
    assert counts(folder) == [0, 2, NUM_BLOCKS, NUM_BLOCKS]


def test_a_wipe_opens_the_store_with_room_for_every_block_that_it_may_have(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[dict[str, Any]] = []

    def open_core(options: dict[str, Any], log: object) -> object:
        opened.append(options)
        return real_store(options, log)  # type: ignore[arg-type]

    real_store = _core.Store
    monkeypatch.setattr("kvtier.cli.wipe._BLOCKS_MIN", 1)
    monkeypatch.setattr(_core, "Store", open_core)
    wipe(capsys, folder, "--salt", "one")
    monkeypatch.undo()
    (options,) = opened
    slots = sum(it["num_slots"] for it in _core.inspect_directory(str(folder))["segments"])
    assert 4 * NUM_BLOCKS <= slots <= options["blocks_max"]
    assert counts(folder) == [0, NUM_BLOCKS, NUM_BLOCKS, NUM_BLOCKS]


def test_what_was_written_while_the_question_stood_is_not_old(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    segments = sorted(folder.glob("segment-*"))
    os.utime(segments[-1], (0, 1_000_000_000))

    class LateAnswer(io.StringIO):
        def readline(self, *_: object) -> str:
            os.utime(segments[-1])
            return "y\n"

    monkeypatch.setattr(sys, "stdin", LateAnswer())
    assert main(["wipe", str(folder), "--older-than", "1d"]) == 0
    capsys.readouterr()
    assert counts(folder) == [NUM_BLOCKS] * 4


def test_ages_are_read_with_their_units() -> None:
    assert [parse_age_s(it) for it in ("90s", "5min", "2 h", "30D", "1w")] == [
        90.0,
        300.0,
        7200.0,
        2_592_000.0,
        604_800.0,
    ]
    assert WipeChoice().is_everything
    assert not WipeChoice(older_than_s=1.0).is_everything


def test_inspect_tells_chains_tokens_and_ages(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", "--json", str(folder)]) == 0
    contents = json.loads(capsys.readouterr().out)
    for namespace in contents["namespaces"]:
        assert namespace["num_chains"] == 1
        assert namespace["chain_blocks_max"] == NUM_BLOCKS
        assert namespace["tokens"] == NUM_BLOCKS * 4
        assert namespace["written_s"] == max(
            it["written_s"] for it in contents["segments"] if it["name"] in namespace["segments"]
        )
    assert main(["inspect", str(folder)]) == 0
    assert "120 tokens; 1 chains, the longest of 30 blocks" in capsys.readouterr().out


def test_a_rate_slows_verify_down(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import time

    started_s = time.monotonic()
    assert main(["verify", "--json", "--rate", "9.6MB", str(folder)]) == 0
    # 4.8 MB: half a second, and the bytes are the same.
    assert time.monotonic() - started_s >= 0.4
    report = json.loads(capsys.readouterr().out)
    assert (report["blocks"], report["is_good"]) == (4 * NUM_BLOCKS, True)
    assert main(["verify", "--rate", "fast", str(folder)]) == 2
    assert "--rate" in capsys.readouterr().err
