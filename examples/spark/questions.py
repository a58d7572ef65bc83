#!/usr/bin/env python3
"""Answers the questions of ../duckdb/*.sql with Spark: the same SQL, for runs that do not fit on one machine.

    vramtrace export RUN-DIR --format parquet -o tables
    python3 questions.py tables                          # on this machine alone
    spark-submit --master MASTER questions.py hdfs:///runs/tables
    python3 questions.py tables --json answers.json      # for programs

Needs `pip install pyspark` and Java 17 or later. Tables that were not exported are left out, with their questions.
Exit status: 0 done, 1 a question was left out, 2 bad input.
"""

import argparse
import json
import re
import sys
import time
from decimal import Decimal
from pathlib import Path

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

TABLES = ("blocks", "stacks", "samples", "holders", "summary")
QUESTIONS = Path(__file__).resolve().parent.parent / "duckdb"


def plain(value):
    return float(value) if isinstance(value, Decimal) else value


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory")
    parser.add_argument("question", nargs="*")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the answers to a file")
    arguments = parser.parse_args()
    found = {path.stem: path for path in sorted(QUESTIONS.glob("*.sql"))}
    unknown = [name for name in arguments.question if name not in found]
    if unknown:
        print(f"questions: '{unknown[0]}' is no question: must be one of {', '.join(found)}", file=sys.stderr)
        return 2
    spark = SparkSession.builder.appName("vramtrace").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    there = []
    for table in TABLES:
        try:
            spark.read.parquet(f"{arguments.directory}/{table}").createOrReplaceTempView(table)
            there.append(table)
        except AnalysisException:
            pass  # It was not exported.
    if not there:
        print(f"questions: {arguments.directory}: has no tables: give a directory of `vramtrace export --format parquet`", file=sys.stderr)
        return 2
    answers, left_out = {}, False
    for name in arguments.question or found:
        sql = found[name].read_text()
        missing = [table for table in TABLES if table not in there and re.search(rf"(FROM|JOIN) {table}\b", sql)]
        if missing:
            print(f"questions: {name} is left out: {', '.join(missing)} was not exported", file=sys.stderr)
            left_out = True
            continue
        start = time.perf_counter()
        result = spark.sql(sql)
        rows = [[plain(value) for value in row] for row in result.collect()]
        seconds = time.perf_counter() - start
        answers[name] = {"columns": result.columns, "rows": rows, "seconds": round(seconds, 3)}
        print(f"\n== {name} ({seconds:.2f} s)\n{' | '.join(result.columns)}")
        for row in rows:
            print(" | ".join("" if value is None else str(value) for value in row))
    if arguments.json:
        arguments.json.write_text(json.dumps(answers))
    return 1 if left_out else 0


if __name__ == "__main__":
    sys.exit(main())
