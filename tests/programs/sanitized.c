/* Threads, exceptions and memory, for builds with a sanitizer; with "cuda" each thread uses the
   driver too. As C (by gcc) it does the same but for the exceptions (by g++). */
#include "driver.h"
#ifdef __cplusplus
#include <stdexcept>
#include <vector>
#endif

static CUcontext context;

static int plain(int number) {
    char *text = (char *)malloc(64);
    snprintf(text, 64, "%d", number);
    int length = (int)strlen(text);
    free(text);
#ifdef __cplusplus
    try {
        std::vector<int> all(number + 1, 1);
        throw std::runtime_error("thrown");
    } catch (const std::exception &error) {
        length += (int)strlen(error.what());
    }
#endif
    return length;
}

static void device(void) {
    MUST(CALL(cuCtxSetCurrent, (CUcontext))(context));
    driver_pairs(50, 1000);
}

static void *work(void *number) {
    long sum = 0;
    for (int k = 0; k < 100; k++) sum += plain((int)(long)number + k);
    if (context) device();
    return (void *)sum;
}

int main(int count, char **arguments) {
    pthread_t threads[4];
    long sum = 0;
    if (count > 1 && strcmp(arguments[1], "cuda") == 0) {
        CUdevice at;
        MUST(CALL(cuInit, (unsigned))(0));
        MUST(CALL(cuDeviceGet, (CUdevice *, int))(&at, 0));
        MUST(CALL(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))(&context, at));
    }
    for (long k = 0; k < 4; k++) pthread_create(threads + k, NULL, work, (void *)k);
    for (int k = 0; k < 4; k++) {
        void *result;
        pthread_join(threads[k], &result);
        sum += (long)result;
    }
    printf("sum %ld\n", sum);
    return 3;
}
