#!/usr/bin/env bash
# Draws the pictures of README.md and docs/ from assets/recorded.vtrace.gz. Run scripts/web.sh first; also
# needs tmux and python3. Exit status: 0 done, 1 a step failed, 2 scripts/web.sh has not run.
set -eu
cd "$(dirname "$0")/.."
[ -d web/node_modules ] || { echo "screenshots: web/node_modules does not exist; run scripts/web.sh first" >&2; exit 2; }
cargo build --quiet
PAGE_TRACES=$PWD/target/page-traces
export PAGE_TRACES
mkdir -p "$PAGE_TRACES" docs/images
gzip -dc assets/recorded.vtrace.gz >"$PAGE_TRACES/recorded.vtrace"
# `vramtrace top` in a terminal of 100 columns, with two programs on the simulated driver.
live=$PAGE_TRACES/live
rm -rf "$live"
mkdir -p "$live"
started=
trap 'kill $started 2>/dev/null || true; tmux -L vramtrace-picture kill-server 2>/dev/null || true' EXIT
for rank in 0 1; do
    RANK=$rank WORLD_SIZE=2 target/debug/vramtrace run --simulate --cap 6GiB --out "$live/$rank" \
        python3 scripts/screenshots/train.py 40 $((160 + 120 * rank)) >"$live/$rank.log" 2>&1 &
    started="$started $!"
done
tmux -L vramtrace-picture new-session -d -s top -x 100 -y 14 target/debug/vramtrace top --interval 0.3
sleep 12
tmux -L vramtrace-picture capture-pane -e -p -t top >"$live/top.txt"
# `vramtrace top` of the recorded run, at its end (the test top::recorded writes the picture).
VRAMTRACE_PICTURE=$live/top-process.txt cargo test --quiet --bin vramtrace top::recorded >/dev/null

node web/tests/screenshots.mjs docs/images "$live/top.txt" "$live/top-process.txt"
for picture in docs/images/*.png; do
    bytes=$(wc -c <"$picture")
    [ "$bytes" -le 200000 ] || { echo "screenshots: $picture has $bytes bytes: must be at most 200,000" >&2; exit 1; }
    echo "$picture: $bytes bytes"
done
