/* taken.c HOW...: makes the driver take memory of its own, each word a step:
     launch       a first launch of a plain kernel; then again, which takes nothing
     deep         a launch of a kernel with 2,048 bytes of local memory
     deeper       one with 16,384
     heap         a launch of a kernel that calls malloc
     streams      12 streams; their events
     kernel       cuLibraryGetKernel + cuKernelGetFunction, and a launch of the kernel's handle
     unload       unloads the module that the kernels above are of
     stack        cuCtxSetLimit of the stack to 4,096 bytes
     graph        a graph of nothing: instantiated, launched twice
     second       device 1 from here on
     reset        the primary context is reset
     alloc        cuMemAlloc of 64 MiB; prints the result
     threads      4 threads, each with first launches of their own modules, and allocations beside
     rest         three seconds in which nearly nothing is done
     many         200 modules, loaded and launched, and how often the thread waited meanwhile
     pairs        1,000 allocations, each freed at once, and how often the thread waited meanwhile
     names        20,000 NVTX marks, each with a name of its own
     fork         a child that touches CUDA and ends
   After each step: what NVML says of this process. */
#include "driver.h"
#include "nvtx_min.h"

typedef struct {
    unsigned pid;
    unsigned long long used;
    unsigned gpu, compute;
} Info;

static int device;
static void *module;

static const char *ptx =
    ".version 8.0\n.target sm_90\n.address_size 64\n"
    ".visible .entry plain(\n)\n{ ret; }\n"
    ".visible .entry deep(\n)\n{\n.local .align 8 .b8 __local_depot1[2048];\nret; }\n"
    ".visible .entry deeper(\n)\n{\n.local .align 8 .b8 __local_depot2[16384];\nret; }\n"
    ".visible .entry heap(\n)\n{\ncall.uni (retval0), malloc, (param0);\nret; }\n";

static void show(const char *step) {
    static int open;
    void *handle;
    unsigned count = 64;
    Info infos[64];
    unsigned long long used = 0;
    if (getenv("NO_NVML")) {
        printf("%s\n", step);
        return;
    }
    if (!open) NVML(nvmlInit_v2, (void))();
    open = 1;
    NVML(nvmlDeviceGetHandleByIndex_v2, (unsigned, void **))((unsigned)device, &handle);
    NVML(nvmlDeviceGetComputeRunningProcesses_v3, (void *, unsigned *, Info *))(handle, &count, infos);
    for (unsigned i = 0; i < count; i++)
        if (infos[i].pid == (unsigned)getpid()) used = infos[i].used;
    printf("%s %llu KiB\n", step, used >> 10);
}

static void *function(void *of, const char *name) {
    void *found;
    MUST(CALL(cuModuleGetFunction, (void **, void *, const char *))(&found, of, name));
    return found;
}

static int launch(void *what) {
    return CALL(cuLaunchKernel, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **))(what, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
}

static void *load(void) {
    void *loaded;
    MUST(CALL(cuModuleLoadData, (void **, const void *))(&loaded, ptx));
    return loaded;
}

static void launch_named(const char *name) {
    if (!module) module = load();
    void *what = function(module, name);
    MUST(launch(what));
    MUST(launch(what));
}

static void streams(void) {
    for (int i = 0; i < 12; i++) {
        CUstream stream;
        void *event;
        MUST(CALL(cuStreamCreateWithPriority, (CUstream *, unsigned, int))(&stream, 1, 0));
        MUST(CALL(cuEventCreate, (void **, unsigned))(&event, 0));
    }
}

static void kernel(void) {
    void *library, *found, *of;
    MUST(CALL(cuLibraryLoadData, (void **, const void *, void *, void *, unsigned, void *, void *, unsigned))(&library, ptx, NULL, NULL, 0, NULL, NULL, 0));
    MUST(CALL(cuLibraryGetKernel, (void **, void *, const char *))(&found, library, "plain"));
    MUST(CALL(cuKernelGetFunction, (void **, void *))(&of, found));
    MUST(CALL(cuKernelGetFunction, (void **, void *))(&of, found));
    MUST(launch(found));
    MUST(launch(found));
}

