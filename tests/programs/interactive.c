/* interactive.c [ORDINAL | LIBC10_CUDA]: executes commands from stdin, one a line, and prints the result of each:

     a MIB     cuMemAlloc                p MIB    cuMemAllocAsync on a new stream
     m MIB     cuMemAllocManaged         f        frees what was allocated last
     i         cuMemGetInfo, in MiB      s BYTES  cuCtxSetLimit(stack size)
     l         cuModuleLoadData          h        allocates and frees 1..8 MiB until it is killed
     c COUNT   as many allocations of 1 MiB, freed at once
     x WHAT    gives up what a process can see, see blind(); prints errno
     t         allocates and frees 2 MiB until it is killed, and prints a line whenever the answer became another one:
               the new answer, when the first such call began, and when the last other one began (CLOCK_MONOTONIC, ns)
     w         starts four threads that allocate and free     q   ends them; prints "ALLOCATIONS MIB" that they left
     b AT SIZE a block of PyTorch's cache, by offset in a segment of 20 MiB; freed if SIZE is below 0
     k         forks: the child reports a block and ends by _exit; prints its exit status

   so that a test can look at it between two calls. */
#include "cache.h"
#include <sys/mount.h>

enum { THREADS = 4, KEPT = 24 };

static CUcontext context;
static atomic_int stop;
static atomic_ulong left, left_mib;
static char *segment;
static CUdeviceptr live[100000];
static size_t count;

static int keep(int result, CUdeviceptr address) {
    if (result == CUDA_SUCCESS) live[count++] = address;
    return result;
}

static int allocate(size_t bytes) {
    CUdeviceptr address = 0;
    int result = CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&address, bytes);
    return keep(result, address);
}

static int release(void) {
    return count == 0 ? -1 : CALL(cuMemFree_v2, (CUdeviceptr))(live[--count]);
}

static void turns(void) {
    long long began = now_ns(), last = began;
    for (int answer = -1;; last = began) {
        began = now_ns();
        int result = allocate(2 << 20);
        if (result == CUDA_SUCCESS) release();
        if (result != answer) {
            printf("%d %lld %lld\n", result, began, last);
            fflush(stdout);
            answer = result;
        }
    }
}

static int mounts(void) {
    return unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL);
}

/* What a process can do that must not make it take others for dead. */
static int blind(int what) {
    static const unsigned long all_of_landlock = 0x1fff;
    const struct rlimit none = {0, 4096};
    const struct rlimit some = {1024, 4096};
    errno = 0;
    switch (what) {
    case 1: return chroot("/sys") || chdir("/") ? errno : 0;
    case 2: return setrlimit(RLIMIT_NOFILE, &none) ? errno : 0;
    case 3: return mounts() || umount2("/proc", MNT_DETACH) ? errno : 0;
    case 4: return mounts() || mount("proc", "/proc", "proc", 0, "hidepid=2") ? errno : 0;
    case 5: {
        long rules = syscall(444, &all_of_landlock, sizeof all_of_landlock, 0);
        return rules < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || syscall(446, rules, 0) ? errno : 0;
    }
    case 6: return unshare(CLONE_NEWIPC) ? errno : 0;
    case 7: return setresuid(65534, 65534, 65534) ? errno : 0;
    case 8: return setrlimit(RLIMIT_NOFILE, &some) ? errno : 0;
    /* A child that lives on: prints its pid. */
    case 9: {
        pid_t child = fork();
        if (child == 0)
            for (;;) pause();
        return child;
    }
    default: execl("/proc/self/exe", "interactive", NULL);
    }
    return errno;
}

static void *work(void *data) {
    CUdeviceptr live[KEPT];
    unsigned sizes[KEPT], count = 0, random = (unsigned)(size_t)data + 1;
    CUstream stream;
    MUST(CALL(cuCtxSetCurrent, (CUcontext))(context));
    MUST(CALL(cuStreamCreate, (CUstream *, unsigned))(&stream, 1));
    while (!atomic_load(&stop)) {
        random = random * 1664525u + 1013904223u;
        if (count < KEPT && (random >> 20) % 2) {
            /* Two sizes of 2 MiB and more: the driver rounds nothing up. */
            sizes[count] = 2 * ((random >> 24) % 4 + 1);
            MUST(CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&live[count], sizes[count] * MIB));
            count++;
        } else if (count > 0) {
            MUST(CALL(cuMemFree_v2, (CUdeviceptr))(live[--count]));
        }
    }
    for (unsigned n = 0; n < count; n++) atomic_fetch_add(&left_mib, sizes[n]);
    atomic_fetch_add(&left, count);
    return NULL;
}

static int fork_child(void) {
    CUdeviceptr address;
    int status = 1;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        if (tell_block) tell_block(0, segment + 8 * MIB, 4096);
        /* The driver refuses a child of its user. */
        _exit(CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&address, MIB) == 0);
    }
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int main(int arguments, char **argument) {
    char line[256];
    CUstream stream;
    pthread_t threads[THREADS];
    context = begin(arguments > 1 ? atoi(argument[1]) : 0);
    if (arguments > 1 && strchr(argument[1], '/')) {
        use_blocks(argument[1]);
        segment = segment_of(0);
    }
    MUST(CALL(cuStreamCreate, (CUstream *, unsigned))(&stream, 1));
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        size_t number = strtoull(line + 1, NULL, 10), free_bytes, total;
        CUdeviceptr address = 0;
        int result = -1;
        switch (line[0]) {
        case 'a': result = allocate(number * 1048576); break;
        case 'p':
            result = CALL(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream))(&address, number * 1048576, stream);
            result = keep(result, address);
            break;
        case 'm':
            result = CALL(cuMemAllocManaged, (CUdeviceptr *, size_t, unsigned))(&address, number * 1048576, 1);
            result = keep(result, address);
            break;
        case 'f': result = release(); break;
        case 'i':
            MUST(CALL(cuMemGetInfo_v2, (size_t *, size_t *))(&free_bytes, &total));
            printf("%zu %zu\n", free_bytes / 1048576, total / 1048576);
            fflush(stdout);
            continue;
        case 's': result = CALL(cuCtxSetLimit, (int, size_t))(0, number); break;
        case 'l': {
            void *module;
            result = CALL(cuModuleLoadData, (void **, const void *))(&module, ".version 8.0\n.target sm_90\n");
            break;
        }
        case 'c':
            for (result = 0; number > 0; number--)
                if (allocate(1048576) == 0) release();
                else result = 2;
            break;
        case 't': turns(); break;
        case 'w':
            for (size_t n = 0; n < THREADS; n++) pthread_create(&threads[n], NULL, work, (void *)n);
            result = 0;
            break;
        case 'q':
            atomic_store(&stop, 1);
            for (size_t n = 0; n < THREADS; n++) pthread_join(threads[n], NULL);
            printf("%lu %lu\n", atomic_load(&left), atomic_load(&left_mib));
            fflush(stdout);
            continue;
        case 'b':
            tell_block(0, segment + number, strtoll(strchr(line + 2, ' '), NULL, 10));
            result = 0;
            break;
        case 'k': result = fork_child(); break;
        case 'x': result = blind(number); break;
        case 'h':
            printf("on\n");
            fflush(stdout);
            for (unsigned n = 1;; n = n * 1664525u + 1013904223u) {
                if (count < 64 && (n >> 16) % 3) allocate(((n >> 20) % 8 + 1) * 1048576);
                else release();
            }
        }
        printf("%d\n", result);
        fflush(stdout);
    }
    return 0;
}
