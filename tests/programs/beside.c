/* beside.c WAY: eight allocations of 4 MiB, of which six are given back. WAY: linked (by the linker) |
   looked (by dlsym) | runtime (by cudaMalloc, which a neighbour has). Linked against the driver. */
#include "driver.h"

CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
CUresult cuMemFree_v2(CUdeviceptr);
__attribute__((weak)) int cudaMalloc(void **, size_t);
__attribute__((weak)) int cudaFree(void *);
__attribute__((weak)) void neighbour_begin(void);

int main(int count, char **arguments) {
    const char *way = count > 1 ? arguments[1] : "linked";
    CUdeviceptr all[8];
    begin(0);
    if (neighbour_begin) neighbour_begin();
    for (int k = 0; k < 8; k++) {
        char *host = malloc(1000 * k + 1);
        if (!strcmp(way, "linked")) SHOW(cuMemAlloc_v2(all + k, 4 * MIB));
        if (!strcmp(way, "looked")) SHOW(CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(all + k, 4 * MIB));
        if (!strcmp(way, "runtime")) SHOW(cudaMalloc((void **)(all + k), 4 * MIB));
        free(host);
    }
    for (int k = 0; k < 6; k++) {
        if (!strcmp(way, "linked")) SHOW(cuMemFree_v2(all[k]));
        if (!strcmp(way, "looked")) SHOW(CALL(cuMemFree_v2, (CUdeviceptr))(all[k]));
        if (!strcmp(way, "runtime")) SHOW(cudaFree((void *)all[k]));
    }
    return 0;
}
