/* corners.c WHICH: corners of the API and of a process's life that other programs leave alone.
   WHICH: managed | pools | padding | nodes | multicast | clone | storm | escapes | alarm. Prints results, no addresses. */
#include "driver.h"

static CUcontext current;
static CUstream stream;

/* Blocks of 64 MiB until one is refused; half are freed and the room is filled again. */
static void managed(void) {
    static CUdeviceptr blocks[4096];
    int count = 0, again = 0;
    CUresult (*get)(CUdeviceptr *, size_t, unsigned) = CALL(cuMemAllocManaged, (CUdeviceptr *, size_t, unsigned));
    CUresult (*give)(CUdeviceptr) = CALL(cuMemFree_v2, (CUdeviceptr));
    while (count < 4096 && get(&blocks[count], 64 * MIB, 1) == 0) count++;
    printf("granted %d\n", count);
    for (int n = 0; n < count / 2; n++) MUST(give(blocks[n]));
    while (again < count / 2 && get(&blocks[again], 64 * MIB, 1) == 0) again++;
    printf("again %d of %d\n", again, count / 2);
    for (int n = 0; n < count; n++) MUST(give(blocks[n]));
    /* What a context frees when it ends is given back too. */
    CUcontext own;
    MUST(CALL(cuCtxCreate_v2, (CUcontext *, unsigned, CUdevice))(&own, 0, 0));
    for (int n = 0; n < 16; n++) MUST(get(&blocks[n], 64 * MIB, 1));
    MUST(CALL(cuCtxDestroy_v2, (CUcontext))(own));
    MUST(CALL(cuCtxSetCurrent, (CUcontext))(current));
    again = 0;
    while (again < count && get(&blocks[again], 64 * MIB, 1) == 0) again++;
    printf("after the context %d of %d\n", again, count);
    for (int n = 0; n < again; n++) MUST(give(blocks[n]));
}

/* Pools whose memory is not a device's: host memory is under no cap, managed memory is. */
static void pools(void) {
    CUresult (*get)(CUdeviceptr *, size_t, CUmemoryPool, CUstream) =
        CALL(cuMemAllocFromPoolAsync, (CUdeviceptr *, size_t, CUmemoryPool, CUstream));
    for (int kind = 1; kind <= 2; kind++) {
        CUmemoryPool pool;
        CUmemPoolProps props = {.alloc_type = kind, .location = {2, 0}}; /* host */
        CUdeviceptr a = 0, b = 0x1234;
        SHOW(CALL(cuMemPoolCreate, (CUmemoryPool *, const CUmemPoolProps *))(&pool, &props));
        SHOW(get(&a, 300 * MIB, pool, stream));
        SHOW(get(&b, 300 * MIB, pool, stream));
        if (b != 0x1234) SHOW(CALL(cuMemFreeAsync, (CUdeviceptr, CUstream))(b, stream));
        SHOW(CALL(cuMemFreeAsync, (CUdeviceptr, CUstream))(a, stream));
        SHOW(CALL(cuStreamSynchronize, (CUstream))(stream));
        SHOW(CALL(cuMemPoolDestroy, (CUmemoryPool))(pool));
    }
}

/* A request from a pool that was destroyed fails; then memory is taken and refused, where pools are read. */
static void destroyed_pool(void) {
    CUresult (*get)(CUdeviceptr *, size_t, CUmemoryPool, CUstream) =
        CALL(cuMemAllocFromPoolAsync, (CUdeviceptr *, size_t, CUmemoryPool, CUstream));
    CUresult (*get_default)(CUdeviceptr *, size_t, CUstream) =
        CALL(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream));
    CUresult (*give)(CUdeviceptr, CUstream) = CALL(cuMemFreeAsync, (CUdeviceptr, CUstream));
    CUmemoryPool pool;
    CUmemPoolProps props = POOL_ON_DEVICE;
    CUdeviceptr block = 0, late = 0x1234, huge = 0x1234;
    SHOW(CALL(cuMemPoolCreate, (CUmemoryPool *, const CUmemPoolProps *))(&pool, &props));
    SHOW(get(&block, 3 * MIB, pool, stream));
    SHOW(give(block, stream));
    SHOW(CALL(cuStreamSynchronize, (CUstream))(stream));
    SHOW(CALL(cuMemPoolDestroy, (CUmemoryPool))(pool));
    for (int n = 0; n < 3; n++) {
        SHOW(get(&late, MIB, pool, stream));
        usleep(2000);
        SHOW(get_default(&block, MIB, stream));
        SHOW(give(block, stream));
        SHOW(CALL(cuStreamSynchronize, (CUstream))(stream));
        SHOW(get_default(&huge, 1ull << 40, stream));
    }
    printf("late %d huge %d\n", late == 0x1234, huge == 0x1234);
}

/* Two blocks fill a pool's step of 32 MiB, with what rounding adds; a third one needs another. The
   driver's figure of used bytes is that of the sizes asked for. */
