/* families.c [FAMILY|all [thread]]: allocate, free, cross-API free, double free and failure in one API family.
   Prints every result and every size that the driver tells, no addresses: a bare run and a
   preloaded one must print the same. Frees everything that it took. */
#include "driver.h"

static CUstream stream;

static CUresult synchronize(void) { return CALL(cuStreamSynchronize, (CUstream))(stream); }

static void device(void) {
    CUdeviceptr a = 0, b = 0, untouched = 0x1234;
    size_t size = 0;
    CUdeviceptr base = 0;
    SHOW(CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&a, 1000));
    SHOW(CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&b, 3 * MIB));
    SHOW(CALL(cuMemGetAddressRange_v2, (CUdeviceptr *, size_t *, CUdeviceptr))(&base, &size, b + 5));
    printf("range %zu at base %d\n", size, base == b);
    SHOW(CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&untouched, 0));
    SHOW(CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&untouched, 1ull << 45));
    printf("untouched %d\n", untouched == 0x1234);
    SHOW(CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(NULL, 100));
    SHOW(CALL(cuMemFree_v2, (CUdeviceptr))(a));
    SHOW(CALL(cuMemFree_v2, (CUdeviceptr))(a));
    SHOW(CALL(cuMemFreeAsync, (CUdeviceptr, CUstream))(b, stream)); /* cross-API free */
    SHOW(synchronize());
    SHOW(CALL(cuMemFree_v2, (CUdeviceptr))(b));
    SHOW(CALL(cuMemFree_v2, (CUdeviceptr))(0));
    SHOW(CALL(cuMemFree_v2, (CUdeviceptr))(0xdead000));
}

static void pitched(void) {
    CUdeviceptr p = 0;
    size_t pitch = 0;
    SHOW(CALL(cuMemAllocPitch_v2, (CUdeviceptr *, size_t *, size_t, size_t, unsigned))(&p, &pitch, 1000, 1000, 4));
    printf("pitch %zu\n", pitch);
    SHOW(CALL(cuMemFree_v2, (CUdeviceptr))(p));
    SHOW(CALL(cuMemFree_v2, (CUdeviceptr))(p));
    SHOW(CALL(cuMemAllocPitch_v2, (CUdeviceptr *, size_t *, size_t, size_t, unsigned))(&p, &pitch, 1000, 1000, 3));
}

static void managed(void) {
    CUdeviceptr p = 0;
    SHOW(CALL(cuMemAllocManaged, (CUdeviceptr *, size_t, unsigned))(&p, 5 * MIB, 1));
    SHOW(CALL(cuMemsetD8_v2, (CUdeviceptr, unsigned char, size_t))(p, 1, 5 * MIB));
    SHOW(CALL(cuMemFree_v2, (CUdeviceptr))(p));
    SHOW(CALL(cuMemAllocManaged, (CUdeviceptr *, size_t, unsigned))(&p, 0, 1));
    SHOW(CALL(cuMemAllocManaged, (CUdeviceptr *, size_t, unsigned))(&p, MIB, 77));
}

static void pool(void) {
    CUmemoryPool default_pool, own;
    CUdeviceptr a = 0, b = 0, c = 0;
    unsigned long long reserved = 0, used = 0, keep = ~0ull;
    CUmemPoolProps props = POOL_ON_DEVICE;
    SHOW(CALL(cuDeviceGetDefaultMemPool, (CUmemoryPool *, CUdevice))(&default_pool, 0));
    SHOW(CALL(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream))(&a, 1000, stream));
    SHOW(CALL(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream))(&b, 100 * MIB, stream));
    SHOW(synchronize());
    SHOW(CALL(cuMemPoolGetAttribute, (CUmemoryPool, int, void *))(default_pool, 5, &reserved));
    SHOW(CALL(cuMemPoolGetAttribute, (CUmemoryPool, int, void *))(default_pool, 7, &used));
    printf("reserved %llu used %llu\n", reserved, used);
    SHOW(CALL(cuMemFree_v2, (CUdeviceptr))(a)); /* cross-API free */
    SHOW(CALL(cuMemFreeAsync, (CUdeviceptr, CUstream))(b, stream));
    SHOW(synchronize());
    SHOW(CALL(cuMemPoolGetAttribute, (CUmemoryPool, int, void *))(default_pool, 5, &reserved));
    printf("reserved %llu\n", reserved);
    SHOW(CALL(cuMemFreeAsync, (CUdeviceptr, CUstream))(b, stream));
    SHOW(CALL(cuMemPoolCreate, (CUmemoryPool *, const CUmemPoolProps *))(&own, &props));
    SHOW(CALL(cuMemPoolSetAttribute, (CUmemoryPool, int, void *))(own, 4, &keep));
    SHOW(CALL(cuMemAllocFromPoolAsync, (CUdeviceptr *, size_t, CUmemoryPool, CUstream))(&c, 10 * MIB, own, stream));
    SHOW(CALL(cuMemFreeAsync, (CUdeviceptr, CUstream))(c, stream));
    SHOW(synchronize());
    SHOW(CALL(cuMemPoolGetAttribute, (CUmemoryPool, int, void *))(own, 5, &reserved));
    printf("kept %llu\n", reserved);
    SHOW(CALL(cuMemPoolTrimTo, (CUmemoryPool, size_t))(own, 0));
    SHOW(CALL(cuMemPoolDestroy, (CUmemoryPool))(own));
    SHOW(CALL(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream))(&c, 1ull << 45, stream));
}

