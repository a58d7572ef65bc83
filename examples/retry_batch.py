"""A training step that goes on with smaller batches when it runs out of memory, by the figures of vramtrace.usage().

    vramtrace run --cap 4GiB python examples/retry_batch.py
    vramtrace run --simulate --cap 4GiB python examples/retry_batch.py

The failed batch is cut into parts whose gradients add up: the step has the same batch as before, in less memory. The size
of a part is what the limit leaves, divided by the bytes of a sample; without figures it is half of the part that failed.
With PyTorch and a GPU it trains a small network. Otherwise it makes the driver calls of such a training.
"""

import gc
import sys

import vramtrace
from adaptive_batch import SHARE, WIDTHS, peak
from train import Driver

MOST_RETRIES = 8


class Torch:
    def __init__(self, torch):
        self.torch, self.error = torch, torch.cuda.OutOfMemoryError
        layers = [torch.nn.Linear(a, b) for a, b in WIDTHS]
        self.model = torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1], torch.nn.ReLU(), layers[2]).cuda()
        self.optimizer = torch.optim.Adam(self.model.parameters())

    def part(self, samples, share):
        loss = self.model(self.torch.randn(samples, WIDTHS[0][0], device="cuda")).square().mean() * share
        loss.backward()

    def update(self):
        self.optimizer.step()
        self.optimizer.zero_grad()

    def forget(self):
        """What the failed part left. The exception must be gone before: it holds the frames, and so their tensors."""
        self.optimizer.zero_grad()
        gc.collect()
        self.torch.cuda.empty_cache()


class Calls:
    error = MemoryError

    def __init__(self):
        self.driver = Driver()
        for a, b in WIDTHS:
            self.driver.allocate(4 * 4 * a * b)
        self.held = []

    def part(self, samples, share):
        for _, width in WIDTHS:
            self.held.append(self.driver.allocate(4 * samples * width))
        self.forget()

    def update(self):
        pass

    def forget(self):
        while self.held:
            self.driver.free(self.held.pop())


def smaller(samples, of_sample):
    """The next size of a part. `of_sample`: bytes of one; 0: not known."""
    half = max(1, samples // 2)
    if not of_sample:
        return half
    device = vramtrace.usage().devices[0]
    left = (device.cap or device.total) * SHARE - device.used
    return max(1, min(half, int(left / of_sample)))


def step(training, batch, part, of_sample):
    """One step over a batch in parts of at most `part` samples. Returns the size that worked."""
    for _ in range(MOST_RETRIES):
        try:
            for begin in range(0, batch, part):
                samples = min(part, batch - begin)
                training.part(samples, samples / batch)
            training.update()
            return part
        except training.error:
            pass
        # Outside of `except`: here the exception and its frames are gone.
        training.forget()
        part = smaller(part, of_sample)
        print(f"out of memory: on with parts of {part}")
    sys.exit(f"retry_batch.py: no memory for {part} samples")


def main():
    if not vramtrace.usage():
        sys.exit("retry_batch.py: start it under `vramtrace run`")
    try:
        import torch
    except ImportError:
        torch = None
    with_torch = torch is not None and torch.cuda.is_available()
    training = Torch(torch) if with_torch else Calls()
    # Two small batches give the bytes of a sample; the first steps make what is made once.
    step(training, 4096, 4096, 0)
    step(training, 4096, 4096, 0)
    before, _ = peak()
    step(training, 8192, 8192, 0)
    of_sample = (peak()[0] - before) / 4096
    batch = part = 262144
    for _ in range(5):
        part = step(training, batch, part, of_sample)
    use, limit = peak()
    print(f"batch {batch} in parts of {part}: {100 * use / limit:.0f} % of the limit")


if __name__ == "__main__":
    main()
