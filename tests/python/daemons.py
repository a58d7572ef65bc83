# Ends while daemon threads are in the middle of allocating.
import ctypes, sys, threading, time

library = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
library.cuInit(0)
library.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)


def deep(depth):
    if depth:
        return deep(depth - 1)
    address = ctypes.c_uint64()
    if library.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(512)) == 0:
        library.cuMemFree_v2(address)


def work(number):
    library.cuCtxSetCurrent(context)
    while True:
        deep(number % 7)
        number += 1


for n in range(6):
    threading.Thread(target=work, args=(n,), daemon=True).start()
time.sleep(float(sys.argv[1]))
print("end")
