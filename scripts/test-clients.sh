#!/usr/bin/env bash
# Real clients from PyPI over the simulated driver, bare and under the preload: cuda-bindings,
# cuda.core, numba-cuda. SKIPs, and says so, where they cannot be installed.
set -eu
cd "$(dirname "$0")/.."
venv=${VRAMTRACE_TEST_VENV:-target/test-venv}
python=${PYTHON:-python3}
if [ ! -x "$venv/bin/python" ]; then
    "$python" -m venv "$venv" || { echo "SKIP clients: $python -m venv fails"; exit 0; }
fi
if ! "$venv/bin/pip" install --quiet --disable-pip-version-check -r tests/python/requirements.txt; then
    echo "SKIP clients: pip could not install tests/python/requirements.txt"
    exit 0
fi
VRAMTRACE_TEST_PYTHON=$PWD/$venv/bin/python cargo test --quiet --test clients -- --include-ignored
