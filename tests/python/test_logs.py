"""Log lines as JSON; and that a thousand failures are a few lines with errno and file."""

import json
import logging
import sys

import pytest
from child_process import run_python

from kvtier.logs import JsonFormatter


def format_message(message: str, *arguments: object, level: int = logging.WARNING) -> dict:
    record = logging.LogRecord("kvtier", level, __file__, 1, message, arguments, None)
    record.created = 1_700_000_000.25
    line = JsonFormatter().format(record)
    assert "\n" not in line
    fields: dict = json.loads(line)
    return fields


def test_a_line_has_time_level_and_values() -> None:
    told = format_message("cannot read %s: path=/mnt/kv errno=5, got_bytes=-1", "record")
    assert told == {
        "time": "2023-11-14T22:13:20.250+00:00",
        "level": "warning",
        "logger": "kvtier",
        "message": "cannot read record: path=/mnt/kv errno=5, got_bytes=-1",
        "values": {"path": "/mnt/kv", "errno": 5, "got_bytes": -1},
    }


@pytest.mark.parametrize(
    ("message", "values"),
    [
        ("File too large (errno=27)", {"errno": 27}),
        ('path="/a b/c": gone', {"path": "/a b/c"}),
        ("key=00ff slot=7", {"key": "00ff", "slot": 7}),
        ("id=99999999999999999999", {"id": "99999999999999999999"}),
    ],
)
def test_values_are_found_where_the_core_writes_them(
    message: str, values: dict[str, object]
) -> None:
    assert format_message(message)["values"] == values


def test_a_line_without_values_has_none_and_stays_one_line() -> None:
    told = format_message('a "quoted"\nline, ünïcode', level=logging.INFO)
    assert told["message"] == 'a "quoted"\nline, ünïcode'
    assert told["level"] == "info"
    assert "values" not in told
    assert "exception" not in told


def test_an_exception_is_told_whole() -> None:
    try:
        raise OSError(5, "broken")
    except OSError:
        record = logging.LogRecord("kvtier", logging.ERROR, "f", 1, "it", (), sys.exc_info())
    told = json.loads(JsonFormatter().format(record))
    assert "OSError: [Errno 5] broken" in told["exception"]


FAILING_PUTS = """
import json, logging, resource, sys, kvtier
from kvtier.logs import JsonFormatter
handler = logging.StreamHandler(sys.stdout)
handler.setFormatter(JsonFormatter())
logging.getLogger("kvtier").addHandler(handler)
path, io, host_bytes, has_segment = sys.argv[1:]
store = kvtier.open(path, host_bytes=host_bytes, disk_bytes="64MiB", staging_bytes="4MiB", io=io)
ns = store.namespace(model="m", block_bytes=10_000, block_tokens=4, fingerprint="f")
if has_segment == "True":  # Then writes fail; else the file cannot be made.
    ns.put(ns.keys(range(4)), bytes(10_000))
    store.flush()
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
for i in range(1, 1001):
    ns.put(ns.keys(range(4 * i, 4 * i + 4)), bytes(10_000))
try:
    store.flush(5)
except kvtier.KvtierError:
    pass
while store.stats()["live_failures"] == 0:
    pass  # A quarter of a second: what other processes see cannot be written either.
print(json.dumps(store.stats()["tiers"]["disk"]["inserted"]))
store.close()
"""


@pytest.mark.parametrize("io", ["auto", "threads"])
@pytest.mark.parametrize("host_bytes", ["0", "16MiB"])
@pytest.mark.parametrize("has_segment", [True, False])
def test_a_thousand_failing_puts_are_a_few_lines_with_errno_and_file_k5(
    disk_folder: object, io: str, host_bytes: str, has_segment: bool
) -> None:
    done = run_python(FAILING_PUTS, f"{disk_folder}/store", io, host_bytes, has_segment)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    told = [json.loads(line) for line in lines if line.startswith("{")]
    assert len(told) <= 10, done.stdout
    # Nothing more than the first was stored: the puts did fail.
    (num_inserted,) = (int(line) for line in lines if line.isdecimal())
    assert num_inserted == int(has_segment)
    # What close() says of its own files is not of puts.
    of_puts = told[: lines.index(str(num_inserted))]
    failures = [it for it in of_puts if it.get("values", {}).get("errno") == 27]
    assert any("segment-" in it["message"] for it in failures), done.stdout
    assert all("segment-" in it["message"] or "path" in it["values"] for it in failures)
    assert {it["store"] for it in failures} == {f"{disk_folder}/store"}