static void vmm(void) {
    CUmemAllocationProp props = OBJECT_ON_DEVICE;
    CUmemAccessDesc access = {.location = {1, 0}, .flags = 3};
    CUhandle h = 0, again = 0;
    CUdeviceptr va = 0;
    SHOW(CALL(cuMemCreate, (CUhandle *, size_t, const CUmemAllocationProp *, uint64_t))(&h, 1000, &props, 0));
    SHOW(CALL(cuMemCreate, (CUhandle *, size_t, const CUmemAllocationProp *, uint64_t))(&h, 64 * MIB, &props, 0));
    SHOW(CALL(cuMemAddressReserve, (CUdeviceptr *, size_t, size_t, CUdeviceptr, uint64_t))(&va, 128 * MIB, 0, 0, 0));
    SHOW(CALL(cuMemMap, (CUdeviceptr, size_t, size_t, CUhandle, uint64_t))(va, 64 * MIB, 0, h, 0));
    SHOW(CALL(cuMemMap, (CUdeviceptr, size_t, size_t, CUhandle, uint64_t))(va + 64 * MIB, 64 * MIB, 0, h, 0));
    SHOW(CALL(cuMemSetAccess, (CUdeviceptr, size_t, const CUmemAccessDesc *, size_t))(va, 128 * MIB, &access, 1));
    SHOW(CALL(cuMemRetainAllocationHandle, (CUhandle *, void *))(&again, (void *)va));
    SHOW(CALL(cuMemRelease, (CUhandle))(again));
    SHOW(CALL(cuMemRelease, (CUhandle))(h)); /* before the unmaps: legal */
    SHOW(CALL(cuMemUnmap, (CUdeviceptr, size_t))(va, 64 * MIB));
    SHOW(CALL(cuMemUnmap, (CUdeviceptr, size_t))(va + 64 * MIB, 64 * MIB));
    SHOW(CALL(cuMemUnmap, (CUdeviceptr, size_t))(va, 64 * MIB));
    SHOW(CALL(cuMemAddressFree, (CUdeviceptr, size_t))(va, 128 * MIB));
    SHOW(CALL(cuMemCreate, (CUhandle *, size_t, const CUmemAllocationProp *, uint64_t))(&h, 1ull << 45, &props, 0));
}

static void array(void) {
    CUarray a = NULL;
    CUmipmappedArray m = NULL;
    CUarrayDesc flat = {4096, 4096, 0x20, 4};
    CUarray3dDesc deep = {2048, 2048, 0, 0x20, 4, 0};
    SHOW(CALL(cuArrayCreate_v2, (CUarray *, const CUarrayDesc *))(&a, &flat));
    SHOW(CALL(cuArrayDestroy, (CUarray))(a));
    SHOW(CALL(cuArray3DCreate_v2, (CUarray *, const CUarray3dDesc *))(&a, &deep));
    SHOW(CALL(cuArrayDestroy, (CUarray))(a));
    SHOW(CALL(cuMipmappedArrayCreate, (CUmipmappedArray *, const CUarray3dDesc *, unsigned))(&m, &deep, 5));
    SHOW(CALL(cuMipmappedArrayDestroy, (CUmipmappedArray))(m));
    flat.channels = 3;
    SHOW(CALL(cuArrayCreate_v2, (CUarray *, const CUarrayDesc *))(&a, &flat));
}

