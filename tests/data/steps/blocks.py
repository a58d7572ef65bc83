"""PyTorch on the CPU, recorded as if it ran on a GPU: import it before a program.

The memory of tensors is reported as blocks of the simulated GPU, backward passes run in a thread of their own, and
optimizers work on lists of tensors, as on a GPU.
"""
import ctypes
import pathlib
import sys
import threading

import torch

HERE = pathlib.Path(__file__).parent
SEGMENT = 60 << 30

driver = ctypes.CDLL("libcuda.so.1")
device, context, base = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
for result in (
    driver.cuInit(0),
    driver.cuDeviceGet(ctypes.byref(device), 0),
    driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device),
    driver.cuCtxSetCurrent(context),
    driver.cuMemAlloc_v2(ctypes.byref(base), ctypes.c_size_t(SEGMENT)),
):
    assert result == 0, result

library = ctypes.PyDLL(str(HERE / "libblocks.so"))
library.blocks_install.argtypes = [ctypes.c_char_p, ctypes.c_uint64, ctypes.c_int64]
assert library.blocks_install(str(HERE / "libc10_cuda-4711.so").encode(), base.value, SEGMENT) == 0
library.blocks_call.argtypes = [ctypes.py_object] * 3
library.blocks_call.restype = ctypes.py_object
torch.set_num_threads(1)

program = threading.get_ident()
engine = torch.autograd.Variable._execution_engine


class Engine:
    def run_backward(self, *arguments, **names):
        if threading.get_ident() != program:
            return engine.run_backward(*arguments, **names)
        return library.blocks_call(engine.run_backward, arguments, names)

    def __getattr__(self, name):
        return getattr(engine, name)


torch.autograd.Variable._execution_engine = Engine()
for name, module in list(sys.modules.items()):
    if name.startswith("torch.optim") and hasattr(module, "_default_to_fused_or_foreach"):
        module._default_to_fused_or_foreach = lambda params, differentiable, use_fused=False: (False, not differentiable)
