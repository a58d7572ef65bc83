/* hammer.c THREADS CALLS POOL_BYTES_MIB: random kinds of memory from many threads, near a limit.
   Prints how many requests each kind asked, and how many were granted; checks that a refused call
   left its outputs untouched, and frees all. Exit 1 on anything but success or out of memory. */
#include "driver.h"

enum { KINDS = 6, SLOTS = 24 };
static const char *names[KINDS] = {"small", "large", "pool", "vmm", "managed", "array"};
static atomic_ulong asked[KINDS], granted[KINDS];
static atomic_int wrong;
static CUcontext context;
static unsigned long calls;

struct slot {
    int kind; /* -1: empty */
    unsigned long long handle;
};

static unsigned next(unsigned *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static void complain(const char *what, int result) {
    fprintf(stderr, "%s = %d\n", what, result);
    atomic_store(&wrong, 1);
}

static int take(struct slot *slot, int kind, unsigned random, CUstream stream) {
    const unsigned long long untouched = 0x5151515151515151ull;
    unsigned long long handle = untouched;
    int result = -1;
    size_t size;
    switch (kind) {
    case 0: size = 1 + random % MIB; result = CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&handle, size); break;
    case 1: size = MIB + random % (64 * MIB); result = CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&handle, size); break;
    case 2: size = 1 + random % (32 * MIB); result = CALL(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream))(&handle, size, stream); break;
    case 3: {
        CUmemAllocationProp props = OBJECT_ON_DEVICE;
        size = (1 + random % 16) * 2 * MIB;
        result = CALL(cuMemCreate, (CUhandle *, size_t, const CUmemAllocationProp *, uint64_t))(&handle, size, &props, 0);
        break;
    }
    case 4: size = 1 + random % (16 * MIB); result = CALL(cuMemAllocManaged, (CUdeviceptr *, size_t, unsigned))(&handle, size, 1); break;
    case 5: {
        CUarrayDesc shape = {256 + random % 1024, 256 + random % 1024, 0x20, 1};
        result = CALL(cuArrayCreate_v2, (CUarray *, const CUarrayDesc *))((CUarray *)&handle, &shape);
        break;
    }
    }
    atomic_fetch_add(&asked[kind], 1);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
        if (handle != untouched) complain("a refused call wrote its output", kind);
        return 0;
    }
    if (result != CUDA_SUCCESS) {
        complain(names[kind], result);
        return 0;
    }
    atomic_fetch_add(&granted[kind], 1);
    slot->kind = kind;
    slot->handle = handle;
    return 1;
}

static void give(struct slot *slot, CUstream stream) {
    int result = 0;
    switch (slot->kind) {
    case 0: case 1: case 4: result = CALL(cuMemFree_v2, (CUdeviceptr))(slot->handle); break;
    case 2: result = CALL(cuMemFreeAsync, (CUdeviceptr, CUstream))(slot->handle, stream); break;
    case 3: result = CALL(cuMemRelease, (CUhandle))(slot->handle); break;
    case 5: result = CALL(cuArrayDestroy, (CUarray))((CUarray)slot->handle); break;
    }
    if (result) complain("free", result);
    slot->kind = -1;
}

static void *worker(void *number) {
    unsigned state = 12345u + 977u * (unsigned)(uintptr_t)number;
    struct slot slots[SLOTS];
    CUstream stream;
    MUST(CALL(cuCtxSetCurrent, (CUcontext))(context));
    MUST(CALL(cuStreamCreate, (CUstream *, unsigned))(&stream, 1));
    for (int i = 0; i < SLOTS; i++) slots[i].kind = -1;
    for (unsigned long done = 0; done < calls; done++) {
        struct slot *slot = &slots[next(&state) % SLOTS];
        if (slot->kind >= 0)
            give(slot, stream);
        else
            take(slot, (int)(next(&state) % KINDS), next(&state), stream);
        if (done % 512 == 511) MUST(CALL(cuStreamSynchronize, (CUstream))(stream));
    }
    for (int i = 0; i < SLOTS; i++)
        if (slots[i].kind >= 0) give(&slots[i], stream);
    MUST(CALL(cuStreamSynchronize, (CUstream))(stream));
    return NULL;
}

int main(int count, char **arguments) {
    unsigned long n = count > 1 ? strtoul(arguments[1], NULL, 10) : 16;
    calls = count > 2 ? strtoul(arguments[2], NULL, 10) : 100000;
    context = begin(0);
    on_threads(n, worker);
    for (int k = 0; k < KINDS; k++)
        printf("%s asked %lu granted %lu\n", names[k], atomic_load(&asked[k]), atomic_load(&granted[k]));
    return atomic_load(&wrong);
}
