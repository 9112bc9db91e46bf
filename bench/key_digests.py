"""Times chained block keys with different digests: what ADR 4 is based on.

Usage: key_digests.py [--tokens N] [--block-tokens N]. One thread.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from collections.abc import Callable

import numpy as np

NUM_REPEATS = 15


def chain(digest: Callable[[bytes], bytes], data: bytes, block_bytes: int) -> bytes:
    """Returns the last key of the chain: each key covers its tokens and the key before it."""
    key = b""
    for start in range(0, len(data), block_bytes):
        key = digest(key + data[start : start + block_bytes])
    return key


def candidates() -> dict[str, Callable[[bytes], bytes]]:
    found: dict[str, Callable[[bytes], bytes]] = {
        "sha256": lambda data: hashlib.sha256(data).digest(),
        "blake2b": lambda data: hashlib.blake2b(data, digest_size=32).digest(),
    }
    try:
        from blake3 import blake3  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        print("blake3 is not installed: left out (pip install blake3)")
    else:
        found["blake3"] = lambda data: bytes(blake3(data).digest())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=32_768)
    parser.add_argument("--block-tokens", type=int, default=16)
    arguments = parser.parse_args()
    data = np.arange(arguments.tokens, dtype="<i8").tobytes()
    times: dict[str, list[float]] = {}
    digests = candidates()
    for _ in range(NUM_REPEATS):  # Interleaved, so that noise meets all of them.
        for name, digest in digests.items():
            start = time.perf_counter()
            chain(digest, data, arguments.block_tokens * 8)
            times.setdefault(name, []).append(time.perf_counter() - start)
    base = sorted(times["sha256"])[NUM_REPEATS // 2]
    for name, values in times.items():
        median = sorted(values)[NUM_REPEATS // 2]
        print(f"{name:8} {median * 1e3:6.2f} ms  {median / base:4.2f} x sha256")


if __name__ == "__main__":
    main()
