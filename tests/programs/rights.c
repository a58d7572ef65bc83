/* rights.c HOW WHEN: a thread gives up rights of its own, and goes on with its calls; then the first thread does.
   HOW: none | user (setfsuid) | real (setresuid by system call) | root (a root directory of its own) | landlock |
   deadline (SCHED_DEADLINE) | openat | clone | pwrite64 | fallocate (a filter of this thread refuses the call).
   WHEN: before | after the first allocation. Exit 77: the system does not permit HOW. */
#include "driver.h"
#include "seccomp.h"
#include <sys/fsuid.h>

/* More events than there are windows of the recorder's for them. */
#define PAIRS 200000
#define NOBODY 65534

static CUcontext context;
static const char *how;
static CUresult (*take)(CUdeviceptr *, size_t);

static void skip(void) {
    printf("%s is not permitted: %s\n", how, strerror(errno));
    fflush(stdout);
    _exit(77);
}

static void refuse(unsigned call) {
    if (filter_call(call, SECCOMP_RET_ERRNO | EPERM)) skip();
}

static void give_up(void) {
    if (!strcmp(how, "user")) {
        setfsuid(NOBODY);
        if (setfsuid(-1) != NOBODY) skip();
    } else if (!strcmp(how, "real")) {
        if (syscall(SYS_setresuid, NOBODY, NOBODY, NOBODY)) skip();
    } else if (!strcmp(how, "root")) {
        if (unshare(CLONE_FS) || mkdir("empty", 0755) || chroot("empty") || chdir("/")) skip();
    } else if (!strcmp(how, "landlock")) {
        /* Nothing may be written, made or read. */
        uint64_t rules[2] = {(1 << 13) - 1, 0};
        int file = syscall(444, rules, sizeof rules[0], 0);
        if (file < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || syscall(446, file, 0)) skip();
        close(file);
    } else if (!strcmp(how, "deadline")) {
        struct {
            uint32_t size, policy;
            uint64_t flags;
            uint32_t nice, priority;
            uint64_t runtime, deadline, period;
        } wanted = {48, 6, 0, 0, 0, 9000000, 10000000, 10000000};
        if (syscall(SYS_sched_setattr, 0, &wanted, 0)) skip();
    } else if (!strcmp(how, "openat")) {
        refuse(SYS_openat);
    } else if (!strcmp(how, "clone")) {
        refuse(SYS_clone);
    } else if (!strcmp(how, "pwrite64")) {
        refuse(SYS_pwrite64);
    } else if (!strcmp(how, "fallocate")) {
        refuse(SYS_fallocate);
    }
}

static void *work(void *unused) {
    CUdeviceptr kept;
    MUST(CALL(cuCtxSetCurrent, (CUcontext))(context));
    give_up();
    MUST(take(&kept, 4 * MIB));
    driver_pairs(PAIRS, 2 * MIB);
    MUST(take(&kept, 6 * MIB));
    return unused;
}

int main(int count, char **arguments) {
    pthread_t thread;
    CUdeviceptr kept;
    if (count < 3) return 97;
    how = arguments[1];
    take = driver_function("cuMemAlloc_v2");
    context = begin(0);
    if (!strcmp(arguments[2], "after")) driver_pairs(10, 2 * MIB);
    pthread_create(&thread, NULL, work, NULL);
    pthread_join(thread, NULL);
    MUST(take(&kept, 8 * MIB));
    driver_pairs(10, 2 * MIB);
    printf("refused: %d\n", take(&kept, 50 * MIB));
    return 0;
}
