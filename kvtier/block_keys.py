"""Block keys: 128-bit digests of whole token prefixes, the same in every process and on every run.

Pure functions; thread-safe. The scheme is stored on disk: a change here loses every stored block.
"""

import contextlib
import hashlib
import operator
import struct
from collections.abc import Iterable, Sequence
from typing import Final, SupportsIndex

import numpy as np
import numpy.typing as npt

from kvtier._core import is_key_array
from kvtier.data_buffers import as_torch_tensor
from kvtier.errors import UsageError
from kvtier.results import U8
from kvtier.units import show

KEY_BYTES: Final = 16
RAW_KEY_BYTES_MAX: Final = 64
TOKEN_BYTES: Final = 8
_ROOT_DOMAIN: Final = b"kvtier root 1\0"
_KEY_DOMAIN: Final = b"kvtier key 1\0"
_INT64_MAX: Final = (1 << 63) - 1


def chain_keys(
    token_ids: object, *, namespace_id: bytes, block_tokens: int, extra: object = None
) -> U8:
    """Returns uint8[num_blocks, 16]: one key per whole block, each chained to the one before it.

    digest[i] = SHA-256(digest[i - 1] ‖ tokens as little-endian int64 ‖ extra of the block), where
    digest[-1] folds in the namespace and an `extra` that holds for the whole prefix. A key is the
    first 16 bytes of its digest. A trailing part of a block has no key.
    Raises UsageError (tokens that are no int64 ≥ 0, `extra` of the wrong type or length).
    """
    tokens = as_token_bytes(token_ids)
    block_stride = block_tokens * TOKEN_BYTES
    num_blocks = len(tokens) // block_stride
    is_per_block = isinstance(extra, Sequence) and not isinstance(extra, (str, bytes))
    if is_per_block and len(extra) != num_blocks:  # type: ignore[arg-type]
        raise UsageError(
            f"extra: expected {num_blocks} entries, one per whole block, got {len(extra)}"  # type: ignore[arg-type]
        )
    root_extra = _encode_extra(None if is_per_block else extra, "extra")
    digest = hashlib.sha256(_ROOT_DOMAIN + namespace_id + root_extra).digest()
    no_extra = _encode_extra(None, "extra")
    keys = bytearray()
    for block_index in range(num_blocks):
        if is_per_block:
            entry = _encode_extra(extra[block_index], f"extra[{block_index}]")  # type: ignore[index]
        else:
            entry = no_extra
        block = tokens[block_index * block_stride : (block_index + 1) * block_stride]
        digest = hashlib.sha256(b"".join((digest, block, entry))).digest()
        keys += digest[:KEY_BYTES]
    return np.frombuffer(bytes(keys), dtype=np.uint8).reshape(num_blocks, KEY_BYTES)


def fold_raw_key(raw: object, *, namespace_id: bytes) -> U8:
    """Returns uint8[16]: a caller's own digest (1 to 64 bytes) folded with the namespace."""
    if isinstance(raw, (str, int)):
        raise UsageError(f"raw: expected bytes, got {show(raw)} ({type(raw).__name__})")
    try:
        data = memoryview(raw).tobytes()  # type: ignore[arg-type]
    except (TypeError, ValueError, BufferError):
        raise UsageError(f"raw: expected bytes, got {type(raw).__name__}") from None
    if not 1 <= len(data) <= RAW_KEY_BYTES_MAX:
        raise UsageError(f"raw: expected 1 to {RAW_KEY_BYTES_MAX} bytes, got {len(data)}")
    length = len(data).to_bytes(1, "little")
    digest = hashlib.sha256(b"".join((_KEY_DOMAIN, namespace_id, length, data))).digest()
    return np.frombuffer(digest[:KEY_BYTES], dtype=np.uint8)


def as_key_array(keys: object) -> U8:
    """Returns C-contiguous uint8[n, 16] from such an array, or from a sequence of 16-byte keys."""
    if is_key_array(keys):  # At once: a short lookup takes as long as the checks below.
        return keys
    if isinstance(keys, np.ndarray):
        if keys.dtype != np.uint8 or keys.ndim != 2 or keys.shape[1] != KEY_BYTES:
            raise UsageError(
                f"keys: expected uint8[n, {KEY_BYTES}], got {keys.dtype}{list(keys.shape)}"
            )
        return np.ascontiguousarray(keys)
    if not isinstance(keys, Sequence) or isinstance(keys, (str, bytes, bytearray, memoryview)):
        raise UsageError(
            f"keys: expected uint8[n, {KEY_BYTES}] or a sequence of {KEY_BYTES}-byte keys, "
            f"got {type(keys).__name__}"
        )
    joined = b"".join(_key_bytes(key, f"keys[{index}]") for index, key in enumerate(keys))
    return np.frombuffer(joined, dtype=np.uint8).reshape(len(keys), KEY_BYTES)


