/* signals_kept.c HOW [CALL ERROR]: signals that a program blocks, or catches, around its calls of the driver.
   HOW: wait | descriptor | handler | jump (signals that are sent before the calls and blocked meanwhile are taken by
   sigwait, a signalfd, a handler, a handler that jumps away) | small (wait, on a thread with a small stack) | timer (a
   timer sends them) | trap (from the middle on, a filter answers the system call CALL by SIGSYS, and its handler lets
   it fail with ERROR). */
#include "driver.h"
#include "seccomp.h"
#include <setjmp.h>
#include <sys/signalfd.h>
#include <ucontext.h>

static const int sent[] = {SIGILL, SIGBUS, SIGSEGV, SIGSYS, SIGFPE, SIGTRAP, SIGABRT, SIGTERM, SIGUSR1};
#define COUNT ((int)(sizeof sent / sizeof *sent))

static pid_t first;
static volatile int calls_done, handled, elsewhere;
static sigjmp_buf back;
static int jumps;

static pid_t task(void) { return syscall(SYS_gettid); }

static void handler(int number) {
    handled++;
    if (task() != first || !calls_done) elsewhere++;
    if (jumps) siglongjmp(back, number);
}

/* The first calls make the recorder's state, open its trace, and ask NVML. */
static void calls(void) {
    CUcontext context = begin(0), other;
    driver_pairs(20, 2 * MIB);
    MUST(CALL(cuCtxCreate_v2, (CUcontext *, unsigned, CUdevice))(&other, 0, 0));
    MUST(CALL(cuCtxDestroy_v2, (CUcontext))(other));
    MUST(CALL(cuCtxSetCurrent, (CUcontext))(context));
    calls_done = 1;
}

static void *calls_on_a_thread(void *unused) {
    calls();
    return unused;
}

static void on_a_small_stack(void) {
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    MUST(pthread_attr_setstacksize(&attributes, 64 << 10));
    MUST(pthread_create(&thread, &attributes, calls_on_a_thread, NULL));
    pthread_join(thread, NULL);
}

static int error;

static void answer(int number, siginfo_t *info, void *context) {
    ucontext_t *at = context;
    (void)number, (void)info;
#if defined __x86_64__
    at->uc_mcontext.gregs[REG_RAX] = -error;
#else
    at->uc_mcontext.regs[0] = -error;
#endif
}

static void trap(unsigned call) {
    struct sigaction action = {.sa_sigaction = answer, .sa_flags = SA_SIGINFO | SA_NODEFER};
    MUST(sigaction(SIGSYS, &action, NULL));
    MUST(filter_call(call, SECCOMP_RET_TRAP));
}

int main(int count, char **arguments) {
    const char *how = count > 1 ? arguments[1] : "";
    struct timespec none = {0, 0};
    sigset_t all;
    first = task();
    if (!strcmp(how, "trap")) {
        error = atoi(arguments[3]);
        calls();
        trap(atoi(arguments[2]));
        calls();
        printf("done\n");
        return 0;
    }
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    if (!strcmp(how, "timer")) {
        struct itimerspec each = {{0, 50000}, {0, 50000}};
        for (int k = 0; k < COUNT; k++) {
            struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = sent[k]};
            timer_t timer;
            MUST(timer_create(CLOCK_MONOTONIC, &event, &timer));
            MUST(timer_settime(timer, 0, &each, NULL));
        }
    } else {
        for (int k = 0; k < COUNT; k++) kill(getpid(), sent[k]);
    }
    if (!strcmp(how, "small")) on_a_small_stack();
    else calls();
    if (!strcmp(how, "handler") || !strcmp(how, "jump")) {
        jumps = !strcmp(how, "jump");
        for (int k = 0; k < COUNT; k++) signal(sent[k], handler);
        for (volatile int k = 0; k < COUNT; k++) {
            sigset_t one;
            sigemptyset(&one);
            sigaddset(&one, sent[k]);
            if (!sigsetjmp(back, 1)) sigprocmask(SIG_UNBLOCK, &one, NULL);
        }
        printf("%d handled, %d elsewhere\n", handled, elsewhere);
        return 0;
    }
    for (int k = 0; k < COUNT; k++) {
        struct signalfd_siginfo read_one = {0};
        sigset_t one;
        sigemptyset(&one);
        sigaddset(&one, sent[k]);
        if (!strcmp(how, "descriptor")) {
            int file = signalfd(-1, &one, SFD_NONBLOCK);
            if (read(file, &read_one, sizeof read_one) < 0) perror("read");
            printf("%u\n", read_one.ssi_signo);
        } else if (!strcmp(how, "timer")) {
            printf("%d\n", sigwaitinfo(&one, NULL));
        } else {
            printf("%d\n", sigtimedwait(&one, NULL, &none));
        }
    }
    return 0;
}