static void host(void) {
    void *p = NULL, *q = NULL;
    static char own[1 << 20] __attribute__((aligned(4096)));
    SHOW(CALL(cuMemAllocHost_v2, (void **, size_t))(&p, 1 << 20));
    SHOW(CALL(cuMemHostAlloc, (void **, size_t, unsigned))(&q, 1 << 20, 0));
    SHOW(CALL(cuMemHostRegister_v2, (void *, size_t, unsigned))(own, sizeof own, 0));
    SHOW(CALL(cuMemHostUnregister, (void *))(own));
    SHOW(CALL(cuMemFreeHost, (void *))(p));
    SHOW(CALL(cuMemFreeHost, (void *))(q));
    SHOW(CALL(cuMemFreeHost, (void *))(q));
}

static void graph(void) {
    CUgraph g;
    CUgraphExec e;
    CUgraphNode take, give;
    CUmemAllocNode params = {.pool = POOL_ON_DEVICE, .bytes = 200 * MIB};
    unsigned long long reserved = 0;
    SHOW(CALL(cuGraphCreate, (CUgraph *, unsigned))(&g, 0));
    SHOW(CALL(cuGraphAddMemAllocNode, (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUmemAllocNode *))(&take, g, NULL, 0, &params));
    SHOW(CALL(cuGraphAddMemFreeNode, (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUdeviceptr))(&give, g, &take, 1, params.address));
    SHOW(CALL(cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, uint64_t))(&e, g, 0));
    SHOW(CALL(cuGraphUpload, (CUgraphExec, CUstream))(e, stream));
    SHOW(CALL(cuGraphLaunch, (CUgraphExec, CUstream))(e, stream));
    SHOW(synchronize());
    SHOW(CALL(cuDeviceGetGraphMemAttribute, (CUdevice, int, void *))(0, 2, &reserved));
    printf("reserved %llu\n", reserved);
    SHOW(CALL(cuGraphExecDestroy, (CUgraphExec))(e));
    SHOW(CALL(cuGraphDestroy, (CUgraph))(g));
    SHOW(CALL(cuDeviceGetGraphMemAttribute, (CUdevice, int, void *))(0, 2, &reserved));
    printf("still reserved %llu\n", reserved);
    SHOW(CALL(cuDeviceGraphMemTrim, (CUdevice))(0));
    SHOW(CALL(cuDeviceGetGraphMemAttribute, (CUdevice, int, void *))(0, 2, &reserved));
    printf("after trim %llu\n", reserved);
}

static void context(void) {
    CUcontext own;
    CUdeviceptr p;
    SHOW(CALL(cuCtxCreate_v2, (CUcontext *, unsigned, CUdevice))(&own, 0, 0));
    SHOW(CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&p, 10 * MIB));
    SHOW(CALL(cuCtxDestroy_v2, (CUcontext))(own)); /* frees p */
    SHOW(CALL(cuMemFree_v2, (CUdeviceptr))(p));
}

static const char *wanted;
static CUcontext primary;

static void *run(void *nothing) {
    const struct {
        const char *name;
        void (*run)(void);
    } families[] = {{"device", device}, {"pitched", pitched}, {"managed", managed},
                    {"pool", pool},     {"vmm", vmm},         {"array", array},
                    {"host", host},     {"graph", graph},     {"context", context}};
    MUST(CALL(cuCtxSetCurrent, (CUcontext))(primary));
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (!wanted || !strcmp(wanted, families[i].name)) {
            printf("-- %s\n", families[i].name);
            families[i].run();
        }
    return nothing;
}

int main(int count, char **arguments) {
    if (count > 1 && strcmp(arguments[1], "all")) wanted = arguments[1];
    primary = begin(0);
    MUST(CALL(cuStreamCreate, (CUstream *, unsigned))(&stream, 1));
    if (count > 2) { /* on a thread of its own */
        pthread_t thread;
        pthread_create(&thread, NULL, run, NULL);
        pthread_join(thread, NULL);
    } else {
        run(NULL);
    }
    return 0;
}
