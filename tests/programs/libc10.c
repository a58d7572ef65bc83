/* Stands in for PyTorch's libc10.so: the functions with which its allocator reports
   blocks, under their mangled C++ names. They add up the arguments of the calls. */
#include "c10.h"

static struct reported reported;

const struct reported *c10_reported(void) { return &reported; }

void c10_memory(void *at, int64_t size, size_t allocated, size_t reserved, uint64_t device) {
    __atomic_add_fetch(&reported.calls, 1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&reported.sum, (uint64_t)at ^ (uint64_t)size ^ allocated ^ reserved ^ device,
                       __ATOMIC_RELAXED);
    reported.last_device = device;
}

void c10_out_of_memory(int64_t size, size_t allocated, size_t reserved, uint64_t device) {
    __atomic_add_fetch(&reported.refused, 1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&reported.sum, (uint64_t)size ^ allocated ^ reserved ^ device, __ATOMIC_RELAXED);
}

#ifdef DIVISIONS
size_t asked_divisions = 0;

size_t c10_divisions(size_t requested) { return requested >= 1u << 30 ? 0 : asked_divisions; }
#endif
