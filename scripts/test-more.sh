#!/usr/bin/env bash
# The checks that take longer than scripts/test.sh: lints, the release build, model checking and Miri, aarch64 under an
# emulator, the book, Python clients, DuckDB, fuzzing. CI runs them after scripts/test.sh. On Debian and Ubuntu it installs
# what is missing (as root or by sudo).
#
#   scripts/test-more.sh
#   scripts/test-more.sh build   builds what the checks need, and runs none of them
#
#   VRAMTRACE_TEST_FULL=1        10 minutes of fuzzing
#   VRAMTRACE_TEST_NO_SKIP=1     what is skipped because a tool is missing fails, as in CI
set -eu
case ${1-} in
    "" | build) ;;
    *) echo "test-more: unknown argument '$1': must be build" >&2; exit 2 ;;
esac
cd "$(dirname "$0")/.."
. scripts/skip.sh
. scripts/need.sh
skipped=target/tmp/skipped
[ "${1-}" = build ] || rm -f "$skipped"

say() { printf '\n== %s\n' "$*"; }

lints() {
    if cargo clippy --version >/dev/null 2>&1; then
        cargo clippy --quiet --workspace --all-targets -- -D warnings
    else
        skip "cargo clippy: not installed"
    fi
}

need cargo cargo
need gcc gcc
need python3 python3-venv

if [ "${1-}" = build ]; then
    cargo build --quiet --release -p vramtrace-shim -p vramtrace-sim
    scripts/instructions.sh --build
    cargo fuzz --version >/dev/null 2>&1 || cargo install --quiet --locked cargo-fuzz
    scripts/fuzz.sh build
    # Last: it waits for the lock of the build of the tests, which is theirs first.
    lints
    exit
fi

say "lints"
lints

say "the shipped library has no test hooks"
packaging/check-release.sh

scripts/sanitize.sh short

say "aarch64, under an emulator"
for package in gcc-aarch64-linux-gnu g++-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user; do
    dpkg -s "$package" >/dev/null 2>&1 || install "$package" || true
done
if command -v qemu-aarch64 >/dev/null && command -v aarch64-linux-gnu-g++ >/dev/null &&
    command -v rustup >/dev/null && rustup target add aarch64-unknown-linux-gnu 2>/dev/null; then
    packaging/test-aarch64.sh --short
else
    skip "aarch64: no qemu-aarch64, aarch64-linux-gnu-g++ or Rust library for it"
fi

say "instructions of the path of an event, against their bounds"
need valgrind valgrind
scripts/instructions.sh --check

say "the book"
scripts/book.sh

say "Python clients over the simulated driver"
tests/systems/test-clients.sh

say "Parquet tables, asked by DuckDB"
tests/systems/test-duckdb.sh

say "fuzzing the reader"
if ! cargo fuzz --version >/dev/null 2>&1; then
    cargo install --quiet --locked cargo-fuzz || echo "cargo-fuzz could not be installed"
fi
if [ -n "${VRAMTRACE_TEST_FULL:-}" ]; then scripts/fuzz.sh 600; else scripts/fuzz.sh 20; fi

all_passed
