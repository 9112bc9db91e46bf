"""Reads what an array hands over by DLPack: where its bytes lie, without taking the array over.

Pure apart from asking the array for a capsule; thread-safe.
"""

import ctypes
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from kvtier.errors import UsageError

HOST_DEVICE_KINDS: Final = (1, 3)
"""Plain memory, and memory that CUDA page-locked."""
CUDA_DEVICE_KIND: Final = 2
_READ_ONLY_FLAG: Final = 1
_VERSION_MAX: Final = (1, 0)
_NO_SYNCHRONIZING: Final = -1


@runtime_checkable
class DlpackArray(Protocol):
    """The two methods of the protocol."""

    def __dlpack__(self, **options: object) -> object: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DlpackTensor:
    """What the capsule says. Valid while `capsule` lives, which frees its part at its end."""

    address: int
    shape: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    item_bytes: int
    is_read_only: bool
    capsule: object


class _Device(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("device_index", ctypes.c_int32))


class _ItemType(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_uint8),
        ("num_bits", ctypes.c_uint8),
        ("num_lanes", ctypes.c_uint16),
    )


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("num_dims", ctypes.c_int32),
        ("item_type", _ItemType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset_bytes", ctypes.c_uint64),
    )


class _VersionedTensor(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


def read_dlpack(array: DlpackArray, name: str, *, is_on_host: bool) -> DlpackTensor:
    """Asks for a capsule and reads it.

    No stream is made to wait: whoever moves the bytes names the stream that wrote them.
    Raises UsageError (the array refuses, a version that is not known, items of less than a byte).
    """
    capsule = _ask_for_capsule(array, name, is_on_host=is_on_host)
    address = _capsule_address(capsule, b"dltensor_versioned")
    if address is None:
        address = _capsule_address(capsule, b"dltensor")
        if address is None:
            raise UsageError(
                f"{name}: its __dlpack__ gave {type(capsule).__name__}, no DLPack data"
            )
        return _read_tensor(_Tensor.from_address(address), name, capsule, is_read_only=False)
    versioned = _VersionedTensor.from_address(address)
    if versioned.major != _VERSION_MAX[0]:
        raise UsageError(
            f"{name}: DLPack version {versioned.major}.{versioned.minor} is not known; "
            "pass (pointer, num_bytes, device) instead"
        )
    is_read_only = bool(versioned.flags & _READ_ONLY_FLAG)
    return _read_tensor(versioned.tensor, name, capsule, is_read_only=is_read_only)


def _ask_for_capsule(array: DlpackArray, name: str, *, is_on_host: bool) -> object:
    options: dict[str, object] = {} if is_on_host else {"stream": _NO_SYNCHRONIZING}
    try:
        try:
            return array.__dlpack__(max_version=_VERSION_MAX, **options)
        except TypeError:  # Older arrays do not know the argument.
            return array.__dlpack__(**options)
    except (BufferError, ValueError, RuntimeError, TypeError) as error:
        raise UsageError(f"{name}: cannot be handed over by DLPack: {error}") from error


def _read_tensor(
    tensor: _Tensor, name: str, capsule: object, *, is_read_only: bool
) -> DlpackTensor:
    item_bits = tensor.item_type.num_bits * tensor.item_type.num_lanes
    if item_bits == 0 or item_bits % 8:
        raise UsageError(
            f"{name}: items of {item_bits} bits are no whole bytes; view the tensor as uint8 first"
        )
    item_bytes = item_bits // 8
    shape = tuple(tensor.shape[dim] for dim in range(tensor.num_dims))
    if tensor.strides:
        strides_bytes = tuple(tensor.strides[dim] * item_bytes for dim in range(tensor.num_dims))
    else:
        strides_bytes = contiguous_strides(shape, item_bytes)
    return DlpackTensor(
        address=(tensor.data or 0) + tensor.offset_bytes,
        shape=shape,
        strides_bytes=strides_bytes,
        item_bytes=item_bytes,
        is_read_only=is_read_only,
        capsule=capsule,
    )


def contiguous_strides(shape: tuple[int, ...], item_bytes: int) -> tuple[int, ...]:
    """Returns the strides, in bytes, of an array in C order."""
    strides_bytes: list[int] = []
    inner_bytes = item_bytes
    for length in reversed(shape):
        strides_bytes.append(inner_bytes)
        inner_bytes *= length
    return tuple(reversed(strides_bytes))


def _capsule_address(capsule: object, capsule_name: bytes) -> int | None:
    is_valid = ctypes.pythonapi.PyCapsule_IsValid
    is_valid.restype, is_valid.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)
    if not is_valid(capsule, capsule_name):
        return None
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = (
        ctypes.c_void_p,
        (ctypes.py_object, ctypes.c_char_p),
    )
    address: int = get_pointer(capsule, capsule_name)
    return address
