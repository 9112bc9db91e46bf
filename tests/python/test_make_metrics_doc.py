"""docs/metrics.md: that it is current, and that no metric is missing."""

from pathlib import Path

import pytest
from make_metrics_doc import TARGET, main, make_document

from kvtier.metrics import METRICS


def test_the_committed_document_is_current() -> None:
    committed = TARGET.read_text(encoding="utf-8")
    assert committed == make_document(), "run .venv/bin/python tools/make_metrics_doc.py"


def test_every_metric_has_one_row() -> None:
    lines = make_document().splitlines()
    for metric in METRICS:
        rows = [line for line in lines if line.startswith(f"| `{metric.name}` |")]
        assert len(rows) == 1, metric.name
        assert rows[0].count(" | ") == 5


def test_the_tool_writes_where_it_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "out.md")]) == 0
    assert (tmp_path / "out.md").read_text(encoding="utf-8") == make_document()
    assert "wrote" in capsys.readouterr().out
