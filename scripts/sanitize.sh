#!/usr/bin/env bash
# Checks memory safety and concurrency: model checking with loom, unit tests under Miri, and unit tests of the
# reader, the format and the shim under AddressSanitizer and ThreadSanitizer.
#
#   scripts/sanitize.sh [all | loom | miri | address | thread]...      default: all
#
# Miri and the sanitizers need the nightly toolchain with the components miri and rust-src; without it they print
# SKIP. With VRAMTRACE_TEST_NO_SKIP=1, as in CI, the toolchain is installed, and a failure to install it is an error.
# Exit status: 0 nothing found, 1 a check failed, 2 wrong usage.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/skip.sh
target=$(rustc -vV | sed -n 's/^host: //p')

say() { printf '\n== %s\n' "$*"; }

has_nightly() { # has_nightly COMPONENT PART
    is_installed() { rustup component list --toolchain nightly --installed 2>/dev/null | grep "^$1" >/dev/null; }
    is_installed "$1" && return 0
    local add="rustup component add --toolchain nightly miri rust-src"
    local install="rustup toolchain install nightly --profile minimal --component miri,rust-src"
    if [ -n "${VRAMTRACE_TEST_NO_SKIP:-}" ] && { $add || $install; }; then
        return 0
    fi
    skip "$2: needs $install"
    return 1
}

loom() {
    say "loom models: the lock, budgets, the group page, peaks, requests for totals, readers of pools, the stack interner, room in a window, the window of short records"
    (cd models && cargo test --quiet --release)
    # `cargo clippy --workspace` does not include models/, which is a separate workspace.
    if cargo clippy --version >/dev/null 2>&1; then
        (cd models && cargo clippy --quiet --release --all-targets -- -D warnings)
    else
        skip "cargo clippy over models/: not installed"
    fi
}

# The tests of the shim that need no assembly, loader, fork or files, which Miri does not support.
MIRI_SHIM="capture::native::rules model::ledger::entry model::ledger::totals model::ledger::summary runtime::hash_table runtime::heap runtime::lock"

miri() { # miri PACKAGE FILTER...
    has_nightly miri miri || return 0
    local package=$1
    shift
    say "Miri: unit tests of $package${*:+: $*}"
    # Few random inputs, because Miri is slow. No isolation: proptest stores failing inputs in files.
    MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=4 \
        cargo +nightly miri test --quiet -p "$package" --lib -- "$@"
}

sanitizer() { # sanitizer NAME
    local name=$1
    has_nightly rust-src "$name" || return 0
    say "the $name sanitizer: unit tests of the reader, the format and the shim"
    # -Zbuild-std: without an instrumented standard library, ThreadSanitizer reports false races. The shim reads
    # the stack memory of returned frames on purpose (driver/depth.rs, capture/).
    export LSAN_OPTIONS="suppressions=$PWD/scripts/leak-sanitizer.supp:print_suppressions=0"
    export TSAN_OPTIONS="suppressions=$PWD/scripts/thread-sanitizer.supp"
    unit_tests() { # unit_tests ASAN_OPTIONS PACKAGE...
        RUSTFLAGS="-Zsanitizer=$name --cfg sanitized" CARGO_TARGET_DIR=target/sanitize-"$name" PROPTEST_CASES=16 \
            ASAN_OPTIONS=detect_stack_use_after_return=0:$1 \
            cargo +nightly test --quiet -Zbuild-std --target "$target" "${@:2}" --lib -- "${unfit[@]}"
    }
    # ThreadSanitizer does not know tasks (runtime/task.rs), ends the children of a process with several threads, and maps an
    # address that one test expects to be free.
    local unfit=()
    if [ "$name" = thread ]; then
        unfit=(--skip driver::nvml --skip runtime::task --skip a_forked_child_keeps_one_number --skip readable::tests::pages_that_exist)
        unfit+=(--skip a_descriptor_that_became_another_file)
    fi
    unit_tests fast_unwind_on_malloc=1 -p vramtrace-format -p vramtrace-model -p vramtrace
    # The fast unwinder, which needs frame pointers, loses the functions that the list of intended leaks
    # names. The slow one makes the reader's tests several times slower.
    unit_tests fast_unwind_on_malloc=0 -p vramtrace-shim
}

[ $# -gt 0 ] || set -- all
for part in "$@"; do
    case $part in
        all) loom; miri vramtrace-shim $MIRI_SHIM; miri vramtrace-format; sanitizer address; sanitizer thread ;;
        loom) loom ;;
        miri) miri vramtrace-shim $MIRI_SHIM; miri vramtrace-format ;;
        address | thread) sanitizer "$part" ;;
        *) echo "sanitize: unknown part '$part': must be all, loom, miri, address or thread" >&2; exit 2 ;;
    esac
done
say "nothing found"
