/* Runs out of memory in every way. Stand-ins of PyTorch's allocator are opened where MODE needs them.
   out_of_memory LIBC10_CUDA MODE [COUNT]
   Prints what it was given; what it returns is as a program of its kind would. */
#include "cache.h"

static int ask(CUdeviceptr *at, uint64_t mib) {
    int result = CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(at, mib * MIB);
    printf("%llu MiB: %d\n", (unsigned long long)mib, result);
    return result;
}

static void block(CUdeviceptr at, int64_t mib) { tell_block(0, (void *)at, mib * (int64_t)MIB); }

static void reserve(int64_t mib) { tell_segment(0, mib * (int64_t)MIB); }

static void gives_up(int64_t mib) { CACHE(void, cache_refuse, (int, int64_t))(0, mib * (int64_t)MIB); }

static CUdeviceptr segment(int64_t mib) {
    CUdeviceptr at = 0;
    MUST(ask(&at, mib));
    reserve(mib);
    return at;
}

static void wait_ms(int ms) {
    struct timespec time = {ms / 1000, ms % 1000 * 1000000l};
    nanosleep(&time, NULL);
}

/* 8 segments of 100 MiB; in each a block of 40, a hole of 30, a block of 30. Beside them 10 MiB. */
static void fragments(int unused) {
    CUdeviceptr other;
    (void)unused;
    for (int n = 0; n < 8; n++) {
        CUdeviceptr at = segment(100);
        block(at, 40);
        block(at + 70 * MIB, 30);
    }
    MUST(ask(&other, 10));
}

/* 10 mappings of 20 MiB side by side; blocks of 30 and 20 MiB with 60 between them and 90 behind. */
static void expandable(int unused) {
    (void)unused;
    CUmemAllocationProp props = {.type = 1, .location = {1, 0}};
    CUdeviceptr base = 0;
    MUST(CALL(cuMemAddressReserve, (CUdeviceptr *, size_t, size_t, CUdeviceptr, uint64_t))(&base, 1024 * MIB, 0, 0, 0));
    for (int n = 0; n < 10; n++) {
        CUhandle handle;
        MUST(CALL(cuMemCreate, (CUhandle *, size_t, const CUmemAllocationProp *, uint64_t))(&handle, 20 * MIB, &props, 0));
        MUST(CALL(cuMemMap, (CUdeviceptr, size_t, size_t, CUhandle, uint64_t))(base + n * 20 * MIB, 20 * MIB, 0, handle, 0));
    }
    reserve(200);
    block(base, 30);
    block(base + 90 * MIB, 20);
}

/* As PyTorch asks: once more after its cache is empty, and then it gives up. */
static int torch_asks(int64_t mib) {
    CUdeviceptr at = 0;
    if (ask(&at, mib) == 0 || ask(&at, mib) == 0) return 0;
    gives_up(mib);
    return 1;
}

/* Each time the cache gives a segment back, and then there is room. */
static void absorbed(int count) {
    CUdeviceptr at = segment(600), next = 0;
    for (int n = 0; n < count; n++) {
        if (ask(&next, 500) == 0) exit(90);
        driver_give(at);
        reserve(-600);
        MUST(ask(&next, 500));
        driver_give(next);
        at = segment(600);
    }
}

static __attribute__((noinline)) CUdeviceptr layer(uint64_t mib) {
    CUdeviceptr at = 0;
    MUST(ask(&at, mib));
    return at;
}

static void shares(int unused) {
    CUipcMemHandle handle;
    fragments(unused);
    CUdeviceptr first = segment(20);
    block(first, 20);
    MUST(CALL(cuIpcGetMemHandle, (CUipcMemHandle *, CUdeviceptr))(&handle, first));
}

/* What is there before PyTorch asks for so much, and gives up. */
static const struct {
    const char *mode;
    void (*prepare)(int count);
    int64_t mib;
} asking[] = {{"fragments", fragments, 128}, {"expandable", expandable, 1 << 20},
              {"mapped", expandable, 128},   {"shares", shares, 128},
              {"too-much", fragments, 900},  {"absorbed-then-out", absorbed, 900}};

static double ns_between(struct timespec start, struct timespec end) {
    return (end.tv_sec - start.tv_sec) * 1e9 + (end.tv_nsec - start.tv_nsec);
}

/* Asks for too much COUNT times, `and_little` in turns with little. Returns nanoseconds of processor time of each. */
static double refusals(int count, int and_little) {
    CUdeviceptr at;
    CUresult (*alloc)(CUdeviceptr *, size_t) = driver_function("cuMemAlloc_v2");
    CUresult (*release)(CUdeviceptr) = driver_function("cuMemFree_v2");
    struct timespec start, end;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &start);
    for (int n = 0; n < count; n++) {
        if (alloc(&at, 1ull << 40) != CUDA_ERROR_OUT_OF_MEMORY) exit(91);
        if (!and_little) continue;
        MUST(alloc(&at, 512));
        MUST(release(at));
    }
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
    return ns_between(start, end) / count;
}

static CUdeviceptr base;

static void *on_a_stack(void *unused) {
    void (*refuse)(int, int64_t) = CACHE(void, cache_refuse, (int, int64_t));
    block(base, 1);
    refuse(0, 64 * MIB);
    return unused;
}

static CUdeviceptr next_block;

static void small_block(void) { tell_block(0, (void *)next_block, 4096); }

