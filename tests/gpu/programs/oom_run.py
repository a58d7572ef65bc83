"""oom_run.py HOW: runs out of memory, or nearly; prints RESULT lines.

holds     keeps activations until PyTorch's exception ends it
saved     PyTorch empties its cache and retries with success: there is nothing to report
fraction  PyTorch's own limit refuses, not the driver
caught    the program catches the exception and continues
many      has 100,000 live tensors at the out-of-memory; prints the time until the exception
cupy      CuPy's exception ends it
"""
import sys
import time

HOW = sys.argv[1]


def forward(kept):
    import torch

    x = torch.ones(64, 1 << 20, device="cuda")
    while True:
        hidden = x * 2
        kept.append(hidden)  # what holds the memory is made in the line above


def small(count):
    import torch

    return [torch.empty(128, device="cuda") for _ in range(count)]


def holds():
    forward([])


def saved():
    import torch

    for size in range(64, 448, 64):
        one = torch.empty(size << 20, dtype=torch.uint8, device="cuda")
        del one
    print(f"RESULT retries={torch.cuda.memory_stats()['num_alloc_retries'] > 0}", flush=True)


def fraction():
    import torch

    torch.cuda.set_per_process_memory_fraction(0.01)
    forward([])


def caught():
    import torch

    kept = []
    try:
        forward(kept)
    except torch.OutOfMemoryError:
        print("RESULT caught", flush=True)
    kept.clear()
    torch.cuda.empty_cache()
    y = torch.ones(1 << 20, device="cuda")
    print(f"RESULT sum={int(y.sum())}", flush=True)


def many():
    import torch

    kept = small(100_000)
    took = []
    for _ in range(3):
        began = time.perf_counter()
        try:
            torch.empty(1 << 45, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            took.append(time.perf_counter() - began)
    print(f"TOOK {' '.join(f'{1e3 * t:.2f}' for t in took)}", flush=True)
    print(f"RESULT live={len(kept)}", flush=True)


def cupy():
    import cupy

    kept = []
    while True:
        kept.append(cupy.ones((64, 1 << 20), cupy.float32))


globals()[HOW]()
