"""Makes vLLM's block hashes the same in each run: what is on disk is found by them.

Changes the process's environment; called before vLLM makes its first hash.
"""

import os
from collections.abc import MutableMapping
from typing import Final

from kvtier.core_log import warn_once
from kvtier.units import show

SEED_VARIABLE: Final = "PYTHONHASHSEED"
_SEED: Final = "0"


def fix_hash_seed(
    algorithm: str,
    *,
    is_random: bool,
    environment: MutableMapping[str, str] = os.environ,
) -> None:
    """Gives vLLM's hashes a first one that does not change.

    is_random: this version of vLLM begins with random bytes unless SEED_VARIABLE is set, also where
               nobody could make two prompts have one hash (SHA-256); newer ones do not.
    """
    if environment.get(SEED_VARIABLE) is not None:
        return
    if not algorithm.startswith("sha256"):
        warn_once(
            ("hash seed", algorithm),
            f"--prefix-caching-hash-algo {show(algorithm)} begins with random bytes in each run: "
            f"blocks on disk will not be found after a restart; use sha256, or set {SEED_VARIABLE}",
        )
    elif is_random:
        # Python itself reads it at its start only.
        environment[SEED_VARIABLE] = _SEED
