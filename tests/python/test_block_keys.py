"""Block keys: the scheme itself, and that nothing around a process changes it."""

import array
import hashlib
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kvtier.block_keys import KEY_BYTES, as_key_array, chain_keys, fold_raw_key, hash_request
from kvtier.errors import UsageError

NAMESPACE_ID = bytes(range(16))
PROGRAM = """
import sys
from kvtier.block_keys import chain_keys, fold_raw_key, hash_request
keys = chain_keys(range(64), namespace_id=bytes(range(16)), block_tokens=16, extra="t\\u00e4nant")
print(keys.tobytes().hex(), fold_raw_key(b"raw", namespace_id=bytes(16)).tobytes().hex(),
      hash_request("request-1"))
"""


def keys_of(
    token_ids: object, extra: object = None, block_tokens: int = 4, namespace_id=NAMESPACE_ID
):
    return chain_keys(token_ids, namespace_id=namespace_id, block_tokens=block_tokens, extra=extra)


def test_the_scheme_stays_what_it_was() -> None:
    # Golden: another value here means that every stored block is lost.
    assert [bytes(key).hex() for key in keys_of(range(12))] == [
        "84145e375aa35b61687f926a7a69a257",
        "692b1c89dfc7b91b96b98ee93d8470b9",
        "6818441fdd317f40a97d21ab74038054",
    ]
    assert bytes(keys_of(range(4), extra="tenant")[0]).hex() == "0e9272474c562ab987b2a3c645383f47"
    assert bytes(keys_of(range(4), extra=["image"])[0]).hex() == "a2f912d4028abc2926a5ca2c1fbda4d4"
    assert (
        bytes(fold_raw_key(b"raw", namespace_id=NAMESPACE_ID)).hex()
        == "78cca4c8f8fde33b1ea334105336075b"
    )
    assert hash_request("request-1") == 10561309276757247363
    assert hash_request(7) == 11315499408559322118


def test_the_scheme_is_the_one_that_is_written_down() -> None:
    parent = hashlib.sha256(b"kvtier root 1\0" + NAMESPACE_ID + b"\0").digest()
    for block_index, key in enumerate(keys_of(range(12))):
        tokens = struct.pack("<4q", *range(block_index * 4, block_index * 4 + 4))
        parent = hashlib.sha256(parent + tokens + b"\0").digest()
        assert bytes(key) == parent[:16]


def test_keys_are_equal_in_every_process_b1(tmp_path: Path) -> None:
    outputs = set()
    root = str(Path(__file__).resolve().parents[2])
    variants = [("0", "C", "/"), ("1", "C.UTF-8", str(tmp_path)), ("random", "tr_TR.UTF-8", root)]
    for hash_seed, locale, folder in variants:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "LC_ALL": locale}
        environment["PYTHONPATH"] = root
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env=environment,
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
        )
        outputs.add(done.stdout)
    assert len(outputs) == 1


