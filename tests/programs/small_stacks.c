/* small_stacks thread|fiber KIB: the first and all later calls of the driver are made on a stack of
   so many KiB, with a page below it that faults. */
#define _GNU_SOURCE
#include "driver.h"
#include <pthread.h>
#include <sys/mman.h>
#include <ucontext.h>

static CUresult (*init)(unsigned);
static CUresult (*retain)(CUcontext *, CUdevice);
static CUresult (*current)(CUcontext);
static CUresult (*allocate)(CUdeviceptr *, size_t);
static CUresult (*release)(CUdeviceptr);
static int failed, granted;
static ucontext_t outside, inside;

__attribute__((noinline)) static void pair(int path) {
    CUdeviceptr at = 0;
    if (path > 1) {
        if (path & 1) pair(path / 2);
        else pair(path / 2);
    } else {
        granted += allocate(&at, 4096) == 0;
        failed += release(at) != 0;
    }
    __asm__ volatile("" ::: "memory");
}

static void *work(void *nothing) {
    CUcontext context;
    failed += init(0) != 0;
    failed += retain(&context, 0) != 0;
    failed += current(context) != 0;
    for (int k = 0; k < 5000; k++) pair(1 + k % 63);
    failed += allocate((CUdeviceptr *)&context, 0) == 0;
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
        pthread_t thread;
        MUST(pthread_attr_init(&attributes));
        MUST(pthread_attr_setstacksize(&attributes, size));
        MUST(pthread_create(&thread, &attributes, work, NULL));
        pthread_join(thread, NULL);
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
    return 0;
}
