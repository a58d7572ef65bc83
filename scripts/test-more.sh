#!/usr/bin/env bash
# The checks of a change that scripts/test.sh leaves out: lints, the release build, model checking, aarch64, the book,
# Python clients, DuckDB. CI runs them after scripts/test.sh, and once a week sanitizers, Miri, fuzzing and aarch64 under an
# emulator (.github/workflows/weekly.yml). On Debian and Ubuntu it installs what is missing (as root or by sudo).
#
#   scripts/test-more.sh
#   scripts/test-more.sh build   builds what the checks need, and runs none of them
#
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
    (cd models && cargo test --quiet --release --no-run)
    # Last: it waits for the lock of the build of the tests, which is theirs first.
    lints
    exit
fi

say "lints"
lints

say "the shipped library has no test hooks"
packaging/check-release.sh

scripts/sanitize.sh loom

say "the libraries compile for aarch64"
target=aarch64-unknown-linux-gnu
if command -v rustup >/dev/null && rustup target add $target 2>/dev/null; then
    cargo check --quiet --target $target -p vramtrace-shim -p vramtrace-sim
else
    skip "aarch64: no rustup, or no Rust library for it"
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

all_passed
