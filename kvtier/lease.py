"""Lease: blocks that stay where a lookup found them, until release or expiry. Thread-safe."""

from dataclasses import dataclass, field
from types import TracebackType

from kvtier import _core
from kvtier.results import U8, Mask


@dataclass(frozen=True, slots=True, eq=False)
class Lease:
    """Protects a looked-up prefix. As a context manager it releases at the end."""

    num_blocks: int
    """Length of the unbroken prefix, or with prefix=False all that are there."""
    tiers: U8
    """uint8[n]: the tier whose copy stays."""
    _core_store: _core.Store = field(repr=False)
    _lease_id: int = field(repr=False)

    @property
    def mask(self) -> Mask:
        """Returns bool[n]: the blocks that are leased."""
        mask: Mask = self.tiers != 0
        return mask

    def release(self) -> bool:
        """Ends the protection. False the second time, after expiry and when nothing was leased."""
        return self._core_store.release(self._lease_id)

    @property
    def expires_in_s(self) -> float:
        """Returns seconds until it ends by itself; 0.0 when it is over."""
        return self._core_store.lease_expires_in_s(self._lease_id)

    def __enter__(self) -> "Lease":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Closing the store ended all leases.
        if not self._core_store.is_closed():
            self.release()
