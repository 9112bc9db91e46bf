"""Checks the style rules that a program can check; `make check` runs it.

Usage: check_style.py [ROOT]. Prints one line a finding and exits 1 when there is any. Each rule is
a pure function from one source file to findings; nothing here is shared between threads.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 70

# A file may include its own layer and those with a smaller number. Layers of one number are
# neighbours, which do not know each other.
LAYER_RANKS = {
    "base": 0,
    "io": 1,
    "memory": 1,
    "device": 1,
    "format": 2,
    "layout": 2,
    "jobs": 2,
    "disk": 3,
    "transfer": 3,
    "remote": 3,
    "store": 4,
    "paged": 5,
    "testing": 5,
    "bindings": 6,
}

CODE_FOLDERS = ("csrc", "kvtier", "tests", "bench", "tools")
TEXT_FOLDERS = (*CODE_FOLDERS, "docs", ".ci", "examples")
SKIPPED_FOLDERS = {"build", "corpus", "out", "__pycache__"}
CPP_SUFFIXES = {".cc", ".h", ".cu", ".cuh"}
PYTHON_SUFFIXES = {".py", ".pyi"}
TEXT_SUFFIXES = {*CPP_SUFFIXES, *PYTHON_SUFFIXES, ".sh", ".md", ".toml", ".txt", ".yaml", ".yml"}
TEXT_NAMES = {"Makefile", "run"}

BANNED_STEM = re.compile(r"^(utils?|helpers?|common|misc|base\d+)$|_(utils?|helpers?)$|_v\d+$")
TO_DO = re.compile(r"\b(?:TODO|FIXME)\b(?!\(#\d+\))")
MACHINE_PATH = re.compile(r"(?<![\w./~-])/(?:work|root|home)(?![\w-])")
INCLUDE = re.compile(r"^\s*#\s*include\s*([<\"])([^>\"]+)[>\"]")
PYTHON_HEADER = re.compile(r"^(Python\.h$|pybind11/|torch/|ATen/|c10/|nanobind/)")
CUDA_HEADER = re.compile(r"^(cuda|cudart|nvrtc|nvml|cub/|thrust/|cooperative_groups|nv/)")
CPP_SLEEP = re.compile(r"\bsleep_(?:for|until)\s*\(|(?<![\w.>])(?:u|nano|clock_nano)?sleep\s*\(")

# Comments and literals, in the order in which they must be tried. A quote after a digit separates
# thousands.
CPP_COMMENT_OR_LITERAL = re.compile(
    r"//[^\n]*|/\*.*?\*/"
    r'|\bR"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)"'
    r'|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])*'",
    re.DOTALL,
)
CPP_DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)
CPP_ATTRIBUTE = re.compile(
    r"\b(?:alignas|__attribute__|[A-Z][A-Z0-9_]*)\s*\((?:[^()]|\([^()]*\))*\)"
)
CPP_ACCESS = re.compile(r"\b(?:public|private|protected)\s*:(?!:)")
CPP_SCOPE = re.compile(r"\b(?:namespace|class|struct|union|enum)\b|^\s*extern\s*$")


@dataclass(frozen=True)
class Finding:
    """One broken rule: where, and what is wrong."""

    path: PurePosixPath
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


@dataclass(frozen=True)
class SourceFile:
    """One file by its path beneath the root, with the views on its text that rules need."""

    path: PurePosixPath
    text: str

    @property
    def folder(self) -> str:
        return self.path.parts[0] if len(self.path.parts) > 1 else ""

    @property
    def is_code(self) -> bool:
        return self.is_cpp or self.is_python or self.path.suffix == ".sh"

    @property
    def is_cpp(self) -> bool:
        return self.path.suffix in CPP_SUFFIXES

    @property
    def is_python(self) -> bool:
        return self.path.suffix in PYTHON_SUFFIXES

    @property
    def is_core(self) -> bool:
        return self.folder == "csrc" and self.is_cpp

    @property
    def layer(self) -> str:
        return self.path.parts[1] if len(self.path.parts) > 2 else ""

    @cached_property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @cached_property
    def cpp_code(self) -> str:
        """The text with comments, literals and directives blanked; every position stays."""
        return CPP_DIRECTIVE.sub(_blank, CPP_COMMENT_OR_LITERAL.sub(_blank, self.text))

    @cached_property
    def python_tree(self) -> ast.Module | None:
        try:
            return ast.parse(self.text)
        except SyntaxError:
            return None

    def comments(self) -> Iterator[tuple[int, str]]:
        """Yields (line, text) of each comment; a C++ block comment counts at its first line."""
        if self.is_python and self.python_tree is not None:
            for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
                if token.type == tokenize.COMMENT:
                    yield token.start[0], token.string
        elif self.is_cpp:
            for match in CPP_COMMENT_OR_LITERAL.finditer(self.text):
                if match.group().startswith(("//", "/*")):
                    yield self.line_at(match.start()), match.group()

    def includes(self) -> Iterator[tuple[int, str, str]]:
        """Yields (line, opening mark, path) of each include that is not commented out."""
        without_comments = CPP_COMMENT_OR_LITERAL.sub(
            lambda match: _blank(match) if match.group().startswith("/") else match.group(),
            self.text,
        )
        for line, content in enumerate(without_comments.splitlines(), start=1):
            if match := INCLUDE.match(content):
                yield line, match.group(1), match.group(2)

    def line_at(self, position: int) -> int:
        return self.text.count("\n", 0, position) + 1

    def finding(self, line: int, text: str) -> Finding:
        return Finding(self.path, line, text)


Rule = Callable[[SourceFile], Iterator[Finding]]


def check_file_lines(source: SourceFile) -> Iterator[Finding]:
    """No code file is longer than FILE_LINES_MAX."""
    num_lines = len(source.lines)
    if source.is_code and num_lines > FILE_LINES_MAX:
        yield source.finding(num_lines, f"file has {num_lines} lines, at most {FILE_LINES_MAX}")


def check_file_name(source: SourceFile) -> Iterator[Finding]:
    """A file or folder is named by what it holds."""
    for part in (*source.path.parts[:-1], source.path.stem):
        if source.is_code and BANNED_STEM.search(part):
            yield source.finding(1, f"name says nothing about the content: {part}")


def check_opening(source: SourceFile) -> Iterator[Finding]:
    """A source file opens with a comment or docstring on what it holds."""
    if source.is_python and source.python_tree is not None:
        # A stub documents an extension, and tools expect no docstring there: a comment will do.
        opens_well = ast.get_docstring(source.python_tree) or (
            source.path.suffix == ".pyi" and source.text.startswith("#")
        )
        if not opens_well:
            yield source.finding(1, "file does not open with a docstring")
    elif source.is_cpp and not source.text.lstrip().startswith(("//", "/*")):
        yield source.finding(1, "file does not open with a comment")


def check_python_syntax(source: SourceFile) -> Iterator[Finding]:
    """A Python file parses; the other rules skip one that does not."""
    if source.is_python and source.python_tree is None:
        yield source.finding(1, "file is not valid Python")


def check_python_functions(source: SourceFile) -> Iterator[Finding]:
    """No Python function is longer than FUNCTION_LINES_MAX."""
    if not source.is_python or source.python_tree is None:
        return
    for node in ast.walk(source.python_tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            num_lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if num_lines > FUNCTION_LINES_MAX:
                yield source.finding(node.lineno, _function_text(node.name, num_lines))


def check_cpp_functions(source: SourceFile) -> Iterator[Finding]:
    """No C++ function is longer than FUNCTION_LINES_MAX."""
    if not source.is_cpp:
        return
    for name, start, end in _cpp_functions(source.cpp_code):
        first_line = source.line_at(start)
        num_lines = source.line_at(end) - first_line + 1
        if num_lines > FUNCTION_LINES_MAX:
            yield source.finding(first_line, _function_text(name, num_lines))


def check_layers(source: SourceFile) -> Iterator[Finding]:
    """A core file includes only its own layer and those beneath, by path from csrc."""
    if not source.is_core:
        return
    own_rank = LAYER_RANKS.get(source.layer)
    if own_rank is None:
        yield source.finding(1, f"unknown layer: {source.layer or '(none)'}")
        return
    for line, mark, path in source.includes():
        layer = path.split("/")[0] if "/" in path else ""
        rank = LAYER_RANKS.get(layer)
        if rank is None and mark == "<":
            continue
        if rank is None:
            yield source.finding(line, f"include is not a path from csrc: {path}")
        elif layer != source.layer and rank >= own_rank:
            yield source.finding(line, f"layer {source.layer} must not include {layer}: {path}")


def check_foreign_headers(source: SourceFile) -> Iterator[Finding]:
    """Python and torch stay in bindings, CUDA in device/cuda_* and *.cu."""
    if not source.is_core:
        return
    knows_cuda = source.path.suffix in {".cu", ".cuh"} or (
        source.layer == "device" and source.path.name.startswith("cuda_")
    )
    for line, _, path in source.includes():
        if source.layer != "bindings" and PYTHON_HEADER.match(path):
            yield source.finding(line, f"Python or torch header outside bindings: {path}")
        if not knows_cuda and CUDA_HEADER.match(path):
            yield source.finding(line, f"CUDA header outside device/cuda_*: {path}")


def check_to_do(source: SourceFile) -> Iterator[Finding]:
    """A note on work left open names its issue."""
    for line, text in source.comments():
        if TO_DO.search(text):
            yield source.finding(line, "TODO without an issue: write TODO(#123)")


def check_machine_paths(source: SourceFile) -> Iterator[Finding]:
    """No text names a folder of somebody's machine."""
    for line, content in enumerate(source.lines, start=1):
        if match := MACHINE_PATH.search(content):
            yield source.finding(line, f"path of one machine: {match.group()}")


