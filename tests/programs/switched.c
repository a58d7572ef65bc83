/* switched.c [LIBC10_CUDA]: executes commands from stdin, one a line, while a test switches the recording:

     t         starts four threads that allocate and free     q   ends them; prints "ALLOCATIONS MIB" that they left
     a MIB     cuMemAlloc                                     i   cuMemGetInfo: a call that allocates nothing
     c COUNT   allocates 2 MiB and frees them, so many times
     b AT SIZE a block of PyTorch's cache, by offset in a segment of 20 MiB; freed if SIZE is below 0
     k         forks: the child reports a block and ends by _exit; prints its exit status */
#include "driver.h"
#include "c10.h"

enum { THREADS = 4, KEPT = 24 };

static CUcontext context;
static atomic_int stop;
static atomic_ulong left, left_mib;
static void (*block)(int, void *, int64_t);
static char *segment;

static void *work(void *data) {
    CUdeviceptr live[KEPT];
    unsigned sizes[KEPT], count = 0, random = (unsigned)(size_t)data + 1;
    CUstream stream;
    MUST(CALL(cuCtxSetCurrent, (CUcontext))(context));
    MUST(CALL(cuStreamCreate, (CUstream *, unsigned))(&stream, 1));
    while (!atomic_load(&stop)) {
        random = random * 1664525u + 1013904223u;
        if (count < KEPT && (random >> 20) % 2) {
            /* Two sizes of 2 MiB and more: the driver rounds nothing up. */
            sizes[count] = 2 * ((random >> 24) % 4 + 1);
            MUST(CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&live[count], sizes[count] * MIB));
            count++;
        } else if (count > 0) {
            MUST(CALL(cuMemFree_v2, (CUdeviceptr))(live[--count]));
        }
    }
    for (unsigned n = 0; n < count; n++) atomic_fetch_add(&left_mib, sizes[n]);
    atomic_fetch_add(&left, count);
    return NULL;
}

int main(int count, char **words) {
    pthread_t threads[THREADS];
    char line[256];
    context = begin(0);
    if (count > 1) {
        void *library = dlopen(words[1], RTLD_NOW | RTLD_LOCAL);
        CUdeviceptr at = 0;
        if (!library) return 97;
        block = (void (*)(int, void *, int64_t))dlsym(library, "cache_block");
        MUST(CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&at, 20 * MIB));
        ((void (*)(int, int64_t))dlsym(library, "cache_reserve"))(0, 20 * MIB);
        segment = (char *)at;
    }
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        long long first = 0, second = 0;
        size_t free_bytes, total;
        CUdeviceptr address = 0;
        int result = 0, status = 1;
        sscanf(line + 1, "%lld %lld", &first, &second);
        switch (line[0]) {
        case 't':
            for (size_t n = 0; n < THREADS; n++) pthread_create(&threads[n], NULL, work, (void *)n);
            break;
        case 'q':
            atomic_store(&stop, 1);
            for (size_t n = 0; n < THREADS; n++) pthread_join(threads[n], NULL);
            printf("%lu %lu\n", atomic_load(&left), atomic_load(&left_mib));
            fflush(stdout);
            continue;
        case 'a': result = CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&address, first * MIB); break;
        case 'i': result = CALL(cuMemGetInfo_v2, (size_t *, size_t *))(&free_bytes, &total); break;
        case 'c':
            for (; first > 0; first--) {
                MUST(CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&address, 2 * MIB));
                MUST(CALL(cuMemFree_v2, (CUdeviceptr))(address));
            }
            break;
        case 'b': block(0, segment + first, second); break;
        case 'k': {
            fflush(stdout);
            pid_t child = fork();
            if (child == 0) {
                if (block) block(0, segment + 8 * MIB, 4096);
                /* The driver refuses a child of its user. */
                _exit(CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&address, MIB) == 0);
            }
            waitpid(child, &status, 0);
            result = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
            break;
        }
        }
        printf("%d\n", result);
        fflush(stdout);
    }
    return 0;
}
