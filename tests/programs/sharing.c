/* sharing.c: one process lends 64 MiB to another, which opens the handle twice and closes it
   twice. The lender starts the borrower; both print, one after the other. */
#include "driver.h"

static CUresult open_handle(CUdeviceptr *p, CUipcMemHandle handle) {
    return CALL(cuIpcOpenMemHandle_v2, (CUdeviceptr *, CUipcMemHandle, unsigned))(p, handle, 1);
}

static void borrow(int from) {
    CUipcMemHandle handle, none;
    CUdeviceptr p = 0, again = 0, untouched = 0x1234;
    if (read(from, &handle, sizeof handle) != sizeof handle) exit(96);
    memset(&none, 0x5a, sizeof none);
    begin(0);
    SHOW(open_handle(&untouched, none));
    printf("untouched %d\n", untouched == 0x1234);
    SHOW(open_handle(&p, handle));
    SHOW(open_handle(&again, handle));
    printf("same address %d\n", p == again);
    SHOW(CALL(cuIpcCloseMemHandle, (CUdeviceptr))(p));
    SHOW(CALL(cuMemsetD8_v2, (CUdeviceptr, unsigned char, size_t))(p, 1, 1000));
    SHOW(CALL(cuIpcCloseMemHandle, (CUdeviceptr))(p));
    SHOW(CALL(cuIpcCloseMemHandle, (CUdeviceptr))(p));
    SHOW(open_handle(&p, handle));
}

int main(int count, char **arguments) {
    CUdeviceptr p;
    CUipcMemHandle handle;
    int pipes[2], status;
    if (count == 2) {
        borrow(atoi(arguments[1]));
        return 0;
    }
    if (pipe(pipes)) return 95;
    begin(0);
    SHOW(CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(&p, 64 * MIB));
    SHOW(CALL(cuIpcGetMemHandle, (CUipcMemHandle *, CUdeviceptr))(&handle, p));
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        char number[16];
        snprintf(number, sizeof number, "%d", pipes[0]);
        execl("/proc/self/exe", arguments[0], number, (char *)NULL);
        _exit(94);
    }
    if (write(pipes[1], &handle, sizeof handle) != sizeof handle) return 93;
    if (waitpid(child, &status, 0) != child || status) return 92;
    SHOW(CALL(cuMemFree_v2, (CUdeviceptr))(p));
    return 0;
}
