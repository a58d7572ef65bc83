#!/usr/bin/env bash
# Compares the Python frames of free-threaded CPython (3.13t, 3.14t) with those of Python's `traceback`: on one
# thread, and on threads that run the same functions at the same time.
#
#   packaging/test-free-threaded.sh PYTHON|SOURCE...
#
# PYTHON: path of an interpreter. SOURCE: a directory with CPython's source (`apt-get source python3.14` on
# Debian testing); it is configured with --disable-gil and built into target/free-threaded, some minutes each.
#
# Exit status: 0 all passed, 1 a test or a build failed, 2 wrong usage.
set -eu
[ $# -gt 0 ] || { sed -n '5,8s/^# \{0,2\}//p' "$0" >&2; exit 2; }
places=()
for place in "$@"; do
    [ -e "$place" ] || { echo "test-free-threaded: $place does not exist" >&2; exit 2; }
    places+=("$(realpath --no-symlinks "$place")")
done
cd "$(dirname "$0")/.."
cargo build --quiet --workspace
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
for place in "${places[@]}"; do
    python=$place
    if [ -x "$place/configure" ]; then
        prefix=$PWD/target/free-threaded/$(basename "$place")
        if [ -z "$(ls "$prefix"/bin/python3.*t 2>/dev/null)" ]; then
            echo "== building $place into $prefix"
            build=$prefix/build
            mkdir -p "$build"
            (cd "$build" && "$place/configure" --disable-gil --prefix="$prefix" &&
                make -j "$(nproc)" && make altinstall) >"$prefix.log" 2>&1 || {
                tail -5 "$prefix.log" >&2
                exit 1
            }
        fi
        python=$(ls "$prefix"/bin/python3.*t)
    elif [ ! -x "$place" ] || [ -d "$place" ]; then
        echo "test-free-threaded: $place is neither an interpreter nor CPython's source (no configure in it)" >&2
        exit 2
    fi
    "$python" -c 'import sys, sysconfig; sys.exit(not sysconfig.get_config_var("Py_GIL_DISABLED"))' || {
        echo "test-free-threaded: $python is not a free-threaded build" >&2
        exit 2
    }
    for what in situations threads; do
        python3 packaging/check-frames.py target/debug/vramtrace "$python" "tests/python/frames_$what.py" "$out/out"
        rm -r "$out/out"
    done
done
echo "test-free-threaded: all passed"
