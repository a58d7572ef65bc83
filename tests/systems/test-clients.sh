#!/usr/bin/env bash
# Tests real clients from PyPI on the simulated driver, with and without the recorder: cuda-bindings, cuda.core,
# numba-cuda. Tests our export with PyTorch's memory viewer, taken from the smallest wheel that contains it.
# Prints SKIP if a package cannot be installed (an error with VRAMTRACE_TEST_NO_SKIP).
#
#   tests/systems/test-clients.sh
#
# PYTHON names the interpreter (default python3), VRAMTRACE_TEST_VENV the venv (default target/test-venv).
set -eu
cd "$(dirname "$0")/../.."
. scripts/skip.sh
venv=${VRAMTRACE_TEST_VENV:-target/test-venv}
python=${PYTHON:-python3}
if [ ! -x "$venv/bin/python" ]; then
    "$python" -m venv "$venv" || { skip "clients: $python -m venv fails"; exit 0; }
fi
if ! "$venv/bin/pip" install --quiet --disable-pip-version-check -r tests/python/requirements.txt; then
    skip "clients: pip could not install tests/python/requirements.txt"
    exit 0
fi
VRAMTRACE_TEST_PYTHON=$PWD/$venv/bin/python cargo test --quiet --test cli clients:: -- --include-ignored

# The viewer is one file, the same in every wheel. The wheel for macOS has no CUDA libraries.
viz=target/test-memory-viz/_memory_viz.py
if [ ! -s "$viz" ]; then
    wheels=$(mktemp -d)
    trap 'rm -rf "$wheels"' EXIT
    mkdir -p "$(dirname "$viz")"
    "$venv/bin/pip" download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
        --platform macosx_11_0_arm64 --platform macosx_14_0_arm64 --python-version 3.12 \
        --dest "$wheels" torch==2.11.0 &&
        "$python" -c 'import sys, zipfile; sys.stdout.buffer.write(zipfile.ZipFile(sys.argv[1]).read("torch/cuda/_memory_viz.py"))' \
            "$wheels"/torch-*.whl >"$viz.part" && mv "$viz.part" "$viz"
fi
if [ ! -s "$viz" ]; then
    skip "viewer: pip could not fetch torch 2.11.0"
    exit 0
fi
VRAMTRACE_TEST_MEMORY_VIZ=$PWD/$viz cargo test --quiet --test torch snapshot_export:: -- --include-ignored
