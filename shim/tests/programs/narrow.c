/* A driver of the first generation: its calls write 32-bit outputs, and nothing beside them. A
   stand-in for libcuda.so.1. After `broken` is set every call fails with 700, as after a fault on
   the device. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

int broken;
#define OR_FAIL if (broken) return 700
static unsigned next = 0x10000000;

int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int *version) { return *version = 13000, 0; }
int cuDeviceGet(int *device, int ordinal) { return *device = ordinal, ordinal ? 101 : 0; }
int cuDeviceGetUuid(char *uuid, int device) { return memset(uuid, 7, 16), 0; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { return *bytes = 3ull << 30, 0; }
int cuDeviceTotalMem(unsigned *bytes, int device) { return *bytes = 3u << 30, 0; }
int cuCtxGetCurrent(void **context) { return *context = (void *)0x1000, 0; }
int cuCtxGetDevice(int *device) { return *device = 0, 0; }
int cuMemGetInfo_v2(size_t *free, size_t *total) { return *free = 1ull << 30, *total = 3ull << 30, 0; }
int cuMemGetInfo(unsigned *free, unsigned *total) {
    OR_FAIL;
    if (free) *free = 1u << 30;
    if (total) *total = 3u << 30;
    return 0;
}
int cuMemAlloc(unsigned *address, unsigned size) {
    OR_FAIL;
    if (!address || !size) return 1;
    *address = next += 0x1000000;
    return 0;
}
int cuMemAllocPitch(unsigned *address, unsigned *pitch, unsigned width, unsigned height, unsigned element) {
    OR_FAIL;
    if (!address || !pitch) return 1;
    *pitch = (width + 511) & ~511u;
    *address = next += 0x1000000;
    return 0;
}
int cuMemFree(unsigned address) { OR_FAIL; return address % 0x1000000 ? 1 : 0; }
int cuMemFree_v2(uint64_t address) { OR_FAIL; return 0; }
int cuMemAlloc_v2(uint64_t *address, size_t size) { OR_FAIL; return *address = next += 0x1000000, 0; }
int cuMemAllocHost(void **address, unsigned size) { OR_FAIL; return *address = &next, 0; }
int cuMemFreeHost(void *address) { OR_FAIL; return 0; }
int cuArrayCreate(void **array, const void *descriptor) { OR_FAIL; return descriptor ? (*array = &next, 0) : 1; }
int cuArray3DCreate(void **array, const void *descriptor) { OR_FAIL; return descriptor ? (*array = &broken, 0) : 1; }
int cuArrayDestroy(void *array) { OR_FAIL; return 0; }
int cuMemFreeAsync(uint64_t address, void *stream) { OR_FAIL; return 0; }
int cuMemAllocAsync(uint64_t *address, size_t size, void *stream) { OR_FAIL; return *address = next += 0x1000000, 0; }
int cuStreamSynchronize(void *stream) { OR_FAIL; return 0; }
int cuCtxSynchronize(void) { OR_FAIL; return 0; }
