/* limited WHEN WHAT: the system gives the process no more memory from the start, or after the first
   calls. WHAT: as (address space), data, maps (as many mappings as there may be). Over a driver that
   takes no memory itself; prints how many of its requests were granted. */
#include "driver.h"

enum { LIVE = 200000 };
static CUdeviceptr live[LIVE];
static CUresult (*allocate)(CUdeviceptr *, size_t);
static CUresult (*release)(CUdeviceptr);

static void no_more(const char *what) {
    struct rlimit none = {4096, 4096};
    setvbuf(stdout, NULL, _IONBF, 0);
    if (!strcmp(what, "as")) MUST(setrlimit(RLIMIT_AS, &none));
    if (!strcmp(what, "data")) MUST(setrlimit(RLIMIT_DATA, &none));
    if (!strcmp(what, "maps")) {
        /* Of two kinds in turns, or the kernel makes one of them. */
        for (int k = 0;; k++)
            if (mmap(NULL, 4096, k & 1 ? PROT_READ : PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED)
                return;
    }
}

static int grant(int count) {
    int granted = 0;
    for (int k = 0; k < count; k++) {
        live[k] = 0;
        granted += allocate(&live[k], 4 << 20) == 0;
    }
    return granted;
}

static int give_back(int count) {
    int freed = 0;
    for (int k = 0; k < count; k++)
        if (live[k]) freed += release(live[k]) == 0;
    return freed;
}

int main(int count, char **arguments) {
    if (count < 3) return 98;
    CUresult (*init)(unsigned) = CALL(cuInit, (unsigned));
    CUresult (*retain)(CUcontext *, CUdevice) = CALL(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice));
    CUresult (*current)(CUcontext) = CALL(cuCtxSetCurrent, (CUcontext));
    allocate = CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t));
    release = CALL(cuMemFree_v2, (CUdeviceptr));
    printf("start\n");
    if (!strcmp(arguments[1], "start")) no_more(arguments[2]);
    CUcontext context;
    MUST(init(0));
    MUST(retain(&context, 0));
    MUST(current(context));
    printf("granted %d\n", grant(100));
    printf("freed %d\n", give_back(100));
    if (!strcmp(arguments[1], "later")) no_more(arguments[2]);
    for (int round = 0; round < 2; round++) {
        int granted = grant(LIVE);
        printf("granted %d\n", granted);
        printf("all came back %d\n", give_back(LIVE) == granted);
    }
    return 0;
}
