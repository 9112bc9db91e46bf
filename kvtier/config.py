"""Config: every setting of a store with its default, range and price, checked once, all at once.

Frozen values; thread-safe.
"""

import dataclasses
import difflib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from kvtier.errors import ConfigError
from kvtier.setting_parsers import (
    AUTO,
    Parser,
    SettingValue,
    make_choice,
    make_seconds,
    make_size,
    make_whole,
    parse_boolean,
    parse_host,
    parse_numa,
    parse_path,
)
from kvtier.units import MIB, show


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is to be known of one field of Config."""

    parse: Parser
    unit: str
    range_text: str
    meaning: str
    price: str
    """What gets worse when the value is raised (or switched on)."""


def _setting(
    parse: Parser, *, unit: str, range_text: str, meaning: str, price: str
) -> Mapping[str, Setting]:
    setting = Setting(parse=parse, unit=unit, range_text=range_text, meaning=meaning, price=price)
    return {"setting": setting}


@dataclass(frozen=True, kw_only=True)
class Config:
    """The settings of a store. Sizes may be ints (bytes) or text with a unit.

    Raises ConfigError that lists every bad value.
    """

    path: str | os.PathLike[str] | None = field(
        default=None,
        metadata=_setting(
            parse_path,
            unit="path",
            range_text="a folder, made when missing",
            meaning="folder of the disk tier; none: no disk tier",
            price="-",
        ),
    )
    host_bytes: int | str = field(
        default=AUTO,
        metadata=_setting(
            make_size(0, is_auto_allowed=True),
            unit="bytes",
            range_text='0 to 64 TiB, or "auto": 20 % of the memory limit',
            meaning="size of the host tier; 0: no host tier",
            price="memory for everything else on the machine",
        ),
    )
    staging_bytes: int | str = field(
        default=64 * MIB,
        metadata=_setting(
            make_size(8192),
            unit="bytes",
            range_text="8 KiB to 64 TiB",
            meaning="where loads land that get no host slot; only with a disk tier",
            price="memory, on top of host_bytes",
        ),
    )
    disk_bytes: int | str = field(
        default=AUTO,
        metadata=_setting(
            make_size(0, is_auto_allowed=True),
            unit="bytes",
            range_text='1 to 64 TiB, or "auto": 80 % of own and free space',
            meaning="hard cap on what kvtier's files allocate in the folder",
            price="space for everything else on the disk",
        ),
    )
    io: str = field(
        default=AUTO,
        metadata=_setting(
            make_choice(AUTO, "uring", "threads"),
            unit="word",
            range_text="auto, uring, threads",
            meaning="how disk operations are issued",
            price="-",
        ),
    )
    direct: str = field(
        default=AUTO,
        metadata=_setting(
            make_choice(AUTO, "on", "off"),
            unit="word",
            range_text="auto, on, off",
            meaning="whether blocks bypass the page cache",
            price="on: refused where the file system cannot; off: the page cache is filled",
        ),
    )
    eviction: str = field(
        default="adaptive",
        metadata=_setting(
            make_choice("adaptive", "lru", "s3fifo"),
            unit="word",
            range_text="adaptive, lru, s3fifo",
            meaning="which blocks a full tier gives up; adaptive also chooses what it takes in",
            price="lru, s3fifo: a full disk is written with blocks that nobody asks for again",
        ),
    )
    checksum: bool = field(
        default=True,
        metadata=_setting(
            parse_boolean,
            unit="bool",
            range_text="true, false",
            meaning="whether every disk read is verified",
            price="CPU time; off: flipped bytes on the medium are served",
        ),
    )
    shared: bool = field(
        default=False,
        metadata=_setting(
            parse_boolean,
            unit="bool",
            range_text="false",
            meaning="several processes in one folder; not supported yet",
            price="-",
        ),
    )
    shared_arena: bool = field(
        default=False,
        metadata=_setting(
            parse_boolean,
            unit="bool",
            range_text="true, false",
            meaning="whether other processes can map the host tier, to move its blocks themselves",
            price="small pages where the system has no huge ones for shared memory: slower copies",
        ),
    )
    numa: str = field(
        default=AUTO,
        metadata=_setting(
            parse_numa,
            unit="nodes",
            range_text='auto, off, interleave, or nodes such as "0" or "0-1,3"',
            meaning="NUMA nodes that host memory comes from; auto: all in turn, or the first GPU's",
            price="one node: its memory for everything else; several: half of each copy is remote",
        ),
    )
    default_timeout_s: float = field(
        default=30.0,
        metadata=_setting(
            make_seconds(0.0, float("inf")),
            unit="seconds",
            range_text="0 and up",
            meaning="deadline of calls that state none",
            price="how long a caller waits for a disk that hangs",
        ),
    )
    lock_wait_s: float = field(
        default=0.0,
        metadata=_setting(
            make_seconds(0.0, float("inf")),
            unit="seconds",
            range_text="0 and up",
            meaning="how long open() waits for a folder in use",
            price="how late a forgotten second process is noticed",
        ),
    )
    on_exit: str = field(
        default="keep",
        metadata=_setting(
            make_choice("keep", "delete"),
            unit="word",
            range_text="keep, delete",
            meaning="what close() does with the files",
            price="delete: nothing is there after a restart",
        ),
    )
    max_blocks: int = field(
        default=16_777_216,
        metadata=_setting(
            make_whole(1, 2**32 - 2),
            unit="blocks",
            range_text="1 to 4,294,967,294",
            meaning="how many blocks the index may hold",
            price="memory of the index, up to 128 bytes a block",
        ),
    )
    num_io_threads: int | str = field(
        default=AUTO,
        metadata=_setting(
            make_whole(1, 256, is_auto_allowed=True),
            unit="threads",
            range_text='1 to 256, or "auto": 8, and 2 where one CPU is usable',
            meaning="threads that read and write when io is threads",
            price="CPU time and switches beyond what the disk can use",
        ),
    )
    transfer_ctas: int = field(
        default=8,
        metadata=_setting(
            make_whole(2, 64),
            unit="processors",
            range_text="2 to 64",
            meaning="processors of a GPU that kernels of saves, and those of loads, may keep busy",
            price="speed of the engine's own kernels while blocks move",
        ),
    )
    unified: str = field(
        default=AUTO,
        metadata=_setting(
            make_choice(AUTO, "on", "off"),
            unit="word",
            range_text='"auto": where the GPU is known to use the machine\'s memory; "on", "off"',
            meaning='whether "auto" leaves the host tier out, as the GPU\'s blocks lie in the same '
            "memory; only with a disk tier",
            price="blocks that the GPU let go come from disk",
        ),
    )
    gentle_saves: bool = field(
        default=False,
        metadata=_setting(
            parse_boolean,
            unit="bool",
            range_text="true, false",
            meaning="saves from a GPU use few kernels, which hold up those of a busy engine",
            price="slower saves: the copy engine carries them, one piece of a block at a time",
        ),
    )
    metrics_port: int = field(
        default=0,
        metadata=_setting(
            make_whole(0, 65_535),
            unit="port",
            range_text="0 to 65,535; 0: none",
            meaning="port where Prometheus may scrape this store while it is open",
            price="on: one more thread, and whoever reaches the port may read the figures",
        ),
    )
    metrics_host: str = field(
        default="127.0.0.1",
        metadata=_setting(
            parse_host,
            unit="address",
            range_text="an address or a name of this machine",
            meaning="where metrics_port is opened",
            price="0.0.0.0: every machine that reaches this one may read the figures",
        ),
    )
    stall_s: float = field(
        default=2.0,
        metadata=_setting(
            make_seconds(0.001, 3600.0),
            unit="seconds",
            range_text="0.001 to 3,600",
            meaning="a disk operation that takes longer marks the tier as stalled",
            price="how long loads wait for a dead disk",
        ),
    )

    def __post_init__(self) -> None:
        problems = []
        for name, setting in SETTINGS.items():
            try:
                object.__setattr__(self, name, setting.parse(getattr(self, name), name))
            except ConfigError as error:
                problems.append(str(error))
        raise_problems(problems)


SETTINGS: Final[Mapping[str, Setting]] = {
    it.name: it.metadata["setting"] for it in dataclasses.fields(Config)
}
DEFAULTS: Final[Mapping[str, SettingValue]] = {
    it.name: it.default
    for it in dataclasses.fields(Config)
    if it.default is not dataclasses.MISSING
}


def raise_problems(problems: list[str]) -> None:
    """Raises one ConfigError for all `problems`; returns when there are none."""
    if len(problems) == 1:
        raise ConfigError(problems[0])
    if problems:
        lines = "".join(f"\n  {problem}" for problem in problems)
        raise ConfigError(f"{len(problems)} settings are wrong:{lines}")


def unknown_setting_text(
    name: object,
    origin: str,
    known: Iterable[str] = SETTINGS,
    *,
    near: Iterable[str] | None = None,
    section: str = "",
) -> str:
    """Returns the message for a name that is no setting, with the nearest that is.

    near:    where the nearest is looked for, when that is more than what is listed as `known`.
    section: the section of a file that `name` and `known` stand in; "": none.
    """
    prefix = f"{section}." if section else ""
    candidates = list(known if near is None else near)
    found = difflib.get_close_matches(str(name).lower(), candidates, n=1, cutoff=0.5)
    hint = f"did you mean {prefix}{found[0]}?" if found else f"known are {', '.join(known)}"
    shown = show(f"{prefix}{name}" if prefix else name)
    return f"unknown setting {shown} ({origin}); {hint}"
