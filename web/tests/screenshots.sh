#!/usr/bin/env bash
# Draws the pictures of README.md and docs/ from assets/recorded.vtrace.gz. Run scripts/web.sh first; also
# needs tmux and python3. Exit status: 0 done, 1 a step failed, 2 scripts/web.sh has not run.
set -eu
cd "$(dirname "$0")/../.."
[ -d web/node_modules ] || { echo "screenshots: web/node_modules does not exist; run scripts/web.sh first" >&2; exit 2; }
cargo build --quiet
PAGE_TRACES=$PWD/target/page-traces
export PAGE_TRACES
mkdir -p "$PAGE_TRACES" docs/images
gzip -dc assets/recorded.vtrace.gz >"$PAGE_TRACES/recorded.vtrace"
# `vramtrace top` in a terminal of 120 columns, with three programs on one simulated card; one of them is not traced.
live=$PAGE_TRACES/live
rm -rf "$live"
mkdir -p "$live/driver"
for library in libcuda.so.1 libnvidia-ml.so.1; do
    ln -s "$PWD/target/debug/libvramtrace_sim.so" "$live/driver/$library"
done
simulated="env LD_LIBRARY_PATH=$live/driver VRAMTRACE_SIM=1x24GiB VRAMTRACE_SIM_STATE=$live/state VRAMTRACE_SIM_NVML=busy:64"
started=
trap 'kill $started 2>/dev/null || true; tmux -L vramtrace-picture kill-server 2>/dev/null || true' EXIT
for rank in 0 1; do
    RANK=$rank WORLD_SIZE=2 $simulated target/debug/vramtrace run --cap 6GiB --out "$live/$rank" \
        python3 web/tests/screenshots_train.py 60 $((160 + 120 * rank)) >"$live/$rank.log" 2>&1 &
    started="$started $!"
done
$simulated python3 web/tests/screenshots_train.py 60 90 >"$live/other.log" 2>&1 &
started="$started $!"
tmux -L vramtrace-picture new-session -d -s top -x 120 -y 11 "$simulated target/debug/vramtrace top --interval 0.3"
sleep 20
tmux -L vramtrace-picture capture-pane -e -p -t top >"$live/top.txt"
# `vramtrace top` of the recorded run, at its end (the test top::recorded writes the picture).
VRAMTRACE_PICTURE=$live/top-process.txt cargo test --quiet --bin vramtrace top::recorded >/dev/null

node web/tests/screenshots.mjs docs/images "$live/top.txt" "$live/top-process.txt"
for picture in docs/images/*.png; do
    bytes=$(wc -c <"$picture")
    [ "$bytes" -le 200000 ] || { echo "screenshots: $picture has $bytes bytes: must be at most 200,000" >&2; exit 1; }
    echo "$picture: $bytes bytes"
done
