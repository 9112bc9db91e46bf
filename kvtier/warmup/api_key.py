"""The key that a server asks for: where it comes from, and where it is sent. Pure functions."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Final

from kvtier.core_log import logger
from kvtier.errors import ConfigError
from kvtier.http_stream import ServerUrl

USUAL_VARIABLE: Final = "OPENAI_API_KEY"


def choose_key(
    server: ServerUrl, variable: str | None, environment: Mapping[str, str]
) -> str | None:
    """Returns the key to send to `server`; None: none.

    variable: the one that the user named; None: the usual one. That may be set for another server:
              it is not sent where others could read it on the way. Raises ConfigError, which names
              the variable and never the key.
    """
    name = USUAL_VARIABLE if variable is None else variable
    key = environment.get(name, "").strip()
    if not key:
        return None
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(
            f"environment variable {name}: the key in it holds characters that no key has, such as "
            "ends of lines; set it to the key alone"
        )
    if variable is None and not server.is_secure and not _is_loopback(server.host):
        logger.warning(
            "the key in %s is not sent, as others can read it on the way to %s; use https, or "
            "--api-key-variable %s to send it all the same",
            name,
            server,
            name,
        )
        return None
    return key


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
