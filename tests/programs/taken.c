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

static int device;
static void *module;

static const char *ptx =
    ".version 8.0\n.target sm_90\n.address_size 64\n"
    ".visible .entry plain(\n)\n{ ret; }\n"
    ".visible .entry deep(\n)\n{\n.local .align 8 .b8 __local_depot1[2048];\nret; }\n"
    ".visible .entry deeper(\n)\n{\n.local .align 8 .b8 __local_depot2[16384];\nret; }\n"
    ".visible .entry heap(\n)\n{\ncall.uni (retval0), malloc, (param0);\nret; }\n";

static void show(const char *step) {
    if (getenv("NO_NVML")) printf("%s\n", step);
    else printf("%s %llu KiB\n", step, nvml_used(device, THIS_PROCESS) >> 10);
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

static CUcontext context;

static void *thread(void *unused) {
    MUST(CALL(cuCtxSetCurrent, (CUcontext))(context));
    for (int i = 0; i < 10; i++) {
        CUdeviceptr p = driver_take(4 << 20);
        MUST(launch(function(load(), "plain")));
        if (i % 2) driver_give(p);
    }
    return unused;
}

static void threads(void) { on_threads(4, thread); }

/* The next reading comes at the first call after a pause, which is each time a free. */
static void rest(void) {
    for (int i = 0; i < 10; i++) {
        CUdeviceptr p = driver_take(4 << 20);
        usleep(20000);
        driver_give(p);
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
    long before = waits();
    driver_pairs(1000, 2 << 20);
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

static void plain(void) { launch_named("plain"); }

static void stack(void) { MUST(CALL(cuCtxSetLimit, (int, size_t))(0, 4096)); }

static void unload(void) {
    MUST(CALL(cuModuleUnload, (void *))(module));
    module = NULL;
}

static void second(void) {
    device = 1, module = NULL;
    context = begin(1);
}

static void reset(void) {
    MUST(CALL(cuDevicePrimaryCtxReset_v2, (CUdevice))(device));
    module = NULL;
}

static void alloc(void) {
    CUdeviceptr p;
    printf("alloc = %d\n", CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&p, 64 << 20));
}

int main(int count, char **steps) {
    context = begin(0);
    show("begin");
    for (int i = 1; i < count; i++) {
        const char *step = steps[i];
        int is_kernel = !strcmp(step, "deep") || !strcmp(step, "deeper") || !strcmp(step, "heap");
        if (is_kernel) launch_named(step);
        else if (RUN_WAY(step, {"launch", plain}, {"streams", streams}, {"kernel", kernel}, {"graph", graph},
                         {"threads", threads}, {"rest", rest}, {"many", many}, {"pairs", pairs}, {"names", names},
                         {"fork", child}, {"stack", stack}, {"unload", unload}, {"second", second},
                         {"reset", reset}, {"alloc", alloc})) return 2;
        show(step);
    }
    return 0;
}
