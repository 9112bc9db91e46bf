"""Canaries for tools/check_style.py: each rule must catch a planted fault and leave its like alone.

Single-threaded; every fault is planted in a temporary folder.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import check_style
import pytest

ROOT = Path(check_style.__file__).resolve().parent.parent
CPP_OPENING = "// Holds a planted fault. Thread-safe.\n"
PYTHON_OPENING = '"""Holds a planted fault."""\n'
# Written in parts, so that this file itself keeps the rules.
WORK_FOLDER = "/" + "work/kvtier"
TO_DO = "TO" + "DO"

Findings = Callable[[str, str], list[str]]


@pytest.fixture
def findings(tmp_path: Path) -> Findings:
    """Plants one file in an otherwise empty tree and returns what the checker says of it."""

    def plant(path: str, text: str) -> list[str]:
        target = tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        num_files, found = check_style.check_tree(tmp_path)
        target.unlink()
        assert num_files == 1
        return [str(finding) for finding in found]

    return plant


def cpp_function(num_body_lines: int) -> str:
    return "int answer(int value) {\n" + "  ++value;\n" * num_body_lines + "  return value;\n}\n"


def cpp_file(*lines: str) -> str:
    return CPP_OPENING + "".join(f"{line}\n" for line in lines)


def python_file(*lines: str) -> str:
    return PYTHON_OPENING + "".join(f"{line}\n" for line in lines)


def test_a_file_that_keeps_every_rule_has_no_findings(findings: Findings) -> None:
    assert findings("csrc/base/clock.cc", cpp_file('#include "base/clock.h"')) == []
    assert findings("kvtier/clock.py", python_file("import time")) == []


@pytest.mark.parametrize(
    ("path", "opening"),
    [
        ("csrc/base/clock.cc", CPP_OPENING),
        ("kvtier/clock.py", PYTHON_OPENING),
        ("tests/python/test_clock.py", PYTHON_OPENING),
        ("tests/cpp/base/clock_test.cc", CPP_OPENING),
        ("bench/demo.py", PYTHON_OPENING),
        ("tools/clock.py", PYTHON_OPENING),
    ],
)
def test_a_file_of_401_lines_is_found(findings: Findings, path: str, opening: str) -> None:
    assert findings(path, opening + "\n" * 399) == []
    assert findings(path, opening + "\n" * 400) == [f"{path}:401: file has 401 lines, at most 400"]


def test_a_python_function_of_71_lines_is_found(findings: Findings) -> None:
    body = ["    value += 1"]
    assert findings("kvtier/clock.py", python_file("def tick(value):", *body * 69)) == []
    (found,) = findings("kvtier/clock.py", python_file("def tick(value):", *body * 70))
    assert found == "kvtier/clock.py:2: function tick has 71 lines, at most 70"


def test_a_python_method_of_71_lines_is_found(findings: Findings) -> None:
    text = python_file("class Clock:", "    async def tick(self):", *["        self.now()"] * 70)
    assert findings("kvtier/clock.py", text) == [
        "kvtier/clock.py:3: function tick has 71 lines, at most 70"
    ]


def test_a_cpp_function_of_71_lines_is_found(findings: Findings) -> None:
    assert findings("csrc/base/clock.cc", CPP_OPENING + cpp_function(67)) == []
    assert findings("csrc/base/clock.cc", CPP_OPENING + cpp_function(68)) == [
        "csrc/base/clock.cc:2: function answer has 71 lines, at most 70"
    ]


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("template <typename T>\nint Clock<T>::tick(int value)\n    noexcept {", "tick"),
        ('TEST_CASE("time never runs backwards {") {', "TEST_CASE"),
        ("Clock::Clock(int value) : value_(value) {", "Clock::Clock"),
        ("static int tick(int value) KVTIER_REQUIRES(mutex_) {", "tick"),
    ],
)
def test_every_form_of_cpp_function_is_measured(findings: Findings, header: str, name: str) -> None:
    text = CPP_OPENING + header + "\n" + "  if (value) { ++value; }\n" * 70 + "}\n"
    (found,) = findings("csrc/base/clock.cc", text)
    assert f"function {name} has" in found


def test_a_long_function_inside_a_namespace_and_a_class_is_found(findings: Findings) -> None:
    text = cpp_file("namespace kvtier {", "class Clock {", " public:")
    text += cpp_function(80) + "};\n}\n"
    (found,) = findings("csrc/base/clock.h", text)
    assert found.startswith("csrc/base/clock.h:5: function answer has 83 lines")


def test_a_long_class_or_table_is_not_a_function(findings: Findings) -> None:
    members = "  int value_ = 0;\n  void set(int value) { value_ = value; }\n" * 50
    assert (
        findings("csrc/base/clock.h", CPP_OPENING + f"class alignas(64) A {{\n{members}}};\n") == []
    )
    assert findings("csrc/base/clock.h", CPP_OPENING + f"namespace kvtier {{\n{members}}}\n") == []
    table = "constexpr int kTable[] = {\n" + "  1'000,\n" * 100 + "};\n"
    assert findings("csrc/base/clock.cc", CPP_OPENING + table) == []


def test_braces_in_comments_literals_and_macros_do_not_count(findings: Findings) -> None:
    noise = (
        "// a brace { in a comment (so to say)",
        'const char* kText = "void f() {";',
        "const char kBrace = '{';",
        'const char* kRaw = R"x(void g() { " )x";',
        "#define KVTIER_OPEN() { \\",
        "  {",
        "int ten = 10'000;",
    )
    assert findings("csrc/base/clock.cc", cpp_file(*noise, *["int a = 1;"] * 80)) == []
    (found,) = findings("csrc/base/clock.cc", cpp_file(*noise) + cpp_function(80))
    assert "function answer has 83 lines" in found


@pytest.mark.parametrize(
    ("path", "include"),
    [
        ("csrc/base/status.cc", "io/io_engine.h"),
        ("csrc/io/ring.cc", "memory/arena.h"),
        ("csrc/format/slot_table.cc", "jobs/job_table.h"),
        ("csrc/disk/disk_engine.cc", "store/store.h"),
        ("csrc/disk/disk_engine.cc", "transfer/engine.h"),
        ("csrc/store/store.cc", "bindings/store.h"),
        ("csrc/store/store.cc", "testing/sim_disk.h"),
        ("csrc/testing/sim_disk.cc", "bindings/store.h"),
    ],
)
def test_an_include_against_the_layer_order_is_found(
    findings: Findings, path: str, include: str
) -> None:
    (found,) = findings(path, cpp_file(f'#include "{include}"'))
    assert found.startswith(f"{path}:2: layer ")
    # Angle brackets are no way around the rule, and a comment is no include.
    assert len(findings(path, cpp_file(f"#  include <{include}>"))) == 1
    assert findings(path, cpp_file(f'// #include "{include}"')) == []


@pytest.mark.parametrize(
    ("path", "include"),
    [
        ("csrc/store/store.cc", "store/block_index.h"),
        ("csrc/store/store.cc", "disk/disk_engine.h"),
        ("csrc/disk/disk_engine.cc", "format/slot_table.h"),
        ("csrc/jobs/job_table.cc", "io/io_engine.h"),
        ("csrc/testing/sim_disk.cc", "store/store.h"),
        ("csrc/bindings/store.cc", "testing/sim_disk.h"),
    ],
)
def test_an_include_along_the_layer_order_is_allowed(
    findings: Findings, path: str, include: str
) -> None:
    assert findings(path, cpp_file(f'#include "{include}"', "#include <memory>")) == []


def test_an_include_beside_the_include_root_is_found(findings: Findings) -> None:
    (found,) = findings("csrc/base/status.cc", cpp_file('#include "check.h"'))
    assert "include is not a path from csrc: check.h" in found


def test_a_file_in_no_known_layer_is_found(findings: Findings) -> None:
    assert "unknown layer: extras" in findings("csrc/extras/clock.cc", CPP_OPENING)[0]
    assert "unknown layer: (none)" in findings("csrc/clock.cc", CPP_OPENING)[0]


@pytest.mark.parametrize(
    "path",
    [
        "csrc/base/utils.h",
        "csrc/base/string_util.h",
        "kvtier/helpers.py",
        "kvtier/common/clock.py",
        "tests/python/misc.py",
        "csrc/base/base2.cc",
        "kvtier/store_v2.py",
    ],
)
def test_a_name_that_says_nothing_is_found(findings: Findings, path: str) -> None:
    text = CPP_OPENING if path.startswith("csrc") else PYTHON_OPENING
    (found,) = findings(path, text)
    assert "name says nothing about the content" in found


def test_a_name_that_merely_contains_a_banned_word_is_allowed(findings: Findings) -> None:
    assert findings("kvtier/commonality.py", PYTHON_OPENING) == []
    assert findings("csrc/base/utilization.h", CPP_OPENING) == []


@pytest.mark.parametrize("header", ["Python.h", "pybind11/numpy.h", "torch/extension.h"])
def test_a_python_header_outside_bindings_is_found(findings: Findings, header: str) -> None:
    text = cpp_file(f"#include <{header}>")
    assert "outside bindings" in findings("csrc/store/store.cc", text)[0]
    assert findings("csrc/bindings/store.cc", text) == []


@pytest.mark.parametrize("header", ["cuda.h", "cuda_runtime.h", "nvrtc.h", "cuda/std/atomic"])
def test_a_cuda_header_outside_its_place_is_found(findings: Findings, header: str) -> None:
    text = cpp_file(f"#include <{header}>")
    assert "CUDA header" in findings("csrc/device/device.cc", text)[0]
    assert "CUDA header" in findings("csrc/bindings/device.cc", text)[0]
    assert findings("csrc/device/cuda_driver.cc", text) == []
    assert findings("csrc/device/gather.cu", text) == []


@pytest.mark.parametrize("path", ["kvtier/clock.py", "csrc/base/clock.h", "tests/python/test_a.py"])
def test_a_file_without_an_opening_is_found(findings: Findings, path: str) -> None:
    text = "X = 1\n" if path.endswith(".py") else "#pragma once\n"
    (found,) = findings(path, text)
    assert "file does not open with a" in found


def test_an_empty_package_file_is_found(findings: Findings) -> None:
    assert "docstring" in findings("kvtier/cli/__init__.py", "")[0]


def test_a_stub_may_open_with_a_comment(findings: Findings) -> None:
    assert findings("kvtier/_core.pyi", "# Types of the extension.\n") == []
    assert len(findings("kvtier/_core.pyi", "x: int\n")) == 1


def test_broken_python_is_found(findings: Findings) -> None:
    assert findings("kvtier/clock.py", "def tick(:\n") == [
        "kvtier/clock.py:1: file is not valid Python"
    ]


def test_a_to_do_without_an_issue_is_found(findings: Findings) -> None:
    assert "without an issue" in findings("kvtier/clock.py", python_file(f"# {TO_DO}: later"))[0]
    assert "without an issue" in findings("csrc/base/a.cc", cpp_file(f"/* {TO_DO}(me) later */"))[0]
    assert findings("kvtier/clock.py", python_file(f"# {TO_DO}(#12): later")) == []
    assert findings("csrc/base/a.cc", cpp_file(f"// {TO_DO}(#12): later")) == []


@pytest.mark.parametrize("path", ["kvtier/clock.py", "tools/setup.sh", "docs/guide.md", "Makefile"])
def test_a_path_of_one_machine_is_found(findings: Findings, path: str) -> None:
    opening = PYTHON_OPENING if path.endswith(".py") else ""
    (found,) = findings(path, f'{opening}X = "{WORK_FOLDER}"\n')
    assert "path of one machine" in found


@pytest.mark.parametrize("text", ["host" + WORK_FOLDER, "~" + WORK_FOLDER, "/" + "workspace/x"])
def test_a_relative_or_longer_path_is_allowed(findings: Findings, text: str) -> None:
    assert findings("docs/guide.md", text + "\n") == []


@pytest.mark.parametrize("call", ["time.sleep(1)", "sleep(1)", "asyncio.sleep(0)"])
def test_a_sleep_in_the_package_is_found(findings: Findings, call: str) -> None:
    assert "sleep in kvtier" in findings("kvtier/clock.py", python_file(call))[0]
    assert findings("bench/demo.py", python_file(call)) == []
    assert findings("kvtier/clock.py", python_file(f"# {call}", f"X = '{call}'")) == []


@pytest.mark.parametrize(
    "call",
    ["std::this_thread::sleep_for(pause);", "usleep(5);", "::nanosleep(&pause, nullptr);"],
)
def test_a_sleep_in_the_core_is_found(findings: Findings, call: str) -> None:
    text = cpp_file(f"void pause() {{ {call} }}")
    assert "sleep in csrc" in findings("csrc/disk/writer.cc", text)[0]
    assert "sleep in csrc" in findings("csrc/io/ring.cc", text)[0]
    assert findings("csrc/testing/slow_disk.cc", text) == []
    assert findings("csrc/disk/writer.cc", cpp_file(f"// never {call}")) == []


def test_a_wait_in_io_is_allowed_where_a_comment_explains_it(findings: Findings) -> None:
    text = cpp_file("// Waits a moment: the ring has no event for this.", "usleep(5);")
    assert findings("csrc/io/ring.cc", text) == []
    assert len(findings("csrc/disk/writer.cc", text)) == 1


def test_generated_and_recorded_files_are_left_alone(tmp_path: Path) -> None:
    for path in ("build/a.py", "tests/fuzz/corpus/slot_table_fuzz/a.txt", "bench/out/a.md"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(WORK_FOLDER, encoding="utf-8")
    assert check_style.check_tree(tmp_path) == (0, [])


def test_every_rule_has_a_canary_in_this_file(tmp_path: Path, findings: Findings) -> None:
    """Counts the rules: whoever adds one adds its canary, and this number."""
    assert len(check_style.RULES) == 11


@pytest.mark.parametrize(("text", "status"), [(PYTHON_OPENING, 0), ("X = 1\n", 1)])
def test_the_command_exits_by_what_it_found(tmp_path: Path, text: str, status: int) -> None:
    (tmp_path / "kvtier").mkdir()
    (tmp_path / "kvtier" / "clock.py").write_text(text, encoding="utf-8")
    command = [sys.executable, check_style.__file__, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == status
    assert f"{status} findings" in result.stdout


def test_an_empty_tree_is_an_error(tmp_path: Path) -> None:
    assert check_style.main([str(tmp_path)]) == 1


def test_the_checker_keeps_its_own_rules() -> None:
    for path in ("tools/check_style.py", "tests/python/test_check_style.py", "setup.py"):
        source = check_style.SourceFile(
            check_style.PurePosixPath(path), (ROOT / path).read_text(encoding="utf-8")
        )
        assert check_style.check_source(source) == []
