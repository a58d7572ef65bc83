/* swallowed.c LIBRARY MIB: a library is refused its heap and does not report it. The program goes on:
   it takes its own memory, maps a heap that is not there, and ends with status 3. */
#include "driver.h"

int main(int count, char **arguments) {
    if (count < 3) return 97;
    begin(0);
    void *library = dlopen(arguments[1], RTLD_NOW);
    int (*heap)(size_t, CUhandle *) = library ? (int (*)(size_t, CUhandle *))dlsym(library, "nvshmem_heap") : NULL;
    if (!heap) return 96;
    CUhandle handle = 0;
    printf("heap: %d\n", heap((size_t)atoll(arguments[2]) << 20, &handle));
    CUdeviceptr own = 0, space = 0;
    printf("own: %d\n", CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&own, 8 << 20));
    CALL(cuMemAddressReserve, (CUdeviceptr *, size_t, size_t, CUdeviceptr, uint64_t))
    (&space, 64 << 20, 0, 0, 0);
    int mapped = CALL(cuMemMap, (CUdeviceptr, size_t, size_t, CUhandle, uint64_t))(space, 2 << 20, 0, handle, 0);
    printf("mapped: %s\n", mapped ? "failed" : "done");
    return mapped ? 3 : 0;
}
