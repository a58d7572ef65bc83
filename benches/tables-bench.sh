#!/usr/bin/env bash
# Measures `vramtrace export --format parquet` over a simulated run of 1,024 ranks with 200,000 events each, and the answers of
# DuckDB and Spark to the questions of examples/duckdb. Fails if they are not equal.
#
#   benches/tables-bench.sh [RANKS [EVENTS]]
#
# Needs cargo, /usr/bin/time, Java 17, 7 GB in ${TMPDIR:-/tmp}; installs duckdb and pyspark from PyPI into a venv under target/.
set -euo pipefail
cd "$(dirname "$0")/.."
ranks=${1:-1024} events=${2:-200000}
[ -x /usr/bin/time ] || { echo "tables-bench: /usr/bin/time was not found (package time)" >&2; exit 2; }
command -v java > /dev/null || { echo "tables-bench: java was not found (package default-jre-headless)" >&2; exit 2; }
venv=target/duckdb
[ -x $venv/bin/python3 ] || python3 -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check duckdb==2.0.1 pyspark==4.3.0
cargo build --release --quiet --bin vramtrace --example many_ranks
place=$(mktemp -d "${TMPDIR:-/tmp}/vramtrace-tables.XXXXXX")
trap 'rm -rf "$place"' EXIT
target/release/examples/many_ranks "$place/run" "$ranks" "$events" 0 4
/usr/bin/time -f '%e s elapsed, %U s in user mode, peak %M KiB of memory' \
    target/release/vramtrace export "$place/run" --format parquet -o "$place/all"
du -sb "$place/all"/* | sed "s|$place/all/||"
"$venv/bin/python3" examples/duckdb/questions.py "$place/all" --json "$place/duckdb.json" > "$place/duckdb.txt"
"$venv/bin/python3" examples/spark/questions.py "$place/all" --json "$place/spark.json" > "$place/spark.txt" 2>&1 \
    || { tail -n 20 "$place/spark.txt" >&2; echo "tables-bench: Spark did not answer" >&2; exit 1; }
"$venv/bin/python3" - "$place" <<'PYTHON'
import json
import sys
from pathlib import Path

duckdb, spark = (json.loads((Path(sys.argv[1]) / f"{name}.json").read_text()) for name in ("duckdb", "spark"))
print("| question | rows | DuckDB, s | Spark, s | answers |\n|---|---|---|---|---|")
same = True
for question, answer in duckdb.items():
    equal = spark[question]["rows"] == answer["rows"]
    same = same and equal
    print(f"| {question} | {len(answer['rows'])} | {answer['seconds']} | {spark[question]['seconds']} | {'equal' if equal else 'DIFFER'} |")
sys.exit(0 if same else 1)
PYTHON
