#!/usr/bin/env bash
# The tests of a change: format, unit tests, end-to-end tests, and the page in Chromium. Needs Rust; on Debian and
# Ubuntu it installs gcc, Python's venv, Node.js, Chromium and the programs that tests run when they are missing (as
# root or by sudo). scripts/test-more.sh has the checks that take longer; CI runs both.
#
#   VRAMTRACE_TEST_FULL=1     the long forms (16 x 100,000 calls near the cap, 200 kills)
#   VRAMTRACE_TEST_NO_SKIP=1  what is skipped because a tool is missing fails, as in CI; more is installed
set -eu
cd "$(dirname "$0")/.."
. scripts/skip.sh
. scripts/need.sh
# What is skipped leaves a line here: scripts/skip.sh, tests/testkit/src/skip.rs.
skipped=target/tmp/skipped
rm -f "$skipped"

say() { printf '\n== %s\n' "$*"; }

# beside NAME COMMAND...: runs a check beside what follows, at the lowest priority: the tests wait for much of their time.
# joined NAME: waits for it, and shows its output if it failed.
declare -A running=()
beside() {
    local name=$1
    shift
    mkdir -p target/tmp
    nice -n 19 "$@" >"target/tmp/$name" 2>&1 </dev/null &
    running[$name]=$!
}
joined() {
    local status=0
    wait "${running[$1]}" || status=$?
    unset "running[$1]"
    [ $status = 0 ] || { cat "target/tmp/$1"; exit $status; }
}
trap 'kill "${running[@]}" 2>/dev/null || true' EXIT

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

say "format"
if cargo fmt --version >/dev/null 2>&1; then cargo fmt --all --check; else skip "cargo fmt: not installed"; fi

say "licences, sources and duplicates of the crates"
scripts/deny.sh

say "build"
beside page scripts/web.sh check
# All at once: examples and tests have more features of some crates than the command, which would be built again.
cargo build --quiet --workspace --lib --bins --examples --tests

say "unit, property and end-to-end tests"
cargo test --quiet --workspace

say "the page of report --html, in Chromium"
joined page
scripts/web.sh browser

all_passed
