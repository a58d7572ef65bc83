#!/usr/bin/env bash
# Draws the pictures of README.md and docs/ from the recorded run that comes with the command.
# Needs what scripts/web.sh needs.
set -eu
cd "$(dirname "$0")/.."
[ -d web/node_modules ] || { echo "screenshots: run scripts/web.sh first" >&2; exit 2; }
cargo build --quiet
PAGE_TRACES=$PWD/target/page-traces
export PAGE_TRACES
mkdir -p "$PAGE_TRACES" docs/images
gzip -dc assets/recorded.vtrace.gz >"$PAGE_TRACES/recorded.vtrace"
node web/tests/screenshots.mjs docs/images
for picture in docs/images/*.png; do
    bytes=$(wc -c <"$picture")
    [ "$bytes" -le 200000 ] || { echo "screenshots: $picture is $bytes bytes: 200,000 at most" >&2; exit 1; }
    echo "$picture: $bytes bytes"
done
