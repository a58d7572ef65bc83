# Allocates before the interpreter begins to finalize, and in a destructor while it does.
import ctypes

from taking import driver, use_context

use_context()


def take(size, allocate=driver.cuMemAlloc_v2, bytes=ctypes.c_size_t, at=ctypes.c_uint64(), ref=ctypes.byref):
    assert allocate(ref(at), bytes(size)) == 0


class Last:
    def __del__(self, take=take):
        take(1024)


last = Last()
take(512)
