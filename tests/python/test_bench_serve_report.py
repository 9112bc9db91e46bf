"""What a report finds wrong: nothing evicted, nothing loaded, other outputs, modes that died."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvtier.bench.serve.articles import judge_order
from kvtier.bench.serve.completion import Answer
from kvtier.bench.serve.engine_metrics import EngineCounters
from kvtier.bench.serve.serve_figures import FIGURES, median_figures, run_figures
from kvtier.bench.serve.serve_report import ModeResult, ServeReport
from kvtier.bench.serve.serve_table import outputs_text, print_serve_report
from kvtier.bench.serve.workload import Turn
from kvtier.bench.serve.workload_run import AskedTurn, WorkloadRecord

NAMES = {kind.name for kind in FIGURES}


def answer(ttft_s: float, *, tokens: tuple[int, ...] = (1, 2, 3)) -> Answer:
    return Answer(
        ttft_s=ttft_s, duration_s=ttft_s + 0.2, num_tokens=len(tokens), token_ids=list(tokens)
    )


def record_of(*answers: Answer, num_requests: int | None = None) -> WorkloadRecord:
    record = WorkloadRecord(num_requests=num_requests or len(answers), seconds=2.0)
    for index, it in enumerate(answers):
        turn = Turn(tokens=(1,), num_output_tokens=3, is_revisit=index % 2 == 1)
        record.asked[index, 0] = AskedTurn(turn=turn, answer=it)
    return record


def counted_of(*, new_tokens: float = 1000, host_hits: float = 4, disk_read: float = 0):
    tiers = {"host_hits": host_hits, "disk_hits": 0, "disk_bytes_read": disk_read}
    return EngineCounters(
        prompt_tokens=new_tokens,
        tiers=tiers,
        device_room_tokens=500,
        block_tokens=32,
    )


def result_of(
    mode: str,
    *answers: Answer,
    counted: EngineCounters | None = None,
    point: float | None = None,
    num_requests: int | None = None,
) -> ModeResult:
    result = ModeResult(mode=mode, point=point)
    record = record_of(*(answers or (answer(0.5), answer(0.6, tokens=(4, 5, 6)))))
    record.num_requests = num_requests or record.num_requests
    result.add_run(0, record)
    result.runs.append(run_figures(record, counted, 10**9))
    if counted is not None:
        result.counted.append(counted)
    return result


def report_of(*results: ModeResult, is_exact: bool = True, axis: str | None = None) -> ServeReport:
    return ServeReport(surroundings={}, axis=axis, is_exact=is_exact, results=list(results))


def test_figures_of_a_run() -> None:
    figures = run_figures(record_of(answer(0.1), answer(0.3)), counted_of(), 3 * 10**9)
    assert set(figures) == NAMES
    assert figures["ttft_mean_s"] == pytest.approx(0.2)
    assert figures["ttft_p99_s"] == pytest.approx(0.3)
    assert figures["ttft_cold_s"] == pytest.approx(0.1)
    assert figures["ttft_warm_s"] == pytest.approx(0.3)
    assert figures["tpot_mean_s"] == pytest.approx(0.1)
    assert figures["tokens_per_s"] == pytest.approx(3)
    assert figures["completion_p99_s"] == pytest.approx(0.5)
    assert figures["hit_rate_host"] == pytest.approx(4 * 32 / 1000)
    assert figures["memory_gb"] == 3
    without = run_figures(record_of(answer(0.1)), None, None)
    assert set(without) == NAMES
    assert without["hit_rate_host"] is without["preemptions"] is without["memory_gb"] is None


def test_a_request_that_timed_out_counts_as_long_as_it_was_waited_for() -> None:
    late = Answer(duration_s=5.0, failure="no token within 5 s", is_timeout=True)
    figures = run_figures(record_of(answer(0.1), late), None, None)
    assert figures["ttft_p99_s"] == 5.0
    assert figures["timeouts"] == 1
    assert "1 requests have no whole answer" in report_of(result_of("off", late)).faults[0]


def test_medians_are_of_the_runs_that_have_the_figure() -> None:
    runs = [
        {**dict.fromkeys(NAMES), "ttft_mean_s": value, "preemptions": 2.0}
        for value in (3.0, 1.0, 2.0, None)
    ]
    medians = median_figures(runs)
    assert medians["ttft_mean_s"] == 2.0
    assert medians["disk_read_gb"] is None


def test_equal_outputs_are_good() -> None:
    report = report_of(
        result_of("off", counted=counted_of()), result_of("cpu", counted=counted_of())
    )
    assert report.faults == []
    assert outputs_text(report.results[1], report.compare(report.results[1])) == "all 2 the same"
    assert outputs_text(report.results[0], report.compare(report.results[0])) == "reference"


@pytest.mark.parametrize("is_exact", [True, False])
def test_other_outputs_are_a_fault_in_float32_and_a_note_else(is_exact: bool) -> None:
    other = result_of("cpu", answer(0.1), answer(0.2, tokens=(9, 9, 9)))
    # Whichever mode comes first, off is what the others are compared with.
    report = report_of(other, result_of("off"), is_exact=is_exact)
    text = "cpu: 1 of 2 outputs differ from those of off"
    assert (text in report.faults) == is_exact
    assert any("may round another way" in note for note in report.remarks) != is_exact
    assert outputs_text(other, report.compare(other)) == "1 of 2 DIFFER"


def test_answers_that_are_all_alike_prove_little() -> None:
    alike = [result_of(mode, answer(0.1), answer(0.2)) for mode in ("off", "cpu")]
    assert any("prove little" in note for note in report_of(*alike).remarks)
    assert not any("prove little" in note for note in report_of(result_of("off")).remarks)


def test_nothing_evicted_is_a_fault_with_both_numbers() -> None:
    few = counted_of(new_tokens=500)
    (fault,) = report_of(result_of("off", counted=few), result_of("cpu", counted=few)).faults
    assert "nothing was evicted" in fault
    assert "500 tokens held the 500 of each run" in fault
    # A server that does not tell what it has room for cannot be judged.
    assert report_of(result_of("off")).faults == []


def test_a_point_of_a_sweep_where_nothing_was_evicted_is_a_note() -> None:
    few, many = counted_of(new_tokens=400, host_hits=0), counted_of()
    report = report_of(
        result_of("cpu", counted=few, point=512),
        result_of("cpu", counted=many, point=4096),
        axis="input-tokens",
    )
    assert report.faults == []
    assert any(it.startswith("input-tokens 512: nothing was evicted") for it in report.remarks)


def test_nothing_loaded_and_nothing_read_from_disk_are_faults() -> None:
    report = report_of(
        result_of("off", counted=counted_of(host_hits=0)),
        result_of("cpu", counted=counted_of(host_hits=0)),
        result_of("disk", counted=counted_of(disk_read=0)),
        result_of("hybrid", counted=counted_of(disk_read=0)),
    )
    cpu, disk = report.faults
    assert cpu.startswith("cpu: nothing was loaded back")
    assert disk.startswith("disk: nothing was read from the disk")
    assert any(it.startswith("hybrid: its host tier held everything") for it in report.remarks)
    read = report_of(result_of("hybrid", counted=counted_of(disk_read=1)))
    assert not any("held everything" in it for it in read.remarks)


def test_a_mode_that_died_is_a_fault_and_the_others_stay() -> None:
    died = ModeResult(mode="disk", point=None, error="vLLM ended with status 1")
    report = report_of(result_of("off"), died)
    assert report.faults == ["disk: vLLM ended with status 1"]
    told = json.loads(json.dumps(report.to_json()))
    assert [it["mode"] for it in told["results"]] == ["off", "disk"]
    assert told["results"][0]["figures"]["ttft_mean_s"] == pytest.approx(0.55)
    assert told["results"][1]["error"] == "vLLM ended with status 1"
    assert told["good"] is False


def test_the_articles_order() -> None:
    figures = {"off": 4.0, "cpu": 1.0, "disk": 3.0, "hybrid": 2.0}
    ours = {mode: {"ttft_mean_s": value} for mode, value in figures.items()}
    assert str(judge_order(ours)).endswith(": the articles' order")
    ours["hybrid"] = {"ttft_mean_s": 5.0}
    assert str(judge_order(ours)).endswith(": not the articles' order")
    assert judge_order({"off": {"ttft_mean_s": 1.0}}) is None


def test_modes_that_are_level_stand_in_any_order() -> None:
    figures = {"off": 6.5, "cpu": 0.758, "disk": 0.827, "hybrid": 0.752}
    text = str(judge_order({mode: {"ttft_warm_s": it} for mode, it in figures.items()}))
    assert "hybrid 752 ms ≈ cpu 758 ms < disk 827 ms < off 6,500 ms: the articles' order" in text
    figures["cpu"] = 0.8
    text = str(judge_order({mode: {"ttft_warm_s": it} for mode, it in figures.items()}))
    assert text.endswith(": not the articles' order")


def test_the_order_is_that_of_later_visits_where_there_are_any() -> None:
    later = {"off": 4.0, "cpu": 1.0, "disk": 3.0, "hybrid": 2.0}
    ours = {mode: {"ttft_mean_s": 9.0, "ttft_warm_s": value} for mode, value in later.items()}
    ours["hybrid"]["ttft_mean_s"] = 9.1
    text = str(judge_order(ours))
    assert text.startswith("mean first token of later visits: cpu 1,000 ms < hybrid 2,000 ms")
    assert text.endswith(": the articles' order")


def test_the_table_has_a_column_a_mode_and_the_articles_beside_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    modes = ("off", "cpu", "disk")
    results = [result_of(mode, counted=counted_of(disk_read=5e9)) for mode in modes]
    print_serve_report(report_of(*results))
    out = capsys.readouterr().out
    head = next(line for line in out.splitlines() if "median of the runs" in line)
    assert [it.strip() for it in head.strip("┃").split("┃")][1:] == list(modes)
    shown = {line.strip("│").split("│")[0].strip() for line in out.splitlines() if "│" in line}
    assert {"first token, mean", "first token, P99", "time per output token, P99"} <= shown
    assert {"output tokens/s", "preemptions", "whole answer, P99", "outputs"} <= shown
    assert {"prompt tokens from host", "read from disk tier", "memory of the server"} <= shown
    assert "5.00 GB" in out
    assert "4,760 ms" in out
    assert "2,150 ms (45%)" in out


@pytest.mark.parametrize("axis", [None, "concurrency"])
def test_a_picture_is_drawn(tmp_path: Path, axis: str | None) -> None:
    pytest.importorskip("matplotlib")
    from kvtier.bench.serve.serve_plot import draw_modes

    points = [None] if axis is None else [1.0, 8.0]
    results = [result_of(mode, point=point) for mode in ("off", "cpu") for point in points]
    draw_modes(report_of(*results, axis=axis), tmp_path / "modes.png")
    assert (tmp_path / "modes.png").read_bytes().startswith(b"\x89PNG")
