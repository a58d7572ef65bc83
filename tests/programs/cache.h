/* The stand-in of PyTorch's cache (libc10_cuda.c), opened as Python opens an extension: for itself alone. */
#ifndef CACHE_H
#define CACHE_H
#include "driver.h"

static void *cache_library;
/* Absent: no blocks are reported. */
static void (*tell_block)(int, void *, int64_t);
static void (*tell_segment)(int, int64_t);
#define CACHE(result, name, types) ((result(*) types)dlsym(cache_library, #name))

static inline void use_blocks(const char *path) {
    cache_library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!cache_library) {
        fprintf(stderr, "%s\n", dlerror());
        exit(97);
    }
    tell_block = CACHE(void, cache_block, (int, void *, int64_t));
    tell_segment = CACHE(void, cache_reserve, (int, int64_t));
}

/* 20 MiB of the driver. */
static inline char *segment_of(int device) {
    CUdeviceptr at = driver_take(20 * MIB);
    tell_segment(device, 20 * MIB);
    return (char *)at;
}
#endif
