#!/usr/bin/env bash
# The page that `vramtrace report --html` writes: checks its source, builds it, and tests it in
# Chromium. Fails where assets/page.html is not what web/ builds.
#
#   scripts/web.sh            all of it
#   scripts/web.sh build      builds, and takes the result as assets/page.html
#   scripts/web.sh million    instead of the tests: a page of 1,000,000 blocks by a release build, its size and
#                             its times as a table. PAGE_TIMES=1: fails where a time is above its limit;
#                             PAGE_ROUNDS=N: takes them N times (default 3)
#
# Needs Node.js 20 or later; on Debian and Ubuntu it installs Node.js and Chromium when they are
# missing (as root or by sudo).
set -eu
cd "$(dirname "$0")/.."

need() { # need COMMAND PACKAGE...
    command -v "$1" >/dev/null && return 0
    name=$1
    shift
    if command -v apt-get >/dev/null; then
        as_root=
        [ "$(id -u)" = 0 ] || as_root=sudo
        $as_root apt-get install -y -q --no-install-recommends "$@" >/dev/null 2>&1 || {
            $as_root apt-get update -q >/dev/null &&
                $as_root apt-get install -y -q --no-install-recommends "$@" >/dev/null
        }
    fi
    command -v "$name" >/dev/null || { echo "web: $name is needed (package $*)" >&2; exit 2; }
}

need node nodejs
need npm npm
major=$(node --version | sed 's/^v\([0-9]*\).*/\1/')
[ "$major" -ge 20 ] || { echo "web: Node.js 20 or later is needed, this is $(node --version)" >&2; exit 2; }

# What is installed is what package-lock.json names.
if ! cmp -s web/package-lock.json web/node_modules/.of-lock; then
    (cd web && npm ci --no-audit --no-fund --loglevel=error)
    cp web/package-lock.json web/node_modules/.of-lock
fi

build() {
    (cd web && node_modules/.bin/vite build --logLevel warn)
    bytes=$(wc -c <web/dist/index.html)
    [ "$bytes" -le 300000 ] || { echo "web: the page is $bytes bytes of code: 300,000 at most" >&2; exit 1; }
}

if [ "${1:-}" = build ]; then
    build
    cp web/dist/index.html assets/page.html
    echo "assets/page.html: $bytes bytes"
    exit 0
fi

if [ "${1:-}" != million ]; then
    (cd web && node_modules/.bin/tsc --noEmit && node_modules/.bin/eslint src tests ./*.ts)
    (cd web && node_modules/.bin/vitest run --reporter=dot)
fi
build
cmp web/dist/index.html assets/page.html || {
    echo "web: assets/page.html is not what web/ builds: run scripts/web.sh build, and commit it" >&2
    exit 1
}
echo "assets/page.html is what web/ builds, $bytes bytes of code"

need chromium chromium fonts-dejavu-core
traces=${PAGE_TRACES:-target/page-traces}
rm -rf "$traces"
profile=debug
blocks=20000
if [ "${1:-}" = million ]; then
    profile=release
    blocks=1000000
    cargo build --quiet --release
else
    cargo build --quiet
fi
cargo run --quiet -p vramtrace-testkit --example page_traces -- "$traces" "$blocks"
VRAMTRACE=$PWD/target/$profile/vramtrace
for packed in assets/recorded.vtrace.gz tests/data/roles/*.vtrace.gz; do
    gzip -dc "$packed" >"$traces/$(basename "$packed" .gz)"
done
PAGE_TRACES=$PWD/$traces
export PAGE_TRACES VRAMTRACE
if [ "${1:-}" = million ]; then
    exec node web/tests/million.mjs
fi
(cd web && node --test --test-concurrency=2 --test-reporter=dot tests/figures.test.mjs tests/page.test.mjs)
echo "the page: all tests passed"
