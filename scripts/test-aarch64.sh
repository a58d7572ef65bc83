#!/usr/bin/env bash
# The recorder on aarch64, as far as an emulator shows it: builds the libraries and the command for it,
# runs unit tests and end-to-end tests under qemu-user over the simulated driver. Minutes.
#
#   scripts/test-aarch64.sh
#
# Needs Rust with rustup, and on Debian the packages gcc-aarch64-linux-gnu, g++-aarch64-linux-gnu,
# libc6-dev-arm64-cross and qemu-user. What an emulator does not show is in docs/PACKAGING.md.
# VRAMTRACE_AARCH64_PYTHON names a root of that machine with Python 3 in it, as `debootstrap --arch=arm64
# --foreign --include=python3` makes: the frames of its Python are tested too.
set -eu
cd "$(dirname "$0")/.."
target=aarch64-unknown-linux-gnu
root=/usr/aarch64-linux-gnu
for tool in aarch64-linux-gnu-gcc aarch64-linux-gnu-g++ qemu-aarch64; do
    command -v "$tool" >/dev/null || {
        echo "test-aarch64: $tool is needed: apt-get install gcc-aarch64-linux-gnu" \
            "g++-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user" >&2
        exit 2
    }
done
rustup target add "$target" 2>/dev/null
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L $root"

echo "== build"
cargo build --quiet --target "$target" --package vramtrace-shim --package vramtrace-sim --package vramtrace
built=target/$target/debug
cargo build --quiet --workspace

echo "== the command"
qemu-aarch64 -L "$root" "$built/vramtrace" --version
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
qemu-aarch64 -L "$root" "$built/vramtrace" demo --recorded --out "$work/recorded" >"$work/demo.txt"
grep -q "holds .*activations.py:66" "$work/demo.txt"

echo "== a program of all API families: the same output with the recorder, and a trace that agrees with itself"
cp "$built/libvramtrace_sim.so" "$work/libcuda.so.1"
cp "$built/libvramtrace_sim.so" "$work/libnvidia-ml.so.1"
aarch64-linux-gnu-gcc -O1 -o "$work/families" tests/programs/families.c -ldl -lpthread
run() { qemu-aarch64 -L "$root" -E LD_LIBRARY_PATH="$work" -E VRAMTRACE_SIM=1x24GiB "$@"; }
run "$work/families" >"$work/bare"
run -E LD_PRELOAD="$PWD/$built/libvramtrace.so" -E VRAMTRACE_OUT="$work/out/" "$work/families" >"$work/recorded.txt"
diff "$work/bare" "$work/recorded.txt"
target/debug/vramtrace verify "$work/out"
target/debug/vramtrace report "$work/out" >"$work/report"
grep -q "array in families" "$work/report"

echo "== native frames of C++, as backtrace() shows them"
# One at a time: the emulator takes 5 GB for the addresses that the simulated driver reserves.
VRAMTRACE_TEST_TARGET=$target cargo test --quiet --test frames native_frames::cpp -- --test-threads 1
echo "test-aarch64: all passed"