static void padding(void) {
    CUresult (*get)(CUdeviceptr *, size_t, CUstream) = CALL(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream));
    CUdeviceptr blocks[2], third = 0x1234;
    CUmemoryPool pool;
    uint64_t used = 0;
    for (int n = 0; n < 2; n++) MUST(get(&blocks[n], 16 * MIB - 511, stream));
    MUST(CALL(cuDeviceGetDefaultMemPool, (CUmemoryPool *, CUdevice))(&pool, 0));
    MUST(CALL(cuMemPoolGetAttribute, (CUmemoryPool, int, void *))(pool, 7, &used));
    printf("used %lu\n", (unsigned long)used);
    SHOW(get(&third, 1, stream));
    if (third != 0x1234) MUST(CALL(cuMemFreeAsync, (CUdeviceptr, CUstream))(third, stream));
    for (int n = 0; n < 2; n++) MUST(CALL(cuMemFreeAsync, (CUdeviceptr, CUstream))(blocks[n], stream));
}

typedef struct {
    int type, reserved[3];
    union {
        CUmemAllocNode alloc;
        CUdeviceptr address;
        unsigned char all[232];
    };
    long long reserved2;
} NodeParams;
_Static_assert(sizeof(NodeParams) == 256, "CUgraphNodeParams");

/* Memory nodes through each version of the general call. */
static void nodes(void) {
    typedef CUresult (*Add)(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, NodeParams *);
    typedef CUresult (*AddEdges)(CUgraphNode *, CUgraph, const CUgraphNode *, const void *, size_t, NodeParams *);
    const char *names[] = {"cuGraphAddNode", "cuGraphAddNode_v2", "cuGraphAddNode_v3"};
    for (int version = 0; version < 3; version++) {
        CUgraph graph;
        CUgraphExec exec;
        CUgraphNode take, free_it, bad;
        NodeParams params;
        void *add = driver_function(names[version]);
        printf("%s\n", names[version]);
        MUST(CALL(cuGraphCreate, (CUgraph *, unsigned))(&graph, 0));
        memset(&params, 0, sizeof params);
        params.type = 10;
        params.alloc.pool.alloc_type = 1;
        params.alloc.pool.location.type = 1;
        params.alloc.bytes = 200 * MIB;
#define ADD(node, after, count) \
    (version ? ((AddEdges)add)(node, graph, after, NULL, count, &params) : ((Add)add)(node, graph, after, count, &params))
        printf("take %d\n", ADD(&take, NULL, 0));
        CUdeviceptr address = params.alloc.address;
        params.alloc.bytes = 0;
        printf("bad %d\n", ADD(&bad, NULL, 0));
        memset(&params, 0, sizeof params);
        params.type = 11;
        params.address = address;
        printf("free %d\n", ADD(&free_it, &take, 1));
        SHOW(CALL(cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, uint64_t))(&exec, graph, 0));
        SHOW(CALL(cuGraphLaunch, (CUgraphExec, CUstream))(exec, stream));
        SHOW(CALL(cuStreamSynchronize, (CUstream))(stream));
        SHOW(CALL(cuGraphExecDestroy, (CUgraphExec))(exec));
        SHOW(CALL(cuGraphDestroy, (CUgraph))(graph));
        SHOW(CALL(cuDeviceGraphMemTrim, (CUdevice))(0));
    }
}

/* An object that is bound to a multicast object lives until it is unbound. */
static void multicast(void) {
    struct {
        unsigned devices;
        size_t size;
        unsigned long long handle_types, flags;
    } props = {1, 64 * MIB, 0, 0};
    CUmemAllocationProp own = OBJECT_ON_DEVICE;
    CUhandle group = 0, object = 0;
    SHOW(CALL(cuMulticastCreate, (CUhandle *, const void *))(&group, &props));
    SHOW(CALL(cuMulticastAddDevice, (CUhandle, CUdevice))(group, 0));
    SHOW(CALL(cuMemCreate, (CUhandle *, size_t, const CUmemAllocationProp *, uint64_t))(&object, 20 * MIB, &own, 0));
    SHOW(CALL(cuMulticastBindMem, (CUhandle, size_t, CUhandle, size_t, size_t, uint64_t))(group, 0, object, 0, 20 * MIB, 0));
    SHOW(CALL(cuMulticastBindMem, (CUhandle, size_t, CUhandle, size_t, size_t, uint64_t))(group, 0, object, 0, 20 * MIB, 0));
    SHOW(CALL(cuMemRelease, (CUhandle))(object));
    SHOW(CALL(cuMulticastUnbind, (CUhandle, CUdevice, size_t, size_t))(group, 0, 2 * MIB, 20 * MIB));
    /* In the room that an object still bound takes there is none for another. */
    CUhandle other = 0x77;
    SHOW(CALL(cuMemCreate, (CUhandle *, size_t, const CUmemAllocationProp *, uint64_t))(&other, 2 * MIB, &own, 0));
    SHOW(CALL(cuMemRelease, (CUhandle))(other));
    SHOW(CALL(cuMulticastUnbind, (CUhandle, CUdevice, size_t, size_t))(group, 0, 0, 20 * MIB));
    SHOW(CALL(cuMemRelease, (CUhandle))(group));
}

