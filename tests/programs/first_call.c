/* The first call of the driver is not cuInit, and an error of dlopen's waits to be read: prints
   what dlerror says after the calls. */
#include "driver.h"

int main(void) {
    CUdevice count;
    int version = 0;
    CUresult (*get_version)(int *) = CALL(cuDriverGetVersion, (int *));
    CUresult (*get_count)(int *) = CALL(cuDeviceGetCount, (int *));
    CUresult (*init)(unsigned) = CALL(cuInit, (unsigned));
    dlopen("/nowhere/nothing.so", RTLD_NOW);
    SHOW(get_version(&version));
    SHOW(get_count(&count));
    const char *text = dlerror();
    printf("%d, %s\n", version, text ? text : "no error");
    SHOW(init(0));
    SHOW(get_count(&count));
    return 0;
}
