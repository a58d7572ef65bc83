/* deep KIB PAIRS: allocates and frees PAIRS times in the main thread, below so much of its stack. Counts
   who asks for a limit of the process meanwhile: our library does where it does not know how far the
   stack reaches. Built with -rdynamic. */
#include "driver.h"

static long asked;

int getrlimit(__rlimit_resource_t what, struct rlimit *limit) {
    asked++;
    return syscall(SYS_prlimit64, 0, what, NULL, limit);
}

static int down(int kib, long pairs) {
    volatile char room[1024];
    memset((char *)room, kib, sizeof room);
    if (kib > 0) return down(kib - 1, pairs) + room[5];
    driver_pairs(pairs, 4096);
    return 0;
}

int main(int count, char **arguments) {
    if (count < 3) return 98;
    begin(0);
    asked = 0;
    down(atoi(arguments[1]), atol(arguments[2]));
    printf("asked %ld\n", asked);
    return 0;
}
