"""Values as other programs' files write them: sizes in GB, file URLs, shares in percent.

Pure functions; thread-safe.
"""

from typing import Final

from kvtier.errors import ConfigError
from kvtier.setting_parsers import AUTO, SettingValue, parse_boolean, parse_path
from kvtier.units import GIB, parse_bytes, show

_GB_MAX: Final = 1 << 30
# Also in quotes: templates of files put them there, and nobody names a folder so.
_BOOLEAN_WORDS: Final = frozenset({"true", "on", "yes", "false", "off", "no"})


def parse_gb(value: object, name: str) -> int:
    """Returns bytes of a number of GB, or of text with a unit.

    LMCache counts a bare number in units of 1,024³ bytes and calls them GB. "GB" in text has its
    usual meaning, 10⁹. Raises ConfigError.
    """
    number = _number_of(value)
    if number is None:
        return parse_bytes(value, name)
    if not 0 <= number <= _GB_MAX:
        raise ConfigError(f"{name}: expected 0 to {_GB_MAX} GB, got {show(value)}")
    return parse_bytes(int(number * GIB), name)


def parse_gb_or_auto(value: object, name: str) -> SettingValue:
    """Returns "auto", or bytes as parse_gb does."""
    if isinstance(value, str) and value.strip().lower() == AUTO:
        return AUTO
    return parse_gb(value, name)


def parse_disk(value: object, name: str) -> SettingValue:
    """Returns whether there is a disk, or its folder as parse_disk_folder does."""
    is_word = isinstance(value, str) and value.strip().lower() in _BOOLEAN_WORDS
    return (
        parse_boolean(value, name)
        if is_word or isinstance(value, bool)
        else (parse_disk_folder(value, name))
    )


def parse_disk_folder(value: object, name: str) -> str | None:
    """Returns the folder of a path or file URL; None for "". Raises ConfigError."""
    if isinstance(value, list):
        value = ",".join(str(it) for it in value)
    if not isinstance(value, str):
        raise ConfigError(
            f"{name}: expected a folder, a file:// URL, true or false; got {show(value)}"
        )
    folders = [it.strip() for it in value.split(",") if it.strip()]
    if len(folders) > 1:
        raise ConfigError(
            f"{name}: {len(folders)} folders, and a disk tier has one; name one, on a volume that "
            f"spans the disks; got {show(value)}"
        )
    folder = folders[0] if folders else ""
    scheme, separator, rest = folder.partition("://")
    if separator and scheme.lower() != "file":
        raise ConfigError(f"{name}: expected a local folder or a file:// URL, got {show(value)}")
    return parse_path(rest if separator else folder, name)


def parse_share(value: object, name: str) -> float:
    """Returns a share between 0 and 1 of a number, or of text such as "30%"."""
    text = value.strip() if isinstance(value, str) else ""
    number = _number_of(text.removesuffix("%") if text else value)
    share = number / 100 if number is not None and text.endswith("%") else number
    if share is None or not 0 <= share <= 1:
        raise ConfigError(
            f'{name}: expected a share from 0 to 1, or such as "30%"; got {show(value)}'
        )
    return share


def _number_of(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None
