import numpy

if not hasattr(numpy, "row_stack"):  # removed from numpy 2.5; older numba still looks for it
    numpy.row_stack = numpy.vstack
from numba import cuda
from hold import hold, result


@cuda.jit
def add_one(a):
    i = cuda.grid(1)
    if i < a.size:
        a[i] += 1


a = cuda.to_device(numpy.arange(1 << 20, dtype=numpy.float32))
add_one[(1 << 20) // 256, 256](a)
cuda.synchronize()
result(total=float(a.copy_to_host()[:1000].sum()))
hold()
