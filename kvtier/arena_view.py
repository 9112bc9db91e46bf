"""ArenaHandle and ArenaView: a store's host memory in another process. Thread-safe."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType

from kvtier import _core, open_stores
from kvtier.call_arguments import check_seconds
from kvtier.errors import UsageError
from kvtier.units import show

CLOSE_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaHandle:
    """Where the arenas of an open store are to be had; can be pickled. From arena_handle().

    Who knows it and is of the same user can map the store's host memory: keep it among the store's
    own processes. It is good while the store is open.
    """

    places: tuple[tuple[bytes, int, int, int, bytes], ...]
    """One an arena: (arena_id, num_bytes, process_id, fd, socket_number)."""
    generation: int
    """How often a rank had been abandoned when the handle was made."""

    def __repr__(self) -> str:
        # Without the ids: they are what lets a process in.
        sizes = ", ".join(str(place[1]) for place in self.places)
        return f"ArenaHandle(num_bytes=({sizes}), generation={self.generation})"


class ArenaView:
    """A store's host memory, mapped by a process that moves blocks for it.

    A context manager; closes itself at exit. The memory stays mapped, and so taken, until then,
    also when the store has closed.
    """

    def __init__(self, core_view: _core.ArenaView, handle: ArenaHandle) -> None:
        if not isinstance(core_view, _core.ArenaView):
            raise UsageError("views are made by ArenaView.open(handle)")
        self._core_view = core_view
        self._handle = handle
        open_stores.register(self)

    @classmethod
    def open(cls, handle: ArenaHandle) -> ArenaView:
        """Maps the memory of an open store: by its socket, else by its entry in /proc.

        A process that takes the place of one that died needs a handle that was made after
        abandon_rank(): it then refuses the plans that were on their way to the other.
        Raises UsageError (no handle, or one of a store that was opened anew), TierIOError (neither
        way is open: the store is closed, another user's, or in other namespaces of the system).
        """
        if not isinstance(handle, ArenaHandle):
            raise UsageError(
                f"handle: expected what BlockStore.arena_handle() returns, got {show(handle)}"
            )
        return cls(_core.ArenaView(list(handle.places)), handle)

    @property
    def num_bytes(self) -> int:
        """Returns how much memory is mapped."""
        return self._core_view.num_bytes()

    @property
    def generation(self) -> int:
        """Returns the generation of the handle: older plans are refused."""
        return self._handle.generation

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Cancels what its workers still move, waits for that, and lets the memory go.

        May be called again. Raises TimeoutError: something is still on a device, and what it uses
        is kept until the process ends.
        """
        seconds = check_seconds(timeout_s, "timeout_s")
        open_stores.unregister(self)
        self._core_view.close(seconds)

    def __enter__(self) -> ArenaView:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"ArenaView({self._handle}, is_closed={self._core_view.is_closed()})"

    def _abandon_after_fork(self) -> None:
        self._core_view.abandon_after_fork()
