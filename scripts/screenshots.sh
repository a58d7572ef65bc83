#!/usr/bin/env bash
# Draws the pictures of README.md and docs/ from the recorded run that comes with the command.
# Needs what scripts/web.sh needs, and tmux and python3.
set -eu
cd "$(dirname "$0")/.."
[ -d web/node_modules ] || { echo "screenshots: run scripts/web.sh first" >&2; exit 2; }
cargo build --quiet
PAGE_TRACES=$PWD/target/page-traces
export PAGE_TRACES
mkdir -p "$PAGE_TRACES" docs/images
gzip -dc assets/recorded.vtrace.gz >"$PAGE_TRACES/recorded.vtrace"
# Live: two programs on the simulated driver, looked at in a terminal of 100 columns.
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
# The recorded run as it was when it ended, half of it later than it was opened.
VRAMTRACE_PICTURE=$live/top-process.txt cargo test --quiet --bin vramtrace top::recorded >/dev/null

node web/tests/screenshots.mjs docs/images "$live/top.txt" "$live/top-process.txt"
for picture in docs/images/*.png; do
    bytes=$(wc -c <"$picture")
    [ "$bytes" -le 200000 ] || { echo "screenshots: $picture is $bytes bytes: 200,000 at most" >&2; exit 1; }
    echo "$picture: $bytes bytes"
done
