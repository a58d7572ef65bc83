"""Takes GPU memory through the driver's API, as a framework does: for the programs of these pages,
which run without a GPU and without PyTorch (`vramtrace run --simulate`)."""

import ctypes

MIB = 1 << 20

_cuda = ctypes.CDLL("libcuda.so.1")


class OutOfMemoryError(MemoryError):
    pass


def _check(result):
    if result == 2:
        raise OutOfMemoryError("CUDA out of memory")
    if result:
        raise RuntimeError("CUDA error %d" % result)


def _begin():
    context = ctypes.c_void_p()
    _check(_cuda.cuInit(0))
    _check(_cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    _check(_cuda.cuCtxSetCurrent(context))


class Tensor:
    """`size` bytes of the device, for as long as it lives."""

    def __init__(self, size):
        self.size = size
        self._pointer = ctypes.c_uint64()
        _check(_cuda.cuMemAlloc_v2(ctypes.byref(self._pointer), ctypes.c_size_t(size)))

    def __del__(self):
        if self._pointer.value:
            _cuda.cuMemFree_v2(self._pointer)


_begin()
