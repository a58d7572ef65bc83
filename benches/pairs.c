/* pairs.c [THREADS [SPIN_NS]]: ns per allocate + free pair, over whatever libcuda.so.1 the loader finds, on 1, 2, 4 ...
   THREADS threads (default 2; a synchronous pair on 2 at most), each with its stream; and per dlsym. SPIN_NS: spins before
   each call, to show the effect of a delay alone. Prints "async THREADS NS", "sync THREADS NS", "dlsym 1 NS" (best of
   several rounds). */
#include "../tests/programs/driver.h"

static CUcontext context;
static int rounds, synchronous, spin;
enum { PAIRS = 20000, ATTEMPTS = 3 };
static CUresult (*alloc_async)(CUdeviceptr *, size_t, CUstream);
static CUresult (*free_async)(CUdeviceptr, CUstream);
static CUresult (*alloc_sync)(CUdeviceptr *, size_t);
static CUresult (*free_sync)(CUdeviceptr);
static CUresult (*synchronize)(CUstream);

static void delay(void) {
    for (double end = spin ? now_ns() + spin : 0; spin && now_ns() < end;) {}
}

static void *worker(void *unused) {
    CUstream stream;
    CUdeviceptr p;
    MUST(CALL(cuCtxSetCurrent, (CUcontext))(context));
    MUST(CALL(cuStreamCreate, (CUstream *, unsigned))(&stream, 1));
    for (int k = 0; k < rounds; k++) {
        delay();
        if (synchronous) {
            MUST(alloc_sync(&p, 1024));
            delay();
            MUST(free_sync(p));
        } else {
            MUST(alloc_async(&p, 65536, stream));
            delay();
            MUST(free_async(p, stream));
            if (k % 200 == 199) synchronize(stream);
        }
    }
    synchronize(stream);
    return unused;
}

static void measure(const char *what, int threads) {
    double best = 1e18;
    rounds = PAIRS / threads;
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        double start = now_ns();
        on_threads(threads, worker);
        double each = (now_ns() - start) / rounds;
        if (each < best) best = each;
    }
    printf("%s %d %.1f\n", what, threads, best);
}

int main(int count, char **words) {
    int most = count > 1 ? atoi(words[1]) : 2;
    CUmemoryPool pool;
    unsigned long long keep = ~0ull;
    CUdeviceptr slab;
    context = begin(0);
    alloc_async = CALL(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream));
    free_async = CALL(cuMemFreeAsync, (CUdeviceptr, CUstream));
    alloc_sync = CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t));
    free_sync = CALL(cuMemFree_v2, (CUdeviceptr));
    synchronize = CALL(cuStreamSynchronize, (CUstream));
    MUST(CALL(cuDeviceGetDefaultMemPool, (CUmemoryPool *, CUdevice))(&pool, 0));
    MUST(CALL(cuMemPoolSetAttribute, (CUmemoryPool, int, void *))(pool, 4, &keep));
    MUST(alloc_sync(&slab, 512)); /* keeps a page: small pairs are served from it */
    spin = count > 2 ? atoi(words[2]) : 0;
    if (most < 1 || most > 8) return 2;
    for (synchronous = 0; synchronous < 2; synchronous++)
        for (int threads = 1; threads <= (synchronous ? 2 : most); threads *= 2)
            measure(synchronous ? "sync" : "async", threads);
    void *self = dlopen(NULL, RTLD_NOW);
    double best = 1e18;
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        double start = now_ns();
        for (int k = 0; k < 100000; k++)
            if (!dlsym(self, "malloc")) return 1;
        double each = (now_ns() - start) / 100000;
        if (each < best) best = each;
    }
    printf("dlsym 1 %.1f\n", best);
    return 0;
}
