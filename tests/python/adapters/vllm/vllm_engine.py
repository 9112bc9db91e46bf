"""Imported before anything of vLLM: skips the importing test module where it is not installed."""

import importlib.util
import warnings

import pytest

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vLLM is not installed", allow_module_level=True)
with warnings.catch_warnings():
    # What vLLM's own imports warn of is not ours to fail for.
    warnings.simplefilter("ignore")
    import torch  # noqa: F401
    import vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector  # noqa: F401
