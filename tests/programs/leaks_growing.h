/* Of leaks.c: programs that leak. */

static void linear(void) {
    load();
    EACH_STEP leaking_line(2 * MIB);
}

static void alone(void) {
    for (int n = 0; n < STEPS; n++) {
        leaking_line(2 * MIB);
        pause_us(20);
    }
}

static void slow(void) {
    EACH_STEP if (n % 15 == 0) leaking_line(512);
}

static void under_steps(void) {
    EACH_STEP {
        piece temporary = leaking_line(100 * MIB);
        if (n % 10 == 0) leaking_line(64 * KIB);
        give(temporary);
    }
}

static void under_epochs(void) {
    load();
    EACH_STEP {
        keep(leaking_line(3 * MIB));
        if (n % 20 == 19) {
            drop_all();
            leaking_line(8 * MIB);
        }
    }
}

static pthread_barrier_t stepped;

static void *leaking_thread(void *nothing) {
    MUST(CALL(cuCtxSetCurrent, (CUcontext))(context));
    for (int n = 0; n < STEPS; n++) {
        pthread_barrier_wait(&stepped);
        leaking_line(MIB / 2);
        pthread_barrier_wait(&stepped);
    }
    return nothing;
}

static void thread(void) {
    pthread_t thread;
    pthread_barrier_init(&stepped, NULL, 2);
    pthread_create(&thread, NULL, leaking_thread, NULL);
    EACH_STEP {
        pthread_barrier_wait(&stepped);
        pthread_barrier_wait(&stepped);
    }
    pthread_join(thread, NULL);
}

static void one_of_many_sites(void) {
    for (int n = 0; n < STEPS; n++) {
        for (int at = 0; at < 12; at++) keep(sites[at]((at + 1) * MIB));
        drop_all();
        if (n % 3 == 0) site_7(MIB);
    }
}

/* 32 ways lead to one line, each a few times. */
NEVER static void way(int turns) {
    if (turns == 0) leaking_line(MIB);
    else if (turns % 2) way(turns / 2);
    else way(turns - 1);
    STAY;
}

static void many_ways(void) {
    EACH_STEP way((int)below(32));
}

static void late(void) {
    load();
    EACH_STEP if (n > STEPS / 2) leaking_line(MIB);
}

static void bursts(void) {
    load();
    EACH_STEP {
        if (n % 25 == 0)
            for (int more = 0; more < 8; more++) leaking_line(MIB);
    }
}

static void paused(void) {
    EACH_STEP {
        leaking_line(MIB);
        if (n == STEPS / 2) pause_us(300 * 1000);
    }
}

/* Libraries are loaded, a moment of work, and an end that takes its time. */
static void short_loop(void) {
    load();
    pause_us(300 * 1000);
    for (int n = 0; n < 100; n++) {
        step();
        leaking_line(512);
    }
    pause_us(100 * 1000);
}

static void two_sizes(void) {
    load();
    EACH_STEP {
        leaking_line(4 * MIB);
        leaking_line(512);
    }
}

static void queue_that_leaks(void) {
    EACH_STEP {
        keep(leaking_line(MIB));
        if (used > 20) give(kept[--used]);
        if (n % 4 == 0) leaking_line(MIB);
    }
}

static void buffer(void) {
    load();
    piece now = leaking_line(MIB);
    EACH_STEP {
        piece larger = leaking_line((n + 5) * MIB / 4);
        give(now);
        now = larger;
    }
}

/* Ever larger pieces that are forgotten: no allocator keeps them. */
static void larger_and_larger(void) {
    EACH_STEP keep(leaking_line(MIB + n * 64 * KIB));
}

static void list(void) {
    EACH_STEP keep(leaking_line(MIB));
    drop_all();
}

/* As the interpreter drops what a module holds, some time after the last step. */
static void list_of_the_interpreter(void) {
    load();
    pause_us(200 * 1000);
    EACH_STEP keep(leaking_line(512));
    pause_us(40 * 1000);
    drop_all();
    pause_us(60 * 1000);
}

static void forgotten(void) {
    for (int at = 0; at < 12; at++) keep(sites[at](4 * MIB));
    leaking_line(4 * MIB);
    EACH_STEP continue;
    drop_all();
}

/* ---- the driver's other ways to allocate ---- */

NEVER static void leaking_stream(void) {
    CUdeviceptr p;
    clock_call(TAKE_US);
    MUST(CALL(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream))(&p, MIB, NULL));
    STAY;
}

static void async(void) {
    EACH_STEP leaking_stream();
}

NEVER static void leaking_object(void) {
    CUmemAllocationProp as = {.type = 1, .location = {1, 0}};
    CUhandle handle;
    clock_call(TAKE_US);
    MUST(CALL(cuMemCreate, (CUhandle *, size_t, const CUmemAllocationProp *, unsigned long long))(&handle, 2 * MIB, &as, 0));
    STAY;
}

static void objects(void) {
    EACH_STEP leaking_object();
}
