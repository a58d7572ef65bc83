/* embedded LIBPYTHON SCRIPT: a C program that opens Python as a library of its own, with its symbols
   for nobody else (RTLD_LOCAL), and runs a script that can call `take()`: an allocation, whose size
   it returns. Recursion goes through C: `again(f)` calls f from here. */
#include "driver.h"

static void *python;
#define PY(type, name, types) ((type(*) types)dlsym(python, #name))

typedef struct {
    const char *name;
    void *function;
    int flags;
    const char *text;
} method;

static CUresult (*allocate)(CUdeviceptr *, size_t);

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

int main(int count, char **arguments) {
    static method methods[] = {{"take", take, 4, 0}, {"again", again, 8, 0}};
    if (count < 3 || !(python = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL))) {
        fprintf(stderr, "%s\n", dlerror());
        return 97;
    }
    FILE *script = fopen(arguments[2], "r");
    begin(0);
    allocate = CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t));
    PY(void, Py_Initialize, (void))();
    void *module = PY(void *, PyImport_AddModule, (const char *))("__main__");
    for (int k = 0; k < 2; k++) {
        void *function = PY(void *, PyCFunction_NewEx, (method *, void *, void *))(methods + k, 0, 0);
        PY(int, PyObject_SetAttrString, (void *, const char *, void *))(module, methods[k].name, function);
    }
    int failed = PY(int, PyRun_SimpleFileExFlags, (FILE *, const char *, int, void *))(
        script, arguments[2], 1, NULL);
    PY(int, Py_FinalizeEx, (void))();
    return failed ? 1 : 0;
}
