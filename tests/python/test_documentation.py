"""README and docs: what they show runs, parses, exists and can be reached."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from document_pages import ROOT, CodeBlock, Page, read_pages, split_commands, synopsis_words
from documented_commands import find_fault, find_synopsis_fault
from documented_messages import find_messages, is_documented
from documented_tests import find_missing_tests, named_tests

from kvtier.settings import resolve_settings

PAGES = read_pages()
BLOCKS = [block for page in PAGES for block in page.blocks]
SHELLS = {"sh", "bash", "console"}
LANGUAGES = SHELLS | {"", "python", "yaml", "json", "cpp", "text"}
QUICK_START_COMMANDS_MAX = 10


def page_of(name: str) -> Page:
    return next(page for page in PAGES if page.name == name)


def blocks_in(*languages: str) -> list[CodeBlock]:
    return [block for block in BLOCKS if block.language in languages]


def runs_of(block: CodeBlock, folder: Path, num_runs: int = 1) -> list[str]:
    """What the block prints, each time in a process of its own in `folder`."""
    outputs = []
    for _ in range(num_runs):
        result = subprocess.run(
            [sys.executable, "-W", "error", "-c", block.text],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert result.returncode == 0, f"{block.place}\n{result.stderr}"
        outputs.append(result.stdout)
    return outputs


def test_blocks_are_of_known_languages() -> None:
    assert len(BLOCKS) > 30
    assert [it.place for it in BLOCKS if it.language not in LANGUAGES] == []


@pytest.mark.parametrize("block", blocks_in("python"), ids=lambda it: it.place)
def test_python_compiles_and_runs_where_it_says_so(block: CodeBlock, disk_folder: Path) -> None:
    compile(block.text, block.place, "exec")
    if block.is_run:
        runs_of(block, disk_folder)


def test_the_example_of_the_embedding_guide_hits_in_its_second_run_h10(disk_folder: Path) -> None:
    example = (ROOT / "examples/first_hit.py").read_text(encoding="utf-8")
    block = next(it for it in page_of("docs/embedding.md").blocks if it.text == example)
    assert block.is_run
    assert len(example.splitlines()) <= 40
    assert runs_of(block, disk_folder, num_runs=2) == [
        "0 blocks found, 8 computed\n",
        "8 blocks found, 0 computed\n",
    ]


def test_the_quick_start_takes_ten_commands_at_most() -> None:
    page = page_of("docs/quick_start.md")
    commands = "".join(it.text for it in page.blocks if it.language == "sh").splitlines()
    to_first_hit = commands[: 1 + max(i for i, it in enumerate(commands) if "first_hit" in it)]
    assert len(to_first_hit) <= QUICK_START_COMMANDS_MAX
    assert f"{len(to_first_hit)} commands from a clone to the first hit" in page.text


@pytest.mark.parametrize("block", blocks_in(*SHELLS), ids=lambda it: it.place)
def test_commands_can_be_given(block: CodeBlock) -> None:
    faults = {" ".join(it): find_fault(it) for it in split_commands(block.text)}
    assert faults, "the block holds no command"
    assert {command: fault for command, fault in faults.items() if fault} == {}


def test_commands_of_a_synopsis_and_within_a_line_can_be_given() -> None:
    lines = [(it.place, line) for it in blocks_in("", "text") for line in it.text.splitlines()]
    lines += [code for page in PAGES for code in page.inline_codes]
    faults = {}
    num_commands = 0
    for place, line in lines:
        words = synopsis_words(line)
        if len(words) > 1 and words[0] in {"kvtier", "make"}:
            num_commands += 1
            faults[place, line] = find_synopsis_fault(words)
    assert num_commands > 40
    # A line of prose may leave out what a whole command needs.
    partial = "the following arguments are required"
    assert {it: fault for it, fault in faults.items() if fault and partial not in fault} == {}


@pytest.mark.parametrize("block", blocks_in("yaml", "json"), ids=lambda it: it.place)
def test_settings_are_those_of_kvtier(block: CodeBlock, tmp_path: Path) -> None:
    if block.language == "json":
        json.loads(block.text)
        return
    yaml.safe_load(block.text)
    file = tmp_path / "kvtier.yaml"
    file.write_text(block.text)
    resolve_settings({}, file, {})


def test_links_lead_to_files_and_headings_that_exist() -> None:
    broken = []
    num_links = 0
    for page in PAGES:
        for place, target in page.links:
            if re.match(r"^[a-z]+:", target):
                continue
            num_links += 1
            name, _, anchor = target.partition("#")
            file = (page.path.parent / name).resolve() if name else page.path
            if not file.exists():
                broken.append(f"{place}: there is no {target}")
            elif anchor and anchor not in Page(file, file.read_text(encoding="utf-8")).anchors:
                broken.append(f"{place}: there is no heading {target}")
    assert num_links > 60
    assert broken == []


def test_every_page_can_be_reached_from_the_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    named = set(re.findall(r"[\w/-]+\.md", text))
    pages = {it.name.removeprefix("docs/") for it in PAGES if it.name.startswith("docs/")}
    assert pages - named == set()


def test_every_warning_and_error_can_be_found_by_its_text() -> None:
    text = page_of("docs/troubleshooting.md").text
    messages = find_messages()
    assert len(messages) > 100
    assert [it for it in messages if not is_documented(it, text)] == []


def test_every_guarantee_names_tests_that_exist() -> None:
    text = page_of("docs/guarantees.md").text
    sections = text.split("\n## ")[1:]
    assert sum(section[0].isdigit() for section in sections) == 6
    assert all(len(named_tests(it)) >= 3 for it in sections if it[0].isdigit())
    assert find_missing_tests(text) == []


def test_the_comparison_names_a_public_source_in_each_row() -> None:
    lines = page_of("docs/comparison.md").text.splitlines()
    # The line beneath a table's head is a rule.
    rows = [
        line
        for line, next_line in zip(lines, [*lines[1:], ""], strict=True)
        if line.startswith("| ") and not next_line.startswith("|---")
    ]
    assert len(rows) > 10
    assert [row for row in rows if "https://" not in row] == []


def test_the_checks_catch_what_is_wrong() -> None:
    text = "# One\n\n```python\nx = (\n```\n\n[a](b.md#c) `kvtier no`"
    page = Page(ROOT / "docs/made_up.md", text)
    assert [block.language for block in page.blocks] == ["python"]
    assert page.anchors == {"one"}
    assert page.links == [("docs/made_up.md:7", "b.md#c")]
    assert "invalid choice" in find_fault(["kvtier", "doktor"])
    assert "unrecognized" in find_fault(["kvtier", "doctor", "--fast"])
    assert "no such target" in find_fault(["make", "coffee"])
    assert "there is no" in find_fault(["python", "bench/nothing.py"])
    assert "unknown command" in find_fault(["kvtire", "doctor"])
    config = '{"kv_connector": "KvtierConnector", "kv_connector_extra_config": {"kv_devise": 1}}'
    assert "kv_device" in find_fault(["vllm", "serve", "M", "--kv-transfer-config", config])
    assert find_missing_tests("`tests/python/test_units.py::test_nothing_of_the_kind`") != []
    assert not is_documented("a warning that … nobody has written", "| `a warning` |")


@pytest.mark.skipif(
    importlib.util.find_spec("material") is None,
    reason="mkdocs-material is not installed; tools/setup.sh docs installs it",
)
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    site = tmp_path / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", site]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110)
    assert result.returncode == 0, result.stderr
    assert "Troubleshooting" in (site / "index.html").read_text(encoding="utf-8")
    assert (site / "troubleshooting/index.html").exists()
    assert (site / "changelog/index.html").exists()
