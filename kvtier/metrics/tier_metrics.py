"""The metrics that each tier has, by label `tier`. Constants; thread-safe."""

from typing import Final

from kvtier.metrics.metric import Metric, MetricType, Scope


def _counter(field: str, unit: str, meaning: str, advice: str) -> Metric:
    return _metric(MetricType.COUNTER, field, unit, meaning, advice)


def _gauge(field: str, unit: str, meaning: str, advice: str) -> Metric:
    return _metric(MetricType.GAUGE, field, unit, meaning, advice)


def _metric(kind: MetricType, field: str, unit: str, meaning: str, advice: str) -> Metric:
    return Metric(
        field=field,
        type=kind,
        scope=Scope.TIER,
        unit=unit,
        meaning=meaning,
        advice=advice,
        labels=("tier",),
    )


TIER_METRICS: Final = (
    _counter(
        "hits",
        "blocks",
        "Blocks delivered from this tier.",
        "None with traffic: other keys than were stored (model, fingerprint, tokenizer, salt), or "
        "a tier that gives blocks up before they come back.",
    ),
    _counter(
        "misses",
        "blocks",
        "Blocks asked of this tier and not delivered.",
        "Of the host tier also what disk delivered. Compare with hits.",
    ),
    _counter(
        "load_failures",
        "blocks",
        "Blocks that were there and could not be delivered; computed anew.",
        "The log names errno and file; the kernel's log (dmesg), the disk's health.",
    ),
    _counter(
        "corrupt",
        "blocks",
        "Blocks whose checksum did not fit: dropped, never served. Part of load_failures.",
        "The disk returned other bytes than were written: kvtier verify PATH, then the disk, its "
        "cable and its memory.",
    ),
    _counter(
        "torn",
        "blocks",
        "Corrupt blocks that a crash had left half-written. Part of corrupt.",
        "Expected after a power loss; without one, as corrupt.",
    ),
    _counter("inserted", "blocks", "Blocks taken into this tier.", "-"),
    _counter(
        "declined",
        "blocks",
        "Blocks that this tier did not take.",
        "Disk: blocks not worth a write, a backlog at its bound, or a tier that is not ok. Host: "
        "too many blocks are leased, pinned or in use.",
    ),
    _counter(
        "evicted",
        "blocks",
        "Blocks given up for others.",
        "As many as inserted means a full tier. With few hits it is too small: raise host_bytes "
        "or disk_bytes.",
    ),
    _counter("bytes_read", "bytes", "Bytes read from this tier, padding included.", "-"),
    _counter(
        "bytes_written",
        "bytes",
        "Bytes written to this tier, padding and tables included.",
        "Disk: this wears the medium. Compare with its rating in bytes a day.",
    ),
    _gauge("bytes_used", "bytes", "Bytes of slots in use, and of tables.", "-"),
    _gauge("bytes_capacity", "bytes", "Bytes that this tier may use.", "-"),
    _gauge("blocks", "blocks", "Blocks in this tier.", "-"),
    _gauge(
        "pinned_bytes",
        "bytes",
        "Bytes of blocks that the user keeps from eviction.",
        "At most a quarter of a tier; what is pinned is no cache for others.",
    ),
    _gauge(
        "leased_bytes",
        "bytes",
        "Bytes of blocks that leases keep from eviction.",
        "Grows without end: a caller that releases nothing. kvtier top and store.holders() name "
        "the owners.",
    ),
    _gauge(
        "backlog_bytes",
        "bytes",
        "Bytes that wait to be written to this tier.",
        "Near its bound: the disk writes slower than blocks come.",
    ),
    _gauge(
        "backlog_bytes_max",
        "bytes",
        "Bound of backlog_bytes; beyond it blocks are declined and offered again later.",
        "Follows from host_bytes.",
    ),
    _gauge(
        "read_bytes_per_s",
        "bytes/second",
        "Rate of reads while any ran, lately; 0: not measured yet.",
        "Far below kvtier doctor's rate of this disk: others use it, or it is failing.",
    ),
    _gauge(
        "expected_read_bytes_per_s",
        "bytes/second",
        "Rate of reads to be expected now; 0: unknown.",
        "-",
    ),
    _gauge(
        "unserved_bytes",
        "bytes",
        "Bytes written to a tier that has served nothing since it was opened.",
        "More than its capacity: the tier only wears. Make it larger, or leave it out.",
    ),
)