/* As fork, past the C library: its handlers do not run. */
static void raw_clone(void) {
    CUdeviceptr mine = 0;
    int status = 0;
    SHOW(CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&mine, 4 * MIB));
    CUresult (*get)(CUdeviceptr *, size_t) = CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t));
    fflush(stdout);
    long child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (child == 0) {
        CUdeviceptr theirs = 0;
        int result = get(&theirs, 1024);
        _exit(result > 255 ? 255 : result);
    }
    waitpid(child, &status, 0);
    printf("child ended by itself %d with %d\n", WIFEXITED(status), WEXITSTATUS(status));
}

static volatile int stop;

static void *churn(void *unused) {
    MUST(CALL(cuCtxSetCurrent, (CUcontext))(current));
    while (!stop) {
        CUdeviceptr p;
        if (CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&p, 4096) == 0) MUST(CALL(cuMemFree_v2, (CUdeviceptr))(p));
    }
    return unused;
}

/* Forks while other threads are in hooks: children that use CUDA, and children that do not. */
static void storm(void) {
    pthread_t threads[3];
    int good = 0;
    for (int n = 0; n < 3; n++) pthread_create(&threads[n], NULL, churn, NULL);
    for (int n = 0; n < 60; n++) {
        int status = 0;
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            alarm(20); /* a child that hangs is ended, and counts as bad */
            CUdeviceptr p = 0;
            size_t size;
            if (n % 2) {
                CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&p, 4096);
                CALL(cuMemGetInfo_v2, (size_t *, size_t *))(&size, &size);
                CALL(cuMemFree_v2, (CUdeviceptr))(p);
            }
            _exit(5);
        }
        waitpid(child, &status, 0);
        good += WIFEXITED(status) && WEXITSTATUS(status) == 5;
    }
    stop = 1;
    for (int n = 0; n < 3; n++) pthread_join(threads[n], NULL);
    printf("good children %d\n", good);
}

/* Libraries opened in ways by which their calls may bypass the recorder. */
static void escapes(void) {
    CUdeviceptr p = 0;
    printf("opened %d %d\n", dlopen("libm.so.6", RTLD_NOW | RTLD_DEEPBIND) != NULL,
           dlmopen(LM_ID_NEWLM, "libm.so.6", RTLD_NOW) != NULL);
    SHOW(CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&p, 4096));
    SHOW(CALL(cuMemFree_v2, (CUdeviceptr))(p));
}

static void leave(int number) { exit(number == SIGALRM ? 5 : 6); }

/* Children that exit from a signal handler, wherever it strikes them. */
static void alarmed(void) {
    int good = 0;
    for (int n = 0; n < 30; n++) {
        int status = 0;
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            struct itimerval soon = {{0, 0}, {0, 20000 + 1700 * n}};
            CUdeviceptr p;
            current = begin(0);
            CUresult (*get)(CUdeviceptr *, size_t) = CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t));
            CUresult (*give)(CUdeviceptr) = CALL(cuMemFree_v2, (CUdeviceptr));
            CUresult (*spot)(CUdeviceptr *, size_t *, CUdeviceptr) =
                CALL(cuMemGetAddressRange_v2, (CUdeviceptr *, size_t *, CUdeviceptr));
            signal(SIGALRM, leave);
            setitimer(ITIMER_REAL, &soon, NULL);
            MUST(get(&p, 4096));
            /* No allocation of the driver's own may be cut in two: its locks are its own matter.
               Half of the time goes to calls that only we do something at. */
            for (;;) {
                spot(NULL, NULL, 0);
                if (n % 2) {
                    MUST(give(p));
                    MUST(get(&p, 4096));
                }
            }
        }
        for (int wait = 0; wait < 2000 && !waitpid(child, &status, WNOHANG); wait++) usleep(5000);
        if (WIFEXITED(status) && WEXITSTATUS(status) == 5) good++;
        else kill(child, SIGKILL);
    }
    printf("good children %d\n", good);
}

int main(int count, char **arguments) {
    if (count > 1 && !strcmp(arguments[1], "alarm")) {
        alarmed();
        return 0;
    }
    current = begin(0);
    MUST(CALL(cuStreamCreate, (CUstream *, unsigned))(&stream, 1));
    return RUN_WAY(count > 1 ? arguments[1] : "", {"managed", managed}, {"pools", pools},
                   {"padding", padding}, {"nodes", nodes}, {"multicast", multicast},
                   {"clone", raw_clone}, {"storm", storm}, {"escapes", escapes},
                   {"destroyed", destroyed_pool});
}
