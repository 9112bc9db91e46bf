"""TransferSettings: how a store's blocks move between host memory and a device. Plain values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from kvtier.config import DEFAULTS, SETTINGS


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferSettings:
    """The settings of these names."""

    transfer_ctas: int
    gentle_saves: bool

    @classmethod
    def of_store(cls, effective: Mapping[str, Mapping[str, object]]) -> "TransferSettings":
        """effective: BlockStore.config()."""
        return cls(
            transfer_ctas=cast("int", effective["transfer_ctas"]["value"]),
            gentle_saves=cast("bool", effective["gentle_saves"]["value"]),
        )

    @classmethod
    def parse(cls, said: Mapping[str, object]) -> "TransferSettings":
        """Takes the defaults for None. Raises ConfigError."""
        return cls(
            transfer_ctas=cast("int", _parse("transfer_ctas", said)),
            gentle_saves=cast("bool", _parse("gentle_saves", said)),
        )

    def core_options(self) -> dict[str, object]:
        """Returns them as the core calls them."""
        return {"max_ctas": self.transfer_ctas, "are_saves_gentle": self.gentle_saves}


def _parse(name: str, said: Mapping[str, object]) -> object:
    value = said.get(name)
    return DEFAULTS[name] if value is None else SETTINGS[name].parse(value, name)
