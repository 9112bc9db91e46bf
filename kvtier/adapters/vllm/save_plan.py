"""Chooses which of the blocks that vLLM offers are saved, and beneath which parents.

Pure functions on what they are given; used by the scheduler's thread only.
"""

import contextlib
from collections.abc import Sequence
from typing import Final

import numpy as np

from kvtier.adapters.vllm.request_chain import NO_KEYS, RequestChain, RequestRules
from kvtier.adapters.vllm.stored_group import StoredGroup
from kvtier.adapters.vllm.transfer_specs import GroupSave
from kvtier.errors import KvtierError
from kvtier.results import U8, Mask

NO_SAVE: Final = GroupSave(NO_KEYS, None)


def plan_save(
    group: StoredGroup, chain: RequestChain, hashes: Sequence[bytes], rules: RequestRules
) -> tuple[Sequence[int], GroupSave]:
    """Returns which of the blocks with these hashes to save, as positions in them, and how."""
    if not hashes:
        return (), NO_SAVE
    plan = _plan_run if group.is_prefix else _plan_each
    return plan(group, chain, hashes, rules)


def _plan_run(
    group: StoredGroup, chain: RequestChain, hashes: Sequence[bytes], rules: RequestRules
) -> tuple[Sequence[int], GroupSave]:
    """Blocks of use only with all before them: a run beneath its parent."""
    run = chain.find_run(hashes)
    if run is None:
        return (), NO_SAVE
    start, end = run
    first = start
    if not rules.saves_decode:
        end = max(start, min(end, chain.num_prompt_blocks))
    keys = chain.keys(group.namespace, 0, end)
    # What is stored already is the beginning of the chain: parents go before their children.
    start += _count_stored(group, keys[start:])
    parent = keys[start - 1].tobytes() if start > 0 else None
    return range(start - first, end - first), GroupSave(keys[start:], parent)


def _plan_each(
    group: StoredGroup, chain: RequestChain, hashes: Sequence[bytes], rules: RequestRules
) -> tuple[Sequence[int], GroupSave]:
    """Blocks that stand alone: vLLM offers those at the end of a window only."""
    indices = chain.find_each(hashes)
    if indices is None:
        return (), NO_SAVE
    end = max(indices) + 1
    keys = chain.keys(group.namespace, 0, end)[indices]
    limit = end if rules.saves_decode else chain.num_prompt_blocks
    is_wanted = ~_find_stored(group, keys) & (np.array(indices) < limit)
    save = GroupSave(np.ascontiguousarray(keys[is_wanted]), None, is_chain=False)
    return np.flatnonzero(is_wanted).tolist(), save


def _count_stored(group: StoredGroup, keys: U8) -> int:
    with contextlib.suppress(KvtierError):
        return group.namespace.lookup(keys).num_blocks
    return 0


def _find_stored(group: StoredGroup, keys: U8) -> Mask:
    with contextlib.suppress(KvtierError):
        return group.namespace.lookup(keys, prefix=False).mask
    return np.zeros(len(keys), dtype=np.bool_)
