/* Memory through two functions that only allocate, for two that need it, and through one that is called once. */
#include "driver.h"

NEVER static CUdeviceptr device_malloc(size_t size) {
    CUdeviceptr pointer;
    MUST(CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&pointer, size));
    STAY;
    return pointer;
}

NEVER static CUdeviceptr buffer_alloc(size_t size) {
    CUdeviceptr pointer = device_malloc(size);
    STAY;
    return pointer;
}

NEVER static void load_table(void) {
    buffer_alloc(64 * MIB);
    STAY;
}

NEVER static void build_index(void) {
    buffer_alloc(32 * MIB);
    STAY;
}

NEVER static void allocate_queue(void) {
    CUdeviceptr pointer;
    MUST(CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&pointer, 16 * MIB));
    STAY;
}

int main(void) {
    begin(0);
    load_table();
    build_index();
    allocate_queue();
    _exit(0);
}
