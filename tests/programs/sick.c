/* sick.c HOW: what a program does when its driver is ill. HOW: sticky (each call fails from the third
   allocation on; then the context is reset) | late (calls after the driver has taken itself down) |
   each NAME ... (calls these functions, with nothing) | threads (NVML hangs while four threads allocate) | forks (the same, and children are made meanwhile) | leave (the first thread ends before the others). */
#include "driver.h"

static CUcontext context;
static CUdeviceptr kept;

static CUresult take(CUdeviceptr *p, size_t size) {
    return CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(p, size);
}

static CUresult give(CUdeviceptr p) { return CALL(cuMemFree_v2, (CUdeviceptr))(p); }

static void late(void) {
    CUdeviceptr p;
    size_t all, rest;
    SHOW(give(kept));
    SHOW(take(&p, 4 * MIB));
    SHOW(CALL(cuMemGetInfo_v2, (size_t *, size_t *))(&rest, &all));
}

static void *work(void *rounds) {
    MUST(CALL(cuCtxSetCurrent, (CUcontext))(context));
    driver_pairs((long)rounds, 2 * MIB);
    return NULL;
}

/* What its calls answer; one that hangs is ended by a signal. */
static void child(int number) {
    int status = 0;
    fflush(stdout);
    pid_t made = fork();
    if (made == 0) {
        CUdeviceptr p = 0;
        CUdevice device = 0;
        alarm(4);
        int results[4] = {0};
        if (number % 2) results[0] = CALL(cuInit, (unsigned))(0);
        results[1] = CALL(cuDeviceGet, (CUdevice *, int))(&device, 0);
        results[2] = take(&p, 2 * MIB);
        results[3] = CALL(cuCtxSynchronize, (void))();
        for (int k = 0; k < 4; k++) printf("child %d: %d\n", number, results[k]);
        fflush(stdout);
        _exit(0);
    }
    waitpid(made, &status, 0);
    printf("child %d ended with %x\n", number, status);
}

int main(int count, char **arguments) {
    const char *how = count > 1 ? arguments[1] : "";
    pthread_t threads[4];
    CUdeviceptr p = 0;
    if (!strcmp(how, "late")) atexit(late);
    context = begin(0);
    SHOW(take(&kept, 64 * MIB));
    if (!strcmp(how, "sticky")) {
        void *stream;
        SHOW(take(&p, 64 * MIB));
        SHOW(take(&p, 64 * MIB));
        SHOW(take(&p, 64 * MIB));
        SHOW(give(kept));
        SHOW(CALL(cuStreamCreate, (void **, unsigned))(&stream, 0));
        SHOW(CALL(cuCtxSynchronize, (void))());
        SHOW(CALL(cuDevicePrimaryCtxReset_v2, (int))(0));
        begin(0);
        SHOW(take(&p, 300 * MIB));
        SHOW(take(&p, 300 * MIB));
    }
    if (!strcmp(how, "each")) {
        void *libcuda = dlopen("libcuda.so.1", RTLD_NOW);
        SHOW(CALL(cuCtxSynchronize, (void))());
        for (int k = 2; k < count; k++) {
            int (*call)(long, long, long, long, long, long, long, long) = dlsym(libcuda, arguments[k]);
            if (call) printf("%s = %d\n", arguments[k], call(0, 0, 0, 0, 0, 0, 0, 0));
        }
    }
    if (!strcmp(how, "threads") || !strcmp(how, "leave") || !strcmp(how, "forks")) {
        for (int k = 0; k < 4; k++) pthread_create(threads + k, NULL, work, (void *)10000);
        for (int k = 0; k < 20 && !strcmp(how, "forks"); k++) child(k);
        if (!strcmp(how, "leave")) {
            fflush(stdout);
            pthread_exit(NULL);
        }
        for (int k = 0; k < 4; k++) pthread_join(threads[k], NULL);
        SHOW(take(&p, 512 * MIB));
    }
    return 0;
}
