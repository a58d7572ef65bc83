#!/usr/bin/env bash
# Instructions of an operation, counted by valgrind's callgrind on the simulated driver: what a pair of
# calls, a block of PyTorch's cache, a refusal and a launch cost with and without the recorder, and what
# the reader takes for an event. Counts do not depend on what else the machine does.
#
#   scripts/instructions.sh [BIN_DIR [OTHER_BIN_DIR]]      default: target/release, which it builds
#
# With the feature test-hooks, so that VRAMTRACE_TEST_CLOCK makes the counts repeat.
#
# A BIN_DIR holds vramtrace, libvramtrace.so and libvramtrace_sim.so. Of two it compares the second with
# the first; both run over the first one's simulated driver. Prints a Markdown table. Needs gcc, python3
# and valgrind.
set -eu
if [ $# -eq 0 ]; then
    set -- "$(dirname "$0")/../target/release"
    (cd "$(dirname "$0")/.." && cargo build --release --workspace --features vramtrace-shim/test-hooks --quiet)
fi
command -v valgrind >/dev/null || { echo "instructions: valgrind is needed" >&2; exit 2; }
exec python3 "$(dirname "$0")/instructions.py" "$@"
