# Takes memory beside a library that writes over the beginning of the driver's functions.
# patched.py LIBRARY none|hooks|broken|killed|capped
import ctypes, mmap, os, signal, sys, time

library, mode = ctypes.CDLL(sys.argv[1]), sys.argv[2]
cuda = ctypes.CDLL("libcuda.so.1")
MIB = 1 << 20


def check(result):
    if result != 0:
        raise SystemExit("driver: %d" % result)


def begin():
    context = ctypes.c_void_p()
    check(cuda.cuInit(0))
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    check(cuda.cuCtxSetCurrent(context))


def alloc(size):
    pointer = ctypes.c_uint64()
    check(cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)))
    return pointer.value


def alloc_async(size):
    pointer = ctypes.c_uint64()
    check(cuda.cuMemAllocAsync(ctypes.byref(pointer), ctypes.c_size_t(size), None))
    return pointer.value


def weights():
    return [alloc(5 * MIB + 1000 * n) for n in range(4)]


def activations():
    return [alloc_async(3 * MIB + 1000 * n) for n in range(6)]


def write(name, code):
    function = ctypes.cast(getattr(cuda, name), ctypes.c_void_p).value
    page = ctypes.c_void_p(function & -4096)
    libc = ctypes.CDLL(None)
    if libc.mprotect(page, ctypes.c_size_t(8192), mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC):
        raise SystemExit("mprotect")
    ctypes.memmove(function, code, len(code))


begin()
if mode not in ("none", "broken"):
    assert library.aimdo_setup_hooks() == 1, "a function begins with instructions that the library does not know"
if mode == "broken":
    # Functions that are not called: jumps to where nothing is, by the page's address and through it; a breakpoint.
    write("cuMemAllocManaged", b"\xff\x25\0\0\0\0" + (16).to_bytes(8, "little"))
    write("cuMemAllocPitch_v2", b"\xff\x25\xff\xff\xff\x7f")
    write("cuMemHostAlloc", b"\xcc")
kept, more = weights(), activations()
for pointer in kept[2:]:
    check(cuda.cuMemFree_v2(ctypes.c_uint64(pointer)))
for pointer in more[4:]:
    check(cuda.cuMemFreeAsync(ctypes.c_uint64(pointer), None))
if mode == "capped":
    alloc(700 * MIB)
if mode == "killed":
    time.sleep(0.3)
    weights()
    os.kill(os.getpid(), signal.SIGKILL)
print(len(kept), len(more))
