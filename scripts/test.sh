#!/usr/bin/env bash
# Installs what the tests need and runs all of them. Needs Rust; on Debian and Ubuntu it installs
# gcc, Python's venv, Node.js, Chromium and the programs that tests run when they are missing (as root or by
# sudo).
#
#   VRAMTRACE_TEST_FULL=1     the long forms (16 x 100,000 calls near the cap, 200 kills, 10 minutes of fuzzing)
#   VRAMTRACE_TEST_NO_SKIP=1  what is skipped because a tool is missing fails, as in CI; more is installed
set -eu
cd "$(dirname "$0")/.."
. scripts/skip.sh
# What is skipped leaves a line here: scripts/skip.sh, tests/testkit/src/skip.rs.
skipped=target/tmp/skipped
rm -f "$skipped"

say() { printf '\n== %s\n' "$*"; }

install() { # install PACKAGE
    command -v apt-get >/dev/null || return 1
    as_root=
    [ "$(id -u)" = 0 ] || as_root=sudo
    $as_root apt-get install -y -q "$1" >/dev/null 2>&1 || {
        $as_root apt-get update -q >/dev/null && $as_root apt-get install -y -q "$1" >/dev/null 2>&1
    }
}

need() { # need COMMAND PACKAGE
    command -v "$1" >/dev/null && return 0
    install "$2" || true
    command -v "$1" >/dev/null || { echo "test: $1 is needed (package $2)" >&2; exit 2; }
}

need cargo cargo
need gcc gcc
need g++ g++
need nm binutils
need python3 python3-venv
# Without these the tests that use them are skipped.
command -v pypy3 >/dev/null || install pypy3 || true
for library in libjemalloc.so.2:libjemalloc2 libtcmalloc_minimal.so.4:libtcmalloc-minimal4 \
    libmimalloc.so.2:libmimalloc2.0; do
    PATH=$PATH:/sbin ldconfig -p | grep -F "${library%:*}" >/dev/null || install "${library#*:}" || true
done
programs="git:git perl:perl valgrind:valgrind gdb:gdb strace:strace ssh:openssh-client"
[ -z "${VRAMTRACE_TEST_NO_SKIP:-}" ] || programs="$programs java:default-jre-headless"
for program in $programs; do
    command -v "${program%:*}" >/dev/null || install "${program#*:}" || true
done
venv=target/test-venv
if [ -x $venv/bin/pip ] || python3 -m venv $venv; then
    $venv/bin/pip install --quiet --disable-pip-version-check nvidia-nvtx || true
    for include in "$PWD"/$venv/lib/python3*/site-packages/nvidia/*/include; do
        [ ! -d "$include/nvtx3" ] || export VRAMTRACE_TEST_NVTX=$include
    done
fi

say "format and lints"
if cargo fmt --version >/dev/null 2>&1; then cargo fmt --all --check; else skip "cargo fmt: not installed"; fi
if cargo clippy --version >/dev/null 2>&1; then
    cargo clippy --quiet --workspace --all-targets -- -D warnings
else
    skip "cargo clippy: not installed"
fi

say "licences, sources and duplicates of the crates"
scripts/deny.sh

say "build"
cargo build --quiet --workspace

# The tests wait for much of their time. Meanwhile, what later parts need is built; a failure shows there.
mkdir -p target/tmp
{
    cargo build --quiet --release -p vramtrace-shim -p vramtrace-sim
    cargo fuzz --version || cargo install --quiet --locked cargo-fuzz
    scripts/fuzz.sh build
} >target/tmp/built-ahead 2>&1 </dev/null &
ahead=$!
trap 'kill $ahead 2>/dev/null || true' EXIT
renice -n 19 -p $ahead >/dev/null 2>&1 || true

say "unit, property and end-to-end tests"
cargo test --quiet --workspace

say "the shipped library has no test hooks"
scripts/check-release.sh

scripts/sanitize.sh short

say "the page of report --html, in Chromium"
scripts/web.sh

say "aarch64, under an emulator"
for package in gcc-aarch64-linux-gnu g++-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user; do
    dpkg -s "$package" >/dev/null 2>&1 || install "$package" || true
done
if command -v qemu-aarch64 >/dev/null && command -v aarch64-linux-gnu-g++ >/dev/null &&
    command -v rustup >/dev/null && rustup target add aarch64-unknown-linux-gnu 2>/dev/null; then
    scripts/test-aarch64.sh --short
else
    skip "aarch64: no qemu-aarch64, aarch64-linux-gnu-g++ or Rust library for it"
fi

say "the book"
scripts/book.sh

say "Python clients over the simulated driver"
scripts/test-clients.sh

say "fuzzing the reader"
wait $ahead || true
trap - EXIT
if ! cargo fuzz --version >/dev/null 2>&1; then
    cargo install --quiet --locked cargo-fuzz || echo "cargo-fuzz could not be installed"
fi
if [ -n "${VRAMTRACE_TEST_FULL:-}" ]; then scripts/fuzz.sh 600; else scripts/fuzz.sh 20; fi

if [ -s "$skipped" ]; then
    say "all tests passed; skipped, because something is missing here:"
    sort "$skipped" | uniq -c
else
    say "all tests passed, none was skipped"
fi
