/* A library that takes its time to load: while it does, the loader's lock is held. It says on
   descriptor SLOW_IN that it began, and goes on when something comes on SLOW_OUT. */
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

__attribute__((constructor)) static void slow(void) {
    int in = atoi(getenv("SLOW_IN")), out = atoi(getenv("SLOW_OUT"));
    if (write(in, "!", 1) != 1) _exit(90);
    struct pollfd until = {out, POLLIN, 0};
    if (poll(&until, 1, 20000) != 1) _exit(91);
}
