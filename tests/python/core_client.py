"""Devices, streams, buffers, a pool, events, a program and a graph through cuda.core."""

import ctypes
import sys

from cuda.core import Device, LaunchConfig, launch
from cuda.core import ObjectCode

MIB = 1 << 20
PTX = b"""
.version 8.0
.target sm_90
.address_size 64
.visible .entry nothing(.param .u64 p) { ret; }
"""


def main():
    device = Device(0)
    device.set_current()
    print(device.name, device.uuid)
    stream = device.create_stream()

    buffer = device.allocate(4 * MIB, stream=stream)
    assert buffer.size == 4 * MIB
    other = device.allocate(4 * MIB, stream=stream)
    buffer.fill(7, stream=stream)
    buffer.copy_to(other, stream=stream)
    stream.sync()
    back = (ctypes.c_ubyte * 16)()
    from cuda.bindings import driver

    code, = driver.cuMemcpyDtoH(ctypes.addressof(back), int(other.handle), 16)
    assert code == driver.CUresult.CUDA_SUCCESS and bytes(back) == b"\x07" * 16

    kernel = ObjectCode.from_ptx(PTX).get_kernel("nothing")
    launch(stream, LaunchConfig(grid=2, block=32), kernel, buffer)

    event = stream.record()
    event.sync()
    buffer.close(stream)
    other.close(stream)
    stream.sync()
    stream.close()
    print("core client: all as expected")


if __name__ == "__main__":
    sys.exit(main())
