#!/usr/bin/env bash
# Ratios measured side by side on the simulated driver: what the recorder adds to a pair of calls, to
# PyTorch's hook, to dlsym and to a process that never uses CUDA; what limits cost, alone and in a
# group, and how soon another limit holds; what a repeated launch costs; what a call stack costs, against backtrace(); how fast the
# reader decodes; bytes an event.
#
#   scripts/bench.sh [pairs] [limits] [launches] [live] [stacks] [blocks] [generate] [refusals] [idle] [reading]      default: all
#
# Prints a Markdown table. Needs gcc and python3 with its headers. Figures are of this machine and this minute: only
# what stands in one table may be compared.
set -eu
cd "$(dirname "$0")/.."
cargo build --release --workspace --quiet
exec python3 scripts/bench.py "$@"
