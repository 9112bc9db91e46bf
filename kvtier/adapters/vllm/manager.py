"""KvtierManager: the scheduler's half, which answers what can be loaded and what is to be saved.

Not thread-safe: used by the scheduler's thread only. It moves no bytes.
"""

import contextlib
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from vllm.v1.kv_offload.base import (
    LookupResult,
    OffloadingEvent,
    OffloadingManager,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
)

from kvtier.adapters.vllm.engine_pace import EnginePace
from kvtier.adapters.vllm.engine_store import EngineStore
from kvtier.adapters.vllm.group_lookup import GroupHit, choose_needed, look_up
from kvtier.adapters.vllm.hit_limiter import HitLimiter
from kvtier.adapters.vllm.kv_events import BlockEvents
from kvtier.adapters.vllm.lora_adapters import LoraAdapters
from kvtier.adapters.vllm.prompt_pins import PromptPins
from kvtier.adapters.vllm.remembered_pace import RememberedPace
from kvtier.adapters.vllm.request_blocks import RequestBlocks
from kvtier.adapters.vllm.request_chain import NO_KEYS, NOTHING_KEPT, PrefetchWait
from kvtier.adapters.vllm.request_rules import parse_request_rules
from kvtier.adapters.vllm.save_plan import plan_save
from kvtier.adapters.vllm.store_metrics import StoreMetrics
from kvtier.adapters.vllm.transfer_specs import GroupSave, LoadSpec, SaveSpec
from kvtier.core_log import logger
from kvtier.errors import KvtierError
from kvtier.lease import Lease

LEASE_TTL_S: Final = 120.0
QUICK_LOAD_S: Final = 0.010
"""A hit that takes longer to read is prefetched first: a load holds the engine's blocks idle."""
PENDING_S_MAX: Final = 1.0
"""How long a request waits for its prefetch; then it is loaded from wherever it lies."""
QUEUE_S_MAX: Final = 10.0
"""How much longer it waits for those before it."""
PATIENCE_S: Final = 0.05
"""How long it waits without any block coming nearer: a prefetch skips what has no room."""


