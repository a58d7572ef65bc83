/* hazards MODE N: threads that allocate from stacks of many shapes while something else goes on:
     stress   they open and close libraries too
     exits    other threads come, allocate and go
     forks    the process forks N times; children allocate and end
     early    as forks, but the parent has not used the driver, and its threads hold the loader's
              lock most of the time
   Ends with 0 and prints what can be counted. */
#include "driver.h"
#include <link.h>

#define THREADS 8
static CUresult (*allocate)(CUdeviceptr *, size_t);
static CUresult (*release)(CUdeviceptr);
static CUresult (*current)(CUcontext);
static CUresult (*initialize)(unsigned);
static CUresult (*retain)(CUcontext *, CUdevice);
static CUcontext context;
static int stop;
static const char *const libraries[] = {"libm.so.6", "libresolv.so.2", "libutil.so.1", "libanl.so.1"};

static __thread CUresult result;

static void pair(void) {
    CUdeviceptr address;
    result = allocate(&address, 4096);
    if (result == 0) result = release(address);
}

static CUresult down(int depth, unsigned path) {
    below_frames(depth, path, pair);
    return result;
}

static void come_and_go(unsigned k) {
    void *library = dlopen(libraries[k % 4], RTLD_NOW | RTLD_LOCAL);
    if (library) dlclose(library);
}

static int times;

static void *stress(void *unused) {
    MUST(current(context));
    for (int k = 0; k < times; k++) {
        MUST(down(k % 23, k * 2654435761u));
        if (k % 16 == 0) come_and_go(k / 16);
    }
    return unused;
}

static void *until_stopped(void *unused) {
    MUST(current(context));
    for (unsigned k = 0; !__atomic_load_n(&stop, __ATOMIC_RELAXED); k++) MUST(down(k % 11, k * 2654435761u));
    return unused;
}

static int each(struct dl_phdr_info *info, size_t size, void *sum) {
    *(size_t *)sum += size + info->dlpi_phnum;
    return 0;
}

static void *in_the_loader(void *unused) {
    size_t sum = 0;
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) dl_iterate_phdr(each, &sum);
    return unused;
}

static unsigned turn;

static void *once(void *number) {
    unsigned k = turn * 4 + (unsigned)(size_t)number;
    MUST(current(context));
    MUST(down(k % 13, k));
    return NULL;
}

/* A child that hangs is a failure that its parent's time limit shows. */
static void fork_many(int count, int early) {
    int failed = 0;
    for (int k = 0; k < count; k++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(30);
            if (early) {
                MUST(initialize(0));
                MUST(retain(&context, 0));
                MUST(current(context));
            }
            for (int n = 0; n < 5; n++) {
                if (down(n, k) && early) _exit(90);
            }
            _exit(0);
        }
        int status;
        if (waitpid(child, &status, 0) != child || status) {
            failed++;
            fprintf(stderr, "child %d: %x\n", k, status);
        }
    }
    printf("%d failed\n", failed);
}

int main(int count, char **arguments) {
    if (count < 3) return 2;
    const char *mode = arguments[1];
    int n = atoi(arguments[2]), early = !strcmp(mode, "early");
    pthread_t threads[THREADS];
    allocate = CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t));
    release = CALL(cuMemFree_v2, (CUdeviceptr));
    current = CALL(cuCtxSetCurrent, (CUcontext));
    initialize = CALL(cuInit, (unsigned));
    retain = CALL(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice));
    if (!early) context = begin(0);
    if (!strcmp(mode, "stress")) {
        times = n;
        on_threads(THREADS, stress);
        printf("%d pairs\n", n * THREADS);
        return 0;
    }
    void *(*work)(void *) = early ? in_the_loader : until_stopped;
    for (int k = 0; k < 3; k++) pthread_create(threads + k, 0, work, 0);
    if (!strcmp(mode, "exits")) {
        for (; turn < (unsigned)n; turn++) on_threads(4, once);
        printf("%d threads\n", 4 * n);
    } else {
        fork_many(n, early);
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    for (int k = 0; k < 3; k++) pthread_join(threads[k], 0);
    return 0;
}
