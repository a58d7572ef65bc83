/* Libraries that stand beside us in a process; -DKIND=... says which.
   ALLOC   exports cuMemAlloc_v2 and cuMemFree_v2 and hands on to the next ones
   DLSYM   exports dlsym and hands on to the C library's
   TORCH   exports cudaMalloc and cudaFree, and makes them of the driver's virtual memory, as
           torch_memory_saver's preload does; bound to the driver by the linker
   GOT     at its start, writes functions of its own over the program's imports (as UCX's memory hooks
           do), and hands on to what was there
   BYTES   puts a jump over the first bytes of the driver's cuMemFree_v2 (UCX's other way), and
           calls what it moved away
   PROFILE asks the driver for its functions at the start, through cuGetProcAddress, and calls them
           itself now and then, as a profiler that is injected does */
#include "driver.h"
#include <link.h>

#define ALLOC 1
#define DLSYM 2
#define TORCH 3
#define GOT 4
#define BYTES 5
#define PROFILE 6

static unsigned seen;
/* What the neighbour saw is part of its output: it must see as much beside us as alone. */
__attribute__((destructor)) static void tell(void) {
    if (getenv("NEIGHBOUR_TELLS")) printf("the neighbour saw %u\n", seen);
}

#if KIND == ALLOC
CUresult cuMemAlloc_v2(CUdeviceptr *p, size_t size) {
    CUresult (*next)(CUdeviceptr *, size_t) = dlsym(RTLD_NEXT, "cuMemAlloc_v2");
    seen++;
    return next ? next(p, size) : 999;
}
CUresult cuMemFree_v2(CUdeviceptr p) {
    CUresult (*next)(CUdeviceptr) = dlsym(RTLD_NEXT, "cuMemFree_v2");
    seen++;
    return next ? next(p) : 999;
}
#endif

#if KIND == DLSYM
void *dlsym(void *handle, const char *name) {
    static void *(*next)(void *, const char *);
    if (!next) next = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    if (!next) next = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    seen += !strncmp(name, "cu", 2);
    return next(handle, name);
}
#endif

