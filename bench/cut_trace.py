"""Cuts the demo's excerpt out of the whole trace: a run of whole requests, unchanged, in order.

Usage: cut_trace.py [--first N] [--requests N] [--output FILE]. Reads the trace in
$KVTIER_SHARED/traces (default: ../shared beside the repository). One thread.
"""

from __future__ import annotations

import argparse
import itertools
import lzma
import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TRACE_NAME = "mooncake_conversation.jsonl.xz"
OUTPUT = ROOT / "bench/data/mooncake_conversation_excerpt.jsonl.xz"
EXCERPT_BYTES_MAX = 64_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--first", type=int, default=0, help="requests to skip (default 0)")
    parser.add_argument(
        "--requests", type=int, default=3000, help="requests to keep (default 3000)"
    )
    parser.add_argument("--output", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    shared = Path(os.environ.get("KVTIER_SHARED", ROOT.parent / "shared"))
    source = shared / "traces" / TRACE_NAME
    with lzma.open(source, "rb") as lines:
        kept = list(itertools.islice(lines, arguments.first, arguments.first + arguments.requests))
    # The same settings give the same bytes; CRC64 is xz's own default.
    packed = lzma.compress(b"".join(kept), check=lzma.CHECK_CRC64, preset=9 | lzma.PRESET_EXTREME)
    if len(packed) >= EXCERPT_BYTES_MAX:
        parser.error(f"the excerpt has {len(packed)} bytes, want less than {EXCERPT_BYTES_MAX}")
    arguments.output.write_bytes(packed)
    print(f"{arguments.output}: {len(kept)} requests, {len(packed)} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
