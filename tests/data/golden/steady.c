/* A clock by which each look takes LOOK_NS: 100 ticks of the format, for traces of many events that
   compress well. A program may let more time pass. */
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef LOOK_NS
#define LOOK_NS 6400
#endif

static _Atomic long long now = 1000000000;

void steady_passes(long long ns) { now += ns; }

int clock_gettime(clockid_t clock, struct timespec *time) {
    if (clock != CLOCK_MONOTONIC) return syscall(SYS_clock_gettime, clock, time);
    long long at = now += LOOK_NS;
    time->tv_sec = at / 1000000000;
    time->tv_nsec = at % 1000000000;
    return 0;
}
