"""Real arrays of a GPU: read as memory, and moved by the transfer engine after their own streams.
Each library's tests skip where it is missing.
"""

from __future__ import annotations

import types

import numpy as np
import pytest

from kvtier import _core
from kvtier.engine_streams import stream_id_of
from kvtier.errors import UnsupportedError, UsageError
from kvtier.paged_geometry import PagedGeometry
from kvtier.paged_tensors import PagedTensor, read_tensors

pytestmark = pytest.mark.gpu
NO_SUMS = np.zeros(0, dtype=np.uint64)


def gpu_or_skip() -> _core.TransferDevice:
    try:
        return _core.TransferDevice.cuda(0)
    except UnsupportedError as error:
        pytest.skip(f"no GPU: {error}")


def only(tensors: object) -> PagedTensor:
    (tensor,) = read_tensors(tensors).tensors
    return tensor


def test_torch_tensors_and_their_streams() -> None:
    gpu_or_skip()
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(5, 2, 16, 8, dtype=torch.bfloat16, device="cuda").permute(0, 2, 1, 3)
    read = only([tensor])
    assert (read.address, read.length_bytes) == (tensor.data_ptr(), 2560)
    assert (read.device, read.strides_bytes) == ("cuda:0", (512, 16, 256, 2))
    # Known by DLPack alone, it is the same memory.
    exported = types.SimpleNamespace(
        __dlpack__=tensor.__dlpack__, __dlpack_device__=tensor.__dlpack_device__
    )
    again = only([exported])
    assert (again.address, again.strides_bytes) == (read.address, read.strides_bytes)
    assert again.device == "cuda:0"
    stream = torch.cuda.Stream()
    assert stream_id_of(stream, read_tensors(tensor)) == stream.cuda_stream
    assert stream_id_of(None, read_tensors(tensor)) == torch.cuda.current_stream().cuda_stream
    with torch.cuda.stream(stream):
        assert stream_id_of(None, read_tensors(tensor)) == stream.cuda_stream


def test_cupy_arrays_and_their_streams() -> None:
    gpu_or_skip()
    cupy = pytest.importorskip("cupy")
    array = cupy.arange(480, dtype=cupy.float16).reshape(5, 4, 24)[:, ::2]
    read = only([array])
    assert (read.address, read.device) == (array.data.ptr, "cuda:0")
    assert (read.shape, read.strides_bytes) == ((5, 2, 24), array.strides)
    stream = cupy.cuda.Stream(non_blocking=True)
    assert stream_id_of(stream, read_tensors(array)) == stream.ptr
    with stream:
        assert stream_id_of(None, read_tensors(array)) == stream.ptr


def test_jax_arrays_are_read_only() -> None:
    gpu_or_skip()
    jax = pytest.importorskip("jax")
    array = jax.device_put(np.arange(60, dtype=np.float32).reshape(5, 12), jax.devices("gpu")[0])
    # They never change, and say so; whoever may write to them all the same says where they lie.
    with pytest.raises(UsageError, match=r"read-only.*\(pointer, num_bytes, device\)"):
        read_tensors([array])
    read = only([(array.unsafe_buffer_pointer(), array.nbytes, "cuda:0")])
    assert (read.address, read.length_bytes) == (array.unsafe_buffer_pointer(), 240)


def test_blocks_of_torch_tensors_are_moved_after_their_own_stream() -> None:
    device = gpu_or_skip()
    torch = pytest.importorskip("torch")
    engine = _core.TransferEngine(device, {"is_calibrated": False})
    shape = (2, 64, 16, 8, 128)
    layers = [torch.zeros(shape, dtype=torch.bfloat16, device="cuda") for _ in range(4)]
    geometry = PagedGeometry.from_tensors(layers, block_dim=1)
    tensors = read_tensors(layers)
    attachment_id = engine.attach(
        tensors.places(), list(geometry.fragments), [geometry.block_bytes]
    )
    block_ids = np.array([63, 5, 0, 17], dtype=np.int64)
    slots = np.zeros((4, geometry.block_bytes), dtype=np.uint8)
    addresses = np.array([row.ctypes.data for row in slots], dtype=np.uint64)

    def run(direction: str, stream_id: int) -> None:
        job_id = engine.submit(
            direction, attachment_id, block_ids, addresses, stream_id, "auto", None, NO_SUMS
        )
        assert engine.wait(job_id, 30.0)
        assert engine.take(job_id)["error"] is None

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)  # A tenth of a second in which nothing is written yet.
        for number, layer in enumerate(layers):
            words = torch.arange(layer.numel(), device="cuda", dtype=torch.int32) * 31 + number
            layer.view(torch.int16).copy_(words.view(shape).to(torch.int16))
        run("save", stream_id_of(None, tensors))
    saved = [
        torch.cat([layer[side, block_id].view(torch.uint8).flatten()
                   for layer in layers for side in range(2)])
        for block_id in block_ids.tolist()
    ]  # fmt: skip
    assert all((want.cpu().numpy() == row).all() for want, row in zip(saved, slots, strict=True))
    before = [layer.clone().view(torch.int16) for layer in layers]
    for layer in layers:
        layer[:, torch.from_numpy(block_ids).cuda()] = 0
    run("load", stream_id_of(None, tensors))
    # As words: some of them are no numbers, which equal nothing.
    after = [layer.view(torch.int16) for layer in layers]
    assert all(torch.equal(layer, was) for layer, was in zip(after, before, strict=True))
    assert engine.close(10.0)
