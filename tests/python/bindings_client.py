"""Takes and frees memory in every common way through cuda.bindings, and checks what comes back."""

import ctypes
import sys

from cuda.bindings import driver as cu

MIB = 1 << 20


def ok(result):
    code, *values = result
    assert code == cu.CUresult.CUDA_SUCCESS, code
    return values[0] if len(values) == 1 else values


def used():
    free, total = ok(cu.cuMemGetInfo())
    return total - free


def device_prop():
    prop = cu.CUmemAllocationProp()
    prop.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    prop.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    prop.location.id = 0
    return prop


def plain():
    before = used()
    pointer = ok(cu.cuMemAlloc(3 * MIB))
    assert used() - before == 4 * MIB
    sent = bytes(range(256)) * 16
    back = bytearray(len(sent))
    ok(cu.cuMemcpyHtoD(pointer, sent, len(sent)))
    buffer = (ctypes.c_char * len(back)).from_buffer(back)
    ok(cu.cuMemcpyDtoH(ctypes.addressof(buffer), pointer, len(back)))
    assert bytes(back) == sent
    ok(cu.cuMemsetD32(pointer, 0x01020304, 16))
    ok(cu.cuMemcpyDtoH(ctypes.addressof(buffer), pointer, 64))
    assert bytes(back[:64]) == b"\x04\x03\x02\x01" * 16
    ok(cu.cuMemFree(pointer))
    assert cu.cuMemFree(pointer)[0] == cu.CUresult.CUDA_ERROR_INVALID_VALUE
    assert used() == before
    pointer, pitch = ok(cu.cuMemAllocPitch(1000, 10, 4))
    assert pitch == 1024
    ok(cu.cuMemFree(pointer))
    _, total = ok(cu.cuMemGetInfo())
    assert cu.cuMemAlloc(total)[0] == cu.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    assert used() == before


def ordered():
    stream = ok(cu.cuStreamCreate(1))  # takes memory of its own
    before = used()
    pointer = ok(cu.cuMemAllocAsync(100 * MIB, stream))
    pool = ok(cu.cuDeviceGetDefaultMemPool(0))
    attribute = cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
    reserved = ok(cu.cuMemPoolGetAttribute(pool, attribute))
    assert int(reserved) == 128 * MIB, reserved
    ok(cu.cuMemFreeAsync(pointer, stream))
    ok(cu.cuStreamSynchronize(stream))
    assert used() == before
    ok(cu.cuStreamDestroy(stream))


def virtual():
    before = used()
    prop = device_prop()
    flag = cu.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    step = ok(cu.cuMemGetAllocationGranularity(prop, flag))
    assert step == 2 * MIB
    handle = ok(cu.cuMemCreate(step, prop, 0))
    address = ok(cu.cuMemAddressReserve(2 * step, 0, 0, 0))
    ok(cu.cuMemMap(address, step, 0, handle, 0))
    ok(cu.cuMemMap(int(address) + step, step, 0, handle, 0))
    access = cu.CUmemAccessDesc()
    access.location = prop.location
    access.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    ok(cu.cuMemSetAccess(address, 2 * step, [access], 1))
    # Both mappings are the same memory.
    ok(cu.cuMemsetD8(address, 7, 64))
    back = (ctypes.c_char * 64)()
    ok(cu.cuMemcpyDtoH(ctypes.addressof(back), int(address) + step, 64))
    assert back.raw == b"\x07" * 64
    ok(cu.cuMemRelease(handle))
    assert used() - before == step
    ok(cu.cuMemUnmap(address, 2 * step))
    ok(cu.cuMemAddressFree(address, 2 * step))
    assert used() == before


def others():
    before = used()
    desc = cu.CUDA_ARRAY_DESCRIPTOR()
    desc.Width, desc.Height, desc.NumChannels = 1024, 1024, 4
    desc.Format = cu.CUarray_format.CU_AD_FORMAT_FLOAT
    array = ok(cu.cuArrayCreate(desc))
    assert used() - before == 16 * MIB
    ok(cu.cuArrayDestroy(array))
    managed = ok(cu.cuMemAllocManaged(8 * MIB, 1))
    assert used() == before
    ok(cu.cuMemsetD8(managed, 1, 8 * MIB))
    assert used() - before == 8 * MIB
    ok(cu.cuMemFree(managed))
    host = ok(cu.cuMemAllocHost(MIB))
    ok(cu.cuMemFreeHost(host))
    assert used() == before


def graph():
    stream = ok(cu.cuStreamCreate(1))  # takes memory of its own
    before = used()
    ok(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
    pointer = ok(cu.cuMemAllocAsync(40 * MIB, stream))
    ok(cu.cuMemsetD8Async(pointer, 1, 40 * MIB, stream))
    ok(cu.cuMemFreeAsync(pointer, stream))
    captured = ok(cu.cuStreamEndCapture(stream))
    runnable = ok(cu.cuGraphInstantiate(captured, 0))
    assert used() == before
    ok(cu.cuGraphLaunch(runnable, stream))
    ok(cu.cuStreamSynchronize(stream))
    assert used() - before == 64 * MIB
    ok(cu.cuGraphExecDestroy(runnable))
    ok(cu.cuGraphDestroy(captured))
    ok(cu.cuDeviceGraphMemTrim(0))
    assert used() == before
    ok(cu.cuStreamDestroy(stream))


def main():
    ok(cu.cuInit(0))
    assert ok(cu.cuDriverGetVersion()) >= 13000
    device = ok(cu.cuDeviceGet(0))
    context = ok(cu.cuDevicePrimaryCtxRetain(device))
    ok(cu.cuCtxSetCurrent(context))
    for part in (plain, ordered, virtual, others, graph):
        part()
    ok(cu.cuDevicePrimaryCtxRelease(device))
    print("bindings client: all as expected")


if __name__ == "__main__":
    sys.exit(main())
