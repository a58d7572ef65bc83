/* A program that is its own clock. With VRAMTRACE_TEST_CLOCK=0 each call takes as long as every other,
   and a pause is over at once and takes what it was asked for. Any other number is the seed of a busy
   machine: calls take longer or shorter, and now and then the program has to wait. Nothing then
   depends on how long anything really takes. Without the variable time is real. */
#ifndef CLOCK_H
#define CLOCK_H
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* A free takes no stack. */
#define TAKE_US 50
#define GIVE_US 10
/* On a busy machine: how long a turn is, and most that is waited for the next. */
#define TURN_US 3000
#define WAIT_US 12000

static _Atomic long long clock_ns = 1000000000;
static unsigned long long clock_random;

/* May be asked before main, and by any thread. */
static int clock_is_ours(void) {
    static _Atomic int known;
    if (!known) {
        const char *seed = getenv("VRAMTRACE_TEST_CLOCK");
        if (seed && !*seed) seed = NULL;
        if (seed) clock_random = strtoull(seed, NULL, 10) * 0x9e3779b97f4a7c15ull;
        known = seed ? 2 : 1;
    }
    return known == 2;
}

/* Takes the place of the C library's, for all code in this process. */
int clock_gettime(clockid_t clock, struct timespec *time) {
    if (clock != CLOCK_MONOTONIC || !clock_is_ours()) return syscall(SYS_clock_gettime, clock, time);
    long long now = clock_ns;
    time->tv_sec = now / 1000000000;
    time->tv_nsec = now % 1000000000;
    return 0;
}

static unsigned long long next_random(unsigned long long *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

static unsigned long long clock_below(unsigned long long limit) { return (next_random(&clock_random) >> 11) % limit; }

/* For the program: the same numbers in each run. */
static inline size_t below(size_t limit) {
    static unsigned long long state = 88172645463325252ull;
    return next_random(&state) % limit;
}

/* A call of the program that takes time. */
static void clock_call(int us) {
    if (!clock_is_ours()) return;
    if (clock_random) {
        us = us / 2 + clock_below(us);
        if (clock_below(TURN_US) < (unsigned)us) us += clock_below(WAIT_US);
    }
    clock_ns += us * 1000ll;
}

static void pause_us(long us) {
    struct timespec a_while = {us / 1000000, us % 1000000 * 1000};
    if (!clock_is_ours()) {
        nanosleep(&a_while, NULL);
        return;
    }
    /* Who slept waits for its turn. */
    if (clock_random) us += us / 100 + clock_below(100);
    clock_ns += us * 1000ll;
}
#endif
