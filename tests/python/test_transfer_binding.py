"""The transfer engine from Python: on the host's device, and on a GPU where there is one."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from kvtier import _core
from kvtier.errors import ClosedError, ConfigError, UnsupportedError, UsageError
from kvtier.paged_geometry import PagedGeometry
from kvtier.paged_tensors import read_tensors

U8 = npt.NDArray[np.uint8]
NO_SUMS = np.zeros(0, dtype=np.uint64)
NUM_PLACES = 12
KEYS = np.arange(48, dtype=np.uint8).reshape(3, 16)
BLOCK_IDS = np.array([7, 0, 11], dtype=np.int64)


class Rig:
    """Two layers on the host's device, three slots, and an engine."""

    def __init__(self) -> None:
        self.device = _core.TransferDevice.host()
        self.engine = _core.TransferEngine(self.device, {})
        rng = np.random.default_rng(20261130)
        self.layers = [
            rng.integers(0, 256, (2, NUM_PLACES, length), dtype=np.uint8) for length in (512, 768)
        ]
        self.geometry = PagedGeometry.from_tensors(self.layers, block_dim=1)
        self.block_bytes = self.geometry.block_bytes
        self.slots = np.zeros((3, self.block_bytes), dtype=np.uint8)
        self.addresses = np.array([row.ctypes.data for row in self.slots], dtype=np.uint64)
        self.attachment_id = self.attach([self.block_bytes])

    def attach(self, part_bytes: list[int]) -> int:
        places = read_tensors(self.layers).places()
        return self.engine.attach(places, list(self.geometry.fragments), part_bytes)

    def blocks(self) -> U8:
        sides = [layer[side, BLOCK_IDS] for layer in self.layers for side in range(2)]
        return np.concatenate(sides, axis=1)

    def run(
        self,
        direction: str,
        *,
        method: str = "auto",
        keys: U8 | None = None,
        checksums: npt.NDArray[np.uint64] = NO_SUMS,
    ) -> _core.TransferResult:
        job_id = self.engine.submit(
            direction, self.attachment_id, BLOCK_IDS, self.addresses, 0, method, keys, checksums
        )
        assert self.engine.wait(job_id, 30.0)
        return self.engine.take(job_id)


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    assert made.engine.close(10.0)


@pytest.mark.parametrize("method", ["auto", "copy_engine", "zero_copy"])
def test_blocks_are_saved_and_loaded_with_their_checksums(rig: Rig, method: str) -> None:
    saved = rig.run("save", method=method, keys=KEYS)
    assert saved["error"] is None
    assert (saved["direction"], saved["moved_bytes"]) == ("save", 3 * rig.block_bytes)
    assert saved["method"] == ("zero_copy" if method == "auto" else method)
    assert (rig.slots == rig.blocks()).all()
    sums = [
        _core.checksum_part(row.tobytes(), key.tobytes(), bytes(16), 0)
        for row, key in zip(rig.slots, KEYS, strict=True)
    ]
    assert saved["checksums"].tolist() == sums
    rest = [layer.copy() for layer in rig.layers]
    for layer in rig.layers:
        layer[:, BLOCK_IDS] ^= 0xFF
    loaded = rig.run("load", method=method, keys=KEYS, checksums=saved["checksums"])
    assert loaded["error"] is None
    assert all((layer == was).all() for layer, was in zip(rig.layers, rest, strict=True))


def test_a_load_of_other_bytes_names_the_blocks(rig: Rig) -> None:
    saved = rig.run("save", keys=KEYS)
    rig.slots[1, 100] ^= 1
    loaded = rig.run("load", keys=KEYS, checksums=saved["checksums"])
    assert loaded["error"] is not None
    assert 0 in loaded["undefined_block_ids"]
    assert rig.engine.stats()["corrupt_blocks"] == 1


def test_counters_and_notes(rig: Rig) -> None:
    rig.run("save", method="copy_engine")
    rig.run("load", method="zero_copy")
    stats = rig.engine.stats()
    assert stats["save_copy_engine_jobs"] == stats["load_zero_copy_jobs"] == 1
    assert stats["save_copy_engine_bytes"] == 3 * rig.block_bytes
    assert stats["save_staged_jobs"] == stats["failed_jobs"] == 0
    assert rig.engine.note() == ""
    rig.engine.add_host_memory(rig.slots.ctypes.data, rig.slots.nbytes)
    assert rig.engine.stats()["page_locked_bytes"] == rig.slots.nbytes
    rig.engine.remove_host_memory(rig.slots.ctypes.data, rig.slots.nbytes)
    assert rig.engine.stats()["page_locked_bytes"] == 0


def test_results_come_once_by_poll_or_take(rig: Rig) -> None:
    arguments = ("save", rig.attachment_id, BLOCK_IDS, rig.addresses, 0, "auto", None, NO_SUMS)
    job_id = rig.engine.submit(*arguments)
    assert rig.engine.wait(job_id, 30.0)
    rig.engine.order_stream_after(job_id, 0, 1.0)
    assert [result["job_id"] for result in rig.engine.poll()] == [job_id]
    assert rig.engine.poll() == []
    with pytest.raises(OSError, match="cannot find job"):
        rig.engine.take(job_id)
    rig.engine.cancel(job_id)


