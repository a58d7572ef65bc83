#include "../tests/programs/driver.h"
/* instructions.c: one operation again and again, below 20 frames of C, for scripts/instructions.sh. It runs on a
   thread of its own: the recorder walks stacks that have room, and Valgrind cannot grow the first thread's.
   A program:  instructions OPERATION COUNT LIBC10_CUDA
   and a library that Python calls below its own frames: ready(OPERATION, LIBC10_CUDA); repeat(COUNT, 0). */

static CUresult (*take)(CUdeviceptr *, size_t);
static CUresult (*give)(CUdeviceptr);
static CUresult (*take_async)(CUdeviceptr *, size_t, CUstream);
static CUresult (*give_async)(CUdeviceptr, CUstream);
static CUresult (*wait_for)(CUstream);
static CUresult (*launch_kernel)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);
static double (*cache_pairs)(int, char *, int64_t);
static void (*cache_block)(int, void *, int64_t);
static size_t (*cache_request)(int, void *, size_t, int64_t);
static void (*steady_passes)(long long);
static void (*cache_request_pairs)(int, char *, int64_t, size_t);
static void (*make_nodes)(long);
static CUstream stream;
static CUdeviceptr segment;
static void *function;
static long turns;

static void pair(void) {
    CUdeviceptr p;
    for (long n = 0; n < turns; n++) {
        MUST(take(&p, 4096));
        MUST(give(p));
    }
}

static void pair_async(void) {
    CUdeviceptr p;
    for (long n = 0; n < turns; n++) {
        MUST(take_async(&p, 65536, stream));
        MUST(give_async(p, stream));
    }
}

/* Of a size for which the driver takes memory of the device, and gives it back. */
static void page(void) {
    CUdeviceptr p;
    for (long n = 0; n < turns; n++) {
        MUST(take(&p, 2 * MIB));
        MUST(give(p));
    }
}

static void refused(void) {
    CUdeviceptr p;
    for (long n = 0; n < turns; n++)
        if (take(&p, 1ull << 40) != 2) exit(91);
}

static void launch(void) {
    for (long n = 0; n < turns; n++) MUST(launch_kernel(function, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL));
}

static void node(void) { make_nodes(turns); }

static void block(void) { cache_pairs(0, (char *)segment, turns); }

/* A token of GPT-2's text generation, in 5.2 ms: 328 blocks made and freed, each for a launch, and 4 waits for the stream. */
enum { BLOCKS = 1, LAUNCHES = 2, WAITS = 4 };
static int parts;

static void token(void) {
    for (long n = 0; n < turns; n++) {
        for (int block = 0; block < 328; block++) {
            char *at = (char *)segment + block % 16 * 65536;
            int64_t bytes = 512 << block % 5;
            if (parts & BLOCKS) cache_block(0, at, bytes);
            if (parts & LAUNCHES) MUST(launch_kernel(function, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL));
            if (parts & BLOCKS) cache_block(0, at, -bytes);
            if (steady_passes) steady_passes(15000);
        }
        for (int wait = 0; wait < 4; wait++) {
            if (parts & WAITS) MUST(wait_for(stream));
            if (steady_passes) steady_passes(70000);
        }
    }
}
/* Takes the place of all that lies in the first caches: 256 KiB of data and 64 KiB of code. */
static void empty_caches(void) {
    static char data[256 << 10];
    for (size_t at = 0; at < sizeof data; at += 64) *(volatile char *)(data + at);
#ifdef __x86_64__
    __asm__ volatile(".balign 64\n.rept 1024\njmp 1f\n.balign 64\n1:\n.endr");
#else
    __asm__ volatile(".balign 64\n.rept 1024\nb 1f\n.balign 64\n1:\n.endr");
#endif
}

static void cold_block(void) {
    for (long n = 0; n < turns; n++) {
        char *at = (char *)segment + n % 16 * 65536;
        empty_caches();
        cache_block(0, at, 1024);
        empty_caches();
        cache_block(0, at, -1024);
    }
}

static void cold_request(void) {
    for (long n = 0; n < turns; n++) {
        char *at = (char *)segment + n % 16 * 65536;
        empty_caches();
        cache_request(0, at, 1000, 1024);
        empty_caches();
        cache_block(0, at, -1024);
    }
}

static void cold_launch(void) {
    for (long n = 0; n < turns; n++) {
        empty_caches();
        MUST(launch_kernel(function, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL));
    }
}

static void cold_async(void) {
    CUdeviceptr p;
    for (long n = 0; n < turns; n++) {
        empty_caches();
        MUST(take_async(&p, 65536, stream));
        empty_caches();
        MUST(give_async(p, stream));
    }
}

static void request(void) { cache_request_pairs(0, (char *)segment, turns, 1000); }

static void whole_request(void) { cache_request_pairs(0, (char *)segment, turns, 1024); }

/* Two calls that are not made one, so that each path of zeros and ones is another stack. */
__attribute__((noinline, noclone)) static void down(int depth, unsigned long path, void (*what)(void)) {
    if (!depth) {
        what();
    } else if (path & 1) {
        down(depth - 1, path >> 1, what);
        __asm__ volatile("/* one */"); /* nor does a call at the end become a jump */
    } else {
        down(depth - 1, path >> 1, what);
        __asm__ volatile("/* zero */");
    }
    __asm__ volatile("");
}

