#!/usr/bin/env bash
# Runs the checks that need a real GPU, and prints their results as Markdown. Needs an NVIDIA GPU, the
# release build (cargo build --release --workspace) and python3. A check whose client is missing (torch, CuPy,
# JAX, numba, Triton, nvcc, a second GPU) prints SKIP and the name of what is missing.
#
#   scripts/gpu-check.sh [same] [cap] [cost] [nccl] [stacks] [steps] [sampled] [tensors] [whatif] [streams]
#                        [fix] [story] [marks] [leaks] [graphs] [llama] [strangers] [aimdo] [limits] [oom] [sleep] [roles] [forward] [wheel] [fits] [suites] [vllm]
#   default: all but fits (10 minutes), suites, which needs the test suites of PyTorch and CuPy (tests/gpu/suites.py), and vllm;
#   tests/gpu/PART.py says what a part checks (leaks: leaking.py; stacks, steps: stacks.py; fix: story.py;
#   nccl: same.py; cap: limits.py)
#
# VRAMTRACE_BIN=DIR          directory of vramtrace and libvramtrace.so (default target/release)
# VRAMTRACE_WHEEL=FILE       the wheel of scripts/release.sh, for `wheel`
# VRAMTRACE_TMS_WHEEL=FILE   torch_memory_saver's wheel, for `sleep`, if the package is not installed
# VRAMTRACE_HAMI=FILE        HAMi-core's libvgpu.so, for `cost`: a library that limits memory, beside ours
# VRAMTRACE_LLAMA=PATH       built tools or the source of llama.cpp (a directory, .crate or .tar.gz), for `llama`; its model is
#                            VRAMTRACE_LLAMA_MODEL=FILE, or random weights
# VRAMTRACE_LOGS=DIR         directory for logs and traces (default: a temporary directory, which is kept)
#
# Exit status: 0 no FAIL, or SKIP because there is no GPU; 1 a line says FAIL; 2 a file is missing, or an
# unknown part is named.
set -u
here=$(cd "$(dirname "$0")" && pwd)
if ! nvidia-smi -L >/dev/null 2>&1; then
    echo "SKIP gpu-check: no NVIDIA GPU (nvidia-smi -L finds none)"
    exit 0
fi
bin=${VRAMTRACE_BIN:-$here/../target/release}
for file in vramtrace libvramtrace.so; do
    [ -e "$bin/$file" ] || {
        echo "gpu-check: $bin/$file does not exist; build it: cargo build --release --workspace" >&2
        exit 2
    }
done
exec python3 "$here/../tests/gpu/check.py" "$(cd "$bin" && pwd)" "$@"
