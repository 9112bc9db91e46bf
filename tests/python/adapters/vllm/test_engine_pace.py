"""How fast the engine computes prompts, seen from the steps that its scheduler plans."""

import pytest

from kvtier.adapters.vllm.engine_pace import STEP_TOKENS_MIN, EnginePace

RATE = 40_000.0


class PlayedEngine:
    """Computes RATE tokens of prompts a second, one step after the other."""

    def __init__(self, *, steps_ahead: int) -> None:
        self.now_s = 100.0
        self.steps_ahead = steps_ahead
        self.pace = EnginePace(steps_ahead=steps_ahead, clock_s=lambda: self.now_s)
        self._ends_s: list[float] = []

    def plan(self, scheduled: dict[str, int], num_prompt_tokens: int) -> None:
        """Plans a step as soon as vLLM would."""
        if len(self._ends_s) >= self.steps_ahead:
            self.now_s = max(self.now_s, self._ends_s[-self.steps_ahead])
        self.pace.note_step(scheduled)
        begin_s = max(self.now_s, self._ends_s[-1] if self._ends_s else 0.0)
        self._ends_s.append(begin_s + 0.002 + num_prompt_tokens / RATE)
        self.now_s += 1e-4

    def idle(self, seconds: float) -> None:
        self.now_s = max(self.now_s, self._ends_s[-1]) + seconds


@pytest.fixture(params=[1, 2], ids=["in turn", "one ahead"])
def engine(request: pytest.FixtureRequest) -> PlayedEngine:
    return PlayedEngine(steps_ahead=request.param)


def compute(engine: PlayedEngine, name: str, num_tokens: int, num_decodes: int = 4) -> None:
    engine.pace.admit(name, num_tokens)
    while num_tokens > 0:
        num_now = min(8192, num_tokens)
        engine.plan({name: num_now}, num_now)
        num_tokens -= num_now
    for _ in range(num_decodes):
        engine.plan({name: 1}, 0)


def test_nothing_is_known_at_first(engine: PlayedEngine) -> None:
    assert engine.pace.tokens_per_s is None
    engine.pace.admit("a", 4096)
    assert engine.pace.wait_s == 0.0


@pytest.mark.parametrize("num_tokens", [STEP_TOKENS_MIN, 4096, 30_000])
def test_one_prompt_tells_the_rate(engine: PlayedEngine, num_tokens: int) -> None:
    compute(engine, "a", num_tokens)
    rate = engine.pace.tokens_per_s
    assert rate is not None
    # Two milliseconds of each step are not the prompt's.
    assert 0.7 * RATE < rate < 1.001 * RATE


def test_times_without_requests_are_not_counted(engine: PlayedEngine) -> None:
    for number in range(20):
        # Its only token comes with the prompt: no step is planned after it.
        compute(engine, str(number), 4096, num_decodes=0)
        engine.idle(0.0)
        engine.pace.end(str(number))
        engine.idle(3.0)
    compute(engine, "last", 4096)
    rate = engine.pace.tokens_per_s
    assert rate is not None
    assert 0.9 * RATE < rate < 1.001 * RATE


def test_requests_that_wait_keep_the_engine_busy(engine: PlayedEngine) -> None:
    for number in range(4):
        engine.pace.begin(str(number))
    for number in range(4):
        compute(engine, str(number), 8192, num_decodes=0)
        engine.idle(0.0)
        engine.pace.end(str(number))
    assert engine.pace.tokens_per_s is not None


def test_an_engine_with_small_steps_is_known_by_them() -> None:
    now_s = 100.0
    pace = EnginePace(steps_ahead=1, step_tokens_max=64, clock_s=lambda: now_s)
    pace.admit("a", 640)
    for _ in range(10):
        pace.note_step({"a": 64})
        now_s += 0.5
    pace.note_step({"a": 1})
    assert pace.tokens_per_s == pytest.approx(128.0)


def test_a_prompt_alone_is_not_relieved_of_what_others_took(engine: PlayedEngine) -> None:
    """Sixty requests decoded in steps of 40 ms, and are gone: nothing of that is in its steps."""
    for _ in range(10):
        engine.plan({"others": 60}, int(0.038 * RATE))
    engine.idle(0.0)
    engine.pace.end("others")
    for number in range(4):
        compute(engine, str(number), 512, num_decodes=0)
    assert engine.pace.tokens_per_s is not None
    assert engine.pace.tokens_per_s < RATE


def test_one_slow_large_step_among_small_ones_does_not_change_the_rate(
    engine: PlayedEngine,
) -> None:
    engine.pace.admit("slow", 8192)
    engine.plan({"slow": 8192}, int(3 * RATE))
    for number in range(14):
        compute(engine, str(number), 500, num_decodes=1)
    assert engine.pace.tokens_per_s == pytest.approx(RATE, rel=0.2)


def test_prompts_with_one_token_of_answer_tell_the_rate(engine: PlayedEngine) -> None:
    """vLLM 0.26 tells that such a request has ended before it plans another step."""
    for number in range(3):
        engine.pace.begin(str(number))
        engine.pace.admit(str(number), 8000)
        engine.plan({str(number): 8000}, 8000)
        engine.idle(0.0)
        engine.pace.end(str(number))
        engine.idle(5.0)
    assert engine.pace.tokens_per_s == pytest.approx(RATE, rel=0.02)