class KvtierManager(OffloadingManager):
    """Resolves the whole chain of a request at once, and answers vLLM key by key from that."""

    def __init__(
        self,
        engine: EngineStore,
        *,
        tells_events: bool = False,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._clock_s = clock_s
        self._remembered = RememberedPace(engine.folder, engine.description)
        self._pace = EnginePace(
            steps_ahead=engine.steps_ahead,
            step_tokens_max=engine.step_tokens_max,
            remembered_tokens_per_s=self._remembered.read(),
            clock_s=clock_s,
        )
        self._limiter = HitLimiter(engine, self._pace, clock_s)
        self._epoch = b""
        self._blocks: dict[str, RequestBlocks] = {}
        self._adapters = LoraAdapters()
        self._pins = PromptPins()
        self._leases: dict[str, list[Lease]] = {}
        self._unanswered: set[str] = set()
        self._finished: list[str] = []
        self._forgettable: list[str] = []
        self._metrics = StoreMetrics(engine, self._pace, clock_s)
        self._events = BlockEvents(lambda: engine.groups, clock_s) if tells_events else None

    def resolve(self, request: Any, num_computed_tokens: int) -> None:
        """Looks up the blocks of `request` beyond those that the engine has itself."""
        if not self._engine.groups:
            return
        start_s = self._clock_s()
        blocks = self._find_or_make_blocks(request)
        blocks.is_pending = False
        blocks.start_tokens, blocks.read_bytes, blocks.cut = num_computed_tokens, 0, None
        hits: list[GroupHit] = []
        if blocks.rules.is_loading:
            try:
                hits = self._look_up(request.request_id, blocks, num_computed_tokens)
            except KvtierError as error:
                logger.warning("a lookup counts as a miss: %s", error)
        if not hits:
            blocks.forget_found()
            self._limiter.note_coming(request.request_id, 0)
        self._metrics.observe_scheduler_s(self._clock_s() - start_s)

    def admit(self, request: Any, num_loaded_tokens: int) -> None:
        """Hears that a request has its device blocks, and how much of it is to be loaded."""
        blocks = self._blocks.get(request.request_id)
        # What was loaded before counts as computed when it is let in again.
        num_computed = request.num_computed_tokens
        if not num_computed and blocks is not None:
            num_computed = blocks.start_tokens + num_loaded_tokens
        self._pace.admit(request.request_id, request.num_tokens - num_computed)
        if blocks is None:
            return
        self._limiter.note_coming(
            request.request_id, blocks.read_bytes if num_loaded_tokens > 0 else 0
        )
        if blocks.cut is not None:
            self._metrics.count_cut(*blocks.cut)
            blocks.cut = None

    def note_step(self, num_scheduled: Mapping[str, int]) -> None:
        """Hears of a step that is planned, with so many tokens of each request."""
        self._pace.note_step(num_scheduled)
        self._remembered.note(self._pace)

    def note_answered(self, request_id: str) -> None:
        """Hears that a request has its last token: vLLM 0.32 plans a step before it calls it over.

        After the last one no step may come in which the engine would ask for metrics.
        """
        if request_id in self._unanswered:
            self._unanswered.remove(request_id)
            self._hurry_if_idle()

    def forbid_loading(self, request_id: str) -> None:
        """Makes every further lookup of a request a miss: one failed load is enough."""
        blocks = self._blocks.get(request_id)
        if blocks is not None:
            blocks.forbid_loading()

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        blocks = self._blocks.get(req_context.req_id)
        if blocks is None or not blocks.is_found(key):
            return LookupResult.MISS
        return LookupResult.RETRY if blocks.is_pending else LookupResult.HIT

    @property
    def tells_events(self) -> bool:
        return self._events is not None

    def count_hits(
        self, keys: Sequence[OffloadKey], req_context: ReqContext, *_: Any
    ) -> int | None:
        """Returns how many of a run of keys, from the first one on, lookup() would call hits.

        None: they are not near enough yet. vLLM asks it in each step, with all the blocks of the
        request that is the next to be let in.
        """
        blocks = self._blocks.get(req_context.req_id)
        num_hits = 0 if blocks is None or not keys else blocks.count_found(keys)
        return None if num_hits > 0 and blocks is not None and blocks.is_pending else num_hits

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> LoadSpec:
        start_s = self._clock_s()
        blocks = self._blocks.get(req_context.req_id)
        if blocks is None:
            # Nobody knows the request: its load fails like one of before a reset.
            nothing = tuple(NO_KEYS for _ in self._engine.groups)
            return LoadSpec(nothing, req_context.req_id, self._engine.generation - 1)
        self._release_leases(req_context.req_id)
        leases = self._leases[req_context.req_id] = []
        listed = []
        groups = self._engine.groups
        for group, chain, hashes in zip(groups, blocks.chains, blocks.split(keys), strict=True):
            if not hashes:
                listed.append(NO_KEYS)
                continue
            run = chain.find_run(hashes)
            assert run is not None
            assert run[1] - run[0] == len(hashes)
            listed.append(chain.keys(group.namespace, *run))
            # From here until the worker starts the load nothing else protects what was found.
            with contextlib.suppress(KvtierError):
                leases.append(group.namespace.lease(listed[-1], ttl_s=LEASE_TTL_S))
        self._metrics.observe_scheduler_s(self._clock_s() - start_s)
        return LoadSpec(tuple(listed), req_context.req_id, self._engine.generation)

    def complete_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        self._release_leases(req_context.req_id)
        self._limiter.note_coming(req_context.req_id, 0)
        self._hurry_if_idle()

    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput:
        start_s = self._clock_s()
        groups, blocks = self._engine.groups, self._blocks.get(req_context.req_id)
        kept: list[OffloadKey] = []
        saves: list[GroupSave] = []
        if groups and blocks is not None and blocks.rules.is_saving:
            for index, hashes in enumerate(blocks.split(keys)):
                group = groups[index]
                chosen, save = plan_save(group, blocks.chains[index], hashes, blocks.rules)
                suffix = group.key_suffix
                group_keys: list[Any] = [hashes[it] + suffix for it in chosen]
                if self._events is not None:
                    self._events.note_planned(index, group_keys, save.keys)
                kept += group_keys
                saves.append(save)
            self._metrics.observe_scheduler_s(self._clock_s() - start_s)
        spec = SaveSpec(tuple(saves), req_context.req_id, self._engine.generation)
        return PrepareStoreOutput(kept, spec, [])

    def complete_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext, success: bool = True
    ) -> None:
        if self._events is not None:
            self._events.note_saved(keys)
        self._pins.settle()
        self._hurry_if_idle()

    def take_events(self) -> Iterable[OffloadingEvent]:
        return () if self._events is None else self._events.take()

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        # Of one before it with the same name, if that is not forgotten yet.
        self._blocks.pop(req_context.req_id, None)
        self._pace.begin(req_context.req_id)
        self._unanswered.add(req_context.req_id)
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: ReqContext) -> None:
        self.note_answered(req_context.req_id)
        self._finished.append(req_context.req_id)
        self._limiter.note_coming(req_context.req_id, 0)
        self._pace.end(req_context.req_id)
        self._pins.settle(ended_id=req_context.req_id)

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        """Forgets requests a step late: vLLM 0.26 saves their last blocks after their end."""
        for request_id in self._forgettable:
            self._blocks.pop(request_id, None)
        self._forgettable, self._finished = self._finished, []

    def reset_cache(self) -> None:
        """Makes all that was saved so far unfindable: the weights may have been changed.

        What a new start of the engine finds on disk is what was saved before the first reset.
        """
        self._engine.reset()
        self._epoch = uuid.uuid4().bytes
        for request_id in list(self._leases):
            self._release_leases(request_id)
        # Requests that run have KV of before: none of it is saved under what is found after.
        self._blocks.clear()
        self._pins.clear()
        self._limiter.clear()
        if self._events is not None:
            self._events.forget_all()

    def get_stats(self) -> Any:
        return self._metrics.take()

    def shutdown(self) -> None:
        for request_id in list(self._leases):
            self._release_leases(request_id)
        self._remembered.close(self._pace)

    def _hurry_if_idle(self) -> None:
        """Each step may be the last one for long: those of vLLM end with its last save."""
        if not self._unanswered:
            self._metrics.hurry()

    def _find_or_make_blocks(self, request: Any) -> RequestBlocks:
        blocks = self._blocks.get(request.request_id)
        if blocks is None:
            adapter = self._adapters.find(getattr(request, "lora_request", None))
            rules = parse_request_rules(request.kv_transfer_params, self._engine.rules)
            blocks = RequestBlocks(
                request,
                self._engine.groups,
                context=self._fold_context(adapter or b""),
                rules=rules if adapter is not None else NOTHING_KEPT,
            )
            self._blocks[request.request_id] = blocks
            self._pins.begin(request.request_id, self._engine.groups, blocks)
        return blocks

    def _fold_context(self, adapter: bytes) -> bytes:
        # Zeros stand for "no epoch" before an adapter: the two must not be taken for each other.
        return (self._epoch or bytes(len(adapter))) + adapter

    def _look_up(self, request_id: str, blocks: RequestBlocks, start_tokens: int) -> list[GroupHit]:
        hits = look_up(
            self._engine.groups,
            blocks,
            start_tokens=start_tokens,
            gain_tokens_min=self._engine.gain_tokens_min,
        )
        if self._events is not None:
            self._announce(blocks, hits)
        if hits and self._engine.has_disk:
            hits = self._limit(request_id, blocks, hits, start_tokens)
        return hits

    def _limit(
        self, request_id: str, blocks: RequestBlocks, hits: list[GroupHit], start_tokens: int
    ) -> list[GroupHit]:
        """Returns what of a hit is worth its load; notes whether that should wait."""
        found_tokens = max(it.end_tokens for it in hits)
        kept, reason = self._limiter.limit(request_id, hits, start_tokens)
        if reason is not None:
            kept_tokens = max((it.end_tokens for it in kept), default=start_tokens)
            blocks.cut = (reason, found_tokens - kept_tokens)
            for chain, hit in zip(blocks.chains, kept, strict=False):
                chain.set_found(hit.start, hit.mask)
        needed = choose_needed(kept, start_tokens) if kept else []
        far = [it for it in needed if it.read_bytes > 0]
        blocks.read_bytes = sum(it.read_bytes for it in far)
        if far and self._engine.has_both_tiers:
            blocks.is_pending = self._brings_nearer(request_id, blocks, far)
        # A place in the line is kept until all was read.
        self._limiter.note_coming(request_id, blocks.read_bytes)
        return kept

    def _brings_nearer(self, request_id: str, blocks: RequestBlocks, far: list[GroupHit]) -> bool:
        """Returns whether the load should wait for a prefetch, and starts that."""
        lookups = [it.group.namespace.lookup(it.keys, max_load_s=QUICK_LOAD_S) for it in far]
        num_near = sum(it.num_blocks for it in lookups)
        if num_near == sum(len(it.keys) for it in far):
            return False
        now_s, wait = self._clock_s(), blocks.wait
        num_asked = sum(len(it.keys) for it in far)
        # Nothing comes nearer before what others wait for is there; there may have been no room.
        is_turn = self._limiter.ahead_bytes(request_id) == 0
        if wait is None or num_asked > wait.num_asked or (is_turn and not wait.is_turn):
            for hit in far:
                hit.group.namespace.prefetch(hit.keys)
        if wait is None:
            queue_s = min(self._limiter.ahead_s(request_id), QUEUE_S_MAX)
            wait = PrefetchWait(until_s=now_s + queue_s + PENDING_S_MAX, num_asked=num_asked)
            blocks.wait = wait
        wait.num_asked, wait.is_turn = max(wait.num_asked, num_asked), is_turn
        return wait.goes_on(now_s, num_near, PATIENCE_S)

    def _announce(self, blocks: RequestBlocks, hits: list[GroupHit]) -> None:
        assert self._events is not None
        # A request that waits is looked up in each step.
        found_at = tuple(chain.found_at for chain in blocks.chains)
        if found_at == blocks.announced_at:
            return
        blocks.announced_at = found_at
        for index, hit in enumerate(hits):
            hashes = blocks.chains[index].hashes(hit.start, hit.start + len(hit.keys))
            offload_keys = [it + hit.group.key_suffix for it in hashes]
            self._events.note_found(index, offload_keys, hit.keys, hit.tiers)

    def _release_leases(self, request_id: str) -> None:
        for lease in self._leases.pop(request_id, ()):
            # Leases end with their store, and the interpreter's exit may close that first.
            with contextlib.suppress(KvtierError):
                lease.release()
