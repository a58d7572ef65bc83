/* stack: how much of a thread's stack the first calls and later ones take, as seen on a painted
   stack. Prints two numbers of bytes. */
#include "../../../tests/programs/driver.h"

int cuInit(unsigned);
int cuMemAlloc_v2(uint64_t *, size_t);
int cuMemFree_v2(uint64_t);
int cuMemGetInfo_v2(size_t *, size_t *);

static const size_t SIZE = 1 << 20;
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

static size_t used(int number) {
    pthread_attr_t attributes;
    pthread_t thread;
    unsigned char *stack = mmap(0, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(stack, 0xA5, SIZE);
    calls = number;
    pthread_attr_init(&attributes);
    pthread_attr_setstack(&attributes, stack, SIZE);
    pthread_create(&thread, &attributes, work, 0);
    pthread_join(thread, 0);
    size_t untouched = 0;
    while (stack[untouched] == 0xA5) untouched++;
    return SIZE - untouched;
}

int main(void) {
    size_t first = used(1);
    printf("%zu %zu\n", first, used(20000));
    return 0;
}
