/* A driver that does nothing but bear witness: stands in for libcuda.so.1, counts the calls that
 * reach it, and keeps the habits of the real one that matter to a lookup: it looks up its own names
 * while it starts, and calls its own exported functions. */
#include "../../../tests/programs/driver.h"

typedef int CUresult;
typedef unsigned long long u64;

static int allocs, inits;
int witness_allocs(void) { return allocs; }
int witness_inits(void) { return inits; }

/* What its own look-ups gave while it started: must be itself. */
static void *own;
void *witness_own(void) { return own; }
CUresult cuMemAlloc_v2(u64 *p, size_t n);
__attribute__((constructor)) static void start(void) {
    own = dlsym(RTLD_DEFAULT, "cuDriverGetVersion");
    Dl_info info;
    if (own && dladdr(own, &info) && !strstr(info.dli_fname, "libcuda")) {
        /* The search order puts an interposer first for RTLD_DEFAULT: ask our own handle. */
        dladdr((void *)&witness_own, &info);
        void *self = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
        own = self ? dlsym(self, "cuDriverGetVersion") : NULL;
    }
}

CUresult cuInit(unsigned flags) { (void)flags; inits++; return 0; }
CUresult cuDriverGetVersion(int *v) { *v = 13000; return 0; }
CUresult cuMemAlloc(unsigned *p, unsigned n) { (void)n; *p = 0x1000; allocs++; return 0; }
CUresult cuMemAlloc_v2(u64 *p, size_t n) {
    if (n == 0) return 1;
    *p = 0x700000000000ull + 0x200000ull * (u64)allocs++;
    return 0;
}
/* As the real one did: one exported function calls another. */
CUresult cuMemAllocAsync(u64 *p, size_t n, void *s) { (void)s; return cuMemAlloc_v2(p, n); }
CUresult cuMemAllocAsync_ptsz(u64 *p, size_t n, void *s) { (void)s; return cuMemAlloc_v2(p, n); }
CUresult cuMemFree_v2(u64 p) { (void)p; return 0; }
CUresult cuFuncSetSharedMemConfig(void) { return 0; }
CUresult cuMemAllocFuture(u64 *p) { (void)p; return 0; }

CUresult cuGetProcAddress_v2(const char *name, void **fn, int version, u64 flags, int *status);
CUresult cuGetProcAddress(const char *name, void **fn, int version, u64 flags) {
    return cuGetProcAddress_v2(name, fn, version, flags, NULL);
}
CUresult cuGetProcAddress_v2(const char *name, void **fn, int version, u64 flags, int *status) {
    void *found = NULL;
    if (!strcmp(name, "cuInit")) found = (void *)cuInit;
    if (!strcmp(name, "cuMemAlloc")) found = version >= 3020 ? (void *)cuMemAlloc_v2 : (void *)cuMemAlloc;
    if (!strcmp(name, "cuMemAllocAsync") && version >= 11020)
        found = flags & 2 ? (void *)cuMemAllocAsync_ptsz : (void *)cuMemAllocAsync;
    if (!strcmp(name, "cuFuncSetSharedMemConfig")) found = (void *)cuFuncSetSharedMemConfig;
    if (!strcmp(name, "cuMemAllocFuture")) found = (void *)cuMemAllocFuture;
    if (!strcmp(name, "cuGetProcAddress"))
        found = version >= 12000 ? (void *)cuGetProcAddress_v2 : (void *)cuGetProcAddress;
    *fn = found;
    if (status) *status = found ? 0 : 1;
    return found ? 0 : 500;
}
