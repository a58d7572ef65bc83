#!/usr/bin/env bash
# Makes the traces of this directory anew:  make.sh BIN_DIR [NAME...]
#
# They show that later versions read what earlier ones wrote. So add a trace when the format learns
# something; make none of the present ones anew, or they show nothing. Needs gcc and /usr/bin/python3.
# Paths of the machine come into a trace: build with --remap-path-prefix, and run it as
#     unshare --uts sh -c 'hostname node7; make.sh BIN_DIR'
set -eu
bin=$(cd "$1" && pwd)
shift
here=$(cd "$(dirname "$0")" && pwd)
sources=$(cd "$here/../../programs" && pwd)
work=/opt/golden
rm -rf "$work"
mkdir -p "$work/sim" "$work/lib" "$work/traces"
cp "$bin/vramtrace" "$bin/libvramtrace.so" "$bin/libvramtrace_sim.so" "$work/lib/"
for name in libcuda.so.1 libnvidia-ml.so.1; do ln -s ../lib/libvramtrace_sim.so "$work/sim/$name"; done
vramtrace=$work/lib/vramtrace

flags="-std=gnu11 -O1 -g -ffile-prefix-map=$sources=/opt/golden/programs"
for name in contexts endings families graphs leaks out_of_memory phases sharing taken interactive torch vmm; do
    gcc $flags -o "$work/$name" "$sources/$name.c" -ldl -lpthread
done
gcc $flags -shared -fPIC -Wl,-soname,libc10.so -o "$work/libc10.so" "$sources/libc10.c" -lpthread
gcc $flags -shared -fPIC '-Wl,-rpath,$ORIGIN' -Wl,-soname,libc10_cuda.so -L "$work" \
    -o "$work/libc10_cuda.so" "$sources/libc10_cuda.c" -l:libc10.so -lpthread
gcc $flags -shared -fPIC -o "$work/steady.so" "$here/steady.c"
cp "$here/tensors.py" "$work/"
cd "$work"

# recorded NAME [VARIABLE=VALUE...] -- COMMAND: its trace is traces/NAME.vtrace. The command may fail.
recorded() {
    local name=$1 variables=()
    shift
    while [ "$1" != -- ]; do
        variables+=("$1")
        shift
    done
    shift
    env -i PATH=/usr/bin:/bin LD_LIBRARY_PATH="$work/sim" VRAMTRACE_SIM=1x24GiB VRAMTRACE_OOM_REPORT=off \
        VRAMTRACE_OUT="$work/traces/$name.vtrace" LD_PRELOAD="$work/lib/libvramtrace.so" \
        "${variables[@]}" "$@" >"${name%/*}.out" 2>&1 || true
}

# With real times nothing that is long can be packed small.
steady=(VRAMTRACE_TEST_CLOCK=0 LD_PRELOAD="$work/steady.so:$work/lib/libvramtrace.so")
torch=$work/libc10_cuda.so
recorded families -- ./families
recorded capped VRAMTRACE_CAP=4GiB -- ./families
recorded vmm VRAMTRACE_SIM=2x24GiB -- ./vmm ranges
recorded nccl -- ./vmm nccl
recorded import -- ./vmm import
recorded graphs -- ./graphs
recorded contexts VRAMTRACE_SIM=2x24GiB -- ./contexts many
recorded taken VRAMTRACE_SIM=2x24GiB -- ./taken launch deep heap streams kernel stack graph second launch alloc reset threads
recorded phases -- ./phases
recorded leak VRAMTRACE_TEST_CLOCK=0 -- ./leaks linear
recorded no_stacks VRAMTRACE_STACKS=none -- ./families
recorded aborted -- ./endings abort
recorded forked/%p -- ./endings fork-cuda
recorded bounded "${steady[@]}" VRAMTRACE_MAX=4MiB -- ./endings churn 120000
python3 "$here/punch.py" traces/bounded.vtrace 2
recorded pytorch VRAMTRACE_SIM=2x24GiB -- ./torch "$torch" blocks
recorded fragments VRAMTRACE_CAP=1GiB -- ./out_of_memory "$torch" fragments
recorded expandable -- ./out_of_memory "$torch" expandable
recorded absorbed VRAMTRACE_CAP=1200MiB -- ./out_of_memory "$torch" absorbed-then-out 3
recorded warned VRAMTRACE_CAP=1GiB VRAMTRACE_CAP_MODE=warn VRAMTRACE_CAP_WARN=50% -- ./out_of_memory "$torch" exit 900
recorded group VRAMTRACE_CAP_GROUP="golden-$$:1GiB" -- ./out_of_memory "$torch" exit 900
recorded tensors VRAMTRACE_CAP=700MiB VRAMTRACE_TENSORS=full -- /usr/bin/python3 -I tensors.py

# A parent and its child: two files.
recorded sharing/%p -- ./sharing
# Two ranks on two devices.
for rank in 0 1; do
    recorded "ranks/rank$rank" RANK=$rank WORLD_SIZE=2 LOCAL_RANK=$rank VRAMTRACE_SIM=2x24GiB -- \
        sh -c "echo 'a 100
p 64
m 30
a $((rank + 1))00
f
l' | exec ./interactive $rank" &
done
wait
# Killed while it waits.
{ printf 'c 300\na 100\np 20\nf\na 7\n'; sleep 2; } | recorded killed -- sh -c 'echo $$ >killed.pid; exec ./interactive' &
sleep 1
kill -KILL "$(cat killed.pid)"
wait
# The demo's workload, under a cap that ends it while it trains.
recorded demo VRAMTRACE_CAP=2300MiB -- "$vramtrace" __demo-workload

cd traces
for pair in forked sharing; do
    mv "$pair"/"$(ls -v $pair | head -1)" $pair/parent.vtrace
    mv "$pair"/[0-9]*.vtrace $pair/child.vtrace
done
for trace in *.vtrace */*.vtrace; do
    name=${trace%%[./]*}
    [ "$#" = 0 ] || [[ " $* " == *" $name "* ]] || continue
    "$vramtrace" pack "$trace" -o "$trace.packed" 2>/dev/null
    mkdir -p "$(dirname "$here/$trace")"
    gzip -9n <"$trace.packed" >"$here/$trace.gz"
done
