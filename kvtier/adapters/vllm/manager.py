"""KvtierManager: the scheduler's half, which answers what can be loaded and what is to be saved.

Not thread-safe: used by the scheduler's thread only. It moves no bytes.
"""

import contextlib
import time
import uuid
from collections.abc import Callable, Collection
from typing import Any, Final

import numpy as np
from vllm.v1.kv_offload.base import (
    LookupResult,
    OffloadingManager,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
)

from kvtier.adapters.vllm.engine_identity import fold_adapter
from kvtier.adapters.vllm.engine_store import EngineStore
from kvtier.adapters.vllm.request_chain import (
    NO_KEYS,
    PrefetchWait,
    RequestChain,
    RequestRules,
)
from kvtier.adapters.vllm.request_rules import parse_request_rules
from kvtier.adapters.vllm.store_metrics import StoreMetrics
from kvtier.adapters.vllm.transfer_specs import LoadSpec, SaveSpec
from kvtier.core_log import logger
from kvtier.errors import KvtierError
from kvtier.lease import Lease
from kvtier.namespace import Namespace
from kvtier.outcome import Tier
from kvtier.results import U8

LEASE_TTL_S: Final = 120.0
QUICK_LOAD_S: Final = 0.010
"""A hit that takes longer to read is prefetched first: a load holds the engine's blocks idle."""
PENDING_S_MAX: Final = 1.0
"""How long a request waits for its prefetch; then it is loaded from wherever it lies."""
PATIENCE_S: Final = 0.05
"""How long it waits without any block coming nearer: a prefetch skips what has no room."""
# A key of vLLM's is the block's hash and the number of its group in four bytes.
_GROUP_BYTES: Final = 4


