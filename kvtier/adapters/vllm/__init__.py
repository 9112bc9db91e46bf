"""kvtier under vLLM: a connector that keeps KV in host memory and on disk. See docs/vllm.md.

Importing this package imports neither vLLM nor torch.
"""

from typing import Final

CONNECTOR_NAME: Final = "KvtierConnector"
CONNECTOR_MODULE: Final = "kvtier.adapters.vllm.connector"


def register() -> None:
    """Makes the connector known to vLLM by its name; its entry point for general plugins.

    May be called again: every process of an engine does.
    """
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    if CONNECTOR_NAME not in KVConnectorFactory._registry:
        KVConnectorFactory.register_connector(CONNECTOR_NAME, CONNECTOR_MODULE, CONNECTOR_NAME)
