# Keeps what the driver gives until it is refused. The interpreter's end frees all of it.
import ctypes

driver = ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    result = getattr(driver, name)(*arguments)
    if result != 0:
        raise MemoryError("%s: %d" % (name, result))


class Array:
    def __init__(self, mib):
        self.address = ctypes.c_uint64()
        call("cuMemAlloc_v2", ctypes.byref(self.address), ctypes.c_size_t(mib << 20))

    def __del__(self):
        if self.address:
            driver.cuMemFree_v2(self.address)


device, context = ctypes.c_int(), ctypes.c_void_p()
call("cuInit", 0)
call("cuDeviceGet", ctypes.byref(device), 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
call("cuCtxSetCurrent", context)
kept = []
while True:
    kept.append(Array(256))
