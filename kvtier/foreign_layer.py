"""What the foreign names of a file say in kvtier's own: statements, a word on each, warnings.

Pure functions over a file's entries; thread-safe.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from kvtier.config import SETTINGS, unknown_setting_text
from kvtier.errors import ConfigError
from kvtier.foreign_settings import (
    FLAT,
    FOREIGN_SECTIONS,
    FREE_BECOMES,
    FREE_SECTION,
    ForeignSetting,
)
from kvtier.setting_parsers import SettingValue
from kvtier.units import format_bytes, show
from kvtier.yaml_file import Entry

_FREE: Final = ForeignSetting(becomes=FREE_BECOMES)


@dataclass(slots=True, kw_only=True)
class ForeignLayer:
    """What came of the foreign names of one file."""

    entries: dict[str, Entry] = field(default_factory=dict)
    """Statements by kvtier's own names."""
    mapped: dict[str, str] = field(default_factory=dict)
    """Foreign name: what became of it."""
    natives: dict[str, str] = field(default_factory=dict)
    """Foreign name: the setting that it set."""
    warnings: list[str] = field(default_factory=list)
    folder_wanted_by: str | None = None
    """The name that wants a disk tier without saying where, with its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fact:
    """One foreign name with its checked value."""

    section: str
    key: str
    place: str
    value: object
    setting: ForeignSetting

    @property
    def name(self) -> str:
        return f"{self.section}.{self.key}" if self.section else self.key

    @property
    def is_off(self) -> bool:
        # True and 1 are equal to Python, False and 0 likewise; here they are not.
        return any(
            self.value == off and isinstance(self.value, bool) == isinstance(off, bool)
            for off in self.setting.off_values
        )


def translate_foreign(entries: Mapping[str, Entry], problems: list[str]) -> ForeignLayer:
    """Returns what those `entries` say that are no settings of kvtier.

    Names that are unknown, values that make no sense, and what contradicts a setting of kvtier in
    the same file are appended to `problems`.
    """
    layer = ForeignLayer()
    facts = list(_list_facts(entries, layer, problems))
    governors = {
        (fact.section, key): fact for fact in facts if fact.is_off for key in fact.setting.governs
    }
    for fact in facts:
        governor = governors.get((fact.section, fact.key))
        if governor is not None and not fact.is_off:
            layer.mapped[fact.name] = f"no effect: {governor.name} is {_shown(governor.value)}"
            continue
        native = _native_of(fact, layer)
        if native is None:
            layer.mapped[fact.name] = fact.setting.becomes
        else:
            _state(native[0], native[1], fact, entries, layer, problems)
    _add_warnings(facts, governors, layer)
    # As they stand in the file, whatever became clear first.
    layer.mapped = {
        name: layer.mapped[name] for name in _list_names(entries) if name in layer.mapped
    }
    return layer


def list_foreign_names() -> list[str]:
    """Returns all names that the table knows, those in sections with a dot."""
    return [
        f"{section}.{key}" if section else key
        for section, settings in FOREIGN_SECTIONS.items()
        for key in settings
    ]


def _list_names(entries: Mapping[str, Entry]) -> Iterator[str]:
    for name, entry in entries.items():
        yield name
        if isinstance(entry.value, dict):
            yield from (f"{name}.{key}" for key in entry.value)


def _list_facts(
    entries: Mapping[str, Entry], layer: ForeignLayer, problems: list[str]
) -> Iterator[_Fact]:
    for name, entry in entries.items():
        if name in SETTINGS:
            continue
        if name in FOREIGN_SECTIONS[FLAT]:
            yield from _read_fact(FLAT, name, entry, layer, problems)
        elif name not in FOREIGN_SECTIONS:
            problems.append(_unknown_top_text(name, entry.place))
        elif entry.value is None:
            layer.mapped[name] = "empty"
        elif not isinstance(entry.value, dict):
            problems.append(
                f"{name} ({entry.place}): expected a mapping of names to values, "
                f"got {show(entry.value)}"
            )
        else:
            if not entry.value:
                layer.mapped[name] = "empty"
            for key, inner in entry.value.items():
                yield from _read_fact(name, key, inner, layer, problems)


def _read_fact(
    section: str, key: str, entry: Entry, layer: ForeignLayer, problems: list[str]
) -> Iterator[_Fact]:
    known = FOREIGN_SECTIONS[section]
    name = f"{section}.{key}" if section else key
    setting = known.get(key, _FREE if section == FREE_SECTION else None)
    if setting is None:
        problems.append(_unknown_inner_text(section, key, entry.place))
        return
    if entry.value is None:
        layer.mapped[name] = "not set: it has no value"
        return
    value = entry.value
    if setting.check is not None:
        try:
            value = setting.check(value, f"{name} ({entry.place})")
        except ConfigError as error:
            problems.append(str(error))
            return
    if value is None:
        layer.mapped[name] = "not set: its value is empty"
        return
    yield _Fact(section=section, key=key, place=entry.place, value=value, setting=setting)


def _native_of(fact: _Fact, layer: ForeignLayer) -> tuple[str, object] | None:
    """Returns setting and value that a fact comes to, or None where it sets nothing."""
    native = fact.setting.native
    if not native:
        return None
    if fact.setting.words is not None:
        words = fact.setting.words
        return (native, words[fact.value]) if fact.value in words else None
    if native == "path" and fact.value is True:
        layer.folder_wanted_by = f"{fact.name} ({fact.place})"
        return None
    if fact.is_off and native in {"path", "disk_bytes"}:
        # LMCache switches its disk off by a size of 0, too.
        return "path", None
    return native, fact.value


def _state(
    native: str,
    value: object,
    fact: _Fact,
    entries: Mapping[str, Entry],
    layer: ForeignLayer,
    problems: list[str],
) -> None:
    place = f"{fact.place}, {fact.name}"
    try:
        parsed = SETTINGS[native].parse(value, f"{fact.name} ({fact.place})")
    except ConfigError as error:
        problems.append(str(error))
        return
    other = entries.get(native, layer.entries.get(native))
    if other is not None and not _is_same(native, parsed, other):
        problems.append(
            f"{fact.name} ({fact.place}) means {native} = {_shown(parsed)}, and {native} "
            f"({other.place}) is {_shown(other.value)}: keep one of them"
        )
        return
    layer.entries.setdefault(native, Entry(parsed, place))
    layer.natives[fact.name] = native
    note = f"; {fact.setting.note}" if fact.setting.note else ""
    layer.mapped[fact.name] = f"{native} = {_shown_native(native, parsed)}{note}"


def _is_same(native: str, value: SettingValue, other: Entry) -> bool:
    try:
        stated = SETTINGS[native].parse(other.value, native)
    except ConfigError:
        # It is a problem of its own already.
        return True
    if isinstance(value, str) and isinstance(stated, str) and native == "path":
        return os.path.normpath(value) == os.path.normpath(stated)
    return value == stated


def _add_warnings(
    facts: list[_Fact], governors: Mapping[tuple[str, str], _Fact], layer: ForeignLayer
) -> None:
    # One sentence for all names that wait for the same thing.
    names_by_text: dict[str, list[str]] = {}
    for fact in facts:
        is_governed = (fact.section, fact.key) in governors
        if fact.setting.is_later and not fact.is_off and not is_governed:
            names_by_text.setdefault(fact.setting.becomes, []).append(fact.name)
    layer.warnings.extend(f"{', '.join(names)}: {text}" for text, names in names_by_text.items())


def _unknown_top_text(name: str, place: str) -> str:
    for section, settings in FOREIGN_SECTIONS.items():
        if section and name in settings:
            return f"unknown setting {show(name)} ({place}); did you mean {section}.{name}?"
    sections = [section for section in FOREIGN_SECTIONS if section]
    return unknown_setting_text(name, place, near=[*SETTINGS, *sections, *FOREIGN_SECTIONS[FLAT]])


def _unknown_inner_text(section: str, key: str, place: str) -> str:
    name = f"{section}.{key}"
    if key in SETTINGS:
        return f"unknown setting {show(name)} ({place}); {key} stands at the top, in no section"
    return unknown_setting_text(key, place, list(FOREIGN_SECTIONS[section]), section=section)


def _shown_native(native: str, value: SettingValue) -> str:
    if SETTINGS[native].unit == "bytes" and isinstance(value, int):
        return f"{value} ({format_bytes(value)})"
    return _shown(value)


def _shown(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) and value.isprintable() else show(value)
