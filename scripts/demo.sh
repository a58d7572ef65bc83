#!/usr/bin/env bash
# Builds the workspace, compiles examples/demo.c and runs it under the recorder and a cap: a report and a timeline file.
# Uses the NVIDIA GPU if 5 GiB of it are free, else the simulated driver. Needs Rust and gcc.
#
#   scripts/demo.sh [DIR]    the trace and the timeline go there [default: a new directory in TMPDIR]
#
#   DEMO_BUILD=release   the optimised build instead of the debug build, which takes half as long
#   DEMO_BUILD=tests     the debug build with the features that the tests need: after them nothing is built again
#
# Exit status: 0; 1 if a step failed; 2 for a wrong value, or if cargo or gcc is missing.
set -eu
here=$PWD
cd "$(dirname "$0")/.."
for tool in "cargo:install Rust 1.88 or later (https://rustup.rs)" "gcc:install gcc"; do
    if ! command -v "${tool%%:*}" >/dev/null; then
        echo "demo: ${tool%%:*} was not found: ${tool#*:}" >&2
        exit 2
    fi
done
case ${DEMO_BUILD:-debug} in
    debug) built=debug targets=(-p vramtrace -p vramtrace-shim -p vramtrace-sim) ;;
    release) built=release targets=(--release -p vramtrace -p vramtrace-shim -p vramtrace-sim) ;;
    tests) built=debug targets=(--workspace --lib --bins --examples) ;;
    *) echo "demo: DEMO_BUILD is '$DEMO_BUILD': must be debug, release or tests" >&2; exit 2 ;;
esac
echo "== cargo build: the recorder, the command and the simulated driver; the first time takes minutes"
cargo build "${targets[@]}" --quiet
vramtrace=${CARGO_TARGET_DIR:-$PWD/target}/$built/vramtrace
case ${1:-} in
    "") where=$(mktemp -d "${TMPDIR:-/tmp}/vramtrace-demo.XXXXXX") ;;
    *) where=$(cd "$here" && mkdir -p "$1" && cd "$1" && pwd) ;;
esac
echo "== gcc: examples/demo.c"
gcc -g -pthread -o "$where/demo" examples/demo.c -ldl
cd "$where"
simulate=()
if ! ./demo check 2>/dev/null; then
    echo "== no GPU with 5 GiB free: the demo runs on a simulated one"
    simulate=(--simulate)
fi
echo "== vramtrace run --cap 4GiB ./demo"
"$vramtrace" run --cap 4GiB "${simulate[@]}" --out demo.vtrace ./demo
echo "== vramtrace report"
"$vramtrace" report demo.vtrace
echo "== vramtrace export"
"$vramtrace" export demo.vtrace --force -o timeline.perfetto-trace
echo
echo "The trace:     $where/demo.vtrace"
echo "The timeline:  $where/timeline.perfetto-trace  (open it in https://ui.perfetto.dev)"
echo "The leak:      $vramtrace leaks $where/demo.vtrace"
echo "Your program:  pip install ., which builds with optimisation; then vramtrace run --cap 8GiB python train.py"
