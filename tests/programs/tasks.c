/* tasks.c HOW: what a program sees of the tasks of its process. HOW: last (main ends by pthread_exit, a
   worker ends last, and a handler of atexit then waits for a signal) | alone (a process of one thread
   counts its tasks after each call, and makes a user namespace). */
#include "driver.h"

static pid_t first, worker;

static pid_t task(void) { return syscall(SYS_gettid); }

static void at_end(void) {
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    printf("at the end: on %s thread, SIGTERM is %s\n",
           task() == worker ? "the worker's" : task() == first ? "the first" : "another",
           sigismember(&blocked, SIGTERM) ? "blocked" : "free");
    fflush(stdout);
    kill(getpid(), SIGTERM);
    for (int k = 0; k < 100; k++) usleep(10000);
    printf("SIGTERM did not come\n");
    fflush(stdout);
}

static void *work(void *context) {
    char state = 0, stat[512];
    worker = task();
    MUST(CALL(cuCtxSetCurrent, (CUcontext))(context));
    driver_pairs(1, 2 * MIB);
    /* Until the first thread is a zombie. */
    while (state != 'Z') {
        FILE *file = fopen("/proc/self/stat", "r");
        if (fgets(stat, sizeof stat, file)) state = strrchr(stat, ')')[2];
        fclose(file);
        usleep(1000);
    }
    return NULL;
}

static int tasks(void) {
    char stat[512] = "";
    int count = 0;
    FILE *file = fopen("/proc/self/stat", "r");
    if (fgets(stat, sizeof stat, file))
        sscanf(strrchr(stat, ')') + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %d", &count);
    fclose(file);
    return count;
}

int main(int count, char **arguments) {
    const char *how = count > 1 ? arguments[1] : "";
    CUcontext context;
    first = task();
    if (!strcmp(how, "last")) {
        pthread_t thread;
        atexit(at_end);
        context = begin(0);
        pthread_create(&thread, NULL, work, context);
        pthread_exit(NULL);
    }
    int most = 0;
    SHOW(CALL(cuInit, (unsigned))(0));
    SHOW(tasks());
    begin(0);
    SHOW(tasks());
    for (int k = 0; k < 300; k++) {
        driver_pairs(1, 2 * MIB);
        if (tasks() > most) most = tasks();
        usleep(100);
    }
    SHOW(most);
    int result = unshare(CLONE_NEWUSER);
    printf("unshare(CLONE_NEWUSER) = %d %s\n", result, result ? strerror(errno) : "");
    return 0;
}
