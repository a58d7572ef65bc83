/* exhausted sites VARIABLE FROM TO STEP [OVER_MIB] | exhausted growth COUNT [OVER_MIB]

   sites: for each number N a child in which the N-th of our library's requests for memory fails, and one
   in which that and all later ones fail. Each does a few calls of every family that keeps something; what
   it prints must be what one prints in which nothing fails. With OVER_MIB, more than the cap: only its end
   is looked at, and that so much is never given. Stops early when nothing fails any more.

   growth: makes COUNT objects of each kind, has all requests fail, and goes on with as many. */
#include "driver.h"

static CUstream stream;
static CUmemAllocationProp props = OBJECT_ON_DEVICE;
static size_t over;

#define CREATE CALL(cuMemCreate, (CUhandle *, size_t, const CUmemAllocationProp *, uint64_t))
#define MAP CALL(cuMemMap, (CUdeviceptr, size_t, size_t, CUhandle, uint64_t))
#define UNMAP CALL(cuMemUnmap, (CUdeviceptr, size_t))
#define RELEASE CALL(cuMemRelease, (CUhandle))
#define RESERVE CALL(cuMemAddressReserve, (CUdeviceptr *, size_t, size_t, CUdeviceptr, uint64_t))
#define TAKE CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))
#define GIVE CALL(cuMemFree_v2, (CUdeviceptr))

static CUcontext start(void) {
    CUcontext context = begin(0);
    MUST(CALL(cuStreamCreate, (CUstream *, unsigned))(&stream, 0));
    return context;
}

static void graph(int launches) {
    CUgraph g = NULL;
    CUgraphExec e = NULL;
    CUgraphNode take, give;
    CUmemAllocNode params = {.pool = POOL_ON_DEVICE, .bytes = 8 * MIB};
    SHOW(CALL(cuGraphCreate, (CUgraph *, unsigned))(&g, 0));
    SHOW(CALL(cuGraphAddMemAllocNode, (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUmemAllocNode *))(&take, g, NULL, 0, &params));
    SHOW(CALL(cuGraphAddMemFreeNode, (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUdeviceptr))(&give, g, &take, 1, params.address));
    int made = CALL(cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, uint64_t))(&e, g, 0);
    printf("instantiate %d\n", made);
    for (int k = 0; k < launches && made == 0; k++) SHOW(CALL(cuGraphLaunch, (CUgraphExec, CUstream))(e, stream));
    SHOW(CALL(cuStreamSynchronize, (CUstream))(stream));
    if (made == 0) SHOW(CALL(cuGraphExecDestroy, (CUgraphExec))(e));
    SHOW(CALL(cuGraphDestroy, (CUgraph))(g));
}

static void work(void) {
    CUcontext context = start(), own = NULL;
    CUdeviceptr small = 0, large = 0, pooled = 0, va = 0, none = 0;
    CUhandle h = 0, again = 0;
    SHOW(TAKE(&small, 1000));
    SHOW(TAKE(&large, 5 * MIB));
    SHOW(CALL(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream))(&pooled, 3 * MIB, stream));
    if (pooled) SHOW(CALL(cuMemFreeAsync, (CUdeviceptr, CUstream))(pooled, stream));
    SHOW(CREATE(&h, 8 * MIB, &props, 0));
    SHOW(RESERVE(&va, 16 * MIB, 0, 0, 0));
    if (h) {
        int mapped = MAP(va, 8 * MIB, 0, h, 0);
        printf("map %d\n", mapped);
        if (mapped == 0) {
            SHOW(CALL(cuMemRetainAllocationHandle, (CUhandle *, void *))(&again, (void *)va));
            SHOW(RELEASE(again));
            SHOW(UNMAP(va, 8 * MIB));
        }
        SHOW(RELEASE(h));
    }
    SHOW(CALL(cuMemAddressFree, (CUdeviceptr, size_t))(va, 16 * MIB));
    graph(2);
    SHOW(CALL(cuCtxCreate_v2, (CUcontext *, unsigned, CUdevice))(&own, 0, 0));
    SHOW(CALL(cuCtxDestroy_v2, (CUcontext))(own));
    SHOW(CALL(cuCtxSetCurrent, (CUcontext))(context));
    if (over) {
        int given = TAKE(&none, over);
        if (given == 0) exit(97);
        SHOW(given);
    }
    if (small) SHOW(GIVE(small));
    if (large) SHOW(GIVE(large));
}

static char printed[1 << 16], wanted[1 << 16];

