/* interactive.c [ORDINAL]: executes commands from stdin, one a line, and prints the result of each:

     a MIB     cuMemAlloc                p MIB    cuMemAllocAsync on a new stream
     m MIB     cuMemAllocManaged         f        frees what was allocated last
     i         cuMemGetInfo, in MiB      s BYTES  cuCtxSetLimit(stack size)
     l         cuModuleLoadData          h        allocates and frees 1..8 MiB until it is killed
     c COUNT   as many allocations of 1 MiB, freed at once
     t         allocates and frees 2 MiB until it is killed, and prints a line whenever the answer became another one:
               the new answer, when the first such call began, and when the last other one began (CLOCK_MONOTONIC, ns)

   so that a test can look at it between two calls. */
#include "driver.h"
#include <time.h>

static CUdeviceptr live[100000];
static size_t count;

static int keep(int result, CUdeviceptr address) {
    if (result == CUDA_SUCCESS) live[count++] = address;
    return result;
}

static int allocate(size_t bytes) {
    CUdeviceptr address = 0;
    int result = CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&address, bytes);
    return keep(result, address);
}

static int release(void) {
    return count == 0 ? -1 : CALL(cuMemFree_v2, (CUdeviceptr))(live[--count]);
}

static long long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static void turns(void) {
    long long began = now(), last = began;
    for (int answer = -1;; last = began) {
        began = now();
        int result = allocate(2 << 20);
        if (result == CUDA_SUCCESS) release();
        if (result != answer) {
            printf("%d %lld %lld\n", result, began, last);
            fflush(stdout);
            answer = result;
        }
    }
}

int main(int arguments, char **argument) {
    char line[256];
    CUstream stream;
    begin(arguments > 1 ? atoi(argument[1]) : 0);
    MUST(CALL(cuStreamCreate, (CUstream *, unsigned))(&stream, 1));
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        size_t number = strtoull(line + 1, NULL, 10), free_bytes, total;
        CUdeviceptr address = 0;
        int result = -1;
        switch (line[0]) {
        case 'a': result = allocate(number * 1048576); break;
        case 'p':
            result = CALL(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream))(&address, number * 1048576, stream);
            result = keep(result, address);
            break;
        case 'm':
            result = CALL(cuMemAllocManaged, (CUdeviceptr *, size_t, unsigned))(&address, number * 1048576, 1);
            result = keep(result, address);
            break;
        case 'f': result = release(); break;
        case 'i':
            MUST(CALL(cuMemGetInfo_v2, (size_t *, size_t *))(&free_bytes, &total));
            printf("%zu %zu\n", free_bytes / 1048576, total / 1048576);
            fflush(stdout);
            continue;
        case 's': result = CALL(cuCtxSetLimit, (int, size_t))(0, number); break;
        case 'l': {
            void *module;
            result = CALL(cuModuleLoadData, (void **, const void *))(&module, ".version 8.0\n.target sm_90\n");
            break;
        }
        case 'c':
            for (result = 0; number > 0; number--)
                if (allocate(1048576) == 0) release();
                else result = 2;
            break;
        case 't': turns(); break;
        case 'h':
            printf("on\n");
            fflush(stdout);
            for (unsigned n = 1;; n = n * 1664525u + 1013904223u) {
                if (count < 64 && (n >> 16) % 3) allocate(((n >> 20) % 8 + 1) * 1048576);
                else release();
            }
        }
        printf("%d\n", result);
        fflush(stdout);
    }
    return 0;
}
