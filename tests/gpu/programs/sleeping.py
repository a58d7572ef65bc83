"""sleeping.py CYCLES LEAK: pauses and resumes the regions of torch_memory_saver CYCLES times; each cycle keeps
LEAK MiB more outside the regions.

MARK lines: awake or asleep, ns of CLOCK_MONOTONIC, PyTorch's allocated and reserved bytes.
"""
import sys
import time

import torch
from torch_memory_saver import torch_memory_saver

MIB = 1 << 20
cycles, leak = int(sys.argv[1]), int(sys.argv[2])


def mark(word):
    torch.cuda.synchronize()
    allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    # The trace has a resolution of 64 ns: no event must be near the mark.
    time.sleep(0.002)
    print(f"MARK {word} {time.monotonic_ns()} {allocated} {reserved}", flush=True)
    time.sleep(0.002)


def empty(mib):
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")


def weights():
    return [empty(48) for _ in range(8)]


def kv_cache():
    return [empty(32) for _ in range(12)]


def small():
    return [torch.ones(n * 1000, device="cuda") for n in range(1, 40)]


def keep(kept):
    kept.append(torch.empty(leak * MIB, dtype=torch.uint8, device="cuda"))  # LEAK


outside = empty(64)
with torch_memory_saver.region(tag="weights", enable_cpu_backup=True):
    first = weights()
    few = small()
with torch_memory_saver.region(tag="kv_cache"):
    second = kv_cache()
    # A segment without blocks is paused too.
    gone = empty(100)
del gone
kept = []
expected = [tensor.sum().item() for tensor in few]
mark("awake")
for cycle in range(cycles):
    if leak:
        keep(kept)
    torch_memory_saver.pause("kv_cache")
    torch_memory_saver.pause("weights")
    mark("asleep")
    if cycle == cycles // 2:
        # Freed and made while asleep.
        del second[3]
    torch_memory_saver.resume("weights")
    torch_memory_saver.resume("kv_cache")
    if cycle == cycles // 2:
        with torch_memory_saver.region(tag="kv_cache"):
            second.insert(3, empty(32))
    mark("awake")
assert [tensor.sum().item() for tensor in few] == expected, "the weights' backup"
print(f"RESULT cycles={cycles} leak={leak}", flush=True)
