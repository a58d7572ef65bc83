#!/usr/bin/env bash
# Measures `vramtrace export --format parquet` over a simulated run of 1,024 ranks with 200,000 events each, and the answers of
# DuckDB to the questions of examples/duckdb.
#
#   benches/tables-bench.sh [RANKS [EVENTS]]
#
# Needs cargo, /usr/bin/time, 7 GB in ${TMPDIR:-/tmp}; installs duckdb from PyPI into a venv under target/.
set -euo pipefail
cd "$(dirname "$0")/.."
ranks=${1:-1024} events=${2:-200000}
[ -x /usr/bin/time ] || { echo "tables-bench: /usr/bin/time was not found (package time)" >&2; exit 2; }
venv=target/duckdb
[ -x $venv/bin/python3 ] || python3 -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check duckdb==2.0.1
cargo build --release --quiet --bin vramtrace --example many_ranks
place=$(mktemp -d "${TMPDIR:-/tmp}/vramtrace-tables.XXXXXX")
trap 'rm -rf "$place"' EXIT
target/release/examples/many_ranks "$place/run" "$ranks" "$events" 0 4
/usr/bin/time -f '%e s elapsed, %U s in user mode, peak %M KiB of memory' \
    target/release/vramtrace export "$place/run" --format parquet -o "$place/all"
du -sb "$place/all"/* | sed "s|$place/all/||"
"$venv/bin/python3" examples/duckdb/questions.py "$place/all" --json "$place/duckdb.json" > "$place/duckdb.txt"
cat "$place/duckdb.txt"
