"""The stores that are open in this process: closed at exit, given up in a forked child.

Thread-safe: single dictionary operations only, so that a fork at any instant leaves it usable.
"""

import atexit
import os
import time
import weakref
from typing import Final, Protocol

EXIT_CLOSE_S: Final = 1.5


class OpenStore(Protocol):
    """What the registry asks of a store."""

    def close(self, timeout_s: float = ...) -> None: ...
    def _abandon_after_fork(self) -> None: ...


_open_stores: Final[dict[int, "weakref.ref[OpenStore]"]] = {}


def register(store: OpenStore) -> None:
    """Closes `store` at exit, if it still lives."""
    store_id = id(store)
    _open_stores[store_id] = weakref.ref(store, lambda _: _open_stores.pop(store_id, None))


def unregister(store: OpenStore) -> None:
    """Forgets `store`."""
    _open_stores.pop(id(store), None)


def _close_all() -> None:
    """All stores share one deadline: an exit takes as long with ten of them as with one."""
    deadline_s = time.monotonic() + EXIT_CLOSE_S
    for reference in list(_open_stores.values()):
        store = reference()
        if store is None:
            continue
        try:
            store.close(max(0.0, deadline_s - time.monotonic()))
        except Exception as error:
            # Nobody is left to handle it, and the other stores still want to be closed.
            from kvtier.core_log import logger

            logger.warning("cannot close a store at exit: %s", error)


def _abandon_all() -> None:
    for reference in list(_open_stores.values()):
        store = reference()
        if store is not None:
            store._abandon_after_fork()
    _open_stores.clear()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_abandon_all)
