"""What "auto" comes to, and the fit of the sizes into memory."""

import pytest

from kvtier.capacity import DiskSpace, resolve_capacity
from kvtier.config import Config
from kvtier.errors import ConfigError
from kvtier.machine import MemoryLimit
from kvtier.settings import resolve_settings
from kvtier.units import GIB, MIB

SPACE = DiskSpace(own_bytes=GIB, free_bytes=4 * GIB)


def limit_of(limit_bytes: int) -> MemoryLimit:
    return MemoryLimit(limit_bytes=limit_bytes, path="/groups/job/memory.max", kind="memory.max")


def test_auto_takes_a_fifth_of_memory_and_four_fifths_of_the_disk() -> None:
    capacity = resolve_capacity(Config(), limit_of(10 * GIB), SPACE)
    assert capacity.host_bytes == 2 * GIB
    assert capacity.disk_bytes == 4 * GIB
    assert capacity.staging_bytes == 64 * MIB
    assert set(capacity.notes) == {"host_bytes", "disk_bytes"}


def test_auto_in_a_small_container_fits_f11() -> None:
    for limit_bytes in (1, 64 * MIB, 80 * MIB, 128 * MIB, 256 * MIB):
        try:
            capacity = resolve_capacity(Config(), limit_of(limit_bytes), SPACE)
        except ConfigError:
            # Not even the staging buffers fit: that is said, not tried.
            assert limit_bytes - limit_bytes // 16 < 64 * MIB
            continue
        assert capacity.host_bytes + capacity.staging_bytes <= limit_bytes - limit_bytes // 16
        assert capacity.host_bytes <= limit_bytes // 5
        assert capacity.prefault_bytes <= limit_bytes // 16


def test_what_is_provided_ahead_is_bounded_on_a_large_machine() -> None:
    capacity = resolve_capacity(Config(), limit_of(1024 * GIB), SPACE)
    assert capacity.prefault_bytes == 320 * MIB


def test_sizes_that_do_not_fit_show_the_whole_sum_k7() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_capacity(Config(host_bytes="1GiB"), limit_of(GIB), SPACE)
    text = str(caught.value)
    for part in (
        f"need {GIB + 64 * MIB}",
        f"host_bytes {GIB}",
        f"staging_bytes {64 * MIB}",
        f"have {GIB}",
        f"reserve {GIB // 16}",
        "/groups/job/memory.max",
        str(GIB - GIB // 16 - 64 * MIB),
    ):
        assert part in text


def test_the_largest_size_that_the_message_names_does_fit_k7() -> None:
    host_bytes = GIB - GIB // 16 - 64 * MIB
    assert resolve_capacity(Config(host_bytes=host_bytes), limit_of(GIB), SPACE).host_bytes > 0
    with pytest.raises(ConfigError):
        resolve_capacity(Config(host_bytes=host_bytes + 1), limit_of(GIB), SPACE)


def test_without_a_disk_tier_there_is_no_staging() -> None:
    capacity = resolve_capacity(Config(host_bytes=0), limit_of(GIB), None)
    assert (capacity.host_bytes, capacity.staging_bytes, capacity.disk_bytes) == (0, 0, 0)


def test_a_disk_tier_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="disk_bytes: 0"):
        resolve_capacity(Config(disk_bytes=0), limit_of(GIB), SPACE)


@pytest.mark.parametrize(
    ("unified", "gpu", "is_left_out"),
    [
        ("on", None, True),
        ("auto", "nvidia,tegra234", True),
        ("auto", None, False),
        ("off", "nvidia,tegra234", False),
    ],
)
def test_where_memory_is_one_auto_leaves_the_host_tier_out_f10(
    unified: str, gpu: str | None, is_left_out: bool
) -> None:
    config = Config(unified=unified)
    capacity = resolve_capacity(config, limit_of(10 * GIB), SPACE, gpu)
    assert capacity.host_bytes == (0 if is_left_out else 2 * GIB)
    assert (gpu or "unified=on") in capacity.notes["host_bytes"] or not is_left_out
    # Without a disk tier it is the only place there is, and a size that was asked for is kept.
    assert resolve_capacity(config, limit_of(10 * GIB), None, gpu).host_bytes == 2 * GIB
    asked = Config(unified=unified, host_bytes=GIB)
    assert resolve_capacity(asked, limit_of(10 * GIB), SPACE, gpu).host_bytes == GIB


def test_a_shared_arena_keeps_its_host_tier_f10() -> None:
    config = Config(unified="on", shared_arena=True)
    assert resolve_capacity(config, limit_of(10 * GIB), SPACE, "NVIDIA GB10").host_bytes == 2 * GIB


@pytest.mark.parametrize("memory_gib", [4, 8, 16])
def test_auto_takes_a_fifth_of_a_small_machine_once_b1(memory_gib: int) -> None:
    source = {"storage": {"max_local_cpu_size": "auto", "local_disk": "/d"}}
    config = resolve_settings({}, source, {}).config
    capacity = resolve_capacity(config, limit_of(memory_gib * GIB), SPACE)
    assert capacity.host_bytes == memory_gib * GIB // 5
    unified = resolve_capacity(config, limit_of(memory_gib * GIB), SPACE, "Orin")
    assert unified.host_bytes == 0


def test_staging_beyond_memory_is_refused_by_its_name() -> None:
    for host_bytes in ("auto", 0):
        config = Config(path="/d", host_bytes=host_bytes, staging_bytes=2 * GIB)
        with pytest.raises(ConfigError, match="staging_bytes does not fit into memory"):
            resolve_capacity(config, limit_of(GIB), SPACE)


def test_a_cap_beyond_what_the_disk_has_is_warned_about() -> None:
    (warning,) = resolve_capacity(Config(disk_bytes=5 * GIB + 1), limit_of(GIB), SPACE).warnings
    assert "will be full" in warning
    for disk_bytes in ("auto", 5 * GIB):
        assert resolve_capacity(Config(disk_bytes=disk_bytes), limit_of(GIB), SPACE).warnings == ()
    assert resolve_capacity(Config(disk_bytes=5 * GIB), limit_of(GIB), None).warnings == ()
