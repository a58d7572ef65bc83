#!/usr/bin/env bash
# Measures time and memory of `vramtrace report` over the traces of 1,024 ranks with 200,000 events each: once
# with the summary that each process writes at its end, and once with 16 killed ranks, which have none.
#
#   scripts/ranks-bench.sh [RANKS [EVENTS]]
#
# Needs cargo, /usr/bin/time, and 5 GB in ${TMPDIR:-/tmp}.
set -euo pipefail
cd "$(dirname "$0")/.."
ranks=${1:-1024} events=${2:-200000}
[ -x /usr/bin/time ] || { echo "ranks-bench: /usr/bin/time was not found (package time)" >&2; exit 2; }
cargo build --release --quiet --bin vramtrace --example many_ranks
place=$(mktemp -d "${TMPDIR:-/tmp}/vramtrace-ranks.XXXXXX")
trap 'rm -rf "$place"' EXIT
measure() {
    echo "== $1: $2"
    target/release/examples/many_ranks "$place/$1" "$ranks" "$events" "$3"
    du -sh "$place/$1" | cut -f1
    /usr/bin/time -f '%e s elapsed, %U s in user mode, peak %M KiB of memory' \
        target/release/vramtrace report "$place/$1" > "$place/$1.txt"
    head -n 24 "$place/$1.txt"
    rm -rf "${place:?}/$1"
}
measure whole "all ranks ended and wrote a summary" 0
measure killed "16 ranks were killed: their events are replayed" 16
