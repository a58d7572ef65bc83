/* A plugin that looks for what is behind itself, and has its own malloc. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
void *plugin_next(const char *name) { return dlsym(RTLD_NEXT, name); }
void *malloc(size_t n) {
    static void *(*next)(size_t);
    if (!next) next = (void *(*)(size_t))dlsym(RTLD_NEXT, "malloc");
    return next(n);
}