/* What a child prints, and how it ends. `number` 0: nothing fails. *failed: it printed that it got no memory. */
static int child(const char *variable, int number, const char *later, char *text, int *failed) {
    int out = memfd_create("out", 0), err = memfd_create("err", 0), status = 0;
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        char value[32];
        snprintf(value, sizeof value, "%d%s", number, later);
        if (number) setenv(variable, value, 1);
        dup2(out, 1);
        dup2(err, 2);
        work();
        exit(0);
    }
    waitpid(pid, &status, 0);
    ssize_t got = pread(out, text, sizeof printed - 1, 0);
    text[got > 0 ? got : 0] = 0;
    static char messages[1 << 14];
    got = pread(err, messages, sizeof messages - 1, 0);
    messages[got > 0 ? got : 0] = 0;
    *failed = strstr(messages, "no more memory") || strstr(messages, "recording ends") || strstr(messages, "recording pauses") || strstr(messages, "without a trace");
    for (char *line = strtok(messages, "\n"); line; line = strtok(NULL, "\n"))
        if (strncmp(line, "vramtrace: ", 11)) printf("%d%s: stderr: %s\n", number, later, line);
    close(out);
    close(err);
    return status;
}

static int sites(const char *variable, int from, int to, int step) {
    int failed, quiet = 0, tried = 0, noticed = 0;
    if (child(variable, 0, "", wanted, &failed) != 0) return 96;
    for (int n = from; n <= to && quiet < 40; n += step) {
        for (int later = 0; later < 2; later++) {
            const char *suffix = later ? "-" : "";
            int status = child(variable, n, suffix, printed, &failed);
            tried++;
            noticed += failed;
            if (later) quiet = failed ? 0 : quiet + 1;
            if (status != 0)
                printf("%d%s: ended with %x\n%s\n", n, suffix, status, printed);
            else if (!over && strcmp(printed, wanted))
                printf("%d%s: printed\n%s\n", n, suffix, printed);
        }
    }
    printf("tried %d\nnoticed %d\n", tried, noticed);
    return 0;
}

static int by_result[1000];

static void count(int result) { by_result[result >= 0 && result < 999 ? result : 999]++; }

static void counted(const char *what) {
    printf("%s:", what);
    for (int k = 0; k < 1000; k++)
        if (by_result[k]) printf(" %d of result %d", by_result[k], k);
    printf("\n");
    memset(by_result, 0, sizeof by_result);
}

/* As many mappings of one object, contexts, graphs, and small allocations; then all of it goes. */
static void round_of(int many, CUhandle h, CUdeviceptr va, CUdeviceptr *live, CUgraphExec *execs) {
    static CUgraph g;
    if (!g) {
        CUgraphNode take;
        CUmemAllocNode params = {.pool = POOL_ON_DEVICE, .bytes = 2 * MIB};
        MUST(CALL(cuGraphCreate, (CUgraph *, unsigned))(&g, 0));
        MUST(CALL(cuGraphAddMemAllocNode, (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUmemAllocNode *))(&take, g, NULL, 0, &params));
    }
    for (int k = 0; k < many; k++) count(MAP(va + k * 2 * MIB, 2 * MIB, 0, h, 0));
    counted("mapped");
    for (int k = 0; k < many; k++) count(TAKE(live + k, 2000));
    counted("taken");
    for (int k = 0; k < many; k++) count(CALL(cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, uint64_t))(execs + k, g, 0));
    counted("instantiated");
}

static void end_of(int many, CUdeviceptr va, CUdeviceptr *live, CUgraphExec *execs) {
    int good = 0;
    for (int k = 0; k < many; k++)
        if (execs[k]) good += CALL(cuGraphExecDestroy, (CUgraphExec))(execs[k]) != 0;
    for (int k = 0; k < many; k++)
        if (live[k]) good += GIVE(live[k]) != 0;
    for (int k = 0; k < many; k += 4) UNMAP(va + k * 2 * MIB, 8 * MIB);
    printf("ended, %d not\n", good);
}

static int growth(int many) {
    CUhandle h = 0;
    CUdeviceptr va = 0, none = 0;
    CUdeviceptr *live = calloc(2 * many, sizeof *live);
    CUgraphExec *execs = calloc(2 * many, sizeof *execs);
    start();
    MUST(CREATE(&h, 2 * MIB, &props, 0));
    MUST(RESERVE(&va, 4ull * many * MIB, 0, 0, 0));
    round_of(many, h, va, live, execs);
    setenv("VRAMTRACE_TEST_NO_PAGES", "0-", 1);
    setenv("VRAMTRACE_TEST_NO_MEMORY", "0-", 1);
    round_of(many, h, va + 2ull * many * MIB, live + many, execs + many);
    if (over) SHOW(TAKE(&none, over));
    end_of(2 * many, va, live, execs);
    SHOW(RELEASE(h));
    return 0;
}

int main(int number, char **arguments) {
    if (number > 5 && !strcmp(arguments[1], "sites")) {
        over = number > 6 ? strtoul(arguments[6], NULL, 10) * MIB : 0;
        return sites(arguments[2], atoi(arguments[3]), atoi(arguments[4]), atoi(arguments[5]));
    }
    if (number < 3 || strcmp(arguments[1], "growth")) return 95;
    over = number > 3 ? strtoul(arguments[3], NULL, 10) * MIB : 0;
    return growth(atoi(arguments[2]));
}
