/* PyTorch's libc10.so and libc10_cuda.so as far as their hook goes. */
#ifndef C10_H
#define C10_H
#include <stddef.h>
#include <stdint.h>

#define MEMORY "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE"
#define OUT_OF_MEMORY "_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE"

/* C++ passes the 2-byte Device in a register of which the rest may hold anything. */
void c10_memory(void *at, int64_t size, size_t allocated, size_t reserved, uint64_t device) __asm__(MEMORY);
void c10_out_of_memory(int64_t size, size_t allocated, size_t reserved, uint64_t device) __asm__(OUT_OF_MEMORY);

#ifdef REQUESTS
/* Static functions of classes, which PyTorch's allocator asks how to round a request up: in libc10.so from 2.10 on, before
   that in libc10_cuda.so. */
size_t c10_divisions(size_t requested) __asm__(REQUESTS);
extern size_t asked_divisions;
#endif

struct reported {
    uint64_t calls, refused, sum, last_device;
};
const struct reported *c10_reported(void);

#define CPU 0
#define CUDA 1
#define HIP 6
#define DEVICE(type, index) ((uint64_t)(uint8_t)(type) | (uint64_t)(uint8_t)(index) << 8)
/* What a register's upper bits may be. */
#define GARBAGE 0xdeadbeefcafe0000ull
#endif
