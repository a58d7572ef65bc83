#!/usr/bin/env bash
# Counts instructions per operation with valgrind's callgrind on the simulated driver: an allocation and its
# free, a block of PyTorch's cache, a refusal and a launch, with and without the recorder; and the reader's
# instructions per event. The counts do not depend on the load of the machine.
#
#   scripts/instructions.sh [BIN_DIR [OTHER_BIN_DIR]]      default: target/release, which it builds
#   scripts/instructions.sh --check                        builds the libraries and compares some rows with
#                                                          instructions.bounds: fails if one is 3 % above its bound
#   scripts/instructions.sh --build                        builds what --check needs
#
# The build needs the feature test-hooks: VRAMTRACE_TEST_CLOCK makes the counts repeatable.
#
# BIN_DIR holds vramtrace, libvramtrace.so and libvramtrace_sim.so. With two directories it compares the
# second with the first; both use the simulated driver of the first. Prints a Markdown table. Needs gcc,
# python3 and valgrind. Exit status: 0 done, 1 a run failed, 2 valgrind or a file is missing.
set -eu
here=$(dirname "$0")
files="vramtrace libvramtrace.so libvramtrace_sim.so"
check=
case ${1:-} in
    --check | --build)
        [ $# -eq 1 ] || { echo "instructions: $1 takes no directory" >&2; exit 2; }
        # A directory of its own: target/release has libraries without test hooks.
        target=$here/../target/instructions
        (cd "$here/.." && cargo build --release -p vramtrace-shim -p vramtrace-sim \
            --features vramtrace-shim/test-hooks --target-dir target/instructions --quiet)
        [ "$1" = --check ] || exit 0
        check=--check files="libvramtrace.so libvramtrace_sim.so"
        set -- "$target/release"
        ;;
    "")
        set -- "$here/../target/release"
        (cd "$here/.." && cargo build --release --workspace --features vramtrace-shim/test-hooks --quiet)
        ;;
esac
command -v valgrind >/dev/null || { echo "instructions: valgrind was not found (package valgrind)" >&2; exit 2; }
for bin in "$@"; do
    for file in $files; do
        [ -e "$bin/$file" ] || { echo "instructions: $bin/$file does not exist" >&2; exit 2; }
    done
done
exec python3 "$here/../benches/instructions.py" ${check:+"$check"} "$@"
