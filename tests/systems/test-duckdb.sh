#!/usr/bin/env bash
# Exports a simulated run of 16 ranks as Parquet tables, and asks DuckDB the questions of examples/duckdb. The answers must be
# those of `vramtrace report --json`, and what the run was made with.
#
#   tests/systems/test-duckdb.sh            some 5 s after the build
#
# Installs duckdb from PyPI into a venv under target/. Exit status: 0 all is right, or SKIP because it cannot be
# installed (an error with VRAMTRACE_TEST_NO_SKIP); 1 an answer is wrong; 2 wrong usage.
set -euo pipefail
[ $# = 0 ] || { echo "test-duckdb: unknown argument '$1': it takes none" >&2; exit 2; }
cd "$(dirname "$0")/../.."
. scripts/skip.sh
venv=target/duckdb
if ! { [ -x $venv/bin/python3 ] || python3 -m venv "$venv"; } ||
    ! "$venv/bin/pip" install --quiet --disable-pip-version-check duckdb==2.0.1; then
    skip "test-duckdb: duckdb cannot be installed"
    exit 0
fi
cargo build --quiet --bin vramtrace --example many_ranks
place=$(mktemp -d "${TMPDIR:-/tmp}/vramtrace-duckdb.XXXXXX")
trap 'rm -rf "$place"' EXIT
# All of 16 ranks leak, and the last two run out of memory, the last one first.
target/debug/examples/many_ranks "$place/run" 16 20000 0 2
target/debug/vramtrace export "$place/run" --format parquet -o "$place/tables"
target/debug/vramtrace report "$place/run" --json > "$place/report.json"
"$venv/bin/python3" examples/duckdb/questions.py "$place/tables" --json "$place/duckdb.json" > "$place/duckdb.txt"
"$venv/bin/python3" - "$place" <<'PYTHON'
import json
import sys
from pathlib import Path

place = Path(sys.argv[1])
report = json.loads((place / "report.json").read_text())
answers = json.loads((place / "duckdb.json").read_text())


def rows(question):
    answer = answers[question]
    return [dict(zip(answer["columns"], row)) for row in answer["rows"]]


def equal(what, found, expected):
    if found != expected:
        print(f"test-duckdb: {what}: {found}, not {expected}", file=sys.stderr)
        sys.exit(1)


devices = [device for process in report["processes"] for device in process["devices"]]
first = rows("first-out-of-memory")
equal("the ranks out of memory, the first one first", [row["rank"] for row in first], [15, 14])
equal("their end", {row["ended"] for row in first}, {"out_of_memory"})
grown = rows("fastest-growing")
equal("the line that leaks", [(row["line"], row["ranks"]) for row in grown], [("layer38.py:88", 16)])
parts = rows("imbalance")
equal("parts of the time", [row["part"] for row in parts], list(range(20)))
equal("the highest peak", max(row["highest_bytes"] for row in parts), max(device["peak_bytes"] for device in devices))
driver = [row for row in rows("who-holds-most") if row["level"] == "driver"]
equal("bytes at the peaks", sum(row["bytes"] for row in driver), sum(device["peak_bytes"] for device in devices))
ends = [row for row in rows("held-at-end") if row["level"] == "driver"]
equal("bytes at the end, by the blocks", sum(row["bytes"] for row in ends), sum(device["live_bytes"] for device in devices))
print(f"test-duckdb: {len(answers)} questions")
PYTHON
# What was not exported is said, and what is asked wrongly refused.
mkdir "$place/summary"
mv "$place/tables/summary" "$place/summary"
status=0
"$venv/bin/python3" examples/duckdb/questions.py "$place/summary" > /dev/null 2> "$place/errors" || status=$?
[ $status = 1 ] && grep -q "imbalance is left out: samples was not exported" "$place/errors"
status=0
"$venv/bin/python3" examples/duckdb/questions.py "$place/summary" who > /dev/null 2> "$place/errors" || status=$?
[ $status = 2 ] && grep -q "'who' is no question" "$place/errors"
