"""Block hashes that a restarted engine makes again."""

import pytest

from kvtier import core_log
from kvtier.adapters.vllm.hash_seed import SEED_VARIABLE, fix_hash_seed


@pytest.fixture(autouse=True)
def nothing_said_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_log, "_said_once", set())


@pytest.mark.parametrize("algorithm", ["sha256", "sha256_cbor"])
def test_a_random_seed_is_fixed_where_hashes_cannot_be_forged(algorithm: str) -> None:
    environment: dict[str, str] = {}
    fix_hash_seed(algorithm, is_random=True, environment=environment)
    assert environment == {SEED_VARIABLE: "0"}


def test_what_the_user_or_vllm_fixed_stays() -> None:
    environment = {SEED_VARIABLE: "7"}
    fix_hash_seed("sha256", is_random=True, environment=environment)
    assert environment == {SEED_VARIABLE: "7"}
    environment = {}
    fix_hash_seed("sha256", is_random=False, environment=environment)
    assert environment == {}


@pytest.mark.parametrize("is_random", [True, False])
def test_hashes_that_can_be_forged_stay_random_and_that_is_said(
    is_random: bool, caplog: pytest.LogCaptureFixture
) -> None:
    environment: dict[str, str] = {}
    fix_hash_seed("xxhash", is_random=is_random, environment=environment)
    assert environment == {}
    assert "'xxhash'" in caplog.text
    assert SEED_VARIABLE in caplog.text
