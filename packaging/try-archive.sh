#!/usr/bin/env bash
# Tries a released tar.gz as a user does: unpacks it into an empty directory; its command must find its
# libraries, read the recorded run, and record a program on the simulated driver. An archive for another
# architecture runs under qemu-user; if that is not installed, a line says that it was not tried.
#
#   packaging/try-archive.sh dist/vramtrace-VERSION-linux-MACHINE.tar.gz
#
# Exit status: 0 it works, or was not tried; 1 it does not; 2 wrong usage.
set -eu
[ $# = 1 ] && [ -f "$1" ] || { echo "usage: try-archive.sh FILE.tar.gz, not: $*" >&2; exit 2; }
archive=$(realpath "$1")
repository=$(cd "$(dirname "$0")/.." && pwd)
where=$(mktemp -d)
trap 'rm -rf "$where"' EXIT
cd "$where"
fail() { echo "try-archive: $*" >&2; exit 1; }

tar -xzf "$archive"
folder=$(basename "$archive" .tar.gz)
[ "$(ls)" = "$folder" ] || fail "$archive: unpacks to more than $folder"
for file in bin/vramtrace lib/libvramtrace.so lib/libvramtrace_sim.so LICENSE-MIT LICENSE-APACHE README.md \
    THIRD-PARTY-LICENSES.txt share/man/man1/vramtrace.1 share/man/man1/vramtrace-run.1 \
    share/bash-completion/completions/vramtrace share/zsh/site-functions/_vramtrace \
    share/fish/vendor_completions.d/vramtrace.fish; do
    [ -s "$folder/$file" ] || fail "$archive: $file is missing or empty"
done
machine=${folder##*-}
run=
if [ "$machine" != "$(uname -m)" ]; then
    if ! command -v "qemu-$machine" >/dev/null || [ ! -d "/usr/$machine-linux-gnu/lib" ]; then
        echo "try-archive: $folder: NOT tried: qemu-$machine or /usr/$machine-linux-gnu/lib is missing" >&2
        exit 0
    fi
    run="qemu-$machine -L /usr/$machine-linux-gnu"
fi
# shellcheck disable=SC2086 # words
vramtrace() { env -u LD_PRELOAD -u VRAMTRACE_OUT $run "$folder/bin/vramtrace" "$@"; }
version=$(vramtrace --version)
vramtrace demo --out recorded >demo.txt || fail "$folder: demo: $(tail -3 demo.txt)"
grep -q "holds .*activations.py:66" demo.txt || fail "$folder: the recorded demo does not name its holder"
vramtrace env >env.txt
grep -q "$where/$folder/lib/libvramtrace.so" env.txt || fail "$folder: env does not name its own library: $(cat env.txt)"
if [ -z "$run" ]; then
    cp "$repository/docs/programs/gpu.py" "$repository/docs/programs/train.py" .
    vramtrace run --simulate --out out/ python3 train.py 2>run.txt || fail "$folder: $(tail -3 run.txt)"
    grep -q "gpu.py:35 < train.py:10 held 384.00 MiB" run.txt || fail "$folder: $(tail -3 run.txt)"
fi
echo "try-archive: $folder: $version${run:+, under $run}" >&2
