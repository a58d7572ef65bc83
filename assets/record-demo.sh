#!/usr/bin/env bash
# Records the run that `vramtrace demo --recorded` shows, into assets/recorded.vtrace.gz: GPT-2 small
# with random weights on batches of random length, under the highest cap at which fragmentation ends
# it. Needs an NVIDIA GPU with 32 GiB free, torch, transformers, and the release build. Build again
# afterwards: the command contains the file. VRAMTRACE_LOGS=DIR is the directory for logs.
set -eu
cd "$(dirname "$0")/.."
logs=${VRAMTRACE_LOGS:-$(mktemp -d)}
VRAMTRACE_LOGS=$logs scripts/gpu-check.sh demo
[ -s "$logs/recorded.vtrace.gz" ] || { echo "record-demo: $logs/recorded.vtrace.gz was not written" >&2; exit 1; }
bytes=$(stat -c %s "$logs/recorded.vtrace.gz")
[ "$bytes" -lt 1000000 ] || { echo "record-demo: $bytes bytes: must be less than 1,000,000" >&2; exit 1; }
# The trace contains paths and names of this machine: check them before it is published.
echo "Paths and names in the trace:"
gzip -dc "$logs/recorded.vtrace.gz" | strings -n 6 | grep -E '^/|/home|site-packages' | sed 's|/[^/]*$||' | sort | uniq -c | sort -rn | head -20
cp "$logs/recorded.vtrace.gz" assets/recorded.vtrace.gz
echo "assets/recorded.vtrace.gz: $bytes bytes"
