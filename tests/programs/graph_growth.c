/* graph_growth.c PROGRAM [REQUESTS]: small programs whose executable graphs, streams or modules take
   memory of the driver. Of each it is known whether it leaks; `leaking_line` is where those that leak
   instantiate. A request takes 50 ms and also allocates and frees. With `threads` two threads capture
   at once. It prints how often the recorder asked a slow NVML, and NVML's figure for the process, in KiB. */
#include "driver.h"
#include "clock.h"
#include <elf.h>
#include <link.h>

#define NODES 2000
#define SLOTS 4096

/* Sleeps of a millisecond: with VRAMTRACE_SIM_NVML=slow:1000 each is a list of the simulated NVML. In place of
   the C library's, for all code in this process. */
static _Atomic int lists;

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *time, struct timespec *rest) {
    lists += !time->tv_sec && time->tv_nsec == 1000000;
    return syscall(SYS_clock_nanosleep, clock, flags, time, rest) ? errno : 0;
}

int nanosleep(const struct timespec *time, struct timespec *rest) {
    lists += !time->tv_sec && time->tv_nsec == 1000000;
    return syscall(SYS_nanosleep, time, rest);
}

static CUcontext context;
static CUgraphExec slots[SLOTS];
static int used;

static CUgraph graph_of(int nodes) {
    static int (*add)(void **, CUgraph, void **, size_t);
    CUgraph graph;
    if (!add) add = (int (*)(void **, CUgraph, void **, size_t))driver_function("cuGraphAddEmptyNode");
    MUST(CALL(cuGraphCreate, (CUgraph *, unsigned))(&graph, 0));
    for (int n = 0; n < nodes; n++) {
        void *node;
        MUST(add(&node, graph, NULL, 0));
    }
    return graph;
}

static CUgraphExec instantiate(int nodes) {
    CUgraph graph = graph_of(nodes);
    CUgraphExec exec;
    clock_call(2000);
    MUST(CALL(cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, uint64_t))(&exec, graph, 0));
    MUST(CALL(cuGraphDestroy, (CUgraph))(graph));
    return exec;
}

NEVER static CUgraphExec leaking_line(int nodes) {
    CUgraphExec exec = instantiate(nodes);
    STAY;
    return exec;
}

NEVER static CUgraphExec other_line(int nodes) {
    CUgraphExec exec = instantiate(nodes);
    STAY;
    return exec;
}

static void launch(CUgraphExec exec) {
    clock_call(10);
    MUST(CALL(cuGraphLaunch, (CUgraphExec, CUstream))(exec, NULL));
}

static void destroy(CUgraphExec exec) { MUST(CALL(cuGraphExecDestroy, (CUgraphExec))(exec)); }

static unsigned long long seed = 88172645463325252ull;

static int below(int limit) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (int)(seed % (unsigned)limit);
}

/* The rest of a request. */
static void request(void) {
    CUdeviceptr at;
    clock_call(TAKE_US);
    MUST(CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&at, 8 << 20));
    pause_us(50000);
    MUST(CALL(cuMemFree_v2, (CUdeviceptr))(at));
}

/* One kept graph a request. */
static void kept(int requests) {
    for (int n = 0; n < requests; n++) {
        launch(slots[used++] = leaking_line(NODES));
        request();
    }
}

/* Each with another number of nodes, without end. */
static void kept_shapes(int requests) {
    for (int n = 0; n < requests; n++) {
        launch(slots[used++] = leaking_line(100 + n));
        request();
    }
}

/* The same, and the whole list is dropped before the process ends. */
static void list(int requests) {
    kept(requests);
    while (used) destroy(slots[--used]);
}

/* The process goes on for a second with other work, then destroys all, as an interpreter does at its end. */
static void kept_until_the_end(int requests) {
    kept(requests);
    pause_us(300000);
    for (int n = 0; n < 20; n++) {
        CUdeviceptr at;
        clock_call(TAKE_US);
        MUST(CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&at, 64 << 20));
        pause_us(20000);
        MUST(CALL(cuMemFree_v2, (CUdeviceptr))(at));
    }
    pause_us(230000);
    while (used) {
        destroy(slots[--used]);
        pause_us(2000);
    }
    pause_us(700000);
    MUST(CALL(cuDevicePrimaryCtxReset_v2, (int))(0));
}

/* The same graphs, destroyed before the program goes on for five times as long. */
static void phase(int requests) {
    kept(requests);
    while (used) destroy(slots[--used]);
    for (int n = 0; n < 5 * requests; n++) request();
}

/* A graph that is launched, and updated, many times in its request. */
static void tokens(int requests) {
    for (int n = 0; n < requests; n++) {
        CUgraphExec exec = slots[used++] = leaking_line(NODES);
        for (int token = 0; token < 20; token++) {
            unsigned long long info[3];
            CUgraph again = graph_of(NODES);
            launch(exec);
            MUST(CALL(cuGraphExecUpdate_v2, (CUgraphExec, CUgraph, void *))(exec, again, info));
            MUST(CALL(cuGraphDestroy, (CUgraph))(again));
        }
        request();
    }
}

