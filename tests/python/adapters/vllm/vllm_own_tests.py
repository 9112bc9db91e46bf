"""A plugin for vLLM's own tests: where they make an OffloadingConnector they get KvtierConnector.

tools/run_vllm_own_tests.sh loads it. The tests bring a manager and a worker of their own, which do
as each test says; what is tried is that the connector between them and vLLM's scheduler behaves
as vLLM's own one does.
"""

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1 import offloading_connector

from kvtier.adapters.vllm import connector

parse_connector_settings = connector.parse_connector_settings
# The tests' halves take settings that kvtier refuses, and have no use for a store.
connector.parse_connector_settings = lambda _: parse_connector_settings({"kv_device": "off"})
connector._select_spec = lambda _: None
# Their workers, however many, are one double in the test's own process.
connector.has_ranks = lambda _: False


class ManagerOfTest:
    """What the connector asks of kvtier's manager, beside vLLM's: the tests' have none of it."""

    tells_events = True

    def resolve(self, request: Any, num_computed_tokens: int) -> None:
        pass

    def admit(self, request: Any, num_loaded_tokens: int) -> None:
        pass

    def note_step(self, num_scheduled: Any) -> None:
        pass

    def forbid_loading(self, request_id: str) -> None:
        pass


class ConnectorUnderTest(connector.KvtierConnector):
    """Known to vLLM by the name of its own connector."""

    @property
    def _manager(self) -> Any:
        return ManagerOfTest()


def return_connector() -> Any:
    return ConnectorUnderTest


offloading_connector.OffloadingConnector = ConnectorUnderTest
KVConnectorFactory._registry["OffloadingConnector"] = return_connector
