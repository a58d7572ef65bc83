/* embedded SCRIPT BESIDE [close] LIBPYTHON...: a C program that opens one Python after the other as a separate library, with
   its symbols for nobody else (RTLD_LOCAL), runs the script there and unloads it. The script can call `take()`: an
   allocation, whose size it returns. Recursion goes through C: `again(f)` calls f from here. After each it allocates 256 bytes
   and says whether the library is gone. BESIDE threads that run no Python allocate and free all the while. `close`: what
   unloads is the C library's own dlclose. */
#include "driver.h"
#include <limits.h>

static void *python;
#define PY(type, name, types) ((type(*) types)dlsym(python, #name))

typedef struct {
    const char *name;
    void *function;
    int flags;
    const char *text;
} method;

static CUresult (*allocate)(CUdeviceptr *, size_t);
static CUresult (*release)(CUdeviceptr);
static int done, begun;

__attribute__((noinline)) static void *take(void *self, void *unused) {
    static size_t size;
    CUdeviceptr address;
    (void)self, (void)unused;
    MUST(allocate(&address, size += 512));
    return PY(void *, PyLong_FromSize_t, (size_t))(size);
}

__attribute__((noinline)) static void *again(void *self, void *function) {
    (void)self;
    void *result = PY(void *, PyObject_CallObject, (void *, void *))(function, NULL);
    __asm__ volatile("" ::: "memory");
    return result;
}

__attribute__((noinline)) static void outside(void) {
    CUdeviceptr address;
    MUST(allocate(&address, 256));
    __asm__ volatile("" ::: "memory");
}

static void *beside(void *context) {
    CUdeviceptr address;
    MUST(CALL(cuCtxSetCurrent, (CUcontext))(context));
    __atomic_add_fetch(&begun, 1, __ATOMIC_RELAXED);
    while (!__atomic_load_n(&done, __ATOMIC_RELAXED)) {
        MUST(allocate(&address, 128));
        MUST(release(address));
    }
    return NULL;
}

static int run(const char *path, const char *name) {
    static method methods[] = {{"take", take, 4, 0}, {"again", again, 8, 0}};
    char home[PATH_MAX];
    snprintf(home, sizeof home, "%s", path);
    for (int up = 0; up < 2; up++) *strrchr(home, '/') = 0;
    setenv("PYTHONHOME", home, 1);
    if (!(python = dlopen(path, RTLD_NOW | RTLD_LOCAL))) {
        fprintf(stderr, "%s\n", dlerror());
        exit(97);
    }
    FILE *script = fopen(name, "r");
    PY(void, Py_Initialize, (void))();
    void *module = PY(void *, PyImport_AddModule, (const char *))("__main__");
    for (int k = 0; k < 2; k++) {
        void *function = PY(void *, PyCFunction_NewEx, (method *, void *, void *))(methods + k, 0, 0);
        PY(int, PyObject_SetAttrString, (void *, const char *, void *))(module, methods[k].name, function);
    }
    int failed = PY(int, PyRun_SimpleFileExFlags, (FILE *, const char *, int, void *))(script, name, 1, NULL);
    failed |= PY(int, Py_FinalizeEx, (void))();
    return failed;
}

int main(int count, char **words) {
    pthread_t threads[16];
    int failed = 0, all = count > 3 ? atoi(words[2]) : 0, first = 3;
    int (*close)(void *) = dlclose;
    if (count < 4) return 96;
    if (!strcmp(words[3], "close")) {
        close = (int (*)(void *))dlsym(dlopen("libc.so.6", RTLD_NOW), "dlclose");
        first++;
    }
    CUcontext context = begin(0);
    allocate = CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t));
    release = CALL(cuMemFree_v2, (CUdeviceptr));
    for (int k = 0; k < all; k++) pthread_create(&threads[k], NULL, beside, context);
    while (__atomic_load_n(&begun, __ATOMIC_RELAXED) < all) sched_yield();
    for (int k = first; k < count; k++) {
        failed |= run(words[k], words[1]);
        outside();
        failed |= close(python) != 0;
        printf("\"%s\"\n", dlopen(words[k], RTLD_NOW | RTLD_NOLOAD) ? "stays" : "gone");
        fflush(stdout);
        outside();
    }
    done = 1;
    for (int k = 0; k < all; k++) pthread_join(threads[k], NULL);
    return failed ? 1 : 0;
}
