"""Streams of engines as numbers. Objects that answer as they do stand in for the libraries."""

import sys
import types

import numpy as np
import pytest

from kvtier.engine_streams import stream_id_of
from kvtier.errors import UsageError
from kvtier.paged_tensors import PagedTensors, read_tensors


class Stream:
    def __init__(self, **fields: object) -> None:
        self.__dict__.update(fields)


class StreamOfProtocol:
    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, 77)


def on_gpu(keeper: object = None) -> PagedTensors:
    (raw,) = read_tensors((4096, 64, "cuda:1")).tensors
    fields = {name: getattr(raw, name) for name in raw.__slots__}
    return PagedTensors(tensors=(type(raw)(**{**fields, "keeper": keeper}),), device="cuda:1")


@pytest.mark.parametrize(
    ("stream", "stream_id"),
    [
        (0, 0),
        (1, 1),
        (np.uint64((1 << 64) - 1), (1 << 64) - 1),
        (Stream(cuda_stream=42), 42),
        (Stream(ptr=43), 43),
        (StreamOfProtocol(), 77),
        (None, 0),
    ],
)
def test_every_form_gives_its_number(stream: object, stream_id: int) -> None:
    assert stream_id_of(stream, on_gpu()) == stream_id


@pytest.mark.parametrize("stream", [True, "0", 1.0, -1, 1 << 64, Stream(), Stream(ptr=None), [0]])
def test_what_is_no_stream_is_refused(stream: object) -> None:
    with pytest.raises(UsageError, match="stream: "):
        stream_id_of(stream, on_gpu())


def test_none_is_the_stream_that_the_library_works_on_now(monkeypatch: pytest.MonkeyPatch) -> None:
    class Tensor:
        device, layout = None, None
        data_ptr = numel = element_size = is_contiguous = is_conj = is_neg = lambda self: 0

    asked: list[str] = []

    def current_stream(device: str) -> Stream:
        asked.append(device)
        return Stream(cuda_stream=91)

    cuda = types.SimpleNamespace(current_stream=current_stream)
    fake = types.SimpleNamespace(Tensor=Tensor, cuda=cuda)
    monkeypatch.setitem(sys.modules, "torch", fake)  # type: ignore[arg-type]
    assert stream_id_of(None, on_gpu(Tensor())) == 91
    assert asked == ["cuda:1"]
    assert stream_id_of(7, on_gpu(Tensor())) == 7
    cupy = types.SimpleNamespace(get_current_stream=lambda: Stream(ptr=92))
    monkeypatch.setitem(sys.modules, "cupy", types.SimpleNamespace(cuda=cupy))  # type: ignore[arg-type]
    array = type("ndarray", (), {"__module__": "cupy._core.core"})()
    assert stream_id_of(None, on_gpu(array)) == 92


def test_memory_of_the_cpu_has_no_streams() -> None:
    host = read_tensors(np.zeros(4))
    assert stream_id_of(None, host) == 0
    for stream in (0, 5, Stream(cuda_stream=0)):
        with pytest.raises(UsageError, match=r"CPU memory.*leave it out"):
            stream_id_of(stream, host)
