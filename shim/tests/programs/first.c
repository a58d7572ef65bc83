/* first: calls of the first generation with guards around their outputs; then all again with a
   driver that fails. Prints results, outputs and guards. */
#include "../../../tests/programs/driver.h"

int cuInit(unsigned);
int cuDeviceTotalMem(unsigned *, int);
int cuMemGetInfo(unsigned *, unsigned *);
int cuMemAlloc(unsigned *, unsigned);
int cuMemAllocPitch(unsigned *, unsigned *, unsigned, unsigned, unsigned);
int cuMemFree(unsigned);
int cuMemAlloc_v2(uint64_t *, size_t);
int cuMemFree_v2(uint64_t);
int cuMemAllocHost(void **, unsigned);
int cuMemFreeHost(void *);
int cuArrayCreate(void **, const void *);
int cuArray3DCreate(void **, const void *);
int cuArrayDestroy(void *);
int cuMemAllocAsync(uint64_t *, size_t, void *);
int cuMemFreeAsync(uint64_t, void *);
int cuStreamSynchronize(void *);
int cuCtxSynchronize(void);
extern int broken;

struct Output {
    unsigned before, value, after;
};
#define UNTOUCHED 0x5eed5eed
static const struct Output fresh = {0xAAAAAAAA, UNTOUCHED, 0xBBBBBBBB};

static void show(const char *what, int result, struct Output *a, struct Output *b) {
    printf("%s = %d, errno %d", what, result, errno);
    for (struct Output *o = a; o; o = o == a ? b : 0) {
        printf(", %s%s", o->value == UNTOUCHED ? "untouched" : "set",
               o->before == fresh.before && o->after == fresh.after ? "" : " AND MORE");
        if (o == b) break;
    }
    printf("\n");
}

int main(int count, char **words) {
    struct { unsigned width, height; int format; unsigned channels; } flat = {64, 64, 0x20, 4};
    struct { unsigned width, height, depth; int format; unsigned channels, flags; } deep = {64, 64, 4, 0x20, 4, 0};
    errno = 77;
    show("init", cuInit(0), 0, 0);
    for (broken = 0; broken < 2; broken++) {
        struct Output a = fresh, b = fresh;
        uint64_t wide = UNTOUCHED;
        void *pointer = 0;
        int result = cuMemAlloc(&a.value, 4096);
        show("alloc", result, &a, 0);
        show("free", cuMemFree(a.value), 0, 0);
        show("free of nothing", cuMemFree(0), 0, 0);
        show("bad free", cuMemFree(5), 0, 0);
        a = fresh;
        show("alloc of nothing", cuMemAlloc(&a.value, 0), &a, 0);
        show("alloc to nowhere", cuMemAlloc(0, 4096), 0, 0);
        a = fresh;
        show("large", cuMemAlloc(&a.value, 3u << 30), &a, 0);
        if (a.value != UNTOUCHED) cuMemFree(a.value);
        a = fresh;
        show("pitch", cuMemAllocPitch(&a.value, &b.value, 1000, 10, 4), &a, &b);
        if (a.value != UNTOUCHED) show("free", cuMemFree(a.value), 0, 0);
        a = b = fresh;
        show("large pitch", cuMemAllocPitch(&a.value, &b.value, 1u << 20, 3u << 10, 4), &a, &b);
        if (a.value != UNTOUCHED) cuMemFree(a.value);
        a = fresh;
        show("pitch to nowhere", cuMemAllocPitch(&a.value, 0, 1000, 10, 4), &a, 0);
        a = b = fresh;
        show("info", cuMemGetInfo(&a.value, &b.value), &a, &b);
        if (count > 1) printf("free %u MiB of %u\n", a.value >> 20, b.value >> 20);
        show("half info", cuMemGetInfo(0, &b.value), &b, 0);
        a = fresh;
        show("total", cuDeviceTotalMem(&a.value, 0), &a, 0);
        if (count > 1) printf("total %u MiB\n", a.value >> 20);
        show("host", cuMemAllocHost(&pointer, 4096), 0, 0);
        show("free host", cuMemFreeHost(pointer), 0, 0);
        show("array", cuArrayCreate(&pointer, &flat), 0, 0);
        show("destroy", cuArrayDestroy(pointer), 0, 0);
        show("array 3D", cuArray3DCreate(&pointer, &deep), 0, 0);
        show("destroy", cuArrayDestroy(pointer), 0, 0);
        show("array of nothing", cuArrayCreate(&pointer, 0), 0, 0);
        show("wide", cuMemAlloc_v2(&wide, 4096), 0, 0);
        show("free", cuMemFree_v2(wide), 0, 0);
        show("async", cuMemAllocAsync(&wide, 4096, 0), 0, 0);
        show("free", cuMemFreeAsync(wide, 0), 0, 0);
        show("sync", cuStreamSynchronize(0), 0, 0);
        show("sync", cuCtxSynchronize(), 0, 0);
    }
    return 0;
}
