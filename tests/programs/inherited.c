// Prints what a process gets from the one that started it: signals, descriptors, timers.
// inherited FILE
#include "driver.h"

int main(int count, char **words) {
    char open_at_start[4] = "---";
    for (int descriptor = 0; descriptor < 3; descriptor++)
        if (fcntl(descriptor, F_GETFD) >= 0) open_at_start[descriptor] = '0' + descriptor;
    FILE *out = fopen(words[count - 1], "w");
    FILE *status = fopen("/proc/self/status", "r");
    char line[256];
    while (fgets(line, sizeof line, status))
        if (!strncmp(line, "Sig", 3) || !strncmp(line, "ShdPnd", 6))
            if (strncmp(line, "SigQ", 4)) fputs(line, out);
    int adopts = -1;
    prctl(PR_GET_CHILD_SUBREAPER, &adopts);
    struct itimerval timer = {0};
    getitimer(ITIMER_REAL, &timer);
    struct sigaction child;
    sigaction(SIGCHLD, NULL, &child);
    fprintf(out, "open %s\nadopts %d\ntimer %d\nflags %x\n", open_at_start, adopts,
            timer.it_value.tv_sec > 0, (unsigned)child.sa_flags);
    fprintf(out, "umask %o\n", (unsigned)umask(0));
    return fclose(out) != 0;
}
