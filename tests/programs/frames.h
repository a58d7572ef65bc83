/* Allocates and prints, for each size, the return addresses that backtrace() sees from there:
   `size label address,address,...`. Both are asked by one function, so that only the first address,
   inside of it, differs. */
#ifndef FRAMES_H
#define FRAMES_H
#include "driver.h"
#include <execinfo.h>

#ifdef __cplusplus
extern "C" {
#endif
/* For a library: the program's own. */
typedef void (*frames_take)(const char *label);

#ifndef FRAMES_LIBRARY
static CUresult (*frames_allocate)(CUdeviceptr *, size_t);
static CUcontext frames_context;

static void frames_begin(void) {
    frames_context = begin(0);
    frames_allocate = CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t));
}

__attribute__((noinline)) static void take(const char *label) {
    static unsigned last;
    void *seen[512];
    char line[512 * 16], *at = line;
    CUdeviceptr address;
    size_t size = 512ull * __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
    MUST(CALL(cuCtxSetCurrent, (CUcontext))(frames_context));
    MUST(frames_allocate(&address, size));
    int count = backtrace(seen, 512);
    at += sprintf(at, "%zu %s ", size, label);
    for (int k = 0; k < count; k++) at += sprintf(at, "%s%lx", k ? "," : "", (unsigned long)seen[k]);
    puts(line);
}
#endif
#ifdef __cplusplus
}
#endif
#endif
