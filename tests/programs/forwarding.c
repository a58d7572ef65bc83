/* A small libcuda.so.1 that opens the real one (INNER_LIBCUDA) and hands each call on, as WSL2's and the
   compatibility packages' do. names.h: F(name) for each function. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#define F(name)                                                                       \
    static void *inner_##name;                                                        \
    __attribute__((naked)) int name(void) {                                           \
        __asm__("endbr64; jmp *%P0(%%rip)" : : "i"(&inner_##name));                   \
    }
#include "names.h"
#undef F

__attribute__((constructor)) static void start(void) {
    void *inner = dlopen(getenv("INNER_LIBCUDA"), RTLD_NOW | RTLD_LOCAL);
    if (!inner) {
        fprintf(stderr, "%s\n", dlerror());
        abort();
    }
#define F(name) inner_##name = dlsym(inner, #name);
#include "names.h"
}
