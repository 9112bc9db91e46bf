"""One run of a real engine in a process of its own: reads a plan as JSON, writes tokens as JSON.

Plan: model; extra (kv_connector_extra_config, None: without kvtier); num_requests; rounds, each
"ask" or "reset"; seed; num_device_blocks; tells_events; metrics_interval_s; num_ranks (absent: one
worker, in this process); and faults: every `fail_every`th load lacks its second half, `flips_bytes`
spoils what was loaded.
"""

import json
import os
import random
import sys
from pathlib import Path

from tiny_model import VOCABULARY

import kvtier
import kvtier.adapters.vllm
from kvtier.namespace import Namespace

BLOCK_TOKENS = 32
NUM_DEVICE_BLOCKS = 40


class FaultyPaged:
    """Delegates to the store's own, less what the plan takes away."""

    def __init__(self, paged, tensors, plan):
        self._paged, self._tensors, self._plan = paged, tensors, plan
        self.num_loads = 0
        self.num_failed = 0

    def __getattr__(self, name):
        return getattr(self._paged, name)

    def load(self, keys, block_ids, **options):
        self.num_loads += 1
        fail_every = self._plan.get("fail_every", 0)
        if fail_every and self.num_loads % fail_every == 0:
            self.num_failed += 1
            keys = keys.copy()
            keys[len(keys) // 2 :] ^= 0xFF
        job = self._paged.load(keys, block_ids, **options)
        if self._plan.get("flips_bytes"):
            job.wait()
            for tensor in self._tensors:
                tensor[block_ids] ^= 1
        return job


def make_prompts(plan):
    """Prompts of 1 to 20 blocks that share beginnings with each other."""
    source = random.Random(plan.get("seed", 0))
    documents = [[source.randrange(VOCABULARY) for _ in range(640)] for _ in range(12)]
    prompts = []
    for _ in range(plan["num_requests"]):
        document = source.choice(documents)
        ending = [source.randrange(VOCABULARY) for _ in range(source.randrange(1, 40))]
        prompts.append(document[: source.randrange(20, 560)] + ending)
    return prompts


def count_failed_requests(failed_requests):
    """Notes what the scheduler's half hears of loads that failed in other processes."""
    from kvtier.adapters.vllm.rank_planner import RankPlanner

    take_report = RankPlanner.take_report

    def take_report_and_count(planner, report):
        failed_requests.extend(getattr(report, "failed_requests", ()))
        take_report(planner, report)

    RankPlanner.take_report = take_report_and_count


def collect_events(engine):
    """Returns a dictionary that will count what the engine publishes, by kind and medium."""
    counts = {}

    def publish(batch):
        for event in batch.events:
            name = f"{type(event).__name__} {getattr(event, 'medium', None)}"
            name += " with tokens" if getattr(event, "token_ids", None) else ""
            num_blocks = len(getattr(event, "block_hashes", [None]))
            counts[name] = counts.get(name, 0) + num_blocks

    core = engine.llm_engine.engine_core.engine_core
    core.scheduler.kv_event_publisher.publish = publish
    return counts


def make_options(plan):
    """Returns what the plan says of the connector, the ranks and the events."""
    options = {}
    if plan["extra"] is not None:
        options["kv_transfer_config"] = {
            "kv_connector": "KvtierConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": plan["extra"],
        }
    if "num_ranks" in plan:
        options["tensor_parallel_size"] = plan["num_ranks"]
        options["distributed_executor_backend"] = "mp"
        if plan["extra"] is not None:
            options["kv_transfer_config"]["kv_connector_module_path"] = "faulty_ranks"
    if plan.get("tells_events"):
        from vllm.config import KVEventsConfig

        options["kv_events_config"] = KVEventsConfig(enable_kv_cache_events=True, publisher="null")
    return options


def read_metrics(engine):
    metrics = {}
    for metric in engine.get_metrics():
        value = getattr(metric, "value", None)
        if value is not None:
            tier = metric.labels.get("tier")
            metrics[metric.name + (f":{tier}" if tier else "")] = value
    return metrics


def main(plan, out):
    # For workers in processes of their own, which inherit it.
    os.environ["KVTIER_TEST_FAULTS"] = json.dumps(
        {name: plan[name] for name in ("fail_every", "flips_bytes") if name in plan}
    )
    if "num_ranks" in plan:
        # By itself vLLM wants a NUMA node for each.
        cpus = sorted(os.sched_getaffinity(0))
        bound = [str(cpus[rank % len(cpus)]) for rank in range(plan["num_ranks"])]
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(bound)
    else:
        kvtier.adapters.vllm.register()
    attached = []
    attach = Namespace.attach

    def attach_with_faults(namespace, tensors, geometry):
        attached.append(FaultyPaged(attach(namespace, tensors, geometry), tensors, plan))
        return attached[-1]

    Namespace.attach = attach_with_faults
    if "metrics_interval_s" in plan:
        from kvtier.adapters.vllm import store_metrics

        store_metrics.INTERVAL_S = plan["metrics_interval_s"]
    from vllm import LLM, SamplingParams

    failed_requests = []
    if "num_ranks" in plan and plan["extra"] is not None:
        count_failed_requests(failed_requests)
    engine = LLM(
        model=plan["model"],
        dtype="float32",
        skip_tokenizer_init=True,
        enforce_eager=True,
        block_size=BLOCK_TOKENS,
        max_model_len=1024,
        max_num_seqs=4,
        num_gpu_blocks_override=plan.get("num_device_blocks", NUM_DEVICE_BLOCKS),
        disable_log_stats=False,
        **make_options(plan),
    )
    events = collect_events(engine) if plan.get("tells_events") else {}
    sampling = SamplingParams(
        temperature=0, max_tokens=plan.get("max_tokens", 40), ignore_eos=True, detokenize=False
    )
    prompts = [{"prompt_token_ids": prompt} for prompt in make_prompts(plan)]
    answers = []
    for step in plan["rounds"]:
        if step == "reset":
            assert engine.reset_prefix_cache(reset_connector=True)
            continue
        outputs = engine.generate(prompts, sampling, use_tqdm=False)
        answers.append([list(output.outputs[0].token_ids) for output in outputs])
    loads = {
        "num_loads": sum(it.num_loads for it in attached),
        "num_failed": sum(it.num_failed for it in attached) + len(failed_requests),
        "num_groups": len(attached),
    }
    out.write_text(
        json.dumps({"answers": answers, "metrics": read_metrics(engine), "events": events, **loads})
    )


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
