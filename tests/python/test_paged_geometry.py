"""Geometry of paged engines: fragments as given, and as found in tensors of every usual shape. Each
found geometry is proved by gathering blocks through it.
"""

import dataclasses

import numpy as np
import numpy.typing as npt
import pytest

import kvtier
from kvtier.errors import ConfigError, UsageError
from kvtier.paged_geometry import FRAGMENTS_MAX, PagedGeometry
from kvtier.paged_tensors import read_tensors

U8 = npt.NDArray[np.uint8]


def payload(*shape: int, dtype: str = "uint16") -> npt.NDArray[np.generic]:
    """Items that tell where they are."""
    items = np.arange(np.prod(shape), dtype=np.uint64) * 40503 + 77
    return items.astype(dtype).reshape(shape)


def gather(tensors: object, geometry: PagedGeometry, block_id: int) -> bytes:
    """Reads a block by address, as the core would."""
    import ctypes

    memory = read_tensors(tensors).tensors
    found = b""
    for tensor_index, offset_bytes, stride_bytes, fragment_bytes in geometry.fragments:
        begin_bytes = offset_bytes + block_id * stride_bytes
        assert begin_bytes + fragment_bytes <= memory[tensor_index].length_bytes
        found += ctypes.string_at(memory[tensor_index].address + begin_bytes, fragment_bytes)
    return found


def sizes(geometry: PagedGeometry) -> list[int]:
    return [fragment.fragment_bytes for fragment in geometry.fragments]


def test_given_fragments_are_kept_in_their_order() -> None:
    geometry = kvtier.PagedGeometry(fragments=[(1, 64, 128, 32), (0, 0, 128, 96)])  # type: ignore[arg-type]
    assert geometry.fragments == ((1, 64, 128, 32), (0, 0, 128, 96))
    assert (geometry.block_bytes, geometry.num_fragments, geometry.num_tensors) == (128, 2, 2)
    same = PagedGeometry(fragments=np.array([[1, 64, 128, 32], [0, 0, 128, 96]]))  # type: ignore[arg-type]
    assert same == geometry
    assert hash(same) == hash(geometry)
    assert len({geometry, PagedGeometry(fragments=((1, 64, 128, 32),))}) == 2  # type: ignore[arg-type]
    with pytest.raises(dataclasses.FrozenInstanceError):
        geometry.layout = "x"  # type: ignore[misc]
    with pytest.raises(TypeError):
        PagedGeometry([(0, 0, 1, 1)])  # type: ignore[misc]


@pytest.mark.parametrize(
    ("fragments", "part_of_message"),
    [
        ([], "at least one"),
        (None, "at least one"),
        ("abcd", "at least one"),
        (5, "at least one"),
        ([(0, 0, 64)], r"fragments\[0\]: expected \(tensor_index, .* got \(0, 0, 64\)"),
        ([(0, 0, 64, 64), 7], r"fragments\[1\]: expected"),
        ([(0, 0, 64, "64")], r"fragments\[0\]: fragment_bytes: .* '64'"),
        ([(0, 0, 64, 1.0)], r"fragments\[0\]: fragment_bytes"),
        ([(True, 0, 64, 64)], r"fragments\[0\]: tensor_index"),
        ([(-1, 0, 64, 64)], r"tensor_index: -1 is not within 0"),
        ([(0, -8, 64, 64)], r"offset_bytes: -8 is not within 0"),
        ([(0, 1 << 63, 64, 64)], r"offset_bytes: 9223372036854775808"),
        ([(0, 0, 64, 0)], r"fragment_bytes: 0 bytes; leave"),
        ([(0, 0, 63, 64)], r"stride_bytes 63 is less than fragment_bytes 64, so blocks would"),
        ([(0, 0, 64, 64)] * (FRAGMENTS_MAX + 1), r"4097 in a block, at most 4096"),
        ([(0, 0, 1 << 28, 1 << 28), (1, 0, 1, 1)], r"268435457 bytes a block, at most 268435456"),
    ],
)
def test_fragments_that_cannot_be_are_refused(fragments: object, part_of_message: str) -> None:
    with pytest.raises(ConfigError, match=part_of_message):
        PagedGeometry(fragments=fragments)  # type: ignore[arg-type]


def test_one_block_may_have_no_stride_and_limits_are_reached() -> None:
    assert PagedGeometry(fragments=[(0, 0, 0, 64)]).block_bytes == 64  # type: ignore[arg-type]
    assert PagedGeometry(fragments=[(0, 0, 1 << 28, 1 << 28)]).block_bytes == 256 << 20  # type: ignore[arg-type]
    assert PagedGeometry(fragments=[(0, 0, 1, 1)] * FRAGMENTS_MAX).num_fragments == 4096  # type: ignore[arg-type]


