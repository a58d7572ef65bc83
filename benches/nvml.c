/* nvml.c: what readings of NVML cost, over whatever libcuda.so.1 and libnvidia-ml.so.1 the loader finds. Prints medians
   in us, a line each:
   query     a call of NVML that lists the processes of the device
   thread    the same on a kept thread, with the waits for it
   and, with the argument cap, for a loop of cuMemAlloc and cuMemFree under a cap, of 4 s:
   reading   a call of the driver that reads NVML: one of 20 us or more in which the thread waited
   lag       from the beginning of a reading to the end of the next */
#include "../tests/programs/driver.h"
#include <semaphore.h>

enum { QUERIES = 201, MOST = 1 << 16 };
static double from[MOST], to[MOST], sorted[MOST];
static sem_t asked, answered;
static void *device;
static int (*list)(void *, unsigned *, void *);

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec * 1e-3;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(int count) {
    qsort(sorted, count, sizeof *sorted, compare);
    return count ? sorted[count / 2] : 0;
}

static void query(void) {
    char processes[64 * 24]; /* of nvmlProcessInfo_t */
    unsigned count = 64;
    MUST(list(device, &count, processes));
}

static void *kept(void *unused) {
    for (;;) {
        sem_wait(&asked);
        query();
        sem_post(&answered);
    }
    return unused;
}

static double queries(int on_thread) {
    for (int n = 0; n < QUERIES; n++) {
        double start = now();
        if (on_thread) {
            sem_post(&asked);
            sem_wait(&answered);
        } else {
            query();
        }
        sorted[n] = now() - start;
    }
    return median(QUERIES);
}

/* Whether the thread waited since the last call: a thread that lost the processor to another did not. */
static int waited(void) {
    static long before;
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    int more = usage.ru_nvcsw != before;
    before = usage.ru_nvcsw;
    return more;
}

static void under_cap(void) {
    CUresult (*take)(CUdeviceptr *, size_t) = CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t));
    CUresult (*give)(CUdeviceptr) = CALL(cuMemFree_v2, (CUdeviceptr));
    CUdeviceptr p, slab;
    MUST(take(&slab, 512));
    int count = 0;
    waited();
    for (double end = now() + 4e6, start = now(); start < end && count < MOST;) {
        MUST(take(&p, 4096));
        double middle = now();
        MUST(give(p));
        double stop = now();
        if (stop - start >= 20 && waited()) {
            int first = middle - start > stop - middle;
            from[count] = first ? start : middle;
            to[count++] = first ? middle : stop;
        }
        start = now();
    }
    for (int n = 0; n < count; n++) sorted[n] = to[n] - from[n];
    double reading = median(count);
    for (int n = 1; n < count; n++) sorted[n - 1] = to[n] - from[n - 1];
    printf("reading %.1f\nlag %.1f\n", reading, median(count - 1));
}

int main(int count, char **words) {
    pthread_t thread;
    begin(0);
    void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!nvml) return 97;
    int (*init)(void) = dlsym(nvml, "nvmlInit_v2");
    int (*by_index)(unsigned, void **) = dlsym(nvml, "nvmlDeviceGetHandleByIndex_v2");
    list = dlsym(nvml, "nvmlDeviceGetComputeRunningProcesses_v3");
    MUST(init());
    MUST(by_index(0, &device));
    printf("query %.1f\n", queries(0));
    if (count > 1 && !strcmp(words[1], "cap")) {
        under_cap();
        return 0;
    }
    sem_init(&asked, 0, 0);
    sem_init(&answered, 0, 0);
    if (pthread_create(&thread, NULL, kept, NULL)) return 96;
    printf("thread %.1f\n", queries(1));
    return 0;
}
