#!/usr/bin/env bash
# Counts instructions per operation with valgrind's callgrind on the simulated driver: an allocation and its
# free, a block of PyTorch's cache, a refusal and a launch, with and without the recorder; and the reader's
# instructions per event. The counts do not depend on the load of the machine.
#
#   scripts/instructions.sh [BIN_DIR [OTHER_BIN_DIR]]      default: target/release, which it builds
#
# The build needs the feature test-hooks: VRAMTRACE_TEST_CLOCK makes the counts repeatable.
#
# BIN_DIR holds vramtrace, libvramtrace.so and libvramtrace_sim.so. With two directories it compares the
# second with the first; both use the simulated driver of the first. Prints a Markdown table. Needs gcc,
# python3 and valgrind. Exit status: 0 done, 1 a run failed, 2 valgrind or a file is missing.
set -eu
if [ $# -eq 0 ]; then
    set -- "$(dirname "$0")/../target/release"
    (cd "$(dirname "$0")/.." && cargo build --release --workspace --features vramtrace-shim/test-hooks --quiet)
fi
command -v valgrind >/dev/null || { echo "instructions: valgrind was not found (package valgrind)" >&2; exit 2; }
for bin in "$@"; do
    for file in vramtrace libvramtrace.so libvramtrace_sim.so; do
        [ -e "$bin/$file" ] || { echo "instructions: $bin/$file does not exist" >&2; exit 2; }
    done
done
exec python3 "$(dirname "$0")/instructions.py" "$@"
