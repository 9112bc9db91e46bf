"""What the scheduler's process and the workers' processes tell each other, by vLLM's own channel.

Plain values that are pickled with vLLM's messages of each step.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorHandshakeMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
    OffloadingConnectorMetadata,
    OffloadingWorkerMetadata,
)

from kvtier.adapters.vllm.rank_setup import RankSetup, RankShape
from kvtier.block_plan import BlockPlan, PlanResult


@dataclass(frozen=True, slots=True)
class RankHandshake(KVConnectorHandshakeMetadata):
    """Told by each rank once, when the engine's tensors are there."""

    shape: RankShape


@dataclass
class RankMetadata(OffloadingConnectorMetadata):
    """A step's transfers, and the plans that there are for them by now."""

    setup: RankSetup | None = None
    """None: there is no store."""
    generation: int = 0
    """Counts resets: what was planned before the last one is not carried out."""
    plans: tuple[tuple[int, BlockPlan], ...] = ()
    """(job id, plan): more may follow in later steps."""
    exhausted: tuple[int, ...] = ()
    """Jobs of which no more plans will come."""

    @classmethod
    def extend(cls, metadata: OffloadingConnectorMetadata, **more: Any) -> "RankMetadata":
        """Returns vLLM's own metadata with ours."""
        names = [it.name for it in dataclasses.fields(metadata)]
        return cls(**{name: getattr(metadata, name) for name in names}, **more)


@dataclass
class RankReport(OffloadingWorkerMetadata):
    """What a rank has done since its last report."""

    answers: list[PlanResult] = field(default_factory=list)
    failed_requests: set[str] = field(default_factory=set)
    """Requests some of whose blocks were not loaded."""
    shapes: list[RankShape] = field(default_factory=list)
    """Of ranks whose handshake the scheduler's process did not get."""

    @classmethod
    def extend(cls, report: OffloadingWorkerMetadata | None, **more: Any) -> "RankReport":
        """Returns vLLM's own report, or an empty one, with ours."""
        names = [] if report is None else [it.name for it in dataclasses.fields(report)]
        return cls(**{name: getattr(report, name) for name in names}, **more)

    def aggregate(self, other: Any) -> "RankReport":
        merged = super().aggregate(other)
        return RankReport.extend(
            merged,
            answers=self.answers + getattr(other, "answers", []),
            failed_requests=self.failed_requests | getattr(other, "failed_requests", set()),
            shapes=self.shapes + getattr(other, "shapes", []),
        )