class KvtierManager(OffloadingManager):
    """Resolves the whole chain of a request at once, and answers vLLM key by key from that."""

    def __init__(
        self,
        engine: EngineStore,
        *,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._clock_s = clock_s
        self._epoch = b""
        self._chains: dict[str, RequestChain] = {}
        self._contexts: dict[str, bytes] = {}
        self._leases: dict[str, Lease] = {}
        self._finished: list[str] = []
        self._forgettable: list[str] = []
        self._metrics = StoreMetrics(engine, clock_s)

    def resolve(self, request: Any, num_computed_tokens: int) -> None:
        """Looks up the blocks of `request` beyond those that the engine has itself."""
        namespace = self._engine.namespace
        if namespace is None:
            return
        start_s = self._clock_s()
        chain = self._find_or_make_chain(request, namespace)
        start = num_computed_tokens // namespace.block_tokens
        chain.is_pending = False
        num_found = 0
        if chain.rules.is_loading and start < chain.num_blocks:
            try:
                num_found = self._look_up(chain, namespace, start)
            except KvtierError as error:
                logger.warning("a lookup counts as a miss: %s", error)
        chain.set_found(start, start + num_found)
        self._metrics.observe_scheduler_s(self._clock_s() - start_s)

    def forbid_loading(self, request_id: str) -> None:
        """Makes every further lookup of a request a miss: one failed load is enough."""
        chain = self._chains.get(request_id)
        if chain is not None:
            chain.rules = RequestRules(
                is_loading=False,
                is_saving=chain.rules.is_saving,
                saves_decode=chain.rules.saves_decode,
            )

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        chain = self._chains.get(req_context.req_id)
        if chain is None or key[:-_GROUP_BYTES] not in chain.found:
            return LookupResult.MISS
        return LookupResult.RETRY if chain.is_pending else LookupResult.HIT

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> LoadSpec:
        namespace, chain = self._engine.namespace, self._chains[req_context.req_id]
        assert namespace is not None
        run = chain.find_run([key[:-_GROUP_BYTES] for key in keys])
        assert run is not None
        assert run[1] - run[0] == len(keys)
        key_array = chain.keys(namespace, *run)
        self._release_lease(req_context.req_id)
        # From here until the worker starts the load nothing else protects what was found.
        with contextlib.suppress(KvtierError):
            self._leases[req_context.req_id] = namespace.lease(key_array, ttl_s=LEASE_TTL_S)
        return LoadSpec(key_array, req_context.req_id, self._engine.generation)

    def complete_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        self._release_lease(req_context.req_id)

    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput:
        start_s = self._clock_s()
        listed = list(keys)
        namespace, chain = self._engine.namespace, self._chains.get(req_context.req_id)
        run = None
        if namespace is not None and chain is not None and chain.rules.is_saving:
            run = chain.find_run([key[:-_GROUP_BYTES] for key in listed])
        if namespace is None or chain is None or run is None:
            return PrepareStoreOutput([], self._save_spec(NO_KEYS, None, req_context), [])
        start, end = run
        first = start
        if not chain.rules.saves_decode:
            end = max(start, min(end, chain.num_prompt_blocks))
        # What is stored already is the beginning of the chain: parents go before their children.
        start += _count_stored(namespace, chain.keys(namespace, start, end))
        parent = chain.keys(namespace, start - 1, start).tobytes() if start > 0 else None
        spec = self._save_spec(chain.keys(namespace, start, end), parent, req_context)
        self._metrics.observe_scheduler_s(self._clock_s() - start_s)
        return PrepareStoreOutput(listed[start - first : end - first], spec, [])

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: ReqContext) -> None:
        self._finished.append(req_context.req_id)

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        """Forgets requests a step late: vLLM 0.26 saves their last blocks after their end."""
        for request_id in self._forgettable:
            self._chains.pop(request_id, None)
            self._contexts.pop(request_id, None)
        self._forgettable, self._finished = self._finished, []

    def reset_cache(self) -> None:
        """Makes all that was saved so far unfindable: the weights may have been changed.

        What a new start of the engine finds on disk is what was saved before the first reset.
        """
        self._engine.reset()
        self._epoch = uuid.uuid4().bytes
        for request_id in list(self._leases):
            self._release_lease(request_id)
        for request_id, chain in self._chains.items():
            chain.change_context(self._fold_context(self._contexts.get(request_id, b"")))

    def get_stats(self) -> Any:
        return self._metrics.take()

    def shutdown(self) -> None:
        for request_id in list(self._leases):
            self._release_lease(request_id)

    def _find_or_make_chain(self, request: Any, namespace: Namespace) -> RequestChain:
        chain = self._chains.get(request.request_id)
        if chain is None:
            adapter = fold_adapter(getattr(request, "lora_request", None))
            chain = RequestChain(
                request.block_hashes,
                context=self._fold_context(adapter),
                num_prompt_blocks=request.num_prompt_tokens // namespace.block_tokens,
                rules=parse_request_rules(request.kv_transfer_params, self._engine.rules),
            )
            self._chains[request.request_id] = chain
            self._contexts[request.request_id] = adapter
        return chain

    def _fold_context(self, adapter: bytes) -> bytes:
        # Zeros stand for "no epoch" before an adapter: the two must not be taken for each other.
        return (self._epoch or bytes(len(adapter))) + adapter

    def _look_up(self, chain: RequestChain, namespace: Namespace, start: int) -> int:
        keys = chain.keys(namespace, start, chain.num_blocks)
        found = namespace.lookup(keys)
        if found.num_blocks * namespace.block_tokens < self._engine.gain_tokens_min:
            return 0
        if self._engine.has_both_tiers and bool(
            np.any(found.tiers[: found.num_blocks] == int(Tier.DISK))
        ):
            chain.is_pending = self._brings_nearer(chain, namespace, keys[: found.num_blocks])
        return found.num_blocks

    def _brings_nearer(self, chain: RequestChain, namespace: Namespace, keys: U8) -> bool:
        """Returns whether the load should wait for a prefetch, and starts that."""
        num_near = namespace.lookup(keys, max_load_s=QUICK_LOAD_S).num_blocks
        if num_near == len(keys):
            return False
        now_s = self._clock_s()
        if chain.wait is None:
            chain.wait = PrefetchWait(until_s=now_s + PENDING_S_MAX)
            namespace.prefetch(keys)
        return chain.wait.goes_on(now_s, num_near, PATIENCE_S)

    def _save_spec(self, keys: U8, parent: bytes | None, req_context: ReqContext) -> SaveSpec:
        return SaveSpec(keys, parent, req_context.req_id, self._engine.generation)

    def _release_lease(self, request_id: str) -> None:
        lease = self._leases.pop(request_id, None)
        if lease is not None:
            # Leases end with their store, and the interpreter's exit may close that first.
            with contextlib.suppress(KvtierError):
                lease.release()


def _count_stored(namespace: Namespace, keys: U8) -> int:
    with contextlib.suppress(KvtierError):
        return namespace.lookup(keys).num_blocks
    return 0
