"""Turns what an engine calls a stream into the number that its driver knows it by. Thread-safe."""

import sys
from typing import Any, Final, Protocol, cast

from kvtier.data_buffers import as_torch_tensor
from kvtier.errors import UsageError
from kvtier.paged_tensors import PagedTensors
from kvtier.units import parse_whole_number, show

LEGACY_DEFAULT_STREAM: Final = 0
_STREAM_MAX: Final = (1 << 64) - 1


class _TorchCuda(Protocol):
    def current_stream(self, device: str) -> object: ...


class _CupyCuda(Protocol):
    def get_current_stream(self) -> object: ...


def stream_id_of(stream: object, tensors: PagedTensors) -> int:
    """Returns the stream's number.

    stream: an int, an object with `cuda_stream` (torch), `ptr` (CuPy) or `__cuda_stream__`; None
            is the stream that the tensors' library works on in this thread now, else the legacy
            default stream. A default stream would not wait for what torch runs on another.
    Raises UsageError (not a stream, or one for tensors in CPU memory).
    """
    if tensors.is_on_host:
        if stream is None:
            return LEGACY_DEFAULT_STREAM
        raise UsageError(
            f"stream: got {show(stream)}, but the tensors lie in CPU memory, which has no streams; "
            "leave it out, and call when the bytes are written"
        )
    return _current_stream_id(tensors) if stream is None else parse_stream(stream)


def parse_stream(stream: object) -> int:
    """Returns the number of a stream that is named. Raises UsageError."""
    # By name, not by protocol: that would cost ten microseconds for each transfer.
    named: Any = stream
    number: object = stream
    if hasattr(named, "__cuda_stream__"):
        number = named.__cuda_stream__()[1]
    elif hasattr(named, "cuda_stream"):
        number = named.cuda_stream
    elif hasattr(named, "ptr"):
        number = named.ptr
    if isinstance(number, bool) or not hasattr(number, "__index__"):
        raise UsageError(
            "stream: expected None, an int or an object with cuda_stream, ptr or __cuda_stream__, "
            f"got {show(stream)} ({type(stream).__name__})"
        )
    stream_id = parse_whole_number(number, "stream")
    if not 0 <= stream_id <= _STREAM_MAX:
        raise UsageError(f"stream: {stream_id} is no stream; expected 0 to {_STREAM_MAX}")
    return stream_id


def _current_stream_id(tensors: PagedTensors) -> int:
    keeper = tensors.tensors[0].keeper
    if as_torch_tensor(keeper) is not None:
        torch_cuda = cast("_TorchCuda", sys.modules["torch"].cuda)
        return parse_stream(torch_cuda.current_stream(tensors.device))
    if type(keeper).__module__.split(".")[0] == "cupy":
        cupy_cuda = cast("_CupyCuda", sys.modules["cupy"].cuda)
        return parse_stream(cupy_cuda.get_current_stream())
    return LEGACY_DEFAULT_STREAM
