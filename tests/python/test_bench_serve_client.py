"""Streamed completions from servers that behave, stall, break off or talk nonsense."""

from __future__ import annotations

import asyncio

import pytest
from fake_openai_server import MODEL, SLOW_S, make_tokens, serve

from kvtier.bench.serve.completion import Answer, Client
from kvtier.bench.serve.workload import Session, Turn
from kvtier.bench.serve.workload_run import WorkloadRecord, run_workload
from kvtier.errors import ConfigError
from kvtier.http_stream import ServerError, ServerUrl, fetch_text

PROMPT = list(range(20, 60))


def ask(url: str, *, model: str = MODEL, timeout_s: float = 10.0, num_tokens: int = 5) -> Answer:
    client = Client(server=ServerUrl.parse(url), model=model, timeout_s=timeout_s)
    return asyncio.run(client.ask(PROMPT, num_tokens))


def run_sessions(
    url: str, num_sessions: int, *, concurrency: int, timeout_s: float = 10.0, **kinds: object
) -> WorkloadRecord:
    client = Client(server=ServerUrl.parse(url), model=MODEL, timeout_s=timeout_s)
    sessions = [
        Session(
            turns=tuple(Turn(tokens=(100 + index, turn), num_output_tokens=3) for turn in range(2)),
            **kinds,  # type: ignore[arg-type]
        )
        for index in range(num_sessions)
    ]
    return asyncio.run(run_workload(client, sessions, concurrency=concurrency))


def test_an_answer_has_its_tokens_and_its_times() -> None:
    with serve(behaviour="slow") as (url, state):
        answer = ask(url)
    assert answer.failure is None
    assert answer.token_ids == make_tokens({"prompt": PROMPT, "max_tokens": 5})
    assert answer.num_tokens == 5
    assert answer.ttft_s is not None
    # The clock starts before the request is sent: what the server waits counts.
    assert SLOW_S <= answer.ttft_s <= answer.duration_s
    assert answer.tpot_s == pytest.approx((answer.duration_s - answer.ttft_s) / 4)
    (asked,) = state.asked
    assert (asked["temperature"], asked["ignore_eos"], asked["stream"]) == (0, True, True)


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("die", "ended in the middle"),
        ("garbage", "no event: '<html>502</html>'"),
        ("error", "out of memory"),
        ("no_stream", "does not stream: it answers with application/json"),
        ("no_end", "ended before it said so"),
    ],
)
def test_a_bad_stream_is_named(behaviour: str, reason: str) -> None:
    with serve(behaviour=behaviour) as (url, _):
        answer = ask(url)
    assert answer.failure is not None
    assert reason in answer.failure
    assert not answer.is_timeout


def test_a_long_answer_in_one_piece_was_not_streamed() -> None:
    """A short one may be: vLLM puts what a few steps gave together when its server comes late."""
    with serve(behaviour="one_piece") as (url, _):
        assert "all 16 tokens came in one piece" in str(ask(url, num_tokens=16).failure)
        assert ask(url, num_tokens=5).failure is None


def test_a_stalled_stream_times_out_though_it_began() -> None:
    with serve(behaviour="stall") as (url, _):
        answer = ask(url, timeout_s=0.3)
    assert answer.is_timeout
    assert answer.failure == "no token within 0.3 s (--timeout-s)"
    assert answer.num_tokens == 1
    assert answer.duration_s >= 0.3


def test_a_server_that_accepts_and_never_answers_times_out() -> None:
    async def run() -> Answer:
        never = asyncio.Event()

        async def hold(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await never.wait()
            writer.close()

        server = await asyncio.start_server(hold, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        url = ServerUrl(host="127.0.0.1", port=port)
        answer = await Client(server=url, model=MODEL, timeout_s=0.2).ask(PROMPT, 5)
        never.set()
        server.close()
        return answer

    answer = asyncio.run(run())
    assert answer.is_timeout
    assert answer.ttft_s is None


def test_a_wrong_model_and_no_server_are_named() -> None:
    with serve() as (url, _):
        answer = ask(url, model="other")
        assert "HTTP 404" in str(answer.failure)
        assert "The model `other` does not exist." in str(answer.failure)
    assert f"cannot connect to {url}" in str(ask(url).failure)


def test_what_is_no_http_is_named() -> None:
    async def run() -> None:
        async def babble(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"220 mail ready\r\n")
            writer.close()

        server = await asyncio.start_server(babble, "127.0.0.1", 0)
        url = ServerUrl(host="127.0.0.1", port=server.sockets[0].getsockname()[1])
        try:
            await fetch_text(url, "/metrics", timeout_s=5)
        finally:
            server.close()

    with pytest.raises(ServerError, match="did not answer in HTTP: it began with '220 mail ready'"):
        asyncio.run(run())


@pytest.mark.parametrize("text", ["localhost:8000", "ftp://host", "http://", "http://host:port"])
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="url:"):
        ServerUrl.parse(text)


def test_the_interface_s_folder_may_stand_in_an_address() -> None:
    url = ServerUrl.parse("http://host:8000/gateway/v1/")
    assert (url.port, url.path) == (8000, "/gateway")
    assert ServerUrl.parse("https://host").port == 443


def test_no_more_requests_are_under_way_than_asked_for() -> None:
    with serve(behaviour="slow") as (url, state):
        record = run_sessions(url, 6, concurrency=3)
    assert record.error is None
    assert record.num_missing == 0
    assert len(record.asked) == record.num_requests == 12
    assert state.num_at_once_max == 3


def test_sessions_take_turns() -> None:
    with serve() as (url, state):
        run_sessions(url, 4, concurrency=1)
    assert [it["prompt"] for it in state.asked] == [
        [100 + index, turn] for turn in range(2) for index in range(4)
    ]


def test_a_conversation_goes_on_from_its_answers() -> None:
    with serve() as (url, state):
        run_sessions(url, 1, concurrency=1, is_conversation=True)
    first, second = state.asked
    answer = make_tokens(first)
    assert second["prompt"] == [100, 0, *answer, 100, 1]


def test_a_server_that_dies_ends_the_run_and_keeps_what_came() -> None:
    with serve(behaviour="die:3") as (url, state):
        record = run_sessions(url, 8, concurrency=1)
    assert "ended in the middle" in str(record.error)
    assert record.num_missing == 16 - 3
    assert len(state.asked) == 4


def test_a_server_that_stalls_ends_the_run() -> None:
    with serve(behaviour="stall:2") as (url, state):
        record = run_sessions(url, 8, concurrency=2, timeout_s=0.3)
    assert "the server stalls: 2 requests in a row" in str(record.error)
    assert record.num_timeouts == 2
    assert len(state.asked) <= 6
