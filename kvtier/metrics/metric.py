"""Metric: what is to be known of one figure of a store. Frozen values; thread-safe."""

import enum
from dataclasses import dataclass
from typing import Final

PREFIX: Final = "kvtier_"


class MetricType(enum.Enum):
    """Prometheus' word for how a metric moves."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Scope(enum.Enum):
    """Where in stats() the field of a metric stands."""

    STORE = "store"
    TIER = "tier"
    JOBS = "jobs"
    DERIVED = "derived"
    """In no single place: made in samples.py."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One row of the table."""

    field: str
    """Its name in stats(); of derived ones what follows the prefix."""
    type: MetricType
    scope: Scope
    unit: str
    meaning: str
    advice: str
    """What to look at when it moves."""
    labels: tuple[str, ...] = ()
    """Beside `path` and what the user adds."""

    @property
    def name(self) -> str:
        """Returns the name in Prometheus, which follows from the field by one rule."""
        name = PREFIX + ("jobs_" if self.scope is Scope.JOBS else "") + self.field
        if name.endswith("_per_s"):
            name = name.removesuffix("_s") + "_second"
        elif name.endswith("_s"):
            name = name.removesuffix("_s") + "_seconds"
        return f"{name}_total" if self.type is MetricType.COUNTER else name

    @property
    def series_names(self) -> tuple[str, ...]:
        """Returns the names that a query may use."""
        if self.type is MetricType.HISTOGRAM:
            return tuple(f"{self.name}_{it}" for it in ("bucket", "sum", "count"))
        return (self.name,)
