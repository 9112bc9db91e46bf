"""kvtier.liburing: bytes through the ring, errors with their remedy, and a build without it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from payload import payload

liburing = pytest.importorskip("kvtier.liburing")
from kvtier.liburing import ring_errors  # noqa: E402

BLOCK_BYTES = 64 * 1024
NUM_BLOCKS = 40


@pytest.fixture(autouse=True)
def ring_allowed() -> None:
    try:
        liburing.probe_opcodes()
    except OSError as error:
        pytest.skip(f"io_uring is refused here: {error}")


@pytest.fixture
def file(disk_folder: Path) -> Iterator[tuple[int, list[np.ndarray]]]:
    """An open file of NUM_BLOCKS known blocks."""
    blocks = [payload(i, 0, BLOCK_BYTES) for i in range(NUM_BLOCKS)]
    path = disk_folder / "blocks"
    path.write_bytes(b"".join(block.tobytes() for block in blocks))
    fd = os.open(path, os.O_RDWR)
    yield fd, blocks
    os.close(fd)


def offsets_of(indices: list[int]) -> np.ndarray:
    return np.array(indices, dtype=np.uint64) * np.uint64(BLOCK_BYTES)


def test_the_probe_names_what_the_kernel_has() -> None:
    probe = liburing.probe_opcodes()
    assert {"nop", "read", "write", "read_fixed", "write_fixed"} <= probe.opcodes
    assert "single_mmap" in probe.features
    assert not probe.missing_opcodes


def test_single_ops_read_and_write_at_their_places(file: tuple[int, list[np.ndarray]]) -> None:
    fd, blocks = file
    targets = [np.zeros(BLOCK_BYTES, dtype=np.uint8) for _ in range(3)]
    fresh = payload("fresh", 1, BLOCK_BYTES)
    with liburing.Ring(4) as ring:
        ring.submit([liburing.RingOp(fd=fd, offset_bytes=0, buffer=fresh, is_write=True)])
        assert [(it.op_index, it.result) for it in ring.reap()] == [(0, BLOCK_BYTES)]
        places = (0, 7, 39)
        ring.submit(
            [
                liburing.RingOp(fd=fd, offset_bytes=place * BLOCK_BYTES, buffer=target)
                for place, target in zip(places, targets, strict=True)
            ]
        )
        done = ring.reap(num_min=3)
        assert sorted(it.op_index for it in done) == [1, 2, 3]
        assert ring.num_in_flight == 0
    for target, expected in zip(targets, (fresh, blocks[7], blocks[39]), strict=True):
        assert np.array_equal(target, expected)


def test_a_batch_with_a_buffer_each_keeps_the_order(file: tuple[int, list[np.ndarray]]) -> None:
    fd, blocks = file
    order = [(17 * i) % NUM_BLOCKS for i in range(NUM_BLOCKS)]
    out = np.zeros((NUM_BLOCKS, BLOCK_BYTES), dtype=np.uint8)
    with liburing.Ring(8) as ring:
        result = ring.run_batch(
            fds=np.full(NUM_BLOCKS, fd, dtype=np.int32), offsets_bytes=offsets_of(order),
            buffers=list(out),
        )  # fmt: skip
    assert result.num_ops == NUM_BLOCKS
    assert result.num_bytes == NUM_BLOCKS * BLOCK_BYTES
    assert result.elapsed_ns > 0
    for row, place in enumerate(order):
        assert np.array_equal(out[row], blocks[place])


def test_registered_files_and_buffers_move_the_same_bytes(
    file: tuple[int, list[np.ndarray]],
) -> None:
    fd, blocks = file
    buffers = list(np.zeros((4, BLOCK_BYTES), dtype=np.uint8))
    with liburing.Ring(4) as ring:
        ring.register_buffers(buffers)
        ring.register_files([fd])
        result = ring.run_batch(
            fds=np.zeros(4, dtype=np.int32), offsets_bytes=offsets_of([3, 1, 4, 2]),
            buffers=buffers, is_fd_registered=True, is_buffer_registered=True,
        )  # fmt: skip
        assert result.num_ops == 4
        for row, place in enumerate((3, 1, 4, 2)):
            assert np.array_equal(buffers[row], blocks[place])
        # Written back elsewhere, from the same buffers.
        ring.run_batch(
            fds=np.zeros(4, dtype=np.int32), offsets_bytes=offsets_of([10, 11, 12, 13]),
            buffers=buffers, is_fd_registered=True, is_buffer_registered=True, is_write=True,
        )  # fmt: skip
    for row, place in enumerate((3, 1, 4, 2)):
        assert os.pread(fd, BLOCK_BYTES, (10 + row) * BLOCK_BYTES) == blocks[place].tobytes()


def test_few_buffers_serve_many_ops_and_a_deadline_ends_them(
    file: tuple[int, list[np.ndarray]],
) -> None:
    fd, _ = file
    fds, offsets = np.full(NUM_BLOCKS, fd, dtype=np.int32), offsets_of(list(range(NUM_BLOCKS)))
    buffers = list(np.zeros((2, BLOCK_BYTES), dtype=np.uint8))
    with liburing.Ring(2) as ring:
        whole = ring.run_batch(fds=fds, offsets_bytes=offsets, buffers=buffers)
        assert whole.num_ops == NUM_BLOCKS
        none = ring.run_batch(fds=fds, offsets_bytes=offsets, buffers=buffers, time_limit_s=0)
        assert none.num_ops == 0
        with pytest.raises(OSError, match="cannot run batch") as refused:
            ring.run_batch(fds=fds, offsets_bytes=offsets, buffers=buffers[:1])
        assert refused.value.errno == errno.EINVAL


def test_a_short_read_and_a_bad_descriptor_are_errors(file: tuple[int, list[np.ndarray]]) -> None:
    fd, _ = file
    buffers = [np.zeros(BLOCK_BYTES, dtype=np.uint8)]
    with liburing.Ring(1) as ring:
        place = offsets_of([NUM_BLOCKS]) - np.uint64(100)
        with pytest.raises(OSError, match="got_bytes=100: ended short") as short:
            ring.run_batch(fds=np.array([fd], dtype=np.int32), offsets_bytes=place, buffers=buffers)
        assert short.value.errno == errno.EIO
        with pytest.raises(OSError, match="cannot read") as bad:
            ring.run_batch(fds=np.array([-1], dtype=np.int32), offsets_bytes=place, buffers=buffers)
        assert bad.value.errno == errno.EBADF
        # The ring is idle again after an error.
        ring.run_batch(
            fds=np.array([fd], dtype=np.int32), offsets_bytes=offsets_of([0]), buffers=buffers
        )


def test_more_ops_than_the_ring_is_deep_are_refused_whole(
    file: tuple[int, list[np.ndarray]],
) -> None:
    fd, _ = file
    buffer = np.zeros(512, dtype=np.uint8)
    ops = [liburing.RingOp(fd=fd, offset_bytes=0, buffer=buffer)] * 3
    with liburing.Ring(2) as ring:
        with pytest.raises(OSError, match="cannot submit 3 ops") as refused:
            ring.submit(ops)
        assert refused.value.errno == errno.EBUSY
        assert ring.num_in_flight == 0


def test_a_closed_ring_and_a_bad_depth_are_refused() -> None:
    ring = liburing.Ring(1)
    ring.close()
    ring.close()
    with pytest.raises(ValueError, match="closed"):
        ring.reap()
    with pytest.raises(ValueError, match="depth"):
        liburing.Ring(0)


def test_waiting_for_the_ring_leaves_the_interpreter_free() -> None:
    """A read of an empty pipe waits in the ring until another Python thread writes to it."""
    read_end, write_end = os.pipe()
    target = np.zeros(4, dtype=np.uint8)
    is_waiting = threading.Event()

    def write() -> None:
        assert is_waiting.wait(30)
        os.write(write_end, b"kept")

    writer = threading.Thread(target=write)
    writer.start()
    with liburing.Ring(1) as ring:
        ring.submit([liburing.RingOp(fd=read_end, offset_bytes=0, buffer=target)])
        is_waiting.set()
        assert [it.result for it in ring.reap()] == [4]
    writer.join()
    assert target.tobytes() == b"kept"
    os.close(read_end)
    os.close(write_end)


@pytest.mark.parametrize(
    ("code", "setting", "expected"),
    [
        (errno.EPERM, "2", "sysctl kernel.io_uring_disabled=0"),
        (errno.EPERM, "0", "seccomp"),
        (errno.ENOSYS, "", "Linux 5.6"),
        (errno.ENOMEM, "0", "memlock limit"),
    ],
)
def test_a_refusal_names_its_remedy(tmp_path: Path, code: int, setting: str, expected: str) -> None:
    (tmp_path / "sys/kernel").mkdir(parents=True)
    if setting:
        (tmp_path / "sys/kernel/io_uring_disabled").write_text(f"{setting}\n")
    assert expected in ring_errors.explain_errno(code, tmp_path)


def test_without_the_extension_the_import_says_why() -> None:
    program = (
        "import sys; sys.modules['kvtier.liburing._ring'] = None\n"
        "import kvtier\n"
        "try:\n    import kvtier.liburing\n"
        "except ImportError as error:\n    print(error)\n"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    assert "KVTIER_LIBURING_DIR" in answer.stdout
