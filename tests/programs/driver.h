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
