"""WipeChoice: which blocks of a store are to be removed. Frozen values; thread-safe."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kvtier.cli.inspect import parse_description
from kvtier.errors import ConfigError
from kvtier.namespace_identity import parse_namespace_id
from kvtier.units import show

_AGE: Final = re.compile(r"(\d{1,6})\s*(s|min|h|d|w)")
_UNIT_S: Final = {"s": 1, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}


@dataclass(frozen=True, slots=True, kw_only=True)
class WipeChoice:
    """All that is said has to hold; nothing said means the whole store."""

    namespace_id: str | None = None
    salt: str | None = None
    model: str | None = None
    older_than_s: float | None = None

    @classmethod
    def parse(
        cls,
        *,
        namespace_id: str | None,
        salt: str | None,
        model: str | None,
        older_than: str | None,
    ) -> WipeChoice:
        """Raises UsageError (no id), ConfigError (no age)."""
        if namespace_id is not None:
            parse_namespace_id(namespace_id)
        return cls(
            namespace_id=None if namespace_id is None else namespace_id.lower(),
            salt=salt,
            model=model,
            older_than_s=None if older_than is None else parse_age_s(older_than),
        )

    @property
    def is_everything(self) -> bool:
        """Returns whether the whole store is meant, files and all."""
        said = (self.namespace_id, self.salt, self.model, self.older_than_s)
        return all(it is None for it in said)

    @property
    def has_all_namespaces(self) -> bool:
        """Returns whether no namespace is left out."""
        return (self.namespace_id, self.salt, self.model) == (None, None, None)

    def choose_namespaces(self, namespaces: Sequence[Mapping[str, object]]) -> list[str]:
        """Returns the ids that are meant, of what inspect_directory found."""
        return [str(it["id"]) for it in namespaces if self._is_meant(it)]

    def choose_segments(self, written_s: Mapping[str, float], now_s: float) -> list[str]:
        """Returns the names of the segments that are old enough."""
        if self.older_than_s is None:
            return sorted(written_s)
        limit_s = now_s - self.older_than_s
        return sorted(name for name, time_s in written_s.items() if time_s <= limit_s)

    def _is_meant(self, contents: Mapping[str, object]) -> bool:
        description = parse_description(str(contents["description"]))
        return (
            self.namespace_id in (None, contents["id"])
            and self.salt in (None, description.get("salt"))
            and self.model in (None, description.get("model"))
        )


def parse_age_s(text: str) -> float:
    """Returns seconds of "90s", "45min", "12h", "30d" or "2w". Raises ConfigError."""
    match = _AGE.fullmatch(text.strip().lower())
    if match is None:
        raise ConfigError(f"--older-than: expected an age such as 12h or 30d, got {show(text)}")
    return float(match[1]) * _UNIT_S[match[2]]
