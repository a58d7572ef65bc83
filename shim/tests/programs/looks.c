/* What a dlsym costs, in nanoseconds: the smallest of nine rounds. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <time.h>
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}
int main(void) {
    double best = 1e18;
    void *volatile p;
    for (int round = 0; round < 9; round++) {
        double start = now();
        for (int i = 0; i < 20000; i++) p = dlsym(RTLD_DEFAULT, "getppid");
        double each = (now() - start) / 20000;
        if (each < best) best = each;
    }
    printf("%.1f\n", p ? best : -1.0);
    return 0;
}