static void graph(void) {
    CUgraph made;
    CUgraphExec exec;
    MUST(CALL(cuGraphCreate, (CUgraph *, unsigned))(&made, 0));
    MUST(CALL(cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, uint64_t))(&exec, made, 0));
    MUST(CALL(cuGraphLaunch, (CUgraphExec, CUstream))(exec, NULL));
    MUST(CALL(cuGraphLaunch, (CUgraphExec, CUstream))(exec, NULL));
    MUST(CALL(cuGraphExecDestroy, (CUgraphExec))(exec));
}

static void *thread(void *context) {
    MUST(CALL(cuCtxSetCurrent, (CUcontext))(context));
    for (int i = 0; i < 10; i++) {
        CUdeviceptr p;
        MUST(CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&p, 4 << 20));
        MUST(launch(function(load(), "plain")));
        if (i % 2) MUST(CALL(cuMemFree_v2, (CUdeviceptr))(p));
    }
    return NULL;
}

static void threads(CUcontext context) {
    pthread_t ids[4];
    for (int i = 0; i < 4; i++) pthread_create(&ids[i], NULL, thread, context);
    for (int i = 0; i < 4; i++) pthread_join(ids[i], NULL);
}

/* NVML is asked the less often the longer it took: long enough for one more reading on a busy machine. It
   comes at the first call after a pause, which is each time a free. */
static void rest(void) {
    CUdeviceptr p;
    MUST(CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&p, 4 << 20));
    for (int i = 0; i < 150; i++) {
        usleep(20000);
        MUST(CALL(cuMemFree_v2, (CUdeviceptr))(p));
        if (i < 149) MUST(CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&p, 4 << 20));
    }
}

static long waits(void) {
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nvcsw;
}

static void many(void) {
    long before = waits();
    for (int i = 0; i < 200; i++) MUST(launch(function(load(), "plain")));
    fprintf(stderr, "waited %ld times\n", waits() - before);
}

static void pairs(void) {
    CUdeviceptr p;
    long before = waits();
    for (int i = 0; i < 1000; i++) {
        MUST(CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&p, 2 << 20));
        MUST(CALL(cuMemFree_v2, (CUdeviceptr))(p));
    }
    fprintf(stderr, "waited %ld times\n", waits() - before);
}

static void child(void) {
    pid_t pid = fork();
    if (pid == 0) {
        int count;
        CALL(cuDeviceGetCount, (int *))(&count);
        void *kernel_of_nobody = (void *)0x1000;
        int refused = launch(kernel_of_nobody);
        _exit(refused == 0);
    }
    int status;
    waitpid(pid, &status, 0);
    printf("child %d\n", status);
}

static void names(void) {
    for (int i = 0; i < 20000; i++) {
        char name[32];
        snprintf(name, sizeof name, "step %d", i);
        nvtxMarkA(name);
    }
}

int main(int count, char **steps) {
    CUcontext context = begin(0);
    show("begin");
    for (int i = 1; i < count; i++) {
        const char *step = steps[i];
        if (!strcmp(step, "launch")) launch_named("plain");
        else if (!strcmp(step, "deep") || !strcmp(step, "deeper") || !strcmp(step, "heap")) launch_named(step);
        else if (!strcmp(step, "streams")) streams();
        else if (!strcmp(step, "kernel")) kernel();
        else if (!strcmp(step, "graph")) graph();
        else if (!strcmp(step, "threads")) threads(context);
        else if (!strcmp(step, "rest")) rest();
        else if (!strcmp(step, "many")) many();
        else if (!strcmp(step, "pairs")) pairs();
        else if (!strcmp(step, "names")) names();
        else if (!strcmp(step, "fork")) child();
        else if (!strcmp(step, "stack")) MUST(CALL(cuCtxSetLimit, (int, size_t))(0, 4096));
        else if (!strcmp(step, "unload")) {
            MUST(CALL(cuModuleUnload, (void *))(module));
            module = NULL;
        } else if (!strcmp(step, "second")) {
            device = 1, module = NULL;
            MUST(CALL(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))(&context, 1));
            MUST(CALL(cuCtxSetCurrent, (CUcontext))(context));
        } else if (!strcmp(step, "reset")) {
            MUST(CALL(cuDevicePrimaryCtxReset_v2, (CUdevice))(device));
            module = NULL;
        } else if (!strcmp(step, "alloc")) {
            CUdeviceptr p;
            printf("alloc = %d\n", CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&p, 64 << 20));
        } else {
            fprintf(stderr, "%s: no such step\n", step);
            return 2;
        }
        show(step);
    }
    return 0;
}
