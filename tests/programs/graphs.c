/* graphs.c: captured and hand-made memory nodes: freed by the graph, by another call, by the next
   launch, not at all. Prints results and the driver's own figures; frees and trims everything. */
#include "driver.h"

static CUstream stream;

static void figures(const char *when) {
    unsigned long long reserved = 0, used = 0;
    MUST(CALL(cuStreamSynchronize, (CUstream))(stream));
    MUST(CALL(cuDeviceGetGraphMemAttribute, (CUdevice, int, void *))(0, 2, &reserved));
    MUST(CALL(cuDeviceGetGraphMemAttribute, (CUdevice, int, void *))(0, 0, &used));
    printf("%s: reserved %llu used %llu\n", when, reserved, used);
}

static CUgraph capture(int with_free, CUdeviceptr *address) {
    CUgraph graph = NULL;
    SHOW(CALL(cuStreamBeginCapture_v2, (CUstream, int))(stream, 2));
    SHOW(CALL(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream))(address, 40 * MIB, stream));
    if (with_free) SHOW(CALL(cuMemFreeAsync, (CUdeviceptr, CUstream))(*address, stream));
    SHOW(CALL(cuStreamEndCapture, (CUstream, CUgraph *))(stream, &graph));
    return graph;
}

static CUgraphExec instantiate(CUgraph graph, uint64_t flags) {
    CUgraphExec exec = NULL;
    SHOW(CALL(cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, uint64_t))(&exec, graph, flags));
    return exec;
}

static void launch(CUgraphExec exec) {
    SHOW(CALL(cuGraphLaunch, (CUgraphExec, CUstream))(exec, stream));
}

static void end(CUgraphExec exec, CUgraph graph) {
    SHOW(CALL(cuGraphExecDestroy, (CUgraphExec))(exec));
    SHOW(CALL(cuGraphDestroy, (CUgraph))(graph));
    SHOW(CALL(cuDeviceGraphMemTrim, (CUdevice))(0));
    figures("trimmed");
}

/* A capture into the graph of an earlier one: nodes that allocate keep their addresses, and take nothing before a launch. */
static void recaptured(void) {
    CUdeviceptr address = 0, again = 0, other = 0;
    CUgraph graph = capture(1, &address);
    SHOW(CALL(cuStreamBeginRecaptureToGraph, (CUstream, int, CUgraph, void *, void *))(stream, 2, graph, NULL, NULL));
    SHOW(CALL(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream))(&again, 40 * MIB, stream));
    printf("the same address %d\n", again == address);
    SHOW(CALL(cuMemFreeAsync, (CUdeviceptr, CUstream))(again, stream));
    SHOW(CALL(cuStreamEndCapture, (CUstream, CUgraph *))(stream, &graph));
    figures("recaptured");
    CUgraphExec exec = instantiate(graph, 0);
    launch(exec);
    end(exec, graph);
    /* Another size: it fails at once, and the graph is of no use. */
    graph = capture(1, &address);
    SHOW(CALL(cuStreamBeginRecaptureToGraph, (CUstream, int, CUgraph, void *, void *))(stream, 2, graph, NULL, NULL));
    SHOW(CALL(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream))(&other, 41 * MIB, stream));
    SHOW(CALL(cuStreamEndCapture, (CUstream, CUgraph *))(stream, &graph));
    SHOW(CALL(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream))(&other, 5 * MIB, stream));
    SHOW(CALL(cuMemFreeAsync, (CUdeviceptr, CUstream))(other, stream));
    SHOW(CALL(cuCtxSynchronize_v2, (CUcontext))(NULL));
    figures("after a recapture that failed");
}

int main(void) {
    CUdeviceptr address = 0, plain = 0;
    CUgraph graph;
    CUgraphExec exec;
    begin(0);
    MUST(CALL(cuStreamCreate, (CUstream *, unsigned))(&stream, 1));

    printf("-- freed inside\n");
    graph = capture(1, &address);
    exec = instantiate(graph, 0);
    figures("instantiated");
    SHOW(CALL(cuGraphUpload, (CUgraphExec, CUstream))(exec, stream));
    figures("uploaded");
    launch(exec);
    launch(exec);
    figures("launched twice");
    end(exec, graph);

    printf("-- freed outside\n");
    graph = capture(0, &address);
    exec = instantiate(graph, 0);
    launch(exec);
    figures("launched");
    launch(exec); /* its memory is still taken: the driver refuses */
    SHOW(CALL(cuMemFreeAsync, (CUdeviceptr, CUstream))(address, stream));
    launch(exec);
    SHOW(CALL(cuStreamSynchronize, (CUstream))(stream));
    SHOW(CALL(cuMemFree_v2, (CUdeviceptr))(address));
    SHOW(CALL(cuMemFree_v2, (CUdeviceptr))(address));
    end(exec, graph);

    printf("-- freed by the next launch\n");
    graph = capture(0, &address);
    exec = instantiate(graph, 1);
    launch(exec);
    launch(exec);
    launch(exec);
    SHOW(CALL(cuMemFreeAsync, (CUdeviceptr, CUstream))(address, stream));
    end(exec, graph);

    printf("-- a capture that fails, and memory beside a capture\n");
    SHOW(CALL(cuStreamEndCapture, (CUstream, CUgraph *))(stream, &graph));
    SHOW(CALL(cuStreamBeginCapture_v2, (CUstream, int))(stream, 2));
    SHOW(CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&plain, 3 * MIB));
    SHOW(CALL(cuStreamEndCapture, (CUstream, CUgraph *))(stream, &graph));
    SHOW(CALL(cuGraphDestroy, (CUgraph))(graph));
    SHOW(CALL(cuMemFree_v2, (CUdeviceptr))(plain));
    SHOW(CALL(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream))(&plain, 3 * MIB, stream));
    SHOW(CALL(cuMemFreeAsync, (CUdeviceptr, CUstream))(plain, stream));
    figures("end");
    printf("-- recaptured\n");
    recaptured();
    return 0;
}
