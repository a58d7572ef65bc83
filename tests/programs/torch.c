/* Uses stand-ins of PyTorch's allocator, opened as Python opens an extension: for itself alone.
   torch LIBC10_CUDA MODE [COUNT] */
#include "c10.h"
#include "cache.h"
#include <link.h>

static void (*tell)(uint64_t, void *, int64_t);

static const struct reported *calls(void) { return CACHE(const struct reported *, cache_reported, (void))(); }

static void show(const char *when) {
    const struct reported *reported = calls();
    printf("%s: %llu blocks %llu refusals last %llx sum %llx\n", when, (unsigned long long)reported->calls,
           (unsigned long long)reported->refused, (unsigned long long)reported->last_device, (unsigned long long)reported->sum);
    fflush(stdout);
}

static void open_library(const char *path) {
    use_blocks(path);
    tell = CACHE(void, cache_tell, (uint64_t, void *, int64_t));
}

/* Blocks of every sort, and what is not to be recorded. */
static void blocks(void) {
    char *base = segment_of(0);
    tell_block(0, base, 512);
    tell_block(0, base + 512, 1024);
    tell_block(0, base, -512);
    tell_block(0, base, 2048);
    /* Never seen: freed, and then made. */
    tell_block(0, base + 8 * MIB, -4096);
    tell_block(0, base + 8 * MIB, 4096);
    show("blocks");
    /* Other devices' words. */
    tell(DEVICE(CPU, -1) | 0xffffffffffff0000ull, base + 1 * MIB, 7777);
    tell(DEVICE(HIP, 0), base + 2 * MIB, 7777);
    tell(DEVICE(CUDA, -1), base + 3 * MIB, 512 * 33);
    tell(DEVICE(CUDA, 0), NULL, 7777);
    tell(DEVICE(CUDA, 0), base + 4 * MIB, 0);
    /* Made again while it lives. */
    tell_block(0, base + 5 * MIB, 512 * 5);
    tell_block(0, base + 5 * MIB, 512 * 6);
    /* No address of a device's granularity. */
    tell_block(0, base + 6 * MIB + 4, 100);
    show("others");
    CACHE(void, cache_refuse, (int, int64_t))(0, 1ll << 40);
    show("refused");
}

static int turns;

static void *worker(void *data) {
    size_t number = (size_t)data;
    char *base = (char *)(0x700000000000ull + number * (64ull << 30));
    for (int turn = 0; turn < turns; turn++) {
        char *at = base + (size_t)(turn % 1000) * 4096;
        int64_t size = 512 + 512 * number;
        tell_block(number % 2, at, size);
        if (turn % 1000 != 7) tell_block(number % 2, at, -size);
    }
    return NULL;
}

/* Eight threads, two devices: each leaves what it made in turn 7, 1007, ... and makes it again. */
static void threads(int count) {
    turns = count;
    segment_of(0);
    segment_of(1);
    on_threads(8, worker);
    printf("threads: %llu blocks\n", (unsigned long long)calls()->calls);
}

/* A child frees what its parent made, without and with a driver. */
static void forked(void) {
    char *base = segment_of(0);
    tell_block(0, base, 512);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        tell_block(0, base, -512);
        tell_block(0, base + 4096, 1024);
        show("child");
        /* The driver refuses a process that was forked from its user, but it was called. */
        SHOW(CALL(cuInit, (unsigned))(0));
        tell_block(0, base, -512);
        tell_block(0, base + 512, 1536);
        show("child");
        exit(0);
    }
    int status = 1;
    waitpid(child, &status, 0);
    tell_block(0, base + 1024, 2048);
    show("parent");
    exit(status);
}

/* Many blocks come and go over some that stay. */
static void churn(int count) {
    char *base = segment_of(0);
    for (int stays = 0; stays < 50; stays++) tell_block(0, base + stays * 512, 512);
    for (int turn = 0; turn < count; turn++) {
        char *at = base + 10 * MIB + (turn % 1024) * 4096;
        tell_block(0, at, 1024);
        tell_block(0, at, -1024);
    }
    show("churn");
}

static void *load(void *path) {
    return dlopen(path, RTLD_NOW);
}

