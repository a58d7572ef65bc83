/* frames_libraries LIBRARY...: opens, calls and closes them in turn, so that they follow each other
   at the same addresses: from one thread, and from several that keep their own caches. At last code
   of its own making in a closed one's place. Prints `at ADDRESS LABEL` for each opening. */
#include "frames.h"
#include <link.h>

typedef void (*entry)(frames_take take, const char *label);

static entry enter;
static const char *label;

__attribute__((noinline)) static void *call(void *unused) {
    enter(take, label);
    STAY;
    return unused;
}

static pthread_barrier_t turn;
static int done;

static void *worker(void *unused) {
    for (;;) {
        pthread_barrier_wait(&turn);
        if (done) return unused;
        call(NULL);
        pthread_barrier_wait(&turn);
    }
}

static struct link_map *open_one(const char *path) {
    struct link_map *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        fprintf(stderr, "%s\n", dlerror());
        exit(97);
    }
    enter = (entry)dlsym(handle, "enter");
    label = strrchr(path, '/') + 1;
    printf("at %lx %s\n", (unsigned long)handle->l_addr, label);
    return handle;
}

/* push rbp; mov rbp, rsp; mov rax, rdi; mov rdi, rsi; call rax; pop rbp; ret: no unwind tables. */
static const unsigned char made[] = {0x55, 0x48, 0x89, 0xe5, 0x48, 0x89, 0xf8, 0x48,
                                     0x89, 0xf7, 0xff, 0xd0, 0x5d, 0xc3};

int main(int count, char **paths) {
    pthread_t threads[3];
    frames_begin();
    for (int round = 0; round < 3; round++)
        for (int k = 1; k < count; k++) {
            void *handle = open_one(paths[k]);
            call(NULL);
            call(NULL);
            dlclose(handle);
        }
    pthread_barrier_init(&turn, NULL, 4);
    for (int k = 0; k < 3; k++) pthread_create(&threads[k], NULL, worker, NULL);
    for (int k = 0; k < 40; k++) {
        void *handle = open_one(paths[1 + (k * k + k / 7) % (count - 1)]);
        /* Some workers sleep through some of them. */
        pthread_barrier_wait(&turn);
        if (k % 3) call(NULL);
        pthread_barrier_wait(&turn);
        dlclose(handle);
    }
    done = 1;
    pthread_barrier_wait(&turn);
    for (int k = 0; k < 3; k++) pthread_join(threads[k], NULL);

    struct link_map *handle = open_one(paths[1]);
    call(NULL);
    unsigned long page = (unsigned long)enter & ~4095ul;
    dlclose(handle);
    void *place = mmap((void *)page, 4096, PROT_READ | PROT_WRITE | PROT_EXEC,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (place != (void *)page) {
        fprintf(stderr, "its place is taken\n");
        exit(96);
    }
    memcpy(place, made, sizeof made);
    label = "made";
    enter = (entry)place;
    call(NULL);
    munmap(place, 4096);
    open_one(paths[1]);
    call(NULL);
    STAY;
    return 0;
}
