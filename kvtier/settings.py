"""Where settings come from: arguments, then KVTIER_* variables, then a file, then the defaults.

Reads the environment and the file at each call; thread-safe.
"""

import difflib
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kvtier.config import (
    DEFAULTS,
    SETTINGS,
    Config,
    SettingValue,
    raise_problems,
    unknown_setting_text,
)
from kvtier.errors import ConfigError
from kvtier.units import MIB, show

ENVIRONMENT_PREFIX: Final = "KVTIER_"
# Variables of the repository's own tools, which are no settings of a store.
_FOREIGN_VARIABLES: Final = frozenset(
    {"SHARED", "PYTHON", "BUILD_TYPE", "SANITIZE", "CRASH_ROUNDS"}
    | {"HYPOTHESIS_PROFILE", "HYPOTHESIS_EXAMPLES"}
)
_FILE_BYTES_MAX: Final = MIB
_NEAR_RATIO_MIN: Final = 0.6
_log = logging.getLogger("kvtier")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A checked Config with the origin of each field: argument, environment, file or default."""

    config: Config
    origins: Mapping[str, str]


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
    values: dict[str, SettingValue] = dict(DEFAULTS)
    origins = dict.fromkeys(DEFAULTS, "default")
    layers = (
        ("file", _read_source(source, problems)),
        ("environment", _read_environment(environment, problems)),
        ("argument", arguments),
    )
    for origin, layer in layers:
        for name, value in layer.items():
            setting = SETTINGS.get(name)
            if setting is None:
                problems.append(unknown_setting_text(name, origin))
                continue
            try:
                values[name] = setting.parse(value, f"{name} ({origin})")
            except ConfigError as error:
                problems.append(str(error))
            origins[name] = origin
    raise_problems(problems)
    return Settings(config=Config(**values), origins=origins)  # type: ignore[arg-type]


def _read_environment(
    environment: Mapping[str, str] | None, problems: list[str]
) -> dict[str, object]:
    found: dict[str, object] = {}
    for variable, text in (os.environ if environment is None else environment).items():
        # An empty variable counts as unset: that is how a launcher passes on what it does not have.
        if not variable.startswith(ENVIRONMENT_PREFIX) or not text:
            continue
        bare = variable[len(ENVIRONMENT_PREFIX) :]
        if bare in _FOREIGN_VARIABLES:
            continue
        if bare.lower() in SETTINGS:
            found[bare.lower()] = text
        elif difflib.get_close_matches(bare.lower(), SETTINGS, n=1, cutoff=_NEAR_RATIO_MIN):
            problems.append(unknown_setting_text(bare.lower(), f"environment {variable}"))
        else:
            # Other programs may use the prefix too; only what looks like a slip is an error.
            _log.warning("environment variable %s is no setting of kvtier: ignored", variable)
    return found


def _read_source(source: object, problems: list[str]) -> dict[str, object]:
    if source is None:
        return {}
    if isinstance(source, Config):
        named = {name: getattr(source, name) for name in SETTINGS}
        return {name: value for name, value in named.items() if value != DEFAULTS[name]}
    if isinstance(source, (str, os.PathLike)):
        source = _load_yaml(os.fspath(source), problems)
    if isinstance(source, Mapping):
        return {name if isinstance(name, str) else repr(name): it for name, it in source.items()}
    problems.append(f"config: expected a path, a mapping or a Config, got {show(source)}")
    return {}


def _load_yaml(path: str | bytes, problems: list[str]) -> Mapping[object, object]:
    import yaml

    try:
        with open(path, "rb") as file:
            text = file.read(_FILE_BYTES_MAX + 1)
        if len(text) > _FILE_BYTES_MAX:
            problems.append(f"config: {show(path)} is larger than {_FILE_BYTES_MAX} bytes")
            return {}
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        content = yaml.safe_load(text)
    except (OSError, ValueError) as error:
        problems.append(f"config: cannot read {show(path)}: {error}")
        return {}
    except (yaml.YAMLError, RecursionError) as error:
        problems.append(f"config: {show(path)} is not YAML: {error}")
        return {}
    if content is None:
        return {}
    if not isinstance(content, Mapping) or not isinstance(node, yaml.MappingNode):
        problems.append(f"config: {show(path)} holds no mapping of names to values")
        return {}
    names = [str(name.value) for name, _ in node.value]
    for name in sorted({name for name in names if names.count(name) > 1}):
        # YAML itself would silently take the last one.
        problems.append(f"config: {show(path)} states {name} more than once")
    return content
