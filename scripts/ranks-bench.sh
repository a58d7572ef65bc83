#!/usr/bin/env bash
# Measures `vramtrace report` of a run of 1,024 ranks with 200,000 events each: time and memory, with
# the summaries that processes write at their end, and with some that were killed.
#
#   scripts/ranks-bench.sh [RANKS [EVENTS]]      needs 5 GB below ${TMPDIR:-/tmp}
set -euo pipefail
cd "$(dirname "$0")/.."
ranks=${1:-1024} events=${2:-200000}
cargo build --release --quiet --bin vramtrace --example many_ranks
place=$(mktemp -d "${TMPDIR:-/tmp}/vramtrace-ranks.XXXXXX")
trap 'rm -rf "$place"' EXIT
measure() {
    echo "== $1: $2"
    target/release/examples/many_ranks "$place/$1" "$ranks" "$events" "$3"
    du -sh "$place/$1" | cut -f1
    /usr/bin/time -f '%e s elapsed, %U s in user mode, %M KiB of memory at most' \
        target/release/vramtrace report "$place/$1" > "$place/$1.txt"
    head -n 24 "$place/$1.txt"
    rm -rf "${place:?}/$1"
}
measure whole "all ended in order" 0
measure killed "16 were killed and are replayed" 16
