"""A small model on the stand-in of PyTorch's cache: it runs until the cap ends it (see make.sh)."""
import ctypes

driver, cache = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("./libc10_cuda.so")
context = ctypes.c_void_p()
MIB = 1 << 20


def segment(bytes):
    at = ctypes.c_uint64()
    if driver.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(bytes)) != 0:
        return None
    cache.cache_reserve(0, ctypes.c_int64(bytes))
    return at.value


class Cache:
    """Segments of 20 MiB, filled from the front; a block that is freed leaves a hole."""

    def __init__(self):
        self.at = self.end = 0

    def block(self, bytes):
        if self.at + bytes > self.end:
            self.at = segment(20 * MIB)
            if self.at is None:
                cache.cache_refuse(0, ctypes.c_int64(bytes))
                raise MemoryError(bytes)
            self.end = self.at + 20 * MIB
        at, self.at = self.at, self.at + bytes
        cache.cache_block(0, ctypes.c_void_p(at), ctypes.c_int64(bytes))
        return at, bytes

    def free(self, block):
        cache.cache_block(0, ctypes.c_void_p(block[0]), ctypes.c_int64(-block[1]))


blocks = Cache()


class Linear:
    def __init__(self, width):
        self.width, self.weight = width, blocks.block(width * 4096)

    def forward(self, kept):
        output = blocks.block(self.width * 1024)
        mask = blocks.block(self.width * 512)
        kept.append(output)
        blocks.free(mask)


def forward(layers):
    kept = []
    for layer in layers:
        layer.forward(kept)
    return kept


def train(layers):
    history = []
    while True:
        kept = forward(layers)
        for block in kept[1:]:
            blocks.free(block)
        history.append(kept[0])


driver.cuInit(0)
driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
driver.cuCtxSetCurrent(context)
try:
    train([Linear(512 + 128 * n) for n in range(6)])
except MemoryError as error:
    raise SystemExit(f"out of memory: {error}")