def test_every_way_to_say_the_same_tokens_gives_the_same_keys() -> None:
    tokens = list(range(10, 22))
    expected = keys_of(tokens).tobytes()
    forms: list[object] = [tuple(tokens), range(10, 22), array.array("i", tokens)]
    forms += [np.array(tokens, dtype=dtype) for dtype in "bBhHiIlLqQ"]
    forms += [np.array(tokens, dtype=dtype) for dtype in (">i4", ">i8", "<u2")]
    forms += [[np.uint64(token) if token % 2 else np.int8(token) for token in tokens]]
    forms += [[np.int32(token) for token in tokens], np.arange(10, 34)[::2] // 2 + 5]
    forms.append(memoryview(np.array(tokens)))
    for form in forms:
        assert keys_of(form).tobytes() == expected, type(form)


def test_torch_tensors_are_taken_when_torch_is_there() -> None:
    torch = pytest.importorskip("torch")
    for dtype in (torch.int64, torch.int32):
        tensor = torch.arange(12, dtype=dtype)
        assert keys_of(tensor).tobytes() == keys_of(range(12)).tobytes()


def test_a_trailing_part_of_a_block_has_no_key_a8() -> None:
    assert keys_of(range(3)).shape == (0, KEY_BYTES)
    assert keys_of([]).shape == (0, KEY_BYTES)
    assert keys_of(range(7)).shape == (1, KEY_BYTES)
    assert keys_of(range(7)).tobytes() == keys_of(range(4)).tobytes()
    assert keys_of(range(8))[0].tobytes() == keys_of(range(4))[0].tobytes()


def test_one_changed_token_changes_every_key_from_there_on() -> None:
    original = keys_of(range(40))
    for position in range(40):
        tokens = list(range(40))
        tokens[position] += 1000
        changed = keys_of(tokens)
        is_equal = (changed == original).all(axis=1).tolist()
        assert is_equal == [block_index < position // 4 for block_index in range(10)]


def test_namespace_and_extra_keep_keys_apart_b3() -> None:
    extras: list[object] = [
        None,
        "",
        b"",
        "a",
        b"a",
        "b",
        "a\0",
        ["a", None],
        ["", None],
        [None, "a"],
    ]
    extras += [["a", "b"], ["b", "a"], [b"a", "b"], ["ab", ""], ["", "ab"]]
    keys = [bytes(keys_of(range(8), extra=extra)[1]) for extra in extras]
    keys.append(bytes(keys_of(range(8), namespace_id=bytes(16))[1]))
    assert len(set(keys)) == len(keys)


def test_entries_of_nothing_change_nothing() -> None:
    assert keys_of(range(8), extra=[None, None]).tobytes() == keys_of(range(8)).tobytes()
    assert keys_of(range(8), extra=(None, None)).tobytes() == keys_of(range(8)).tobytes()


def test_a_hundred_thousand_extras_do_not_collide_b2() -> None:
    # Among them many that are equal in their low 16 bits, and placeholder tokens only.
    seen = set()
    for image in range(100_000):
        extra = f"{image << 16 | 1:032x}" if image % 2 else f"{image:032x}"
        seen.add(keys_of([151655] * 4, extra=[extra]).tobytes())
    assert len(seen) == 100_000


@pytest.mark.parametrize("extra", [[], ["a"], ["a", "b", "c"], ()])
def test_an_extra_of_the_wrong_length_is_refused(extra: object) -> None:
    with pytest.raises(UsageError, match="expected 2 entries"):
        keys_of(range(8), extra=extra)


@pytest.mark.parametrize("extra", [7, 1.5, ["a", 7], [["a"], "b"], {"a": 1}, bytearray(b"a")])
def test_an_extra_of_another_type_is_refused(extra: object) -> None:
    with pytest.raises(UsageError, match="extra"):
        keys_of(range(8), extra=extra)


@pytest.mark.parametrize(
    ("token_ids", "part_of_message"),
    [
        ([0, -1, 2, 3], "-1 is negative"),
        (np.array([0, -5]), "-5 is negative"),
        ([1 << 63, 1, 2, 3], "9223372036854775808"),
        ([1 << 64], "18446744073709551616"),
        ([-1, 1 << 63], "-1"),
        ([np.uint64(1 << 63), 1], "9223372036854775808"),
        ([1, 2, 2.5], "2.5"),
        (np.array([1 << 63], dtype=np.uint64), "9223372036854775808"),
        ([1.5, 2.0], "1.5"),
        (np.array([1.0]), "float64"),
        ([True, False], "bool"),
        ([None], "None"),
        (["1"], "'1'"),
        ("1234", "str"),
        (b"1234", "bytes"),
        (None, "NoneType"),
        (7, "one dimension"),
        ([[1, 2], [3, 4]], "one dimension"),
        ([[1], [2, 3]], "integers"),
        ({1: 2}, "dimension"),
    ],
)
def test_tokens_that_are_none_are_refused(token_ids: object, part_of_message: str) -> None:
    with pytest.raises(UsageError, match=part_of_message):
        keys_of(token_ids)


def test_the_largest_token_is_taken() -> None:
    assert keys_of([(1 << 63) - 1] * 4).shape == (1, KEY_BYTES)


def test_a_raw_key_is_folded_with_its_namespace() -> None:
    raws = [b"\0", b"\0\0", b"a", bytes(64), bytes(63), b"a" * 64]
    keys = [bytes(fold_raw_key(raw, namespace_id=NAMESPACE_ID)) for raw in raws]
    keys.append(bytes(fold_raw_key(b"a", namespace_id=bytes(16))))
    assert len(set(keys)) == len(keys)
    array_form = np.frombuffer(b"abc", dtype=np.uint8)
    for form in (bytearray(b"abc"), memoryview(b"abc"), array_form):
        assert bytes(fold_raw_key(form, namespace_id=NAMESPACE_ID)) == bytes(
            fold_raw_key(b"abc", namespace_id=NAMESPACE_ID)
        )


@pytest.mark.parametrize("raw", [b"", bytes(65), "text", 7, None, ["a"]])
def test_a_raw_key_of_another_kind_is_refused(raw: object) -> None:
    with pytest.raises(UsageError, match="raw"):
        fold_raw_key(raw, namespace_id=NAMESPACE_ID)


def test_keys_come_as_one_array_or_one_by_one() -> None:
    keys = keys_of(range(12))
    expected = keys.tobytes()
    forms: list[object] = [keys, list(keys), tuple(keys), [bytes(key) for key in keys]]
    forms += [[bytearray(key) for key in keys], np.asfortranarray(keys), np.repeat(keys, 2, 0)[::2]]
    for form in forms:
        converted = as_key_array(form)
        assert converted.tobytes() == expected
        assert converted.flags.c_contiguous
    assert as_key_array([]).shape == (0, KEY_BYTES)


@pytest.mark.parametrize(
    "keys",
    [
        np.zeros((2, 15), dtype=np.uint8),
        np.zeros((2, 16), dtype=np.int8),
        np.zeros((2, 2), dtype=np.uint64),
        np.zeros(16, dtype=np.uint8),
        np.zeros((1, 1, 16), dtype=np.uint8),
        bytes(16),
        bytearray(16),
        "k" * 16,
        [bytes(15)],
        [bytes(16), bytes(17)],
        [np.zeros(16, dtype=np.int64)],
        ["k" * 16],
        [7],
        None,
        7,
        {bytes(16)},
    ],
)
def test_keys_of_the_wrong_shape_are_refused(keys: object) -> None:
    with pytest.raises(UsageError, match="keys"):
        as_key_array(keys)


def test_request_ids_of_any_kind_are_numbers() -> None:
    hashes = [hash_request(it) for it in ("", "1", b"1", 1, -1, "a", 1 << 200, "\ud800", b"")]
    assert len(set(hashes)) == len(hashes)
    assert all(0 < it < 1 << 64 for it in hashes)
    assert hash_request(None) == 0
    assert hash_request(np.int64(1)) == hash_request(1)


@pytest.mark.parametrize("request_id", [True, 1.5, ["a"], object()])
def test_a_request_id_of_another_kind_is_refused(request_id: object) -> None:
    with pytest.raises(UsageError, match="request"):
        hash_request(request_id)
