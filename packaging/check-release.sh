#!/usr/bin/env bash
# Checks that the release library has no test hooks: the variables VRAMTRACE_TEST_* have no effect in it.
#
#   packaging/check-release.sh [LIBRARY]      default: target/release/libvramtrace.so, which it builds
#
# Needs cargo and cc. Exit status: 0 it has none, 1 it has one, or a program failed under it.
set -eu
cd "$(dirname "$0")/.."
library=${1:-}
if [ -z "$library" ]; then
    cargo build --quiet --release -p vramtrace-shim -p vramtrace-sim
    library=target/release/libvramtrace.so
fi
if grep -q VRAMTRACE_TEST_ "$library"; then
    echo "check-release: $library contains VRAMTRACE_TEST_*; build it without the feature test-hooks" >&2
    exit 1
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
sim=$(dirname "$library")/libvramtrace_sim.so
[ -e "$sim" ] || sim=target/debug/libvramtrace_sim.so
cp "$sim" "$work/libcuda.so.1"
cp "$sim" "$work/libnvidia-ml.so.1"
cc -O1 -o "$work/families" tests/programs/families.c -ldl -lpthread
run() { # run NAME VARIABLE=VALUE...: writes the output of a program to $work/NAME
    env -u LD_PRELOAD LD_LIBRARY_PATH="$work" VRAMTRACE_SIM=1x24GiB VRAMTRACE_OUT=off "${@:2}" \
        "$work/families" >"$work/$1" 2>&1 || { echo "check-release: $1: exit status $?" >&2; cat "$work/$1" >&2; exit 1; }
}
run bare
run plain LD_PRELOAD="$PWD/$library"
for variable in VRAMTRACE_TEST_PANIC=cuMemAlloc_v2 VRAMTRACE_TEST_PANIC=state VRAMTRACE_TEST_NO_PAGES=1-; do
    run asked LD_PRELOAD="$PWD/$library" "$variable"
    # The recorder prints one line for an unknown variable.
    grep -v "${variable%%=*}" "$work/asked" | cmp - "$work/plain" || {
        echo "check-release: $variable changed the output of the program" >&2
        exit 1
    }
done
echo "check-release: $library has no test hooks"
