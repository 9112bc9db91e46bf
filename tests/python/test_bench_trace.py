"""The trace reader: what it takes, and what it refuses with file and line. One thread."""

from __future__ import annotations

import gzip
import json
import lzma
from pathlib import Path

import pytest

from kvtier.bench.trace import TraceError, raw_key, read_trace

LINES = [{"timestamp": 0, "hash_ids": [0, 1, 2]}, {"timestamp": 7, "hash_ids": ["a", 1]}]
TEXT = "".join(json.dumps(line) + "\n" for line in LINES)
EXCERPT = Path(__file__).parents[2] / "bench/data/mooncake_conversation_excerpt.jsonl.xz"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.jsonl", TEXT.encode()),
        ("t.jsonl.xz", lzma.compress(TEXT.encode())),
        ("t.jsonl.gz", gzip.compress(TEXT.encode())),
        ("misnamed.txt", lzma.compress(TEXT.encode())),
        ("blank_lines.jsonl", b"\n" + TEXT.replace("\n", "\n\n").encode()),
    ],
)
def test_a_trace_is_read_whatever_its_packing(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert [request.hash_ids for request in read_trace(path)] == [(0, 1, 2), ("a", 1)]
    assert len(read_trace(path, num_requests_max=1)) == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("not json", "not a JSON object"),
        ("[1, 2]", "want a JSON object, got list"),
        ('{"timestamp": 1}', "no field 'hash_ids'"),
        ('{"hash_ids": 5}', "must be a list, got int"),
        ('{"hash_ids": [1, 2.5]}', r"hash_ids\[1\] must be an integer"),
        ('{"hash_ids": [true]}', r"hash_ids\[0\] must be"),
        ('{"hash_ids": [null]}', r"hash_ids\[0\] must be"),
        ('{"hash_ids": [""]}', r"hash_ids\[0\] must be"),
        (json.dumps({"hash_ids": ["x" * 65]}), r"hash_ids\[0\] must be"),
        (json.dumps({"hash_ids": [1 << 200]}), r"hash_ids\[0\] must be"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(TEXT + line + "\n")
    with pytest.raises(TraceError, match=r"trace\.jsonl:3: .*" + message):
        read_trace(path)


def test_a_bad_line_after_the_last_wanted_one_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(TEXT + "not json\n")
    assert len(read_trace(path, num_requests_max=2)) == 2


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot read trace"):
        read_trace(tmp_path / "missing.jsonl")
    with pytest.raises(TraceError, match="cannot read trace"):
        read_trace(tmp_path)
    (tmp_path / "empty.jsonl").write_text("\n\n")
    with pytest.raises(TraceError, match="holds no request"):
        read_trace(tmp_path / "empty.jsonl")
    packed = lzma.compress(TEXT.encode() * 1000)
    (tmp_path / "cut.xz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(TraceError, match="cannot read trace"):
        read_trace(tmp_path / "cut.xz")
    (tmp_path / "damaged.gz").write_bytes(b"\x1f\x8b" + bytes(30))
    with pytest.raises(TraceError, match="cannot read trace"):
        read_trace(tmp_path / "damaged.gz")


def test_each_block_id_has_a_raw_key_of_its_own() -> None:
    ids = [0, 1, -1, 255, 256, 1 << 64, -(1 << 127), (1 << 127) - 1, "0", "1", "a", "é" * 32]
    raw_keys = [raw_key(block_id) for block_id in ids]
    assert len(set(raw_keys)) == len(ids)
    assert all(1 <= len(raw) <= 64 for raw in raw_keys)


def test_the_excerpt_is_small_and_shows_reuse() -> None:
    assert EXCERPT.stat().st_size < 64_000
    ids = [hash_id for request in read_trace(EXCERPT) for hash_id in request.hash_ids]
    assert len(ids) > 50_000
    assert 1 - len(set(ids)) / len(ids) > 0.25
