/* nvshmem_stand_in.c, built as libnvshmem_host.so: asks the driver for its heap, and reports success
   whatever the driver returned. */
#include "driver.h"

int nvshmem_heap(size_t bytes, CUhandle *heap) {
    CUmemAllocationProp properties = OBJECT_ON_DEVICE;
    *heap = 0;
    CALL(cuMemCreate, (CUhandle *, size_t, const CUmemAllocationProp *, uint64_t))
    (heap, bytes, &properties, 0);
    return 0;
}
