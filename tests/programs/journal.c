/* journal.c FILE THREADS: allocates and frees for ever; after each call that returned, notes it in
   FILE (a shared mapping, so that it survives SIGKILL): the trace must hold every call noted here.
   Layout: u64 count per thread, then per thread a ring of the addresses and sizes, last 4,096. */
#include "driver.h"

enum { LIVE = 64, MOST = 16 };
struct thread_journal {
    _Atomic uint64_t allocations, frees;
    _Atomic uint64_t live[LIVE]; /* addresses that are live now; 0 = empty or in a call */
};
static struct thread_journal *journal;
static CUcontext context;

static void *worker(void *number) {
    struct thread_journal *mine = &journal[(uintptr_t)number];
    MUST(CALL(cuCtxSetCurrent, (CUcontext))(context));
    CUresult (*take)(CUdeviceptr *, size_t) = CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t));
    CUresult (*give)(CUdeviceptr) = CALL(cuMemFree_v2, (CUdeviceptr));
    CUdeviceptr at[LIVE] = {0};
    for (uint64_t i = 0;; i++) {
        unsigned slot = (unsigned)((i * 7) % LIVE);
        if (at[slot]) {
            atomic_store(&mine->live[slot], 0);
            MUST(give(at[slot]));
            atomic_fetch_add(&mine->frees, 1);
            at[slot] = 0;
        } else {
            MUST(take(&at[slot], 512 + (i % 5000)));
            atomic_fetch_add(&mine->allocations, 1);
            atomic_store(&mine->live[slot], at[slot]);
        }
    }
    return NULL;
}

int main(int count, char **arguments) {
    pthread_t threads[MOST];
    uintptr_t n = count > 2 ? strtoul(arguments[2], NULL, 10) : 1;
    int file = open(arguments[1], O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, MOST * sizeof *journal)) return 97;
    journal = mmap(NULL, MOST * sizeof *journal, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (journal == MAP_FAILED) return 97;
    context = begin(0);
    for (uintptr_t i = 0; i < n; i++) pthread_create(&threads[i], NULL, worker, (void *)i);
    pthread_join(threads[0], NULL);
    return 0;
}
