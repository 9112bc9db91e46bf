"""EnginePace: how fast the engine computes prompts, and when it will be done with those it has.

Not thread-safe: used by the scheduler's thread only.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

STEP_TOKENS_MIN: Final = 256
"""Of a step that tells of the rate: in smaller ones other things take most of the time."""
SAMPLES_MAX: Final = 15
"""Steps that tell of the rate: the latest."""
_PROMPT_SHARE_MIN: Final = 0.25
"""Of a step's time that is its prompts', whatever steps without any take: a guard against noise."""
_WEIGHT_TOKENS_MAX: Final = 1024
"""A large step tells more than a small one, but not more than all others together."""
_NUM_REMEMBERED: Final = 3
"""Steps that the rate of an earlier run stands for, until others have taken their place."""


@dataclass(frozen=True, slots=True)
class _Step:
    num_tokens: int
    num_prompt_tokens: int


class EnginePace:
    """Watches the steps that vLLM plans.

    A step is planned when the one `steps_ahead` before it has ended, so the time between two plans
    is what that one took: as long as the engine is not without requests in between.
    """

    def __init__(
        self,
        *,
        steps_ahead: int,
        clock_s: Callable[[], float],
        step_tokens_max: int = 2 * STEP_TOKENS_MIN,
        remembered_tokens_per_s: float | None = None,
    ) -> None:
        """steps_ahead: 1, or 2 where vLLM plans a step while another one runs.

        step_tokens_max: more than so many tokens the engine never takes into a step.
        remembered_tokens_per_s: what an earlier run of the engine came to.
        """
        self._clock_s = clock_s
        self._step_tokens_min = min(STEP_TOKENS_MIN, max(1, step_tokens_max // 2))
        self._steps: deque[_Step] = deque(maxlen=steps_ahead)
        """Those that have not ended."""
        self._began_s = 0.0
        """When the first of them that has tokens began."""
        self._samples: deque[tuple[float, int]] = deque(maxlen=SAMPLES_MAX)
        """Tokens of prompts a second in a step, and its weight."""
        if remembered_tokens_per_s is not None:
            remembered = (remembered_tokens_per_s, _WEIGHT_TOKENS_MAX)
            self._samples.extend([remembered] * _NUM_REMEMBERED)
        self.num_measured = 0
        """Steps of this run that told of the rate."""
        self._decode_s: deque[float] = deque(maxlen=SAMPLES_MAX)
        """How long steps without prompts took."""
        self._left: dict[str, int] = {}
        """Tokens of a request's prompt that no step was planned for yet."""
        self._live: set[str] = set()

    @property
    def tokens_per_s(self) -> float | None:
        """Returns how many tokens of prompts it computes a second; None: not known yet.

        What a step takes for requests beyond their prompts does not count: it comes anyhow.
        """
        return _weighted_median(self._samples) if self._samples else None

    @property
    def wait_s(self) -> float:
        """Returns when it would begin with one prompt more; 0 while its rate is unknown."""
        rate = self.tokens_per_s
        if rate is None:
            return 0.0
        running_s = 0.0
        num_running = sum(it.num_prompt_tokens for it in self._steps)
        if num_running > 0:
            running_s = max(0.0, num_running / rate - (self._clock_s() - self._began_s))
        return running_s + sum(self._left.values()) / rate

    def begin(self, request_id: str) -> None:
        """Notes that there is a request: the engine is busy until it ends."""
        self._live.add(request_id)

    def admit(self, request_id: str, num_tokens: int) -> None:
        """Notes that so many tokens of a request's prompt are to be computed from now on."""
        self._live.add(request_id)
        self._left.pop(request_id, None)
        if num_tokens > 0:
            self._left[request_id] = num_tokens

    def end(self, request_id: str) -> None:
        """Notes that the request is no more."""
        self._left.pop(request_id, None)
        self._live.discard(request_id)
        if not self._live:
            # What comes next is not what the engine was busy with. vLLM 0.26 tells of an end before
            # it plans the step after it.
            if self._steps:
                self._note_end(self._steps.popleft(), self._clock_s())
            self._steps.clear()

    def note_step(self, num_scheduled: Mapping[str, int]) -> None:
        """Notes that a step was planned, with so many tokens of each request."""
        now_s = self._clock_s()
        if len(self._steps) == self._steps.maxlen:
            self._note_end(self._steps.popleft(), now_s)
        # One without tokens takes no time, and the next one does not wait for it.
        if not any(it.num_tokens for it in self._steps):
            self._began_s = now_s
        self._steps.append(
            _Step(
                num_tokens=sum(num_scheduled.values()),
                num_prompt_tokens=self._take_prompt_tokens(num_scheduled),
            )
        )

    def _note_end(self, step: _Step, now_s: float) -> None:
        if step.num_tokens == 0:
            return
        took_s, self._began_s = now_s - self._began_s, now_s
        if step.num_prompt_tokens == 0:
            self._decode_s.append(took_s)
        elif step.num_prompt_tokens >= self._step_tokens_min and took_s > 0:
            is_mixed = step.num_tokens > step.num_prompt_tokens
            decode_s = min(self._decode_s) if is_mixed and self._decode_s else 0.0
            prompt_s = max(took_s - decode_s, _PROMPT_SHARE_MIN * took_s)
            weight = min(step.num_prompt_tokens, _WEIGHT_TOKENS_MAX)
            self._samples.append((step.num_prompt_tokens / prompt_s, weight))
            self.num_measured += 1

    def _take_prompt_tokens(self, num_scheduled: Mapping[str, int]) -> int:
        num_tokens = 0
        for request_id in [it for it in self._left if it in num_scheduled]:
            num_now = min(self._left[request_id], num_scheduled[request_id])
            num_tokens += num_now
            self._left[request_id] -= num_now
            if not self._left[request_id]:
                del self._left[request_id]
        return num_tokens


def _weighted_median(weighted: Iterable[tuple[float, int]]) -> float:
    """Returns the value with half of the weight on either side of it."""
    ordered = sorted(weighted)
    half = sum(weight for _, weight in ordered) / 2
    total = 0.0
    for value, weight in ordered:
        total += weight
        if total >= half:
            return value
    raise ValueError("no values")
