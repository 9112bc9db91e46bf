"""`kvtier warmup` against servers that behave, refuse, stall and die, and going on afterwards."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from fake_openai_server import MODEL, serve

from kvtier.cli.main import main
from kvtier.http_stream import ServerUrl
from kvtier.warmup.journal import Journal
from kvtier.warmup.prompt_file import Prompt, read_prompts
from kvtier.warmup.server_model import ServerModel
from kvtier.warmup.warmup_run import Outcome, run_warmup

PAUSES_S = (0.01, 0.01)


@pytest.fixture
def prompt_file(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.txt"
    file.write_text("".join(f"prompt number {i}\n" for i in range(10)))
    return file


def warm_up(
    capsys: pytest.CaptureFixture[str], *arguments: object
) -> tuple[int, dict[str, object]]:
    code = main(["warmup", "--json", *map(str, arguments)])
    return code, json.loads(capsys.readouterr().out)


def run(
    url: str, prompts: Sequence[Prompt], journal: Journal | None = None, *, timeout_s: float = 30.0
) -> Outcome:
    model = ServerModel(server=ServerUrl.parse(url), model=MODEL, timeout_s=timeout_s)
    return asyncio.run(
        run_warmup(
            model,
            prompts,
            concurrency=3,
            journal=journal,
            on_done=lambda _: None,
            pauses_s=PAUSES_S,
        )
    )


def test_all_prompts_are_sent_once_and_reported(
    prompt_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serve() as (url, state):
        code, summary = warm_up(capsys, "--url", url, "--prompt-file", prompt_file)
        asked = {it["prompt"] for it in state.asked}
    assert code == 0
    assert asked == {f"prompt number {i}" for i in range(10)}
    assert len(state.asked) == 10
    assert all(it["max_tokens"] == 1 for it in state.asked)
    assert not any("kv_transfer_params" in it for it in state.asked)
    assert (summary["done"], summary["left"], summary["prompt_tokens"]) == (10, 0, 30)
    stored = summary["stored"]
    assert isinstance(stored, dict)
    assert stored["disk"] == {"bytes": 40960.0, "blocks": 3.0, "more_bytes": 40960.0}
    assert not (prompt_file.parent / "prompts.txt.warmup").exists()


def test_pins_chats_and_keys_get_to_the_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "secret")
    file = tmp_path / "p.jsonl"
    file.write_text('{"messages": [{"role": "user", "content": "hello"}]}\n')
    arguments = ["--prompt-file", file, "--pin", "--api-key-variable", "MY_KEY"]
    with serve() as (url, state):
        assert warm_up(capsys, "--url", url, *arguments)[0] == 0
    (asked,) = state.asked
    assert asked["kv_transfer_params"] == {"kvtier": {"pin": True}}
    assert asked["messages"] == [{"role": "user", "content": "hello"}]
    assert state.keys == ["Bearer secret"]
    # It is not told to who may only want to read metrics.
    assert state.keys_of_reads == {"/v1/models": "Bearer secret", "/metrics": None}


def test_no_more_prompts_are_under_way_than_allowed(
    prompt_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serve(behaviour="slow") as (url, state):
        arguments = ["--url", url, "--prompt-file", prompt_file, "--concurrency", 2]
        assert warm_up(capsys, *arguments)[0] == 0
    assert state.num_at_once_max == 2


def test_prompts_that_the_server_refuses_are_named_and_the_others_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("one\nmuch too long\nthree\n")
    with serve() as (url, _):
        code, summary = warm_up(capsys, "--url", url, "--prompt-file", file)
        assert main(["warmup", "--url", url, "--prompt-file", str(file)]) == 1
    assert code == 1
    assert (summary["done"], summary["left"]) == (2, 0)
    (refused,) = summary["refused"]  # type: ignore[misc]
    assert refused["line"] == 2
    assert "maximum context length" in refused["reason"]
    assert "refused: line 2 (much too long)" in capsys.readouterr().out


def test_a_server_that_is_busy_for_a_while_is_asked_again(prompt_file: Path) -> None:
    (prompt,) = read_prompts(str(prompt_file))[:1]
    with serve(behaviour="busy") as (url, state):
        model = ServerModel(server=ServerUrl.parse(url), model=MODEL, timeout_s=30.0)

        def recover() -> None:
            state.behaviour = "good"

        async def work() -> Outcome:
            asyncio.get_running_loop().call_later(0.05, recover)
            return await run_warmup(
                model,
                [prompt],
                concurrency=1,
                journal=None,
                on_done=lambda _: None,
                pauses_s=[0.02] * 200,
            )

        outcome = asyncio.run(work())
    assert (outcome.num_done, outcome.failure) == (1, None)
    assert len(state.asked) > 1


@pytest.mark.parametrize("behaviour", ["busy:4", "die:4", "garbage:4"])
def test_a_server_that_fails_ends_the_run_and_the_next_one_goes_on(
    prompt_file: Path, behaviour: str
) -> None:
    prompts = read_prompts(str(prompt_file))
    path = str(prompt_file) + ".warmup"
    with serve(behaviour=behaviour) as (url, _), Journal(path, purpose="test") as journal:
        outcome = run(url, prompts, journal)
    assert outcome.failure is not None
    assert outcome.failure.startswith("line ")
    assert outcome.num_done == 4
    with serve() as (url, state), Journal(path, purpose="test") as journal:
        assert len(journal.done) == 4
        left = [it for it in prompts if it.digest not in journal.done]
        assert run(url, left, journal).num_done == 6
        journal.finish()
    assert len(state.asked) == 6
    assert not Path(path).exists()


def test_a_server_that_stalls_is_given_up_after_the_timeout(prompt_file: Path) -> None:
    with serve(behaviour="stall") as (url, _):
        outcome = run(url, read_prompts(str(prompt_file))[:2], timeout_s=0.1)
    assert outcome.num_done == 0
    assert "did not answer within 0.1 s" in (outcome.failure or "")


def test_the_command_goes_on_where_it_was(
    prompt_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_warmup, "__kwdefaults__", {"pauses_s": ()})
    with serve(behaviour="die:3") as (url, state):
        arguments = ["--url", url, "--prompt-file", prompt_file, "--concurrency", 1]
        code, summary = warm_up(capsys, *arguments)
        assert code == 2
        assert (summary["done"], summary["left"]) == (3, 7)
        assert "closed the connection" in str(summary["failure"])
        state.behaviour = "good"
        code, summary = warm_up(capsys, *arguments)
        assert (code, summary["done"], summary["done_before"]) == (0, 7, 3)
        code, summary = warm_up(capsys, *arguments)
        assert (code, summary["done"], summary["done_before"]) == (0, 10, 0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--url", "ftp://x"], "http://HOST:PORT"),
        (["--url", "http://127.0.0.1:9"], "nothing was sent: cannot connect"),
        (["--url", "http://x", "--concurrency", "0"], "--concurrency"),
        (["--url", "http://x", "--timeout-s", "nan"], "--timeout-s"),
        (["--url", "http://x", "--pin", "--unpin"], "contradict"),
    ],
)
def test_what_cannot_be_done_is_named_and_nothing_is_sent(
    prompt_file: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["warmup", "--prompt-file", str(prompt_file), *arguments]) == 2
    assert words in capsys.readouterr().err


def test_a_journal_that_cannot_be_written_is_named(
    prompt_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serve() as (url, state):
        arguments = ["--url", url, "--prompt-file", str(prompt_file), "--journal", "/none/j"]
        assert main(["warmup", *arguments]) == 2
        assert "--journal ''" in capsys.readouterr().err
        assert main(["warmup", *arguments[:-1], ""]) == 0
    assert len(state.asked) == 10


def test_a_journal_that_is_the_prompt_file_or_a_note_is_refused_before_a_prompt_is_sent(
    prompt_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    notes = prompt_file.parent / "notes.txt"
    notes.write_text("buy milk\n")
    with serve() as (url, state):
        for file, words in ((prompt_file, "the prompt file itself"), (notes, "no journal")):
            arguments = ["--url", url, "--prompt-file", str(prompt_file), "--journal", str(file)]
            assert main(["warmup", *arguments]) == 2
            assert words in capsys.readouterr().err
    assert state.asked == []
    assert notes.read_text() == "buy milk\n"
    assert prompt_file.read_text().startswith("prompt number 0\n")


@pytest.mark.parametrize(
    ("status", "remedy"),
    [
        (401, "--api-key-variable"),
        (403, "--api-key-variable"),
        (404, "--model"),
        (405, "--url"),
        (302, "--url"),
        (410, "--url"),
    ],
)
def test_a_server_that_takes_no_prompt_at_all_ends_the_run_at_once_and_the_next_one_goes_on(
    prompt_file: Path, capsys: pytest.CaptureFixture[str], status: int, remedy: str
) -> None:
    with serve(behaviour=f"{status}:3") as (url, state):
        arguments = ["--url", url, "--prompt-file", prompt_file, "--concurrency", 1]
        code, summary = warm_up(capsys, *arguments)
        assert (code, len(state.asked)) == (2, 4)
        assert (summary["done"], summary["refused"], summary["left"]) == (3, [], 7)
        assert str(summary["failure"]).startswith(f"line 4: HTTP {status}: no such luck; ")
        assert remedy in str(summary["failure"])
        state.behaviour = "good"
        code, summary = warm_up(capsys, *arguments)
        assert (code, summary["done"], summary["done_before"]) == (0, 7, 3)


@pytest.mark.parametrize("status", [400, 413, 422])
def test_when_all_that_is_left_is_refused_the_journal_stays(
    prompt_file: Path, capsys: pytest.CaptureFixture[str], status: int
) -> None:
    journal = Path(f"{prompt_file}.warmup")
    with serve(behaviour="401:3") as (url, state):
        arguments = ["--url", url, "--prompt-file", str(prompt_file), "--concurrency", "1"]
        assert warm_up(capsys, *arguments)[0] == 2
        state.behaviour = str(status)
        assert main(["warmup", *arguments]) == 1
        assert "what was done before stays noted" in capsys.readouterr().err
        assert journal.exists()
        state.behaviour = "good"
        code, summary = warm_up(capsys, *arguments)
    assert (code, summary["done"], summary["done_before"]) == (0, 7, 3)
    assert not journal.exists()


def test_a_key_meant_for_another_server_is_not_shown_to_one_that_others_listen_to(
    prompt_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setattr("kvtier.warmup.api_key._is_loopback", lambda _: False)
    with serve() as (url, state):
        arguments = ["--url", url, "--prompt-file", prompt_file]
        assert warm_up(capsys, *arguments)[0] == 0
        assert set(state.keys) | set(state.keys_of_reads.values()) == {None}
        arguments += ["--api-key-variable", "OPENAI_API_KEY"]
        assert warm_up(capsys, *arguments)[0] == 0
        assert state.keys[-1] == "Bearer secret"


def test_a_server_that_names_no_model_without_a_key_says_how_to_give_one(
    prompt_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object, **__: object) -> tuple[int, str]:
        return 401, "who are you"

    monkeypatch.setattr("kvtier.warmup.server_model.fetch_text", refuse)
    assert main(["warmup", "--url", "http://127.0.0.1:1", "--prompt-file", str(prompt_file)]) == 2
    said = capsys.readouterr().err
    assert "/v1/models: HTTP 401: who are you; --api-key-variable" in said
