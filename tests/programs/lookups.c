/* Takes 4 MiB of device memory and 4 MiB from the pool, each looked up in the way named by argv[1]. */
#include "driver.h"

typedef CUresult (*Get1)(const char *, void **, int, unsigned long long);
typedef CUresult (*Get2)(const char *, void **, int, unsigned long long, int *);
static const char *way;

static void *find(const char *symbol, const char *base, int version) {
    void *found = NULL;
    if (!strcmp(way, "dlsym")) return driver_function(symbol);
    if (!strcmp(way, "default")) {
        dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
        return dlsym(RTLD_DEFAULT, symbol);
    }
    if (!strcmp(way, "next")) {
        dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
        return dlsym(RTLD_NEXT, symbol);
    }
    if (!strcmp(way, "dlsym-of-dlsym")) {
        found = dlsym(dlopen("libc.so.6", RTLD_NOW), "dlsym");
        /* Below glibc 2.34. */
        if (!found) found = dlsym(dlopen("libdl.so.2", RTLD_NOW), "dlsym");
        void *(*look)(void *, const char *) = (void *(*)(void *, const char *))found;
        return look(dlopen("libcuda.so.1", RTLD_NOW), symbol);
    }
    if (!strncmp(way, "proc1", 5)) {
        MUST(((Get1)driver_function("cuGetProcAddress"))(base, &found, version, (unsigned long long)(way[6] - '0')));
        return found;
    }
    if (!strncmp(way, "proc2", 5)) {
        int status;
        Get2 get = (Get2)driver_function("cuGetProcAddress_v2");
        void *itself = NULL;
        MUST(get("cuGetProcAddress", &itself, 12000, 0, NULL));
        MUST(((Get2)itself)(base, &found, 13000, (unsigned long long)(way[6] - '0'), &status));
        if (status != 0) exit(97);
        return found;
    }
    fprintf(stderr, "no lookup %s\n", way);
    exit(96);
}

int main(int argc, char **argv) {
    way = argc > 1 ? argv[1] : "";
    begin(0);
    CUdeviceptr plain = 0, pooled = 0;
    SHOW(((CUresult(*)(CUdeviceptr *, size_t))find("cuMemAlloc_v2", "cuMemAlloc", 3020))(&plain, 4 << 20));
    SHOW(((CUresult(*)(CUdeviceptr *, size_t, CUstream))find("cuMemAllocAsync", "cuMemAllocAsync", 11020))(&pooled, 4 << 20, NULL));
    SHOW(((CUresult(*)(CUdeviceptr, CUstream))find("cuMemFreeAsync", "cuMemFreeAsync", 11020))(pooled, NULL));
    SHOW(((CUresult(*)(CUdeviceptr))find("cuMemFree_v2", "cuMemFree", 3020))(plain));
    return 0;
}
