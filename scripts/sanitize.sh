#!/usr/bin/env bash
# Checks that the compiler does not make: models of the concurrency under every order of steps (loom), the
# pure parts under Miri, unit tests of reader and shim under AddressSanitizer and ThreadSanitizer.
#
#   scripts/sanitize.sh [short | all | loom | miri | address | thread]...      default: all
#
# short: loom, and Miri over what takes seconds, for each change. Miri and the sanitizers need the nightly
# toolchain with the components miri and rust-src; without it they say SKIP. With VRAMTRACE_TEST_NO_SKIP=1,
# as in CI, it is installed, and where that is not possible this fails.
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
    say "models: the lock, budgets, the page of a group, stacks and their numbers, room in a window"
    (cd models && cargo test --quiet --release)
    # The workspace's clippy does not come here: models/ is a workspace of its own.
    if cargo clippy --version >/dev/null 2>&1; then
        (cd models && cargo clippy --quiet --release --all-targets -- -D warnings)
    else
        skip "cargo clippy over models/: not installed"
    fi
}

# Of the shim, what needs no assembly, no loader, no fork and no files: Miri has none of these.
MIRI_SHIM="capture::native::rules runtime::hash_table runtime::heap runtime::lock"
# Of the format, what threads do at once: the rest has no unsafe code, and takes minutes.
MIRI_FORMAT_SHORT="pages::group::tests::threads"

miri() { # miri PACKAGE FILTER...
    has_nightly miri miri || return 0
    local package=$1
    shift
    say "Miri: unit tests of $package${*:+: $*}"
    # Random inputs are many, and Miri is slow. The file system is used to keep failing inputs.
    MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=4 \
        cargo +nightly miri test --quiet -p "$package" --lib -- "$@"
}

sanitizer() { # sanitizer NAME
    has_nightly rust-src "$1" || return 0
    say "the $1 sanitizer: unit tests of the reader, the format and the shim"
    # The standard library is built with it too, or races in it would be reported that are none. The shim
    # reads stacks of frames that have returned, on purpose (driver/depth.rs, capture/).
    export ASAN_OPTIONS=detect_stack_use_after_return=0
    export LSAN_OPTIONS="suppressions=$PWD/scripts/leak-sanitizer.supp:print_suppressions=0"
    export TSAN_OPTIONS="suppressions=$PWD/scripts/thread-sanitizer.supp"
    RUSTFLAGS="-Zsanitizer=$1 --cfg sanitized" CARGO_TARGET_DIR=target/sanitize-"$1" PROPTEST_CASES=16 \
        cargo +nightly test --quiet -Zbuild-std --target "$target" \
        -p vramtrace-format -p vramtrace -p vramtrace-shim --lib
}

[ $# -gt 0 ] || set -- all
for part in "$@"; do
    case $part in
        short) loom; miri vramtrace-shim $MIRI_SHIM; miri vramtrace-format $MIRI_FORMAT_SHORT ;;
        all) loom; miri vramtrace-shim $MIRI_SHIM; miri vramtrace-format; sanitizer address; sanitizer thread ;;
        loom) loom ;;
        miri) miri vramtrace-shim $MIRI_SHIM; miri vramtrace-format ;;
        address | thread) sanitizer "$part" ;;
        *) echo "sanitize: '$part' is none of short, all, loom, miri, address, thread" >&2; exit 2 ;;
    esac
done
say "nothing found"
