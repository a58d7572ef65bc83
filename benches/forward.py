"""forward.py: the time of a small forward operation of PyTorch, which makes one node of the autograd graph, below 20
Python frames. Prints the best of 8 loops of 1,000 operations. Under the recorder the process uses a GPU, or the simulated driver:

    VRAMTRACE_FORWARD=on vramtrace run python benches/forward.py      # and off; and without `vramtrace run`
"""
import ctypes
import time

driver, context, memory = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
for result in (
    driver.cuInit(0),
    driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
    driver.cuCtxSetCurrent(context),
    driver.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(20 << 20)),
):
    if result != 0:
        raise SystemExit(f"forward.py: the driver returned {result}")

import torch  # noqa: E402

OPERATIONS = 1000
torch.set_num_threads(1)
leaf = torch.ones(4, requires_grad=True)


def once():
    value = leaf
    began = time.perf_counter()
    for _ in range(OPERATIONS):
        value = value * 2.0
    return (time.perf_counter() - began) / OPERATIONS


def deep(frames):
    return deep(frames - 1) if frames else min(once() for _ in range(8))


print(f"{deep(17) * 1e6:.2f} us for an operation")
