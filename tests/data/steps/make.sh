#!/bin/sh
# Records the programs of this folder: make.sh PYTHON [NAME...]. PYTHON has torch, and the traces here were made with
# version 2.15; no GPU is needed. Prints the number of iterations of each.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$here/../../..
python=$1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
built=${VRAMTRACE_BUILT:-$root/target/debug}
torch=$("$python" -c 'import pathlib, torch; print(pathlib.Path(torch.__file__).parent)')
for name in libc10 libc10_cuda; do
    gcc -std=gnu11 -O1 -shared -fPIC -Wl,-rpath,'$ORIGIN' -Wl,-soname,"$name-4711.so" -o "$work/$name-4711.so" \
        "$root/tests/programs/$name.c" -L "$work" $([ $name = libc10 ] || echo -l:libc10-4711.so) -lpthread
done
g++ -std=c++20 -O1 -shared -fPIC -I "$torch/include" -o "$work/libblocks.so" "$here/blocks.cpp" -L "$torch/lib" -lc10 -lpthread
cp "$here/blocks.py" "$here/programs.py" "$work"
cd "$work"
for name in "$@"; do
    rm -f run.vtrace packed.vtrace
    steps=$(LD_LIBRARY_PATH="$torch/lib" "$built/vramtrace" run --simulate=1x80GiB --out run.vtrace -- "$python" programs.py "$name" 2>log) || {
        cat log >&2
        exit 1
    }
    "$built/vramtrace" pack run.vtrace -o packed.vtrace 2>/dev/null
    gzip -9nc packed.vtrace >"$here/$name.vtrace.gz"
    echo "$name $steps"
done
