"""Tensors of a paged engine as memory: every form that is taken, every one that is refused. GPU
arrays are stood in for by objects that answer as they do.
"""

import ctypes
import gc
import sys
import types
import weakref

import numpy as np
import numpy.typing as npt
import pytest

from kvtier.errors import UsageError
from kvtier.paged_tensors import PagedTensor, parse_device, read_tensors

F32 = npt.NDArray[np.float32]


def only(tensors: object) -> PagedTensor:
    (tensor,) = read_tensors(tensors).tensors
    return tensor


class FakeTorchTensor:
    """As much of a torch tensor as kvtier looks at."""

    layout = "torch.strided"

    def __init__(
        self, device: str = "cuda", index: int | None = 1, address: int = 4096, **changes: object
    ) -> None:
        self.device = types.SimpleNamespace(type=device, index=index)
        self.shape = (5, 16, 8)
        self._address = address
        for name, value in changes.items():
            setattr(self, name, value)

    def data_ptr(self) -> int:
        return self._address

    def element_size(self) -> int:
        return 2

    def numel(self) -> int:
        return 640

    def stride(self) -> tuple[int, ...]:
        return (256, 16, 1)

    def is_contiguous(self) -> bool:
        return False

    def is_conj(self) -> bool:
        return False

    def is_neg(self) -> bool:
        return False


@pytest.fixture
def fake_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = types.SimpleNamespace(Tensor=FakeTorchTensor)
    monkeypatch.setitem(sys.modules, "torch", fake)  # type: ignore[arg-type]


class CudaArray:
    """An array of CuPy's kind, which names its device by DLPack."""

    def __init__(self, ordinal: int | None = None, **changes: object) -> None:
        self.__cuda_array_interface__ = {
            "shape": (5, 16, 8), "typestr": "<f2", "data": (8192, False), "version": 3, **changes,
        }  # fmt: skip
        if ordinal is not None:
            self.__dlpack__ = lambda **options: None
            self.__dlpack_device__ = lambda: (2, ordinal)


class Exported:
    """A host array that is known by DLPack only, in the old form or the new one."""

    def __init__(self, array: F32, kind: int = 1, is_old: bool = False) -> None:
        self.array = array
        self.kind = kind
        self.is_old = is_old
        self.options: list[dict[str, object]] = []

    def __dlpack__(self, **options: object) -> object:
        self.options.append(dict(options))
        if self.is_old and "max_version" in options:
            raise TypeError("unexpected keyword argument 'max_version'")
        if not self.is_old and "max_version" not in options:
            raise AssertionError("the new form was not asked for")
        options.pop("stream", None)
        return self.array.__dlpack__(**options)  # type: ignore[arg-type]

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self.kind, 0)


def test_numpy_arrays_are_taken_with_their_strides() -> None:
    array = np.arange(120, dtype=np.float32).reshape(5, 4, 6)
    tensor = only(array)
    assert tensor.address == array.ctypes.data
    assert (tensor.length_bytes, tensor.item_bytes, tensor.device) == (480, 4, "cpu")
    assert (tensor.shape, tensor.strides_bytes) == ((5, 4, 6), (96, 24, 4))
    assert tensor.keeper is array
    view = array[1:4, :, 2:5]
    tensor = only([view])
    assert tensor.address == array.ctypes.data + 104
    # From the first item to the last, and not a byte more.
    assert tensor.length_bytes == 2 * 96 + 3 * 24 + 2 * 4 + 4
    assert only(view[:1]).strides_bytes == (0, 24, 4)


def test_tensors_stay_in_order_and_give_places() -> None:
    arrays = [np.zeros(4 + it) for it in range(3)]
    found = read_tensors(tuple(arrays))
    assert found.places() == [(it.ctypes.data, it.nbytes) for it in arrays]
    assert (found.device, found.is_on_host) == ("cpu", True)


@pytest.mark.usefixtures("fake_torch")
def test_torch_tensors_are_taken_from_cpu_and_gpu() -> None:
    tensor = only(FakeTorchTensor())
    assert (tensor.address, tensor.device, tensor.item_bytes) == (4096, "cuda:1", 2)
    assert tensor.strides_bytes == (512, 32, 2)
    assert tensor.length_bytes == 4 * 512 + 15 * 32 + 8 * 2
    assert only([FakeTorchTensor("cpu", None)]).device == "cpu"
    assert only([FakeTorchTensor("cuda", None)]).device == "cuda:0"


