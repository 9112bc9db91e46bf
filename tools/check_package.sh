#!/usr/bin/env bash
# Builds source distribution and wheel into dist/, the wheel from the source distribution, and proves that
# they are of use: the metadata is right, the wheel needs libc only, and in a new environment with what it
# declares, and nothing else, it keeps blocks from one run to the next.
# Usage: check_package.sh. Needs what tools/setup.sh package installs; the environment needs an index.

set -euo pipefail
cd "$(dirname "$0")/.."

root=$PWD
rm -rf dist build/lib* build/bdist* # else modules deleted since the last wheel would be packed
# Without isolation nothing is downloaded: what builds kvtier is in .venv.
tools/run_step.sh "source distribution and wheel" .venv/bin/python -m build --no-isolation --outdir dist .
tools/run_step.sh "metadata" .venv/bin/python -m twine check --strict dist/*
tools/run_step.sh "libraries that the wheel needs" .venv/bin/python tools/wheel_libraries.py dist/*.whl

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

try_wheel() {
  .venv/bin/python -c 'import sys, venv; venv.EnvBuilder(with_pip=True).create(sys.argv[1])' "$folder/venv"
  "$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check dist/*.whl
  "$folder/venv/bin/python" -m pip check
  # From elsewhere: the source folder must not be imported.
  cd "$folder"
  venv/bin/kvtier --version
  venv/bin/python -c 'import kvtier._core as core, sys; print(core.__file__); sys.exit("torch" in sys.modules)'
  [ "$(venv/bin/python "$root/examples/first_hit.py")" = "0 blocks found, 8 computed" ]
  [ "$(venv/bin/python "$root/examples/first_hit.py")" = "8 blocks found, 0 computed" ]
  venv/bin/kvtier verify kv
}
export -f try_wheel
export root folder
tools/run_step.sh "wheel in a new environment" bash -euo pipefail -c try_wheel
