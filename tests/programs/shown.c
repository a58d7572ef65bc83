/* shown.c HOW: what each function that reports device memory (CUDA, NVML) returns to the program.
   Prints one line of MiB figures for each moment. */
#include "driver.h"

typedef struct {
    unsigned long long total, free, used;
} NvmlMemory;

typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} NvmlMemory2;

static void *device;

static void open_nvml(void) {
    MUST(NVML(nvmlInit_v2, (void))());
    MUST(NVML(nvmlDeviceGetHandleByIndex_v2, (unsigned, void **))(0, &device));
}

static void show_nvml(const char *when) {
    NvmlMemory one;
    NvmlMemory2 two = {.version = 0x02000028};
    MUST(NVML(nvmlDeviceGetMemoryInfo, (void *, NvmlMemory *))(device, &one));
    MUST(NVML(nvmlDeviceGetMemoryInfo_v2, (void *, NvmlMemory2 *))(device, &two));
    printf("%s nvml1 total %llu free %llu used %llu\n", when, one.total / MIB, one.free / MIB, one.used / MIB);
    printf("%s nvml2 total %llu free %llu used %llu reserved %llu\n", when, two.total / MIB, two.free / MIB, two.used / MIB, two.reserved / MIB);
    printf("%s sums %d %d\n", when, one.total == one.free + one.used, two.total == two.free + two.used + two.reserved);
}

static void show_cuda(const char *when) {
    size_t free = 0, total = 0, only_free = 0, only_total = 0, size = 0;
    unsigned free32 = 0, total32 = 0, size32 = 0;
    MUST(CALL(cuMemGetInfo_v2, (size_t *, size_t *))(&free, &total));
    MUST(CALL(cuDeviceTotalMem_v2, (size_t *, CUdevice))(&size, 0));
    int nulls[] = {
        CALL(cuMemGetInfo_v2, (size_t *, size_t *))(&only_free, NULL),
        CALL(cuMemGetInfo_v2, (size_t *, size_t *))(NULL, &only_total),
        CALL(cuMemGetInfo_v2, (size_t *, size_t *))(NULL, NULL),
    };
    int old = CALL(cuMemGetInfo, (unsigned *, unsigned *))(&free32, &total32);
    int old_size = CALL(cuDeviceTotalMem, (unsigned *, CUdevice))(&size32, 0);
    printf("%s cuda total %llu free %llu size %llu\n", when, total / MIB, free / MIB, size / MIB);
    printf("%s null %d %d %d same %d %d\n", when, nulls[0], nulls[1], nulls[2], only_free == free, only_total == total);
    printf("%s old %d total %u free %u; %d size %u\n", when, old, total32, free32, old_size, size32);
}

static void show(const char *when) {
    show_cuda(when);
    show_nvml(when);
}

/* Everything at rest, with 100 MiB, and freed again. */
static void steps(void) {
    CUdeviceptr p;
    begin(0);
    open_nvml();
    show("start");
    MUST(CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&p, 100 * MIB));
    show("taken");
    MUST(CALL(cuMemFree_v2, (CUdeviceptr))(p));
    show("freed");
    CUcontext own;
    MUST(CALL(cuCtxCreate_v2, (CUcontext *, unsigned, CUdevice))(&own, 0, 0));
    show("second context");
    MUST(CALL(cuCtxDestroy_v2, (CUcontext))(own));
    CUcontext primary;
    MUST(CALL(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))(&primary, 0));
    MUST(CALL(cuCtxSetCurrent, (CUcontext))(primary));
    show("destroyed");
}

/* A monitor: NVML and no context. */
static void monitor(void) {
    open_nvml();
    show_nvml("alone");
    MUST(CALL(cuInit, (unsigned))(0));
    show_nvml("initialised");
}

/* A program that asks for a device's size and pool, and has no context. */
static void look(void) {
    size_t size = 0;
    CUmemoryPool pool = NULL;
    MUST(CALL(cuInit, (unsigned))(0));
    MUST(CALL(cuDeviceGetDefaultMemPool, (CUmemoryPool *, CUdevice))(&pool, 0));
    MUST(CALL(cuDeviceTotalMem_v2, (size_t *, CUdevice))(&size, 0));
    printf("size %zu\n", size >> 20);
}

/* The stacks of all threads are taken at once. */
static void stack(void) {
    size_t now = 0;
    begin(0);
    show_cuda("before");
    SHOW(CALL(cuCtxSetLimit, (int, size_t))(0, 16 << 10));
    SHOW(CALL(cuCtxGetLimit, (size_t *, int))(&now, 0));
    printf("limit %zu\n", now);
    show_cuda("after");
}

/* Every call that matters under a cap that cannot be understood. */
static void refused(void) {
    CUcontext context = (void *)0x77;
    CUdeviceptr p = 0x77;
    CUhandle handle = 0x77;
    CUmemAllocationProp props = OBJECT_ON_DEVICE;
    SHOW(CALL(cuInit, (unsigned))(0));
    SHOW(CALL(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))(&context, 0));
    SHOW(CALL(cuCtxCreate_v2, (CUcontext *, unsigned, CUdevice))(&context, 0, 0));
    SHOW(CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&p, 100));
    SHOW(CALL(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream))(&p, 100, NULL));
    SHOW(CALL(cuMemCreate, (CUhandle *, size_t, const CUmemAllocationProp *, uint64_t))(&handle, 2 * MIB, &props, 0));
    printf("untouched %d\n", context == (void *)0x77 && p == 0x77 && handle == 0x77);
}

int main(int count, char **arguments) {
    return RUN_WAY(count == 2 ? arguments[1] : "", {"steps", steps}, {"monitor", monitor},
                   {"look", look}, {"stack", stack}, {"refused", refused});
}
