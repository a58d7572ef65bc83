/* interrupted.c LIBC10_CUDA: a thread whose calls are interrupted, each time it reads the clock, for as long as another one
   takes to write some checkpoints into a trace with a limit of 4 MiB. (VRAMTRACE_TEST_CLOCK=1: the recorder reads this
   clock each time.) LIBC10_CUDA: a stand-in for PyTorch's allocator, for blocks. */
#include "cache.h"

/* More event records than lie between two checkpoints. */
#define PAIRS 7000
/* Of a call: while its thread writes a checkpoint itself, nothing may be erased. */
#define MOST 4

static _Atomic int wanted, done, pairs, ended;
static int whole;
static __thread int is_interrupted, times;

/* Where the thread holds a lock the other one cannot go on: then it is not interrupted. */
static void interrupt(void) {
    if (!is_interrupted || times++ >= MOST) return;
    int turn = ++wanted, before = -1;
    for (int looks = 0; done < turn && looks < 100; looks++) {
        if (pairs != before) looks = 0;
        before = pairs;
        usleep(1000);
    }
    whole += done >= turn;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    interrupt();
    return syscall(SYS_clock_gettime, clock, time);
}

static CUcontext context;

#define HELD(expression)            \
    do {                            \
        times = 0;                  \
        is_interrupted = 1;         \
        CUresult r_ = (expression); \
        is_interrupted = 0;         \
        MUST(r_);                   \
    } while (0)

static void *work(void *unused) {
    CUdeviceptr p;
    void *host;
    CUhandle object;
    CUarray array;
    CUcontext own;
    CUmemAllocationProp props = {.type = 1, .location = {1, 0}};
    CUarrayDesc flat = {1024, 1024, 0x20, 1};
    MUST(CALL(cuCtxSetCurrent, (CUcontext))(context));
    MUST(CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&p, 4 * MIB));
    HELD(CALL(cuMemFree_v2, (CUdeviceptr))(p));
    HELD(CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&p, 4 * MIB));
    MUST(CALL(cuMemFree_v2, (CUdeviceptr))(p));
    MUST(CALL(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream))(&p, 4 * MIB, NULL));
    HELD(CALL(cuMemFreeAsync, (CUdeviceptr, CUstream))(p, NULL));
    MUST(CALL(cuMemAllocHost_v2, (void **, size_t))(&host, 4 * MIB));
    HELD(CALL(cuMemFreeHost, (void *))(host));
    MUST(CALL(cuArrayCreate_v2, (CUarray *, const CUarrayDesc *))(&array, &flat));
    HELD(CALL(cuArrayDestroy, (CUarray))(array));
    MUST(CALL(cuMemCreate, (CUhandle *, size_t, const CUmemAllocationProp *, uint64_t))(&object, 4 * MIB, &props, 0));
    HELD(CALL(cuMemRelease, (CUhandle))(object));
    MUST(CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&p, 20 * MIB));
    tell_block(0, (char *)p, 4096);
    times = 0;
    is_interrupted = 1;
    tell_block(0, (char *)p, -4096);
    is_interrupted = 0;
    MUST(CALL(cuMemFree_v2, (CUdeviceptr))(p));
    MUST(CALL(cuCtxCreate_v2, (CUcontext *, unsigned, CUdevice))(&own, 0, 0));
    MUST(CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&p, 4 * MIB));
    HELD(CALL(cuCtxDestroy_v2, (CUcontext))(own));
    ended = 1;
    return unused;
}

int main(int count, char **arguments) {
    pthread_t thread;
    if (count < 2) return 97;
    context = begin(0);
    use_blocks(arguments[1]);
    pthread_create(&thread, NULL, work, NULL);
    while (!ended) {
        if (wanted == done) {
            usleep(100);
            continue;
        }
        int turn = wanted;
        for (int k = 0; k < PAIRS; k++, pairs++) driver_pairs(1, 2 * MIB);
        done = turn;
    }
    pthread_join(thread, NULL);
    return whole >= 10 ? 0 : 95;
}
