"""What settings say of each other: contradictions, which are errors, and what is of no use.

Tables and pure functions; thread-safe.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from kvtier.config import DEFAULTS, Config
from kvtier.setting_parsers import AUTO


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingRule:
    """One case of settings that do not go together."""

    names: tuple[str, ...]
    """The settings that it looks at."""
    is_met: Callable[[Config], bool]
    text: str


CONTRADICTIONS: Final = (
    SettingRule(
        names=("host_bytes", "path"),
        is_met=lambda config: config.host_bytes == 0 and config.path is None,
        text="a store needs a tier: give host_bytes or path",
    ),
    SettingRule(
        names=("disk_bytes", "path"),
        is_met=lambda config: config.disk_bytes == 0 and config.path is not None,
        text="disk_bytes: 0 with a path; leave path out for no disk tier",
    ),
)

USELESS: Final = (
    SettingRule(
        names=("num_io_threads", "io"),
        is_met=lambda config: config.num_io_threads != AUTO and config.io == "uring",
        text="num_io_threads has no effect: io is uring, which needs no threads",
    ),
    SettingRule(
        names=("shared_arena", "host_bytes"),
        is_met=lambda config: config.shared_arena and config.host_bytes == 0,
        text="shared_arena has no effect: there is no host tier",
    ),
    SettingRule(
        names=("metrics_host", "metrics_port"),
        is_met=lambda config: (
            config.metrics_host != DEFAULTS["metrics_host"] and config.metrics_port == 0
        ),
        text="metrics_host has no effect: metrics_port is 0, so that no port is opened",
    ),
    SettingRule(
        names=("unified", "shared_arena"),
        is_met=lambda config: config.unified == "on" and config.shared_arena,
        text="unified has no effect: shared_arena needs the host tier",
    ),
    SettingRule(
        names=("unified", "host_bytes"),
        is_met=lambda config: config.unified == "on" and config.host_bytes != AUTO,
        text="unified has no effect: host_bytes says how large the host tier is",
    ),
)

# They are for the disk tier alone.
DISK_NAMES: Final = (
    "disk_bytes",
    "staging_bytes",
    "io",
    "direct",
    "checksum",
    "lock_wait_s",
    "on_exit",
    "num_io_threads",
    "unified",
    "stall_s",
)


def find_contradictions(
    config: Config, places: Mapping[str, str], bad_names: set[str]
) -> list[str]:
    """Returns a sentence for each contradiction, with the places of what was stated.

    Rules that look at one of `bad_names`, whose values are unknown, are passed over.
    """
    return [
        f"{rule.text}{places_text(rule.names, places)}"
        for rule in CONTRADICTIONS
        if not bad_names & set(rule.names) and rule.is_met(config)
    ]


def find_useless(config: Config, places: Mapping[str, str]) -> list[str]:
    """Returns a sentence for each setting that was stated and has no effect."""
    found = [
        f"{rule.text}{places_text(rule.names, places)}" for rule in USELESS if rule.is_met(config)
    ]
    if config.path is None:
        idle = [
            name
            for name in DISK_NAMES
            if name in places and getattr(config, name) != DEFAULTS[name]
        ]
        if idle:
            have = "has" if len(idle) == 1 else "have"
            where = places_text(tuple(idle), places)
            found.append(f"{', '.join(idle)} {have} no effect: there is no path{where}")
    return found


def places_text(names: tuple[str, ...], places: Mapping[str, str]) -> str:
    """Returns where those of `names` were stated that were, in parentheses; "" for none."""
    stated = [f"{name}: {places[name]}" for name in names if name in places]
    return f" ({'; '.join(stated)})" if stated else ""
