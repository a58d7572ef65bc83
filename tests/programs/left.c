/* left.c HOW: a driver call that never returns is left by a longjmp out of a signal handler; then the
   program goes on. HOW: stack | alternate (the handler has a stack of its own) | deep (the calls
   after it are made from deeper frames) | nested (a handler's own call, while the program's waits). */
#include "driver.h"
#include <setjmp.h>

static sigjmp_buf out;
static int nested;

static CUdeviceptr take(size_t size) {
    CUdeviceptr p = 0;
    SHOW(CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&p, size));
    return p;
}

static void handler(int number) {
    (void)number;
    if (nested) {
        take(2 * MIB);
        if (nested++ < 2) {
            struct itimerval soon = {{0, 0}, {0, 50000}};
            setitimer(ITIMER_REAL, &soon, NULL);
            return;
        }
    }
    siglongjmp(out, 1);
}

__attribute__((noinline)) static CUdeviceptr deep(int depth, size_t size) {
    volatile char room[4096];
    memset((char *)room, depth, sizeof room);
    return depth ? deep(depth - 1, size) : take(size);
}

int main(int count, char **arguments) {
    const char *how = count > 1 ? arguments[1] : "stack";
    struct sigaction action = {.sa_handler = handler};
    stack_t stack = {.ss_sp = malloc(1 << 18), .ss_size = 1 << 18};
    struct itimerval soon = {{0, 0}, {0, 50000}};
    begin(0);
    if (!strcmp(how, "alternate")) {
        sigaltstack(&stack, NULL);
        action.sa_flags = SA_ONSTACK;
    }
    nested = !strcmp(how, "nested");
    sigaction(SIGALRM, &action, NULL);
    take(2 * MIB);
    if (!sigsetjmp(out, 1)) {
        setitimer(ITIMER_REAL, &soon, NULL);
        take(64 * MIB); /* the second allocation, which hangs */
    }
    CUdeviceptr p = strcmp(how, "deep") ? take(6 * MIB) : deep(40, 6 * MIB);
    driver_give(p);
    take(8 * MIB);
    take(512 * MIB);
    return 0;
}
