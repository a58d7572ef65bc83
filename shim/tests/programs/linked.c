/* Linked against the driver. */
#include <stdio.h>
#include <stddef.h>
typedef unsigned long long u64;
int cuInit(unsigned);
int cuMemAlloc_v2(u64 *, size_t);
int cuMemFree_v2(u64);
int witness_allocs(void);
int witness_inits(void);
int main(void) {
    u64 p = 0;
    int i = cuInit(0), a = cuMemAlloc_v2(&p, 512), bad = cuMemAlloc_v2(&p, 0), f = cuMemFree_v2(p);
    printf("%d %d %d %d reached %d %d\n", i, a, bad, f, witness_inits(), witness_allocs());
    return 0;
}
