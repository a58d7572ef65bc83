#!/usr/bin/env bash
# Tests the recorder on aarch64 under qemu-user, with the simulated driver: builds the libraries and the
# command, records a program that uses all API families, and compares stacks. Takes minutes.
#
# Needs Rust with rustup, and on Debian the packages gcc-aarch64-linux-gnu, g++-aarch64-linux-gnu,
# libc6-dev-arm64-cross and qemu-user. docs/PACKAGING.md says what an emulator cannot show.
# VRAMTRACE_AARCH64_PYTHON names an aarch64 root directory with Python 3: the frames of that Python are
# compared with `traceback` too. These commands make one, as root, without running anything in it:
#   debootstrap --arch=arm64 --foreign --variant=minbase --include=python3 bookworm ROOT
#   for package in ROOT/var/cache/apt/archives/*.deb; do dpkg-deb -x $package ROOT; done
set -eu
cd "$(dirname "$0")/.."
[ $# = 0 ] || { echo "test-aarch64: unknown argument '$1': it takes none" >&2; exit 2; }
# The recorder prints a line for unknown VRAMTRACE_* variables.
python_root=${VRAMTRACE_AARCH64_PYTHON:-}
unset VRAMTRACE_AARCH64_PYTHON
target=aarch64-unknown-linux-gnu
root=/usr/aarch64-linux-gnu
for tool in aarch64-linux-gnu-gcc aarch64-linux-gnu-g++ qemu-aarch64; do
    command -v "$tool" >/dev/null || {
        echo "test-aarch64: $tool was not found; install it: apt-get install gcc-aarch64-linux-gnu" \
            "g++-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user" >&2
        exit 2
    }
done
rustup target add "$target" || { echo "test-aarch64: rustup could not install the target $target" >&2; exit 2; }
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L $root"

echo "== build"
cargo build --quiet --target "$target" --package vramtrace-shim --package vramtrace-sim --package vramtrace
built=target/$target/debug
cargo build --quiet --workspace --lib --bins --examples # with the features that tests have

echo "== the command"
qemu-aarch64 -L "$root" "$built/vramtrace" --version
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# The demo's page takes an emulator over a minute: here the demo is written, and read there.
target/debug/vramtrace demo --out "$work/recorded" >/dev/null
qemu-aarch64 -L "$root" "$built/vramtrace" oom "$work/recorded" >"$work/oom.txt"
grep -q "holds .*activations.py:66" "$work/oom.txt"

echo "== a program that uses all API families: the same output with the recorder, and a consistent trace"
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
# One test at a time: the emulator needs 5 GB for the address space that the simulated driver reserves.
VRAMTRACE_TEST_TARGET=$target cargo test --quiet --test frames native_frames::cpp -- --test-threads 1
if [ -z "$python_root" ]; then
    echo "SKIP frames of Python: VRAMTRACE_AARCH64_PYTHON is not set"
else
    echo "== frames of Python, as traceback shows them"
    python=$(ls "$python_root"/usr/bin/python3.[0-9] "$python_root"/usr/bin/python3.[0-9][0-9] 2>/dev/null | tail -1)
    [ -n "$python" ] || { echo "test-aarch64: $python_root/usr/bin has no python3" >&2; exit 2; }
    printf '#!/bin/sh\nexec qemu-aarch64 -L %s %s "$@"\n' "$python_root" "$python" >"$work/python"
    chmod +x "$work/python"
    python3 packaging/check-frames.py target/debug/vramtrace "$work/python" tests/python/frames_situations.py \
        "$work/python-out" qemu-aarch64 -L "$python_root" -E LD_LIBRARY_PATH="$work" -E VRAMTRACE_SIM=1x24GiB \
        -E LD_PRELOAD="$PWD/$built/libvramtrace.so" -E VRAMTRACE_OUT="$work/python-out/" "$python"
fi
echo "test-aarch64: all passed"