def check_sleep(source: SourceFile) -> Iterator[Finding]:
    """Nothing sleeps in the product; in io a wait is allowed where a comment says why."""
    if source.folder == "kvtier" and source.is_python and source.python_tree is not None:
        for node in ast.walk(source.python_tree):
            if isinstance(node, ast.Call) and _is_sleep(node.func):
                yield source.finding(node.lineno, "sleep in kvtier: use the injected clock")
    elif source.is_core and source.layer != "testing":
        for match in CPP_SLEEP.finditer(source.cpp_code):
            line = source.line_at(match.start())
            if not (source.layer == "io" and _has_wait_comment(source.lines, line)):
                yield source.finding(line, "sleep in csrc: wait on an event or the clock")


RULES: tuple[Rule, ...] = (
    check_file_lines,
    check_file_name,
    check_opening,
    check_python_syntax,
    check_python_functions,
    check_cpp_functions,
    check_layers,
    check_foreign_headers,
    check_to_do,
    check_machine_paths,
    check_sleep,
)


def check_source(source: SourceFile) -> list[Finding]:
    """Applies every rule to one file."""
    return [finding for rule in RULES for finding in rule(source)]


def list_sources(root: Path) -> list[Path]:
    """Lists the files under the rules: those of the known folders and of the root itself."""
    found = [path for path in root.iterdir() if _is_text(path)]
    for folder in TEXT_FOLDERS:
        for path in (root / folder).rglob("*"):
            if _is_text(path) and not SKIPPED_FOLDERS & set(path.relative_to(root).parts):
                found.append(path)
    return sorted(found)


