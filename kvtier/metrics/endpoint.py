"""MetricsEndpoint: answers Prometheus over HTTP. Thread-safe; one request at a time."""

from __future__ import annotations

import errno
import os
import selectors
import socket
import socketserver
import threading
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
"""How long one that sends or takes nothing holds up others."""
_END_WAIT_S: Final = 0.5
_SHORTAGE_WAIT_S: Final = 1.0
_SHORTAGES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class _Server(socketserver.TCPServer):
    # A port that was just given back may be taken at once; one in use may not.
    allow_reuse_address = True
    request_queue_size = 16

    def __init__(self, family: int, address: tuple[str, int], registry: CollectorRegistry) -> None:
        self.address_family = family
        self.is_short_of_descriptors = False
        super().__init__(address, _Handler.factory(registry))

    def get_request(self) -> tuple[socket.socket, object]:
        """Takes a connection, and notes whether the process can have no more of them."""
        try:
            taken: tuple[socket.socket, object] = super().get_request()
        except OSError as error:
            self.is_short_of_descriptors = error.errno in _SHORTAGES
            raise
        self.is_short_of_descriptors = False
        return taken

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is not this program's trouble."""
        logger.debug("metrics: no answer to %s", client_address, exc_info=True)


class _Handler(MetricsHandler):
    timeout = CLIENT_TIMEOUT_S

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

    def close(self) -> None:
        """Gives the port back. May be called again. A client in the middle may lose its answer."""
        with self._mutex:
            if self._ended.is_set():
                return
            self._ended.set()
        os.write(self._wake_target, b"x")
        thread = self._thread
        # A store that nobody kept may be closed by this very thread.
        if thread is not None and thread is not threading.current_thread():
            thread.join(_END_WAIT_S)
        self._server.server_close()
        if thread is None or not thread.is_alive():
            os.close(self._wake_source)
        os.close(self._wake_target)

    def abandon_after_fork(self) -> None:
        """In a forked child: closes the descriptors, or the port would stay taken. No lock."""
        if self._ended.is_set():
            return  # They are closed, and their numbers may be others' by now.
        self._server.socket.close()
        for descriptor in (self._wake_source, self._wake_target):
            os.close(descriptor)


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
