"""Makes two images in the steps of ComfyUI: a text encoder, a model whose weights stay in pages, a decoder that needs
their memory. Memory is taken as PyTorch takes it with backend:cudaMallocAsync. `images.py plain` is the same without
the memory manager, so it has no pages either: all weights stay on the card."""

import ctypes
import os
import sys

from gpu import MIB, _check, _cuda

managed = sys.argv[1:] != ["plain"]
aimdo = ctypes.CDLL(os.path.join(os.path.dirname(os.path.abspath(__file__)), "aimdo.so"))


class Tensor:
    def __init__(self, size):
        self._pointer = ctypes.c_uint64()
        _check(_cuda.cuMemAllocAsync(ctypes.byref(self._pointer), ctypes.c_size_t(size), None))

    def __del__(self):
        if self._pointer.value:
            _cuda.cuMemFreeAsync(self._pointer, None)


def load_text_encoder():
    layers = []
    for _ in range(8):
        layers.append(Tensor(16 * MIB))
    return layers


def attention(x):
    return Tensor(24 * MIB)


def sample(steps=3, layers=10):
    latent = Tensor(4 * MIB)
    for _ in range(steps):
        for layer in range(layers):
            if managed and aimdo.vbar_fault(2 * layer, 2 * layer + 2) < 0:
                raise SystemExit("out of memory")
            latent = attention(latent)
    return latent


def decode(latent):
    if managed:
        aimdo.vbar_free_memory(10)
    return Tensor(320 * MIB)


if managed:
    if not aimdo.aimdo_setup_hooks() or aimdo.vbar_allocate(ctypes.c_size_t(640 * MIB)):
        raise SystemExit("aimdo: not on this machine")
encoder = load_text_encoder()
for prompt in range(2):
    image = decode(sample())
print("2 images,", aimdo.vbar_evictions(), "pages evicted")
del image, encoder