def check_tree(root: Path) -> tuple[int, list[Finding]]:
    """Returns the number of files looked at, and all findings."""
    paths = list_sources(root)
    findings = []
    for path in paths:
        relative = PurePosixPath(path.relative_to(root).as_posix())
        findings += check_source(SourceFile(relative, path.read_text(encoding="utf-8")))
    return len(paths), findings


def main(arguments: list[str]) -> int:
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent
    num_files, findings = check_tree(root)
    for finding in findings:
        print(finding)
    print(f"note: {num_files} files, {len(findings)} findings")
    return 1 if findings or num_files == 0 else 0


def _is_text(path: Path) -> bool:
    return path.is_file() and (path.suffix in TEXT_SUFFIXES or path.name in TEXT_NAMES)


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match.group())


def _function_text(name: str, num_lines: int) -> str:
    return f"function {name} has {num_lines} lines, at most {FUNCTION_LINES_MAX}"


def _cpp_functions(code: str) -> Iterator[tuple[str, int, int]]:
    """Yields (name, start, end) of each function body found outside other functions.

    A brace opens a function when a parameter list stands between it and the last statement, and
    every brace around it belongs to a namespace or a type.
    """
    # Of each open brace: whether it is a scope, and the function that it opens, if any.
    open_braces: list[tuple[bool, tuple[str, int] | None]] = []
    statement_start = 0
    for match in re.finditer(r"[{};]", code):
        mark, position = match.group(), match.start()
        if mark == "{":
            header = CPP_ACCESS.sub(_blank, code[statement_start:position])
            header = CPP_ATTRIBUTE.sub(_blank_unless_first, header)
            is_outside = all(is_scope for is_scope, _ in open_braces)
            function = None
            if is_outside and "(" in header:
                names = re.findall(r"([A-Za-z_~][\w~:]*)\s*\(", header)
                start = statement_start + len(header) - len(header.lstrip())
                function = (names[0] if names else "operator", start)
            is_scope = is_outside and function is None and bool(CPP_SCOPE.search(header))
            open_braces.append((is_scope, function))
        elif mark == "}" and open_braces:
            _, function = open_braces.pop()
            if function is not None:
                yield function[0], function[1], position
        statement_start = position + 1


def _blank_unless_first(match: re.Match[str]) -> str:
    """Blanks an annotation, but not a macro that itself is the function, such as a test case."""
    return match.group() if not match.string[: match.start()].strip() else _blank(match)


def _is_sleep(function: ast.expr) -> bool:
    if isinstance(function, ast.Name):
        return function.id == "sleep"
    return (
        isinstance(function, ast.Attribute)
        and function.attr == "sleep"
        and isinstance(function.value, ast.Name)
        and function.value.id in {"time", "asyncio"}
    )


def _has_wait_comment(lines: list[str], line: int) -> bool:
    nearby = "\n".join(lines[max(0, line - 2) : line])
    return re.search(r"//.*\b(?:[Ww]ait|[Pp]ause)", nearby) is not None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