/* A block is reported while another thread holds the loader's lock: the report may not wait for that lock. */
static void loading(const char *slow) {
    int in[2], out[2];
    char byte, number[16];
    pthread_t thread;
    char *base = segment_of(0);
    if (pipe(in) || pipe(out)) exit(96);
    snprintf(number, sizeof number, "%d", in[1]);
    setenv("SLOW_IN", number, 1);
    snprintf(number, sizeof number, "%d", out[0]);
    setenv("SLOW_OUT", number, 1);
    void (*refuse)(int, int64_t) = CACHE(void, cache_refuse, (int, int64_t));
    pthread_create(&thread, NULL, load, (void *)slow);
    if (read(in[0], &byte, 1) != 1) exit(95);
    tell_block(0, base, 512);
    refuse(0, 1ll << 40);
    tell_block(0, base, -512);
    if (write(out[1], "!", 1) != 1) exit(94);
    pthread_join(thread, NULL);
    show("loading");
}

static void *on_another_thread(void *at) {
    tell_block(0, at, 512 * 20);
    return NULL;
}

/* A request of PyTorch's cache while graphs are captured: it asks whether its stream is. */
static void ask(CUstream stream) {
    int status;
    unsigned long long id;
    MUST(CALL(cuStreamGetCaptureInfo_v2, (CUstream, int *, unsigned long long *, void *, void *, void *))(
        stream, &status, &id, NULL, NULL, NULL));
}

/* Blocks of several streams and of graphs' pools; the size says which. */
static void streams(void) {
    void (*use)(int, int64_t) = CACHE(void, cache_use_stream, (int, int64_t));
    int64_t (*used)(int) = CACHE(int64_t, cache_stream, (int));
    char *base = segment_of(0);
    pthread_t thread;
    CUstream stream;
    tell_block(0, base, 512 * 1);
    use(0, 0x23);
    use(1, 0x43);
    tell_block(0, base + MIB, 512 * 2);
    tell_block(1, base + 2 * MIB, 512 * 3);
    tell_block(0, base + 3 * MIB, 512 * 4);
    pthread_create(&thread, NULL, on_another_thread, base + 4 * MIB);
    pthread_join(thread, NULL);
    printf("streams %lld %lld\n", (long long)used(0), (long long)used(1));
    use(0, 0);
    tell_block(0, base + 5 * MIB, 512 * 5);
    MUST(CALL(cuStreamCreate, (CUstream *, unsigned))(&stream, 1));
    for (int turn = 0; turn < 2; turn++) {
        ask(stream);
        tell_block(0, base + (6 + turn * 4) * MIB, 512 * 6);
        MUST(CALL(cuStreamBeginCapture_v2, (CUstream, int))(stream, 2));
        ask(stream);
        use(0, 0x63);
        tell_block(0, base + (7 + turn * 4) * MIB, 512 * (7 + turn));
        use(0, 0);
        /* Another stream, which is not captured. */
        ask(NULL);
        tell_block(0, base + (8 + turn * 4) * MIB, 512 * 9);
        void *graph;
        MUST(CALL(cuStreamEndCapture, (CUstream, void **))(stream, &graph));
    }
    show("streams");
}

static size_t (*request)(int, void *, size_t, int64_t);

static void *other_request(void *at) {
    request(0, at, 6000, 6144);
    return NULL;
}

/* Blocks for requests; those of which the request is not known have an odd multiple of 512 bytes. */
static void requests(void) {
    void (*divide)(size_t) = CACHE(void, cache_divide, (size_t));
    void (*refuse)(int, int64_t) = CACHE(void, cache_refuse, (int, int64_t));
    char *base = segment_of(0);
    pthread_t thread;
    size_t divisions = request(0, base, 100, 512);
    divisions += request(0, base + MIB, 1000, 1024);
    divisions += request(0, base + 2 * MIB, 512 * 4, 512 * 4);
    /* Taken whole: less than 1 MiB would be left. */
    divisions += request(0, base + 3 * MIB, 2 * MIB - 100, 2 * MIB + 512 * 8);
    /* No block, and then a block without a request, as of a graph's pool that is put back. */
    divisions += request(0, NULL, 700, 0);
    tell_block(0, base + 6 * MIB, 512 * 3);
    divisions += request(0, NULL, 900, 0);
    refuse(0, 900);
    tell_block(0, base + 7 * MIB, 1024);
    /* The request of another block. */
    divisions += request(0, NULL, 5000, 0);
    tell_block(0, base + 8 * MIB, 512);
    tell_block(0, base + 9 * MIB, 512 * 10);
    divide(4);
    divisions += request(0, base + 10 * MIB, 2049, 2560);
    divisions += request(0, base + 11 * MIB, 2048, 2048);
    divide(0);
    /* Between a request and its block, on another thread. */
    divisions += request(0, NULL, 3000, 0);
    pthread_create(&thread, NULL, other_request, base + 12 * MIB);
    pthread_join(thread, NULL);
    tell_block(0, base + 13 * MIB, 3072);
    printf("requests: divisions %zu\n", divisions);
    show("requests");
}

