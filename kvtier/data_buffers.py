"""Turns the buffers of put and get into addresses, without copying a byte.

Pure apart from holding the buffers; thread-safe.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from kvtier.errors import UsageError
from kvtier.results import U64


@dataclass(frozen=True, slots=True, eq=False)
class BlockAddresses:
    """Where each block of a call lies. The memory stays valid while this object lives."""

    addresses: U64
    """uint64[num_blocks]."""
    holders: list[object]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    """One contiguous buffer."""

    address: int
    length_bytes: int
    is_read_only: bool
    holder: object


class _Device(Protocol):
    type: str


@runtime_checkable
class TorchTensor(Protocol):
    """The part of torch.Tensor that kvtier uses; torch itself is never imported."""

    device: _Device
    layout: object

    def data_ptr(self) -> int: ...
    def numel(self) -> int: ...
    def element_size(self) -> int: ...
    def is_contiguous(self) -> bool: ...
    def is_conj(self) -> bool: ...
    def is_neg(self) -> bool: ...


def source_addresses(data: object, num_blocks: int, block_bytes: int) -> BlockAddresses:
    """Returns the addresses of blocks to read.

    data: one C-contiguous buffer, array or CPU tensor of num_blocks * block_bytes, or a sequence
    of num_blocks of them of block_bytes each.
    Raises UsageError (wrong size or number, not contiguous, not in CPU memory).
    """
    return _addresses(data, num_blocks, block_bytes, "data")


def target_addresses(out: object, num_blocks: int, block_bytes: int) -> BlockAddresses:
    """Returns the addresses of blocks to write: like source_addresses; none may overlap."""
    found = _addresses(out, num_blocks, block_bytes, "out")
    ordered = np.sort(found.addresses)
    if num_blocks > 1 and bool(np.any(np.diff(ordered) < np.uint64(block_bytes))):
        raise UsageError(
            "out: two buffers overlap; each block needs its own "
            f"{block_bytes} bytes, or one block would overwrite another"
        )
    return found


def as_torch_tensor(value: object) -> TorchTensor | None:
    """Returns `value` if it is a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    tensor_type = getattr(torch, "Tensor", None)
    if isinstance(tensor_type, type) and isinstance(value, tensor_type):
        return value if isinstance(value, TorchTensor) else None
    return None


def _addresses(buffers: object, num_blocks: int, block_bytes: int, name: str) -> BlockAddresses:
    span = _find_span(buffers, name)
    if span is not None:
        _check_bytes(span, num_blocks * block_bytes, name, f"{num_blocks} blocks of {block_bytes}")
        _check_writable(span, name)
        offsets = np.arange(num_blocks, dtype=np.uint64) * np.uint64(block_bytes)
        return BlockAddresses(offsets + np.uint64(span.address), [span.holder])
    if not isinstance(buffers, Sequence) or isinstance(buffers, str):
        raise UsageError(
            f"{name}: expected a buffer, an array, a CPU tensor or a sequence of them, "
            f"got {type(buffers).__name__}"
        )
    if len(buffers) != num_blocks:
        raise UsageError(f"{name}: expected {num_blocks} buffers, got {len(buffers)}")
    spans = list(_find_spans(buffers, block_bytes, name))
    return BlockAddresses(
        np.array([it.address for it in spans], dtype=np.uint64), [it.holder for it in spans]
    )


def _find_spans(buffers: Sequence[object], block_bytes: int, name: str) -> Iterator[_Span]:
    for block_index, buffer in enumerate(buffers):
        item = f"{name}[{block_index}]"
        span = _find_span(buffer, item)
        if span is None:
            raise UsageError(f"{item}: expected a buffer, got {type(buffer).__name__}")
        _check_bytes(span, block_bytes, item, "block_bytes")
        _check_writable(span, name)
        yield span


def _find_span(buffer: object, name: str) -> _Span | None:
    if isinstance(buffer, np.ndarray):
        return _array_span(buffer, name)
    tensor = as_torch_tensor(buffer)
    if tensor is not None:
        return _tensor_span(tensor, name)
    if hasattr(buffer, "__cuda_array_interface__"):
        raise UsageError(f"{name}: lies in GPU memory; put and get take CPU memory only")
    try:
        view = memoryview(buffer)  # type: ignore[arg-type]
    except (TypeError, ValueError, BufferError):
        return None
    if not view.c_contiguous:
        raise UsageError(f"{name}: not C-contiguous: shape {view.shape}, strides {view.strides}")
    if view.nbytes == 0:
        return _Span(address=0, length_bytes=0, is_read_only=view.readonly, holder=view)
    # The array holds the export, so that a bytearray cannot be resized meanwhile.
    array = np.frombuffer(view, dtype=np.uint8)
    return _Span(
        address=int(array.__array_interface__["data"][0]),
        length_bytes=view.nbytes,
        is_read_only=view.readonly,
        holder=array,
    )


def _array_span(array: "np.ndarray[tuple[int, ...], np.dtype[np.generic]]", name: str) -> _Span:
    if array.dtype.hasobject:
        raise UsageError(f"{name}: dtype {array.dtype} holds Python objects, not bytes")
    if not array.flags.c_contiguous:
        raise UsageError(f"{name}: not C-contiguous: shape {array.shape}, strides {array.strides}")
    return _Span(
        address=int(array.__array_interface__["data"][0]),
        length_bytes=array.nbytes,
        is_read_only=not array.flags.writeable,
        holder=array,
    )


def _tensor_span(tensor: TorchTensor, name: str) -> _Span:
    if tensor.device.type != "cpu":
        raise UsageError(
            f"{name}: a tensor on device {tensor.device.type!r}; put and get take CPU tensors only"
        )
    if str(tensor.layout) != "torch.strided":
        raise UsageError(f"{name}: a tensor of layout {tensor.layout}; expected torch.strided")
    if not tensor.is_contiguous():
        raise UsageError(f"{name}: the tensor is not contiguous; call .contiguous() first")
    if tensor.is_conj() or tensor.is_neg():
        raise UsageError(f"{name}: a lazily conjugated or negated tensor; resolve it first")
    return _Span(
        address=tensor.data_ptr(),
        length_bytes=tensor.numel() * tensor.element_size(),
        is_read_only=False,
        holder=tensor,
    )


def _check_bytes(span: _Span, want_bytes: int, name: str, what: str) -> None:
    if span.length_bytes != want_bytes:
        raise UsageError(
            f"{name}: expected {want_bytes} bytes ({what}), got {span.length_bytes} bytes"
        )


def _check_writable(span: _Span, name: str) -> None:
    if name.startswith("out") and span.is_read_only:
        raise UsageError(f"{name}: the buffer is read-only")
