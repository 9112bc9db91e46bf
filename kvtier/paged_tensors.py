"""Turns the tensors of an engine's KV cache into plain memory: address, length, shape, device.

Knows torch, numpy, whatever has __cuda_array_interface__ or DLPack, and raw memory; imports none of
them but numpy. Pure apart from holding the tensors; thread-safe.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

import numpy as np

from kvtier.data_buffers import as_torch_tensor
from kvtier.dlpack_tensor import (
    CUDA_DEVICE_KIND,
    HOST_DEVICE_KINDS,
    DlpackArray,
    contiguous_strides,
    read_dlpack,
)
from kvtier.errors import UsageError
from kvtier.units import show

CPU: Final = "cpu"
_CUDA_DEVICE: Final = re.compile(r"cuda(?::([0-9]{1,4}))?", re.ASCII)
_ADDRESS_MAX: Final = (1 << 64) - 1
_FORMS: Final = (
    "a torch tensor, a numpy array, an array with __cuda_array_interface__ or DLPack, or "
    "(pointer, num_bytes, device)"
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PagedTensor:
    """One tensor as memory, from its first item to its last. Valid while `keeper` lives."""

    address: int
    length_bytes: int
    device: str
    """"cpu" or "cuda:N"."""
    shape: tuple[int, ...] | None
    """None: raw memory, of which nothing more is known."""
    strides_bytes: tuple[int, ...] | None
    item_bytes: int | None
    keeper: object
    """None: the caller keeps raw memory alive."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PagedTensors:
    """The tensors of one engine, all on one device."""

    tensors: tuple[PagedTensor, ...]
    device: str

    @property
    def is_on_host(self) -> bool:
        return self.device == CPU

    def places(self) -> list[tuple[int, int]]:
        """Returns (address, length_bytes) of each, as the core takes them."""
        return [(tensor.address, tensor.length_bytes) for tensor in self.tensors]


class _TorchDevice(Protocol):
    type: str
    index: int | None


@runtime_checkable
class _StridedTensor(Protocol):
    device: _TorchDevice
    layout: object
    shape: Sequence[int]

    def data_ptr(self) -> int: ...
    def element_size(self) -> int: ...
    def stride(self) -> Sequence[int]: ...
    def is_conj(self) -> bool: ...
    def is_neg(self) -> bool: ...


def read_tensors(tensors: object) -> PagedTensors:
    """Returns what `tensors` are as memory.

    tensors: one tensor, or a sequence of them; each in one of the forms that PagedTensors tells of.
    Raises UsageError naming the tensor: unknown type, on another device than the first, read-only,
    without memory (meta, sparse), negative strides, no items.
    """
    alone = _read_tensor(tensors, "tensors")
    if alone is not None:
        return PagedTensors(tensors=(alone,), device=alone.device)
    if isinstance(tensors, Mapping):
        raise UsageError(
            "tensors: got a mapping, whose order says nothing; pass a list of its tensors in the "
            "order of the layers"
        )
    if not isinstance(tensors, Sequence) or isinstance(tensors, (str, bytes, bytearray)):
        raise UsageError(
            f"tensors: expected a sequence of tensors, got {type(tensors).__name__}; "
            f"each is {_FORMS}"
        )
    if not tensors:
        raise UsageError("tensors: empty; pass at least one tensor")
    found: list[PagedTensor] = []
    for tensor_index, tensor in enumerate(tensors):
        name = f"tensors[{tensor_index}]"
        read = _read_tensor(tensor, name)
        if read is None:
            raise UsageError(f"{name}: got {type(tensor).__name__}; expected {_FORMS}")
        if found and read.device != found[0].device:
            raise UsageError(
                f"{name}: lies on {read.device}, tensors[0] on {found[0].device}; attach the "
                "tensors of each device apart"
            )
        found.append(read)
    return PagedTensors(tensors=tuple(found), device=found[0].device)


def parse_device(device: object, name: str = "device") -> str:
    """Returns "cpu" or "cuda:N" from text or from an object whose text it is (torch.device)."""
    text = device if isinstance(device, str) else str(device)
    match = _CUDA_DEVICE.fullmatch(text)
    if match is not None:
        return f"cuda:{int(match[1] or 0)}"
    if text == CPU:
        return CPU
    raise UsageError(f'{name}: expected "cpu" or "cuda:N" such as "cuda:0", got {show(device)}')


def _read_tensor(value: object, name: str) -> PagedTensor | None:
    """None: not a tensor in any form."""
    if as_torch_tensor(value) is not None and isinstance(value, _StridedTensor):
        return _read_torch(value, name)
    if isinstance(value, np.ndarray):
        return _read_numpy(value, name)
    # Of an array that has both, DLPack's answer names the device.
    interface: object = getattr(value, "__cuda_array_interface__", None)
    if isinstance(interface, Mapping):
        return _read_cuda_array(value, interface, name)
    if not isinstance(value, type) and isinstance(value, DlpackArray):
        return _read_dlpack(value, name)
    if isinstance(value, tuple) and len(value) == 3 and _is_whole(value[0]):
        return _read_raw(value, name)
    return None


def _read_torch(tensor: _StridedTensor, name: str) -> PagedTensor:
    if str(tensor.layout) != "torch.strided":
        raise UsageError(
            f"{name}: a tensor of layout {tensor.layout} is not plain memory; use a dense one"
        )
    kind = tensor.device.type
    if kind not in (CPU, "cuda"):
        raise UsageError(
            f"{name}: a tensor on device {kind!r}; only tensors with memory on cpu or cuda can be "
            "attached"
        )
    if tensor.is_conj() or tensor.is_neg():
        raise UsageError(f"{name}: a lazily conjugated or negated tensor; resolve it first")
    item_bytes = tensor.element_size()
    return _strided(
        name,
        address=tensor.data_ptr(),
        shape=tuple(int(length) for length in tensor.shape),
        strides_bytes=tuple(int(stride) * item_bytes for stride in tensor.stride()),
        item_bytes=item_bytes,
        device=CPU if kind == CPU else f"cuda:{tensor.device.index or 0}",
        keeper=tensor,
    )


