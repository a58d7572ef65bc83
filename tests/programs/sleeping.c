/* sleeping.c LIBC10_CUDA PATTERN CYCLES [WHAT_GROWS]: memory that is unmapped and mapped again, with
   the calls of real allocators. Each object of a sleeping allocator is of one function, so that its
   owner has a name. WHAT_GROWS: block, region, driver, graph, nccl; it grows by 16 MiB a cycle; or
   asleep: the driver's memory, while all else sleeps; or quick: nothing grows, only the end is marked.

   MARK lines: word (awake or asleep), CLOCK_MONOTONIC ns, what the stand-in of PyTorch's cache has
   allocated and reserved, and the driver's bytes in use.

   With SLEEPING_WAITS in the environment it says "ready", and reads a line after each mark;
   after "again" it has the live page written once more. */
#include "cache.h"

#define LEAK (16 * MIB)

static size_t (*allocated)(int);
static size_t (*reserved)(int);
static size_t at_start;

static size_t taken(void) {
    size_t free = 0, total = 0;
    MUST(CALL(cuMemGetInfo_v2, (size_t *, size_t *))(&free, &total));
    return at_start - free;
}

static void pause_ms(int ms) { usleep(ms * 1000); }

static const char *grows = "";

static int waits;

/* Who calls seldom has its figures on the live page at once. */
static void refresh_page(void) {
    CUdeviceptr at = driver_take(2 * MIB);
    /* Call sites are added up every 100 ms at most. */
    pause_ms(200);
    driver_give(at);
}

static void wait_for_line(void) {
    char line[100];
    for (;;) {
        fflush(stdout);
        if (!fgets(line, sizeof line, stdin)) exit(1);
        if (strcmp(line, "again\n")) return;
        refresh_page();
        printf("again\n");
    }
}

static void mark(const char *word) {
    struct timespec now;
    /* Many cycles, of which nobody asks: more events. */
    if (!strcmp(grows, "quick") && strcmp(word, "end")) return;
    if (waits) refresh_page();
    pause_ms(1);
    clock_gettime(CLOCK_MONOTONIC, &now);
    printf("MARK %s %lld %zu %zu %zu\n", word, now.tv_sec * 1000000000ll + now.tv_nsec, allocated(0), reserved(0), taken());
    if (waits) wait_for_line();
    pause_ms(1);
}

/* ---- A region, as vLLM's CuMemAllocator, torch_memory_saver and TensorRT-LLM make it. ---- */

typedef struct {
    CUdeviceptr at;
    size_t bytes;
    CUhandle handle;
    int tag;
} region;

static region regions[256];
static int region_count;

/* Macros: the function that uses them is the one that wanted the memory. */
#define create(bytes)                                                                                          \
    ({                                                                                                         \
        CUhandle handle_ = 0;                                                                                  \
        CUmemAllocationProp props_ = OBJECT_ON_DEVICE;                                                         \
        MUST(CALL(cuMemCreate, (CUhandle *, size_t, const CUmemAllocationProp *, uint64_t))(&handle_, bytes,   \
                                                                                            &props_, 0));      \
        handle_;                                                                                               \
    })

#define map(at, bytes, handle)                                                                                 \
    do {                                                                                                       \
        CUmemAccessDesc access_ = {.location = {1, 0}, .flags = 3};                                            \
        MUST(CALL(cuMemMap, (CUdeviceptr, size_t, size_t, CUhandle, uint64_t))(at, bytes, 0, handle, 0));      \
        MUST(CALL(cuMemSetAccess, (CUdeviceptr, size_t, const CUmemAccessDesc *, size_t))(at, bytes, &access_, \
                                                                                          1));                 \
    } while (0)

#define unmap(at, bytes) MUST(CALL(cuMemUnmap, (CUdeviceptr, size_t))(at, bytes))
#define release(handle) MUST(CALL(cuMemRelease, (CUhandle))(handle))

#define reserve(bytes)                                                                                         \
    ({                                                                                                         \
        CUdeviceptr at_ = 0;                                                                                   \
        MUST(CALL(cuMemAddressReserve, (CUdeviceptr *, size_t, size_t, CUdeviceptr, uint64_t))(&at_, bytes, 0, \
                                                                                               0, 0));         \
        at_;                                                                                                   \
    })

static void unreserve(CUdeviceptr at, size_t bytes) {
    MUST(CALL(cuMemAddressFree, (CUdeviceptr, size_t))(at, bytes));
}

#define make_region(size, tag_)           \
    ({                                    \
        region *one_ = &regions[region_count++]; \
        one_->at = reserve(size);         \
        one_->bytes = (size);             \
        one_->tag = (tag_);               \
        one_->handle = create(size);      \
        map(one_->at, (size), one_->handle); \
        one_;                             \
    })

/* The order in which a library unmaps and releases. */
static int release_first;

NEVER static void put_to_sleep(int tag) {
    for (int n = 0; n < region_count; n++) {
        region *one = &regions[n];
        if (!one->bytes || one->tag != tag) continue;
        if (release_first) release(one->handle);
        unmap(one->at, one->bytes);
        if (!release_first) release(one->handle);
    }
    STAY;
}

