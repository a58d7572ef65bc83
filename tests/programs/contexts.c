/* contexts.c HOW: contexts made, retained, reset and destroyed, and what goes with them. Prints
   every result: a bare run and a preloaded one must print the same. Frees all that outlives them. */
#include "door.h"
#include <string.h>

static CUcontext retain(void) {
    CUcontext context = NULL;
    SHOW(CALL(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))(&context, 0));
    SHOW(CALL(cuCtxSetCurrent, (CUcontext))(context));
    return context;
}

static void release(void) { SHOW(CALL(cuDevicePrimaryCtxRelease_v2, (CUdevice))(0)); }

static CUcontext create(void) {
    CUcontext context = NULL;
    SHOW(CALL(cuCtxCreate_v2, (CUcontext *, unsigned, CUdevice))(&context, 0, 0));
    return context;
}

static CUdeviceptr take(size_t size) {
    CUdeviceptr p = 0;
    SHOW(CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&p, size));
    return p;
}

static void give(CUdeviceptr p) { SHOW(CALL(cuMemFree_v2, (CUdeviceptr))(p)); }

static void active(void) {
    unsigned flags;
    int is_active = -1;
    MUST(CALL(cuDevicePrimaryCtxGetState, (CUdevice, unsigned *, int *))(0, &flags, &is_active));
    printf("primary context active %d\n", is_active);
}

/* Retained twice, released twice, and once too often. */
static void primary(void) {
    retain();
    CUcontext first = retain();
    CUdeviceptr p = take(10 * MIB);
    release();
    active();
    give(take(1000));
    release(); /* frees p */
    active();
    release();
    retain();
    give(p);
    give(take(20 * MIB));
    release();
    active();
    (void)first;
}

/* A reset frees everything and keeps the count of retains. */
static void reset(void) {
    retain();
    take(10 * MIB);
    take(1000);
    SHOW(CALL(cuDevicePrimaryCtxReset_v2, (CUdevice))(0));
    active();
    retain();
    active();
    give(take(20 * MIB));
    release();
    active();
    release();
    active();
}

/* A context takes its own memory with it; objects and pool blocks outlive it. */
static void destroy(void) {
    CUdeviceptr block = 0, managed = 0;
    CUhandle object = 0;
    void *host = NULL;
    CUarray array = NULL;
    CUarrayDesc flat = {1024, 1024, 0x20, 1};
    CUmemAllocationProp props;
    memset(&props, 0, sizeof props);
    props.type = props.location.type = 1;
    retain();
    CUcontext own = create();
    CUdeviceptr p = take(10 * MIB);
    SHOW(CALL(cuMemAllocManaged, (CUdeviceptr *, size_t, unsigned))(&managed, 6 * MIB, 1));
    SHOW(CALL(cuMemAllocHost_v2, (void **, size_t))(&host, MIB));
    SHOW(CALL(cuArrayCreate_v2, (CUarray *, const CUarrayDesc *))(&array, &flat));
    SHOW(CALL(cuMemCreate, (CUhandle *, size_t, const CUmemAllocationProp *, uint64_t))(&object, 4 * MIB, &props, 0));
    SHOW(CALL(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream))(&block, MIB, NULL));
    SHOW(CALL(cuCtxSynchronize, (void))());
    SHOW(CALL(cuCtxDestroy_v2, (CUcontext))(own));
    SHOW(CALL(cuCtxDestroy_v2, (CUcontext))(own));
    retain();
    give(p);
    SHOW(CALL(cuMemRelease, (CUhandle))(object));
    give(block);
    SHOW(CALL(cuCtxSynchronize, (void))());
    release();
    release();
}

/* Many contexts, one after the other: the driver gives handles out again. */
static void many(void) {
    for (int i = 0; i < 20; i++) {
        CUcontext own = create();
        take(2 * MIB);
        SHOW(CALL(cuCtxDestroy_v2, (CUcontext))(own));
    }
}

/* A thread without a context. */
static void nowhere(void) {
    size_t free = 77, total = 77;
    MUST(CALL(cuInit, (unsigned))(0));
    take(1000);
    give(0);
    SHOW(CALL(cuMemGetInfo_v2, (size_t *, size_t *))(&free, &total));
    SHOW(CALL(cuCtxSetLimit, (int, size_t))(0, 4096));
    SHOW(CALL(cuCtxDestroy_v2, (CUcontext))(NULL));
}

int main(int count, char **arguments) {
    const struct {
        const char *name;
        void (*run)(void);
    } ways[] = {{"primary", primary}, {"reset", reset}, {"destroy", destroy}, {"many", many}, {"nowhere", nowhere}};
    MUST(CALL(cuInit, (unsigned))(0));
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        if (count == 2 && !strcmp(arguments[1], ways[i].name)) {
            ways[i].run();
            return 0;
        }
    fprintf(stderr, "no such way\n");
    return 97;
}
