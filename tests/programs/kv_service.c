/* kv_service.c SHARE: starts as a server of language models does: measures what is free, loads a model, runs a largest
   batch for nothing, reckons from SHARE percent of the total how many blocks of its cache it may take, and takes them
   all. Its own allocator keeps the model's bytes, as PyTorch's does; what else grew it takes for its own too.

   Prints "ready" and waits for a line; with a second argument it waits for one before each step, and prints its name.
   In the end: "blocks COUNT growth MIB failed 0|1 saw TOTAL", and waits for the end of its input. */
#include "driver.h"

static const size_t mib = 1 << 20, block = 16 << 20;
static size_t own; /* what its allocator has */
static int in_steps;

static void step(const char *name) {
    char line[64];
    if (!in_steps) return;
    printf("%s\n", name);
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) exit(3);
}

static CUdeviceptr take(size_t bytes) {
    own += bytes;
    return driver_take(bytes);
}

/* What is used beside its own: its context, its kernels, and what else is charged to it. */
static size_t beside(size_t *free_bytes, size_t *total) {
    MUST(CALL(cuMemGetInfo_v2, (size_t *, size_t *))(free_bytes, total));
    return *total - *free_bytes - own;
}

int main(int count, char **argument) {
    char line[64];
    size_t free_before, free_after, total;
    CUdeviceptr address;
    in_steps = count > 2;
    begin(0);
    printf("ready\n");
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) return 3;
    size_t before = beside(&free_before, &total);
    size_t wanted = total / 100 * strtoull(argument[1], NULL, 10);
    int failed = free_before < wanted;
    step("load");
    for (int layer = 0; layer < 24; layer++) take(64 * mib);
    size_t model = own;
    step("run");
    void *module;
    MUST(CALL(cuModuleLoadData, (void **, const void *))(&module, ".version 8.0\n.target sm_90\n"));
    size_t activations = 1500 * mib;
    address = take(activations);
    MUST(CALL(cuMemFree_v2, (CUdeviceptr))(address));
    own -= activations;
    step("measure");
    size_t growth = beside(&free_after, &total) - before;
    failed |= free_after > free_before;
    size_t needed = model + activations + growth;
    size_t blocks = wanted > needed ? (wanted - needed) / block : 0;
    step("take");
    for (size_t n = 0; n < blocks && !failed; n++) {
        failed = CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&address, block) != 0;
        own += block;
    }
    /* What it kept room for: it serves. */
    for (int n = 0; n < 20 && !failed; n++) {
        failed = CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&address, activations) != 0;
        if (!failed) MUST(CALL(cuMemFree_v2, (CUdeviceptr))(address));
    }
    printf("blocks %zu growth %zu failed %d saw %zu\n", blocks, growth / mib, failed, total / mib);
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) continue;
    return 0;
}