NEVER static void wake_up(int tag) {
    for (int n = 0; n < region_count; n++) {
        region *one = &regions[n];
        if (!one->bytes || one->tag != tag) continue;
        one->handle = create(one->bytes);
        map(one->at, one->bytes, one->handle);
    }
    STAY;
}

/* PyTorch frees a segment of a pluggable allocator. */
static void drop_region(region *one) {
    unmap(one->at, one->bytes);
    release(one->handle);
    unreserve(one->at, one->bytes);
    one->bytes = 0;
}

#define LINE(name)                                                   \
    NEVER static region *name(size_t bytes, int tag) {               \
        region *one = make_region(bytes, tag);                       \
        STAY;                                                        \
        return one;                                                  \
    }
LINE(weights_line)
LINE(kv_cache_line)
LINE(buffers_line)

NEVER static void weights_block(CUdeviceptr at, size_t bytes) { tell_block(0, (void *)at, bytes); STAY; }
NEVER static void kv_block(CUdeviceptr at, size_t bytes) { tell_block(0, (void *)at, bytes); STAY; }
NEVER static void growing_block(CUdeviceptr at, size_t bytes) { tell_block(0, (void *)at, bytes); STAY; }

NEVER static CUdeviceptr plain_line(size_t bytes) {
    CUdeviceptr at;
    MUST(CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&at, bytes));
    STAY;
    return at;
}

NEVER static CUdeviceptr growing_line(size_t bytes) {
    CUdeviceptr at;
    MUST(CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&at, bytes));
    STAY;
    return at;
}

NEVER static region *growing_region(size_t bytes) {
    region *one = make_region(bytes, 0);
    STAY;
    return one;
}

/* NCCL takes its buffers from the virtual memory API itself, and maps them twice. */
NEVER static void nccl_buffer_line(size_t bytes) {
    CUdeviceptr at = reserve(bytes), again = reserve(bytes);
    CUhandle handle = create(bytes);
    map(at, bytes, handle);
    map(again, bytes, handle);
    release(handle);
    STAY;
}

static CUstream stream;

NEVER static void graph_line(size_t bytes) {
    CUgraph graph;
    CUgraphExec exec;
    CUdeviceptr at;
    MUST(CALL(cuStreamBeginCapture_v2, (CUstream, int))(stream, 2));
    MUST(CALL(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream))(&at, bytes, stream));
    MUST(CALL(cuStreamEndCapture, (CUstream, CUgraph *))(stream, &graph));
    MUST(CALL(cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, uint64_t))(&exec, graph, 0));
    MUST(CALL(cuGraphLaunch, (CUgraphExec, CUstream))(exec, stream));
    MUST(CALL(cuStreamSynchronize, (CUstream))(stream));
    STAY;
}

static void grow(void) {
    if (!strcmp(grows, "block")) {
        CUdeviceptr at = plain_line(LEAK);
        tell_segment(0, LEAK);
        growing_block(at, LEAK);
    } else if (!strcmp(grows, "region")) {
        region *one = growing_region(LEAK);
        if (tell_block) tell_segment(0, LEAK), growing_block(one->at, LEAK);
    } else if (!strcmp(grows, "driver")) {
        growing_line(LEAK);
    } else if (!strcmp(grows, "nccl")) {
        nccl_buffer_line(LEAK);
    } else if (!strcmp(grows, "graph")) {
        graph_line(LEAK);
    }
}

/* PyTorch's segments in regions, with blocks in them: vLLM's sleep mode, torch_memory_saver. */
static void sleeping_torch(int cycles) {
    CUdeviceptr outside = plain_line(20 * MIB);
    tell_segment(0, 20 * MIB);
    kv_block(outside, 3 * MIB);
    for (int n = 0; n < 4; n++) {
        region *one = weights_line(20 * MIB, 0);
        tell_segment(0, 20 * MIB);
        weights_block(one->at, 6 * MIB);
        weights_block(one->at + 6 * MIB, 12 * MIB);
    }
    region *freed = kv_cache_line(32 * MIB, 1);
    tell_segment(0, 32 * MIB);
    kv_block(freed->at, 32 * MIB);
    region *kept = kv_cache_line(64 * MIB, 1);
    tell_segment(0, 64 * MIB);
    kv_block(kept->at, 10 * MIB);
    /* A segment that holds nothing sleeps, too: PyTorch keeps it. */
    region *empty = kv_cache_line(40 * MIB, 1);
    tell_segment(0, 40 * MIB);
    kv_block(empty->at, 40 * MIB);
    tell_block(0, (void *)empty->at, -(int64_t)(40 * MIB));
    mark("awake");
    for (int cycle = 0; cycle < cycles; cycle++) {
        grow();
        put_to_sleep(1);
        put_to_sleep(0);
        if (!strcmp(grows, "asleep")) growing_line(LEAK);
        mark("asleep");
        if (cycle == cycles / 2) {
            /* Freed while it sleeps, and made while it sleeps. */
            tell_block(0, (void *)freed->at, -(int64_t)(32 * MIB));
            kv_block(kept->at + 20 * MIB, 5 * MIB);
            mark("asleep");
            tell_block(0, (void *)(kept->at + 20 * MIB), -(int64_t)(5 * MIB));
            kv_block(freed->at, 32 * MIB);
            mark("asleep");
        }
        wake_up(0);
        wake_up(1);
        mark("awake");
    }
    /* The pool is given up: its addresses may be anybody's. */
    tell_block(0, (void *)freed->at, -(int64_t)(32 * MIB));
    tell_segment(0, -(int64_t)(32 * MIB));
    CUdeviceptr at = freed->at;
    drop_region(freed);
    region *other = buffers_line(32 * MIB, 2);
    printf("same address: %d\n", other->at == at);
    mark("end");
}

