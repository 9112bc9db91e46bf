"""`kvtier config`: every setting in effect, with its origin. Stateless."""

import json
from collections.abc import Iterable, Mapping

from kvtier.config import SETTINGS
from kvtier.settings import resolve_settings
from kvtier.units import format_bytes


def run_config(file: str | None, *, is_explained: bool, is_json: bool) -> int:
    """Prints the settings that open() would use, from `file` and the environment; returns 0."""
    from kvtier.block_store import describe_effective, find_capacity
    from kvtier.store_warnings import list_warnings

    settings = resolve_settings({}, file)
    capacity = find_capacity(settings)
    effective = describe_effective(settings, capacity)
    for name, place in settings.places.items():
        effective[name]["place"] = place
    warnings = list_warnings(settings, capacity)
    if is_json:
        report = {"settings": effective, "mapped": settings.mapped, "warnings": warnings}
        print(json.dumps(report, indent=2))
        return 0
    _print_settings(effective, is_explained)
    if settings.mapped:
        print("\nwhat became of names that are not kvtier's own:")
        _print_aligned((name, ": ", text) for name, text in settings.mapped.items())
    for warning in warnings:
        print(f"\nwarning: {warning}")
    return 0


def _print_settings(effective: Mapping[str, Mapping[str, object]], is_explained: bool) -> None:
    values = {name: _value_text(name, it["value"]) for name, it in effective.items()}
    name_width, value_width = _width(values), _width(values.values())
    for name, setting in effective.items():
        origin = str(setting["origin"])
        if "place" in setting:
            origin = f"{origin}: {setting['place']}"
        note = f"; {setting['note']}" if "note" in setting else ""
        print(f"{name:{name_width}} = {values[name]:{value_width}}  ({origin}{note})")
        if is_explained:
            known = SETTINGS[name]
            print(f"    {known.meaning} [{known.unit}; {known.range_text}]")
            print(f"    when raised: {known.price}")


def _value_text(name: str, value: object) -> str:
    unit = SETTINGS[name].unit
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if unit == "bytes" and isinstance(value, int):
        return f"{format_bytes(value)} ({value} bytes)" if value >= 1024 else f"{value} bytes"
    if unit == "seconds":
        return f"{value:g} s"
    text = str(value)
    return text if text.isprintable() else repr(value)


def _print_aligned(lines: Iterable[tuple[str, str, str]]) -> None:
    rows = list(lines)
    width = _width(name for name, _, _ in rows)
    for name, separator, text in rows:
        print(f"  {name:{width}}{separator}{text}")


def _width(texts: Iterable[str]) -> int:
    return max(len(it) for it in texts)
