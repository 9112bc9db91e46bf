"""Where settings come from: arguments, then KVTIER_* variables, then a file, then the defaults.

Reads the environment and the file at each call; thread-safe.
"""

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kvtier.config import DEFAULTS, SETTINGS, Config, raise_problems, unknown_setting_text
from kvtier.errors import ConfigError
from kvtier.foreign_layer import ForeignLayer, translate_foreign
from kvtier.setting_parsers import SettingValue
from kvtier.setting_rules import find_contradictions, find_useless
from kvtier.units import show
from kvtier.yaml_file import Entry, entries_of, plain_entry, read_yaml_file

ENVIRONMENT_PREFIX: Final = "KVTIER_"
TOOL_VARIABLES: Final = frozenset(
    {"SHARED", "PYTHON", "BUILD_TYPE", "SANITIZE", "CRASH_ROUNDS", "LIBURING_DIR"}
    | {"HYPOTHESIS_PROFILE", "HYPOTHESIS_EXAMPLES"}
)
"""Variables of the repository's own tools, without the prefix: they are no settings of a store."""
_NEAR_RATIO_MIN: Final = 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A checked Config, and where each of its values comes from."""

    config: Config
    origins: Mapping[str, str]
    """For each setting "argument", "environment", "file" or "default"."""
    places: Mapping[str, str] = field(default_factory=dict)
    """For each setting that was stated: the file's line, the variable, or "argument"."""
    mapped: Mapping[str, str] = field(default_factory=dict)
    """For each foreign name of the file: what became of it."""
    warnings: tuple[str, ...] = ()


def resolve_settings(
    arguments: Mapping[str, object],
    source: object = None,
    environment: Mapping[str, str] | None = None,
) -> Settings:
    """Returns the settings in effect; "auto" stays as it is.

    arguments: what the caller said explicitly.
    source:    path of a YAML file, a mapping, a Config or None.
    Raises ConfigError with all problems of all three at once.
    """
    problems: list[str] = []
    warnings: list[str] = []
    stated = _read_source(source, problems, warnings)
    foreign = translate_foreign(stated, problems)
    native = {name: plain_entry(entry) for name, entry in stated.items() if name in SETTINGS}
    layers = {
        "file": {**foreign.entries, **native},
        "environment": _read_environment(environment, problems, warnings),
        "argument": {name: Entry(value, "argument") for name, value in arguments.items()},
    }
    values: dict[str, SettingValue] = dict(DEFAULTS)
    origins = dict.fromkeys(DEFAULTS, "default")
    places: dict[str, str] = {}
    bad_names: set[str] = set()
    for origin, layer in layers.items():
        for name, entry in layer.items():
            setting = SETTINGS.get(name)
            if setting is None:
                problems.append(unknown_setting_text(name, entry.place))
                continue
            try:
                values[name] = setting.parse(entry.value, f"{name} ({entry.place})")
            except ConfigError as error:
                problems.append(str(error))
                bad_names.add(name)
            origins[name], places[name] = origin, entry.place
    config = Config(**values)  # type: ignore[arg-type]
    if foreign.folder_wanted_by is not None and not config.path and "path" not in bad_names:
        problems.append(_no_folder_text(foreign.folder_wanted_by))
        bad_names.add("path")
    problems.extend(find_contradictions(config, places, bad_names))
    raise_problems(problems)
    return Settings(
        config=config,
        origins=origins,
        places=places,
        mapped=_say_what_won(foreign, layers["file"], places),
        warnings=(*warnings, *foreign.warnings, *find_useless(config, places)),
    )


def _read_environment(
    environment: Mapping[str, str] | None, problems: list[str], warnings: list[str]
) -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    for variable, text in (os.environ if environment is None else environment).items():
        # An empty variable counts as unset: that is how a launcher passes on what it does not have.
        if not variable.startswith(ENVIRONMENT_PREFIX) or not text:
            continue
        bare = variable[len(ENVIRONMENT_PREFIX) :]
        if bare in TOOL_VARIABLES:
            continue
        if bare.lower() in SETTINGS:
            found[bare.lower()] = Entry(text, variable)
        elif difflib.get_close_matches(bare.lower(), SETTINGS, n=1, cutoff=_NEAR_RATIO_MIN):
            problems.append(unknown_setting_text(bare.lower(), variable))
        else:
            # Other programs may use the prefix too; only what looks like a slip is an error.
            warnings.append(f"environment variable {variable} is no setting of kvtier: ignored")
    return found


def _read_source(source: object, problems: list[str], warnings: list[str]) -> dict[str, Entry]:
    if source is None:
        return {}
    if isinstance(source, Config):
        named = {name: getattr(source, name) for name in SETTINGS}
        return {
            name: Entry(value, "config") for name, value in named.items() if value != DEFAULTS[name]
        }
    if isinstance(source, (str, os.PathLike)):
        path = os.fsdecode(source)
        num_problems = len(problems)
        entries = read_yaml_file(path, problems)
        if not entries and len(problems) == num_problems:
            warnings.append(f"{show(path)} states no settings")
        return entries
    if isinstance(source, Mapping):
        return entries_of(source, "config")
    problems.append(f"config: expected a path, a mapping or a Config, got {show(source)}")
    return {}


def _no_folder_text(wanted_by: str) -> str:
    return (
        f"{wanted_by}: true, and no folder is named; write the folder in its place, such as "
        '"/mnt/nvme/kv", or add path: /mnt/nvme/kv at the top'
    )


def _say_what_won(
    foreign: ForeignLayer, file_layer: Mapping[str, Entry], places: Mapping[str, str]
) -> dict[str, str]:
    """Returns what became of foreign names, with a word on those that a variable overrides."""
    mapped = dict(foreign.mapped)
    for name, native in foreign.natives.items():
        if places[native] != file_layer[native].place:
            mapped[name] += f"; overridden by {places[native]}"
    return mapped
