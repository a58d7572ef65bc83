"""The program in the picture of docs/top.md: allocates like a training loop, on the simulated driver.

train.py SECONDS MIB: each 0.2 s it allocates an activation of MIB MiB, and after eight it frees them all. Every
tenth step it also allocates MIB / 2 MiB and keeps it.
"""
import ctypes
import sys
import time

cuda = ctypes.CDLL("libcuda.so.1")


def load_weights(mib):
    blocks = [ctypes.c_uint64() for _ in range(8)]
    for block in blocks:
        cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(mib << 20))
    return blocks


def forward(mib):
    block = ctypes.c_uint64()
    refused = cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(mib << 20))
    return None if refused else block


def log_metrics(kept, mib):
    block = ctypes.c_uint64()
    cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(mib << 20))
    kept.append(block)


def main():
    seconds, mib = int(sys.argv[1]), int(sys.argv[2])
    context = ctypes.c_void_p()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    weights, kept, activations = load_weights(mib), [], []
    for step in range(seconds * 5):
        activations.append(forward(mib))
        if len(activations) == 8:
            while activations:
                block = activations.pop()
                if block:
                    cuda.cuMemFree_v2(block)
        if step % 10 == 0:
            log_metrics(kept, mib // 2)
        time.sleep(0.2)
    return weights


if __name__ == "__main__":
    main()
