/* Stands in for PyTorch's libc10_cuda.so: a cache that tells of its blocks through the linker, with
   its lock held, as the real one does. It keeps no blocks: its caller says what they are. */
#define _GNU_SOURCE
#include "c10.h"
#include <pthread.h>

/* The real one uses much more of libc10.so than these two functions. */
const struct told *(*const c10_used)(void) = c10_told;

static struct {
    pthread_mutex_t lock;
    size_t allocated, reserved;
} caches[8] = {[0 ... 7] = {PTHREAD_MUTEX_INITIALIZER, 0, 0}};

void cache_reserve(int device, int64_t bytes) { caches[device].reserved += bytes; }

size_t cache_allocated(int device) { return caches[device].allocated; }

/* size > 0: made; < 0: freed. */
void cache_block(int device, void *at, int64_t size) {
    pthread_mutex_lock(&caches[device].lock);
    caches[device].allocated += size;
    c10_memory(at, size, caches[device].allocated, caches[device].reserved, GARBAGE | DEVICE(CUDA, device));
    pthread_mutex_unlock(&caches[device].lock);
}

/* As the cache of any other device, or with any word. */
void cache_tell(uint64_t word, void *at, int64_t size) { c10_memory(at, size, 1, 2, word); }

void cache_refuse(int device, int64_t size) {
    c10_out_of_memory(size, caches[device].allocated, caches[device].reserved, GARBAGE | DEVICE(CUDA, device));
}

const struct told *cache_told(void) { return c10_used(); }

struct backward {
    int device;
    void *at;
    int64_t size;
};

static void *backward_thread(void *data) {
    struct backward *one = data;
    cache_block(one->device, one->at, one->size);
    return NULL;
}

/* From a thread that runs no Python. */
void cache_block_in_backward(int device, void *at, int64_t size) {
    struct backward one = {device, at, size};
    pthread_t thread;
    pthread_create(&thread, NULL, backward_thread, &one);
    pthread_join(thread, NULL);
}
