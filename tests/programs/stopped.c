/* stopped.c HOW TIMES LIMIT_MIB: threads allocate and free. One of them is stopped at any instruction, TIMES
   times. HOW: cancel (asynchronous cancellation) | jump (siglongjmp out of a signal handler) | alternate
   (the same, and the handler has another stack) | exit (pthread_exit in a signal handler) | context (setcontext
   in a signal handler). The others must go on, and the driver gives LIMIT_MIB at most. Runs on plain_driver.c. */
#include "driver.h"
#include "nvtx_min.h"
#include <setjmp.h>
#include <ucontext.h>

#define WORKERS 3

static CUresult (*take)(CUdeviceptr *, size_t);
static CUresult (*give)(CUdeviceptr);
static CUresult (*set)(CUcontext);
static const char *how;
static CUcontext context;
static volatile int over;
static volatile unsigned long progress[WORKERS], victims;
static volatile CUdeviceptr held;
static __thread volatile sig_atomic_t armed;
static __thread sigjmp_buf out;
static __thread ucontext_t place;
static volatile unsigned long jumps, refused;

static void step(volatile CUdeviceptr *slot, size_t size) {
    nvtxMarkA("step"); /* of a tool that NVTX_INJECTION64_PATH names */
    if (take((CUdeviceptr *)slot, size) != 0) refused++;
    else give(*slot);
    *slot = 0;
}

static void *work(void *number) {
    volatile CUdeviceptr slot = 0;
    set(context);
    while (!over) {
        step(&slot, 2 * MIB + (progress[(long)number] % 3) * MIB);
        progress[(long)number]++;
        usleep(20); /* traces stay small */
    }
    return NULL;
}

static void handler(int number) {
    (void)number;
    if (!armed) return;
    armed = 0;
    if (!strcmp(how, "exit")) pthread_exit(NULL);
    if (!strcmp(how, "context")) setcontext(&place);
    siglongjmp(out, 1);
}

/* What an earlier one held is freed; the driver refuses what it does not know. */
static void clean(void) {
    if (held) give(held);
    held = 0;
}

static void *victim(void *unused) {
    stack_t stack = {.ss_sp = unused ? malloc(1 << 16) : NULL, .ss_size = 1 << 16};
    (void)unused;
    set(context);
    clean();
    if (stack.ss_sp) sigaltstack(&stack, NULL);
    if (!strcmp(how, "cancel")) {
        pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
        for (;;) {
            step(&held, 4 * MIB);
            victims++;
        }
    }
    static __thread volatile int again;
    if (!strcmp(how, "context") ? (getcontext(&place), again++) : sigsetjmp(out, 1)) {
        jumps++;
        clean();
    }
    armed = 1;
    while (!over) {
        step(&held, 4 * MIB);
        victims++;
    }
    armed = 0;
    return NULL;
}

int main(int count, char **arguments) {
    how = count > 1 ? arguments[1] : "cancel";
    long times = count > 2 ? atol(arguments[2]) : 1000;
    unsigned long long limit = count > 3 ? strtoull(arguments[3], NULL, 10) * MIB : ~0ull;
    int cancels = !strcmp(how, "cancel"), exits = !strcmp(how, "exit");
    int alternate = !strcmp(how, "alternate");
    struct sigaction action = {.sa_handler = handler, .sa_flags = alternate ? SA_ONSTACK : 0};
    pthread_t workers[WORKERS], one;
    context = begin(0);
    take = (CUresult(*)(CUdeviceptr *, size_t))driver_function("cuMemAlloc_v2");
    give = (CUresult(*)(CUdeviceptr))driver_function("cuMemFree_v2");
    set = (CUresult(*)(CUcontext))driver_function("cuCtxSetCurrent");
    sigaction(SIGUSR1, &action, NULL);
    for (long k = 0; k < WORKERS; k++) pthread_create(&workers[k], NULL, work, (void *)k);
    pthread_create(&one, NULL, victim, alternate ? &one : NULL);
    for (long k = 0; k < times; k++) {
        unsigned long before = victims;
        while (victims == before) sched_yield();
        for (volatile int pause = rand() % 2000; pause > 0; pause--) {
        }
        if (cancels) pthread_cancel(one);
        else pthread_kill(one, SIGUSR1);
        if (cancels || exits) {
            pthread_join(one, NULL);
            pthread_create(&one, NULL, victim, NULL);
        }
    }
    /* Each of the others goes on, and is not refused. */
    for (int k = 0; k < WORKERS; k++) {
        unsigned long before = progress[k];
        while (progress[k] < before + 20) sched_yield();
    }
    over = 1;
    if (cancels) pthread_cancel(one);
    pthread_join(one, NULL);
    for (int k = 0; k < WORKERS; k++) pthread_join(workers[k], NULL);
    clean();
    unsigned long long (*peak)(void) = (unsigned long long (*)(void))driver_function("plain_driver_peak");
    unsigned long long (*live)(void) = (unsigned long long (*)(void))driver_function("plain_driver_live");
    if (getenv("STOPPED_SHOW"))
        fprintf(stderr, "jumps %lu, refused %lu, peak %llu MiB, live %llu MiB\n", jumps, refused,
                peak() / MIB, live() / MIB);
    if (peak() <= limit) puts("within the limit");
    puts("goes on");
    return 0;
}
