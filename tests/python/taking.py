# What the programs here share: the driver and its context, and memory that is allocated with what traceback says of the
# stack. Python 3.8 to 3.15.
import ctypes, json, sys, traceback

driver = ctypes.CDLL("libcuda.so.1")


def must(result):
    if result != 0:
        raise SystemExit("driver: %d" % result)


device = ctypes.c_int()
context = ctypes.c_void_p()
must(driver.cuInit(0))
must(driver.cuDeviceGet(ctypes.byref(device), 0))
must(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))


def use_context():
    must(driver.cuCtxSetCurrent(context))


def take(size, lines):
    address = ctypes.c_uint64()
    frames, frame = [], sys._getframe()
    stack = traceback.extract_stack(); result = driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size))  # noqa
    must(result)
    while frame is not None:
        frames.append(getattr(frame.f_code, "co_qualname", frame.f_code.co_name))
        frame = frame.f_back
    stack = [[name, entry.filename, entry.lineno] for name, entry in zip(frames, reversed(stack))]
    lines.append(json.dumps({"size": size, "depth": len(stack), "frames": stack}))
