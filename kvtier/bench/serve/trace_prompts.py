"""Prompts of a request trace: which blocks, how long, and when. Pure but for reading the file."""

from __future__ import annotations

from dataclasses import dataclass

from kvtier.bench.trace import BlockId, Request, read_trace

MOONCAKE_BLOCK_TOKENS = 512
_OUTPUT_TOKENS_UNKNOWN = 128


@dataclass(frozen=True, kw_only=True)
class TraceChoice:
    """A trace, and how much of its lengths and pace is kept."""

    path: str
    block_tokens: int = MOONCAKE_BLOCK_TOKENS
    """Tokens that one id of the trace becomes; fewer make all prompts shorter alike."""
    speed: float = 0.0
    """1: at the trace's pace, 2: twice as fast; 0: as fast as answers come."""


@dataclass(frozen=True, kw_only=True)
class PromptPart:
    block_id: BlockId
    num_tokens: int


@dataclass(frozen=True, kw_only=True)
class TracePrompt:
    """One request of the trace, in tokens of the workload."""

    parts: tuple[PromptPart, ...]
    num_output_tokens: int
    arrival_s: float
    is_revisit: bool

    @property
    def num_tokens(self) -> int:
        return sum(part.num_tokens for part in self.parts)


def read_prompts(choice: TraceChoice, num_requests: int) -> list[TracePrompt]:
    """Returns the first requests of the trace that have a prompt. Raises TraceError."""
    seen: set[BlockId] = set()
    prompts = []
    for request in read_trace(choice.path, num_requests_max=num_requests):
        if request.hash_ids:
            prompts.append(_make_prompt(request, choice, is_revisit=request.hash_ids[0] in seen))
            seen.update(request.hash_ids)
    return prompts


def _make_prompt(request: Request, choice: TraceChoice, *, is_revisit: bool) -> TracePrompt:
    scale = choice.block_tokens / MOONCAKE_BLOCK_TOKENS
    parts = [PromptPart(block_id=it, num_tokens=choice.block_tokens) for it in request.hash_ids]
    if request.input_tokens is not None:
        # The last id stands for what is left of the prompt.
        before = (len(parts) - 1) * choice.block_tokens
        left = min(max(1, round(request.input_tokens * scale) - before), choice.block_tokens)
        parts[-1] = PromptPart(block_id=parts[-1].block_id, num_tokens=left)
    output_tokens = request.output_tokens or _OUTPUT_TOKENS_UNKNOWN
    arrival_s = request.timestamp_ms / 1e3 / choice.speed if choice.speed else 0.0
    return TracePrompt(
        parts=tuple(parts),
        num_output_tokens=max(1, output_tokens),
        arrival_s=arrival_s,
        is_revisit=is_revisit,
    )