def test_a_tensor_a_layer_gives_a_fragment_a_layer() -> None:
    layers = [payload(5, 16, 2, 8) + np.uint16(layer) for layer in range(3)]
    geometry = PagedGeometry.from_tensors(layers)
    assert geometry.fragments == tuple((layer, 0, 512, 512) for layer in range(3))
    for block_id in range(5):
        want = b"".join(layer[block_id].tobytes() for layer in layers)
        assert gather(layers, geometry, block_id) == want


def test_keys_and_values_apart_give_a_fragment_each() -> None:
    layers = [payload(2, 5, 16, 2, 8) + np.uint16(layer) for layer in range(3)]
    geometry = PagedGeometry.from_tensors(layers, block_dim=1)
    assert geometry.fragments[:3] == ((0, 0, 512, 512), (0, 2560, 512, 512), (1, 0, 512, 512))
    for block_id in range(5):
        want = b"".join(layer[side, block_id].tobytes() for layer in layers for side in range(2))
        assert gather(layers, geometry, block_id) == want


def test_one_tensor_across_layers() -> None:
    tensor = payload(5, 3, 2, 16, 8)
    geometry = PagedGeometry.from_tensors(tensor)
    assert geometry.fragments == ((0, 0, 1536, 1536),)
    apart = payload(3, 2, 5, 16, 8)
    geometry = PagedGeometry.from_tensors([apart], block_dim=-3)
    assert sizes(geometry) == [256] * 6
    for block_id in range(5):
        assert gather(apart, geometry, block_id) == apart[:, :, block_id].tobytes()


def test_heads_before_tokens_in_memory_stay_one_fragment_of_another_layout() -> None:
    memory = payload(5, 2, 16, 8)  # [blocks, heads, tokens, dims] in memory.
    seen = memory.transpose(0, 2, 1, 3)  # As the engine sees it.
    geometry = PagedGeometry.from_tensors([seen])
    assert geometry.fragments == ((0, 0, 512, 512),)
    assert gather(seen, geometry, 3) == memory[3].tobytes()
    tokens_first = PagedGeometry.from_tensors([payload(5, 16, 2, 8)])
    assert tokens_first.fragments == geometry.fragments
    assert tokens_first.layout != geometry.layout
    assert tokens_first != geometry


def test_blocks_with_gaps_are_cut_into_their_longest_stretches() -> None:
    padded = payload(5, 16, 2, 12)[:, :, :, :8]
    geometry = PagedGeometry.from_tensors([padded])
    assert sizes(geometry) == [16] * 32
    assert gather(padded, geometry, 4) == padded[4].tobytes()
    packed = payload(5, 16, 32)[:, :, :8]  # Keys of a tensor that packs them with values.
    assert sizes(PagedGeometry.from_tensors([packed])) == [16] * 16
    # Steps of 60 after a last run that ends at 60: neighbours, though no dimension says so.
    touching = np.lib.stride_tricks.as_strided(
        payload(200, dtype="uint8"), shape=(1, 2, 2, 10), strides=(0, 60, 50, 1)
    )
    geometry = PagedGeometry.from_tensors([touching])
    assert sizes(geometry) == [10, 20, 10]
    assert gather(touching, geometry, 0) == touching[0].tobytes()


def test_latent_attention_and_layers_of_unequal_size() -> None:
    layers = [payload(7, 16, 72), payload(7, 16, 1, 40), payload(7, 16, 72)]
    geometry = PagedGeometry.from_tensors(layers)
    assert sizes(geometry) == [2304, 1280, 2304]
    assert geometry.block_bytes == 5888
    assert gather(layers, geometry, 6) == b"".join(layer[6].tobytes() for layer in layers)


def test_blocks_innermost_or_alone() -> None:
    inner = payload(2, 3, 5, dtype="uint64")
    geometry = PagedGeometry.from_tensors([inner], block_dim=2)
    assert sizes(geometry) == [8] * 6
    assert gather(inner, geometry, 4) == inner[:, :, 4].tobytes()
    alone = PagedGeometry.from_tensors([payload(2, 1, 16)], block_dim=1)
    assert alone.fragments == ((0, 0, 0, 64),)
    assert alone.layout == PagedGeometry.from_tensors([payload(2, 9, 16)], block_dim=1).layout


