# Allocates before the interpreter begins to finalize, and in a destructor while it does.
import ctypes

library = ctypes.CDLL("libcuda.so.1")
context, device = ctypes.c_void_p(), ctypes.c_int()
assert library.cuInit(0) == 0
assert library.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert library.cuCtxSetCurrent(context) == 0


def take(size, allocate=library.cuMemAlloc_v2, bytes=ctypes.c_size_t, at=ctypes.c_uint64(), ref=ctypes.byref):
    assert allocate(ref(at), bytes(size)) == 0


class Last:
    def __del__(self, take=take):
        take(1024)


last = Last()
take(512)
