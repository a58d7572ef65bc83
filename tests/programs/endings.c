/* endings.c HOW: one allocation, then an unusual end or an unusual deed.
   HOW: return | exit | _exit STATUS | abort | vfork | fork | fork-cuda | fork-kill | exec | outlive | close-all | reuse-fd |
        panic | fill FILES... ; prints what it saw. */
#include "driver.h"

static CUcontext context;

static CUdeviceptr take(size_t size) {
    CUdeviceptr p = 0;
    SHOW(CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&p, size));
    fflush(stdout);
    return p;
}

static void *late(void *unused) {
    MUST(CALL(cuCtxSetCurrent, (CUcontext))(context));
    for (;;) {
        CUdeviceptr p;
        if (CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&p, 4096) == 0) CALL(cuMemFree_v2, (CUdeviceptr))(p);
    }
    return unused;
}

int main(int count, char **arguments) {
    const char *how = count > 1 ? arguments[1] : "return";
    context = begin(0);
    take(4 * MIB);
    if (!strcmp(how, "exit")) exit(7);
    if (!strcmp(how, "_exit")) _exit(atoi(arguments[2]));
    if (!strcmp(how, "abort")) abort();
    int shared = !strcmp(how, "vfork"); /* the child has this process's memory */
    if (shared || !strcmp(how, "fork")) { /* the child never touches CUDA */
        int status;
        pid_t child = shared ? vfork() : fork();
        if (!child && shared) _exit(3);
        if (!child) return 5;
        waitpid(child, &status, 0);
        printf("child %d\n", WEXITSTATUS(status));
    }
    if (!strcmp(how, "fork-cuda")) { /* CUDA after fork is refused by the driver, with us as without */
        int status;
        pid_t child = fork();
        if (!child) {
            CUdeviceptr q = 0;
            int result = CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&q, 1024);
            _exit(result > 255 ? 255 : result);
        }
        waitpid(child, &status, 0);
        printf("child got %d\n", WEXITSTATUS(status));
    }
    if (!strcmp(how, "fork-kill")) { /* killed, while a child lives on for a while */
        pid_t child = fork();
        if (!child) {
            for (int fd = 0; fd < 1024; fd++) close(fd);
            sleep(5);
            _exit(0);
        }
        kill(getpid(), SIGKILL);
    }
    if (!strcmp(how, "exec")) execl("/bin/echo", "echo", "replaced", (char *)NULL);
    if (!strcmp(how, "outlive")) {
        pthread_t t;
        pthread_create(&t, NULL, late, NULL);
        usleep(20000);
        if (count > 2) _Exit(atoi(arguments[2]));
    }
    if (!strcmp(how, "close-all")) {
        for (int fd = 3; fd < 1024; fd++) close(fd);
        driver_pairs(200000, 4096);
        printf("churned\n");
    }
    if (!strcmp(how, "reuse-fd")) { /* descriptors closed and their numbers taken by another file */
        char path[] = "precious-XXXXXX";
        for (int fd = 3; fd < 64; fd++) close(fd);
        int mine = mkstemp(path);
        for (int i = 0; i < 32; i++) dup(mine);
        if (write(mine, "precious", 8) != 8) return 96;
        driver_pairs(200000, 4096);
        printf("size %ld\n", (long)lseek(mine, 0, SEEK_END));
        unlink(path);
    }
    if (!strcmp(how, "churn")) {
        driver_pairs(count > 2 ? strtoul(arguments[2], NULL, 10) : 100000, 4096);
        printf("churned\n");
    }
    printf("end\n");
    return 0;
}