/* Each thread asks for as many bytes less than its blocks have as its number. */
static void *requester(void *data) {
    size_t number = (size_t)data;
    char *base = (char *)(0x700000000000ull + number * (64ull << 30));
    for (int turn = 0; turn < turns; turn++) {
        char *at = base + (size_t)(turn % 1000) * 4096;
        int64_t size = 1024 + turn % 5 * 512;
        request(number % 2, at, size - number, size);
        tell_block(number % 2, at, -size);
    }
    return NULL;
}

static void requests_of_threads(int count) {
    turns = count;
    segment_of(0);
    segment_of(1);
    on_threads(8, requester);
    printf("requests: %llu blocks\n", (unsigned long long)calls()->calls);
}

/* Without room for the recorder's tables it changes errno inside the calls about blocks. */
static void keeps_errno(int number) {
    char *base = segment_of(0);
    tell_block(0, base, 512);
    const struct rlimit none = {1, 1};
    setrlimit(RLIMIT_AS, &none);
    int changed = 0;
    for (int n = 1; n < number; n++) {
        errno = ENOTTY;
        tell_block(0, base + n * 512, 512);
        changed += errno != ENOTTY;
    }
    printf("errno changed %d times\n", changed);
}

/* Two libraries in turn, at the same addresses. */
static void in_turn(const char *one, const char *other, int count) {
    void *before = NULL;
    for (int turn = 0; turn < count; turn++) {
        dlclose(cache_library);
        open_library(turn % 3 ? one : other);
        request = CACHE(size_t, cache_request, (int, void *, size_t, int64_t));
        const struct reported *reported = calls();
        void *place = (void *)((struct link_map *)cache_library)->l_addr;
        char *base = segment_of(0);
        tell_block(0, base, 512);
        if (request) request(0, base + 4096, 1000, 1024);
        tell_block(0, base, -512);
        CACHE(void, cache_refuse, (int, int64_t))(0, 1ll << 40);
        printf("%s place: %llu blocks %llu refusals\n", place == before ? "same" : "new", (unsigned long long)reported->calls,
               (unsigned long long)reported->refused);
        fflush(stdout);
        before = place;
    }
}

int main(int count, char **words) {
    if (count < 3) return 2;
    const char *mode = words[2];
    int number = count > 3 ? atoi(words[3]) : 0;
    if (!strcmp(mode, "first")) {
        /* Before any driver call: as a profiler of CPU memory. */
        open_library(words[1]);
        tell(DEVICE(CPU, -1), (void *)0x10000, 64);
        tell(DEVICE(CUDA, 0), (void *)0x20000, 64);
        show("first");
        return 0;
    }
    begin(0);
    open_library(words[1]);
    if (!strcmp(mode, "blocks")) blocks();
    else if (!strcmp(mode, "threads")) threads(number);
    else if (!strcmp(mode, "fork")) forked();
    else if (!strcmp(mode, "loading") && count > 3) loading(words[3]);
    else if (!strcmp(mode, "two") && count > 3) {
        tell_block(0, segment_of(0), 512);
        show("one");
        open_library(words[3]);
        tell_block(0, segment_of(0), 1024);
        show("other");
    } else if (!strcmp(mode, "turns") && count > 4) in_turn(words[1], words[4], number);
    else if (!strcmp(mode, "churn")) churn(number);
    else if (!strcmp(mode, "errno")) keeps_errno(number);
    else if (!strcmp(mode, "streams")) streams();
    else if (!strncmp(mode, "requests", 8)) {
        request = CACHE(size_t, cache_request, (int, void *, size_t, int64_t));
        if (mode[8]) requests_of_threads(number);
        else requests();
    }
    else return 2;
    return 0;
}
