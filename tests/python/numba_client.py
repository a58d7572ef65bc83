"""Arrays and a kernel through numba-cuda. Kernels do nothing on the simulated driver, so only
what was copied is checked, unless a real device runs it (argument: real)."""

import sys

import numpy
from numba import cuda


@cuda.jit
def double(values):
    at = cuda.grid(1)
    if at < values.size:
        values[at] *= 2


def main():
    sent = numpy.arange(100_000, dtype=numpy.float32)
    there = cuda.to_device(sent)
    double[(sent.size + 255) // 256, 256](there)
    cuda.synchronize()
    back = there.copy_to_host()
    numpy.testing.assert_array_equal(back, sent * 2 if "real" in sys.argv else sent)

    free, total = cuda.current_context().get_memory_info()
    assert 0 < free < total
    stream = cuda.stream()
    pinned = cuda.pinned_array(1000, dtype=numpy.int32)
    pinned[:] = 5
    copied = cuda.to_device(pinned, stream=stream)
    stream.synchronize()
    assert (copied.copy_to_host() == 5).all()
    managed = cuda.managed_array(1000, dtype=numpy.int32)
    managed[:] = 3
    empty = cuda.device_array((1000, 1000), dtype=numpy.float64)
    assert empty.size == 1_000_000
    print("numba client: all as expected")


if __name__ == "__main__":
    sys.exit(main())
