"""The program in the picture of docs/top.md: allocates like a training loop, on the simulated driver.

train.py SECONDS MIB: each 0.2 s it allocates an activation of MIB MiB, and after eight it frees them all. Every
tenth step it also allocates MIB / 2 MiB and keeps it.
"""
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs/programs"))
from gpu import MIB, OutOfMemoryError, Tensor


def load_weights(mib):
    return [Tensor(mib * MIB) for _ in range(8)]


def forward(mib):
    try:
        return Tensor(mib * MIB)
    except OutOfMemoryError:
        return None


def log_metrics(kept, mib):
    kept.append(Tensor(mib * MIB))


def main():
    seconds, mib = int(sys.argv[1]), int(sys.argv[2])
    weights, kept, activations = load_weights(mib), [], []
    for step in range(seconds * 5):
        activations.append(forward(mib))
        if len(activations) == 8:
            activations.clear()
        if step % 10 == 0:
            log_metrics(kept, mib // 2)
        time.sleep(0.2)
    return weights


if __name__ == "__main__":
    main()