/* Graphs for all batch sizes at the start, within a second; then requests use them. */
static void captures(int requests) {
    for (int n = 0; n < 67; n++) {
        slots[used++] = other_line(NODES);
        pause_us(12000);
    }
    for (int n = 0; n < requests; n++) {
        launch(slots[below(used)]);
        request();
    }
}

/* The same, each launched once as it is captured; of the requests most use one. */
static void captures_launched(int requests) {
    for (int n = 0; n < 67; n++) {
        launch(slots[used++] = other_line(NODES));
        pause_us(12000);
    }
    for (int n = 0; n < requests; n++) {
        launch(slots[3]);
        request();
    }
}

/* Captures, slowly, and no more. */
static void captures_only(int requests) {
    (void)requests;
    for (int n = 0; n < 67; n++) {
        slots[used++] = other_line(NODES);
        pause_us(300000);
    }
}

/* A graph for each of so many shapes, made when the shape first comes. */
static void cache(int requests, int shapes, int nodes_differ) {
    for (int n = 0; n < requests; n++) {
        int shape = below(shapes);
        if (!slots[shape]) slots[shape] = other_line(nodes_differ ? 100 + 7 * shape : NODES);
        launch(slots[shape]);
        request();
    }
}

static void cache_40(int requests) { cache(requests, 40, 0); }
static void cache_200(int requests) { cache(requests, 200, 0); }
static void cache_of_nodes(int requests) { cache(requests, 200, 1); }

/* The last 16. */
static void lru(int requests) {
    for (int n = 0; n < requests; n++) {
        CUgraphExec *slot = &slots[n % 16];
        if (*slot) destroy(*slot);
        launch(*slot = other_line(NODES));
        request();
    }
}

/* Made, launched and destroyed in each request. */
static void temporary(int requests) {
    for (int n = 0; n < requests; n++) {
        CUgraphExec exec = other_line(NODES);
        launch(exec);
        request();
        destroy(exec);
    }
}

/* One graph that is updated before each launch. */
static void updated(int requests) {
    CUgraphExec exec = other_line(NODES);
    for (int n = 0; n < requests; n++) {
        unsigned long long info[3];
        CUgraph again = graph_of(NODES);
        MUST(CALL(cuGraphExecUpdate_v2, (CUgraphExec, CUgraph, void *))(exec, again, info));
        MUST(CALL(cuGraphDestroy, (CUgraph))(again));
        launch(exec);
        request();
    }
}

/* Ten graphs at the first requests. */
static void warm_up(int requests) {
    for (int n = 0; n < requests; n++) {
        if (n < 10) slots[used++] = other_line(NODES);
        launch(slots[n % used]);
        request();
    }
}

static const char *ptx =
    ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry plain(\n)\n{ ret; }\n";