/* No PyTorch: the owners are those of the driver's memory. */
static void sleeping_driver(int cycles) {
    release_first = 1;
    plain_line(20 * MIB);
    weights_line(64 * MIB, 0);
    weights_line(32 * MIB, 0);
    kv_cache_line(128 * MIB, 1);
    buffers_line(16 * MIB, 1);
    mark("awake");
    for (int cycle = 0; cycle < cycles; cycle++) {
        grow();
        put_to_sleep(1);
        mark("half");
        put_to_sleep(0);
        mark("asleep");
        wake_up(0);
        wake_up(1);
        mark("awake");
    }
    /* Made and neither mapped nor released. */
    create(6 * MIB);
    mark("end");
}

#define PAGE (2 * MIB)
#define PAGES 64

NEVER static void take_pages(CUdeviceptr base, CUhandle *pages, int from, int count) {
    for (int n = from; n < from + count; n++) {
        unmap(base + n * PAGE, PAGE);
        pages[n] = create(PAGE);
        map(base + n * PAGE, PAGE, pages[n]);
    }
    STAY;
}

NEVER static void give_pages(CUdeviceptr base, CUhandle *pages, int from, int count, CUhandle zero) {
    for (int n = from; n < from + count; n++) {
        unmap(base + n * PAGE, PAGE);
        release(pages[n]);
        map(base + n * PAGE, PAGE, zero);
    }
    STAY;
}

/* One large reservation, one zero page wherever nothing is. */
static void kvcached(int cycles) {
    static CUhandle pages[PAGES];
    CUdeviceptr base = reserve(PAGES * PAGE);
    CUhandle zero = create(PAGE);
    for (int n = 0; n < PAGES; n++) map(base + n * PAGE, PAGE, zero);
    mark("empty");
    take_pages(base, pages, 0, 16);
    mark("awake");
    for (int cycle = 0; cycle < cycles; cycle++) {
        grow();
        take_pages(base, pages, 16, 32);
        mark("full");
        give_pages(base, pages, 0, 48, zero);
        mark("asleep");
        take_pages(base, pages, 0, 16);
        mark("awake");
    }
    mark("end");
}

/* PyTorch's own expandable segments: pages of 20 MiB in a reservation that is larger than all of
   them, unmapped where no block is. */
static void expandable(int cycles) {
    const size_t page = 20 * MIB;
    CUhandle pages[8];
    CUdeviceptr base = reserve(64 * page);
    for (int n = 0; n < 8; n++) {
        pages[n] = create(page);
        map(base + n * page, page, pages[n]);
        tell_segment(0, page);
    }
    /* One block lies across pages. */
    weights_block(base, 30 * MIB);
    mark("awake");
    for (int cycle = 0; cycle < cycles; cycle++) {
        grow();
        kv_block(base + 3 * page, 90 * MIB);
        mark("full");
        tell_block(0, (void *)(base + 3 * page), -(int64_t)(90 * MIB));
        for (int n = 3; n < 8; n++) {
            unmap(base + n * page, page);
            release(pages[n]);
            tell_segment(0, -(int64_t)page);
        }
        mark("asleep");
        for (int n = 3; n < 8; n++) {
            pages[n] = create(page);
            map(base + n * page, page, pages[n]);
            tell_segment(0, page);
        }
        mark("awake");
    }
    mark("end");
}

int main(int count, char **words) {
    if (count < 4) return 2;
    int cycles = atoi(words[3]);
    if (count > 4) grows = words[4];
    waits = getenv("SLEEPING_WAITS") != NULL;
    if (waits) printf("ready\n"), fflush(stdout);
    begin(0);
    use_blocks(words[1]);
    allocated = CACHE(size_t, cache_allocated, (int));
    reserved = CACHE(size_t, cache_reserved, (int));
    MUST(CALL(cuStreamCreate, (CUstream *, unsigned))(&stream, 1));
    size_t total = 0;
    MUST(CALL(cuMemGetInfo_v2, (size_t *, size_t *))(&at_start, &total));
    if (!strcmp(words[2], "driver") || !strcmp(words[2], "kvcached")) tell_block = NULL;
    if (!strcmp(words[2], "torch")) sleeping_torch(cycles);
    else if (!strcmp(words[2], "driver")) sleeping_driver(cycles);
    else if (!strcmp(words[2], "kvcached")) kvcached(cycles);
    else if (!strcmp(words[2], "expandable")) expandable(cycles);
    else return 2;
    printf("bye\n");
    return 0;
}
