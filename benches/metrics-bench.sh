#!/usr/bin/env bash
# Measures a scrape of `vramtrace metrics` and its own memory beside simulated processes that are recorded.
#
#   benches/metrics-bench.sh [PROCESSES [RUNS]]      200 processes, 3 runs
#
# Needs cargo, gcc, python3, and 10 MB of memory a process. Prints a Markdown table, a row a run. Exit status: 0 within
# the bounds (a scrape below 50 ms, memory below 64 MiB), 1 above them.
set -eu
cd "$(dirname "$0")/.."
if [ -z "${VRAMTRACE_BIN:-}" ]; then cargo build --release --workspace --quiet; fi
exec python3 benches/metrics_bench.py "${1:-200}" "${2:-3}"