/* A compiler: a module for each of 200 shapes, over the first half of the requests. */
static void compiled(int requests) {
    for (int n = 0; n < requests; n++) {
        if (n < requests / 2 && n < 200) {
            void *module, *function;
            MUST(CALL(cuModuleLoadData, (void **, const void *))(&module, ptx));
            MUST(CALL(cuModuleGetFunction, (void **, void *, const char *))(&function, module, "plain"));
            MUST(CALL(cuLaunchKernel, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **))(function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
        }
        request();
    }
}

/* A framework's 128 streams. */
static void stream_pool(int requests) {
    for (int n = 0; n < 128; n++) {
        CUstream stream;
        MUST(CALL(cuStreamCreateWithPriority, (CUstream *, unsigned, int))(&stream, 1, 0));
    }
    for (int n = 0; n < requests; n++) request();
}

NEVER static CUstream leaking_stream(void) {
    CUstream stream;
    MUST(CALL(cuStreamCreateWithPriority, (CUstream *, unsigned, int))(&stream, 1, 0));
    STAY;
    return stream;
}

/* Graphs of two lines in turn, with little time between them. */
static void alternate(int requests) {
    for (int n = 0; n < requests; n++) {
        launch(slots[used++] = n % 2 ? leaking_line(NODES) : other_line(NODES));
        pause_us(2000);
    }
}

/* Four streams a request that stay. */
static void kept_streams(int requests) {
    for (int n = 0; n < requests; n++) {
#pragma GCC unroll 1
        for (int each = 0; each < 4; each++) leaking_stream();
        request();
    }
}

NEVER static void leaking_module(void) {
    void *module, *function;
    MUST(CALL(cuModuleLoadData, (void **, const void *))(&module, ptx));
    MUST(CALL(cuModuleGetFunction, (void **, void *, const char *))(&function, module, "plain"));
    MUST(CALL(cuLaunchKernel, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **))(function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
    STAY;
}

/* A module for each request, which stays. */
static void kept_modules(int requests) {
    for (int n = 0; n < requests; n++) {
        clock_call(2000);
        leaking_module();
        request();
    }
}

/* The address of the driver's own cuMemAlloc_v2, from the library's table of symbols. */
static int find_own(struct dl_phdr_info *library, size_t size, void *found) {
    (void)size;
    if (!strstr(library->dlpi_name, "libcuda.so.1")) return 0;
    const ElfW(Sym) *symbols = NULL;
    const char *names = NULL;
    for (int n = 0; n < library->dlpi_phnum; n++) {
        if (library->dlpi_phdr[n].p_type != PT_DYNAMIC) continue;
        const ElfW(Dyn) *entry = (void *)(library->dlpi_addr + library->dlpi_phdr[n].p_vaddr);
        for (; entry->d_tag != DT_NULL; entry++) {
            if (entry->d_tag == DT_SYMTAB) symbols = (void *)entry->d_un.d_ptr;
            if (entry->d_tag == DT_STRTAB) names = (void *)entry->d_un.d_ptr;
        }
    }
    /* The names follow the symbols. */
    for (; symbols && names && (void *)symbols < (void *)names; symbols++)
        if (symbols->st_value && !strcmp(names + symbols->st_name, "cuMemAlloc_v2")) {
            *(void **)found = (void *)(library->dlpi_addr + symbols->st_value);
            return 1;
        }
    return 0;
}

/* 2 MiB in each request, by a call that the recorder does not see. */
static void unseen(int requests) {
    CUresult (*take)(CUdeviceptr *, size_t) = NULL;
    if (!dl_iterate_phdr(find_own, &take) || !take) exit(97);
    for (int n = 0; n < requests; n++) {
        CUdeviceptr at;
        MUST(take(&at, 2 << 20));
        request();
    }
}

/* Nothing that takes memory of the driver. What is asked at the start does not count. */
static void rest(int requests) {
    for (int n = 0; n < requests; n++) {
        if (n == 5) lists = 0;
        request();
    }
}

static void *worker(void *line) {
    CUgraphExec (*make)(int) = (CUgraphExec(*)(int))line;
    MUST(CALL(cuCtxSetCurrent, (CUcontext))(context));
    for (int n = 0; n < 30; n++) {
        launch(make(NODES));
        pause_us(2000);
    }
    return NULL;
}

/* Two threads, each with graphs of its own line. */
static void threads(int requests) {
    pthread_t two[2];
    (void)requests;
    pthread_create(&two[0], NULL, worker, (void *)leaking_line);
    pthread_create(&two[1], NULL, worker, (void *)other_line);
    for (int n = 0; n < 2; n++) pthread_join(two[n], NULL);
}

static const struct {
    const char *name;
    void (*run)(int);
} programs[] = {
    {"kept", kept},
    {"kept-shapes", kept_shapes},
    {"list", list},
    {"kept-until-the-end", kept_until_the_end},
    {"phase", phase},
    {"tokens", tokens},
    {"kept-streams", kept_streams},
    {"kept-modules", kept_modules},
    {"rest", rest},
    {"unseen", unseen},
    {"threads", threads},
    {"alternate", alternate},
    {"captures", captures},
    {"captures-launched", captures_launched},
    {"captures-only", captures_only},
    {"cache-40", cache_40},
    {"cache-200", cache_200},
    {"cache-of-nodes", cache_of_nodes},
    {"lru", lru},
    {"temporary", temporary},
    {"updated", updated},
    {"warm-up", warm_up},
    {"compiled", compiled},
    {"stream-pool", stream_pool},
};

/* By NVML, of this process. */
static unsigned long long nvml_kib(void) {
    struct {
        unsigned pid;
        unsigned long long bytes;
        unsigned gpu, compute;
    } infos[64];
    unsigned count = 64;
    void *handle;
    if (!dlopen("libnvidia-ml.so.1", RTLD_NOW)) return 0;
    NVML(nvmlInit_v2, (void))();
    NVML(nvmlDeviceGetHandleByIndex_v2, (unsigned, void **))(0, &handle);
    NVML(nvmlDeviceGetComputeRunningProcesses_v3, (void *, unsigned *, void *))(handle, &count, infos);
    for (unsigned n = 0; n < count; n++)
        if (infos[n].pid == (unsigned)getpid()) return infos[n].bytes >> 10;
    return 0;
}

int main(int count, char **arguments) {
    int requests = count > 2 ? atoi(arguments[2]) : 120;
    context = begin(0);
    for (size_t n = 0; n < sizeof programs / sizeof *programs; n++)
        if (count > 1 && !strcmp(arguments[1], programs[n].name)) {
            programs[n].run(requests);
            printf("lists %d\n", lists);
            printf("%llu\n", nvml_kib());
            return 0;
        }
    fprintf(stderr, "graph_growth: unknown program\n");
    return 97;
}
