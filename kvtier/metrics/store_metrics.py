"""The metrics of a store as a whole, of its jobs, and those made of several fields.

Constants; thread-safe.
"""

from typing import Final

from kvtier.metrics.metric import Metric, MetricType, Scope


def _metric(
    scope: Scope,
    kind: MetricType,
    field: str,
    unit: str,
    *,
    meaning: str,
    advice: str = "-",
    labels: tuple[str, ...] = (),
) -> Metric:
    return Metric(
        field=field,
        type=kind,
        scope=scope,
        unit=unit,
        meaning=meaning,
        advice=advice,
        labels=labels,
    )


_COUNTER: Final = MetricType.COUNTER
_GAUGE: Final = MetricType.GAUGE

UP: Final = _metric(
    Scope.DERIVED,
    _GAUGE,
    "up",
    "0 or 1",
    meaning="1 while the store is open and tells of itself, else 0, and it has no other metrics.",
    advice="0: closed, or its process died; kvtier stats PATH says which.",
)
LIVE_AGE: Final = _metric(
    Scope.DERIVED,
    _GAUGE,
    "live_age_s",
    "seconds",
    meaning="How old the figures are; only where they come from another process.",
    advice="Up to 30 s in a store without traffic. More: its process is stopped or hangs.",
)
HEALTH: Final = _metric(
    Scope.DERIVED,
    _GAUGE,
    "health",
    "0 or 1",
    meaning="1 for the state that the tier is in, 0 for ok, degraded, stalled or off otherwise.",
    advice="Degraded: writes fail. Stalled: the disk does not answer. Off: reads fail. The log "
    'says why, and so does stats()["tiers"]["disk"]["mode"]["health_reason"].',
    labels=("tier", "state"),
)
IS_HEALTHY: Final = _metric(
    Scope.DERIVED,
    _GAUGE,
    "is_healthy",
    "0 or 1",
    meaning="1 while this tier is ok, else 0.",
    advice="kvtier_health says which state it is in.",
    labels=("tier",),
)
MODE: Final = _metric(
    Scope.DERIVED,
    _GAUGE,
    "mode_info",
    "1",
    meaning="How the tier works: io (memory, uring, threads) and direct, as in stats().",
    advice="buffered or threads on a local SSD: kvtier doctor PATH says what hinders.",
    labels=("tier", "io", "direct"),
)
BUILD: Final = _metric(
    Scope.DERIVED,
    _GAUGE,
    "build_info",
    "1",
    meaning="The version of kvtier that tells this.",
    labels=("version",),
)
JOBS_STARTED: Final = _metric(
    Scope.DERIVED,
    _COUNTER,
    "jobs",
    "jobs",
    meaning="Jobs started: asynchronous puts and gets, saves and loads of paged engines.",
    labels=("kind",),
)
LATENCY: Final = _metric(
    Scope.DERIVED,
    MetricType.HISTOGRAM,
    "latency_s",
    "seconds",
    meaning="How long gets, puts, loads and saves took, each from call to end.",
    advice="Gets and loads: as much as computing the blocks would take is too much. Compare with "
    "kvtier_read_bytes_per_second of disk and with the backlog.",
    labels=("kind",),
)

