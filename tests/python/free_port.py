"""A port of this machine that was free a moment ago. Stateless."""

import socket


def find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
