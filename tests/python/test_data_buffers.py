"""Buffers of put and get: every form that is taken, every one that is refused."""

import array
import mmap
import sys
import types

import numpy as np
import pytest

from kvtier.data_buffers import source_addresses, target_addresses
from kvtier.errors import UsageError


def address_of(buffer: object) -> int:
    return int(np.frombuffer(buffer, dtype=np.uint8).ctypes.data)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "data",
    [
        bytes(96),
        bytearray(96),
        memoryview(bytes(96)),
        memoryview(bytearray(100))[2:98],
        array.array("i", range(24)),
        mmap.mmap(-1, 96),
        np.zeros(96, dtype=np.uint8),
        np.zeros((3, 4), dtype=np.float64),
        np.zeros((3, 2, 2), dtype=">u8"),
        np.zeros((3, 16), dtype=np.float16),
        np.zeros(3, dtype=[("k", "u1", 16), ("v", "u1", 16)]),
        np.zeros(200, dtype=np.uint8)[5:101],
    ],
)
def test_one_contiguous_buffer_gives_evenly_spaced_addresses(data: object) -> None:
    found = source_addresses(data, 3, 32)
    assert found.addresses.dtype == np.uint64
    assert np.diff(found.addresses).tolist() == [32, 32]
    if not isinstance(data, np.ndarray):
        assert int(found.addresses[0]) == address_of(data)
    else:
        assert int(found.addresses[0]) == data.ctypes.data


def test_a_sequence_gives_each_buffers_own_address() -> None:
    buffers: list[object] = [bytes(32), bytearray(32), np.zeros(8, dtype=np.float32)]
    for sequence in (buffers, tuple(buffers)):
        found = source_addresses(sequence, 3, 32)
        assert found.addresses.tolist() == [address_of(it) for it in buffers]


def test_the_same_bytes_may_be_put_twice_but_not_got_twice() -> None:
    buffer = bytearray(32)
    assert len(source_addresses([buffer, buffer], 2, 32).addresses) == 2
    with pytest.raises(UsageError, match="overlap"):
        target_addresses([buffer, buffer], 2, 32)
    wide = np.zeros(40, dtype=np.uint8)
    with pytest.raises(UsageError, match="overlap"):
        target_addresses([wide[8:], wide[:32]], 2, 32)
    whole = np.zeros(64, dtype=np.uint8)
    assert len(target_addresses([whole[32:], whole[:32]], 2, 32).addresses) == 2


def test_no_blocks_need_no_bytes() -> None:
    for data in ([], (), b"", bytearray(), np.zeros(0), np.zeros((0, 32), dtype=np.uint8)):
        assert source_addresses(data, 0, 32).addresses.shape == (0,)
        assert target_addresses(list(data), 0, 32).addresses.shape == (0,)
    with pytest.raises(UsageError, match="expected 0 bytes"):
        source_addresses(bytes(32), 0, 32)


@pytest.mark.parametrize(
    ("data", "part_of_message"),
    [
        (bytes(95), r"expected 96 bytes .* got 95"),
        (bytes(97), r"expected 96 bytes .* got 97"),
        (b"", r"expected 96 bytes .* got 0"),
        (np.zeros(96), r"expected 96 bytes .* got 768"),
        ([bytes(32)] * 2, "expected 3 buffers, got 2"),
        ([bytes(32)] * 4, "expected 3 buffers, got 4"),
        ([bytes(32), bytes(31), bytes(32)], r"data\[1\]: expected 32 bytes .* got 31"),
        ([bytes(32), None, bytes(32)], r"data\[1\]"),
        ([bytes(32), [bytes(32)], bytes(32)], r"data\[1\]"),
        ([1, 2, 3], r"data\[0\]"),
        (np.zeros((96, 2), dtype=np.uint8)[:, 0], "not C-contiguous"),
        (np.zeros((32, 3), dtype=np.uint8).T, "not C-contiguous"),
        (np.zeros(96, dtype=np.uint8)[::-1], "not C-contiguous"),
        (np.broadcast_to(np.zeros(32, dtype=np.uint8), (3, 32)), "not C-contiguous"),
        (memoryview(bytes(192))[::2], "not C-contiguous"),
        (np.zeros(12, dtype=object), "Python objects"),
        ("x" * 96, "expected a buffer"),
        (None, "NoneType"),
        (96, "int"),
        ({1, 2, 3}, "set"),
        (iter([bytes(32)] * 3), "iterator"),
    ],
)
def test_what_does_not_fit_is_refused_with_both_sizes_a7(
    data: object, part_of_message: str
) -> None:
    with pytest.raises(UsageError, match=part_of_message):
        source_addresses(data, 3, 32)


