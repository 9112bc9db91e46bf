"""The exceptions of kvtier: one base class, and the fitting builtin beside it.

Plain classes without state; thread-safe.
"""

import builtins


class KvtierError(Exception):
    """Base of every exception that kvtier raises."""


class ConfigError(KvtierError, ValueError):
    """A setting is unknown, malformed or cannot be honoured on this machine."""


class UsageError(KvtierError, ValueError):
    """An argument of a call does not fit; nothing was read or written."""


class TierIOError(KvtierError, OSError):
    """A tier's medium failed; `errno` says how."""


class TimeoutError(KvtierError, builtins.TimeoutError):
    """A deadline came before the work was complete."""


class StoreBusyError(KvtierError):
    """The directory is in use; the message names the holder's process id."""


class ClosedError(KvtierError):
    """The store was closed, or this process is a fork of the one that opened it."""


class UnsupportedError(KvtierError, NotImplementedError):
    """This kernel, file system or version of kvtier cannot do it."""


class InternalError(KvtierError):
    """An invariant of kvtier does not hold: a bug in kvtier, worth a report."""