@pytest.mark.usefixtures("fake_torch")
@pytest.mark.parametrize(
    ("tensor", "part_of_message"),
    [
        (FakeTorchTensor("meta"), r"tensors\[0\]: a tensor on device 'meta'"),
        (FakeTorchTensor("xpu"), "device 'xpu'; only tensors with memory on cpu or cuda"),
        (FakeTorchTensor(layout="torch.sparse_coo"), "layout torch.sparse_coo is not plain memory"),
        (FakeTorchTensor(address=0), "has no memory"),
        (FakeTorchTensor(shape=(0, 16, 8)), r"shape \(0, 16, 8\) holds no items"),
        (FakeTorchTensor(is_conj=lambda: True), "conjugated"),
        (FakeTorchTensor(is_neg=lambda: True), "negated"),
    ],
)
def test_torch_tensors_without_plain_memory_are_refused(
    tensor: FakeTorchTensor, part_of_message: str
) -> None:
    with pytest.raises(UsageError, match=part_of_message):
        read_tensors([tensor])


def test_cuda_arrays_are_taken_with_the_device_that_dlpack_names() -> None:
    tensor = only(CudaArray(ordinal=3))
    assert (tensor.address, tensor.device, tensor.length_bytes) == (8192, "cuda:3", 1280)
    assert tensor.strides_bytes == (256, 16, 2)
    tensor = only([CudaArray(strides=(512, 32, 2))])
    assert (tensor.device, tensor.strides_bytes) == ("cuda:0", (512, 32, 2))


@pytest.mark.parametrize(
    ("array", "part_of_message"),
    [
        (CudaArray(data=(8192, True)), "read-only"),
        (CudaArray(strides=(-256, 16, 2)), "negative strides"),
        (CudaArray(mask=object()), "masked"),
        (CudaArray(data=None), "not understood"),
        (CudaArray(shape=[5]), "not understood"),
        (CudaArray(typestr="nonsense"), "not understood: .*nonsense"),
        (CudaArray(data=(0, False)), "has no memory"),
    ],
)
def test_cuda_arrays_that_do_not_fit_are_refused(array: CudaArray, part_of_message: str) -> None:
    with pytest.raises(UsageError, match=part_of_message):
        read_tensors([array])


@pytest.mark.parametrize("is_old", [False, True])
def test_dlpack_is_read_in_both_forms(is_old: bool) -> None:
    if not is_old and np.lib.NumpyVersion(np.__version__) < "2.1.0":
        pytest.skip("this numpy does not write the new form")
    array = np.arange(60, dtype=np.float32).reshape(5, 4, 3)
    tensor = only([Exported(array[1:, ::2], is_old=is_old)])
    assert tensor.address == array.ctypes.data + 48
    assert (tensor.shape, tensor.strides_bytes) == ((4, 2, 3), (48, 24, 4))
    assert (tensor.device, tensor.item_bytes) == ("cpu", 4)
    seen = (ctypes.c_float * 3).from_address(tensor.address + 24)
    assert list(seen) == array[1, 2].tolist()


def test_the_capsule_keeps_the_memory_alive() -> None:
    array = np.zeros(7, dtype=np.float32)
    is_freed = weakref.ref(array)
    exported = Exported(array, is_old=True)
    tensor = only([exported])
    del array, exported
    gc.collect()
    assert is_freed() is not None
    del tensor
    gc.collect()
    assert is_freed() is None


def test_no_stream_waits_for_a_gpu_array_and_none_is_named_for_the_host() -> None:
    on_gpu = Exported(np.zeros((2, 3), dtype=np.float32), kind=2, is_old=True)
    assert only(on_gpu).device == "cuda:0"
    assert on_gpu.options == [{"max_version": (1, 0), "stream": -1}, {"stream": -1}]
    page_locked = Exported(np.zeros((2, 3), dtype=np.float32), kind=3, is_old=True)
    assert only(page_locked).device == "cpu"
    assert all("stream" not in options for options in page_locked.options)


def test_dlpack_that_does_not_fit_is_refused() -> None:
    array = np.zeros((2, 3), dtype=np.float32)
    with pytest.raises(UsageError, match=r"DLPack's kind 10"):
        read_tensors([Exported(array, kind=10)])
    array.flags.writeable = False
    with pytest.raises(UsageError, match=r"read-only|readonly"):
        read_tensors([Exported(array)])
    wrong = types.SimpleNamespace(__dlpack__=lambda **options: 5, __dlpack_device__=lambda: (1, 0))
    with pytest.raises(UsageError, match="gave int, no DLPack data"):
        read_tensors([wrong])


