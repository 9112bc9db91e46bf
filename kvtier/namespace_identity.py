"""The identity of a namespace: canonical description and its 128-bit digest.

Pure functions; thread-safe. The digest is stored on disk: a change here loses every stored block.
"""

import contextlib
import hashlib
import json
from dataclasses import dataclass
from typing import Final, TypeAlias

from kvtier.errors import ConfigError, UsageError
from kvtier.units import parse_whole_number, show

Description: TypeAlias = dict[str, object]

NAME_CHARACTERS_MAX: Final = 4096
_DOMAIN: Final = b"kvtier namespace 1\0"
_COUNT_MAX: Final = (1 << 31) - 1
_ID_BYTES: Final = 16

_DTYPE_ALIASES: Final = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "f16": "float16",
    "half": "float16",
    "fp32": "float32",
    "f32": "float32",
    "float": "float32",
    "single": "float32",
    "fp64": "float64",
    "f64": "float64",
    "double": "float64",
    "fp8": "float8_e4m3fn",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e4m3fn": "float8_e4m3fn",
    "e4m3": "float8_e4m3fn",
    "e4m3fn": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
    "e5m2": "float8_e5m2",
    "i8": "int8",
    "u8": "uint8",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceIdentity:
    """What makes the blocks of one namespace exchangeable with each other and with no others."""

    id: bytes
    """16 bytes."""
    text: str
    """Canonical JSON: one line of ASCII."""
    block_bytes: int
    block_tokens: int
    part_bytes: tuple[int, ...]

    def describe(self) -> Description:
        """Returns the canonical fields as a new dictionary."""
        description: Description = json.loads(self.text)
        return description


def make_identity(
    *,
    model: object,
    block_bytes: object,
    block_tokens: object,
    fingerprint: object,
    dtype: object,
    layout: object,
    group: object,
    parts: object,
    tp_size: object,
    rank: object,
    replicated: object,
    adapter: object,
    salt: object,
) -> NamespaceIdentity:
    """Checks and canonicalises. Raises ConfigError naming the field and its value."""
    block_bytes = _whole(block_bytes, "block_bytes", minimum=1, maximum=1 << 48)
    part_bytes = _check_parts(parts, block_bytes)
    block_tokens = _whole(block_tokens, "block_tokens", minimum=1)
    tp_size = _whole(tp_size, "tp_size", minimum=1)
    rank = _whole(rank, "rank", minimum=0)
    if rank >= tp_size:
        raise ConfigError(f"rank: {rank} is not below tp_size {tp_size}")
    if not isinstance(replicated, bool):
        raise ConfigError(f"replicated: expected true or false, got {show(replicated)}")
    description: Description = {
        "adapter": _name(adapter, "adapter", is_optional=True),
        "block_bytes": block_bytes,
        "block_tokens": block_tokens,
        "dtype": canonical_dtype(dtype),
        "fingerprint": _name(fingerprint, "fingerprint", is_optional=True),
        "group": _whole(group, "group", minimum=0),
        "layout": _name(layout, "layout"),
        "model": _name(model, "model"),
        "parts": list(part_bytes),
        "replicated": replicated,
        "salt": _name(salt, "salt", is_optional=True),
    }
    if not replicated:
        description |= {"rank": rank, "tp_size": tp_size}
    # ASCII only: line breaks, NUL and lone surrogates are all escaped.
    text = json.dumps(description, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return NamespaceIdentity(
        id=hashlib.sha256(_DOMAIN + text.encode("ascii")).digest()[:16],
        text=text,
        block_bytes=block_bytes,
        block_tokens=block_tokens,
        part_bytes=part_bytes,
    )


def canonical_dtype(dtype: object) -> str:
    """Returns one name for all spellings of an element type, torch's and numpy's objects included.

    A name that is not known stays as it is, in lower case: it still keeps data apart.
    """
    if isinstance(dtype, bytes) or dtype is None:
        raise ConfigError(f"dtype: expected a name, got {show(dtype)}")
    if isinstance(dtype, type):
        text = dtype.__name__
    else:
        text = dtype if isinstance(dtype, str) else str(dtype)
    name = str(_name(text, "dtype")).strip().lower()
    for prefix in ("torch.", "numpy.", "np.", "jnp.", "jax.numpy.", "ml_dtypes."):
        name = name.removeprefix(prefix)
    if name == "auto":
        raise ConfigError('dtype: "auto" names no type; give that of the KV cache, e.g. "bfloat16"')
    return _DTYPE_ALIASES.get(name, name)


def _check_parts(parts: object, block_bytes: int) -> tuple[int, ...]:
    if parts is None:
        return (block_bytes,)
    try:
        listed = [] if isinstance(parts, (str, bytes)) else list(parts)  # type: ignore[call-overload]
    except TypeError:
        listed = []
    sizes = tuple(
        _whole(size_bytes, f"parts[{index}]", minimum=0, maximum=1 << 48)
        for index, size_bytes in enumerate(listed)
    )
    if not sizes:
        raise ConfigError(f"parts: expected a sequence of sizes in bytes, got {show(parts)}")
    if sum(sizes) != block_bytes:
        raise ConfigError(f"parts: they add up to {sum(sizes)} bytes, block_bytes is {block_bytes}")
    return sizes


def _whole(value: object, name: str, *, minimum: int, maximum: int = _COUNT_MAX) -> int:
    number = parse_whole_number(value, name)
    if not minimum <= number <= maximum:
        raise ConfigError(f"{name}: {number} is not within {minimum} to {maximum}")
    return number


def _name(value: object, name: str, *, is_optional: bool = False) -> object:
    if value is None and is_optional:
        return None
    if isinstance(value, (str, bytes)):
        if len(value) > NAME_CHARACTERS_MAX:
            raise ConfigError(
                f"{name}: {len(value)} characters, at most {NAME_CHARACTERS_MAX} are allowed"
            )
        if not value and not is_optional:
            raise ConfigError(f"{name}: empty")
        # Bytes never equal text: the same characters in another type may mean another thing.
        return value if isinstance(value, str) else {"hex": value.hex()}
    kinds = "text, bytes or None" if is_optional else "text"
    raise ConfigError(f"{name}: expected {kinds}, got {show(value)} ({type(value).__name__})")


def parse_namespace_id(value: object) -> bytes:
    """Returns the bytes of an id as ns.id gives it. Raises UsageError."""
    if isinstance(value, str) and len(value) == 2 * _ID_BYTES:
        with contextlib.suppress(ValueError):
            return bytes.fromhex(value)
    raise UsageError(f"namespace: expected a Namespace or 32 hexadecimal digits, got {show(value)}")
