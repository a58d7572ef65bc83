/* vmm.c HOW: physical objects, their handles and mappings, in the orders that programs really use.
   Prints every result and the driver's free bytes: a bare run and a preloaded one must print the
   same. Frees everything that it took, unless HOW says otherwise. */
#include "driver.h"

#define SIZE (20 * MIB)

static CUdeviceptr space;
static size_t at_start;

static size_t taken(void) {
    size_t free = 0, total = 0;
    MUST(CALL(cuMemGetInfo_v2, (size_t *, size_t *))(&free, &total));
    return (at_start - free) / MIB;
}

#define STATE(what) printf("%s: %zu MiB taken\n", what, taken())

static CUmemAllocationProp on(int type, int id) {
    return (CUmemAllocationProp){.type = 1, .location = {type, id}};
}

static CUhandle create(void) {
    CUhandle handle = 0;
    CUmemAllocationProp props = on(1, 0);
    SHOW(CALL(cuMemCreate, (CUhandle *, size_t, const CUmemAllocationProp *, uint64_t))(&handle, SIZE, &props, 0));
    return handle;
}

static void map(CUhandle handle, int place) {
    SHOW(CALL(cuMemMap, (CUdeviceptr, size_t, size_t, CUhandle, uint64_t))(space + place * SIZE, SIZE, 0, handle, 0));
}

static void unmap(int place, int count) {
    SHOW(CALL(cuMemUnmap, (CUdeviceptr, size_t))(space + place * SIZE, count * SIZE));
}

static void release(CUhandle handle) { SHOW(CALL(cuMemRelease, (CUhandle))(handle)); }

static CUhandle retain(int place) {
    CUhandle handle = 0;
    void *inside = (void *)(uintptr_t)(space + place * SIZE + 4096);
    SHOW(CALL(cuMemRetainAllocationHandle, (CUhandle *, void *))(&handle, inside));
    return handle;
}

/* NCCL's free: Retain, Release, Unmap, Release. */
static void nccl(void) {
    CUhandle handle = create();
    map(handle, 0);
    CUhandle again = retain(0);
    release(again);
    STATE("released once");
    unmap(0, 1);
    STATE("unmapped");
    release(handle);
    STATE("released twice");
    release(handle);
}

/* NCCL looks at live memory with Retain + Release. */
static void inspect(void) {
    CUhandle handle = create();
    map(handle, 0);
    for (int i = 0; i < 3; i++) release(retain(0));
    STATE("inspected");
    unmap(0, 1);
    release(handle);
    STATE("freed");
}

static void release_first(void) {
    CUhandle handle = create();
    map(handle, 0);
    map(handle, 1);
    release(handle);
    STATE("released");
    unmap(0, 1);
    STATE("one map left");
    unmap(1, 1);
    STATE("no map left");
}

/* One unmap over three maps; then parts of a map, as far as the driver lets us. */
static void ranges(void) {
    for (int i = 0; i < 3; i++) {
        CUhandle handle = create();
        map(handle, i);
        release(handle);
    }
    STATE("three mapped");
    SHOW(CALL(cuMemUnmap, (CUdeviceptr, size_t))(space, SIZE / 2));
    SHOW(CALL(cuMemUnmap, (CUdeviceptr, size_t))(space + SIZE / 2, SIZE));
    STATE("after partial unmaps");
    unmap(0, 3);
    STATE("one unmap over all that was left");
    unmap(0, 1);
    unmap(1, 1);
    unmap(2, 1);
    STATE("each on its own");
}

/* Host locations are no VRAM. */
static void host(void) {
    CUhandle handle = 0;
    CUmemAllocationProp props = on(3, 0);
    SHOW(CALL(cuMemCreate, (CUhandle *, size_t, const CUmemAllocationProp *, uint64_t))(&handle, SIZE, &props, 0));
    STATE("host memory");
    release(handle);
}

/* The driver gives handles out again. */
static void reuse(void) {
    for (int i = 0; i < 50; i++) MUST(CALL(cuMemRelease, (CUhandle))(create()));
    STATE("fifty times");
}

