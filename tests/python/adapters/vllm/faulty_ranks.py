"""KvtierConnector with workers that take things away, for engines whose workers are processes.

Every process of the engine imports it. KVTIER_TEST_FAULTS is JSON: of the last rank's loads every
`fail_every`th plan is refused; `flips_bytes` spoils what was loaded.
"""

import json
import os

from kvtier.adapters.vllm.connector import KvtierConnector
from kvtier.errors import UsageError
from kvtier.paged_worker import PagedWorker

__all__ = ["KvtierConnector"]

FAULTS = json.loads(os.environ.get("KVTIER_TEST_FAULTS", "{}"))
submit_plan = PagedWorker.submit
num_loads = 0


def submit_with_faults(worker, plan, block_ids, stream=None):
    global num_loads
    if plan.is_load and worker.rank == plan.num_ranks - 1:
        num_loads += 1
        if FAULTS.get("fail_every") and num_loads % FAULTS["fail_every"] == 0:
            raise UsageError("planted")
    job = submit_plan(worker, plan, block_ids, stream)
    if FAULTS.get("flips_bytes") and plan.is_load:
        job.wait()
        for tensor in worker._tensors.tensors:
            tensor.keeper[block_ids[plan.block_indices]] ^= 1
    return job


PagedWorker.submit = submit_with_faults
