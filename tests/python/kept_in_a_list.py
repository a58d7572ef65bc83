# Keeps what the driver gives until it is refused. The interpreter's end frees all of it. With `deep`, each allocation
# of the same line and caller has another stack.
import ctypes
import sys

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


def load(mib):
    kept.append(Array(mib))


def below(frames):
    if frames:
        below(frames - 1)
    else:
        load(32)


if sys.argv[2:] == ["deep"]:
    frames = 0
    while True:
        below(frames)
        frames += 1
while True:
    kept.append(Array(256))
