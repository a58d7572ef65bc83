/* Time of a cuMemAllocAsync + cuMemFreeAsync pair on 1, 2, 4 and 8 threads, each with its stream, and of a
   cuMemAlloc + cuMemFree pair. Prints ns per pair: "PAIR async 1 1234". Links libcuda directly.
   With an argument N: spins for N ns before each call, to show the effect of a delay alone. */
#include <cuda.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <x86intrin.h>

static CUcontext context;
static int rounds;
static unsigned long long spin;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

static void ok(CUresult r, const char *what) {
    if (r) {
        fprintf(stderr, "%s: %d\n", what, r);
        exit(1);
    }
}

static void rest(void) {
    if (spin) {
        unsigned long long end = __rdtsc() + spin;
        while (__rdtsc() < end) {
        }
    }
}

static void *worker(void *unused) {
    CUstream stream;
    CUdeviceptr p;
    ok(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    ok(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    for (int k = 0; k < rounds; k++) {
        rest();
        ok(cuMemAllocAsync(&p, 65536, stream), "cuMemAllocAsync");
        rest();
        ok(cuMemFreeAsync(p, stream), "cuMemFreeAsync");
        if (k % 200 == 199) cuStreamSynchronize(stream);
    }
    cuStreamSynchronize(stream);
    return unused;
}

int main(int count, char **arguments) {
    CUdevice device;
    CUmemoryPool pool;
    cuuint64_t keep = ~0ull;
    ok(cuInit(0), "cuInit");
    ok(cuDeviceGet(&device, 0), "cuDeviceGet");
    ok(cuDevicePrimaryCtxRetain(&context, device), "retain");
    ok(cuCtxSetCurrent(context), "current");
    ok(cuDeviceGetDefaultMemPool(&pool, device), "pool");
    ok(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep), "threshold");
    rounds = 2000;
    worker(0);
    if (count > 1) {
        double from = now();
        unsigned long long ticks = __rdtsc();
        while (now() - from < 2e7) {
        }
        spin = (__rdtsc() - ticks) / (now() - from) * atof(arguments[1]);
    }
    for (int threads = 1; threads <= 8; threads *= 2) {
        pthread_t t[8];
        rounds = threads == 1 ? 50000 : 40000 / threads;
        double start = now();
        for (int i = 0; i < threads; i++) pthread_create(&t[i], 0, worker, 0);
        for (int i = 0; i < threads; i++) pthread_join(t[i], 0);
        printf("PAIR async %d %.0f\n", threads, (now() - start) / rounds);
    }
    CUdeviceptr keep_slab, p;
    ok(cuMemAlloc(&keep_slab, 1024), "cuMemAlloc");
    double start = now();
    for (int k = 0; k < 20000; k++) {
        rest();
        ok(cuMemAlloc(&p, 1024), "cuMemAlloc");
        rest();
        ok(cuMemFree(p), "cuMemFree");
    }
    printf("PAIR sync 1 %.0f\n", (now() - start) / 20000);
    return 0;
}
