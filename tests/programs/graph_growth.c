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

static void work(size_t bytes, long us) {
    clock_call(TAKE_US);
    CUdeviceptr at = driver_take(bytes);
    pause_us(us);
    driver_give(at);
}

/* The rest of a request. */
static void request(void) { work(8 << 20, 50000); }

static int requests = 120;
#define EACH_REQUEST for (int n = 0; n < requests; request(), n++)

/* One kept graph a request. */
static void kept(void) {
    EACH_REQUEST launch(slots[used++] = leaking_line(NODES));
}

/* Each with another number of nodes, without end. */
static void kept_shapes(void) {
    EACH_REQUEST launch(slots[used++] = leaking_line(100 + n));
}

/* The same, and the whole list is dropped before the process ends. */
static void list(void) {
    kept();
    while (used) destroy(slots[--used]);
}

/* The process goes on for a second with other work, then destroys all, as an interpreter does at its end. */
static void kept_until_the_end(void) {
    kept();
    pause_us(300000);
    for (int n = 0; n < 20; n++) work(64 << 20, 20000);
    pause_us(230000);
    while (used) {
        destroy(slots[--used]);
        pause_us(2000);
    }
    pause_us(700000);
    MUST(CALL(cuDevicePrimaryCtxReset_v2, (int))(0));
}

/* The same graphs, destroyed before the program goes on for five times as long. */
static void phase(void) {
    kept();
    while (used) destroy(slots[--used]);
    for (int n = 0; n < 5 * requests; n++) request();
}

static void update(CUgraphExec exec) {
    unsigned long long info[3];
    CUgraph again = graph_of(NODES);
    MUST(CALL(cuGraphExecUpdate_v2, (CUgraphExec, CUgraph, void *))(exec, again, info));
    MUST(CALL(cuGraphDestroy, (CUgraph))(again));
}

/* A graph that is launched, and updated, many times in its request. */
static void tokens(void) {
    EACH_REQUEST {
        CUgraphExec exec = slots[used++] = leaking_line(NODES);
        for (int token = 0; token < 20; token++) {
            launch(exec);
            update(exec);
        }
    }
}

static void capture_all(int is_launched, long us) {
    for (int n = 0; n < 67; n++) {
        slots[used++] = other_line(NODES);
        if (is_launched) launch(slots[n]);
        pause_us(us);
    }
}

/* Graphs for all batch sizes at the start, within a second; then requests use them. */
static void captures(void) {
    capture_all(0, 12000);
    EACH_REQUEST launch(slots[below(used)]);
}

/* The same, each launched once as it is captured; of the requests most use one. */
static void captures_launched(void) {
    capture_all(1, 12000);
    EACH_REQUEST launch(slots[3]);
}

/* Captures, slowly, and no more. */
static void captures_only(void) {
    capture_all(0, 300000);
}

/* A graph for each of so many shapes, made when the shape first comes. */
static void cache(int shapes, int nodes_differ) {
    EACH_REQUEST {
        int shape = below(shapes);
        if (!slots[shape]) slots[shape] = other_line(nodes_differ ? 100 + 7 * shape : NODES);
        launch(slots[shape]);
    }
}

static void cache_40(void) { cache(40, 0); }
static void cache_200(void) { cache(200, 0); }
static void cache_of_nodes(void) { cache(200, 1); }

/* The last 16. */
static void lru(void) {
    EACH_REQUEST {
        CUgraphExec *slot = &slots[n % 16];
        if (*slot) destroy(*slot);
        launch(*slot = other_line(NODES));
    }
}

/* Made, launched and destroyed in each request. */
static void temporary(void) {
    for (int n = 0; n < requests; n++) {
        CUgraphExec exec = other_line(NODES);
        launch(exec);
        request();
        destroy(exec);
    }
}

/* One graph that is updated before each launch. */
static void updated(void) {
    CUgraphExec exec = other_line(NODES);
    EACH_REQUEST {
        update(exec);
        launch(exec);
    }
}

/* Ten graphs at the first requests. */
static void warm_up(void) {
    EACH_REQUEST {
        if (n < 10) slots[used++] = other_line(NODES);
        launch(slots[n % used]);
    }
}

