"""Workers in processes of their own: each moves its part, and a block is there when all have."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import vllm_engine
from group_setup import PREFIX_GROUP, WINDOW_GROUP
from half_setup import IDENTITY, hash_of
from rank_fleet import (
    END_S,
    NUM_DEVICE_BLOCKS,
    Fleet,
    as_entry,
    device_blocks,
    make_rank,
    make_tensor,
)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
    OffloadingConnectorMetadata,
)
from vllm.v1.kv_offload.base import GPULoadStoreSpec

import kvtier
from kvtier.adapters.vllm.connector_settings import parse_connector_settings
from kvtier.adapters.vllm.engine_store import EngineStore
from kvtier.adapters.vllm.kv_groups import KvGroup
from kvtier.adapters.vllm.rank_messages import RankReport
from kvtier.adapters.vllm.request_chain import RequestRules
from kvtier.adapters.vllm.transfer_specs import GroupSave, LoadSpec, SaveSpec
from kvtier.block_plan import PlanResult
from kvtier.paged_worker import PagedWorker, WorkerJob

torch: Any = vllm_engine.torch

PART_BYTES = (4096, 1096)


@pytest.fixture
def make_fleet() -> Iterator[Callable[..., Fleet]]:
    made: list[Fleet] = []
    engines: list[EngineStore] = []

    def make(part_bytes: tuple[int, ...] = PART_BYTES, **options: Any) -> Fleet:
        is_replicated = options.pop("is_replicated", False)
        has_handshake = options.pop("has_handshake", True)
        groups = options.pop("groups", (KvGroup(),))
        extra = {"kv_max_cpu_memory": "4MiB", **options}
        engine = EngineStore(
            parse_connector_settings(extra),
            identity=dict(IDENTITY),
            rules=RequestRules(),
            num_ranks=len(part_bytes),
            is_replicated=is_replicated,
            groups=groups,
        )
        engines.append(engine)
        made.append(Fleet(engine, part_bytes, has_handshake=has_handshake, num_groups=len(groups)))
        return made[-1]

    yield make
    for fleet in made:
        fleet.close()
    for engine in engines:
        engine.close()


@pytest.mark.parametrize(
    ("said", "used"), [({}, (8, True)), ({"transfer_ctas": 4, "gentle_saves": False}, (4, False))]
)
def test_ranks_hear_how_their_blocks_are_to_move(
    make_fleet: Callable[..., Fleet], said: dict[str, int], used: tuple[int, bool]
) -> None:
    setup = make_fleet(**said).engine.rank_setup
    assert setup is not None
    settings = setup.transfer_settings
    assert (settings.transfer_ctas, settings.gentle_saves) == used


def test_each_rank_gets_its_own_bytes_back_into_other_places(
    make_fleet: Callable[..., Fleet],
) -> None:
    fleet = make_fleet()
    before = [tensor.clone() for tensor in fleet.tensors]
    fleet.finish(fleet.save([3, 9, 4]))
    assert fleet.engine.namespace is not None
    assert fleet.engine.namespace.lookup(fleet.keys(3)).num_blocks == 3
    fleet.finish(fleet.load([20, 21, 22]))
    for tensor, old in zip(fleet.tensors, before, strict=True):
        assert torch.equal(tensor[[20, 21, 22]], old[[3, 9, 4]])
        rest = [it for it in range(NUM_DEVICE_BLOCKS) if it not in {20, 21, 22}]
        assert torch.equal(tensor[rest], old[rest])
    assert fleet.failed_block_ids == set()
    assert fleet.engine.failed_requests == set()


def test_a_block_is_not_there_until_the_last_rank_has_answered(
    make_fleet: Callable[..., Fleet],
) -> None:
    fleet = make_fleet()
    fleet.save([1, 2])
    namespace = fleet.engine.namespace
    assert namespace is not None
    for _ in range(50):
        fleet.step(ranks=[0])
    assert namespace.lookup(fleet.keys(2)).num_blocks == 0


def test_blocks_come_back_from_disk_after_a_restart(
    make_fleet: Callable[..., Fleet], disk_folder: Path
) -> None:
    sizes = {"disk_path": str(disk_folder), "disk_bytes": "64MiB", "staging_bytes": "1MiB"}
    first = make_fleet(kv_device="disk", kv_max_cpu_memory="1MiB", **sizes)
    before = [tensor.clone() for tensor in first.tensors]
    first.finish(first.save(list(range(12))))
    first.close()
    second = make_fleet(kv_device="disk", kv_max_cpu_memory="1MiB", **sizes)
    for tensor in second.tensors:
        tensor.zero_()
    second.finish(second.load(list(range(12, 24))))
    for tensor, old in zip(second.tensors, before, strict=True):
        assert torch.equal(tensor[12:24], old[:12])
    assert second.failed_block_ids == set()


def test_what_one_rank_cannot_load_is_named_and_the_request_loads_no_more(
    make_fleet: Callable[..., Fleet], monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = make_fleet()
    fleet.finish(fleet.save([3, 9, 4]))

    def refuse(*_: object) -> None:
        raise kvtier.UsageError("planted")

    monkeypatch.setattr(PagedWorker, "submit", refuse)
    fleet.finish(fleet.load([20, 21, 22], request_id="unlucky"))
    assert fleet.failed_block_ids == {20, 21, 22}
    assert fleet.engine.failed_requests == {"unlucky"}


def test_a_load_of_what_is_not_there_names_all_its_blocks(
    make_fleet: Callable[..., Fleet],
) -> None:
    fleet = make_fleet()
    before = [tensor.clone() for tensor in fleet.tensors]
    fleet.finish(fleet.load([5, 6], first=70))
    assert fleet.failed_block_ids == {5, 6}
    assert all(torch.equal(*pair) for pair in zip(fleet.tensors, before, strict=True))


def test_after_a_flush_no_plan_touches_the_blocks(make_fleet: Callable[..., Fleet]) -> None:
    fleet = make_fleet()
    fleet.finish(fleet.save([3, 9]))
    before = [tensor.clone() for tensor in fleet.tensors]
    worker = fleet.ranks[0]
    spec = LoadSpec((fleet.keys(2),), "r", 0)
    metadata = OffloadingConnectorMetadata(
        load_jobs={900: as_entry(spec, device_blocks([20, 21]))}, store_jobs={}, jobs_to_flush=None
    )
    sent = fleet.planner.plan(metadata)
    assert sent.plans
    plans, sent.plans = sent.plans, ()
    worker.receive(sent)
    worker.submit_load(900, spec, device_blocks([20, 21]))
    worker.wait({900})
    assert [it.job_id for it in worker.get_finished()] == [900]
    late = fleet.planner.plan(OffloadingConnectorMetadata({}, {}, None))
    late.plans = plans
    worker.receive(late)
    assert [it.status for it in worker.take_answers()] == ["failed"]
    assert torch.equal(fleet.tensors[0], before[0])


def test_a_reset_ends_what_was_planned_and_its_slots_are_free_again(
    make_fleet: Callable[..., Fleet],
) -> None:
    fleet = make_fleet(part_bytes=(500_000, 500_000))
    job_id = fleet.save([0, 1, 2])
    fleet.engine.reset()
    fleet.finish(job_id)
    assert fleet.engine.namespace is not None
    assert fleet.engine.namespace.lookup(fleet.keys(3)).num_blocks == 0
    # The host tier has four slots: three are not held any more.
    for first in (10, 20):
        fleet.finish(fleet.save([4, 5, 6], first=first))
        assert fleet.engine.namespace.lookup(fleet.keys(3, first)).num_blocks == 3


def test_equal_kv_is_kept_once_and_loaded_by_all(make_fleet: Callable[..., Fleet]) -> None:
    fleet = make_fleet(part_bytes=(4096, 4096), is_replicated=True)
    fleet.tensors[1].copy_(fleet.tensors[0])
    before = fleet.tensors[0].clone()
    fleet.finish(fleet.save([3, 9]))
    assert fleet.engine.namespace is not None
    assert fleet.engine.namespace.block_bytes == 4096
    fleet.finish(fleet.load([20, 21]))
    for tensor in fleet.tensors:
        assert torch.equal(tensor[[20, 21]], before[[3, 9]])


def test_a_rank_that_does_not_reach_the_memory_fails_its_loads_only(
    make_fleet: Callable[..., Fleet], monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = make_fleet()

    def refuse(_: object) -> None:
        raise kvtier.TierIOError("planted")

    monkeypatch.setattr("kvtier.adapters.vllm.rank_worker.ArenaView.open", refuse)
    fleet.finish(fleet.save([3, 9]))
    fleet.finish(fleet.load([20, 21]))
    assert fleet.failed_block_ids == {20, 21}


def test_a_job_that_ends_while_it_is_looked_at_is_answered(
    make_fleet: Callable[..., Fleet], monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = make_fleet()
    poll = WorkerJob.poll
    asked: set[int] = set()

    def poll_late(job: WorkerJob) -> PlanResult | None:
        """The first time it says not yet, of a job that has ended by the next line."""
        job.wait()
        is_first = id(job) not in asked
        asked.add(id(job))
        return None if is_first else poll(job)

    monkeypatch.setattr(WorkerJob, "poll", poll_late)
    fleet.finish(fleet.save([3, 9]))
    assert fleet.engine.namespace is not None
    assert fleet.engine.namespace.lookup(fleet.keys(2)).num_blocks == 2


def test_what_was_loaded_before_a_reset_is_not_told_after_it(
    make_fleet: Callable[..., Fleet],
) -> None:
    fleet = make_fleet()
    fleet.finish(fleet.save([3, 9]))
    worker = fleet.ranks[0]
    spec = LoadSpec((fleet.keys(2),), "r", 0)
    entry = as_entry(spec, device_blocks([20, 21]))
    sent = fleet.planner.plan(OffloadingConnectorMetadata({900: entry}, {}, None))
    worker.receive(sent)
    worker.submit_load(900, spec, device_blocks([20, 21]))
    for _, _, job in worker._transfers[900].jobs:
        job.wait()
    worker._take_answers(worker._transfers[900])
    fleet.engine.reset()
    worker.receive(fleet.planner.plan(OffloadingConnectorMetadata({}, {}, None)))
    assert [it.job_id for it in worker.get_finished()] == [900]
    assert worker.take_failed_block_ids() == {20, 21}


def test_an_answer_that_does_not_fit_frees_the_slots(make_fleet: Callable[..., Fleet]) -> None:
    fleet = make_fleet()
    job_id = fleet.save([3, 9])
    fleet.step(ranks=[1])
    (plan,) = fleet.ranks[0]._plans[job_id]
    wrong = PlanResult(
        plan_id=plan.plan_id, arena_id=plan.arena_id, rank=0, status="done", num_parts=7
    )
    fleet.planner.take_report(RankReport(answers=[wrong]))
    until_s = time.monotonic() + END_S
    while fleet.planner._transfers:
        assert time.monotonic() < until_s
        fleet.step(ranks=[1])


def test_closing_does_not_wait_for_ranks_that_are_gone(make_fleet: Callable[..., Fleet]) -> None:
    fleet = make_fleet()
    fleet.save([3, 9])
    begun_s = time.monotonic()
    fleet.close()
    assert time.monotonic() - begun_s < END_S / 2


def test_shapes_may_come_with_the_first_report(make_fleet: Callable[..., Fleet]) -> None:
    fleet = make_fleet(has_handshake=False)
    assert fleet.engine.namespace is None
    fleet.step(ranks=[1])
    assert fleet.engine.namespace is None
    fleet.step(ranks=[0])
    before = [tensor.clone() for tensor in fleet.tensors]
    fleet.finish(fleet.save([3, 9]))
    fleet.finish(fleet.load([20, 21]))
    for tensor, old in zip(fleet.tensors, before, strict=True):
        assert torch.equal(tensor[[20, 21]], old[[3, 9]])


def test_equal_kv_of_other_sizes_is_refused(make_fleet: Callable[..., Fleet]) -> None:
    with pytest.raises(kvtier.UnsupportedError, match="differ"):
        make_fleet(part_bytes=(4096, 8192), is_replicated=True)


def test_groups_have_their_own_blocks_in_one_transfer(make_fleet: Callable[..., Fleet]) -> None:
    fleet = make_fleet(groups=(PREFIX_GROUP, WINDOW_GROUP))
    before = [tensor.clone() for tensor in fleet.tensors]
    keys = [
        np.stack([group.namespace.key(hash_of(it)) for it in range(num_blocks)])
        for group, num_blocks in zip(fleet.engine.groups, (3, 2), strict=True)
    ]
    saves = (GroupSave(keys[0], None), GroupSave(keys[1], None, is_chain=False))
    rows = GPULoadStoreSpec([3, 9, 4, 5, 6], group_sizes=[3, 2], block_indices=[0, 0])
    fleet.finish(fleet._step(store=(rows, SaveSpec(saves, "s", 0))))
    rows = GPULoadStoreSpec([20, 21, 22, 23, 24], group_sizes=[3, 2], block_indices=[0, 0])
    fleet.finish(fleet._step(load=(LoadSpec(tuple(keys), "r", 0), rows)))
    for tensor, old in zip(fleet.tensors, before, strict=True):
        page_bytes = tensor.shape[1] - 96
        assert torch.equal(tensor[[20, 21, 22]], old[[3, 9, 4]])
        assert torch.equal(tensor[[23, 24], :page_bytes], old[[5, 6], :page_bytes])
        assert torch.equal(tensor[[23, 24], page_bytes:], old[[23, 24], page_bytes:])
    assert fleet.failed_request_ids == set()
    # Of one group nothing, of the other all: the request has to begin anew.
    lost = LoadSpec((keys[0], keys[1] ^ 0xFF), "unlucky", 0)
    fleet.finish(fleet._step(load=(lost, rows)))
    assert fleet.failed_request_ids == {"unlucky"}
    assert fleet.failed_block_ids == set()
    assert fleet.engine.failed_requests == {"unlucky"}


@pytest.mark.parametrize(
    ("ranks", "reason"), [([0], "expected 2 workers"), ([0, 0], "expected 2 workers")]
)
def test_ranks_that_do_not_fit_together_are_refused(ranks: list[int], reason: str) -> None:
    engine = EngineStore(
        parse_connector_settings({"kv_max_cpu_memory": "1MiB"}),
        identity=dict(IDENTITY),
        rules=RequestRules(),
        num_ranks=2,
    )
    shapes = [make_rank(rank, make_tensor(rank, 4096)).shape for rank in ranks]
    with pytest.raises(kvtier.UnsupportedError, match=reason):
        engine.attach_ranks(shapes)
    engine.close()
