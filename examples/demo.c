/* The program that scripts/demo.sh records: an imitation of a training run on the CUDA driver API, with phases, a
   leak, fragmented memory, and a request that a cap of 4 GiB refuses.

     gcc -g -pthread -o demo examples/demo.c -ldl && vramtrace run --cap 4GiB ./demo

   With the argument `check` it allocates nothing: exit status 0 if the first GPU has 5 GiB free. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define OUT_OF_MEMORY 2
enum { LAYERS = 24, STEPS = 30, BLOCKS = 12000 };

static int (*allocate)(uint64_t *, size_t), (*release)(uint64_t), (*set_current)(void *);
static atomic_int training_is_over;

static int must(int result, const char *what) {
    if (result != 0 && result != OUT_OF_MEMORY) {
        fprintf(stderr, "demo: %s: CUDA error %d\n", what, result);
        exit(1);
    }
    return result;
}

static void *function(const char *name) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *found = driver ? dlsym(driver, name) : NULL;
    if (!found) {
        fprintf(stderr, "demo: %s\n", dlerror());
        exit(1);
    }
    return found;
}

static uint64_t take(size_t bytes) {
    uint64_t pointer = 0;
    must(allocate(&pointer, bytes), "cuMemAlloc");
    return pointer;
}

static void give(uint64_t pointer) {
    if (pointer) must(release(pointer), "cuMemFree");
}

/* The leak: a thread that takes 2 MiB every 20 ms and frees none. */
static void *keep_history(void *context) {
    must(set_current(context), "cuCtxSetCurrent");
    for (; !training_is_over; usleep(20000)) take(2 * MIB);
    return NULL;
}

/* In a burst of calls the leak would have no time to grow, and would look as if it had ended. */
static void rest(size_t n) {
    if (n % 300 == 0) usleep(8000);
}

static void load_weights(uint64_t *weights) {
    puts("load       24 layers of weights");
    for (size_t layer = 0; layer < LAYERS; layer++) weights[layer] = take((36 + 12 * (layer % 4)) * MIB);
}

static void train(size_t step) {
    uint64_t activations[LAYERS];
    for (size_t layer = 0; layer < LAYERS; layer++) activations[layer] = take((8 + (step * 7 + layer * 3) % 24) * MIB);
    usleep(20000);
    for (size_t layer = LAYERS; layer-- > 0;) give(activations[layer]);
}

/* Each block that stays keeps a whole page of the driver. */
static void evaluate(void) {
    static uint64_t blocks[BLOCKS];
    puts("evaluate   12,000 small blocks; then every block but one in 32 is freed");
    for (size_t n = 0; n < BLOCKS; n++, rest(n)) blocks[n] = take(MIB / 16);
    for (size_t n = 0; n < BLOCKS; n++, rest(n))
        if (n % 32) give(blocks[n]);
    usleep(100000);
}

static uint64_t big_batch(void) {
    for (size_t bytes = 4096 * MIB;; bytes /= 2) {
        uint64_t batch = take(bytes);
        printf("big batch  %zu MiB %s\n", bytes / MIB, batch ? "granted" : "refused");
        usleep(batch ? 120000 : 30000);
        if (batch) return batch;
    }
}

int main(int count, char **arguments) {
    uint64_t weights[LAYERS];
    void *context;
    size_t free_bytes, total;
    pthread_t history;
    must(((int (*)(unsigned))function("cuInit"))(0), "cuInit");
    must(((int (*)(void **, int))function("cuDevicePrimaryCtxRetain"))(&context, 0), "cuDevicePrimaryCtxRetain");
    set_current = (int (*)(void *))function("cuCtxSetCurrent");
    must(set_current(context), "cuCtxSetCurrent");
    if (count > 1 && !strcmp(arguments[1], "check")) {
        must(((int (*)(size_t *, size_t *))function("cuMemGetInfo_v2"))(&free_bytes, &total), "cuMemGetInfo");
        return free_bytes < 5 * 1024 * MIB;
    }
    allocate = (int (*)(uint64_t *, size_t))function("cuMemAlloc_v2");
    release = (int (*)(uint64_t))function("cuMemFree_v2");
    pthread_create(&history, NULL, keep_history, context);
    load_weights(weights);
    puts("train      30 steps; activations come and go, a history of losses only grows");
    for (size_t step = 0; step < STEPS; step++) train(step);
    evaluate();
    uint64_t batch = big_batch();
    training_is_over = 1;
    pthread_join(history, NULL);
    puts("end        the weights are freed; the history and some small blocks stay");
    give(batch);
    for (size_t layer = 0; layer < LAYERS; layer++) give(weights[layer]);
    return 0;
}