def test_the_layout_tells_orders_and_sizes_apart_and_nothing_else() -> None:
    def layout(*shape: int, block_dim: int = 0, num_layers: int = 2, dtype: str = "uint16") -> str:
        layers = [payload(*shape, dtype=dtype) for _ in range(num_layers)]
        return PagedGeometry.from_tensors(layers, block_dim=block_dim).layout

    one = layout(5, 2, 16, 8)
    assert one == "tensors 2*[2,16,8]x2"
    # The same bytes in the same order, wherever the engine keeps them.
    assert layout(9, 2, 16, 8) == layout(2, 9, 16, 8, block_dim=1) == layout(5, 2, 1, 16, 8) == one
    others = [
        layout(5, 16, 2, 8), layout(5, 2, 16, 8, num_layers=3), layout(5, 2, 8, 8),
        layout(5, 2, 16, 8, dtype="uint8"), layout(5, 2, 16, 4, dtype="uint32"),
    ]  # fmt: skip
    assert len({one, *others}) == 6
    assert PagedGeometry(fragments=[(0, 0, 64, 64), (1, 0, 64, 64)]).layout == "fragments 2*64"  # type: ignore[arg-type]
    assert PagedGeometry(fragments=[(0, 0, 64, 64)], layout="mine").layout == "mine"  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="layout: expected text, got 5"):
        PagedGeometry(fragments=[(0, 0, 64, 64)], layout=5)  # type: ignore[arg-type]


def test_a_layout_of_many_sizes_stays_short_and_exact() -> None:
    def mixed(last: int) -> str:
        shapes = [(2, 3 + layer) for layer in range(99)] + [(2, last)]
        return PagedGeometry.from_tensors([payload(*shape) for shape in shapes]).layout

    assert mixed(7).startswith("tensors sha256:")
    assert len(mixed(7)) < 100
    assert mixed(7) == mixed(7)
    assert mixed(7) != mixed(8)


@pytest.mark.parametrize(
    ("tensors", "block_dim", "part_of_message"),
    [
        ([payload(5, 8)], 2, r"tensors\[0\]: there is no dimension 2 in shape \(5, 8\)"),
        ([payload(5, 8)], -3, "no dimension -3"),
        ([payload(5, 8)], "0", "block_dim: expected a whole number, got '0'"),
        ([payload(5, 8)], True, "block_dim"),
        ([payload(5, 8), payload(6, 8)], 0, r"tensors\[1\]: has 6 blocks .* tensors\[0\] has 5"),
        ([payload(3, 4097, 2)[:, :, :1]], 0, r"4097 pieces of 2 bytes .* more than 4096"),
        ([(4096, 640, "cpu")], 0, r"tensors\[0\]: raw memory has no shape.*fragments"),
    ],
)
def test_tensors_that_are_no_blocks_are_refused(
    tensors: object, block_dim: int, part_of_message: str
) -> None:
    with pytest.raises(ConfigError, match=part_of_message):
        PagedGeometry.from_tensors(tensors, block_dim)


def test_as_many_pieces_as_there_may_be() -> None:
    assert PagedGeometry.from_tensors(payload(4096, 3), block_dim=1).num_fragments == FRAGMENTS_MAX
    # What one tensor takes is missing for the next.
    with pytest.raises(ConfigError, match=r"tensors\[1\]: each block lies in 2 pieces"):
        PagedGeometry.from_tensors([payload(4096, 3), payload(2, 3)], block_dim=1)


def test_items_that_share_memory_are_refused() -> None:
    expanded = np.lib.stride_tricks.as_strided(payload(64), shape=(4, 3, 8), strides=(16, 0, 2))
    with pytest.raises(ConfigError, match=r"dimension 1 steps 0 bytes into"):
        PagedGeometry.from_tensors([expanded])
    sliding = np.lib.stride_tricks.as_strided(payload(64), shape=(4, 8), strides=(8, 2))
    with pytest.raises(ConfigError, match=r"dimension 0 steps 8 bytes into 16 bytes"):
        PagedGeometry.from_tensors([sliding])


def test_what_is_no_tensor_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match=r"tensors\[1\]: got list"):
        PagedGeometry.from_tensors([payload(5, 8), [1]])


def test_tensors_of_torch_give_what_arrays_give() -> None:
    torch = pytest.importorskip("torch")
    layers = [torch.zeros(2, 5, 16, 2, 8, dtype=torch.bfloat16) for _ in range(3)]
    arrays = [payload(2, 5, 16, 2, 8) for _ in range(3)]
    found = PagedGeometry.from_tensors(layers, block_dim=1)
    assert found == PagedGeometry.from_tensors(arrays, block_dim=1)
    permuted = torch.zeros(5, 2, 16, 8, dtype=torch.float8_e4m3fn).permute(0, 2, 1, 3)
    assert PagedGeometry.from_tensors(permuted).fragments == ((0, 0, 256, 256),)
