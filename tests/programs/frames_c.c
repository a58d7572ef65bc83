/* C, as compilers make it without frame pointers: recursion, callbacks of the C library, variable
   and large frames, aligned frames, signals, threads, stacks of the program's own. */
#include "frames.h"
#include <alloca.h>
#include <search.h>
#include <ucontext.h>


static volatile int zero;

NEVER static int recursive(int depth) {
    int result;
    if (depth == 0) {
        take("recursive");
        result = 1;
    } else {
        result = recursive(depth - 1) + depth;
    }
    STAY;
    return result;
}

/* Functions that use many registers push them; none is the frame pointer. */
NEVER static long many(long a, long b, long c, long d, long e, long f, long g, long h) {
    long x = a ^ b, y = c ^ d, z = e ^ f, w = g ^ h;
    take("many registers");
    STAY;
    return x * y + z * w + a + b + c + d + e + f + g + h;
}

NEVER static void variable(int n) {
    char *space = alloca(n), array[n];
    memset(space, 1, n);
    memset(array, 1, n);
    __asm__ volatile("" ::"r"(space), "r"(array) : "memory");
    take("variable frame");
    STAY;
}

NEVER static void large(void) {
    char space[700 << 10];
    space[zero] = 1;
    __asm__ volatile("" ::"r"(space) : "memory");
    take("large frame");
    STAY;
}

NEVER static void aligned(int n) {
    char space[128] __attribute__((aligned(64)));
    char more[n];
    __asm__ volatile("" ::"r"(space), "r"(more) : "memory");
    take("aligned frame");
    STAY;
}

static int compare(const void *a, const void *b) {
    take("qsort");
    return *(const int *)a - *(const int *)b;
}

static int compare_strings(const void *a, const void *b) {
    take("tsearch");
    return strcmp(a, b);
}

static void callbacks(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    int numbers[] = {3, 1, 2};
    void *root = NULL;
    extern void once_take(void);
    qsort(numbers, 3, sizeof *numbers, compare);
    int key = 2;
    bsearch(&key, numbers, 3, sizeof *numbers, compare);
    tsearch("a", &root, compare_strings);
    tsearch("b", &root, compare_strings);
    pthread_once(&once, once_take);
    STAY;
}

void once_take(void) {
    take("once");
    STAY;
}

static void handler(int signal) {
    (void)signal;
    take("handler");
    STAY;
}

static void handler_apart(int signal) {
    (void)signal;
    take("apart:handler");
    STAY;
}

static void signals(void) {
    char *stack = malloc(1 << 17);
    struct sigaction action = {.sa_handler = handler};
    sigaction(SIGUSR1, &action, NULL);
    raise(SIGUSR1);
    /* On a stack of its own: backtrace() goes on to the one that was interrupted. */
    stack_t apart = {.ss_sp = stack, .ss_size = 1 << 17};
    sigaltstack(&apart, NULL);
    action.sa_handler = handler_apart;
    action.sa_flags = SA_ONSTACK;
    sigaction(SIGUSR2, &action, NULL);
    raise(SIGUSR2);
    apart.ss_flags = SS_DISABLE;
    sigaltstack(&apart, NULL);
    free(stack);
    STAY;
}

static ucontext_t here, fiber;

static void on_fiber(void) {
    take("apart:fiber");
    STAY;
}

static void fibers(void) {
    char *stack = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    getcontext(&fiber);
    fiber.uc_stack.ss_sp = stack;
    fiber.uc_stack.ss_size = 1 << 20;
    fiber.uc_link = &here;
    makecontext(&fiber, on_fiber, 0);
    swapcontext(&here, &fiber);
    munmap(stack, 1 << 20);
    STAY;
}

static void *all(void *unused) {
    for (int round = 0; round < 2; round++) {
        recursive(0);
        recursive(50);
        many(1, 2, 3, 4, 5, 6, 7, 8);
        variable(100 + zero);
        large();
        aligned(300 + zero);
        callbacks();
        signals();
    }
    STAY;
    return unused;
}

int main(void) {
    frames_begin();
    take("main");
    all(NULL);
    fibers();
    on_threads(4, all);
    STAY;
    return 0;
}
