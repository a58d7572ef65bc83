"""elastic.py: a training loop on batches of random size, until a line comes on stdin. It continues after an
out-of-memory, empties PyTorch's cache every 20 steps, and prints its figures every 50 ms.
"""
import random
import sys
import threading
import time

import torch

torch.manual_seed(0)
random.seed(0)
WIDTH = 2048
layers = [layer for _ in range(6) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU())]
model = torch.nn.Sequential(*layers).cuda()
optimiser = torch.optim.SGD(model.parameters(), 1e-4)
done = threading.Event()
threading.Thread(target=lambda: (sys.stdin.readline(), done.set()), daemon=True).start()


def step():
    rows = random.randint(1, 16) * 2048
    loss = model(torch.randn(rows, WIDTH, device="cuda")).square().mean()
    loss.backward()
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    torch.cuda.synchronize()


def say(what, **facts):
    print(what + " " + " ".join(f"{key}={value}" for key, value in facts.items()), flush=True)


steps = ooms = 0
last_print = 0.0
while not done.is_set():
    retries = torch.cuda.memory_stats().get("num_alloc_retries", 0)
    if time.monotonic() - last_print > 0.05:
        last_print = time.monotonic()
        say("AT", ns=time.monotonic_ns(), steps=steps, ooms=ooms, retries=retries)
    try:
        step()
        steps += 1
    except torch.OutOfMemoryError:
        ooms += 1
        say("OOM", ns=time.monotonic_ns())
        optimiser.zero_grad(set_to_none=True)
        time.sleep(0.01)
    if (steps + ooms) % 20 == 0:
        torch.cuda.empty_cache()