def test_what_does_not_fit_is_refused(rig: Rig) -> None:
    submit, slots = rig.engine.submit, rig.addresses
    attached = rig.attachment_id
    with pytest.raises(UsageError, match="direction: unknown word: put"):
        submit("put", attached, BLOCK_IDS, slots, 0, "auto", None, NO_SUMS)
    with pytest.raises(UsageError, match="method: unknown word: best"):
        submit("save", attached, BLOCK_IDS, slots, 0, "best", None, NO_SUMS)
    with pytest.raises(UsageError, match="addresses"):
        submit("save", attached, BLOCK_IDS, slots[:2], 0, "auto", None, NO_SUMS)
    with pytest.raises(UsageError, match="block_id=12 num_blocks=12"):
        submit("save", attached, BLOCK_IDS + 1, slots, 0, "auto", None, NO_SUMS)
    with pytest.raises(UsageError, match="num_checksums=0"):
        submit("load", attached, BLOCK_IDS, slots, 0, "auto", KEYS, NO_SUMS)
    with pytest.raises(UsageError, match="num_seeds=2"):
        submit("save", attached, BLOCK_IDS, slots, 0, "auto", KEYS[:2], NO_SUMS)
    with pytest.raises(UsageError, match="parts do not add up"):
        rig.attach([rig.block_bytes - 1])
    rig.engine.detach(attached)
    with pytest.raises(UsageError, match="unknown attachment"):
        submit("save", attached, BLOCK_IDS, slots, 0, "auto", None, NO_SUMS)


def test_options_are_checked() -> None:
    device = _core.TransferDevice.host()
    with pytest.raises(ConfigError, match="max_ctas=1: allowed are 2 to 64"):
        _core.TransferEngine(device, {"max_ctas": 1})
    with pytest.raises(ConfigError, match="unknown option: max_cta"):
        _core.TransferEngine(device, {"max_cta": 4})  # type: ignore[typeddict-unknown-key]


def test_a_closed_engine_takes_no_jobs(rig: Rig) -> None:
    assert rig.engine.close(1.0)
    with pytest.raises(ClosedError):
        rig.run("save")


def test_bare_copies_and_events_of_the_device() -> None:
    device = _core.TransferDevice.host()
    info = device.info()
    assert (info["kind"], info["has_kernels"], info["note"]) == ("host", True, "")
    source = np.arange(4096, dtype=np.uint8)
    address = device.allocate_page_locked(4096)
    lane, begin, end = device.create_lane(True), device.create_event(), device.create_event()

    def copy(from_address: int, to_address: int) -> None:
        places = (np.array([it], dtype=np.uint64) for it in (from_address, to_address, 4096))
        device.submit_copies(lane, *places)

    device.record_lane(lane, begin)
    copy(source.ctypes.data, address)
    target = np.zeros_like(source)
    copy(address, target.ctypes.data)
    device.record_lane(lane, end)
    assert not target.any()  # The host's device works in the threads that wait for it.
    device.wait_event(end, 1.0)
    assert (target == source).all()
    assert device.elapsed_s(begin, end) >= 0
    never = device.create_event()
    with pytest.raises(UsageError):
        device.wait_event(never, 0.01)
    device.deallocate_page_locked(address)
    device.page_lock(source.ctypes.data, source.nbytes)
    device.page_unlock(source.ctypes.data)
    for event_id in (begin, end, never):
        device.destroy_event(event_id)
    device.destroy_lane(lane)


def test_the_kernel_gathers_blocks() -> None:
    device = _core.TransferDevice.host()
    tensor = np.random.default_rng(5).integers(0, 256, (6, 8192), dtype=np.uint8)
    target = np.zeros((2, 8192), dtype=np.uint8)
    table_id = device.create_fragment_table([(tensor.ctypes.data, 8192, 8192)], [8192], 6)
    lane, end = device.create_lane(False), device.create_event()
    block_ids = np.array([4, 1], dtype=np.int64)
    targets = np.array([row.ctypes.data for row in target], dtype=np.uint64)
    device.submit_gather(lane, table_id, block_ids, targets, 4, 2)
    device.record_lane(lane, end)
    device.wait_event(end, 1.0)
    assert (target == tensor[block_ids]).all()
    with pytest.raises(UsageError):
        device.submit_gather(lane, table_id, block_ids, targets, 5, 2)
    device.destroy_fragment_table(table_id)


def test_an_engine_of_a_fork_is_closed_and_ends(rig: Rig) -> None:
    child = os.fork()
    if child == 0:
        try:
            rig.engine.stats()
        except ClosedError:
            del rig.engine, rig.device
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert rig.run("save")["error"] is None


def test_a_gpu_that_is_not_there_is_refused_with_the_reason() -> None:
    with pytest.raises(UnsupportedError, match=r"CUDA|ordinal=4096"):
        _core.TransferDevice.cuda(4096)
