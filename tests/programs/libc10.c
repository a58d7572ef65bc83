/* Stands in for PyTorch's libc10.so: the functions by which its allocator tells its profiler of
   blocks, under the names that C++ gives them. They keep what they were told. */
#include "c10.h"

static struct told told;

const struct told *c10_told(void) { return &told; }

void c10_memory(void *at, int64_t size, size_t allocated, size_t reserved, uint64_t device) {
    __atomic_add_fetch(&told.calls, 1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&told.sum, (uint64_t)at ^ (uint64_t)size ^ allocated ^ reserved ^ device,
                       __ATOMIC_RELAXED);
    told.last_device = device;
}

void c10_out_of_memory(int64_t size, size_t allocated, size_t reserved, uint64_t device) {
    __atomic_add_fetch(&told.refused, 1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&told.sum, (uint64_t)size ^ allocated ^ reserved ^ device, __ATOMIC_RELAXED);
}
