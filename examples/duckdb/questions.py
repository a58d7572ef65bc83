#!/usr/bin/env python3
"""Answers the questions of the .sql files beside this one with DuckDB, from a directory that vramtrace exported.

    vramtrace export RUN-DIR --format parquet -o tables
    python3 questions.py tables                          # all questions
    python3 questions.py tables first-out-of-memory      # one
    python3 questions.py tables --json answers.json      # for programs

Needs `pip install duckdb`. A question about a table that was not exported is left out, with a line on stderr.
Exit status: 0 done, 1 a question was left out, 2 bad input.
"""

import argparse
import json
import re
import sys
import time
from pathlib import Path

TABLES = ("blocks", "stacks", "samples", "holders", "summary")
HERE = Path(__file__).resolve().parent


def questions(names):
    """The .sql files with these names, or all."""
    found = {path.stem: path for path in sorted(HERE.glob("*.sql"))}
    for name in names:
        if name not in found:
            print(f"questions: '{name}' is no question: must be one of {', '.join(found)}", file=sys.stderr)
            sys.exit(2)
    return {name: found[name].read_text() for name in names or found}


def connect(directory):
    """A database in memory with a view for each table that is there."""
    import duckdb

    database = duckdb.connect()
    there = [table for table in TABLES if (directory / table).is_dir()]
    if not there:
        print(f"questions: {directory}: has no tables: give a directory of `vramtrace export --format parquet`", file=sys.stderr)
        sys.exit(2)
    for table in there:
        pattern = str(directory / table / "run=*" / "rank=*" / "*.parquet").replace("'", "''")
        database.execute(
            f"CREATE VIEW {table} AS SELECT * FROM read_parquet('{pattern}', hive_partitioning = true, "
            "hive_types = {'run': VARCHAR, 'rank': BIGINT})"
        )
    return database, there


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("question", nargs="*")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the answers to a file")
    arguments = parser.parse_args()
    asked = questions(arguments.question)
    database, there = connect(arguments.directory)
    answers, left_out = {}, False
    for name, sql in asked.items():
        missing = [table for table in TABLES if table not in there and re.search(rf"(FROM|JOIN) {table}\b", sql)]
        if missing:
            print(f"questions: {name} is left out: {', '.join(missing)} was not exported", file=sys.stderr)
            left_out = True
            continue
        start = time.perf_counter()
        result = database.execute(sql)
        columns = [column[0] for column in result.description]
        rows = result.fetchall()
        seconds = time.perf_counter() - start
        answers[name] = {"columns": columns, "rows": rows, "seconds": round(seconds, 3)}
        print(f"\n== {name} ({seconds:.2f} s)\n{' | '.join(columns)}")
        for row in rows:
            print(" | ".join("" if value is None else str(value) for value in row))
    if arguments.json:
        arguments.json.write_text(json.dumps(answers))
    return 1 if left_out else 0


if __name__ == "__main__":
    sys.exit(main())
