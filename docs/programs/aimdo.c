/* Stands in for ComfyUI's memory manager, comfy-aimdo, on the page about ComfyUI. Like that library it writes a jump over
   the beginning of the driver's functions for allocations, to count what goes through them, and it keeps the weights of a
   model in pages that it can evict. It needs no GPU (`vramtrace run --simulate`). For x86-64.

     cc -g -shared -fPIC -o aimdo.so aimdo.c -ldl                                                                  */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef unsigned long long pointer;
#define PAGE ((size_t)32 << 20)

/* --- the functions that are replaced --- */

static int (*true_alloc)(pointer *, size_t);
static int (*true_free)(pointer);
static int (*true_alloc_async)(pointer *, size_t, void *);
static int (*true_free_async)(pointer, void *);
static size_t requested;

static int aimdo_cuda_malloc(pointer *memory, size_t size) {
    int result = true_alloc(memory, size);
    if (result == 0) requested += size;
    return result;
}

static int aimdo_cuda_malloc_async(pointer *memory, size_t size, void *stream) {
    int result = true_alloc_async(memory, size, stream);
    if (result == 0) requested += size;
    return result;
}

static int aimdo_cuda_free(pointer memory) { return true_free(memory); }
static int aimdo_cuda_free_async(pointer memory, void *stream) { return true_free_async(memory, stream); }

/* The bytes of the instruction at `code`; 0: none of those with which such functions begin. */
static size_t length(const unsigned char *code) {
    const unsigned char *at = code;
    if (!memcmp(at, "\xf3\x0f\x1e\xfa", 4)) return 4;                               /* endbr64 */
    if (*at >= 0x50 && *at <= 0x57) return 1;                                       /* push */
    if (*at == 0x41 && at[1] >= 0x50 && at[1] <= 0x57) return 2;                    /* push */
    at += *at == 0x64;                                                              /* fs: */
    if ((*at & 0xf8) != 0x48) return 0;
    at++;
    if (*at == 0x83 && at[1] == 0xec) return at + 3 - code;                         /* sub rsp, byte */
    if (*at == 0x81 && at[1] == 0xec) return at + 6 - code;                         /* sub rsp, word */
    if ((*at == 0x89 || *at == 0x8b) && at[1] >= 0xc0) return at + 2 - code;        /* mov register, register */
    if (*at == 0x8b && (at[1] & 0xc7) == 4 && at[2] == 0x25) return at + 7 - code;  /* mov register, address */
    return 0;
}

static unsigned char *far_jump(unsigned char *at, const void *to) {
    memcpy(at, "\xff\x25\0\0\0\0", 6);
    memcpy(at + 6, &to, 8);
    return at + 14;
}

/* A page that a jump of five bytes reaches from `code`. */
static unsigned char *page_near(const unsigned char *code) {
    for (uintptr_t away = 1 << 21; away < (uintptr_t)1 << 30; away += 1 << 21) {
        void *wanted = (void *)(((uintptr_t)code - away) & ~(uintptr_t)4095);
        int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
        void *page = mmap(wanted, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, how, -1, 0);
        if (page == wanted) return page;
        if (page != MAP_FAILED) munmap(page, 4096);
    }
    return NULL;
}

/* Writes a jump to `hook` over the beginning of `function`. Returns what calls the function as it was; NULL: impossible. */
static void *replace(void *function, void *hook) {
    unsigned char *code = function, *page = page_near(code);
    size_t moved = 0;
    while (moved < 5 && length(code + moved) > 0) moved += length(code + moved);
    if (page == NULL || moved < 5) return NULL;
    unsigned char *beginning = far_jump(page, hook);
    memcpy(beginning, code, moved);
    far_jump(beginning + moved, code + moved);
    if (mprotect((void *)((uintptr_t)code & ~4095ul), 8192, PROT_READ | PROT_WRITE | PROT_EXEC) != 0) return NULL;
    int distance = (int)(page - (code + 5));
    memcpy(code + 1, &distance, 4);
    *code = 0xe9;
    return beginning;
}

static int (*look_up)(const char *, void **, int, unsigned long long, int *);

static void *driver(const char *name) {
    void *function = NULL;
    if (look_up == NULL) {
        void *library = dlopen("libcuda.so.1", RTLD_NOW);
        look_up = library ? dlsym(library, "cuGetProcAddress_v2") : NULL;
    }
    if (look_up == NULL || look_up(name, &function, 12060, 0, NULL) != 0 || function == NULL) {
        fprintf(stderr, "aimdo: the driver has no %s\n", name);
        exit(1);
    }
    return function;
}

#define DRIVER(name, ...) ((int (*)(__VA_ARGS__))driver(#name))

/* Returns 1 if all four functions were replaced. */
int aimdo_setup_hooks(void) {
    return (true_alloc = replace(driver("cuMemAlloc"), aimdo_cuda_malloc)) != NULL &&
           (true_free = replace(driver("cuMemFree"), aimdo_cuda_free)) != NULL &&
           (true_alloc_async = replace(driver("cuMemAllocAsync"), aimdo_cuda_malloc_async)) != NULL &&
           (true_free_async = replace(driver("cuMemFreeAsync"), aimdo_cuda_free_async)) != NULL;
}

/* Bytes that the program requested through the replaced functions. */
size_t aimdo_requested(void) { return requested; }

/* --- weights in pages --- */

#define MOST 64

static struct {
    pointer base;
    size_t pages;
    pointer object[MOST]; /* 0: not on the card */
    size_t evictions;
} vbar;

struct location { int type, id; };
struct properties { int type, handle_types; struct location location; void *windows; unsigned char flags[8]; };
struct access { struct location location; int flags; };

int vbar_allocate(size_t size) {
    vbar.pages = size / PAGE;
    if (vbar.pages > MOST) return 1;
    return DRIVER(cuMemAddressReserve, pointer *, size_t, size_t, pointer, unsigned long long)(&vbar.base, size, 0, 0, 0);
}

/* Brings pages `first` up to `last` to the card, where they are not. Returns how many it brought; -1: out of memory. */
int vbar_fault(size_t first, size_t last) {
    struct properties device = {.type = 1, .location = {1, 0}};
    struct access both = {{1, 0}, 3};
    int brought = 0;
    for (size_t n = first; n < last; n++) {
        pointer at = vbar.base + n * PAGE;
        if (vbar.object[n]) continue;
        if (DRIVER(cuMemCreate, pointer *, size_t, struct properties *, unsigned long long)(&vbar.object[n], PAGE, &device, 0)) {
            vbar.object[n] = 0;
            return -1;
        }
        DRIVER(cuMemMap, pointer, size_t, size_t, pointer, unsigned long long)(at, PAGE, 0, vbar.object[n], 0);
        DRIVER(cuMemSetAccess, pointer, size_t, struct access *, size_t)(at, PAGE, &both, 1);
        brought++;
    }
    return brought;
}

/* Evicts up to `count` pages, the last ones first. */
void vbar_free_memory(size_t count) {
    for (size_t n = vbar.pages; n-- > 0 && count > 0;) {
        if (!vbar.object[n]) continue;
        DRIVER(cuMemUnmap, pointer, size_t)(vbar.base + n * PAGE, PAGE);
        DRIVER(cuMemRelease, pointer)(vbar.object[n]);
        vbar.object[n] = 0;
        vbar.evictions++;
        count--;
    }
}

size_t vbar_evictions(void) { return vbar.evictions; }
