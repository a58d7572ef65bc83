#!/usr/bin/env bash
# Fuzzes the trace reader, what imports others' files, directories, the commands, the pages in shared
# memory, and the tables of ELF objects: the committed corpus, then SECONDS (default 20) of new inputs in all.
#
#   scripts/fuzz.sh [SECONDS]
#
# FUZZ_TARGETS="reader pages" takes others of fuzz/fuzz_targets/ than reader, records, import, directory and elf.
# Needs cargo-fuzz (`cargo install cargo-fuzz`); without it, says SKIP and ends well.
# A crash is kept in fuzz/artifacts/ and makes this fail.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/skip.sh
seconds=${1:-20}
case $seconds in
    '' | *[!0-9]*) echo "fuzz.sh: '$seconds' is no number of seconds" >&2; exit 2 ;;
esac
if ! cargo fuzz --version >/dev/null 2>&1; then
    skip "fuzz: cargo-fuzz is not installed (cargo install cargo-fuzz)"
    exit 0
fi
read -ra targets <<<"${FUZZ_TARGETS:-reader records import directory elf}"
case " ${targets[*]} " in
    *" commands "*)
        if [ "$seconds" -gt 60 ]; then
            cargo build --quiet --release --bin vramtrace
            export VRAMTRACE_BIN=$PWD/target/release/vramtrace
        else
            cargo build --quiet --bin vramtrace
            export VRAMTRACE_BIN=$PWD/target/debug/vramtrace
        fi
        ;;
esac
share=$((seconds / ${#targets[@]}))
# An optimised build takes longer than a short run.
profile=()
[ "$seconds" -gt 60 ] || profile=(--dev)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for target in "${targets[@]}"; do
    mkdir "$work/$target"
    # -s none: no sanitizer, so that stable Rust will do; what is fuzzed has no unsafe code.
    cargo fuzz build "${profile[@]}" -s none "$target"
    echo "== $target: the corpus"
    cargo fuzz run "${profile[@]}" -s none "$target" "fuzz/corpus/$target" -- -runs=0
    if [ "$share" -gt 0 ]; then
        echo "== $target: $share s of new inputs"
        cargo fuzz run "${profile[@]}" -s none "$target" "$work/$target" "fuzz/corpus/$target" -- \
            -max_total_time="$share" -max_len=16384 -print_final_stats=1
    fi
done
echo "fuzz: nothing found"
