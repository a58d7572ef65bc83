# Uses the Python package under the recorder and prints what it says. Python 3.8 on.
import asyncio
import ctypes

import vramtrace

driver = ctypes.CDLL("libcuda.so.1")
device, context = ctypes.c_int(), ctypes.c_void_p()


def must(result):
    if result != 0:
        raise MemoryError(result)


def take(mib):
    address = ctypes.c_uint64()
    must(driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(mib << 20)))
    return address


print(vramtrace.is_active(), vramtrace.usage().devices, vramtrace.trace())
with vramtrace.limit("1GiB"):
    must(driver.cuInit(0))
    must(driver.cuDeviceGet(ctypes.byref(device), 0))
    must(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    must(driver.cuCtxSetCurrent(context))
    try:
        take(1024)
    except MemoryError as error:
        print("refused", error, vramtrace.usage().devices[0].cap >> 20)
print(vramtrace.usage().devices[0].cap)


@vramtrace.phase("later")
async def later():
    await asyncio.sleep(0)
    return take(8)


with vramtrace.Peak() as peak, vramtrace.phase("forward", batch=6):
    kept = take(32)
    must(driver.cuMemFree_v2(take(64)))
other = asyncio.run(later())
vramtrace.mark("half")
print(peak.bytes >> 20, peak.grown >> 20)
for site in vramtrace.usage().devices[0].sites:
    print(site.bytes >> 20, site.allocations, site.place)
vramtrace.snapshot("snapshot.vtrace")
