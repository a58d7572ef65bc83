"""obey.py: executes the commands on stdin, one per line, and prints the result of each. Needs no package.

take MIB   cuMemAlloc; prints its CUresult
fill MIB   allocates MIB at a time until refused; prints the number of allocations
hammer     allocates and frees 2 MiB without end, on a thread
turns      prints the times at which the result of hammer changed, as RESULT@NS (CLOCK_MONOTONIC), and clears them
"""
import ctypes
import sys
import threading
import time

MIB = 1 << 20
cu = ctypes.CDLL("libcuda.so.1")
turns = []


def must(result):
    if result != 0:
        sys.exit(f"obey.py: {result}")


def take(mib):
    address = ctypes.c_uint64()
    result = cu.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(mib * MIB))
    return result


def fill(mib):
    got = 0
    while got < 100_000 and take(mib) == 0:
        got += 1
    return got


def hammer():
    must(cu.cuCtxSetCurrent(context))
    address, size, before = ctypes.c_uint64(), ctypes.c_size_t(2 * MIB), None
    while True:
        result = cu.cuMemAlloc_v2(ctypes.byref(address), size)
        if result == 0:
            cu.cuMemFree_v2(address)
        if result != before:
            turns.append(f"{result}@{time.monotonic_ns()}")
            before = result


def taken_turns():
    global turns
    taken, turns = turns, []
    return " ".join(taken)


must(cu.cuInit(0))
context = ctypes.c_void_p()
must(cu.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
must(cu.cuCtxSetCurrent(context))
sys.setswitchinterval(0.0002)
print("ready", flush=True)
for line in sys.stdin:
    order, _, number = line.strip().partition(" ")
    if order == "hammer":
        threading.Thread(target=hammer, daemon=True).start()
        answer = "on"
    elif order == "turns":
        answer = taken_turns()
    else:
        answer = {"take": take, "fill": fill}[order](int(number))
    print(answer, flush=True)
