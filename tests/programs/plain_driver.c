/* A driver that takes no lock and gives addresses only: a stand-in for libcuda.so.1 in programs that the
   simulated driver cannot serve (ThreadSanitizer keeps the address space where that one lies; a thread that
   is stopped inside it keeps its locks). plain_driver_live and plain_driver_peak: bytes that it has given. */
#include "cuda_min.h"

#define FIRST 0x700000000ull
/* Larger than any allocation of those programs. */
#define STEP 0x1000000ull
/* None comes twice: those programs make at most 320,100 allocations. */
#define ADDRESSES (1u << 19)

static size_t sizes[ADDRESSES];
static unsigned long long live, peak;

unsigned long long plain_driver_live(void) { return __atomic_load_n(&live, __ATOMIC_SEQ_CST); }
unsigned long long plain_driver_peak(void) { return __atomic_load_n(&peak, __ATOMIC_SEQ_CST); }

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
    static unsigned long long count;
    if (size == 0) return CUDA_ERROR_INVALID_VALUE;
    unsigned long long index = __atomic_fetch_add(&count, 1, __ATOMIC_SEQ_CST) % ADDRESSES;
    __atomic_store_n(&sizes[index], size, __ATOMIC_SEQ_CST);
    unsigned long long now = __atomic_add_fetch(&live, size, __ATOMIC_SEQ_CST);
    unsigned long long most = __atomic_load_n(&peak, __ATOMIC_SEQ_CST);
    while (now > most &&
           !__atomic_compare_exchange_n(&peak, &most, now, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
    }
    *address = FIRST + index * STEP;
    return 0;
}
CUresult cuMemFree_v2(CUdeviceptr address) {
    unsigned long long index = (address - FIRST) / STEP;
    if (address < FIRST || index >= ADDRESSES) return CUDA_ERROR_INVALID_VALUE;
    size_t size = __atomic_exchange_n(&sizes[index], 0, __ATOMIC_SEQ_CST);
    __atomic_sub_fetch(&live, size, __ATOMIC_SEQ_CST);
    return size ? 0 : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    return *bytes = 1ull << 40, device ? CUDA_ERROR_INVALID_VALUE : 0;
}
CUresult cuDeviceGetUuid(char uuid[16], CUdevice device) {
    for (int k = 0; k < 16; k++) uuid[k] = (char)(k + device);
    return 0;
}