def _read_numpy(
    array: "np.ndarray[tuple[int, ...], np.dtype[np.generic]]", name: str
) -> PagedTensor:
    if array.dtype.hasobject:
        raise UsageError(f"{name}: dtype {array.dtype} holds Python objects, not bytes")
    _check_writable(not array.flags.writeable, name)
    return _strided(
        name,
        address=int(array.__array_interface__["data"][0]),
        shape=array.shape,
        strides_bytes=array.strides,
        item_bytes=array.dtype.itemsize,
        device=CPU,
        keeper=array,
    )


def _read_cuda_array(value: object, interface: Mapping[str, object], name: str) -> PagedTensor:
    data, shape, strides = (interface.get(key) for key in ("data", "shape", "strides"))
    item_bytes = _item_bytes_of(interface.get("typestr"))
    if not (
        isinstance(data, tuple)
        and len(data) == 2
        and isinstance(shape, tuple)
        and isinstance(strides, (tuple, type(None)))
        and item_bytes > 0
    ):
        raise UsageError(
            f"{name}: its __cuda_array_interface__ is not understood: {show(dict(interface))}; "
            "pass (pointer, num_bytes, device) instead"
        )
    if interface.get("mask") is not None:
        raise UsageError(f"{name}: a masked array is not plain memory; use the array beneath")
    _check_writable(bool(data[1]), name)
    return _strided(
        name,
        address=int(data[0]),
        shape=shape,
        strides_bytes=strides if strides is not None else contiguous_strides(shape, item_bytes),
        item_bytes=item_bytes,
        device=f"cuda:{_cuda_index(value)}",
        keeper=value,
    )


def _item_bytes_of(typestr: object) -> int:
    """0: not a type."""
    try:
        return np.dtype(typestr).itemsize if isinstance(typestr, str) else 0
    except TypeError:
        return 0


def _cuda_index(value: object) -> int:
    """The interface itself does not say; where nothing does, the core refuses a wrong guess."""
    if isinstance(value, DlpackArray):
        kind, device_index = value.__dlpack_device__()
        if int(kind) == CUDA_DEVICE_KIND:
            return int(device_index)
    return 0


def _read_dlpack(value: DlpackArray, name: str) -> PagedTensor:
    kind, device_index = (int(it) for it in value.__dlpack_device__())
    if kind != CUDA_DEVICE_KIND and kind not in HOST_DEVICE_KINDS:
        raise UsageError(
            f"{name}: lies on a device of DLPack's kind {kind}; only memory of CPU (1, 3) and "
            "CUDA (2) can be attached"
        )
    is_on_host = kind in HOST_DEVICE_KINDS
    read = read_dlpack(value, name, is_on_host=is_on_host)
    _check_writable(read.is_read_only, name)
    return _strided(
        name,
        address=read.address,
        shape=read.shape,
        strides_bytes=read.strides_bytes,
        item_bytes=read.item_bytes,
        device=CPU if is_on_host else f"cuda:{device_index}",
        keeper=(value, read.capsule),
    )


def _read_raw(value: "tuple[object, ...]", name: str) -> PagedTensor:
    pointer, num_bytes, device = value
    address = _parse_above_zero(pointer, f"{name}: pointer")
    length_bytes = _parse_above_zero(num_bytes, f"{name}: num_bytes")
    if address + length_bytes - 1 > _ADDRESS_MAX:
        raise UsageError(f"{name}: {length_bytes} bytes from {address:#x} on go beyond all memory")
    return PagedTensor(
        address=address,
        length_bytes=length_bytes,
        device=parse_device(device, f"{name}: device"),
        shape=None,
        strides_bytes=None,
        item_bytes=None,
        keeper=None,
    )


def _is_whole(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _parse_above_zero(value: object, name: str) -> int:
    if isinstance(value, (int, np.integer)) and _is_whole(value) and value > 0:
        return int(value)
    raise UsageError(f"{name}: expected a whole number above 0, got {show(value)}")


def _strided(
    name: str,
    *,
    address: int,
    shape: tuple[int, ...],
    strides_bytes: tuple[int, ...],
    item_bytes: int,
    device: str,
    keeper: object,
) -> PagedTensor:
    if min(shape, default=1) < 1:
        raise UsageError(f"{name}: shape {shape} holds no items, so there is no block in it")
    if address == 0:
        raise UsageError(f"{name}: has no memory (address 0); allocate the tensor first")
    # Of a dimension of one item the stride says nothing.
    strides = tuple(
        it if length > 1 else 0 for it, length in zip(strides_bytes, shape, strict=True)
    )
    if min(strides, default=0) < 0:
        raise UsageError(
            f"{name}: negative strides {strides_bytes}; pass the tensor in its own order, not "
            "reversed"
        )
    last_offset_bytes = sum(it * (length - 1) for it, length in zip(strides, shape, strict=True))
    return PagedTensor(
        address=address,
        length_bytes=last_offset_bytes + item_bytes,
        device=device,
        shape=shape,
        strides_bytes=strides,
        item_bytes=item_bytes,
        keeper=keeper,
    )


def _check_writable(is_read_only: bool, name: str) -> None:
    if is_read_only:
        raise UsageError(
            f"{name}: is read-only, so nothing could be loaded into it; pass writable memory, or "
            "(pointer, num_bytes, device) if it may be written all the same"
        )