def test_an_earlier_run_is_believed_until_something_was_computed(engine: PlayedEngine) -> None:
    engine.pace = EnginePace(
        steps_ahead=engine.steps_ahead,
        clock_s=lambda: engine.now_s,
        remembered_tokens_per_s=RATE / 100,
    )
    assert engine.pace.tokens_per_s == RATE / 100
    engine.pace.admit("a", 4000)
    assert engine.pace.wait_s == pytest.approx(100 * 4000 / RATE)
    engine.pace.end("a")
    for number in range(4):
        compute(engine, f"b{number}", 8192)
    assert engine.pace.tokens_per_s == pytest.approx(RATE, rel=0.1)


def test_a_step_begins_when_it_is_planned_if_the_engine_has_nothing_else() -> None:
    """Planning one step ahead: the second plan follows the first, whatever that one takes."""
    for num_empty in (0, 1, 2, 3):
        now_s = 100.0
        pace = EnginePace(steps_ahead=2, clock_s=lambda: now_s)  # noqa: B023
        pace.begin("a")
        for _ in range(num_empty):
            # Nothing to compute while blocks are on their way: such a step ends at once.
            pace.note_step({})
            now_s += 0.001
        pace.admit("a", 4096)
        pace.note_step({"a": 4096})
        begin_s = now_s
        # To launch it takes the processor a while; only then the next one is planned.
        now_s += 0.03
        pace.note_step({"a": 1})
        now_s = begin_s + 4096 / RATE
        pace.note_step({"a": 1})
        assert pace.tokens_per_s == pytest.approx(RATE), num_empty


def test_what_other_requests_take_in_a_step_is_not_the_prompts(engine: PlayedEngine) -> None:
    decodes = {f"other {it}": 1 for it in range(30)}
    for number in range(10):
        engine.pace.admit(str(number), 1000)
        engine.plan({str(number): 1000, **decodes}, 1000)
        for _ in range(6):
            engine.plan(decodes, 0)
    # Steps take two milliseconds without any prompt, and 25 more with this one.
    assert engine.pace.tokens_per_s == pytest.approx(RATE, rel=0.02)


def test_small_steps_tell_nothing(engine: PlayedEngine) -> None:
    compute(engine, "a", STEP_TOKENS_MIN - 1)
    assert engine.pace.tokens_per_s is None


def test_one_slow_step_does_not_change_the_rate(engine: PlayedEngine) -> None:
    for number in range(7):
        compute(engine, str(number), 4096)
    before = engine.pace.tokens_per_s
    engine.pace.admit("slow", 4096)
    engine.plan({"slow": 4096}, 400_000)
    for _ in range(3):
        engine.plan({"slow": 1}, 0)
    assert engine.pace.tokens_per_s == pytest.approx(before, rel=0.05)


def test_a_new_prompt_waits_for_those_that_were_let_in_before(engine: PlayedEngine) -> None:
    compute(engine, "a", 8192)
    engine.pace.end("a")
    engine.idle(1.0)
    rate = engine.pace.tokens_per_s
    assert rate is not None
    engine.pace.admit("b", 8192)
    engine.pace.admit("c", 4096)
    assert engine.pace.wait_s == pytest.approx(12_288 / rate)
    engine.plan({"b": 8192}, 8192)
    # In a step that runs or not: what was let in is still to be computed.
    assert engine.pace.wait_s == pytest.approx(12_288 / rate, rel=0.01)
    engine.now_s += 0.1
    assert engine.pace.wait_s == pytest.approx(12_288 / rate - 0.1, rel=0.02)
    engine.pace.end("c")
    assert engine.pace.wait_s == pytest.approx(8192 / rate - 0.1, rel=0.02)
    engine.idle(0.0)
    assert engine.pace.wait_s == pytest.approx(0.0, abs=0.01)


def test_a_busy_engine_is_waited_for_as_long_as_its_steps_take(engine: PlayedEngine) -> None:
    compute(engine, "a", 4 * 8192, num_decodes=0)
    for number in range(10):
        engine.pace.admit(str(number), 8192)
        engine.plan({str(number): 8192}, 8192)
        # As vLLM asks in its next step: when the one before has ended.
        if len(engine._ends_s) >= engine.steps_ahead:
            engine.now_s = max(engine.now_s, engine._ends_s[-engine.steps_ahead])
        left_s = max(0.0, engine._ends_s[-1] - engine.now_s)
        assert engine.pace.wait_s == pytest.approx(left_s, abs=0.005)


def test_a_request_that_is_let_in_again_counts_with_what_is_left(engine: PlayedEngine) -> None:
    compute(engine, "a", 8192)
    rate = engine.pace.tokens_per_s
    assert rate is not None
    engine.idle(0.0)
    engine.pace.admit("b", 8192)
    engine.pace.admit("b", 2048)
    assert engine.pace.wait_s == pytest.approx(2048 / rate, abs=0.01)
    engine.pace.admit("b", 0)
    engine.pace.end("nobody")
