"""What a namespace's digest holds, and what it must not depend on."""

import json

import numpy as np
import pytest

from kvtier.errors import ConfigError
from kvtier.namespace_identity import NamespaceIdentity, make_identity

BASE: dict[str, object] = {
    "model": "Qwen/Qwen2.5-7B",
    "block_bytes": 917504,
    "block_tokens": 16,
    "fingerprint": "a1b2",
    "dtype": "bfloat16",
    "layout": "opaque",
    "group": 0,
    "parts": None,
    "tp_size": 1,
    "rank": 0,
    "replicated": False,
    "adapter": None,
    "salt": None,
}


def identity(**changes: object) -> NamespaceIdentity:
    return make_identity(**{**BASE, **changes})  # type: ignore[arg-type]


def test_the_digest_stays_what_it_was() -> None:
    # Golden: another value here means that every stored block is lost.
    assert identity().id.hex() == "3debb9db8cbb4db0965e7c5c2ec040a3"
    assert (
        identity(tp_size=4, rank=3, parts=[917504, 0], adapter="lora", salt=b"\x00s").id.hex()
        == "9a9a3f6226c7613da1eb4996d060d3f5"
    )


def test_keys_in_another_order_and_alias_names_give_the_same_namespace_b6() -> None:
    reordered = dict(reversed(list(BASE.items())))
    assert make_identity(**reordered).id == identity().id  # type: ignore[arg-type]
    for alias in ("bf16", "BF16", "torch.bfloat16", " bfloat16 "):
        assert identity(dtype=alias).id == identity().id
    halves = {identity(dtype=it).id for it in ("fp16", "half", "float16", "f16", np.float16)}
    assert len(halves | {identity(dtype=np.dtype("float16")).id}) == 1
    eights = {
        identity(dtype=it).id for it in ("fp8", "fp8_e4m3", "float8_e4m3fn", "torch.float8_e4m3fn")
    }
    assert len(eights) == 1
    assert identity(block_bytes=np.int64(917504), group=np.uint8(0)).id == identity().id
    assert identity(parts=(917504,)).id == identity().id
    assert identity(parts=np.array([500000, 417504])).id == identity(parts=[500000, 417504]).id


DIFFERENCES = [
    {"model": "Qwen/Qwen2.5-7b"},
    {"model": "Qwen/Qwen2.5-7B "},
    {"block_bytes": 917505},
    {"block_tokens": 32},
    {"fingerprint": "a1b3"},
    {"fingerprint": None},
    {"fingerprint": ""},
    {"dtype": "float16"},
    {"dtype": "fp8_e5m2"},
    {"dtype": "fp8_e4m3"},
    {"layout": "HND"},
    {"layout": "NHD"},
    {"group": 1},
    {"parts": [500000, 417504]},
    {"parts": [417504, 500000]},
    {"parts": [917504, 0]},
    {"tp_size": 2},
    {"tp_size": 2, "rank": 1},
    {"replicated": True},
    {"adapter": "lora-a"},
    {"adapter": "lora-b"},
    {"adapter": ""},
    {"salt": "A"},
    {"salt": "B"},
    {"salt": ""},
    {"salt": b"A"},
    {"adapter": "A"},
]


def test_any_difference_that_remains_keeps_data_apart_b3_b5() -> None:
    ids = [identity().id] + [identity(**changes).id for changes in DIFFERENCES]
    assert len(set(ids)) == len(DIFFERENCES) + 1


def test_replicated_ranks_share_and_others_do_not_a8() -> None:
    ranks = [{"tp_size": 2, "rank": 0}, {"tp_size": 2, "rank": 1}, {"tp_size": 4, "rank": 1}]
    assert len({identity(**it).id for it in ranks}) == 3
    assert len({identity(**it, replicated=True).id for it in ranks}) == 1
    assert "rank" not in identity(replicated=True).describe()


HOSTILE_NAMES = [
    "../../etc/passwd",
    "/",
    ".",
    "..",
    "a\0b",
    "a\nb",
    "a\r\nb",
    "a\u2028b",
    "\ud800",
    "\udcff",
    "🦙" * 1000,
    "x" * 4096,
    '"},"model":"other',
    '","parts":[1],"x":"',
    "\\",
    "%s%n{}",
    "-rf",
    " ",
]


def test_hostile_names_are_harmless_and_distinct() -> None:
    identities = [identity(model=name) for name in HOSTILE_NAMES]
    assert len({it.id for it in identities}) == len(HOSTILE_NAMES)
    for name, it in zip(HOSTILE_NAMES, identities, strict=True):
        assert it.text.isascii()
        assert it.text.isprintable()
        assert it.describe()["model"] == name
        assert json.loads(it.text) == it.describe()
        assert it.text.count('"parts":[') == 1


@pytest.mark.parametrize("name", ["model", "layout", "adapter", "salt", "fingerprint", "dtype"])
def test_a_name_of_ten_megabytes_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}: 10000000 characters") as caught:
        identity(**{name: "x" * 10_000_000})
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("changes", "part_of_message"),
    [
        ({"block_bytes": 0}, "block_bytes: 0"),
        ({"block_bytes": -1}, "block_bytes: -1"),
        ({"block_bytes": 1 << 60}, "block_bytes"),
        ({"block_bytes": 4096.0}, "float"),
        ({"block_bytes": True}, "bool"),
        ({"block_bytes": "1MiB"}, "block_bytes"),
        ({"block_tokens": 0}, "block_tokens: 0"),
        ({"tp_size": 0}, "tp_size: 0"),
        ({"rank": 1}, "rank: 1 is not below tp_size 1"),
        ({"rank": -1}, "rank: -1"),
        ({"group": -1}, "group: -1"),
        ({"parts": []}, "parts"),
        ({"parts": [1, 2]}, "add up to 3 bytes, block_bytes is 917504"),
        ({"parts": [-1, 917505]}, r"parts\[0\]"),
        ({"parts": [917504.0]}, r"parts\[0\]"),
        ({"parts": "12"}, "parts"),
        ({"parts": 917504}, "parts"),
        ({"replicated": 1}, "replicated"),
        ({"model": ""}, "model: empty"),
        ({"model": None}, "model"),
        ({"model": 7}, "model"),
        ({"salt": 7}, "salt"),
        ({"adapter": ["a"]}, "adapter"),
        ({"dtype": None}, "dtype"),
        ({"dtype": "auto"}, "dtype"),
        ({"layout": None}, "layout"),
    ],
)
def test_a_bad_field_is_refused_by_name(changes: dict[str, object], part_of_message: str) -> None:
    with pytest.raises(ConfigError, match=part_of_message):
        identity(**changes)


def test_parts_of_no_bytes_are_allowed() -> None:
    assert identity(parts=[0, 917504, 0]).part_bytes == (0, 917504, 0)


def test_the_description_is_a_copy() -> None:
    it = identity()
    it.describe()["model"] = "other"
    assert it.describe()["model"] == BASE["model"]
