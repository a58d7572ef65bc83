/* Memory for programs that run at both levels: pieces from the driver, or blocks from a stand-in of
   PyTorch's cache, which takes segments from the driver and keeps them. One thread at a time. */
#ifndef MEMORY_H
#define MEMORY_H
#include "cache.h"
#include "clock.h"

typedef struct {
    CUdeviceptr at;
    size_t bytes;
} piece;

/* Free blocks, used again for the same size only: other sizes need new segments. */
static piece unused[1 << 16];
static int unused_count;
static CUdeviceptr segment_at, segment_end;

static inline CUdeviceptr cached(size_t bytes) {
    for (int n = unused_count - 1; n >= 0; n--)
        if (unused[n].bytes == bytes) {
            CUdeviceptr at = unused[n].at;
            unused[n] = unused[--unused_count];
            return at;
        }
    if (bytes > segment_end - segment_at) {
        size_t segment = bytes < 20 * MIB ? 20 * MIB : (bytes + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
        segment_at = driver_take(segment);
        segment_end = segment_at + segment;
        tell_segment(0, segment);
    }
    CUdeviceptr at = segment_at;
    segment_at += bytes;
    return at;
}

NEVER static piece take(size_t bytes) {
    piece one = {0, bytes};
    clock_call(TAKE_US);
    if (!tell_block) {
        one.at = driver_take(bytes);
    } else {
        one.bytes = (bytes + 511) / 512 * 512;
        one.at = cached(one.bytes);
        tell_block(0, (void *)one.at, one.bytes);
    }
    STAY;
    return one;
}

NEVER static void give(piece one) {
    clock_call(GIVE_US);
    if (!tell_block) {
        driver_give(one.at);
    } else {
        tell_block(0, (void *)one.at, -(int64_t)one.bytes);
        if (unused_count == sizeof unused / sizeof *unused) exit(96);
        unused[unused_count++] = one;
    }
    STAY;
}

/* A line of the program that takes memory. */
#define LINE(name)                          \
    NEVER static piece name(size_t bytes) { \
        piece p = take(bytes);              \
        STAY;                               \
        return p;                           \
    }
#endif
