/* second.c PATH WAY: uses the driver, and then another copy of it, opened by its path. WAY: dlsym |
   proc | version (asks the copy for nothing but its version). */
#include "driver.h"

static void *copy;
static CUresult (*get)(const char *, void **, int, unsigned long long, int *);

static void *of_copy(const char *name, const char *base) {
    void *found = NULL;
    if (!get) return dlsym(copy, name);
    int result = get(base, &found, 13000, 0, NULL);
    printf("%s by cuGetProcAddress = %d\n", base, result);
    return found;
}

int main(int count, char **arguments) {
    int device, version = 0;
    void *context, *init, *retain, *set, *take;
    CUdeviceptr p = 0;
    if (count < 3) return 95;
    begin(0);
    SHOW(CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&p, 4 * MIB));
    copy = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
    if (!copy) return 94;
    SHOW(((CUresult(*)(int *))dlsym(copy, "cuDriverGetVersion"))(&version));
    if (!strcmp(arguments[2], "version")) return 0;
    if (!strcmp(arguments[2], "proc")) get = dlsym(copy, "cuGetProcAddress_v2");
    if (!(init = of_copy("cuInit", "cuInit"))) return 0;
    SHOW(((CUresult(*)(unsigned))init)(0));
    if (((CUresult(*)(int *, int))dlsym(copy, "cuDeviceGet"))(&device, 0) != 0) return 0;
    retain = of_copy("cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRetain");
    set = dlsym(copy, "cuCtxSetCurrent");
    take = of_copy("cuMemAlloc_v2", "cuMemAlloc");
    SHOW(((CUresult(*)(void **, int))retain)(&context, device));
    SHOW(((CUresult(*)(void *))set)(context));
    SHOW(((CUresult(*)(CUdeviceptr *, size_t))take)(&p, 64 * MIB));
    SHOW(CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&p, 8 * MIB));
    return 0;
}
