"""Says what is wrong with a command of the documentation. Pure functions over words."""

import contextlib
import io
import json
import re

from document_pages import ROOT

import kvtier
from kvtier.adapters.vllm import CONNECTOR_NAME
from kvtier.adapters.vllm.connector_settings import parse_connector_settings
from kvtier.cli.main import make_parser

# What a reader puts in the place of these is a number.
_NUMBERS = {"N": "4096", "S": "1", "POINTS": "1,8"}
# Commands of the system and of engines, of which only the name is known here.
_ELSEWHERE = frozenset(
    {"git", "cd", "ls", "pip", "docker", "sudo", "sysctl", "cpupower", "ulimit", "curl", "export"}
    | {"mount", "mkdir", "python", "python3", ".", "source"}
)
_PROGRAM = re.compile(r"^(?:\./)?(?P<file>(?:bench|tools|examples|tests)/\S+)$")


def find_fault(words: list[str]) -> str:
    """Returns why this command could not be given, or ""."""
    while words and re.match(r"^[A-Z_]+=", words[0]):
        words = words[1:]
    if not words:
        return ""
    if words[0] == "kvtier":
        return _kvtier_fault(words[1:])
    if words[0] == "make":
        return _make_fault(words[1:])
    if words[:2] == ["vllm", "serve"]:
        return _vllm_fault(words[2:])
    program = words[1] if words[0].startswith(("python", ".venv")) and len(words) > 1 else words[0]
    match = _PROGRAM.match(program)
    if match:
        return "" if (ROOT / match["file"]).exists() else f"there is no {match['file']}"
    is_known = words[0] in _ELSEWHERE or words[0].startswith((".venv", "build/"))
    return "" if is_known else f"unknown command {words[0]}"


def find_synopsis_fault(words: list[str]) -> str:
    """The same for a synopsis, in which an ellipsis stands for further arguments."""
    if words[-1] in {"...", "…"}:
        return find_fault([*words[:-1], "--help"])
    return find_fault(words)


def _kvtier_fault(arguments: list[str]) -> str:
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            make_parser().parse_args([_NUMBERS.get(word, word) for word in arguments])
    except SystemExit as end:
        return said.getvalue().strip() if end.code else ""
    return ""


def _make_fault(arguments: list[str]) -> str:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))
    unknown = [word for word in arguments if "=" not in word and word not in targets]
    return f"no such target of make: {unknown}" if unknown else ""


def _vllm_fault(arguments: list[str]) -> str:
    if "--kv-transfer-config" not in arguments:
        return ""
    text = arguments[arguments.index("--kv-transfer-config") + 1]
    try:
        settings = json.loads(text)
    except ValueError as error:
        return f"not JSON: {error}"
    if settings.get("kv_connector") != CONNECTOR_NAME:
        return f"unknown connector {settings.get('kv_connector')}"
    try:
        parse_connector_settings(settings.get("kv_connector_extra_config", {}))
    except kvtier.ConfigError as error:
        return str(error)
    return ""