static void (*operation)(void);
static int every_stack_new;

static void load_kernel(void) {
    static const char *ptx = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k(\n)\n{ ret; }\n";
    void *module;
    MUST(CALL(cuModuleLoadData, (void **, const void *))(&module, ptx));
    MUST(CALL(cuModuleGetFunction, (void **, void *, const char *))(&function, module, "k"));
    launch_kernel = driver_function("cuLaunchKernel");
}

static void load_cache(const char *libc10_cuda) {
    void *library = dlopen(libc10_cuda, RTLD_NOW | RTLD_LOCAL);
    if (!library) exit(97);
    *(void **)&cache_pairs = dlsym(library, "cache_pairs");
    *(void **)&cache_block = dlsym(library, "cache_block");
    *(void **)&cache_request = dlsym(library, "cache_request");
    *(void **)&cache_request_pairs = dlsym(library, "cache_request_pairs");
    MUST(take(&segment, 20 * MIB));
}

/* libtorch_cpu.so lies beside it. */
static void load_nodes(const char *libc10_cuda) {
    char path[4096];
    snprintf(path, sizeof path, "%.*slibtorch_cpu.so", (int)(strrchr(libc10_cuda, '/') + 1 - libc10_cuda), libc10_cuda);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) exit(96);
    *(void **)&make_nodes = dlsym(library, "make_nodes");
}

/* A cap that comes when the pool was used without one. */
static void set_cap(void) {
    unsigned long long before[2];
    int (*limit)(unsigned, unsigned long long, unsigned long long *) = dlsym(RTLD_DEFAULT, "vramtrace_python_limit");
    turns = 100;
    pair_async();
    if (limit && limit(0, 20480ull * MIB, before) != 0) exit(95);
}

void ready(const char *name, const char *libc10_cuda) {
    CUmemoryPool pool;
    CUdeviceptr slab;
    unsigned long long keep = ~0ull;
    begin(0);
    take = CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t));
    give = CALL(cuMemFree_v2, (CUdeviceptr));
    take_async = CALL(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream));
    give_async = CALL(cuMemFreeAsync, (CUdeviceptr, CUstream));
    MUST(CALL(cuStreamCreate, (CUstream *, unsigned))(&stream, 1));
    MUST(CALL(cuDeviceGetDefaultMemPool, (CUmemoryPool *, CUdevice))(&pool, 0));
    MUST(CALL(cuMemPoolSetAttribute, (CUmemoryPool, int, void *))(pool, 4, &keep));
    MUST(take(&slab, 512)); /* keeps a page: small pairs are served from it */
    if (!strcmp(name, "pair")) operation = pair;
    if (!strcmp(name, "new-stack")) operation = pair, every_stack_new = 1;
    if (!strcmp(name, "page")) operation = page;
    if (!strcmp(name, "async")) operation = pair_async;
    if (!strcmp(name, "async-cap")) operation = pair_async, set_cap();
    if (!strcmp(name, "refused")) operation = refused;
    if (!strcmp(name, "launch")) operation = launch;
    if (!strcmp(name, "block")) operation = block;
    if (!strcmp(name, "request")) operation = request;
    if (!strcmp(name, "whole-request")) operation = whole_request;
    if (!strcmp(name, "node")) operation = node;
    if (!strcmp(name, "cold-block")) operation = cold_block;
    if (!strcmp(name, "cold-request")) operation = cold_request;
    if (!strcmp(name, "cold-launch")) operation = cold_launch;
    if (!strcmp(name, "cold-async")) operation = cold_async;
    if (!strncmp(name, "token", 5)) operation = token, parts = BLOCKS | LAUNCHES | WAITS;
    if (!strcmp(name, "token-blocks")) parts = BLOCKS;
    if (!strcmp(name, "token-launches")) parts = LAUNCHES;
    if (!strcmp(name, "token-waits")) parts = WAITS;
    if (!operation) exit(92);
    *(void **)&steady_passes = dlsym(RTLD_DEFAULT, "steady_passes");
    wait_for = CALL(cuStreamSynchronize, (CUstream));
    if (operation == launch || operation == cold_launch || operation == token) load_kernel();
    int has_requests = operation == request || operation == whole_request || operation == cold_request;
    int has_cache = operation == block || operation == cold_block || operation == token || has_requests;
    if (has_cache) load_cache(libc10_cuda);
    if (operation == node) load_nodes(libc10_cuda);
}

void repeat(long count, int depth) {
    if (!every_stack_new) {
        turns = count;
        down(depth, 0, operation);
        return;
    }
    turns = 1;
    for (long n = 0; n < count; n++) down(depth, n, operation);
}

static void *work(void *words) {
    char **word = words;
    ready(word[1], word[3]);
    repeat(atol(word[2]), 20);
    return NULL;
}

int main(int count, char **words) {
    pthread_t thread;
    if (count < 4) return 2;
    if (pthread_create(&thread, NULL, work, words) || pthread_join(thread, NULL)) return 96;
    return 0;
}
