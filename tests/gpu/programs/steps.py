"""steps.py: runs GPT-2 steps on request, and times them.

First prints READY with the number of tensor allocations of a step of each kind. Then reads "train N" and
"generate N" from stdin, and answers "TIMES ms ms ...", one figure per step. STEPS_HISTORY=python|all enables
PyTorch's memory history. STEPS_KINDS=generate makes steps of one kind alone. STEPS_TOKENS=N sets the tokens of a
generation. "pairs SECONDS" makes pairs of generations, in one of which the
calls go past the preloaded library (bypass.py), in turn before and after the other; it answers "PAST name ...", these
functions, and "PAIRS ratio,ratio ...", of time and of processor time.
"""
import os
import sys
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel

tokens = int(os.environ.get("STEPS_TOKENS", 48))
history = os.environ.get("STEPS_HISTORY")
if history:
    torch.cuda.memory._record_memory_history(enabled="all", context="all", stacks=history, max_entries=200_000)
torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config()).cuda()
optimiser = torch.optim.AdamW(model.parameters(), 1e-5, foreach=False)
text = torch.randint(0, 50257, (4, 512), device="cuda")
prompt = torch.randint(0, 50000, (1, 16), device="cuda")


def train():
    model.train()
    loss = model(input_ids=text, labels=text, use_cache=False).loss
    loss.backward()
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)


def generate():
    model.eval()
    with torch.no_grad():
        model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            do_sample=False,
            pad_token_id=0,
        )


EVERY = {"train": train, "generate": generate}
STEPS = {name: EVERY[name] for name in os.environ.get("STEPS_KINDS", "train generate").split()}


def timed(step):
    torch.cuda.synchronize()
    begun = time.perf_counter()
    step()
    torch.cuda.synchronize()
    return (time.perf_counter() - begun) * 1e3


def allocations():
    return torch.cuda.memory_stats()["allocation.all.allocated"]


counts = {}
for name, step in STEPS.items():
    for _ in range(3):
        before = allocations()
        step()
        counts[name] = allocations() - before
    torch.cuda.synchronize()
print("READY", *(f"{name}={count}" for name, count in counts.items()), flush=True)


def pairs(seconds):
    """Time, and processor time, through the library to those past it."""
    from bypass import Bypass

    bypass, ratios, end = Bypass(), [], time.monotonic() + seconds
    print("PAST", *sorted(bypass.names), flush=True)
    while time.monotonic() < end:
        found = {}
        for past in [(False, True), (True, False)][len(ratios) % 2]:
            bypass.switch(past)
            before = time.process_time()
            found[past] = timed(generate), time.process_time() - before
        ratios.append([through / past for through, past in zip(found[False], found[True])])
    bypass.switch(False)
    return ratios


for line in sys.stdin:
    name, times = line.split()
    if name == "pairs":
        print("PAIRS", *(f"{ms:.4f},{cpu:.4f}" for ms, cpu in pairs(float(times))), flush=True)
        continue
    print("TIMES", *(f"{timed(STEPS[name]):.3f}" for _ in range(int(times))), flush=True)
