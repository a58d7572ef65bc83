/* The driver by dlopen and dlsym, as most programs here use it: a function pointer per name. */
#ifndef DRIVER_H
#define DRIVER_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "cuda_min.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static inline void *function_of(void *library, const char *name) {
    void *address = library ? dlsym(library, name) : NULL;
    if (!address) {
        fprintf(stderr, "%s: not found\n", name);
        exit(99);
    }
    return address;
}

static inline void *driver_function(const char *name) {
    static void *libcuda;
    if (!libcuda) libcuda = dlopen("libcuda.so.1", RTLD_NOW);
    return function_of(libcuda, name);
}

static inline void *nvml_function(const char *name) {
    static void *library;
    if (!library) library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    return function_of(library, name);
}

/* CALL(CUresult, cuMemAlloc_v2, (CUdeviceptr *, size_t))(&p, n) */
#define CALL(name, types) ((CUresult(*) types)driver_function(#name))
#define NVML(name, types) ((int(*) types)nvml_function(#name))

/* A function that the trace names, and the end of one: else its last call would be a jump. */
#define NEVER __attribute__((noinline, noclone))
#define STAY __asm__ volatile("" ::: "memory")

/* Prints and goes on: the bare and the preloaded run must print the same. */
#define SHOW(expression) printf("%s = %d\n", #expression, (expression))

#define MUST(expression)                                                             \
    do {                                                                             \
        int result_ = (expression);                                                  \
        if (result_ != 0) {                                                          \
            fprintf(stderr, "%s:%d: %s = %d\n", __FILE__, __LINE__, #expression, result_); \
            exit(98);                                                                \
        }                                                                            \
    } while (0)

/* cuInit, primary context of `ordinal` made current; returns the context. */
static inline CUcontext begin(int ordinal) {
    CUdevice device;
    CUcontext context;
    MUST(CALL(cuInit, (unsigned))(0));
    MUST(CALL(cuDeviceGet, (CUdevice *, int))(&device, ordinal));
    MUST(CALL(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))(&context, device));
    MUST(CALL(cuCtxSetCurrent, (CUcontext))(context));
    return context;
}

static inline CUdeviceptr driver_take(size_t bytes) {
    CUdeviceptr at;
    MUST(CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&at, bytes));
    return at;
}

static inline void driver_give(CUdeviceptr at) { MUST(CALL(cuMemFree_v2, (CUdeviceptr))(at)); }

/* So many allocations, each freed at once. */
static inline void driver_pairs(unsigned long count, size_t bytes) {
    CUresult (*take)(CUdeviceptr *, size_t) = CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t));
    CUresult (*give)(CUdeviceptr) = CALL(cuMemFree_v2, (CUdeviceptr));
    for (CUdeviceptr at; count; count--) {
        MUST(take(&at, bytes));
        MUST(give(at));
    }
}

static inline long long now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

/* Calls `what` below `depth` more frames. Two calls that are not made one: each path of zeros and ones is another stack. */
__attribute__((noinline, noclone, unused)) static void below_frames(int depth, unsigned path, void (*what)(void)) {
    if (depth == 0) {
        what();
    } else if (path & 1) {
        below_frames(depth - 1, path >> 1, what);
        __asm__ volatile("/* one */" ::: "memory"); /* nor does a call at the end become a jump */
    } else {
        below_frames(depth - 1, path >> 1, what);
        __asm__ volatile("/* zero */" ::: "memory");
    }
    STAY;
}

/* Runs a thread on a stack of 1 MiB. Returns the bytes of it that were written. */
static inline size_t stack_used(void *(*work)(void *)) {
    enum { SIZE = 1 << 20 };
    pthread_attr_t attributes;
    pthread_t thread;
    size_t untouched = 0;
    unsigned char *stack = (unsigned char *)mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(stack, 0xa5, SIZE);
    pthread_attr_init(&attributes);
    pthread_attr_setstack(&attributes, stack, SIZE);
    pthread_create(&thread, &attributes, work, NULL);
    pthread_join(thread, NULL);
    while (untouched < SIZE && stack[untouched] == 0xa5) untouched++;
    return SIZE - untouched;
}

/* By NVML: bytes of this process, or of all, on a device; 0: it does not say. */
enum { THIS_PROCESS, ALL_PROCESSES };
static inline unsigned long long nvml_used(unsigned ordinal, int which) {
    struct {
        unsigned pid;
        unsigned long long bytes;
        unsigned gpu, compute;
    } infos[64];
    static int is_open;
    unsigned count = 64;
    unsigned long long sum = 0;
    void *handle;
    if (!is_open) NVML(nvmlInit_v2, (void))();
    is_open = 1;
    NVML(nvmlDeviceGetHandleByIndex_v2, (unsigned, void **))(ordinal, &handle);
    if (NVML(nvmlDeviceGetComputeRunningProcesses_v3, (void *, unsigned *, void *))(handle, &count, infos)) count = 0;
    for (unsigned n = 0; n < count; n++)
        if (which == ALL_PROCESSES || infos[n].pid == (unsigned)getpid()) sum += infos[n].bytes;
    return sum;
}

/* Runs so many threads to their end; each gets its number. */
static inline void on_threads(size_t count, void *(*work)(void *)) {
    pthread_t threads[64];
    for (size_t n = 0; n < count; n++) pthread_create(&threads[n], NULL, work, (void *)n);
    for (size_t n = 0; n < count; n++) pthread_join(threads[n], NULL);
}

typedef struct {
    const char *name;
    void (*run)(void);
} named_way;

/* Runs the one of this name, and returns the exit status of the program. No name, or "none": none of them. */
#define RUN_WAY(name, ...) run_way(name, (const named_way[]){__VA_ARGS__, {NULL, NULL}})

static inline int run_way(const char *name, const named_way *each) {
    if (!*name || !strcmp(name, "none")) return 0;
    while (each->name && strcmp(each->name, name)) each++;
    if (!each->name) {
        fprintf(stderr, "%s: no such way\n", name);
        return 97;
    }
    each->run();
    return 0;
}
#endif