#if KIND == TORCH
CUresult cuMemCreate(CUhandle *, size_t, const CUmemAllocationProp *, unsigned long long);
CUresult cuMemRelease(CUhandle);
CUresult cuMemAddressReserve(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
CUresult cuMemAddressFree(CUdeviceptr, size_t);
CUresult cuMemMap(CUdeviceptr, size_t, size_t, CUhandle, unsigned long long);
CUresult cuMemUnmap(CUdeviceptr, size_t);
CUresult cuMemSetAccess(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t);
static struct { CUdeviceptr at; size_t size; CUhandle handle; } kept[64];
int cudaMalloc(void **p, size_t size) {
    CUmemAllocationProp prop = {.type = 1, .location = {1, 0}};
    CUmemAccessDesc access = {{1, 0}, 3};
    size = (size + (2 << 20) - 1) & ~(size_t)((2 << 20) - 1);
    for (unsigned k = 0; k < 64; k++) {
        if (kept[k].size) continue;
        int result = cuMemCreate(&kept[k].handle, size, &prop, 0);
        if (result) return result;
        if (cuMemAddressReserve(&kept[k].at, size, 0, 0, 0)) abort();
        if (cuMemMap(kept[k].at, size, 0, kept[k].handle, 0)) abort();
        if (cuMemSetAccess(kept[k].at, size, &access, 1)) abort();
        kept[k].size = size;
        *p = (void *)kept[k].at;
        seen++;
        return 0;
    }
    return 2;
}
int cudaFree(void *p) {
    for (unsigned k = 0; k < 64; k++) {
        if (!kept[k].size || kept[k].at != (CUdeviceptr)p) continue;
        if (cuMemUnmap(kept[k].at, kept[k].size) || cuMemRelease(kept[k].handle)) abort();
        if (cuMemAddressFree(kept[k].at, kept[k].size)) abort();
        kept[k].size = 0;
        return 0;
    }
    return 1;
}
#endif

#if KIND == GOT
static CUresult (*before_alloc)(CUdeviceptr *, size_t);
static CUresult (*before_free)(CUdeviceptr);
static CUresult on_alloc(CUdeviceptr *p, size_t size) { return seen++, before_alloc(p, size); }
static CUresult on_free(CUdeviceptr p) { return seen++, before_free(p); }

static void over(void **slot, void *mine, void **before) {
    void *page = (void *)((uintptr_t)slot & ~4095ul);
    *before = *slot;
    mprotect(page, 8192, PROT_READ | PROT_WRITE);
    *slot = mine;
}

static int look(struct dl_phdr_info *info, size_t size, void *unused) {
    const ElfW(Dyn) *dynamic = NULL;
    const ElfW(Sym) *symbols = NULL;
    const char *names = NULL;
    const ElfW(Rela) *tables[2] = {0};
    size_t sizes[2] = {0};
    (void)size, (void)unused;
    if (info->dlpi_name[0]) return 0;
    for (int k = 0; k < info->dlpi_phnum; k++)
        if (info->dlpi_phdr[k].p_type == PT_DYNAMIC) dynamic = (void *)(info->dlpi_addr + info->dlpi_phdr[k].p_vaddr);
    for (; dynamic && dynamic->d_tag; dynamic++) {
        if (dynamic->d_tag == DT_SYMTAB) symbols = (void *)dynamic->d_un.d_ptr;
        if (dynamic->d_tag == DT_STRTAB) names = (void *)dynamic->d_un.d_ptr;
        if (dynamic->d_tag == DT_JMPREL) tables[0] = (void *)dynamic->d_un.d_ptr;
        if (dynamic->d_tag == DT_PLTRELSZ) sizes[0] = dynamic->d_un.d_val;
        if (dynamic->d_tag == DT_RELA) tables[1] = (void *)dynamic->d_un.d_ptr;
        if (dynamic->d_tag == DT_RELASZ) sizes[1] = dynamic->d_un.d_val;
    }
    for (int t = 0; t < 2; t++)
        for (size_t k = 0; k < sizes[t] / sizeof(ElfW(Rela)); k++) {
            const ElfW(Rela) *one = tables[t] + k;
            const char *name = names + symbols[ELF64_R_SYM(one->r_info)].st_name;
            void **slot = (void **)(info->dlpi_addr + one->r_offset);
            if (!strcmp(name, "cuMemAlloc_v2")) over(slot, (void *)on_alloc, (void **)&before_alloc);
            if (!strcmp(name, "cuMemFree_v2")) over(slot, (void *)on_free, (void **)&before_free);
        }
    return 1;
}
/* The program calls it when it has begun: its imports are bound by then. */
void neighbour_begin(void) { dl_iterate_phdr(look, NULL); }
#endif

#if KIND == BYTES
static unsigned char kept[14];
static unsigned char *at;
static CUresult on_free(CUdeviceptr);
static void jump(void) {
    static const unsigned char code[6] = {0xff, 0x25, 0, 0, 0, 0};
    void *mine = (void *)on_free;
    memcpy(at, code, 6);
    memcpy(at + 6, &mine, 8);
}
static CUresult on_free(CUdeviceptr p) {
    seen++;
    memcpy(at, kept, sizeof kept);
    CUresult result = ((CUresult(*)(CUdeviceptr))at)(p);
    jump();
    return result;
}
void neighbour_begin(void) {
    at = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuMemFree_v2");
    mprotect((void *)((uintptr_t)at & ~4095ul), 8192, PROT_READ | PROT_WRITE | PROT_EXEC);
    memcpy(kept, at, sizeof kept);
    jump();
}
#endif

#if KIND == PROFILE
static CUresult (*info)(size_t *, size_t *);
void neighbour_begin(void) {
    CUresult (*get)(const char *, void **, int, unsigned long long, int *);
    size_t rest, all;
    void *found = NULL;
    get = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuGetProcAddress_v2");
    if (!get || get("cuMemGetInfo", &found, 12000, 0, NULL) || !found) abort();
    info = found;
    for (int k = 0; k < 10; k++) seen += info(&rest, &all) == 0;
}
#endif
