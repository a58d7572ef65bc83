/* Of leaks.c: programs that do not leak, though some look it. */

static void nothing(void) {
    load();
    EACH_STEP continue;
}

static void cache(void) {
    EACH_STEP if (n < STEPS / 2) leaking_line(MIB);
}

static void cache_then_slow(void) {
    EACH_STEP {
        if (n < STEPS - 20) leaking_line(MIB);
        else pause_us(20 * 1000);
    }
}

static void lru(void) {
    EACH_STEP {
        if (n >= 60) give(kept[n % 60]);
        kept[n % 60] = leaking_line(MIB);
    }
}

static void lru_of_sizes(void) {
    EACH_STEP {
        if (n >= 40) give(kept[n % 40]);
        kept[n % 40] = leaking_line(MIB + below(64) * MIB / 4);
    }
}

static void shapes(void) {
    char seen[32] = {0};
    load();
    EACH_STEP {
        size_t shape = below(32);
        if (!seen[shape]) leaking_line((shape + 1) * MIB);
        seen[shape] = 1;
    }
}

static void warm_up(void) {
    EACH_STEP if (n < STEPS / 8) leaking_line(4 * MIB);
}

static void saw_tooth(void) {
    EACH_STEP {
        keep(leaking_line(MIB));
        if (used == 25) drop_all();
    }
}

static void requests(void) {
    load();
    for (int n = 0; n < 20; n++) {
        piece now = leaking_line(MIB);
        for (int token = 0; token < 20; token++) {
            piece larger = leaking_line((token + 5) * MIB / 4);
            give(now);
            now = larger;
            pause_us(20);
        }
        give(now);
    }
}

static void queue(void) {
    EACH_STEP {
        if (used == 0 || (used < 40 && below(2))) keep(leaking_line(2 * MIB));
        else give(kept[--used]);
    }
}

static void singletons(void) {
    for (int at = 0; at < 12; at++) {
        sites[at](8 * MIB);
        for (int n = 0; n < STEPS / 12; n++) step();
    }
}

static void library_start(void) {
    load();
    for (int n = 0; n < 10; n++) step();
    for (int at = 0; at < 6; at++) sites[at](32 * MIB);
    EACH_STEP continue;
}

static void exit_in_order(void) {
    for (int n = 0; n < 50; n++) keep(leaking_line(MIB));
    EACH_STEP continue;
    drop_all();
}

static void fill_and_drain(void) {
    for (int n = 0; n < STEPS; n++) {
        keep(leaking_line(MIB));
        pause_us(50);
    }
    while (used) {
        give(kept[--used]);
        pause_us(50);
    }
}

static void only_load(void) { load(); }

static void load_and_convert(void) {
    for (int n = 0; n < 72; n++) {
        piece read = other_line(2 * parameter(n));
        weights_line(parameter(n));
        give(read);
        pause_us(100);
    }
}

/* Forward, backward with gradients that stay, the optimizer's state. */
static void train(int steps) {
    load();
    pause_us(20 * 1000);
    for (int n = 0; n < steps; n++) {
        piece activations[72], gradients[72];
        for (int at = 0; at < 72; at++) {
            activations[at] = site_0(MIB);
            give(site_1(2 * MIB));
        }
        for (int at = 71; at >= 0; at--) {
            gradients[at] = site_2(parameter(at));
            give(site_3(MIB));
            give(activations[at]);
        }
        for (int at = 0; at < 72; at++) {
            if (n == 0) site_4(parameter(at));
            give(site_5(parameter(at)));
        }
        if (n + 1 < steps)
            for (int at = 0; at < 72; at++) give(gradients[at]);
    }
}

static void one_training_step(void) { train(1); }
static void few_training_steps(void) { train(5); }
static void training(void) { train(60); }

/* The loss of a step lives until that of the next. */
static void item(void) {
    load();
    pause_us(200 * 1000);
    piece loss = leaking_line(512);
    EACH_STEP {
        piece next = leaking_line(512);
        give(loss);
        loss = next;
    }
    pause_us(100 * 1000);
}

/* The driver's pool keeps what it once had; the program gives back what it takes. */
static void pool(void) {
    EACH_STEP {
        CUdeviceptr p;
        MUST(CALL(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream))(&p, (n + 1) * MIB, NULL));
        MUST(CALL(cuMemFreeAsync, (CUdeviceptr, CUstream))(p, NULL));
    }
}

/* Sizes that never come again: at driver level all is given back, in a cache the segments grow. */
static void fragmentation(void) {
    load();
    for (int n = 0; n < STEPS; n++) {
        piece now = leaking_line(MIB + n * 512);
        piece beside = other_line(2 * MIB + n * 1024);
        pause_us(20);
        give(now);
        give(beside);
    }
}

/* A framework's pool takes more and more, and nothing tells what for. */
static void framework(void) {
    void *library = dlopen(libc10_cuda, RTLD_NOW | RTLD_LOCAL);
    void (*grow)(CUresult (*)(CUdeviceptr *, size_t), size_t) =
        (void (*)(CUresult (*)(CUdeviceptr *, size_t), size_t))dlsym(library, "cache_grow");
    EACH_STEP grow(CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t)), 2 * MIB);
}

NEVER static void leaking_host(void) {
    void *p;
    clock_call(TAKE_US);
    MUST(CALL(cuMemHostAlloc, (void **, size_t, unsigned))(&p, MIB, 0));
    STAY;
}

static void host(void) {
    EACH_STEP leaking_host();
}

#define LENT 100

static void lend(int to, int until) {
    char byte;
    begin(0);
    for (int n = 0; n < LENT; n++) {
        CUipcMemHandle handle;
        MUST(CALL(cuIpcGetMemHandle, (CUipcMemHandle *, CUdeviceptr))(&handle, driver_take(2 * MIB)));
        if (write(to, &handle, sizeof handle) != sizeof handle) exit(95);
    }
    exit(read(until, &byte, 1) != 0);
}

/* Another process's memory, opened piece by piece. */
static void imports(const char *self) {
    int handles[2], until[2], status;
    char to[16], end[16];
    CUdeviceptr p;
    if (pipe(handles) || pipe(until)) exit(94);
    snprintf(to, sizeof to, "%d", handles[1]);
    snprintf(end, sizeof end, "%d", until[0]);
    pid_t lender = fork();
    if (lender == 0) {
        close(until[1]);
        unsetenv("LD_PRELOAD");
        execl(self, self, "lend", to, end, (char *)NULL);
        _exit(93);
    }
    context = begin(0);
    for (int n = 0; n < LENT; n++) {
        CUipcMemHandle handle;
        step();
        if (read(handles[0], &handle, sizeof handle) != sizeof handle) exit(92);
        MUST(CALL(cuIpcOpenMemHandle_v2, (CUdeviceptr *, CUipcMemHandle, unsigned))(&p, handle, 1));
    }
    close(until[1]);
    if (waitpid(lender, &status, 0) != lender || status) exit(91);
}

/* A scratch pool that keeps its pieces: the next request is larger than any of them. */
NEVER static piece scratch_pool(size_t bytes) {
    static piece pieces[1 << 12];
    static size_t sizes[1 << 12];
    static int many;
    for (int n = 0; n < many; n++)
        if (sizes[n] >= bytes) return pieces[n];
    sizes[many] = bytes;
    pieces[many] = take(bytes);
    STAY;
    return pieces[many++];
}

static void larger_pieces(void) {
    EACH_STEP {
        if (n % 3 == 0) scratch_pool(MIB + n * 64 * KIB);
        scratch_pool(MIB);
    }
}