static const char *ptx =
    ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry plain(\n)\n{ ret; }\n";

NEVER static void leaking_module(void) {
    void *module, *function;
    MUST(CALL(cuModuleLoadData, (void **, const void *))(&module, ptx));
    MUST(CALL(cuModuleGetFunction, (void **, void *, const char *))(&function, module, "plain"));
    MUST(CALL(cuLaunchKernel, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **))(function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
    STAY;
}

/* A compiler: a module for each of 200 shapes, over the first half of the requests. */
static void compiled(void) {
    EACH_REQUEST if (n < requests / 2 && n < 200) leaking_module();
}

/* A framework's 128 streams. */
static void stream_pool(void) {
    for (int n = 0; n < 128; n++) {
        CUstream stream;
        MUST(CALL(cuStreamCreateWithPriority, (CUstream *, unsigned, int))(&stream, 1, 0));
    }
    EACH_REQUEST continue;
}

NEVER static CUstream leaking_stream(void) {
    CUstream stream;
    MUST(CALL(cuStreamCreateWithPriority, (CUstream *, unsigned, int))(&stream, 1, 0));
    STAY;
    return stream;
}

/* Graphs of two lines in turn, with little time between them. */
static void alternate(void) {
    for (int n = 0; n < requests; n++) {
        launch(slots[used++] = n % 2 ? leaking_line(NODES) : other_line(NODES));
        pause_us(2000);
    }
}

/* Four streams a request that stay. */
static void kept_streams(void) {
    EACH_REQUEST {
#pragma GCC unroll 1
        for (int each = 0; each < 4; each++) leaking_stream();
    }
}

/* A module for each request, which stays. */
static void kept_modules(void) {
    EACH_REQUEST {
        clock_call(2000);
        leaking_module();
    }
}

/* A context for each request, which stays; the program works in its first one. */
NEVER static void leaking_context(void) {
    void *context;
    MUST(CALL(cuCtxCreate_v2, (void **, unsigned, int))(&context, 0, 0));
    MUST(CALL(cuCtxPopCurrent_v2, (void **))(&context));
    STAY;
}

static void kept_contexts(void) {
    EACH_REQUEST leaking_context();
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
static void unseen(void) {
    CUresult (*take)(CUdeviceptr *, size_t) = NULL;
    if (!dl_iterate_phdr(find_own, &take) || !take) exit(97);
    CUdeviceptr at;
    EACH_REQUEST MUST(take(&at, 2 << 20));
}

/* Nothing that takes memory of the driver. What is asked at the start does not count. */
static void rest(void) {
    EACH_REQUEST if (n == 5) lists = 0;
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
static void threads(void) {
    pthread_t two[2];
    pthread_create(&two[0], NULL, worker, (void *)leaking_line);
    pthread_create(&two[1], NULL, worker, (void *)other_line);
    for (int n = 0; n < 2; n++) pthread_join(two[n], NULL);
}

int main(int count, char **arguments) {
    if (count > 2) requests = atoi(arguments[2]);
    context = begin(0);
    int failed = RUN_WAY(
        count > 1 ? arguments[1] : "", {"kept", kept}, {"kept-shapes", kept_shapes}, {"list", list},
        {"kept-until-the-end", kept_until_the_end}, {"phase", phase}, {"tokens", tokens},
        {"kept-streams", kept_streams}, {"kept-modules", kept_modules}, {"kept-contexts", kept_contexts}, {"rest", rest}, {"unseen", unseen},
        {"threads", threads}, {"alternate", alternate}, {"captures", captures},
        {"captures-launched", captures_launched}, {"captures-only", captures_only}, {"cache-40", cache_40},
        {"cache-200", cache_200}, {"cache-of-nodes", cache_of_nodes}, {"lru", lru}, {"temporary", temporary},
        {"updated", updated}, {"warm-up", warm_up}, {"compiled", compiled}, {"stream-pool", stream_pool});
    printf("lists %d\n", lists);
    printf("%llu\n", dlopen("libnvidia-ml.so.1", RTLD_NOW) ? nvml_used(0, THIS_PROCESS) >> 10 : 0);
    return failed;
}
