#!/usr/bin/env bash
# Builds everything and runs the demo: a small workload under the recorder, then its report.
# On a machine with an NVIDIA GPU it uses the GPU, else the simulated driver. Needs Rust and gcc.
#
#   DEMO_PROFILE=dev   runs the build of the tests instead of an optimised one
set -eu
cd "$(dirname "$0")/.."
if ! command -v cargo >/dev/null; then
    echo "demo: cargo was not found: install Rust 1.88 or later (https://rustup.rs)" >&2
    exit 2
fi
profile=${DEMO_PROFILE:-release}
case $profile in
    release) built=release ;;
    dev) built=debug ;;
    *) echo "demo: DEMO_PROFILE is '$profile': release or dev is right" >&2; exit 2 ;;
esac
cargo build --profile "$profile" --workspace --quiet
where=$(mktemp -d "${TMPDIR:-/tmp}/vramtrace-demo.XXXXXX")
bin=$PWD/target/$built
cd "$where"
echo "The demo runs in $where"
echo
"$bin/vramtrace" demo --run "$@"
