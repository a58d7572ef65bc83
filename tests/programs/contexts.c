/* contexts.c HOW: contexts made, retained, reset and destroyed, and what goes with them. Prints
   every result: a bare run and a preloaded one must print the same. Frees all that outlives them. */
#include "driver.h"

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

/* Retained once and reset again and again; work goes on with the same handle. The driver at hand either
   makes the context again at once, or refuses until it is retained. */
static void reset_on(void) {
    CUcontext context = retain();
    for (int i = 0; i < 24; i++) {
        take((size_t)1 << 30);
        SHOW(CALL(cuDevicePrimaryCtxReset_v2, (CUdevice))(0));
        SHOW(CALL(cuCtxSetCurrent, (CUcontext))(context));
    }
    give(take(20 * MIB));
    release();
    active();
}

static CUstream stream(void) {
    CUstream stream = NULL;
    SHOW(CALL(cuStreamCreate, (CUstream *, unsigned))(&stream, 1));
    return stream;
}

static void capture(CUstream stream, int mode) {
    SHOW(CALL(cuStreamBeginCapture_v2, (CUstream, int))(stream, mode));
}

static void end_capture(CUstream stream) {
    void *graph = NULL;
    SHOW(CALL(cuStreamEndCapture, (CUstream, void **))(stream, &graph));
}

static void destroy_stream(CUstream stream) { SHOW(CALL(cuStreamDestroy_v2, (CUstream))(stream)); }

/* `other` joins the capture of `stream`. */
static void join(CUstream stream, CUstream other) {
    void *event = NULL;
    SHOW(CALL(cuEventCreate, (void **, unsigned))(&event, 2));
    SHOW(CALL(cuEventRecord, (void *, CUstream))(event, stream));
    SHOW(CALL(cuStreamWaitEvent, (CUstream, void *, unsigned))(other, event, 0));
}

/* Fits only if it is seen that the pool has released its memory. */
static void pool_then_plain(void) {
    CUdeviceptr block = 0;
    SHOW(CALL(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream))(&block, (size_t)12 << 30, NULL));
    SHOW(CALL(cuMemFreeAsync, (CUdeviceptr, CUstream))(block, NULL));
    SHOW(CALL(cuStreamSynchronize, (CUstream))(NULL));
    give(take((size_t)12 << 30));
}

/* Captures that end without cuStreamEndCapture, or after they failed. */
static void captures(void) {
    CUcontext first = retain();
    CUstream a = stream(), b;
    capture(a, 0);
    destroy_stream(a);
    pool_then_plain();

    /* The stream that joined ends; then the one where the capture began. */
    a = stream(), b = stream();
    capture(a, 1);
    join(a, b);
    destroy_stream(b);
    end_capture(a);
    b = stream();
    capture(a, 0);
    join(a, b);
    destroy_stream(a);
    pool_then_plain();
    end_capture(b);
    destroy_stream(b);

    /* Invalidated, and ended; ended where it did not begin; ended twice. */
    a = stream(), b = stream();
    capture(a, 0);
    take(1 << 20);
    end_capture(a);
    end_capture(a);
    capture(a, 2);
    join(a, b);
    end_capture(b);
    end_capture(a);
    pool_then_plain();
    capture(NULL, 0);
    capture((CUstream)2, 1);
    capture(a, 1);
    capture(a, 1);
    end_capture((CUstream)2);
    end_capture(a);
    pool_then_plain();

    /* With their context. */
    CUcontext own = create();
    capture(stream(), 0);
    capture((CUstream)2, 0);
    SHOW(CALL(cuCtxDestroy_v2, (CUcontext))(own));
    SHOW(CALL(cuCtxSetCurrent, (CUcontext))(first));
    pool_then_plain();
    capture(a, 0);
    SHOW(CALL(cuDevicePrimaryCtxReset_v2, (CUdevice))(0));
    retain();
    pool_then_plain();
    capture(stream(), 0);
    release();
    release();
    retain();
    pool_then_plain();
    release();
}

/* A context takes its own memory with it; objects and pool blocks outlive it. */
static void destroy(void) {
    CUdeviceptr block = 0, managed = 0;
    CUhandle object = 0;
    void *host = NULL;
    CUarray array = NULL;
    CUarrayDesc flat = {1024, 1024, 0x20, 1};
    CUmemAllocationProp props = OBJECT_ON_DEVICE;
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
    MUST(CALL(cuInit, (unsigned))(0));
    return RUN_WAY(count == 2 ? arguments[1] : "", {"primary", primary}, {"reset", reset},
                   {"destroy", destroy}, {"many", many}, {"reset_on", reset_on},
                   {"captures", captures}, {"nowhere", nowhere});
}
