/* stacks.c: a library that stacks.py calls below its own frames. It goes down through C frames until
   the native stack is as deep as asked, then times a pair of allocation and free there, and backtrace(). */
#include "../tests/programs/driver.h"
#include <execinfo.h>
#include <stdlib.h>
#include <time.h>

static CUresult (*take)(CUdeviceptr *, size_t, CUstream);
static CUresult (*give)(CUdeviceptr, CUstream);
static CUstream stream;
static int rounds;
static double found;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

int start(void) {
    CUmemoryPool pool;
    unsigned long long keep = ~0ull;
    begin(0);
    take = CALL(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream));
    give = CALL(cuMemFreeAsync, (CUdeviceptr, CUstream));
    MUST(CALL(cuDeviceGetDefaultMemPool, (CUmemoryPool *, CUdevice))(&pool, 0));
    MUST(CALL(cuMemPoolSetAttribute, (CUmemoryPool, int, void *))(pool, 4, &keep));
    MUST(CALL(cuStreamCreate, (CUstream *, unsigned))(&stream, 1));
    return 0;
}

static void pairs(void) {
    CUdeviceptr p;
    double from = now();
    for (int k = 0; k < rounds; k++) {
        MUST(take(&p, 65536, stream));
        MUST(give(p, stream));
    }
    found = (now() - from) / rounds;
}

static void traces(void) {
    void *frames[128];
    double from = now();
    for (int k = 0; k < rounds; k++)
        if (!backtrace(frames, 128)) abort();
    found = (now() - from) / rounds;
}

static void count(void) {
    void *frames[128];
    found = backtrace(frames, 128);
}

/* Two calls, so that each path of zeros and ones is a stack of its own. */
__attribute__((noinline)) static void down(int depth, unsigned path, void (*what)(void)) {
    if (!depth)
        what();
    else if (path & 1)
        down(depth - 1, path >> 1, what);
    else
        down(depth - 1, path >> 1, what);
    __asm__ volatile(""); /* no call at the end becomes a jump */
}

/* ns a pair; `path` chooses among stacks of equal depth. */
double pair(int depth, unsigned path, int times) {
    rounds = times;
    down(depth, path, pairs);
    return found;
}

double trace(int depth, int times) {
    rounds = times;
    down(depth, 0, traces);
    return found;
}

/* Native frames that backtrace() sees, its caller's not among them. */
int frames(int depth) {
    down(depth, 0, count);
    return (int)found - 1;
}
