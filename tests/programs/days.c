/* days.c DAYS STEP_SECONDS PAIRS END: a program that runs for days, by its own clock (VRAMTRACE_TEST_CLOCK=0). In each step
   it allocates and frees PAIRS pieces, on 100 ways. 200 ways hold 4 GiB each from the start, on two devices. One line leaks
   16 MiB an hour. In the middle, and once a day with less, there is a peak of a step, in a phase of its own: `serve`, then
   `nightly` in it, by the functions of the Python package where the recorder is loaded. END: `exit`, `kill`, or `wait`, which
   prints `ready` and stays until its input ends. */
#include "driver.h"
#include "clock.h"
#include <dirent.h>

#define GIB (1ull << 30)
#define WAYS 100

static CUresult (*allocate)(CUdeviceptr *, size_t);
static CUresult (*release)(CUdeviceptr);

NEVER static CUdeviceptr take(size_t bytes) {
    CUdeviceptr at;
    clock_call(TAKE_US);
    MUST(allocate(&at, bytes));
    STAY;
    return at;
}

static void give(CUdeviceptr at) {
    clock_call(GIVE_US);
    MUST(release(at));
}

/* One way for each number: two functions that call each other by its bits. */
NEVER static CUdeviceptr left(unsigned way, int bits, size_t bytes);
NEVER static CUdeviceptr right(unsigned way, int bits, size_t bytes) {
    CUdeviceptr at = !bits ? take(bytes) : way & 1 ? right(way >> 1, bits - 1, bytes) : left(way >> 1, bits - 1, bytes);
    STAY;
    return at;
}
NEVER static CUdeviceptr left(unsigned way, int bits, size_t bytes) {
    CUdeviceptr at = !bits ? take(bytes) : way & 1 ? right(way >> 1, bits - 1, bytes) : left(way >> 1, bits - 1, bytes);
    STAY;
    return at;
}

NEVER static CUdeviceptr weights_line(unsigned way) {
    CUdeviceptr at = left(way, 7, 4 * GIB);
    STAY;
    return at;
}

NEVER static CUdeviceptr step_line(unsigned way) {
    CUdeviceptr at = right(way, 7, (1 + way % 7) * 4 * MIB);
    STAY;
    return at;
}

NEVER static void leaking_line(void) {
    take(MIB * 2);
    STAY;
}

NEVER static CUdeviceptr peak_line(size_t bytes) {
    CUdeviceptr at = take(bytes);
    STAY;
    return at;
}

static void begin_phase(const char *name) {
    void (*push)(const char *, size_t) = (void (*)(const char *, size_t))dlsym(RTLD_DEFAULT, "vramtrace_python_push");
    if (push) push(name, strlen(name));
}

static void end_phase(void) {
    void (*pop)(void) = (void (*)(void))dlsym(RTLD_DEFAULT, "vramtrace_python_pop");
    if (pop) pop();
}

static int descriptors(void) {
    DIR *open = opendir("/proc/self/fd");
    int count = -3;
    while (readdir(open)) count++;
    closedir(open);
    return count;
}

static long memory_kib(void) {
    FILE *status = fopen("/proc/self/status", "r");
    char line[128];
    long kib = 0;
    while (fgets(line, sizeof line, status)) sscanf(line, "VmRSS: %ld", &kib);
    fclose(status);
    return kib;
}

int main(int count, char **words) {
    if (count != 5) return 2;
    long steps = atol(words[1]) * 86400 / atol(words[2]), pairs = atol(words[3]);
    long a_day = 86400 / atol(words[2]), taken = 0;
    CUdeviceptr pieces[WAYS], most = 0;
    unsigned random = 1;
    int waits = !strcmp(words[4], "wait");
    allocate = CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t));
    release = CALL(cuMemFree_v2, (CUdeviceptr));
    for (int device = 1; device >= 0; device--) {
        begin(device);
        for (unsigned way = 0; way < WAYS; way++) weights_line(way);
    }
    begin_phase("serve");
    for (long step = 0; step < steps; step++) {
        /* In six steps of ten, what a step takes is there when it pauses. */
        int used = 0;
        for (long pair = 0; pair < pairs; pair++) {
            random = random * 1664525 + 1013904223;
            pieces[used++] = step_line((random >> 8) % WAYS);
            if (used == 20) while (used > 10) give(pieces[--used]);
        }
        if (step % a_day == a_day / 2) begin_phase("nightly");
        if (step % a_day == a_day / 2) most = peak_line(step / a_day == atol(words[1]) / 2 ? 40 * GIB : 20 * GIB);
        for (; taken < step * 8 / (3600 / atol(words[2])); taken++) leaking_line();
        if (step % 10 >= 6) while (used) give(pieces[--used]);
        pause_us(atol(words[2]) * 1000000 - pairs * (TAKE_US + GIVE_US));
        while (used) give(pieces[--used]);
        if (most) give(most), most = 0, end_phase();
        if (!waits && (step == steps / 10 || step == steps - 1))
            printf("%d descriptors, %ld KiB\n", descriptors(), memory_kib());
    }
    if (waits) puts("ready");
    fflush(stdout);
    if (!strcmp(words[4], "kill")) raise(SIGKILL);
    if (waits) getchar();
    return 0;
}
