/* A driver that only counts addresses up: a stand-in for libcuda.so.1 in programs that the
   simulated driver cannot serve (ThreadSanitizer keeps the address space where that one lies). */
#include "cuda_min.h"

CUresult cuInit(unsigned flags) { return flags ? CUDA_ERROR_INVALID_VALUE : 0; }
CUresult cuDriverGetVersion(int *version) { return *version = 13000, 0; }
CUresult cuDeviceGet(CUdevice *device, int ordinal) { return *device = ordinal, 0; }
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    return *context = (CUcontext)(0x1000 + (uintptr_t)device), 0;
}
static __thread CUcontext current;
CUresult cuCtxSetCurrent(CUcontext context) { return current = context, 0; }
CUresult cuCtxGetCurrent(CUcontext *context) { return *context = current, 0; }
CUresult cuCtxGetDevice(CUdevice *device) {
    if (!current) return CUDA_ERROR_INVALID_CONTEXT;
    return *device = 0, 0;
}
CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size) {
    static CUdeviceptr next = 0x700000000;
    if (size == 0) return CUDA_ERROR_INVALID_VALUE;
    *address = __atomic_fetch_add(&next, 0x200000, __ATOMIC_SEQ_CST);
    return 0;
}
CUresult cuMemFree_v2(CUdeviceptr address) { return address ? 0 : CUDA_ERROR_INVALID_VALUE; }
CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    return *bytes = 1ull << 40, device ? CUDA_ERROR_INVALID_VALUE : 0;
}
CUresult cuDeviceGetUuid(char uuid[16], CUdevice device) {
    for (int k = 0; k < 16; k++) uuid[k] = (char)(k + device);
    return 0;
}
