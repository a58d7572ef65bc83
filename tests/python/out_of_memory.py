# A training loop over stand-ins of PyTorch's libraries that runs out of memory.
# out_of_memory.py LIBC10_CUDA HOW: raises, catches (and goes on), nothing (but a refused driver call)
import ctypes, sys

import model  # a package beside: its lines are named first

driver = ctypes.CDLL("libcuda.so.1")
torch = ctypes.PyDLL(sys.argv[1])


def call(name, *arguments):
    result = getattr(driver, name)(*arguments)
    if result != 0:
        raise MemoryError("%s: %d" % (name, result))


def train(model):
    model.weights()
    for batch in (8, 16, 96):
        model.forward(batch)


device, context, segment = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
call("cuInit", 0)
call("cuDeviceGet", ctypes.byref(device), 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
call("cuCtxSetCurrent", context)
call("cuMemAlloc_v2", ctypes.byref(segment), ctypes.c_size_t(100 << 20))
torch.cache_reserve(0, ctypes.c_int64(100 << 20))
if sys.argv[2] == "nothing":
    call("cuMemAlloc_v2", ctypes.byref(segment), ctypes.c_size_t(1 << 40))
try:
    train(model.Model(torch, segment.value, driver))
except MemoryError as error:
    if sys.argv[2] == "raises":
        raise
    print("caught", error)
print("done")
