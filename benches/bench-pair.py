#!/usr/bin/env python3
"""Compares two builds with bench.py: runs them alternately, and prints the medians and their ratio.

    benches/bench-pair.py OLD NEW ROUNDS [PART ...]

OLD and NEW are directories with vramtrace, libvramtrace.so and libvramtrace_sim.so. PART is a part of
bench.sh. A figure that is more than 5 % higher in NEW is marked. `bare` runs without the recorder: its ratio
is near 1 if the machine was quiet.
"""
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

NUMBER = re.compile(r"^[+-]?[\d,]+(\.\d+)?$")


def figures(text):
    """(row, column) -> figure, for each cell of each table that is a number."""
    found, header = {}, None
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            header = None
        elif header is None:
            header = cells
        elif not set(line) <= set("|-"):
            # The first cell names a row; in the table of `pairs` the number of threads belongs to the name.
            names = 2 if len(header) > 1 and header[1] == "threads" else 1
            for column, cell in list(zip(header, cells))[names:]:
                if NUMBER.match(cell) and "-" not in column and "/" not in column:
                    found[f"{header[0]}: {' '.join(cells[:names])}", column] = float(cell.replace(",", ""))
    return found


def main():
    if len(sys.argv) < 4 or not sys.argv[3].isdigit() or int(sys.argv[3]) < 1:
        print("usage: bench-pair.py OLD NEW ROUNDS [PART ...]; ROUNDS is a number, 1 or more", file=sys.stderr)
        sys.exit(2)
    old, new, rounds, parts = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
    bench = Path(__file__).resolve().parent / "bench.py"
    taken = {"old": {}, "new": {}}
    for turn in range(rounds):
        # The order alternates from round to round.
        for name, build in sorted({"old": old, "new": new}.items(), reverse=turn % 2 == 1):
            env = dict(os.environ, VRAMTRACE_BIN=str(build.resolve()))
            text = subprocess.run([sys.executable, str(bench), *parts], env=env, capture_output=True, text=True, check=True).stdout
            for place, figure in figures(text).items():
                taken[name].setdefault(place, []).append(figure)
    print(f"| median of {rounds} | | old | new | new / old | |\n|---|---|---|---|---|---|")
    for (row, column), before in taken["old"].items():
        after = taken["new"].get((row, column))
        if after is None or not statistics.median(before):
            continue
        a, b = statistics.median(before), statistics.median(after)
        mark = "**more**" if b > 1.05 * a and column != "bare" else ""
        print(f"| {row} | {column} | {a:g} | {b:g} | {b / a:.3f} | {mark} |")


main()
