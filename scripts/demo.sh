#!/usr/bin/env bash
# Builds the workspace and runs the demo: a small workload under the recorder, then its report. Uses the
# NVIDIA GPU, or the simulated driver if there is none. Needs Rust and gcc.
#
#   scripts/demo.sh [OPTION of `vramtrace demo --run`]...
#
#   DEMO_PROFILE=dev   uses the debug build instead of the release build
#
# Exit status: that of the demo; 2 for a wrong value, or if cargo is missing.
set -eu
cd "$(dirname "$0")/.."
if ! command -v cargo >/dev/null; then
    echo "demo: cargo was not found: install Rust 1.88 or later (https://rustup.rs)" >&2
    exit 2
fi
profile=${DEMO_PROFILE:-release}
case $profile in
    release) built=release targets=() ;;
    # With examples, the crates have the features that they have in tests: CI builds nothing again.
    dev) built=debug targets=(--lib --bins --examples) ;;
    *) echo "demo: DEMO_PROFILE is '$profile': must be release or dev" >&2; exit 2 ;;
esac
cargo build --profile "$profile" --workspace "${targets[@]}" --quiet
where=$(mktemp -d "${TMPDIR:-/tmp}/vramtrace-demo.XXXXXX")
bin=$PWD/target/$built
cd "$where"
echo "The demo runs in $where"
echo
"$bin/vramtrace" demo --run "$@"
