/* reserved.c HOW: contexts and small arrays until they are refused. Prints results, and the most bytes that the driver held,
   by NVML's list of processes, which is not under a cap. */
#include "driver.h"

#define MOST 43

static pthread_barrier_t barrier;
static CUcontext made[MOST];
static int results[MOST];

/* MiB that processes hold on the card. */
static unsigned long long held(void) { return nvml_used(0, ALL_PROCESSES) / MIB; }

static int create(CUcontext *context) {
    return CALL(cuCtxCreate_v2, (CUcontext *, unsigned, CUdevice))(context, 0, 0);
}

static void *create_at_once(void *number) {
    size_t i = (size_t)number;
    pthread_barrier_wait(&barrier);
    results[i] = create(&made[i]);
    return NULL;
}

static void *retain_at_once(void *number) {
    size_t i = (size_t)number;
    pthread_barrier_wait(&barrier);
    results[i] = CALL(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))(&made[i], 0);
    return NULL;
}

/* So many threads at once; returns how many had success. */
static int at_once(void *(*run)(void *), size_t count) {
    int granted = 0;
    pthread_barrier_init(&barrier, NULL, (unsigned)count);
    on_threads(count, run);
    for (size_t i = 0; i < count; i++) granted += results[i] == 0;
    return granted;
}

static void destroy_all(void) {
    for (int i = 0; i < MOST; i++)
        if (made[i]) MUST(CALL(cuCtxDestroy_v2, (CUcontext))(made[i]));
    memset(made, 0, sizeof made);
}

static void threads(void) {
    printf("at once %d\n", at_once(create_at_once, MOST));
    printf("held %llu\n", held());
    destroy_all();
}

static void contexts(void) {
    CUcontext one = NULL;
    int granted = 0, result = 0;
    for (int i = 0; i < MOST && !result; i++) granted += (result = create(&made[i])) == 0;
    printf("granted %d, then %d\nheld %llu\n", granted, result, held());
    MUST(CALL(cuCtxDestroy_v2, (CUcontext))(made[0]));
    made[0] = NULL;
    printf("one less %d\n", create(&made[0]));
    printf("no place %d\n", create(NULL));
    destroy_all();
    printf("left %llu\n", held());
    printf("again %d\n", create(&one));
    MUST(CALL(cuCtxDestroy_v2, (CUcontext))(one));
    threads();
    printf("retained %d\n", at_once(retain_at_once, 8));
    printf("held %llu\n", held());
}

static unsigned next(unsigned *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* Arrays of up to 1 MiB by the card's blocks, most of fewer bytes by their descriptors; freed at random, and allocated again. */
static void arrays_of(unsigned kinds) {
    enum { SLOTS = 16384 };
    static CUarray slots[SLOTS];
    static const unsigned formats[] = {0x01, 0x10, 0x20}, channels[] = {1, 2, 4};
    unsigned long long most = 0, granted = 0, refused = 0;
    size_t before, after, total;
    unsigned state = 1;
    begin(0);
    MUST(CALL(cuMemGetInfo_v2, (size_t *, size_t *))(&before, &total));
    for (unsigned round = 0; round < 60000; round++) {
        CUarray *slot = &slots[next(&state) % SLOTS];
        /* In each phase more is allocated than freed, then the other way round. */
        int grows = round / 10000 % 2 == 0, one = next(&state) % 8 != 0;
        if (*slot && (grows ? !one : 1)) {
            MUST(CALL(cuArrayDestroy, (CUarray))(*slot));
            *slot = NULL;
        } else if (!*slot && (grows ? 1 : !one)) {
            unsigned kind = next(&state);
            CUarrayDesc shape = {1 + next(&state) % 512, 1 + next(&state) % 2048, formats[kind % kinds], channels[kind / 4 % kinds]};
            CUarray3dDesc levels = {shape.width, shape.height / 2, 0, shape.format, shape.channels, 0};
            int result = next(&state) % 4
                             ? CALL(cuArrayCreate_v2, (CUarray *, const CUarrayDesc *))(slot, &shape)
                             : CALL(cuArray3DCreate_v2, (CUarray *, const CUarray3dDesc *))(slot, &levels);
            if (result) *slot = NULL;
            *(result ? &refused : &granted) += 1;
        }
        if (round % 64 == 0 && held() > most) most = held();
    }
    printf("granted %llu refused %llu\nmost %llu\n", granted, refused, most);
    for (int i = 0; i < SLOTS; i++)
        if (slots[i]) MUST(CALL(cuArrayDestroy, (CUarray))(slots[i]));
    MUST(CALL(cuMemGetInfo_v2, (size_t *, size_t *))(&after, &total));
    printf("back %d\n", before == after);
}

static void arrays(void) { arrays_of(1); }
static void mixed(void) { arrays_of(3); }

/* Of 256 KiB each, in a full card: one that is freed makes room for one. */
static void even(void) {
    enum { SLOTS = 8192 };
    static CUarray slots[SLOTS];
    CUarrayDesc shape = {512, 512, 0x01, 1};
    int granted = 0, again = 0;
    begin(0);
    while (CALL(cuArrayCreate_v2, (CUarray *, const CUarrayDesc *))(&slots[granted], &shape) == 0) granted++;
    printf("granted %d\nheld %llu\n", granted, held());
    for (int i = 0; i < granted; i += 3) {
        MUST(CALL(cuArrayDestroy, (CUarray))(slots[i]));
        again |= CALL(cuArrayCreate_v2, (CUarray *, const CUarrayDesc *))(&slots[i], &shape);
    }
    printf("freed and again %d\n", again);
    for (int i = 0; i < granted; i++) MUST(CALL(cuArrayDestroy, (CUarray))(slots[i]));
}

/* Four share a page of the driver's. */
static void streams(void) {
    CUstream stream;
    CUdeviceptr address;
    int made = 0;
    begin(0);
    for (int i = 0; i < 16; i++) made += CALL(cuStreamCreate, (CUstream *, unsigned))(&stream, 1) == 0;
    printf("streams %d, then %d\n", made, CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&address, MIB));
}

int main(int count, char **arguments) {
    MUST(CALL(cuInit, (unsigned))(0));
    return RUN_WAY(count > 1 ? arguments[1] : "", {"contexts", contexts}, {"threads", threads}, {"arrays", arrays},
                   {"mixed", mixed}, {"even", even}, {"streams", streams});
}
