"""MetricsEndpoint: answers Prometheus over HTTP. Thread-safe; one request at a time."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import selectors
import socket
import socketserver
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, MetricsHandler

from kvtier.core_log import logger
from kvtier.errors import ConfigError
from kvtier.metrics.registration import register_source
from kvtier.units import show

if TYPE_CHECKING:
    from kvtier.block_store import BlockStore
    from kvtier.monitor import Monitor

CLIENT_TIMEOUT_S: Final = 2.0
"""How long a client may take for its whole request, and for taking each part of the answer."""
REQUEST_BYTES_MAX: Final = 8192
_END_WAIT_S: Final = 5.0
_SHORTAGE_WAIT_S: Final = 1.0
_SHORTAGES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class _Server(socketserver.TCPServer):
    # A port that was just given back may be taken at once; one in use may not.
    allow_reuse_address = True
    request_queue_size = 16

    def __init__(self, family: int, address: tuple[str, int], registry: CollectorRegistry) -> None:
        self.address_family = family
        self.is_short_of_descriptors = False
        self._client: socket.socket | None = None
        self._is_cut_off = False
        # Guards both, so that no descriptor is hung up on that is another one's by now.
        self._mutex = threading.Lock()
        super().__init__(address, _Handler.factory(registry))

    def get_request(self) -> tuple[socket.socket, object]:
        """Takes a connection, and notes whether the process can have no more of them."""
        try:
            taken: tuple[socket.socket, object] = super().get_request()
        except OSError as error:
            self.is_short_of_descriptors = error.errno in _SHORTAGES
            raise
        self.is_short_of_descriptors = False
        with self._mutex:
            self._client = taken[0]
            if self._is_cut_off:
                _hang_up(self._client)
        return taken

    def shutdown_request(self, request: socket.socket | tuple[bytes, socket.socket]) -> None:
        """Ends a connection."""
        with self._mutex:
            self._client = None
        super().shutdown_request(request)

    def cut_off(self) -> None:
        """Hangs up on the client that is being answered, and on any that comes."""
        with self._mutex:
            self._is_cut_off = True
            if self._client is not None:
                _hang_up(self._client)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is not this program's trouble."""
        logger.debug("metrics: no answer to %s", client_address, exc_info=True)


class _Request(io.RawIOBase):
    """What a client sends, up to a time and a size: a read alone would wait anew for each byte."""

    def __init__(self, client: socket.socket) -> None:
        self._client = client
        self._deadline_s = time.monotonic() + CLIENT_TIMEOUT_S
        self._num_bytes_left = REQUEST_BYTES_MAX

    def readable(self) -> bool:
        """Returns True: a buffered reader asks."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Raises TimeoutError, and ValueError when there is more than a scrape needs."""
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the request did not come in time")
        if self._num_bytes_left == 0:
            raise ValueError(f"the request has more than {REQUEST_BYTES_MAX} bytes")
        self._client.settimeout(left_s)
        num_bytes = self._client.recv_into(buffer[: self._num_bytes_left])
        self._num_bytes_left -= num_bytes
        return num_bytes


class _Handler(MetricsHandler):
    timeout = CLIENT_TIMEOUT_S

    def setup(self) -> None:
        """Reads with a deadline."""
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_Request(self.connection))

    def parse_request(self) -> bool:
        """Reads the rest of a request; its answer has a time of its own."""
        is_whole = super().parse_request()
        self.connection.settimeout(CLIENT_TIMEOUT_S)
        return is_whole

    def version_string(self) -> str:
        """Returns what the answer says of the server: nothing that helps to break in."""
        return "kvtier"


class MetricsEndpoint:
    """A port that shows what is in its own registry, and nothing else of the process."""

    def __init__(self, host: str, port: int, *, named: str) -> None:
        """Binds `port` (0: any that is free); nobody is answered yet.

        named: the setting or option that said the port, for errors.
        Raises ConfigError (the host is none of this machine, the port is in use or forbidden).
        """
        self._registry = CollectorRegistry()
        self._server = _bind(host, port, self._registry, named)
        self._wake_source, self._wake_target = os.pipe()
        self._thread: threading.Thread | None = None
        self._mutex = threading.Lock()
        self._ended = threading.Event()

    @property
    def url(self) -> str:
        """Returns where to scrape."""
        host, port = self._server.server_address[:2]
        text = host.decode() if isinstance(host, bytes) else str(host)
        return f"http://{f'[{text}]' if ':' in text else text}:{port}/metrics"

    def show(self, source: BlockStore | Monitor, labels: Mapping[str, str] | None = None) -> None:
        """Adds a store. As kvtier.metrics.register()."""
        register_source(source, self._registry, dict(labels or {}))

    def start(self) -> None:
        """Begins to answer, in a thread of its own."""
        self._thread = threading.Thread(target=self.serve, name="kvtier-metrics", daemon=True)
        self._thread.start()
        logger.info("metrics at %s", self.url)

    def serve(self) -> None:
        """Answers in this thread until close()."""
        try:
            self._answer_until_woken()
        finally:
            if self._ended.is_set():
                self._close_wake_source()

    def close(self) -> None:
        """Gives the port back. May be called again. A client in the middle may lose its answer."""
        with self._mutex:
            if self._ended.is_set():
                return
            self._ended.set()
        os.write(self._wake_target, b"x")
        os.close(self._wake_target)
        thread = self._thread
        # A store that nobody kept may be closed by this very thread, which then ends by itself.
        if thread is not None and thread is not threading.current_thread():
            self._server.cut_off()
            thread.join(_END_WAIT_S)
        self._server.server_close()
        if thread is None or not thread.is_alive():
            self._close_wake_source()

    def abandon_after_fork(self) -> None:
        """In a forked child: closes the descriptors, or the port would stay taken. No lock."""
        if self._ended.is_set():
            return  # They are closed, and their numbers may be others' by now.
        self._server.socket.close()
        for descriptor in (self._wake_source, self._wake_target):
            os.close(descriptor)
        # They may be held by threads that this process does not have.
        self._mutex, self._ended = threading.Lock(), threading.Event()
        self._ended.set()

    def _answer_until_woken(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._server, selectors.EVENT_READ)
            selector.register(self._wake_source, selectors.EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in selector.select()}
                if self._wake_source in ready:
                    return
                self._server.handle_request()
                if self._server.is_short_of_descriptors:
                    # The connection waits on and would wake this loop at once, again and again.
                    self._ended.wait(_SHORTAGE_WAIT_S)

    def _close_wake_source(self) -> None:
        with self._mutex:
            descriptor, self._wake_source = self._wake_source, -1
        if descriptor >= 0:
            os.close(descriptor)


def _hang_up(client: socket.socket) -> None:
    # It may have gone already.
    with contextlib.suppress(OSError):
        client.shutdown(socket.SHUT_RDWR)


def _bind(host: str, port: int, registry: CollectorRegistry, named: str) -> _Server:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        server = _Server(family, (str(address[0]), port), registry)
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"{named}: cannot listen on port {port} of {show(host)}: {error}; another port, "
            "or another address of this machine, will do"
        ) from error
    # A connection may be gone before it is accepted; nobody waits for the next one there.
    server.socket.setblocking(False)
    server.timeout = 0
    return server
