"""Finds the tests that a page names as `FILE::NAME`, in Python and C++. Pure functions."""

import re

from document_pages import ROOT

_NAMED = re.compile(r"`(?P<file>tests/[\w/]+\.(?:py|cc))::(?P<name>[^`]+)`")


def named_tests(text: str) -> list[tuple[str, str]]:
    """Returns (file, name) of each test that `text` names."""
    return [(match["file"], match["name"]) for match in _NAMED.finditer(text)]


def find_missing_tests(text: str) -> list[str]:
    """Returns the named tests that are not there."""
    return [f"{file}::{name}" for file, name in named_tests(text) if not _is_there(file, name)]


def _is_there(file: str, name: str) -> bool:
    path = ROOT / file
    if not path.is_file():
        return False
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return re.search(rf"^ *def {re.escape(name)}\(", source, re.MULTILINE) is not None
    return re.search(rf'TEST_CASE\w*\(\s*"{re.escape(name)}"', source) is not None
