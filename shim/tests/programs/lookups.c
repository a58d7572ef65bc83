/* Looks up the driver in the way named by argv[1], and prints what it was given. */
#include "../../../tests/programs/driver.h"

typedef unsigned long long u64;
extern int cuInit(unsigned) __attribute__((weak));
extern int nvmlDeviceGetMemoryInfo(void *, void *) __attribute__((weak));

static const char *whose(void *p) {
    static char text[2][256];
    static int turn;
    char *out = text[turn++ & 1];
    Dl_info info;
    if (!p) return "nothing";
    if (!dladdr(p, &info)) return "unknown";
    const char *file = strrchr(info.dli_fname, '/');
    file = file ? file + 1 : info.dli_fname;
    snprintf(out, 256, "%s:%s", file, info.dli_sname ? info.dli_sname : "?");
    return out;
}

static void show(const char *what, void *p) {
    const char *error = dlerror();
    printf("%s %s%s\n", what, whose(p), error ? " (error)" : "");
}

/* An allocation through the pointer; how many reached the driver. */
static void use(void *driver, void *alloc) {
    int (*count)(void) = (int (*)(void))dlsym(driver, "witness_allocs");
    int before = count();
    u64 p = 0;
    errno = 77;
    int r = ((int (*)(u64 *, size_t, void *))alloc)(&p, 4096, NULL);
    printf("result %d, pointer %s, reached %d, errno %d\n", r, p ? "set" : "unset", count() - before, errno);
}

int main(int argc, char **argv) {
    const char *lookup = argc > 1 ? argv[1] : "";
    if (!strcmp(lookup, "none")) {
        show("default", dlsym(RTLD_DEFAULT, "cuInit"));
        show("next", dlsym(RTLD_NEXT, "cuInit"));
        show("program", dlsym(dlopen(NULL, RTLD_NOW), "cuInit"));
        show("versioned", dlvsym(RTLD_DEFAULT, "cuInit", "GLIBC_2.2.5"));
        show("nvml", dlsym(RTLD_DEFAULT, "nvmlDeviceGetMemoryInfo"));
        show("close by", dlsym(RTLD_DEFAULT, "cudnnCreate"));
        show("malloc", dlsym(RTLD_DEFAULT, "malloc"));
        show("libm", dlsym(dlopen("libm.so.6", RTLD_NOW), "malloc") ? NULL : NULL);
        return 0;
    }
    if (!strcmp(lookup, "weak")) {
        if (cuInit) printf("cuInit %d\n", cuInit(0)); else puts("cuInit absent");
        if (nvmlDeviceGetMemoryInfo) printf("nvml %d\n", nvmlDeviceGetMemoryInfo(NULL, NULL)); else puts("nvml absent");
        return 0;
    }
    int global = !strcmp(lookup, "global");
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | (global ? RTLD_GLOBAL : RTLD_LOCAL));
    if (!driver) { printf("no driver: %s\n", dlerror()); return 1; }
    if (!strcmp(lookup, "dlsym")) {
        show("cuMemAlloc_v2", dlsym(driver, "cuMemAlloc_v2"));
        show("again", dlsym(driver, "cuMemAlloc_v2"));
        show("not ours", dlsym(driver, "cuFuncSetSharedMemConfig"));
        show("not there", dlsym(driver, "cuMulticastCreate"));
        show("prefix", dlsym(driver, "cuMemAlloc_v"));
        show("empty", dlsym(driver, ""));
        use(driver, dlsym(driver, "cuMemAlloc_v2"));
        use(driver, dlsym(driver, "cuMemAllocAsync"));
        void *(*own)(void) = (void *(*)(void))dlsym(driver, "witness_own");
        show("the driver's own", own());
    } else if (global) {
        show("default", dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"));
        show("next", dlsym(RTLD_NEXT, "cuMemAlloc_v2"));
        show("program", dlsym(dlopen(NULL, RTLD_NOW), "cuMemAlloc_v2"));
    } else if (!strcmp(lookup, "dlsym-of-dlsym")) {
        const char *files[] = {"libc.so.6", "libdl.so.2"};
        for (int i = 0; i < 2; i++) {
            void *h = dlopen(files[i], RTLD_NOW);
            void *(*look)(void *, const char *) = (void *(*)(void *, const char *))dlsym(h, "dlsym");
            if (!look) { printf("%s has none\n", files[i]); dlerror(); continue; }
            show(files[i], look(driver, "cuMemAlloc_v2"));
            void *(*old)(void *, const char *) = (void *(*)(void *, const char *))dlvsym(h, "dlsym", "GLIBC_2.2.5");
            show("old", old ? old(driver, "cuMemAlloc_v2") : NULL);
        }
        void *(*look)(void *, const char *) = (void *(*)(void *, const char *))dlsym(RTLD_NEXT, "dlsym");
        show("next", look(driver, "cuMemAlloc_v2"));
    } else if (!strcmp(lookup, "proc")) {
        void *v1 = dlsym(driver, "cuGetProcAddress"), *v2 = dlsym(driver, "cuGetProcAddress_v2");
        show("v1", v1);
        show("v2", v2);
        int (*get1)(const char *, void **, int, u64) = (int (*)(const char *, void **, int, u64))v1;
        int (*get2)(const char *, void **, int, u64, int *) = (int (*)(const char *, void **, int, u64, int *))v2;
        static const struct { const char *name; int version; u64 flags; } asks[] = {
            {"cuMemAlloc", 2000, 0}, {"cuMemAlloc", 3020, 0}, {"cuMemAlloc", 13000, 2},
            {"cuMemAllocAsync", 11000, 0}, {"cuMemAllocAsync", 11020, 0}, {"cuMemAllocAsync", 12000, 1},
            {"cuMemAllocAsync", 13000, 2}, {"cuGetProcAddress", 11030, 0}, {"cuGetProcAddress", 12000, 0},
            {"cuFuncSetSharedMemConfig", 12000, 0}, {"cuMemAllocFuture", 13000, 0}, {"", 0, 0},
        };
        for (unsigned i = 0; i < sizeof asks / sizeof *asks; i++) {
            void *a = (void *)&asks, *b = (void *)&asks;
            int status = -7;
            int r1 = get1(asks[i].name, &a, asks[i].version, asks[i].flags);
            int r2 = get2(asks[i].name, &b, asks[i].version, asks[i].flags, i & 1 ? &status : NULL);
            printf("%s/%d/%llu %d %s %d %s %d\n", asks[i].name, asks[i].version, asks[i].flags, r1, whose(a), r2, whose(b), status);
        }
        void *f = NULL;
        get2("cuMemAllocAsync", &f, 12000, 2, NULL);
        use(driver, f);
        get1("cuMemAlloc", &f, 11030, 0);
        use(driver, f);
    } else if (!strcmp(lookup, "plugin")) {
        void *h = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL);
        if (!h) { puts(dlerror()); return 1; }
        void *(*look)(const char *) = (void *(*)(const char *))dlsym(h, "plugin_next");
        show("driver by RTLD_NEXT", look("cuMemAlloc_v2"));
        void *next = look("malloc");
        printf("malloc behind the plugin: %s\n", next && strncmp(whose(next), "libc.so.6", 9) == 0 ? "libc" : whose(next));
        use(driver, look("cuMemAlloc_v2"));
    } else {
        printf("no such lookup: %s\n", lookup);
        return 2;
    }
    return 0;
}
