"""The port: opened and given back with its store, and local unless asked otherwise."""

import errno
import gc
import os
import socket
import socketserver
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from child_process import run_well
from free_port import find_free_port
from store_setup import OpenStore

import kvtier
from kvtier.config import SETTINGS
from kvtier.errors import ConfigError

pytest.importorskip("prometheus_client")

from kvtier.metrics import endpoint as endpoint_module
from kvtier.metrics.endpoint import CLIENT_TIMEOUT_S, REQUEST_BYTES_MAX, MetricsEndpoint


def scrape(port: int, host: str = "127.0.0.1") -> str:
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=30) as answer:
        assert answer.status == 200
        assert answer.headers["Content-Type"].startswith("text/plain")
        text: str = answer.read().decode()
        return text


def is_refused(port: int, host: str = "127.0.0.1") -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == errno.ECONNREFUSED


def test_a_store_answers_while_it_is_open(open_store: OpenStore) -> None:
    port = find_free_port()
    store = open_store(metrics_port=port)
    text = scrape(port)
    assert "\nkvtier_up 1.0\n" in text
    # Of the process itself nothing is told.
    assert "python_info" not in text
    store.close()
    store.close()
    assert is_refused(port)
    # At once, although the last connection is not forgotten yet.
    open_store(metrics_port=port)
    assert "\nkvtier_up 1.0\n" in scrape(port)


def test_nothing_is_opened_unless_asked_for(open_store: OpenStore) -> None:
    before = threading.active_count()
    store = open_store()
    assert threading.active_count() == before
    assert store.config()["metrics_port"] == {"value": 0, "origin": "default"}
    assert store.config()["metrics_host"]["value"] == "127.0.0.1"


def test_only_the_address_that_was_given_answers(open_store: OpenStore) -> None:
    port = find_free_port()
    open_store(metrics_port=port)
    assert is_refused(port, "127.0.0.2")
    open_store(metrics_port=port, metrics_host="127.0.0.2")
    assert "kvtier_up" in scrape(port, "127.0.0.2")


def test_a_port_in_use_is_named_and_opens_no_store(open_store: OpenStore) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"metrics_port: cannot listen on port {port} of .*"):
            open_store(metrics_port=port)


def test_a_store_that_does_not_open_gives_the_port_back(
    open_store: OpenStore, disk_folder: Path
) -> None:
    port = find_free_port()
    open_store(disk_folder / "store")
    with pytest.raises(kvtier.StoreBusyError):
        open_store(disk_folder / "store", metrics_port=port)
    assert is_refused(port)


def test_an_address_of_another_machine_is_refused(open_store: OpenStore) -> None:
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1"):
        open_store(metrics_port=find_free_port(), metrics_host="192.0.2.1")


@pytest.mark.parametrize("port", [-1, 65_536, "http", 1.5, True])
def test_ports_that_do_not_exist_are_refused(port: object) -> None:
    with pytest.raises(ConfigError, match="metrics_port"):
        kvtier.Config(metrics_port=port)  # type: ignore[arg-type]


@pytest.mark.parametrize("host", ["", " ", "http://x", 7, None, "a b", "münchen"])
def test_what_is_no_host_is_refused(host: object) -> None:
    with pytest.raises(ConfigError, match="metrics_host"):
        kvtier.Config(metrics_host=host)  # type: ignore[arg-type]
    assert SETTINGS["metrics_host"].parse(" localhost ", "metrics_host") == "localhost"


def test_a_store_that_nobody_keeps_gives_the_port_back() -> None:
    port = find_free_port()
    store = kvtier.open(host_bytes="4MiB", metrics_port=port)
    assert "kvtier_up" in scrape(port)
    del store
    gc.collect()
    assert is_refused(port)


def test_a_client_that_says_nothing_holds_others_up_for_seconds_only() -> None:
    endpoint = MetricsEndpoint("127.0.0.1", 0, named="--port")
    endpoint.start()
    port = int(endpoint.url.split(":")[-1].split("/")[0])
    with socket.create_connection(("127.0.0.1", port), timeout=30) as silent:
        assert scrape(port) == ""
        assert silent.recv(1) == b""  # It was hung up on.
    endpoint.close()
    assert is_refused(port)
    assert CLIENT_TIMEOUT_S < 5


def test_a_client_that_sends_byte_by_byte_gets_no_more_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 100.0
    monkeypatch.setattr(endpoint_module.time, "monotonic", lambda: now_s)
    client, server = socket.socketpair()
    with client, server:
        request = endpoint_module._Request(server)
        client.sendall(b"GET")
        for byte in b"GE":
            assert request.readinto(memoryview(content := bytearray(1))) == 1
            assert content[0] == byte
            now_s += 0.4 * CLIENT_TIMEOUT_S
        assert request.readinto(memoryview(bytearray(1))) == 1
        assert server.gettimeout() == pytest.approx(0.2 * CLIENT_TIMEOUT_S)
        client.sendall(b"more")
        now_s += 0.4 * CLIENT_TIMEOUT_S
        with pytest.raises(TimeoutError):
            request.readinto(memoryview(bytearray(1)))


