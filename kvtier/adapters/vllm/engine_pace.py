"""EnginePace: how fast the engine computes prompts, and when it will be done with those it has.

Not thread-safe: used by the scheduler's thread only.
"""

import statistics
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

STEP_TOKENS_MIN: Final = 256
"""Of a step that tells of the rate: in smaller ones other things take most of the time."""
_SAMPLES_MAX: Final = 15


class EnginePace:
    """Watches the steps that vLLM plans.

    A step is planned when the one `steps_ahead` before it has ended, so the time between two plans
    is what that one took: as long as the engine is not without requests in between.
    """

    def __init__(self, *, steps_ahead: int, clock_s: Callable[[], float]) -> None:
        """steps_ahead: 1, or 2 where vLLM plans a step while another one runs."""
        self._clock_s = clock_s
        self._steps: deque[tuple[float, int]] = deque(maxlen=steps_ahead)
        """When each was planned, and its tokens of prompts; those that have not ended."""
        self._samples: deque[float] = deque(maxlen=_SAMPLES_MAX)
        self._left: dict[str, int] = {}
        """Tokens of a request's prompt that no step was planned for yet."""
        self._live: set[str] = set()

    @property
    def tokens_per_s(self) -> float | None:
        """Returns how many tokens of prompts it computes a second; None: not known yet."""
        return statistics.median(self._samples) if self._samples else None

    @property
    def wait_s(self) -> float:
        """Returns when it would begin with one prompt more; 0 while its rate is unknown."""
        rate = self.tokens_per_s
        if rate is None:
            return 0.0
        # The first of the steps that have not ended began when the last one was planned.
        running_s = 0.0
        if self._steps:
            num_running = sum(num_tokens for _, num_tokens in self._steps)
            running_s = max(0.0, num_running / rate - (self._clock_s() - self._steps[-1][0]))
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
            # What comes next is not what the engine was busy with.
            self._steps.clear()

    def note_step(self, num_scheduled: Mapping[str, int]) -> None:
        """Notes that a step was planned, with so many tokens of each request."""
        now_s = self._clock_s()
        if len(self._steps) == self._steps.maxlen:
            took_s = now_s - self._steps[-1][0]
            num_ended = self._steps[0][1]
            if num_ended >= STEP_TOKENS_MIN and took_s > 0:
                self._samples.append(num_ended / took_s)
        num_tokens = 0
        for request_id in [it for it in self._left if it in num_scheduled]:
            num_now = min(self._left[request_id], num_scheduled[request_id])
            num_tokens += num_now
            self._left[request_id] -= num_now
            if not self._left[request_id]:
                del self._left[request_id]
        self._steps.append((now_s, num_tokens))
