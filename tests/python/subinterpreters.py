# Allocates in the main interpreter, in a sub-interpreter on the same thread, and in the main one again;
# prints for each what Python says of its stack, as frames_situations.py does. Python 3.12 and 3.13.
import sys

if sys.version_info >= (3, 13):
    import _interpreters as interpreters
else:
    import _xxsubinterpreters as interpreters

SETUP = '''
import ctypes, json, sys
released, held = ctypes.CDLL("libcuda.so.1"), ctypes.PyDLL("libcuda.so.1")

def take(library, size):
    address = ctypes.c_uint64()
    frames, frame = [], sys._getframe()
    result = library.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)); line = sys._getframe().f_lineno  # noqa
    assert result == 0, result
    while frame is not None:
        code = frame.f_code
        at = line if not frames else frame.f_lineno
        frames.append([getattr(code, "co_qualname", code.co_name), code.co_filename, at])
        frame = frame.f_back
    print(json.dumps({"size": size, "frames": frames}), flush=True)

def outer(library, size):
    take(library, size)
'''
exec(compile(SETUP, "main.py", "exec"))
context, device = ctypes.c_void_p(), ctypes.c_int()
assert released.cuInit(0) == 0
assert released.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert released.cuCtxSetCurrent(context) == 0


def create():
    if sys.version_info < (3, 13):
        return interpreters.create(isolated=False)
    return interpreters.create("legacy")


def around(script):
    other = create()
    interpreters.run_string(other, script)
    outer(released, 512 * 3)
    outer(held, 512 * 4)
    interpreters.run_string(other, "outer(released, 512 * 5)\nouter(held, 512 * 6)")
    interpreters.destroy(other)


outer(released, 512)
SUB = "exec(compile(%r, 'sub.py', 'exec'))\nouter(released, 512 * 2)\nouter(held, 512 * 7)" % SETUP
around(SUB)
outer(released, 512 * 8)
outer(held, 512 * 9)
