"""Collects what kvtier says to users, from its sources, and looks it up in a page.

Values within a message are "…". Pure functions.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from document_pages import ROOT

# Calls whose first text is read by a user; SettingRule's is.
_SAID_BY = frozenset(
    {"ConfigError", "StoreBusyError", "UnsupportedError", "SettingRule"}
    | {"warning", "warn_once", "_warn", "append"}
)
# `append` adds to many lists; these are shown to users.
_SHOWN_LISTS = frozenset({"problems", "warnings", "concerns"})
# They print a report of their own, which docs/doctor.md and the report explain.
_REPORTS = ("kvtier/bench/", "kvtier/cli/")
_CPP_LOG = re.compile(r'(?:\blog_?|->push)\(\s*"(?:warning|error)",(?P<text>.*?)\);', re.DOTALL)
# Refusals of the layers that read settings and folders.
_CPP_REFUSAL = re.compile(r"StatusCode::(?:kConfig|kBusy),(?P<text>.*?)\)\s*;", re.DOTALL)
_REFUSING_LAYERS = frozenset({"store", "io", "memory", "disk"})
_CPP_LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"|([^"]+)')
_FRAGMENT_CHARACTERS_MIN = 8


def find_messages() -> list[str]:
    """Returns each message that says more than its values do, once, in the order of files."""
    found: dict[str, None] = {}
    for path in sorted((ROOT / "kvtier").rglob("*.py")):
        if not str(path.relative_to(ROOT)).startswith(_REPORTS):
            found |= dict.fromkeys(_python_messages(path))
    for path in sorted((ROOT / "csrc").rglob("*.cc")):
        if "testing" not in path.parts:
            found |= dict.fromkeys(_cpp_messages(path))
    return [it for it in found if _fragments(it)]


def is_documented(message: str, page: str) -> bool:
    """Returns whether what is constant in `message` stands in `page`, in one line and in order."""
    pattern = ".*?".join(re.escape(it) for it in _fragments(message))
    return re.search(pattern, page) is not None


def _fragments(message: str) -> list[str]:
    pieces = (piece.strip(" :;,()'\"") for piece in message.split("…"))
    return [piece for piece in pieces if len(piece) >= _FRAGMENT_CHARACTERS_MIN]


def _python_messages(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func).split(".")
        if name[-1] not in _SAID_BY or (name[-1] == "append" and name[0] not in _SHOWN_LISTS):
            continue
        for argument in (*node.args, *(it.value for it in node.keywords)):
            text = _literal(argument)
            if text:
                yield text


def _literal(node: ast.expr) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.sub(r"%[sd]", "…", node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_literal(it) if isinstance(it, ast.Constant) else "…" for it in node.values)
    return ""


def _cpp_messages(path: Path) -> Iterator[str]:
    text = path.read_text(encoding="utf-8")
    matches = list(_CPP_LOG.finditer(text))
    if path.parent.name in _REFUSING_LAYERS:
        matches += _CPP_REFUSAL.finditer(text)
    for match in matches:
        pieces = _CPP_LITERAL.findall(match["text"])
        yield "".join(said or ("" if not code.strip() else "…") for said, code in pieces)
