"""A small training loop to trace.

    vramtrace run python examples/train.py
    vramtrace run --cap 2GiB -- python examples/train.py --batch 4096
    vramtrace run --simulate python examples/train.py

With PyTorch and a GPU it trains a small network. Otherwise it makes the driver calls of such a training, so
that it also runs on the simulated driver. The program leaks on purpose: it keeps the loss of each step.
"""

import argparse
import ctypes
import sys


def train_with_torch(torch, steps, batch):
    device = torch.device("cuda")
    model = torch.nn.Sequential(
        torch.nn.Linear(1024, 4096),
        torch.nn.ReLU(),
        torch.nn.Linear(4096, 4096),
        torch.nn.ReLU(),
        torch.nn.Linear(4096, 10),
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    history = []  # a common leak: it keeps loss tensors, not numbers
    for step in range(steps):
        inputs = torch.randn(batch, 1024, device=device)
        labels = torch.randint(10, (batch,), device=device)
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss)
        if step % 10 == 0:
            print(f"step {step}: loss {loss.item():.3f}")
    print(f"peak: {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB allocated by tensors")


class Driver:
    """The driver calls that a training needs."""

    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)

    def call(self, name, *arguments):
        result = getattr(self.library, name)(*arguments)
        if result == 2:
            raise MemoryError(f"{name}: out of GPU memory")
        if result != 0:
            raise RuntimeError(f"{name}: error {result}")

    def allocate(self, size):
        pointer = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        return pointer

    def free(self, pointer):
        self.call("cuMemFree_v2", pointer)


def train_with_driver(steps, batch):
    driver = Driver()
    widths = [(1024, 4096), (4096, 4096), (4096, 10)]
    weights = [driver.allocate(4 * a * b) for a, b in widths for _ in range(4)]
    kept = []
    for step in range(steps):
        activations = [driver.allocate(4 * batch * b) for _, b in widths]
        kept.append(driver.allocate(4 * batch))
        for pointer in reversed(activations):
            driver.free(pointer)
        if step % 10 == 0:
            print(f"step {step}")
    for pointer in weights:
        driver.free(pointer)
    print(f"{len(kept)} buffers were never freed")


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--steps", type=int, default=50)
    arguments.add_argument("--batch", type=int, default=1024)
    given = arguments.parse_args()
    try:
        import torch
    except ImportError:
        torch = None
    try:
        if torch is not None and torch.cuda.is_available():
            train_with_torch(torch, given.steps, given.batch)
        else:
            train_with_driver(given.steps, given.batch)
    except (OSError, RuntimeError, MemoryError) as error:
        sys.exit(f"train.py: {error}")


if __name__ == "__main__":
    main()
