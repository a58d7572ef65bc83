/* The driver by dlopen and dlsym, as most programs here use it: a function pointer per name. */
#ifndef DRIVER_H
#define DRIVER_H
#include "cuda_min.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

static inline void *driver_function(const char *name) {
    static void *libcuda;
    if (!libcuda) libcuda = dlopen("libcuda.so.1", RTLD_NOW);
    void *address = libcuda ? dlsym(libcuda, name) : NULL;
    if (!address) {
        fprintf(stderr, "%s: not found\n", name);
        exit(99);
    }
    return address;
}

/* CALL(CUresult, cuMemAlloc_v2, (CUdeviceptr *, size_t))(&p, n) */
#define CALL(name, types) ((CUresult(*) types)driver_function(#name))

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
#endif
