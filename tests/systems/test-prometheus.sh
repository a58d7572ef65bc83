#!/usr/bin/env bash
# Tests `vramtrace metrics` with a real Prometheus: scrapes simulated processes, and checks the format, the alert rules
# and each query of examples/prometheus.
#
#   tests/systems/test-prometheus.sh
#
# Needs cargo, gcc, python3 and Debian's package prometheus (or prometheus and promtool in $PROMETHEUS_BIN). Takes a
# minute. Exit status: 0 all is right, 1 something is not, 2 a program is missing.
set -eu
cd "$(dirname "$0")/../.."
cargo build --workspace --quiet
exec python3 tests/systems/prometheus.py