def as_key_bytes(key: object, name: str) -> bytes:
    """Returns one key as 16 bytes."""
    return _key_bytes(key, name)


def hash_request(request: object) -> int:
    """Returns a 64-bit number, never 0, for a request id; 0 for None. Equal in every process."""
    if request is None:
        return 0
    if isinstance(request, bool) or not isinstance(request, (str, bytes, int, np.integer)):
        raise UsageError(f"request: expected text, bytes or an int, got {show(request)}")
    if isinstance(request, str):
        data = b"s" + request.encode("utf-8", "surrogatepass")
    elif isinstance(request, bytes):
        data = b"b" + request
    else:
        data = b"i" + hex(int(request)).encode("ascii")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little") or 1


def as_token_bytes(token_ids: object) -> memoryview:
    """Returns token ids as contiguous little-endian int64 bytes."""
    array = _as_array(token_ids)
    if array.ndim != 1:
        raise UsageError(f"token_ids: expected one dimension, got shape {list(array.shape)}")
    if array.size == 0:
        return memoryview(b"")
    if array.dtype.kind not in "iu":
        if not isinstance(token_ids, (list, tuple)):
            raise UsageError(f"token_ids: expected integers, got {array.dtype}")
        array = _as_exact_integers(token_ids)
    if array.dtype.kind == "i" and int(array.min()) < 0:
        raise UsageError(f"token_ids: {int(array.min())} is negative")
    if array.dtype == np.uint64 and int(array.max()) > _INT64_MAX:
        raise UsageError(f"token_ids: {int(array.max())} is beyond {_INT64_MAX}")
    return np.ascontiguousarray(array, dtype="<i8").data.cast("B")


def _as_array(token_ids: object) -> npt.NDArray[np.generic]:
    if isinstance(token_ids, (str, bytes, bytearray)) or token_ids is None:
        raise UsageError(f"token_ids: expected integers, got {type(token_ids).__name__}")
    tensor = as_torch_tensor(token_ids)
    if tensor is not None and tensor.device.type != "cpu":
        raise UsageError(
            f"token_ids: a tensor on device {tensor.device.type!r}; expected a CPU tensor"
        )
    try:
        return np.asarray(token_ids)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise UsageError(f"token_ids: expected integers: {error}") from None


def _as_exact_integers(token_ids: Iterable[object]) -> npt.NDArray[np.generic]:
    """For lists of which numpy would make floats or objects: one by one, nothing rounded."""
    tokens = []
    for token in token_ids:
        value = -1
        if isinstance(token, SupportsIndex) and not isinstance(token, (bool, np.bool_)):
            with contextlib.suppress(TypeError):
                value = operator.index(token)
        if not 0 <= value <= _INT64_MAX:
            raise UsageError(
                f"token_ids: expected integers from 0 to {_INT64_MAX}, "
                f"got {show(token)} ({type(token).__name__})"
            )
        tokens.append(value)
    return np.array(tokens, dtype=np.int64)


def _key_bytes(key: object, name: str) -> bytes:
    data: bytes | None = None
    if isinstance(key, np.ndarray):
        data = key.tobytes() if key.dtype == np.uint8 and key.shape == (KEY_BYTES,) else None
    elif isinstance(key, (bytes, bytearray, memoryview)):
        data = bytes(key)
    if data is None or len(data) != KEY_BYTES:
        shown = f"{key.dtype}{list(key.shape)}" if isinstance(key, np.ndarray) else show(key)
        raise UsageError(f"{name}: expected {KEY_BYTES} bytes, got {shown}")
    return data


def _encode_extra(extra: object, name: str) -> bytes:
    """Kind, length, bytes: no two different values encode alike, and None is not ""."""
    if extra is None:
        return b"\0"
    if isinstance(extra, str):
        data = extra.encode("utf-8", "surrogatepass")
        return b"\1" + struct.pack("<Q", len(data)) + data
    if isinstance(extra, bytes):
        return b"\2" + struct.pack("<Q", len(extra)) + extra
    raise UsageError(f"{name}: expected text, bytes or None, got {show(extra)}")
