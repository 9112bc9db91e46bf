"""Counters read from pages as vLLM writes them."""

from __future__ import annotations

import pytest

from kvtier.bench.serve.engine_metrics import EngineCounters, parse_counters

BEFORE = r"""
# HELP vllm:num_preemptions_total Cumulative number of preemption from the engine.
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0",model_name="a \"quoted\" name"} 2.0
vllm:num_preemptions_created{engine="0",model_name="m"} 1.7960981e+09
vllm:prompt_tokens_total{engine="0",model_name="m"} 1000.0
vllm:generation_tokens_total{engine="0",model_name="m"} 100.0
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 1000.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 0.0
vllm:external_prefix_cache_hits_total{engine="0",model_name="m"} 64.0
vllm:kv_offload_total_bytes_total{engine="0",transfer_type="CPU_to_GPU"} 5.0
vllm:kv_offload_total_bytes_total{engine="0",transfer_type="GPU_to_CPU"} 7.0
vllm:kvtier_blocks{engine="0",model_name="m",tier="host"} 12.0
vllm:kvtier_blocks{engine="0",model_name="m",tier="disk"} 0.0
vllm:kvtier_backlog_bytes{engine="0",model_name="m",tier="disk"} 4096.0
vllm:cache_config_info{block_size="32",cache_dtype="auto",num_gpu_blocks="81"} 1.0
not a sample
vllm:odd{le="+Inf"} NaN_
"""
AFTER = """
vllm:num_preemptions_total{engine="0"} 2.0
vllm:num_preemptions_total{engine="1"} 3.0
vllm:prompt_tokens_total{engine="0"} 5000.0
vllm:generation_tokens_total{engine="0"} 300.0
vllm:prefix_cache_queries_total{engine="0"} 5000.0
vllm:prefix_cache_hits_total{engine="0"} 400.0
vllm:external_prefix_cache_hits_total{engine="0"} 864.0
vllm:kvtier_blocks{engine="0",tier="host"} 12.0
vllm:kvtier_hits_total{engine="0",tier="host"} 20.0
vllm:kvtier_hits_total{engine="0",tier="disk"} 5.0
vllm:kvtier_bytes_read_total{engine="0",tier="disk"} 1.5e+09
vllm:cache_config_info{block_size="32",cache_dtype="auto",num_gpu_blocks="81"} 1.0
"""


def read(text: str) -> EngineCounters:
    counters = parse_counters(text)
    assert counters is not None
    return counters


def test_what_lies_between_two_pages() -> None:
    counted = read(AFTER).since(read(BEFORE))
    assert counted.preemptions == 3
    assert counted.new_device_tokens == 4000 - 400 + 200
    assert counted.device_room_tokens == 80 * 32
    assert counted.hit_rate("device") == pytest.approx(0.1)
    assert counted.hit_rate("external") == pytest.approx(0.2)
    assert counted.hit_rate("host") == pytest.approx(20 * 32 / 4000)
    assert counted.hit_rate("disk") == pytest.approx(5 * 32 / 4000)
    assert counted.tiers["disk_bytes_read"] == 1.5e9


def test_a_request_that_waits_counts_once() -> None:
    """What the prefix cache was asked grows with each step in which a request waits."""
    text = """
vllm:prompt_tokens_total{engine="0"} 5000.0
vllm:prefix_cache_queries_total{engine="0"} 90000.0
vllm:prefix_cache_hits_total{engine="0"} 7000.0
vllm:external_prefix_cache_hits_total{engine="0"} 2100.0
vllm:prompt_tokens_by_source_total{engine="0",source="local_compute"} 2500.0
vllm:prompt_tokens_by_source_total{engine="0",source="local_cache_hit"} 500.0
vllm:prompt_tokens_by_source_total{engine="0",source="external_kv_transfer"} 2000.0
vllm:kvtier_blocks{engine="0",tier="host"} 12.0
vllm:kvtier_hits_total{engine="0",tier="host"} 62.5
vllm:cache_config_info{block_size="32",num_gpu_blocks="81"} 1.0
"""
    counted = read(text)
    assert counted.hit_rate("device") == pytest.approx(0.1)
    assert counted.hit_rate("external") == pytest.approx(0.4)
    assert counted.hit_rate("host") == pytest.approx(0.4)
    assert counted.new_device_tokens == 4500


def test_a_page_has_gauges_and_both_directions() -> None:
    counters = read(BEFORE)
    assert (counters.loaded_bytes, counters.saved_bytes) == (5, 7)
    assert counters.backlog_bytes == 4096
    assert counters.tiers["host_hits"] == 0


def test_pages_of_others_have_no_counters() -> None:
    assert parse_counters("") is None
    assert parse_counters("go_goroutines 12\n<html>\n") is None


def test_an_engine_without_kvtier_has_no_tiers() -> None:
    counters = read('vllm:prompt_tokens_total{engine="0"} 10.0\n')
    assert counters.tiers == {}
    assert counters.hit_rate("host") is None
    assert counters.has_evicted is None


@pytest.mark.parametrize(
    ("prompt_tokens", "preemptions", "has_evicted"),
    [(2460, 0, False), (2461, 0, True), (10, 1, True)],
)
def test_an_engine_gave_something_up_when_more_came_than_it_has_room_for(
    prompt_tokens: int, preemptions: int, has_evicted: bool
) -> None:
    counters = read(
        f"vllm:prompt_tokens_total {prompt_tokens}\nvllm:generation_tokens_total 100\n"
        f"vllm:num_preemptions_total {preemptions}\n"
        'vllm:cache_config_info{block_size="32",num_gpu_blocks="81"} 1.0\n'
    )
    assert counters.has_evicted is has_evicted
