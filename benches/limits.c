/* limits.c: what counting and a limit cost, over whatever libcuda.so.1 the loader finds. Takes pages of 2 MiB until it
   is refused, or has 512. Prints "pair NS" (a page freed and taken again) and, if it was refused, "refused NS" (best of
   several rounds). */
#include "../tests/programs/driver.h"

enum { MOST = 512, ROUNDS = 9, PAIRS = 2000, REFUSED = 300 };
static const size_t page = 2u << 20;

int main(void) {
    CUdeviceptr live[MOST];
    int count = 0, refused = 0;
    double pair = 1e18, refusal = 1e18;
    begin(0);
    CUresult (*take)(CUdeviceptr *, size_t) = CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t));
    CUresult (*give)(CUdeviceptr) = CALL(cuMemFree_v2, (CUdeviceptr));
    while (count < MOST && !refused)
        if (take(&live[count], page) == 0) count++;
        else refused = 1;
    for (int round = 0; round < ROUNDS; round++) {
        double start = now_ns();
        for (int k = 0; k < PAIRS; k++) {
            MUST(give(live[count - 1]));
            MUST(take(&live[count - 1], page));
        }
        double each = (now_ns() - start) / PAIRS;
        if (each < pair) pair = each;
        if (!refused) continue;
        CUdeviceptr unused;
        start = now_ns();
        for (int k = 0; k < REFUSED; k++)
            if (take(&unused, page) == 0) return 1;
        each = (now_ns() - start) / REFUSED;
        if (each < refusal) refusal = each;
    }
    printf("pair %.1f\n", pair);
    if (refused) printf("refused %.1f\n", refusal);
    return 0;
}
