#!/usr/bin/env bash
# Measures time and memory of `vramtrace report` over the traces of 1,024 ranks with 200,000 events each: once
# with the summary that each process writes at its end, and once with 16 killed ranks, which have none. Of the first
# also the page (`report --html`), and what `vramtrace run --json` does at the end of such a run, once with all ranks killed.
#
#   benches/ranks-bench.sh [RANKS [EVENTS]]
#
# Needs cargo, /usr/bin/time, and 5 GB in ${TMPDIR:-/tmp}.
set -euo pipefail
cd "$(dirname "$0")/.."
ranks=${1:-1024} events=${2:-200000}
[ -x /usr/bin/time ] || { echo "ranks-bench: /usr/bin/time was not found (package time)" >&2; exit 2; }
cargo build --release --quiet --bin vramtrace --example many_ranks
# `vramtrace run` does not start without the library.
cargo build --release --quiet -p vramtrace-shim
place=$(mktemp -d "${TMPDIR:-/tmp}/vramtrace-ranks.XXXXXX")
trap 'rm -rf "$place"' EXIT
measure() {
    echo "== $1: $2"
    target/release/examples/many_ranks "$place/$1" "$ranks" "$events" "$3"
    du -sh "$place/$1" | cut -f1
    /usr/bin/time -f '%e s elapsed, %U s in user mode, peak %M KiB of memory' \
        target/release/vramtrace report "$place/$1" > "$place/$1.txt"
    head -n 24 "$place/$1.txt"
}
timed() { /usr/bin/time -f "$1: %e s elapsed, %U s in user mode, peak %M KiB of memory" "${@:2}"; }
# The command writes the traces of the run: the time beyond `duration_s` is that of the end of `vramtrace run`.
end_of_run() {
    echo "== $1: $2"
    timed "with run --json" target/release/vramtrace run --out "$place/$1/" --json "$place/$1.jsonl" -- \
        target/release/examples/many_ranks "$place/$1" "$ranks" "$events" "$3"
    tail -n 1 "$place/$1.jsonl" | python3 -c 'import json; job = json.loads(input())
print(*(f"{key} {job[key]}" for key in ("duration_s", "processes", "processes_in_full", "ranks", "failed_processes", "peak_bytes")))'
    rm -rf "${place:?}/$1"
}
measure whole "all ranks ended and wrote a summary" 0
echo "== the page"
timed "report --html" target/release/vramtrace report "$place/whole" --html -o "$place/page.html"
stat -c '%s bytes' "$place/page.html"
rm -rf "${place:?}/whole"
measure killed "16 ranks were killed: their events are replayed" 16
rm -rf "${place:?}/killed"
end_of_run run "the end of a run, all ranks with a summary" 0
end_of_run killed-run "the end of a run whose ranks were all killed" "$ranks"
