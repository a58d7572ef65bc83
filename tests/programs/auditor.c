/* An audit library (LD_AUDIT): sees each library and each bound symbol, and changes nothing. */
#include "driver.h"
#include <link.h>

unsigned la_version(unsigned version) { return version; }

unsigned la_objopen(struct link_map *map, Lmid_t space, uintptr_t *cookie) {
    (void)space, (void)cookie;
    /* Its own C library, in its own namespace. */
    free(strdup(map->l_name));
    return LA_FLG_BINDTO | LA_FLG_BINDFROM;
}

char *la_objsearch(const char *name, uintptr_t *cookie, unsigned flag) {
    (void)cookie, (void)flag;
    return (char *)name;
}

uintptr_t la_symbind64(Elf64_Sym *symbol, unsigned index, uintptr_t *from, uintptr_t *to, unsigned *flags, const char *name) {
    (void)index, (void)from, (void)to, (void)flags, (void)name;
    return symbol->st_value;
}
