"""varlen.py STEPS: trains GPT-2 small on batches of random length and size, with a fixed seed.

Prints STATS (PyTorch's counts and peaks), SEGMENTS (figures of its segments now) and MARK (the time now, ns of
CLOCK_MONOTONIC). Prints OOM if memory runs out."""
import random
import sys
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel


def words(**facts):
    return " ".join(f"{name}={value}" for name, value in facts.items())


def tell():
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    print("STATS", words(
        peak_reserved=stats["reserved_bytes.all.peak"],
        peak_allocated=stats["allocated_bytes.all.peak"],
        mallocs=stats["segment.all.allocated"],
        retries=stats["num_alloc_retries"],
    ))
    segments = torch.cuda.memory_snapshot()
    free = [
        block["size"] for segment in segments for block in segment["blocks"] if block["state"] == "inactive"
    ]
    print("SEGMENTS", words(
        reserved=sum(segment["total_size"] for segment in segments),
        allocated=sum(segment["allocated_size"] for segment in segments),
        free=sum(free),
        largest_free=max(free, default=0),
        segments=len(segments),
    ))
    print("MARK", time.clock_gettime_ns(time.CLOCK_MONOTONIC), flush=True)
    # No event must be near the mark.
    time.sleep(0.2)


def main(steps):
    random.seed(1)
    torch.manual_seed(1)
    model = GPT2LMHeadModel(GPT2Config(use_cache=False)).cuda()
    optimiser = torch.optim.AdamW(model.parameters(), 1e-4)
    for _ in range(steps):
        length, batch = random.randint(64, 1000), random.randint(1, 8)
        tokens = torch.randint(0, 50257, (batch, length), device="cuda")
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
    tell()


try:
    main(int(sys.argv[1]))
except torch.cuda.OutOfMemoryError:
    print("OOM", flush=True)
