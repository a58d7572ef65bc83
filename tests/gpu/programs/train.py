"""train.py [STEPS]: trains GPT-2 small with random weights on batches of random length. The size of its tensors
changes at each step, which fragments PyTorch's cache.

Prints STATS (PyTorch's counts and peaks), SEGMENTS (figures of its segments now) and MARK (the time now, ns of
CLOCK_MONOTONIC). Exit status: 0, or 3 if memory runs out (the program catches the exception, and prints OOM).
"""
import sys
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 24


def batches(seed=1):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(STEPS):
        length = int(torch.randint(64, 1024, (1,), generator=generator))
        rows = int(torch.randint(2, 9, (1,), generator=generator))
        yield torch.randint(0, 50257, (rows, length), generator=generator).cuda()


def step(model, optimiser, tokens):
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)


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
    free = [block["size"] for segment in segments for block in segment["blocks"] if block["state"] == "inactive"]
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


def train():
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(use_cache=False)).cuda()
    optimiser = torch.optim.AdamW(model.parameters(), 1e-4)
    for number, tokens in enumerate(batches()):
        try:
            step(model, optimiser, tokens)
        except torch.OutOfMemoryError:
            print(f"OOM {number}", flush=True)
            return 3
    # While the model is there.
    tell()
    return 0


sys.exit(train())
