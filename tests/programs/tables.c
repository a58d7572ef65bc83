/* tables.c HOW: more objects than the recorder has ids for. Prints the results that a cap may change. */
#include "driver.h"

static CUmemoryPool new_pool(void) {
    CUmemPoolProps props = POOL_ON_DEVICE;
    CUmemoryPool pool;
    MUST(CALL(cuMemPoolCreate, (CUmemoryPool *, const CUmemPoolProps *))(&pool, &props));
    return pool;
}

static CUresult take(CUmemoryPool pool, CUdeviceptr *block, size_t bytes) {
    static CUresult (*take)(CUdeviceptr *, size_t, CUmemoryPool, CUstream);
    if (!take) *(void **)&take = driver_function("cuMemAllocFromPoolAsync");
    return take(block, bytes, pool, NULL);
}

static void give(CUdeviceptr block) {
    static CUresult (*give)(CUdeviceptr, CUstream);
    if (!give) *(void **)&give = driver_function("cuMemFreeAsync");
    MUST(give(block, NULL));
}

static void destroy(CUmemoryPool pool) { MUST(CALL(cuMemPoolDestroy, (CUmemoryPool))(pool)); }

enum { ALIVE = 66000, USED = 100, ONE_AFTER_THE_OTHER = 3000 };
static CUmemoryPool pools[ALIVE];

/* Takes 20 MiB of each of some pools. Returns how many got them. */
static int take_of(CUmemoryPool *some, CUdeviceptr *blocks) {
    int got = 0;
    for (int i = 0; i < USED; i++) got += take(some[i], &blocks[i], 20 * MIB) == 0;
    return got;
}

static void give_all(CUdeviceptr *blocks) {
    for (int i = 0; i < USED; i++)
        if (blocks[i]) give(blocks[i]);
    memset(blocks, 0, USED * sizeof *blocks);
    MUST(CALL(cuCtxSynchronize, (void))());
}

/* More pools alive than a trace has ids for, and then more than that in all. */
static void many_pools(void) {
    CUdeviceptr blocks[USED] = {0};
    for (int i = 0; i < ALIVE; i++) pools[i] = new_pool();
    printf("of the last: %d\n", take_of(pools + ALIVE - USED, blocks));
    give_all(blocks);
    printf("of some that are followed and some that are not: %d\n", take_of(pools + 65535 - USED / 4, blocks));
    give_all(blocks);
    for (int i = 0; i < ALIVE; i++) destroy(pools[i]);
    for (int i = 0; i < ONE_AFTER_THE_OTHER; i++) {
        CUmemoryPool pool = new_pool();
        MUST(take(pool, blocks, MIB));
        give(blocks[0]);
        destroy(pool);
    }
    blocks[0] = 0;
    for (int i = 0; i < USED; i++) pools[i] = new_pool();
    printf("of new ones: %d\n", take_of(pools, blocks));
    /* Their blocks outlive them. */
    for (int i = 0; i < USED; i++) destroy(pools[i]);
    for (int i = 0; i < USED; i++) pools[i] = new_pool();
    printf("while those are held: %d\n", take_of(pools, blocks + 0));
    give_all(blocks);
}

/* A stream, a pool and a context for each piece of work: more than there are sites. */
static void many_sites(void) {
    enum { PIECES = 13000 };
    CUdeviceptr blocks[16];
    for (int i = 0; i < PIECES; i++) {
        CUstream stream;
        MUST(CALL(cuStreamCreate, (CUstream *, unsigned))(&stream, 1));
        MUST(CALL(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream))(blocks, MIB, stream));
        MUST(CALL(cuMemFreeAsync, (CUdeviceptr, CUstream))(blocks[0], stream));
        MUST(CALL(cuStreamDestroy_v2, (CUstream))(stream));
        CUmemoryPool own = new_pool();
        MUST(take(own, blocks, MIB));
        give(blocks[0]);
        destroy(own);
    }
    for (int i = 0; i < PIECES; i++) {
        CUcontext context;
        CUdeviceptr left;
        MUST(CALL(cuCtxCreate_v2, (CUcontext *, unsigned, CUdevice))(&context, 0, 0));
        MUST(CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&left, 2 * MIB));
        MUST(CALL(cuCtxDestroy_v2, (CUcontext))(context));
    }
    CUmemoryPool last = new_pool();
    for (int i = 0; i < 16; i++) MUST(take(last, &blocks[i], 32 * MIB));
    for (int i = 0; i < 16; i++) give(blocks[i]);
    destroy(last);
}

int main(int count, char **arguments) {
    begin(0);
    if (count == 2 && !strcmp(arguments[1], "pools")) many_pools();
    else if (count == 2 && !strcmp(arguments[1], "sites")) many_sites();
    else return 97;
    return 0;
}
