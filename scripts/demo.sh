#!/usr/bin/env bash
# Builds everything and runs the demo: a small workload under the recorder, then its report.
# On a machine with an NVIDIA GPU it uses the GPU, else the simulated driver. Needs Rust and gcc.
set -eu
cd "$(dirname "$0")/.."
if ! command -v cargo >/dev/null; then
    echo "demo: cargo was not found: install Rust 1.88 or later (https://rustup.rs)" >&2
    exit 2
fi
cargo build --release --workspace --quiet
where=$(mktemp -d "${TMPDIR:-/tmp}/vramtrace-demo.XXXXXX")
bin=$PWD/target/release
cd "$where"
echo "The demo runs in $where"
echo
"$bin/vramtrace" demo --run "$@"
