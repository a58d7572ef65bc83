"""A training loop whose batch grows to what the memory permits, by vramtrace.usage().

    vramtrace run --cap 4GiB python examples/adaptive_batch.py
    vramtrace run --simulate --cap 4GiB python examples/adaptive_batch.py

With PyTorch and a GPU it trains a small network. Otherwise it makes the driver calls of such a training, so that it also
runs on the simulated driver. Two small batches give the bytes of a sample; the rest of the limit is divided by them.
"""

import sys

import vramtrace
from train import Driver

# The part of the limit that is used: workspaces and segments of PyTorch's cache do not grow in a straight line.
SHARE = 0.9
WIDTHS = [(1024, 4096), (4096, 4096), (4096, 10)]


def steps_with_torch(torch):
    layers = [torch.nn.Linear(a, b) for a, b in WIDTHS]
    model = torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1], torch.nn.ReLU(), layers[2]).cuda()
    optimizer = torch.optim.Adam(model.parameters())

    def step(batch):
        loss = model(torch.randn(batch, WIDTHS[0][0], device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def steps_with_driver():
    driver = Driver()
    for a, b in WIDTHS:
        driver.allocate(4 * 4 * a * b)  # weights, gradients and two moments

    def step(batch):
        for pointer in [driver.allocate(4 * batch * b) for _, b in WIDTHS]:
            driver.free(pointer)

    return step


def peak():
    """The highest use so far, context included, and the limit of this process."""
    device = vramtrace.usage().devices[0]
    return device.used - device.live + device.peak, device.cap or device.total


def largest(step, small, large):
    """The batch that fills SHARE of the limit, from the peaks of two batches."""
    step(small)  # makes the optimizer's state
    step(small)
    before, _ = peak()
    step(large)
    after, limit = peak()
    if after == before:
        sys.exit(f"adaptive_batch.py: batches {small} and {large} have the same peak: give larger ones")
    of_sample = (after - before) / (large - small)
    return large + max(0, int((limit * SHARE - after) / of_sample))


def main():
    if not vramtrace.usage():
        sys.exit("adaptive_batch.py: start it under `vramtrace run`")
    try:
        import torch
    except ImportError:
        torch = None
    with_torch = torch is not None and torch.cuda.is_available()
    step = steps_with_torch(torch) if with_torch else steps_with_driver()
    batch = largest(step, 4096, 8192)
    for _ in range(10):
        step(batch)
    use, limit = peak()
    print(f"batch {batch}: {100 * use / limit:.0f} % of the limit")


if __name__ == "__main__":
    main()
