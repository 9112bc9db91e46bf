#!/usr/bin/env bash
# Runs vLLM's own tests of its offloading connector with KvtierConnector in that one's place. Needs
# .venv-vllm (make test-vllm) and vLLM's source distribution of the same version, unpacked.
# Usage: tools/run_vllm_own_tests.sh SOURCES [pytest arguments]

set -euo pipefail
cd "$(dirname "$0")/.."

root=$PWD
python=$root/.venv-vllm/bin/python
sources=$(realpath "${1:?usage: tools/run_vllm_own_tests.sh SOURCES [pytest arguments]}")
shift
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# Apart from the package in the same folder, which has no compiled parts.
cp -r "$sources/tests" "$folder/"
cd "$folder"
"$python" -m pip install --quiet --disable-pip-version-check --target packages tblib pytest-asyncio
# Only the shape of this model is looked at.
"$python" -c 'from transformers import OPTConfig; OPTConfig().save_pretrained("facebook/opt-125m")'

PYTHONPATH=$root:$root/tests/python/adapters/vllm:$folder:$folder/packages HF_HUB_OFFLINE=1 \
  "$python" -m pytest -q -p vllm_own_tests --rootdir="$folder" --timeout 300 -W ignore \
  "${@:-tests/v1/kv_connector/unit/offloading_connector}"