int main(int count, char **words) {
    CUdeviceptr at = 0;
    if (count < 3) return 2;
    const char *mode = words[2];
    int number = count > 3 ? atoi(words[3]) : 0;
    begin(0);
    if (strcmp(words[1], "-")) use_blocks(words[1]);
    for (size_t n = 0; n < sizeof asking / sizeof *asking; n++)
        if (!strcmp(mode, asking[n].mode)) {
            asking[n].prepare(number);
            return torch_asks(asking[n].mib);
        }
    if (!strcmp(mode, "fraction")) {
        fragments(0);
        gives_up(64);
        return 1;
    }
    if (!strcmp(mode, "absorbed")) {
        absorbed(number);
        return 0;
    }
    if (!strcmp(mode, "burst")) {
        /* It is caught again and again, and blocks are made of what is there. */
        base = segment(600);
        for (int n = 0; n < number; n++) {
            torch_asks(900);
            block(base, 1);
            block(base, -1);
        }
        return 0;
    }
    if (!strcmp(mode, "twice")) {
        base = segment(600);
        torch_asks(900);
        block(base, 1);
        return torch_asks(901);
    }
    if (!strcmp(mode, "pool")) {
        /* All of the card in blocks of 3 MiB of a pool, of which every other one is freed. */
        CUdeviceptr blocks[1024];
        CUresult (*take)(CUdeviceptr *, size_t, CUstream) = driver_function("cuMemAllocAsync");
        int n = 0;
        while (n < 1024 && take(&blocks[n], 3 * MIB, NULL) == 0) n++;
        while ((n -= 2) >= 0) MUST(CALL(cuMemFreeAsync, (CUdeviceptr, CUstream))(blocks[n], NULL));
        MUST(CALL(cuStreamSynchronize, (CUstream))(NULL));
        return ask(&at, number);
    }
    if (!strcmp(mode, "exit")) {
        MUST(ask(&at, 600));
        return ask(&at, number);
    }
    if (!strcmp(mode, "exit-freed")) {
        /* As an interpreter does at its end: all is freed before it exits. FREED: after the first of two refusals. */
        int freed = count > 4 ? atoi(words[4]) : 0;
        CUdeviceptr layers[16];
        for (int n = 0; n < 16; n++) layers[n] = layer(32);
        int result = ask(&at, number);
        if (freed) {
            for (int n = 0; n < freed; n++) driver_give(layers[n]);
            result = ask(&at, number);
        }
        for (int n = freed; n < 16; n++) driver_give(layers[n]);
        return result;
    }
    if (!strcmp(mode, "probe-then-out")) {
        /* COUNT refusals, each with something given after it; then one that ends it. */
        for (int n = 0; n < 16; n++) layer(32);
        refusals(number, 1);
        layer(64);
        return ask(&at, 1 << 20);
    }
    if (!strcmp(mode, "probe")) {
        /* COUNT times, with 100,000 allocations live. */
        CUresult (*alloc)(CUdeviceptr *, size_t) = driver_function("cuMemAlloc_v2");
        for (int n = 0; n < 100000; n++) MUST(alloc(&at, 512));
        fprintf(stderr, "%.0f\n", refusals(number, 1));
        return 0;
    }
    if (!strcmp(mode, "go-on")) {
        if (ask(&at, number) == 0) return 92;
        MUST(ask(&at, 100));
        return 0;
    }
    if (!strcmp(mode, "again") || !strcmp(mode, "again on request")) {
        if (ask(&at, number) == 0) return 92;
        fflush(stdout);
        wait_ms(1100);
        if (strcmp(mode, "again") && getchar() == EOF) return 93;
        if (ask(&at, number) == 0) return 92;
        ask(&at, number);
        MUST(ask(&at, 100));
        return 0;
    }
    if (!strcmp(mode, "slowly")) {
        /* A long time, but something was given in between. */
        if (ask(&at, number) == 0) return 92;
        wait_ms(1100);
        MUST(ask(&at, 100));
        if (ask(&at, number) == 0) return 92;
        MUST(ask(&at, 100));
        return 0;
    }
    if (!strcmp(mode, "fork")) {
        if (ask(&at, number) == 0) return 92;
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            SHOW(CALL(cuInit, (unsigned))(0));
            exit(3);
        }
        int status;
        waitpid(child, &status, 0);
        MUST(ask(&at, 100));
        return status != 3 << 8;
    }
    if (!strcmp(mode, "host")) {
        void *host = NULL;
        int result = CALL(cuMemAllocHost_v2, (void **, size_t))(&host, ~0ull >> 8);
        return printf("host: %d\n", result) < 0;
    }
    if (!strcmp(mode, "loop")) {
        fprintf(stderr, "%.0f\n", refusals(number, 0));
        MUST(ask(&at, 1));
        return 0;
    }
    if (!strcmp(mode, "stack")) {
        fragments(0);
        base = segment(20);
        fprintf(stderr, "%zu\n", stack_used(on_a_stack));
        return 0;
    }
    if (!strcmp(mode, "many")) {
        /* COUNT blocks of 4 KiB in segments of 20 MiB, of 4,096 stacks, with as much free behind each. */
        struct timespec start, end;
        for (int n = 0; n < number; n++) {
            int place = n % 2560;
            if (place == 0) base = segment(20);
            next_block = base + place * 8192ull;
            below_frames(12, n, small_block);
        }
        clock_gettime(CLOCK_MONOTONIC, &start);
        gives_up(64);
        clock_gettime(CLOCK_MONOTONIC, &end);
        printf("ns: %.0f\n", ns_between(start, end));
        return 0;
    }
    return 2;
}
