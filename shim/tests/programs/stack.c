/* stack: how much of a thread's stack the first calls and later ones take, as seen on a painted
   stack. Prints two numbers of bytes. */
#include "../../../tests/programs/driver.h"

int cuInit(unsigned);
int cuMemAlloc_v2(uint64_t *, size_t);
int cuMemFree_v2(uint64_t);
int cuMemGetInfo_v2(size_t *, size_t *);

static int calls;

static void *work(void *nothing) {
    uint64_t address;
    size_t size;
    cuInit(0);
    for (int n = 0; n < calls; n++) {
        if (cuMemAlloc_v2(&address, 4096)) abort();
        cuMemGetInfo_v2(&size, &size);
        cuMemFree_v2(address);
    }
    return nothing;
}

int main(void) {
    calls = 1;
    size_t first = stack_used(work);
    calls = 20000;
    printf("%zu %zu\n", first, stack_used(work));
    return 0;
}
