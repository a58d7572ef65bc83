/* callbacks.c: host functions of streams and graphs that allocate and free. The driver forbids calls of CUDA
   in them. Prints what each call answered; then frees what it has. */
#include "driver.h"

static CUdeviceptr block, ordered;
static pthread_t first;
static int runs, elsewhere;
static int answers[6];

static void calls(void) {
    CUdeviceptr fresh = 0;
    size_t free_bytes, total;
    runs++;
    elsewhere += !pthread_equal(pthread_self(), first);
    answers[0] = CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&fresh, 4 * MIB);
    answers[1] = CALL(cuMemFree_v2, (CUdeviceptr))(block);
    answers[2] = CALL(cuMemFreeAsync, (CUdeviceptr, CUstream))(ordered, NULL);
    answers[3] = CALL(cuMemGetInfo_v2, (size_t *, size_t *))(&free_bytes, &total);
    answers[4] = CALL(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream))(&fresh, 4 * MIB, NULL);
    answers[5] = CALL(cuCtxSynchronize, (void))();
}

static void function(void *data) { (void)data, calls(); }
static void callback(CUstream stream, CUresult status, void *data) { (void)stream, (void)status, (void)data, calls(); }

static void show(const char *what) {
    MUST(CALL(cuCtxSynchronize, (void))());
    printf("%s: %d runs, %d on another thread; alloc %d free %d freeAsync %d info %d allocAsync %d synchronize %d\n", what,
           runs, elsewhere, answers[0], answers[1], answers[2], answers[3], answers[4], answers[5]);
    runs = elsewhere = 0;
    memset(answers, 255, sizeof answers);
}

int main(void) {
    CUgraph graph;
    CUgraphExec exec;
    CUgraphNode node;
    struct {
        void (*function)(void *);
        void *data;
    } host = {function, NULL};
    first = pthread_self();
    begin(0);
    MUST(CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&block, 64 * MIB));
    MUST(CALL(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream))(&ordered, 32 * MIB, NULL));
    MUST(CALL(cuCtxSynchronize, (void))());
    MUST(CALL(cuLaunchHostFunc, (CUstream, void (*)(void *), void *))(NULL, function, NULL));
    show("cuLaunchHostFunc");
    MUST(CALL(cuStreamAddCallback, (CUstream, void (*)(CUstream, CUresult, void *), void *, unsigned))(NULL, callback, NULL, 0));
    show("cuStreamAddCallback");
    MUST(CALL(cuGraphCreate, (CUgraph *, unsigned))(&graph, 0));
    MUST(CALL(cuGraphAddHostNode, (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const void *))(&node, graph, NULL, 0, &host));
    MUST(CALL(cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long))(&exec, graph, 0));
    MUST(CALL(cuGraphLaunch, (CUgraphExec, CUstream))(exec, NULL));
    show("a host node");
    SHOW(CALL(cuMemFree_v2, (CUdeviceptr))(block));
    SHOW(CALL(cuMemFreeAsync, (CUdeviceptr, CUstream))(ordered, NULL));
    return 0;
}
