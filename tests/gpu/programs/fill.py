"""fill.py HOW: allocates 64 MiB at a time until a request is refused, then holds.

HOW: torch | expandable | async | cupy | jax | vmm | pool | device | pitched | array | graph | managed.
FILL_STACK: a stack limit in bytes (cuCtxSetLimit), set after 2 GiB.
Stops at FILL_LIMIT MiB (default 16,384), so that it does not fill the card if the cap has no effect.
"""
import os
import sys

how = sys.argv[1]
limit = int(os.environ.get("FILL_LIMIT", "16384"))
stack = int(os.environ.get("FILL_STACK", "0"))
if how == "expandable":
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
if how == "async":
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "backend:cudaMallocAsync"
if how == "jax":  # JAX's default allocator takes its pool once, and never asks again
    os.environ["XLA_PYTHON_CLIENT_ALLOCATOR"] = "platform"
from hold import hold

MIB = 1 << 20
STEP = 64


def set_stack(got):
    """Calls cuCtxSetLimit once, in the thread's current context."""
    global stack
    if stack and got >= 2048:
        import ctypes

        answer = ctypes.CDLL("libcuda.so.1").cuCtxSetLimit(0, ctypes.c_size_t(stack))
        if answer != 0:
            sys.exit(f"fill.py: cuCtxSetLimit: {answer}")
        stack = 0


def fill(take, total):
    """Takes what `take` gives until it raises, and holds; `total`: the bytes of the card that the program sees."""
    got, verdict, keep = 0, "never", []
    try:
        while got < limit:
            keep.append(take())
            got += STEP
            set_stack(got)
    except Refused as error:
        verdict = str(error)
    except Exception as error:  # any other error is a finding: the check prints it; jax has no exception class
        out = type(error).__name__ == "OutOfMemoryError" or "RESOURCE_EXHAUSTED" in str(error)
        verdict = "OutOfMemoryError" if out else type(error).__name__ + ":" + str(error).replace(" ", "_")[:80]
    hold(got=got, verdict=verdict, total=total() // MIB)
    sys.exit(0)


class Refused(Exception):
    pass


if how in ("torch", "expandable", "async"):
    import torch

    fill(lambda: torch.empty(STEP * MIB, dtype=torch.uint8, device="cuda"), lambda: torch.cuda.mem_get_info()[1])
if how == "cupy":
    import cupy

    fill(lambda: cupy.empty(STEP * MIB, dtype=cupy.uint8), lambda: cupy.cuda.runtime.memGetInfo()[1])
if how == "jax":
    import jax
    import numpy

    source = numpy.zeros(STEP * MIB, dtype=numpy.uint8)
    fill(lambda: jax.device_put(source).block_until_ready(), lambda: 0)

from cuda.bindings import driver as cu


def ok(answer):
    if int(answer[0]) != 0:
        sys.exit(f"fill.py: {answer[0]}")
    return answer[1] if len(answer) > 1 else None


ok(cu.cuInit(0))
device = ok(cu.cuDeviceGet(0))
ok(cu.cuCtxSetCurrent(ok(cu.cuDevicePrimaryCtxRetain(device))))
stream = ok(cu.cuStreamCreate(0))
prop = cu.CUmemAllocationProp()
prop.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
prop.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
prop.location.id = 0


def graph_once():
    """Launches a graph that allocates 64 MiB and does not free it."""
    graph = ok(cu.cuGraphCreate(0))
    node = cu.CUDA_MEM_ALLOC_NODE_PARAMS()
    node.poolProps.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    node.poolProps.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    node.poolProps.location.id = 0
    node.bytesize = STEP * MIB
    answer = cu.cuGraphAddMemAllocNode(graph, None, 0, node)
    if int(answer[0]) != 0:
        return answer
    instance = ok(cu.cuGraphInstantiate(graph, 0))
    answer = cu.cuGraphLaunch(instance, stream)
    if int(answer[0]) == 0:
        answer = cu.cuStreamSynchronize(stream)
    return (answer[0], (graph, instance))


def take():
    if how == "vmm":
        return cu.cuMemCreate(STEP * MIB, prop, 0)
    if how == "pool":
        return cu.cuMemAllocAsync(STEP * MIB, stream)
    if how == "device":
        return cu.cuMemAlloc(STEP * MIB)
    if how == "pitched":
        return cu.cuMemAllocPitch(16384, STEP * MIB // 16384, 4)
    if how == "array":
        shape = cu.CUDA_ARRAY_DESCRIPTOR()
        shape.Width, shape.Height, shape.NumChannels = 8192, 2048, 1
        shape.Format = cu.CUarray_format.CU_AD_FORMAT_FLOAT
        return cu.cuArrayCreate(shape)
    if how == "graph":
        return graph_once()
    if how == "managed":
        answer = cu.cuMemAllocManaged(STEP * MIB, 1)
        if int(answer[0]) == 0:
            ok(cu.cuMemsetD8(answer[1], 1, STEP * MIB))
            ok(cu.cuCtxSynchronize())
        return answer
    sys.exit(f"fill.py: unknown way {how}")


def take_or_refuse():
    answer = take()
    if int(answer[0]) != 0:
        raise Refused(answer[0].name)
    return answer[1:]


def total():
    ok(cu.cuStreamSynchronize(stream))
    return int(cu.cuMemGetInfo()[2])


fill(take_or_refuse, total)
