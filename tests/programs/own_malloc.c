/* A malloc that counts, takes a lock and bears no call of itself: in a program, or preloaded. With
   MAIN it is a program that allocates device memory from stacks of many shapes. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread int inside;
static char *next, *end;
static size_t calls;

static void *take(size_t alignment, size_t size) {
    if (inside++) {
        static const char text[] = "malloc called itself\n";
        if (write(2, text, sizeof text - 1)) _exit(95);
    }
    pthread_mutex_lock(&lock);
    calls++;
    char *at = (char *)(((uintptr_t)next + 16 + alignment - 1) & -alignment);
    if (at + size > end) {
        size_t room = (size + alignment + (1 << 20)) & ~4095ul;
        next = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        end = next + room;
        at = (char *)(((uintptr_t)next + 16 + alignment - 1) & -alignment);
    }
    ((size_t *)at)[-1] = size;
    next = at + size;
    pthread_mutex_unlock(&lock);
    inside--;
    return at;
}

void *malloc(size_t size) { return take(16, size); }
void free(void *at) {
    if (!at) return;
    pthread_mutex_lock(&lock);
    calls++;
    pthread_mutex_unlock(&lock);
}
void *calloc(size_t count, size_t size) { return take(16, count * size); }
void *memalign(size_t alignment, size_t size) { return take(alignment < 16 ? 16 : alignment, size); }
void *aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }
int posix_memalign(void **at, size_t alignment, size_t size) {
    *at = memalign(alignment, size);
    return 0;
}
size_t malloc_usable_size(void *at) { return at ? ((size_t *)at)[-1] : 0; }
void *realloc(void *old, size_t size) {
    void *fresh = take(16, size);
    size_t kept = malloc_usable_size(old);
    if (old) memcpy(fresh, old, kept < size ? kept : size);
    return fresh;
}

#ifdef MAIN
#include "driver.h"
static CUcontext context;

static void take_both(void) {
    free(malloc(100));
    driver_take(512);
}

static void *work(void *unused) {
    MUST(CALL(cuCtxSetCurrent, (CUcontext))(context));
    for (unsigned k = 0; k < 500; k++) below_frames(k % 15, k * 2654435761u, take_both);
    return unused;
}

int main(void) {
    context = begin(0);
    on_threads(4, work);
    if (calls < 4000) return 94;
    puts("end");
    return 0;
}
#endif
