# Makes blocks through stand-ins of PyTorch's libraries, each with a size of its own, and prints for
# each the names of the Python functions that run, innermost first: {"size", "names"}.
# torch_blocks.py LIBC10_CUDA
import ctypes, json, sys, threading

from taking import driver, must, use_context

segment = ctypes.c_uint64()
use_context()
must(driver.cuMemAlloc_v2(ctypes.byref(segment), ctypes.c_size_t(20 << 20)))

# As PyTorch's functions are called: with and without the interpreter's lock.
released, held = ctypes.CDLL(sys.argv[1]), ctypes.PyDLL(sys.argv[1])
count = 0


def make(library, function="cache_block"):
    global count
    count += 1
    frame, names = sys._getframe(), []
    while frame is not None:
        names.append(getattr(frame.f_code, "co_qualname", frame.f_code.co_name))
        frame = frame.f_back
    at = ctypes.c_void_p(segment.value + 4096 * count)
    getattr(library, function)(0, at, ctypes.c_int64(512 * count))
    print(json.dumps({"size": 512 * count, "names": names if function == "cache_block" else []}))


class Model:
    def forward(self, library):
        make(library)


def deep(depth, library):
    deep(depth - 1, library) if depth else Model().forward(library)


for library in (released, held):
    deep(20, library)
    for item in (lambda: make(library), lambda: deep(2, library)):
        item()
    thread = threading.Thread(target=deep, args=(3, library))
    thread.start()
    thread.join()
# A thread that the library made. With the lock held: nobody here may wait for it.
make(held, "cache_block_in_backward")
make(released, "cache_block_in_backward")
