"""train.py [STEPS]: trains GPT-2 small with random weights on batches of random length. The size of its tensors
changes at each step, which fragments PyTorch's cache.

Exit status: 0, or 3 if memory runs out (the program catches the exception).
"""
import sys

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
    return 0


status = train()
stats = torch.cuda.memory_stats()
print(f"PEAKS {stats['allocated_bytes.all.peak']} {stats['reserved_bytes.all.peak']}", flush=True)
sys.exit(status)
