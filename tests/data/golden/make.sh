#!/usr/bin/env bash
# Records one more trace of this directory:  make.sh BIN_DIR NAME [VARIABLE=VALUE...] -- PROGRAM [ARGUMENT...]
#
#   make.sh target/release capped VRAMTRACE_CAP=4GiB -- families
#   make.sh target/release leak VRAMTRACE_TEST_CLOCK=0 -- leaks linear
#   make.sh target/release pytorch VRAMTRACE_SIM=2x24GiB -- torch libc10_cuda.so blocks
#
# PROGRAM is one of tests/programs. The traces show that later versions read what earlier ones wrote. So add one when the
# format learns something; make none of the present ones anew, or they show nothing. Paths of the machine come into a
# trace: build with --remap-path-prefix, and run it as   unshare --uts sh -c 'hostname node7; make.sh ...'
set -eu
bin=$(cd "$1" && pwd) name=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)
sources=$(cd "$here/../../programs" && pwd)
work=/opt/golden
[ ! -e "$here/$name.vtrace.gz" ] || { echo "make.sh: $name.vtrace.gz is there: it stays as it is" >&2; exit 2; }
variables=()
while [ "$1" != -- ]; do
    variables+=("$1")
    shift
done
shift
rm -rf "$work"
mkdir -p "$work/sim"
cp "$bin/vramtrace" "$bin/libvramtrace.so" "$bin/libvramtrace_sim.so" "$work"
for library in libcuda.so.1 libnvidia-ml.so.1; do ln -s ../libvramtrace_sim.so "$work/sim/$library"; done
compile() { gcc -std=gnu11 -O1 -g -ffile-prefix-map="$sources"=/opt/golden/programs -o "$work/$@" -ldl -lpthread; }
compile libc10.so "$sources/libc10.c" -shared -fPIC -Wl,-soname,libc10.so
compile libc10_cuda.so "$sources/libc10_cuda.c" -shared -fPIC '-Wl,-rpath,$ORIGIN' -Wl,-soname,libc10_cuda.so -L "$work" -l:libc10.so
# With real times nothing that is long can be packed small: preload it before the recorder.
compile steady.so "$here/steady.c" -shared -fPIC
compile "$1" "$sources/$1.c"
cd "$work"
# The program may fail.
env -i PATH=/usr/bin:/bin LD_LIBRARY_PATH="$work:$work/sim" VRAMTRACE_SIM=1x24GiB VRAMTRACE_OOM_REPORT=off \
    VRAMTRACE_OUT="$work/$name.vtrace" LD_PRELOAD="$work/libvramtrace.so" "${variables[@]}" "./$@" || true
./vramtrace pack "$name.vtrace" -o packed
gzip -9n <packed >"$here/$name.vtrace.gz"
