/* Preloaded: from the start of main on, the system call DENY_CALL gets the error DENY_ERROR. */
#include "../../../tests/programs/seccomp.h"
#include <stdlib.h>

__attribute__((constructor)) static void deny(void) {
    const char *call = getenv("DENY_CALL"), *error = getenv("DENY_ERROR");
    if (!call || !error) return;
    if (filter_call(atoi(call), SECCOMP_RET_ERRNO | atoi(error))) abort();
}