/* A handle exported and imported again by the same process. */
static void import(void) {
    int fd = -1;
    CUhandle handle = 0, other = 0;
    CUmemAllocationProp props = on(1, 0);
    props.handle_types = 1;
    SHOW(CALL(cuMemCreate, (CUhandle *, size_t, const CUmemAllocationProp *, uint64_t))(&handle, SIZE, &props, 0));
    SHOW(CALL(cuMemExportToShareableHandle, (void *, CUhandle, int, uint64_t))(&fd, handle, 1, 0));
    SHOW(CALL(cuMemImportFromShareableHandle, (CUhandle *, void *, int))(&other, (void *)(intptr_t)fd, 1));
    map(other, 0);
    STATE("imported");
    unmap(0, 1);
    release(other);
    release(handle);
    STATE("freed");
}

/* Two objects stay: one by its handle, one by its mapping. */
static void leave(void) {
    CUhandle handle = create();
    map(handle, 0);
    release(handle);
    create();
    STATE("left");
}

/* Fill the device with objects until it says no. */
static void fill(void) {
    CUmemAllocationProp props = on(1, 0);
    CUhandle handles[4096];
    int count = 0, result;
    for (;;) {
        CUhandle handle = 0x5555;
        result = CALL(cuMemCreate, (CUhandle *, size_t, const CUmemAllocationProp *, uint64_t))(&handle, SIZE, &props, 0);
        if (result) {
            printf("refused with %d, untouched %d\n", result, handle == 0x5555);
            break;
        }
        handles[count++] = handle;
    }
    size_t free, total;
    MUST(CALL(cuMemGetInfo_v2, (size_t *, size_t *))(&free, &total));
    printf("%d objects, total %llu MiB, free below one object %d\n", count, total / MIB, free < SIZE);
    while (count) MUST(CALL(cuMemRelease, (CUhandle))(handles[--count]));
}

/* Threads that do all of it at once, with objects of their own and one that all share. */
enum { THREADS = 8, TURNS = 300 };
static CUhandle shared;
static CUdeviceptr wide;

static void *thread(void *argument) {
    CUmemAllocationProp props = on(1, 0);
    CUdeviceptr place = wide + (size_t)argument * 2 * SIZE;
    for (int i = 0; i < TURNS; i++) {
        CUhandle own = 0, again = 0;
        MUST(CALL(cuMemCreate, (CUhandle *, size_t, const CUmemAllocationProp *, uint64_t))(&own, SIZE, &props, 0));
        MUST(CALL(cuMemMap, (CUdeviceptr, size_t, size_t, CUhandle, uint64_t))(place, SIZE, 0, own, 0));
        MUST(CALL(cuMemMap, (CUdeviceptr, size_t, size_t, CUhandle, uint64_t))(place + SIZE, SIZE, 0, shared, 0));
        MUST(CALL(cuMemRetainAllocationHandle, (CUhandle *, void *))(&again, (void *)(uintptr_t)(place + SIZE)));
        if (i % 3 == 0) MUST(CALL(cuMemRelease, (CUhandle))(own));
        MUST(CALL(cuMemRelease, (CUhandle))(again));
        MUST(CALL(cuMemUnmap, (CUdeviceptr, size_t))(place, 2 * SIZE));
        if (i % 3 != 0) MUST(CALL(cuMemRelease, (CUhandle))(own));
    }
    return NULL;
}

static void threads(void) {
    MUST(CALL(cuMemAddressReserve, (CUdeviceptr *, size_t, size_t, CUdeviceptr, uint64_t))(&wide, THREADS * 2 * SIZE, 0, 0, 0));
    shared = create();
    on_threads(THREADS, thread);
    STATE("the shared one is left");
    release(shared);
    STATE("none is left");
}

int main(int count, char **arguments) {
    size_t total;
    begin(0);
    MUST(CALL(cuMemAddressReserve, (CUdeviceptr *, size_t, size_t, CUdeviceptr, uint64_t))(&space, 8 * SIZE, 0, 0, 0));
    MUST(CALL(cuMemGetInfo_v2, (size_t *, size_t *))(&at_start, &total));
    return RUN_WAY(count == 2 ? arguments[1] : "", {"nccl", nccl}, {"inspect", inspect},
                   {"release_first", release_first}, {"ranges", ranges}, {"host", host},
                   {"reuse", reuse}, {"import", import}, {"leave", leave}, {"fill", fill},
                   {"threads", threads});
}