def test_a_row_that_forgot_its_scales_is_refused_a7() -> None:
    with pytest.raises(UsageError, match=r"expected 528 bytes .* got 512"):
        source_addresses(bytes(512), 1, 528)


def test_what_cannot_be_written_is_refused() -> None:
    frozen = np.zeros(96, dtype=np.uint8)
    frozen.flags.writeable = False
    refused: list[object] = [bytes(96), memoryview(bytes(96)), frozen]
    refused.append([bytearray(32), bytes(32), bytearray(32)])
    for out in refused:
        with pytest.raises(UsageError, match="read-only"):
            target_addresses(out, 3, 32)


def test_a_bytearray_cannot_shrink_while_it_is_in_use() -> None:
    data = bytearray(96)
    found = source_addresses(data, 3, 32)
    with pytest.raises(BufferError):
        data.clear()
    del found
    data.clear()


class FakeTensor:
    """As much of a torch tensor as kvtier looks at."""

    layout = "torch.strided"

    def __init__(self, address: int, num_bytes: int, device: str = "cpu", **answers: bool) -> None:
        self._address, self._num_bytes = address, num_bytes
        self.device = types.SimpleNamespace(type=device)
        self._answers = answers

    def data_ptr(self) -> int:
        return self._address

    def numel(self) -> int:
        return self._num_bytes // 2

    def element_size(self) -> int:
        return 2

    def is_contiguous(self) -> bool:
        return self._answers.get("is_contiguous", True)

    def is_conj(self) -> bool:
        return self._answers.get("is_conj", False)

    def is_neg(self) -> bool:
        return self._answers.get("is_neg", False)


@pytest.fixture
def fake_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(Tensor=FakeTensor))  # type: ignore[arg-type]


@pytest.mark.usefixtures("fake_torch")
def test_tensors_of_types_that_numpy_does_not_know_are_taken_by_address() -> None:
    assert source_addresses(FakeTensor(4096, 96), 3, 32).addresses.tolist() == [4096, 4128, 4160]
    out = [FakeTensor(8192, 32), FakeTensor(4096, 32)]
    assert target_addresses(out, 2, 32).addresses.tolist() == [8192, 4096]
    with pytest.raises(UsageError, match=r"expected 96 bytes .* got 64"):
        source_addresses(FakeTensor(4096, 64), 3, 32)


@pytest.mark.usefixtures("fake_torch")
@pytest.mark.parametrize(
    ("tensor", "part_of_message"),
    [
        (FakeTensor(4096, 96, "cuda"), "'cuda'; put and get take CPU tensors only"),
        (FakeTensor(0, 96, "meta"), "'meta'"),
        (FakeTensor(4096, 96, is_contiguous=False), "contiguous"),
        (FakeTensor(4096, 96, is_conj=True), "conjugated"),
        (FakeTensor(4096, 96, is_neg=True), "negated"),
    ],
)
def test_tensors_that_are_not_plain_bytes_are_refused(
    tensor: FakeTensor, part_of_message: str
) -> None:
    with pytest.raises(UsageError, match=part_of_message):
        source_addresses(tensor, 3, 32)


def test_other_device_arrays_are_refused() -> None:
    with pytest.raises(UsageError, match="GPU memory"):
        source_addresses(types.SimpleNamespace(__cuda_array_interface__={}), 3, 32)


def test_real_tensors_are_taken_when_torch_is_there() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(3, 16, dtype=torch.bfloat16)
    assert int(source_addresses(tensor, 3, 32).addresses[0]) == tensor.data_ptr()
    assert int(target_addresses(list(tensor), 3, 32).addresses[1]) == tensor.data_ptr() + 32
    with pytest.raises(UsageError, match="contiguous"):
        source_addresses(torch.zeros(16, 3, dtype=torch.bfloat16).T, 3, 32)
    with pytest.raises(UsageError, match="layout"):
        source_addresses(torch.zeros(3, 16).to_sparse(), 3, 32)
