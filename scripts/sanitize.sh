#!/usr/bin/env bash
# Checks that the compiler does not make: models of the concurrency under every order of steps (loom), the
# pure parts under Miri, unit tests of reader and shim under AddressSanitizer and ThreadSanitizer.
#
#   scripts/sanitize.sh [short | all | loom | miri | address | thread]...      default: all
#
# short: loom, and Miri over what takes seconds; for each change. Miri and the sanitizers need the nightly
# toolchain with the components miri and rust-src; without it they say SKIP, and with CI=true fail.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(rustc -vV | sed -n 's/^host: //p')

say() { printf '\n== %s\n' "$*"; }

has_nightly() { # has_nightly COMPONENT
    if ! rustup component list --toolchain nightly --installed 2>/dev/null | grep -q "^$1"; then
        echo "SKIP $2: rustup component add --toolchain nightly miri rust-src"
        [ "${CI:-}" != true ] || exit 1
        return 1
    fi
}

loom() {
    say "models: the lock, the counts of a budget and of a group, room in a window"
    (cd models && cargo test --quiet --release)
}

miri() { # miri FILTER...
    has_nightly miri miri || return 0
    say "Miri: the format's unit tests${*:+: $*}"
    # Random inputs are many, and Miri is slow. The file system is used to keep failing inputs.
    MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=4 \
        cargo +nightly miri test --quiet -p vramtrace-format --lib -- "$@"
}

sanitizer() { # sanitizer NAME
    has_nightly rust-src "$1" || return 0
    say "the $1 sanitizer: unit tests of the reader, the format and the shim"
    # The standard library is built with it too, or races in it would be reported that are none.
    RUSTFLAGS="-Zsanitizer=$1 --cfg sanitized" CARGO_TARGET_DIR=target/sanitize-"$1" PROPTEST_CASES=16 \
        cargo +nightly test --quiet -Zbuild-std --target "$target" \
        -p vramtrace-format -p vramtrace -p vramtrace-shim --lib
}

[ $# -gt 0 ] || set -- all
for part in "$@"; do
    case $part in
        short) loom; miri word wire sealed window physical holes capspec size ;;
        all) loom; miri; sanitizer address; sanitizer thread ;;
        loom) loom ;;
        miri) miri ;;
        address | thread) sanitizer "$part" ;;
        *) echo "sanitize: '$part' is none of short, all, loom, miri, address, thread" >&2; exit 2 ;;
    esac
done
say "nothing found"