def test_raw_memory_is_taken_as_it_is_said() -> None:
    tensor = only((4096, 1 << 20, "cuda:2"))
    assert (tensor.address, tensor.length_bytes, tensor.device) == (4096, 1 << 20, "cuda:2")
    assert (tensor.shape, tensor.strides_bytes, tensor.item_bytes) == (None, None, None)
    places = read_tensors([(np.uint64(4096), np.int64(64), "cpu"), (8192, 32, "cpu")]).places()
    assert places == [(4096, 64), (8192, 32)]


@pytest.mark.parametrize(
    ("raw", "part_of_message"),
    [
        ((0, 64, "cpu"), r"tensors\[0\]: pointer: expected a whole number above 0, got 0"),
        ((4096, 0, "cpu"), "num_bytes: expected a whole number above 0, got 0"),
        ((4096, -1, "cpu"), "num_bytes"),
        ((4096, "64", "cpu"), "num_bytes: .* '64'"),
        (((1 << 64) - 8, 64, "cpu"), "beyond all memory"),
        ((4096, 64, "gpu"), """device: expected "cpu" or "cuda:N" .*, got 'gpu'"""),
        ((4096, 64, 0), "device"),
        ((4096, 64), r"tensors\[0\]: got tuple; expected a torch tensor"),
        ((True, 64, "cpu"), r"tensors\[0\]: got tuple"),
    ],
)
def test_raw_memory_that_cannot_be_is_refused(raw: object, part_of_message: str) -> None:
    with pytest.raises(UsageError, match=part_of_message):
        read_tensors([raw])


@pytest.mark.parametrize(
    ("tensors", "part_of_message"),
    [
        ([], "empty"),
        (None, "got NoneType"),
        ("cuda:0", "got str"),
        (b"bytes", "got bytes"),
        ({"layer.0": np.zeros(4)}, "mapping.*pass a list"),
        (iter([np.zeros(4)]), "expected a sequence"),
        ([np.zeros(4), None], r"tensors\[1\]: got NoneType; expected a torch tensor"),
        ([[np.zeros(4)]], r"tensors\[0\]: got list"),
        ([bytearray(4)], r"tensors\[0\]: got bytearray"),
        ([np.zeros(4)[::-1]], "negative strides"),
        ([np.zeros(4, dtype=object)], "Python objects"),
        ([np.zeros((0, 4))], "holds no items"),
        ([np.broadcast_to(np.zeros(4), (3, 4))], "read-only"),
        ([np.zeros(4), (4096, 64, "cuda:0")], r"tensors\[1\]: lies on cuda:0, tensors\[0\] on cpu"),
        ([(4096, 64, "cuda:1"), CudaArray(ordinal=0)], "lies on cuda:0, .* on cuda:1"),
    ],
)
def test_what_is_no_sequence_of_tensors_is_refused(tensors: object, part_of_message: str) -> None:
    with pytest.raises(UsageError, match=part_of_message):
        read_tensors(tensors)


def test_devices_are_named_in_one_way() -> None:
    for text, want in {
        "cpu": "cpu",
        "cuda": "cuda:0",
        "cuda:0": "cuda:0",
        "cuda:07": "cuda:7",
    }.items():
        assert parse_device(text) == want
    for wrong in ("CPU", "cuda:", "cuda:-1", "cuda:1.0", "cuda:12345", "", None, 0, b"cpu"):
        with pytest.raises(UsageError, match="cuda:N"):
            parse_device(wrong)


def test_real_tensors_are_taken_when_torch_is_there() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(5, 2, 16, 8, dtype=torch.bfloat16)
    read = only([tensor.permute(0, 2, 1, 3)])
    assert (read.address, read.length_bytes) == (tensor.data_ptr(), 5 * 2 * 16 * 8 * 2)
    assert (read.shape, read.strides_bytes) == ((5, 16, 2, 8), (512, 16, 256, 2))
    assert only(torch.nn.Parameter(tensor)).address == tensor.data_ptr()
    assert parse_device(torch.device("cuda", 3)) == "cuda:3"
    for wrong in (torch.zeros(3, 16, device="meta"), torch.zeros(3, 16).to_sparse()):
        with pytest.raises(UsageError, match="memory"):
            read_tensors([wrong])
    with pytest.raises(UsageError, match="conjugated"):
        read_tensors([torch.zeros(3, dtype=torch.complex64).conj()])
