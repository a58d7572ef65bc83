#!/usr/bin/env bash
# Builds the page of `vramtrace report --html` from web/: checks its source, builds it, and tests it in
# Chromium. Fails if assets/page.html differs from the build.
#
#   scripts/web.sh            checks, builds and tests: `check`, then `browser`
#   scripts/web.sh check      all but the tests in Chromium; installs what those need
#   scripts/web.sh browser    the tests in Chromium alone, of assets/page.html
#   scripts/web.sh build      builds, and replaces assets/page.html
#   scripts/web.sh million    instead of the tests: measures a page of 1,000,000 blocks with a release build, and
#                             prints its size and times as a table. PAGE_TIMES=1: fails if a time exceeds its
#                             limit; PAGE_ROUNDS=N: number of measurements (default 3)
#
# Needs Node.js 20 or later; on Debian and Ubuntu it installs Node.js and Chromium if they are missing (as
# root or with sudo). Exit status: 0 no error, 1 a check failed, 2 wrong usage or a missing tool.
set -eu
case ${1-} in
    "" | check | browser | build | million) ;;
    *) echo "web: unknown argument '$1': must be check, browser, build or million" >&2; exit 2 ;;
esac
cd "$(dirname "$0")/.."
. scripts/need.sh

need node nodejs --no-install-recommends
need npm npm --no-install-recommends
major=$(node --version | sed 's/^v\([0-9]*\).*/\1/')
[ "$major" -ge 20 ] || { echo "web: Node.js is $(node --version): must be 20 or later" >&2; exit 2; }

[ "${1:-}" = build ] || need chromium chromium fonts-dejavu-core --no-install-recommends

# Installs the packages again if package-lock.json has changed since the last time.
if ! cmp -s web/package-lock.json web/node_modules/.of-lock; then
    (cd web && npm ci --no-audit --no-fund --loglevel=error)
    cp web/package-lock.json web/node_modules/.of-lock
fi

build() {
    (cd web && node_modules/.bin/vite build --logLevel warn)
    bytes=$(wc -c <web/dist/index.html)
    [ "$bytes" -le 300000 ] || { echo "web: the page has $bytes bytes of code: must be at most 300,000" >&2; exit 1; }
}

if [ "${1:-}" = build ]; then
    build
    cp web/dist/index.html assets/page.html
    echo "assets/page.html: $bytes bytes"
    exit 0
fi

if [ "${1:-}" = "" ] || [ "$1" = check ]; then
    (cd web && node types.mjs && node_modules/.bin/tsc --noEmit && node_modules/.bin/eslint src tests ./*.ts types.mjs)
    (cd web && node_modules/.bin/vitest run --reporter=dot)
fi
if [ "${1:-}" != browser ]; then
    build
    cmp web/dist/index.html assets/page.html || {
        echo "web: assets/page.html differs from the build of web/: run scripts/web.sh build, and commit it" >&2
        exit 1
    }
    echo "assets/page.html is the build of web/, $bytes bytes of code"
fi
[ "${1:-}" != check ] || exit 0

traces=${PAGE_TRACES:-target/page-traces}
rm -rf "$traces"
profile=debug
blocks=20000
if [ "${1:-}" = million ]; then
    profile=release
    blocks=1000000
    cargo build --quiet --release
fi
# With examples, the crates have the features that they have in tests: nothing that scripts/test.sh built is built again.
cargo build --quiet -p vramtrace -p vramtrace-testkit --bins --examples
target/debug/examples/page_traces "$traces" "$blocks"
VRAMTRACE=$PWD/target/$profile/vramtrace
for packed in assets/recorded.vtrace.gz tests/data/roles/*.vtrace.gz tests/data/fits/gpt2_b[46].vtrace.gz; do
    gzip -dc "$packed" >"$traces/$(basename "$packed" .gz)"
done
PAGE_TRACES=$PWD/$traces
export PAGE_TRACES VRAMTRACE
if [ "${1:-}" = million ]; then
    exec node web/tests/million.mjs
fi
(cd web && node --test --test-concurrency=2 --test-reporter=dot tests/*.test.mjs)
echo "the page: all tests passed"
