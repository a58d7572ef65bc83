# Ends while daemon threads are in the middle of allocating.
import ctypes, sys, threading, time

from taking import driver, use_context


def deep(depth):
    if depth:
        return deep(depth - 1)
    address = ctypes.c_uint64()
    if driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(512)) == 0:
        driver.cuMemFree_v2(address)


def work(number):
    use_context()
    while True:
        deep(number % 7)
        number += 1


for n in range(6):
    threading.Thread(target=work, args=(n,), daemon=True).start()
time.sleep(float(sys.argv[1]))
print("end")
