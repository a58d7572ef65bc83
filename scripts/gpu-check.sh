#!/usr/bin/env bash
# What only a real GPU proves. Needs: an NVIDIA GPU, the built release binaries, python3; each
# client that is not installed (torch, CuPy, JAX, numba, Triton, nvcc, a second GPU) is SKIPped by name.
#
#   scripts/gpu-check.sh [same] [cap] [cost] [nccl] [stacks] [steps] [tensors] [truth] [whatif] [demo]
#                        [marks] [leaks] [limits] [oom] [sleep] [roles] [per_tensor] [wheel] [suites]
#   default: all but suites, which needs the tests of others (scripts/gpu/suites.py)
#
# VRAMTRACE_BIN=DIR   where vramtrace and libvramtrace.so are (default target/release)
# VRAMTRACE_WHEEL=FILE   the wheel of scripts/release.sh, for `wheel`
# VRAMTRACE_TMS_WHEEL=FILE   torch_memory_saver's wheel, for `sleep`, where it is not installed
# VRAMTRACE_LOGS=DIR  where logs and traces go (default a temporary directory)
set -u
here=$(cd "$(dirname "$0")" && pwd)
if ! nvidia-smi -L >/dev/null 2>&1; then
    echo "SKIP gpu-check: no NVIDIA GPU (nvidia-smi -L finds none)"
    exit 0
fi
bin=${VRAMTRACE_BIN:-$here/../target/release}
for file in vramtrace libvramtrace.so; do
    [ -e "$bin/$file" ] || { echo "gpu-check: $bin/$file is missing: cargo build --release --workspace"; exit 2; }
done
exec python3 "$here/gpu/check.py" "$(cd "$bin" && pwd)" "$@"
