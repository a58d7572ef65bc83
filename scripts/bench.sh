#!/usr/bin/env bash
# Measures the overhead of the recorder on the simulated driver, with and without it in alternating runs.
#
#   scripts/bench.sh [PART]...      default: all parts
#
# pairs      an allocation and its free, on 1 and more threads
# limits     the same under a cap, alone in a group, and in a group of 8 processes
# refusals   a refused request, and the post-mortem of an out-of-memory
# parquet    rows a second on one core, and bytes a row, of `vramtrace export --format parquet`
#
# Prints Markdown tables. Needs cargo, gcc and python3. Compare only figures of one table:
# they depend on the machine and its load. Exit status: 0 done, 1 a measurement failed, 2 unknown part.
set -eu
cd "$(dirname "$0")/.."
cargo build --release --workspace --quiet
exec python3 benches/bench.py "$@"
