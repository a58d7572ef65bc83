/* lending.c HOW: one process lends device memory to another. It starts the borrower; both print, one after the other. HOW:
   twice   the handle is opened twice and closed twice, and once more; it stays open at last
   pool    a block of a pool, by the pool's descriptor and the block's pointer, imported twice
   dead    the lender has ended before the borrower opens the handle, and before it closes the one that is open
   threads threads open and close one handle at the same time, also while it stays open */
#include "driver.h"

#define DESCRIPTOR 1 /* CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR */

typedef struct {
    char bytes[64];
} sealed;

struct letter {
    CUipcMemHandle handle;
    sealed block;
};

static CUcontext context;
static CUipcMemHandle shared;

static CUresult open_handle(CUdeviceptr *p) {
    return CALL(cuIpcOpenMemHandle_v2, (CUdeviceptr *, CUipcMemHandle, unsigned))(p, shared, 1);
}
static CUresult close_handle(CUdeviceptr p) { return CALL(cuIpcCloseMemHandle, (CUdeviceptr))(p); }

static void *opens(void *unused) {
    (void)unused;
    MUST(CALL(cuCtxSetCurrent, (CUcontext))(context));
    for (int n = 0; n < 200; n++) {
        CUdeviceptr p = 0;
        MUST(open_handle(&p));
        MUST(close_handle(p));
    }
    return NULL;
}

static void borrow(const char *how, int letters, int pool_file, int replies) {
    struct letter letter;
    CUdeviceptr p = 0, again = 0;
    if (read(letters, &letter, sizeof letter) != sizeof letter) exit(96);
    shared = letter.handle;
    context = begin(0);
    if (!strcmp(how, "pool")) {
        CUmemoryPool pool;
        SHOW(CALL(cuMemPoolImportFromShareableHandle, (CUmemoryPool *, void *, int, unsigned long long))(&pool, (void *)(intptr_t)pool_file, DESCRIPTOR, 0));
        SHOW(CALL(cuMemPoolImportPointer, (CUdeviceptr *, CUmemoryPool, sealed *))(&p, pool, &letter.block));
        SHOW(CALL(cuMemPoolImportPointer, (CUdeviceptr *, CUmemoryPool, sealed *))(&again, pool, &letter.block));
        printf("another address %d\n", p != again);
        SHOW(CALL(cuMemFreeAsync, (CUdeviceptr, CUstream))(p, NULL));
        SHOW(CALL(cuMemFree_v2, (CUdeviceptr))(again));
        SHOW(CALL(cuMemFree_v2, (CUdeviceptr))(again));
        SHOW(CALL(cuMemPoolDestroy, (CUmemoryPool))(pool));
    } else if (!strcmp(how, "dead")) {
        SHOW(open_handle(&p));
        if (write(replies, "k", 1) != 1 || read(letters, &letter, 1) != 0) exit(97);
        CUdeviceptr late = 0x1234;
        printf("late open %s\n", open_handle(&late) == 0 ? "works" : "fails");
        SHOW(close_handle(p));
        SHOW(close_handle(p));
    } else if (!strcmp(how, "twice")) {
        CUdeviceptr untouched = 0x1234;
        memset(&shared, 0x5a, sizeof shared);
        SHOW(open_handle(&untouched));
        printf("untouched %d\n", untouched == 0x1234);
        shared = letter.handle;
        SHOW(open_handle(&p));
        SHOW(open_handle(&again));
        printf("same address %d\n", p == again);
        SHOW(close_handle(p));
        SHOW(CALL(cuMemsetD8_v2, (CUdeviceptr, unsigned char, size_t))(p, 1, 1000));
        SHOW(close_handle(p));
        SHOW(close_handle(p));
        SHOW(open_handle(&p));
    } else {
        for (int held = 0; held < 2; held++) {
            if (held) MUST(open_handle(&p));
            on_threads(4, opens);
        }
        SHOW(close_handle(p));
        SHOW(close_handle(p));
    }
}

/* Returns the descriptor of a pool, and writes its block. */
static int lend_of_pool(CUdeviceptr *block, sealed *pointer) {
    CUmemPoolProps props = {.alloc_type = 1, .handle_types = DESCRIPTOR, .location = {1, 0}};
    CUmemoryPool pool;
    int file = -1;
    MUST(CALL(cuMemPoolCreate, (CUmemoryPool *, const CUmemPoolProps *))(&pool, &props));
    MUST(CALL(cuMemPoolExportToShareableHandle, (void *, CUmemoryPool, int, unsigned long long))(&file, pool, DESCRIPTOR, 0));
    MUST(CALL(cuMemAllocFromPoolAsync, (CUdeviceptr *, size_t, CUmemoryPool, CUstream))(block, 32 * MIB, pool, NULL));
    MUST(CALL(cuStreamSynchronize, (CUstream))(NULL));
    MUST(CALL(cuMemPoolExportPointer, (sealed *, CUdeviceptr))(pointer, *block));
    fcntl(file, F_SETFD, 0);
    return file;
}

int main(int count, char **arguments) {
    const char *how = count > 1 ? arguments[1] : "twice";
    if (count == 5) {
        borrow(how, atoi(arguments[2]), atoi(arguments[3]), atoi(arguments[4]));
        return 0;
    }
    int letters[2], replies[2], pool_file = -1, status;
    CUdeviceptr p, block = 0;
    struct letter letter = {0};
    char byte;
    if (!strcmp(how, "dead")) {
        /* The lender is a child, whose own child, the borrower, outlives it. */
        prctl(PR_SET_CHILD_SUBREAPER, 1);
        if (fork()) {
            while (wait(NULL) > 0) {
            }
            return 0;
        }
    }
    if (pipe(letters) || pipe(replies)) return 95;
    begin(0);
    SHOW(CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&p, 64 * MIB));
    SHOW(CALL(cuIpcGetMemHandle, (CUipcMemHandle *, CUdeviceptr))(&letter.handle, p));
    if (!strcmp(how, "pool")) pool_file = lend_of_pool(&block, &letter.block);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        char from[16], file[16], to[16];
        snprintf(from, sizeof from, "%d", letters[0]);
        snprintf(file, sizeof file, "%d", pool_file);
        snprintf(to, sizeof to, "%d", replies[1]);
        close(letters[1]);
        execl("/proc/self/exe", arguments[0], how, from, file, to, (char *)NULL);
        _exit(94);
    }
    if (write(letters[1], &letter, sizeof letter) != sizeof letter) return 93;
    if (!strcmp(how, "dead")) {
        if (read(replies[0], &byte, 1) != 1) return 91;
        kill(getpid(), SIGKILL);
    }
    if (waitpid(child, &status, 0) != child || status) return 92;
    if (block) SHOW(CALL(cuMemFreeAsync, (CUdeviceptr, CUstream))(block, NULL));
    SHOW(CALL(cuMemFree_v2, (CUdeviceptr))(p));
    return 0;
}