def test_a_request_larger_than_any_scrape_is_not_answered(open_store: OpenStore) -> None:
    port = find_free_port()
    open_store(metrics_port=port)

    def answer_to(num_bytes: int) -> bytes:
        head, end = b"GET /metrics HTTP/1.0\r\n", b"\r\n\r\n"
        line = b"X: " + b"x" * 195 + b"\r\n"
        lines = line * ((num_bytes - len(head + end)) // len(line) - 1)
        fill = b"X: " + b"x" * (num_bytes - len(head + lines + end) - 3)
        with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
            client.sendall(head + lines + fill + end)
            try:
                return client.recv(15)
            except ConnectionResetError:
                return b""

    assert answer_to(REQUEST_BYTES_MAX) == b"HTTP/1.0 200 OK"
    assert answer_to(REQUEST_BYTES_MAX + 1) == b""
    assert "kvtier_up" in scrape(port)


def test_an_endpoint_that_closes_while_it_waits_for_a_client_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(endpoint_module, "CLIENT_TIMEOUT_S", 100.0)
    is_reading = threading.Event()
    read = endpoint_module._Request.readinto

    def read_later(request: endpoint_module._Request, buffer: memoryview) -> int:
        is_reading.set()
        return read(request, buffer)

    monkeypatch.setattr(endpoint_module._Request, "readinto", read_later)
    descriptors = sorted(os.listdir("/proc/self/fd"))
    endpoint = MetricsEndpoint("127.0.0.1", 0, named="--port")
    endpoint.start()
    port = int(endpoint.url.split(":")[-1].split("/")[0])
    with socket.create_connection(("127.0.0.1", port), timeout=60):
        assert is_reading.wait(60)
        endpoint.close()
        assert endpoint._thread is not None
        assert not endpoint._thread.is_alive()
    assert sorted(os.listdir("/proc/self/fd")) == descriptors


def test_an_endpoint_that_is_closed_by_its_own_thread_leaves_nothing() -> None:
    descriptors = sorted(os.listdir("/proc/self/fd"))
    endpoint = MetricsEndpoint("127.0.0.1", 0, named="--port")

    class Closing:
        def collect(self) -> list[object]:
            endpoint.close()
            return []

    endpoint._registry.register(Closing())  # type: ignore[arg-type]
    endpoint.start()
    assert scrape(int(endpoint.url.split(":")[-1].split("/")[0])) == ""
    assert endpoint._thread is not None
    endpoint._thread.join(60)
    assert not endpoint._thread.is_alive()
    assert sorted(os.listdir("/proc/self/fd")) == descriptors


def test_a_process_without_descriptors_does_not_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    take = socketserver.TCPServer.get_request
    num_failures = 0

    def take_later(server: socketserver.TCPServer) -> object:
        nonlocal num_failures
        if num_failures == 0:
            num_failures += 1
            raise OSError(errno.EMFILE, "too many open files")
        return take(server)

    monkeypatch.setattr(socketserver.TCPServer, "get_request", take_later)
    endpoint = MetricsEndpoint("127.0.0.1", 0, named="--port")
    waits: list[float] = []
    wait = endpoint._ended.wait
    monkeypatch.setattr(endpoint._ended, "wait", lambda s: waits.append(s) or wait(0))
    endpoint.start()
    assert scrape(int(endpoint.url.split(":")[-1].split("/")[0])) == ""
    assert (num_failures, len(waits)) == (1, 1)
    endpoint.close()


def test_an_endpoint_that_never_answered_closes() -> None:
    endpoint = MetricsEndpoint("127.0.0.1", 0, named="--port")
    endpoint.close()
    endpoint.close()


def test_a_forked_child_does_not_keep_the_port() -> None:
    code = """
import os, sys, kvtier
port = int(sys.argv[1])
store = kvtier.open(host_bytes="4MiB", metrics_port=port)
told, tell = os.pipe()
child = os.fork()
if child == 0:
    os.close(tell)
    os.read(told, 1)
    store.close()
    os._exit(0)
store.close()
again = kvtier.open(host_bytes="4MiB", metrics_port=port)
again.close()
os.close(tell)
assert os.waitpid(child, 0)[1] == 0
print("well")
"""
    assert run_well(code, find_free_port()) == "well\n"


def test_a_process_that_forgets_to_close_ends_well() -> None:
    code = """
import sys, kvtier
store = kvtier.open(host_bytes="4MiB", metrics_port=int(sys.argv[1]))
print("well")
"""
    assert run_well(code, find_free_port()) == "well\n"


def test_ipv6_where_there_is_any() -> None:
    try:
        endpoint = MetricsEndpoint("::1", 0, named="--port")
    except ConfigError as error:
        pytest.skip(str(error))
    assert endpoint.url.startswith("http://[::1]:")
    endpoint.close()
