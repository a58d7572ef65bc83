/* signals SECONDS: threads allocate host and device memory, from stacks of many shapes, while a timer
   interrupts them; its handler allocates device memory too. So signals come inside malloc, inside
   our hooks, and inside a hook that a handler is in. */
#include "../../../tests/programs/driver.h"

int cuInit(unsigned);
int cuMemAlloc_v2(uint64_t *, size_t);
int cuMemFree_v2(uint64_t);

#define THREADS 3
static unsigned handled, running = THREADS;
static long long until;

static void pair(void) {
    uint64_t address;
    if (cuMemAlloc_v2(&address, 8192) || cuMemFree_v2(address)) abort();
}

static void handler(int number) {
    unsigned k = __atomic_add_fetch(&handled, 1, __ATOMIC_RELAXED);
    below_frames(k % 5, k, pair);
}

static void *work(void *unused) {
    char *kept[64] = {0};
    for (unsigned k = 0; k % 64 || now_ns() < until; k++) {
        free(kept[k % 64]);
        kept[k % 64] = malloc(16 + k * 2654435761u % 3000);
        memset(kept[k % 64], 1, 16);
        if (k % 8 == 0) below_frames(k / 8 % 9, k * 2654435761u, pair);
    }
    __atomic_sub_fetch(&running, 1, __ATOMIC_RELAXED);
    return unused;
}

int main(int count, char **arguments) {
    pthread_t threads[THREADS];
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART | SA_NODEFER};
    struct itimerval each = {{0, 150}, {0, 150}};
    until = now_ns() + (long long)(atof(arguments[1]) * 1e9);
    cuInit(0);
    for (int k = 0; k < THREADS; k++) pthread_create(threads + k, 0, work, 0);
    sigaction(SIGPROF, &action, 0);
    setitimer(ITIMER_PROF, &each, 0);
    /* The kernel's timers tick slowly: more signals, to each thread. */
    for (unsigned k = 0; __atomic_load_n(&running, __ATOMIC_RELAXED) == THREADS; k++) {
        pthread_kill(threads[k % THREADS], SIGPROF);
        usleep(50);
    }
    for (int k = 0; k < THREADS; k++) pthread_join(threads[k], 0);
    memset(&each, 0, sizeof each);
    setitimer(ITIMER_PROF, &each, 0);
    printf("%u\n", handled);
    return 0;
}
