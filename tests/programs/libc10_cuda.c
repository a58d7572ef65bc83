/* Stands in for PyTorch's libc10_cuda.so: a cache that tells of its blocks through the linker, with
   its lock held, as the real one does. It keeps no blocks: its caller says what they are. */
#define _GNU_SOURCE
#include "c10.h"
#include <pthread.h>
#include <time.h>

/* The real one uses much more of libc10.so than these two functions. */
const struct reported *(*const c10_used)(void) = c10_reported;

static struct {
    pthread_mutex_t lock;
    size_t allocated, reserved;
} caches[8] = {[0 ... 7] = {PTHREAD_MUTEX_INITIALIZER, 0, 0}};

void cache_reserve(int device, int64_t bytes) { caches[device].reserved += bytes; }

/* A segment whose blocks are not reported; `take` is the driver's allocation call. */
void cache_grow(int (*take)(unsigned long long *, size_t), size_t bytes) {
    unsigned long long at;
    if (take(&at, bytes) == 0) cache_reserve(0, (int64_t)bytes);
}

size_t cache_allocated(int device) { return caches[device].allocated; }

size_t cache_reserved(int device) { return caches[device].reserved; }

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

const struct reported *cache_reported(void) { return c10_used(); }

/* Nanoseconds of processor time for each of `count` pairs of one block made and freed. */
double cache_pairs(int device, char *base, int64_t count) {
    struct timespec start, end;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &start);
    for (int64_t turn = 0; turn < count; turn++) {
        char *at = base + turn % 1024 * 4096;
        cache_block(device, at, 1024);
        cache_block(device, at, -1024);
    }
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
    return ((end.tv_sec - start.tv_sec) * 1e9 + (end.tv_nsec - start.tv_nsec)) / count;
}

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

#ifdef STREAMS
/* C++ passes the structure in two registers. */
struct stream {
    int8_t type, device;
    int64_t id;
};
void set_current_stream(struct stream stream) __asm__("_ZN3c104cuda20setCurrentCUDAStreamENS0_10CUDAStreamE");

static __thread int64_t streams[8];

void set_current_stream(struct stream stream) { streams[stream.device] = stream.id; }

/* Through the linkage table, as from everywhere in PyTorch. */
void cache_use_stream(int device, int64_t id) { set_current_stream((struct stream){CUDA, (int8_t)device, id}); }

int64_t cache_stream(int device) { return streams[device]; }
#endif

#ifdef REQUESTS
#ifdef DIVISIONS_HERE
size_t asked_divisions = 0;

size_t c10_divisions(size_t requested) { return requested >= 1u << 30 ? 0 : asked_divisions; }
#endif

void cache_divide(size_t divisions) { asked_divisions = divisions; }

/* A request: the real one asks only for 512 bytes or more. `size` 0: it gets no block, and the caller is told by other means
   than the profiler. Returns the divisions. */
size_t cache_request(int device, void *at, size_t requested, int64_t size) {
    pthread_mutex_lock(&caches[device].lock);
    size_t divisions = requested >= 512 ? c10_divisions(requested) : 0;
    if (size > 0) {
        caches[device].allocated += size;
        c10_memory(at, size, caches[device].allocated, caches[device].reserved, DEVICE(CUDA, device));
    }
    pthread_mutex_unlock(&caches[device].lock);
    return divisions;
}

/* Pairs of a block of 1 KiB and its free. */
void cache_request_pairs(int device, char *base, int64_t count, size_t requested) {
    for (int64_t turn = 0; turn < count; turn++) {
        char *at = base + turn % 1024 * 4096;
        cache_request(device, at, requested, 1024);
        cache_block(device, at, -1024);
    }
}
#endif
