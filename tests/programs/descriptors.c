/* descriptors.c WHAT SECONDS: what a program may do with its table of descriptors while 8 threads allocate and free.

     taken    a thread reads /proc/self/fd in a loop, and takes each number that the program has not opened: dup2 of a
              marker file, then close. Another takes and closes 200 to 210, as a shell does (`exec 200>lock`).
     alone    no other thread: asks for 100 blocks of 1 MiB, and prints how many were granted.
     locked   closes all descriptors, opens 250 files and holds a lock on each (fcntl), as SQLite does.

   Prints how many numbers were not the program's, how many of its own calls failed, the bytes of the marker file, how many
   of its locks are held, and the pairs of calls. */
#include "driver.h"
#include <dirent.h>
#include <malloc.h>

enum { THREADS = 8, LOW = 200, HIGH = 210, FILES = 250 };
static atomic_int done, failed, foreign;
static atomic_ulong pairs;
static CUcontext context;
static int marker;
static char own[65536];

/* Calls `look` with each number that is open, but for the directory that is read. */
static void each_number(void (*look)(int)) {
    DIR *directory = opendir("/proc/self/fd");
    if (!directory) exit(3);
    for (struct dirent *entry; (entry = readdir(directory));) {
        int number = atoi(entry->d_name);
        if (entry->d_name[0] != '.' && number != dirfd(directory)) look(number);
    }
    closedir(directory);
}

static void keep(int number) {
    own[number] = 1;
}

static void take(int number) {
    if (own[number] || (number >= LOW && number <= HIGH)) return;
    atomic_fetch_add(&foreign, 1);
    if (dup2(marker, number) != number || close(number)) atomic_fetch_add(&failed, 1);
}

static void *taker(void *unused) {
    while (!done) each_number(take);
    return unused;
}

static void *cycler(void *unused) {
    while (!done) {
        for (int number = LOW; number <= HIGH; number++)
            if (dup2(marker, number) != number) atomic_fetch_add(&failed, 1);
        usleep(200);
        for (int number = LOW; number <= HIGH; number++)
            if (close(number)) atomic_fetch_add(&failed, 1);
    }
    return unused;
}

static void *worker(void *unused) {
    MUST(CALL(cuCtxSetCurrent, (CUcontext))(context));
    driver_take(1 << 20);
    for (; !done; atomic_fetch_add(&pairs, 100)) driver_pairs(100, 4096);
    return unused;
}

static int open_file(const char *name) {
    int number = open(name, O_RDWR | O_CREAT, 0600);
    if (number < 0) exit(3);
    return number;
}

/* How many of the program's files another process finds locked. */
static int locked_files(void) {
    int status = 0;
    pid_t child = syscall(SYS_fork);
    if (child == 0) {
        int locked = 0;
        for (int number = 3; number < 3 + FILES; number++) {
            struct flock lock = {.l_type = F_WRLCK};
            locked += fcntl(number, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
        }
        _exit(locked);
    }
    waitpid(child, &status, 0);
    return WEXITSTATUS(status);
}

int main(int arguments, char **argument) {
    pthread_t threads[THREADS + 2];
    int is_lock = arguments > 2 && !strcmp(argument[1], "locked"), count = 0;
    struct stat about;
    /* Otherwise malloc opens a file when a thread first calls it. */
    mallopt(M_ARENA_MAX, 1);
    begin(0);
    MUST(CALL(cuCtxGetCurrent, (CUcontext *))(&context));
    if (!strcmp(argument[1], "alone")) {
        CUdeviceptr block;
        for (int turn = 0; turn < 100; turn++)
            count += CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&block, 1 << 20) == CUDA_SUCCESS;
        printf("granted %d of 100\n", count);
        return 0;
    }
    if (is_lock) {
        struct flock lock = {.l_type = F_WRLCK};
        driver_take(4096);
        for (int number = 3; number < 1024; number++) close(number);
        for (int number = 3; number < 3 + FILES; number++) {
            char name[32];
            snprintf(name, sizeof name, "file%d", number);
            if (open_file(name) != number || fcntl(number, F_SETLK, &lock)) exit(3);
        }
    }
    marker = open_file("marker");
    if (write(marker, "marker", 6) != 6) exit(3);
    each_number(keep);
    if (!is_lock) {
        pthread_create(&threads[count++], NULL, taker, NULL);
        pthread_create(&threads[count++], NULL, cycler, NULL);
    }
    for (int thread = 0; thread < THREADS; thread++) pthread_create(&threads[count++], NULL, worker, NULL);
    sleep(atoi(argument[2]));
    done = 1;
    while (count) pthread_join(threads[--count], NULL);
    if (fstat(marker, &about)) exit(3);
    printf("foreign %d failed %d marker %ld locked %d\n", foreign, failed, (long)about.st_size, is_lock ? locked_files() : 0);
    printf("pairs %lu\n", pairs);
    return 0;
}
