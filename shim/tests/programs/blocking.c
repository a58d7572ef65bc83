/* A driver in which a thread can hang, and out of which an exception can come: a stand-in for
   libcuda.so.1. Sizes choose: 1 waits for ever, 2 throws past everybody, else an allocation, which takes
   no lock and no memory, so that it may be called from a signal's handler. */
#include <pthread.h>
#include <stdint.h>
#include <unistd.h>

int waiting; /* read by the program */
void (*thrower)(void);

int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int *version) { return *version = 13000, 0; }
int cuCtxGetCurrent(void **context) { return *context = 0, 0; }

int cuMemAlloc_v2(uint64_t *address, size_t size) {
    static uint64_t next = 0x700000000;
    if (size == 1) {
        __atomic_store_n(&waiting, 1, __ATOMIC_SEQ_CST);
        for (;;) pause();
    }
    if (size == 2) thrower();
    *address = __atomic_fetch_add(&next, 0x200000, __ATOMIC_SEQ_CST);
    return 0;
}

int cuMemFree_v2(uint64_t address) { return 0; }
int cuMemGetInfo_v2(size_t *free, size_t *total) { return 0; }

int cuStreamSynchronize(void *stream) {
    __atomic_store_n(&waiting, 1, __ATOMIC_SEQ_CST);
    for (;;) pause();
}