STORE_METRICS: Final = (
    UP,
    BUILD,
    LIVE_AGE,
    _metric(Scope.STORE, _COUNTER, "lookups", "lookups", meaning="Calls of lookup and lease."),
    _metric(
        Scope.STORE,
        _COUNTER,
        "lookup_blocks",
        "blocks",
        meaning="Blocks that lookups asked for.",
        advice="Much more than get_blocks: blocks are looked for and not loaded.",
    ),
    _metric(
        Scope.STORE,
        _COUNTER,
        "get_blocks",
        "blocks",
        meaning="Blocks that gets and loads asked for.",
        advice="None with a busy engine: the store is not connected to it.",
    ),
    _metric(
        Scope.STORE,
        _COUNTER,
        "hit_blocks",
        "blocks",
        meaning="Blocks delivered, from whichever tier.",
        advice="hits by tier say from where.",
    ),
    _metric(
        Scope.STORE,
        _COUNTER,
        "miss_blocks",
        "blocks",
        meaning="Blocks asked for and not delivered: get_blocks - hit_blocks.",
        advice="Against get_blocks: the share that is computed anew.",
    ),
    LATENCY,
    _metric(
        Scope.STORE,
        _GAUGE,
        "live_leases",
        "leases",
        meaning="Leases that have neither ended nor expired.",
        advice="Grows without end: a caller that releases nothing; see leased_bytes.",
    ),
    _metric(
        Scope.STORE,
        _GAUGE,
        "staging_bytes",
        "bytes",
        meaning="Memory where loads land that get no host slot.",
    ),
    _metric(
        Scope.STORE,
        _GAUGE,
        "staging_bytes_used",
        "bytes",
        meaning="Of that, what is in use.",
        advice="All of it, for long: loads wait for each other; raise staging_bytes.",
    ),
    _metric(
        Scope.STORE,
        _GAUGE,
        "index_bytes",
        "bytes",
        meaning="Memory of the index.",
        advice="Grows with blocks; max_blocks bounds it.",
    ),
    _metric(Scope.STORE, _GAUGE, "index_entries", "blocks", meaning="Blocks in the index."),
    _metric(
        Scope.STORE, _GAUGE, "history_bytes", "bytes", meaning="Memory of what is known of uses."
    ),
    _metric(
        Scope.STORE,
        _GAUGE,
        "unknown_file_bytes",
        "bytes",
        meaning="Bytes of files of other format versions in the folder; they count to disk_bytes.",
        advice="kvtier wipe PATH gives their space back.",
    ),
    _metric(
        Scope.STORE,
        _GAUGE,
        "recovered_blocks",
        "blocks",
        meaning="Blocks that the last open found on disk.",
        advice="0 after a restart: another folder, or files of another version.",
    ),
    _metric(
        Scope.STORE,
        _GAUGE,
        "recover_damaged_entries",
        "blocks",
        meaning="Entries that the last open found damaged, and dropped.",
        advice="Some after kill -9 or a power loss; else as corrupt.",
    ),
    _metric(Scope.STORE, _GAUGE, "recover_s", "seconds", meaning="How long the last open took."),
    _metric(
        Scope.STORE,
        _GAUGE,
        "is_recovered_clean",
        "0 or 1",
        meaning="Whether the run before had closed the store.",
        advice="0: it was killed; what it had not yet written is computed anew.",
    ),
)

JOB_METRICS: Final = (
    JOBS_STARTED,
    _metric(Scope.JOBS, _COUNTER, "ended", "jobs", meaning="Jobs that have ended, however."),
    _metric(
        Scope.JOBS,
        _COUNTER,
        "cancelled",
        "jobs",
        meaning="Jobs that were cancelled.",
        advice="Many: the engine gives up requests before their blocks are there.",
    ),
    _metric(
        Scope.JOBS,
        _COUNTER,
        "refused",
        "jobs",
        meaning="Jobs that were not begun, as too many were under way.",
        advice="Jobs come faster than they end: look at the latencies.",
    ),
    _metric(
        Scope.JOBS,
        _COUNTER,
        "prefetch_blocks",
        "blocks",
        meaning="Blocks that prefetches asked for.",
    ),
    _metric(
        Scope.JOBS,
        _COUNTER,
        "prefetched_blocks",
        "blocks",
        meaning="Blocks that prefetches brought to host memory.",
        advice="Far fewer than prefetch_blocks: they were there already, or on no tier.",
    ),
    _metric(
        Scope.JOBS,
        _GAUGE,
        "unfinished",
        "jobs",
        meaning="Jobs under way.",
        advice="Grows without end: a disk that does not answer, or jobs that nobody ends.",
    ),
    _metric(
        Scope.JOBS,
        _GAUGE,
        "prefetch_bytes_queued",
        "bytes",
        meaning="Bytes that prefetches wait for.",
    ),
)

MODE_METRICS: Final = (HEALTH, IS_HEALTHY, MODE)
