"""Holder: somebody whose lease or job keeps blocks from eviction. Frozen values; thread-safe."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """One lease or job of a store, as BlockStore.holders() and Monitor tell it."""

    kind: str
    """lease, put, get, save, load or prefetch."""
    owner: str
    """What was given as `owner` to lease(), at most 64 bytes; "" when nothing was."""
    holder_id: int
    num_blocks: int
    num_bytes: int
    """Of a job: of all its blocks, those that are done included."""
    age_s: float
    expires_in_s: float | None
    """None: it ends when the job does."""


def make_holder(
    kind: str,
    owner: str,
    holder_id: int,
    num_blocks: int,
    num_bytes: int,
    since_s: float,
    until_s: float,
    *,
    now_s: float,
) -> Holder:
    """Returns a Holder from times of the monotonic clock, in the order in which the core tells."""
    return Holder(
        kind=kind,
        owner=owner,
        holder_id=holder_id,
        num_blocks=num_blocks,
        num_bytes=num_bytes,
        age_s=max(0.0, now_s - since_s),
        expires_in_s=max(0.0, until_s - now_s) if kind == "lease" else None,
    )
