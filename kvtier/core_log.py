"""Hands the core's log lines to the standard logger "kvtier", with repeated lines held back.

Thread-safe: a race can only let a line more through.
"""

import logging
import re
import time
from collections.abc import Callable
from typing import Final

LINES_PER_INTERVAL_MAX: Final = 3
INTERVAL_S: Final = 60.0
_TEMPLATES_MAX: Final = 256
_SAID_ONCE_MAX: Final = 4096
_NUMBERS: Final = re.compile(r"\b[0-9a-f]{8,}\b|[0-9]+")

logger: Final = logging.getLogger("kvtier")


class RepeatLimiter:
    """Lets the first few lines of a kind through in each interval, and counts the others.

    Lines are of one kind when they differ in numbers only.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        # Template -> (start of the interval, lines let through, lines held back).
        self._seen: dict[str, tuple[float, int, int]] = {}

    def admit(self, text: str) -> str | None:
        """Returns the line to log, or None when it is one too many."""
        template = _NUMBERS.sub("#", text)
        now_s = self._clock_s()
        start_s, num_passed, num_held_back = self._seen.get(template, (now_s, 0, 0))
        if now_s - start_s >= INTERVAL_S:
            self._seen[template] = (now_s, 1, 0)
            note = f" ({num_held_back} more of these were left out)" if num_held_back else ""
            return text + note
        if num_passed >= LINES_PER_INTERVAL_MAX:
            self._seen[template] = (start_s, num_passed, num_held_back + 1)
            return None
        if len(self._seen) >= _TEMPLATES_MAX:
            self._seen.clear()
        self._seen[template] = (start_s, num_passed + 1, num_held_back)
        if num_passed + 1 == LINES_PER_INTERVAL_MAX:
            return f"{text} (more of these are left out for {INTERVAL_S:.0f} s)"
        return text


_limiter: Final = RepeatLimiter()
_said_once: Final[set[tuple[str, ...]]] = set()


def log_core_line(level: str, text: str, *, path: str | None = None) -> None:
    """Logs one line of the core. Never raises: a log line must not fail a put.

    path: the store's folder, for the record's attribute `store_path`.
    """
    admitted = _limiter.admit(f"{level} {text}")
    if admitted is not None:
        is_warning = level != "info"
        logger.log(
            logging.WARNING if is_warning else logging.INFO,
            "%s",
            admitted[len(level) + 1 :],
            extra={"store_path": path},
        )


def warn_once(topic: tuple[str, ...], text: str) -> None:
    """Logs a warning the first time that `topic` comes up in this process."""
    if topic in _said_once:
        return
    if len(_said_once) >= _SAID_ONCE_MAX:
        _said_once.clear()
    _said_once.add(topic)
    logger.warning("%s", text)
