"""kv_service.py SHARE GATE: starts like an LLM server: measures the free memory, loads a model, profiles its largest
batch, computes from SHARE of the card how many KV-cache blocks fit, and allocates them.

GATE is a directory: the program creates GATE/PID when it is ready, and starts when GATE/go exists.
"""
import os
import pathlib
import sys
import time

import torch
from hold import hold

share, gate = float(sys.argv[1]), pathlib.Path(sys.argv[2])
MIB = 1 << 20
BLOCK = 64 * MIB
torch.cuda.init()
(gate / str(os.getpid())).touch()
while not (gate / "go").exists():
    time.sleep(0.001)


def measured():
    free, total = torch.cuda.mem_get_info()
    return free, total, total - free - torch.cuda.memory_reserved()


free_before, total, others_before = measured()
wanted = total * share
if free_before < wanted:
    hold(failed="less_is_free_than_asked_for")
    sys.exit(3)
model = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096, dtype=torch.float16) for _ in range(24))).cuda()
torch.cuda.reset_peak_memory_stats()
with torch.no_grad():
    for _ in range(3):
        model(torch.zeros(16384, 4096, dtype=torch.float16, device="cuda"))
torch.cuda.synchronize()
peak = torch.cuda.max_memory_allocated()
torch.cuda.empty_cache()
free_after, _, others_after = measured()
if free_after > free_before:
    hold(failed="free_memory_grew_during_profiling")
    sys.exit(4)
growth = others_after - others_before
blocks = int(wanted - peak - growth) // BLOCK
try:
    cache = [torch.empty(BLOCK, dtype=torch.uint8, device="cuda") for _ in range(blocks)]
    failed = "no"
    with torch.no_grad():
        model(torch.zeros(16384, 4096, dtype=torch.float16, device="cuda"))
    torch.cuda.synchronize()
except torch.OutOfMemoryError:
    failed = "out_of_memory"
hold(failed=failed, blocks=blocks, growth=growth // MIB, total=total // MIB)
