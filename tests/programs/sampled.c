/* sampled.c MODE LIBC10_CUDA: programs of which samples of the blocks are recorded. They print what each line holds at the
   end, as `NAME BYTES BLOCKS`, and what the cache has allocated. */
#include "memory.h"

#define KIB 1024ull

static struct {
    const char *name;
    unsigned long long bytes, blocks;
} lines[8];

static void held(const char *name, long long bytes) {
    for (int n = 0; n < 8; n++) {
        if (lines[n].name && strcmp(lines[n].name, name)) continue;
        lines[n].name = name;
        lines[n].bytes += bytes;
        lines[n].blocks += bytes > 0 ? 1 : -1;
        return;
    }
}

#undef LINE
#define LINE(name)                            \
    NEVER static piece name(size_t bytes) {   \
        piece p = take(bytes);                \
        held(#name, p.bytes);                 \
        STAY;                                 \
        return p;                             \
    }
LINE(weights_line)
LINE(small_line)
LINE(optimizer_line)
LINE(activations_line)
LINE(large_line)

static void show(void) {
    unsigned long long all = 0;
    for (int n = 0; n < 8 && lines[n].name; n++) {
        printf("%s %llu %llu\n", lines[n].name, lines[n].bytes, lines[n].blocks);
        all += lines[n].bytes;
    }
    printf("allocated %llu\n", all);
    fflush(stdout);
}

/* Weights, a state for each, and activations that come and go. */
static void train(int steps) {
    static piece activations[400];
    for (int n = 0; n < 300; n++) weights_line(64 * KIB + below(2000) * KIB);
    for (int n = 0; n < 4; n++) large_line(64 * MIB);
    for (int n = 0; n < 2000; n++) small_line(512 + below(64) * 512);
    for (int step = 0; step < steps; step++) {
        for (int n = 0; n < 400; n++) activations[n] = activations_line(32 * KIB + n % 40 * 16 * KIB);
        if (step == 0)
            for (int n = 0; n < 600; n++) optimizer_line(64 * KIB + below(1000) * KIB);
        pause_us(20);
        if (step == steps - 1) break;
        for (int n = 399; n >= 0; n--) {
            give(activations[n]);
            held("activations_line", -(long long)activations[n].bytes);
        }
    }
    show();
}

static char *workers_segment;

static void *worker(void *number) {
    char *base = workers_segment + (size_t)number * 2 * MIB;
    for (int turn = 0; turn < 20000; turn++) {
        char *at = base + turn % 512 * 4096;
        tell_block(0, at, 4096);
        if (turn % 4) tell_block(0, at, -4096);
        else if (turn >= 512) tell_block(0, at, -4096);
    }
    return NULL;
}

/* Eight threads; each leaves 128 blocks of 4 KiB. */
static void threads(void) {
    workers_segment = segment_of(0);
    on_threads(8, worker);
    printf("allocated %llu\n", 8 * 128 * 4096ull);
}

/* Blocks come and go in a loop that does nothing else: the recorder takes a large share of its time. */
static void busy(void) {
    char *at = segment_of(0);
    for (int turn = 0; turn < 2000000; turn++) {
        char *block = at + turn % 4 * 4 * MIB;
        tell_block(0, block, 3 * MIB);
        tell_block(0, block, -3 * MIB);
    }
    puts("allocated 0");
}

int main(int count, char **words) {
    if (count != 3) return 2;
    begin(0);
    use_blocks(words[2]);
    if (!strcmp(words[1], "train")) train(8);
    else if (!strcmp(words[1], "threads")) threads();
    else if (!strcmp(words[1], "busy")) busy();
    else if (!strcmp(words[1], "killed")) {
        train(2);
        raise(SIGKILL);
    } else if (!strcmp(words[1], "fork")) {
        train(2);
        pid_t child = fork();
        if (child == 0) {
            /* What it frees is its parent's. */
            for (int n = 0; n < 100; n++) tell_block(0, (void *)(0x700000000000ull + n * MIB), -(long long)MIB);
            for (int n = 0; n < 100; n++) tell_block(0, (void *)(0x710000000000ull + n * MIB), MIB);
            SHOW(CALL(cuInit, (unsigned))(0));
            for (int n = 0; n < 100; n++) tell_block(0, (void *)(0x720000000000ull + n * MIB), MIB);
            exit(0);
        }
        int status = 1;
        waitpid(child, &status, 0);
        return status;
    } else return 2;
    return 0;
}
