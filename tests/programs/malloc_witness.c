/* A preloaded library that tells who asks the C library for memory: aborts, with the stack, where
   it is the recorder. Whose call it is, is decided by the innermost frame outside the C library and
   the loader. Opening a library is allowed in cuInit and in the program's own dlopen and dlsym. */
#include "driver.h"
#include <link.h>
#include <unwind.h>

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);
void __libc_free(void *);

static unsigned long seen;
static __thread int inside;
static struct {
    uintptr_t start, end;
} recorder, neutral[8], init;
static int neutrals;

/* The frame of the recorder's cuInit has a local function's name, which dladdr does not know. */
static void find_init(const char *path, uintptr_t base) {
    int file = open(path, O_RDONLY);
    off_t size = lseek(file, 0, SEEK_END);
    const char *image = mmap(NULL, size, PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    if (image == MAP_FAILED) _exit(94);
    const ElfW(Ehdr) *header = (const void *)image;
    const ElfW(Shdr) *sections = (const void *)(image + header->e_shoff);
    for (int k = 0; k < header->e_shnum; k++) {
        if (sections[k].sh_type != SHT_SYMTAB) continue;
        const ElfW(Sym) *symbols = (const void *)(image + sections[k].sh_offset);
        const char *names = image + sections[sections[k].sh_link].sh_offset;
        for (size_t n = 0; n < sections[k].sh_size / sizeof *symbols; n++)
            if (strstr(names + symbols[n].st_name, "exports6cuInit6hooked")) {
                init.start = base + symbols[n].st_value;
                init.end = init.start + symbols[n].st_size;
            }
    }
    if (!init.end) _exit(95);
}

static int note(struct dl_phdr_info *info, size_t size, void *own) {
    uintptr_t start = ~0ul, end = 0;
    (void)size;
    for (int k = 0; k < info->dlpi_phnum; k++) {
        const ElfW(Phdr) *part = info->dlpi_phdr + k;
        if (part->p_type != PT_LOAD) continue;
        uintptr_t at = info->dlpi_addr + part->p_vaddr;
        if (at < start) start = at;
        if (at + part->p_memsz > end) end = at + part->p_memsz;
    }
    const char *name = info->dlpi_name;
    if (strstr(name, "libvramtrace.so")) {
        recorder.start = start;
        recorder.end = end;
        find_init(name, info->dlpi_addr);
    } else if (strstr(name, "libc.so.") || strstr(name, "ld-linux") || strstr(name, "libgcc_s") ||
               ((uintptr_t)own >= start && (uintptr_t)own < end)) {
        neutral[neutrals].start = start;
        neutral[neutrals++].end = end;
    }
    return 0;
}

struct walk {
    int depth, theirs, decided, allowed, opens;
    uintptr_t frames[64];
};

static _Unwind_Reason_Code frame(struct _Unwind_Context *context, void *argument) {
    struct walk *walk = argument;
    uintptr_t at = _Unwind_GetIP(context);
    if (walk->depth == 64) return _URC_END_OF_STACK;
    walk->frames[walk->depth++] = at--;
    int is_neutral = 0;
    for (int k = 0; k < neutrals; k++) is_neutral |= at >= neutral[k].start && at < neutral[k].end;
    if (!is_neutral && !walk->decided) {
        walk->decided = 1;
        walk->theirs = at >= recorder.start && at < recorder.end;
        if (!walk->theirs) return _URC_END_OF_STACK;
    }
    Dl_info symbol;
    if (dladdr((void *)at, &symbol) && symbol.dli_sname) {
        const char *name = symbol.dli_sname;
        int opening = !strncmp(name, "dl", 2) || !strncmp(name, "_dl_", 4);
        if (!walk->decided) walk->opens |= opening;
        else walk->allowed |= opening && walk->opens;
    }
    if (walk->decided) walk->allowed |= at >= init.start && at < init.end && walk->opens;
    return _URC_NO_REASON;
}

static void judge(const char *what) {
    __atomic_fetch_add(&seen, 1, __ATOMIC_RELAXED);
    if (inside || !recorder.end) return;
    inside = 1;
    struct walk walk = {0};
    _Unwind_Backtrace(frame, &walk);
    if (walk.theirs && !walk.allowed) {
        dprintf(2, "the recorder calls %s\n", what);
        for (int k = 0; k < walk.depth; k++) {
            Dl_info symbol = {0};
            dladdr((void *)walk.frames[k], &symbol);
            uintptr_t base = (uintptr_t)symbol.dli_fbase;
            dprintf(2, "  %s %s +%#lx\n", symbol.dli_fname ? symbol.dli_fname : "?",
                    symbol.dli_sname ? symbol.dli_sname : "?", (unsigned long)(walk.frames[k] - base));
        }
        abort();
    }
    inside = 0;
}

__attribute__((constructor)) static void prepare(void) { dl_iterate_phdr(note, (void *)judge); }
__attribute__((destructor)) static void end(void) {
    if (!seen || !recorder.end) _exit(93);
}

void *malloc(size_t size) { return judge("malloc"), __libc_malloc(size); }
void *calloc(size_t count, size_t size) { return judge("calloc"), __libc_calloc(count, size); }
void *realloc(void *at, size_t size) { return judge("realloc"), __libc_realloc(at, size); }
void *memalign(size_t to, size_t size) { return judge("memalign"), __libc_memalign(to, size); }
void *aligned_alloc(size_t to, size_t size) { return judge("memalign"), __libc_memalign(to, size); }
int posix_memalign(void **at, size_t to, size_t size) {
    judge("memalign");
    return *at = __libc_memalign(to, size), 0;
}
void free(void *at) { judge("free"), __libc_free(at); }
