#!/usr/bin/env bash
# Sets up a development environment: system packages, a virtual environment in .venv, kvtier in it.
# Usage: setup.sh [fuzz|aarch64|docs|package|prometheus]; "fuzz" also installs the compiler that has
# libFuzzer, "aarch64" the cross compiler and an emulator, "docs" what builds the documentation site,
# "package" what builds and checks distributions, "prometheus" the server that the metrics are tried
# on, without starting its service. KVTIER_PYTHON names the Python to use. Does nothing when nothing
# has changed since it last succeeded.

set -euo pipefail
cd "$(dirname "$0")/.."

packages=(g++ cmake ninja-build make pkg-config ccache
  libxxhash-dev liburing-dev doctest-dev python3 python3-dev python3-venv)
if [ "${1:-}" = fuzz ]; then
  packages+=(clang libclang-rt-14-dev)
elif [ "${1:-}" = aarch64 ]; then
  packages+=(g++-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user)
elif [ "${1:-}" = prometheus ]; then
  packages+=(prometheus)
fi
stamp=.venv/kvtier_setup.stamp

missing_packages() {
  local package
  for package in "${packages[@]}"; do
    dpkg-query -W -f '${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed || echo "$package"
  done
}

install_packages() {
  if ! command -v dpkg-query >/dev/null; then
    echo "note: not a Debian system; these packages' counterparts are needed: ${packages[*]}"
    return
  fi
  local missing=()
  mapfile -t missing < <(missing_packages)
  [ "${#missing[@]}" -gt 0 ] || return 0
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    if ! sudo -n true 2>/dev/null; then
      echo "missing packages: ${missing[*]}"
      echo "install them and try again: sudo apt-get install ${missing[*]}"
      return 1
    fi
    as_root=(sudo -n)
  fi
  echo "installing ${missing[*]}"
  "${as_root[@]}" apt-get -o DPkg::Lock::Timeout=300 update
  if [[ " ${missing[*]} " == *" prometheus "* ]]; then
    forbid_services "${as_root[@]}"
  fi
  local status=0
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "${missing[@]}" || status=$?
  if [[ " ${missing[*]} " == *" prometheus "* ]]; then
    permit_services "${as_root[@]}"
  fi
  return "$status"
}

# Debian starts a service as soon as it is installed, and at each boot. Whoever had it keeps it.
policy=/usr/sbin/policy-rc.d
has_own_policy=

# Usage: forbid_services [PREFIX...]; PREFIX is what gives the rights of root.
forbid_services() {
  if [ ! -e "$policy" ]; then
    has_own_policy=yes
    # Left behind by an interrupted installation it would keep all services from starting.
    trap "$* rm -f $policy" EXIT
    printf '#!/bin/sh\nexit 101\n' | "$@" tee "$policy" >/dev/null
    "$@" chmod 755 "$policy"
  fi
}

permit_services() {
  if [ -n "$has_own_policy" ]; then
    "$@" rm -f "$policy"
    trap - EXIT
  fi
  if command -v systemctl >/dev/null; then
    "$@" systemctl disable --quiet prometheus.service || true
  fi
}

# Prints the interpreter behind a name when it will do. Inside an activated environment that is the
# one it was made from: an environment must not be made from itself.
resolve_python() {
  "$1" -c '
import sys, venv, ensurepip
if sys.version_info < (3, 10): sys.exit(1)
print(getattr(sys, "_base_executable", None) or sys.executable)' 2>/dev/null
}

find_python() {
  local candidate
  if [ -n "${KVTIER_PYTHON:-}" ]; then
    resolve_python "$KVTIER_PYTHON" && return
    echo "KVTIER_PYTHON=$KVTIER_PYTHON is not a Python 3.10 or later with the venv module" >&2
    return 1
  fi
  for candidate in python3 python3.13 python3.12 python3.11 python3.10 /usr/bin/python3; do
    resolve_python "$candidate" && return
  done
  echo "no Python 3.10 or later with the venv module found; name one in KVTIER_PYTHON" >&2
  return 1
}

# The interpreter counts: another one needs another environment and another extension.
python_identity() {
  echo "$1 $("$1" -c 'import sys; print(sys.version.replace("\n", " "))')"
}

make_environment() {
  local identity
  identity=$(python_identity "$1")
  if ! .venv/bin/python -m pip --version >/dev/null 2>&1 \
    || [ "$(cat .venv/kvtier_python 2>/dev/null)" != "$identity" ]; then
    rm -rf .venv
    "$1" -m venv .venv
    echo "$identity" >.venv/kvtier_python
  fi
  # The build requirements are read from pyproject.toml, so that they stand in one place.
  local requirements=()
  mapfile -t requirements < <(sed -n 's/^requires = //p' pyproject.toml | grep -o '"[^"]*"' | tr -d '"')
  .venv/bin/python -m pip install --quiet --disable-pip-version-check "${requirements[@]}"
  .venv/bin/python -m pip install --quiet --disable-pip-version-check \
    --no-build-isolation -e '.[test,dev,plot,metrics]'
}

install_packages
python=$(find_python)
# What the environment was made from, the folder included: environments do not survive a move.
wanted=$({ cat pyproject.toml setup.py tools/setup.sh; pwd; python_identity "$python"; } | sha256sum)
if [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && .venv/bin/python -c '' 2>/dev/null; then
  echo "note: nothing changed"
else
  make_environment "$python"
  printf '%s\n' "$wanted" >"$stamp"
fi
# Extras that one command needs, by themselves, as kvtier need not be built for them.
case "${1:-}" in
  docs) module=material ;;
  package) module=twine ;;
  *) exit 0 ;;
esac
if ! .venv/bin/python -c "import $module" 2>/dev/null; then
  mapfile -t requirements < <(sed -n "s/^$1 = //p" pyproject.toml | grep -o '"[^"]*"' | tr -d '"')
  .venv/bin/python -m pip install --quiet --disable-pip-version-check "${requirements[@]}"
fi
