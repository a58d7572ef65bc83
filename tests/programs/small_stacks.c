/* small_stacks thread|fiber KIB [THREADS]: the first and all later calls of the driver are made on stacks of
   so many KiB, with a page below each that faults. Several threads make theirs at the same time; then the main thread says
   how many pieces of 16 MiB it gets, of 100. */
#include "driver.h"
#include <ucontext.h>

static CUresult (*init)(unsigned);
static CUresult (*retain)(CUcontext *, CUdevice);
static CUresult (*current)(CUcontext);
static CUresult (*allocate)(CUdeviceptr *, size_t);
static CUresult (*release)(CUdeviceptr);
static int failed, granted;
static pthread_barrier_t all_here;
static ucontext_t outside, inside;

__attribute__((noinline)) static void pair(int path) {
    CUdeviceptr at = 0;
    if (path > 1) {
        if (path & 1) pair(path / 2);
        else pair(path / 2);
    } else {
        __atomic_add_fetch(&granted, allocate(&at, 4096) == 0, __ATOMIC_RELAXED);
        __atomic_add_fetch(&failed, release(at) != 0, __ATOMIC_RELAXED);
    }
    __asm__ volatile("" ::: "memory");
}

static void *work(void *nothing) {
    CUcontext context;
    int wrong = init(0) != 0;
    wrong += retain(&context, 0) != 0;
    wrong += current(context) != 0;
    if (nothing) pthread_barrier_wait(&all_here);
    for (int k = 0; k < 5000; k++) pair(1 + k % 63);
    wrong += allocate((CUdeviceptr *)&context, 0) == 0;
    __atomic_add_fetch(&failed, wrong, __ATOMIC_RELAXED);
    return nothing;
}

static void fiber(void) { work(NULL); }

int main(int count, char **arguments) {
    if (count < 3) return 98;
    size_t size = 1024ul * atoi(arguments[2]);
    init = CALL(cuInit, (unsigned));
    retain = CALL(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice));
    current = CALL(cuCtxSetCurrent, (CUcontext));
    allocate = CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t));
    release = CALL(cuMemFree_v2, (CUdeviceptr));
    if (!strcmp(arguments[1], "thread")) {
        pthread_attr_t attributes;
        pthread_t threads[100];
        int several = count > 3 ? atoi(arguments[3]) : 1;
        MUST(pthread_attr_init(&attributes));
        MUST(pthread_attr_setstacksize(&attributes, size));
        pthread_barrier_init(&all_here, NULL, several);
        for (int k = 0; k < several; k++) MUST(pthread_create(&threads[k], &attributes, work, &all_here));
        for (int k = 0; k < several; k++) pthread_join(threads[k], NULL);
    } else {
        char *room = mmap(NULL, size + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        mprotect(room, 4096, PROT_NONE);
        getcontext(&inside);
        inside.uc_stack.ss_sp = room + 4096;
        inside.uc_stack.ss_size = size;
        inside.uc_link = &outside;
        makecontext(&inside, fiber, 0);
        swapcontext(&outside, &inside);
    }
    printf("granted %d failed %d\n", granted, failed);
    if (count < 4) return 0;
    CUcontext context;
    CUdeviceptr at;
    int pieces = 0;
    failed = init(0) || retain(&context, 0) || current(context);
    while (pieces < 100 && allocate(&at, 16ul << 20) == 0) pieces++;
    printf("pieces %d failed %d\n", pieces, failed);
    return 0;
}
