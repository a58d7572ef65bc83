/* leaks.c MODE: small programs of which it is known whether they leak. Each does some 400 steps of
   work in which all kinds of temporaries come and go. */
#include "door.h"
#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define STEPS 400
#define NEVER __attribute__((noinline, noclone))

static CUdeviceptr take(size_t bytes) {
    CUdeviceptr p;
    MUST(CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&p, bytes));
    return p;
}

static void give(CUdeviceptr p) {
    MUST(CALL(cuMemFree_v2, (CUdeviceptr))(p));
}

NEVER static CUdeviceptr leaking_line(size_t bytes) {
    CUdeviceptr p = take(bytes);
    __asm__ volatile("" ::: "memory");
    return p;
}

NEVER static CUdeviceptr other_line(size_t bytes) {
    CUdeviceptr p = take(bytes);
    __asm__ volatile("" ::: "memory");
    return p;
}

static void work(void) {
    struct timespec a_while = {0, 300 * 1000};
    CUdeviceptr p[6];
    for (int n = 0; n < 6; n++) p[n] = other_line((size_t)(n + 1) * 3 * MIB);
    nanosleep(&a_while, NULL);
    for (int n = 5; n >= 0; n--) give(p[n]);
}

static pthread_barrier_t stepped;

static void *leaking_thread(void *context) {
    MUST(CALL(cuCtxSetCurrent, (CUcontext))(context));
    for (int step = 0; step < STEPS; step++) {
        pthread_barrier_wait(&stepped);
        leaking_line(MIB / 2);
    }
    return NULL;
}

int main(int count, char **arguments) {
    const char *mode = count > 1 ? arguments[1] : "";
    CUcontext context = begin(0);
    CUdeviceptr kept[STEPS] = {0};
    int used = 0;
    pthread_t thread;
#define IS(name) (strcmp(mode, name) == 0)
    pthread_barrier_init(&stepped, NULL, 2);
    if (IS("thread")) pthread_create(&thread, NULL, leaking_thread, context);
    if (IS("singletons"))
        for (int n = 0; n < 5; n++) leaking_line(8 * MIB);
    if (IS("exit"))
        for (int n = 0; n < 50; n++) kept[n] = leaking_line(MIB);
    for (int step = 0; step < STEPS; step++) {
        work();
        if (IS("thread")) pthread_barrier_wait(&stepped);
        if (IS("linear") || IS("wait")) leaking_line(2 * MIB);
        if (IS("slow") && step % 20 == 0) leaking_line(512);
        if (IS("below")) {
            CUdeviceptr temporary = leaking_line(100 * MIB);
            if (step % 10 == 0) leaking_line(64 * 1024);
            give(temporary);
        }
        if (IS("cache") && step < STEPS / 2) leaking_line(MIB);
        if (IS("lru")) {
            if (kept[step % 60]) give(kept[step % 60]);
            kept[step % 60] = leaking_line(MIB);
        }
        if (IS("warm-up") && step < STEPS / 8) leaking_line(4 * MIB);
        if (IS("saw-tooth")) {
            kept[used++] = leaking_line(MIB);
            if (used == 25)
                while (used) give(kept[--used]);
        }
        if (IS("list")) kept[used++] = leaking_line(MIB);
        if (IS("pool")) {
            /* The pool keeps what it once had; the program gives back what it takes. */
            CUdeviceptr p;
            size_t bytes = (size_t)(step + 1) * MIB;
            MUST(CALL(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream))(&p, bytes, NULL));
            MUST(CALL(cuMemFreeAsync, (CUdeviceptr, CUstream))(p, NULL));
        }
    }
    if (IS("wait")) {
        /* Until the one who watches has seen enough. */
        puts("ready");
        fflush(stdout);
        pause();
    }
    if (IS("thread")) pthread_join(thread, NULL);
    if (IS("list"))
        while (used) give(kept[--used]);
    if (IS("exit"))
        for (int n = 0; n < 50; n++) give(kept[n]);
    return 0;
}
