"""The table of all metrics: what is exposed, documented and drawn is made from it.

Constants; thread-safe.
"""

from typing import Final

from kvtier.metrics.store_metrics import JOB_METRICS, MODE_METRICS, STORE_METRICS
from kvtier.metrics.tier_metrics import TIER_METRICS

METRICS: Final = (*STORE_METRICS, *TIER_METRICS, *MODE_METRICS, *JOB_METRICS)
