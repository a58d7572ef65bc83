/* launches.c: what a launch costs that is not the first, over whatever libcuda.so.1 the loader finds. Prints "one NS" (the
   same function again and again) and "many NS" (1,000 functions in turn), best of several rounds. */
#include "../tests/programs/driver.h"
#include <time.h>

enum { ROUNDS = 15, LAUNCHES = 20000, MANY = 1000 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

int main(void) {
    static void *functions[MANY];
    static char ptx[MANY * 48 + 256];
    char *at = ptx + sprintf(ptx, ".version 8.0\n.target sm_90\n.address_size 64\n");
    void *module;
    double best[2] = {1e18, 1e18};
    begin(0);
    CUresult (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **) = driver_function("cuLaunchKernel");
    for (int n = 0; n < MANY; n++) at += sprintf(at, ".visible .entry k%d(\n)\n{ ret; }\n", n);
    MUST(CALL(cuModuleLoadData, (void **, const void *))(&module, ptx));
    for (int n = 0; n < MANY; n++) {
        char name[16];
        sprintf(name, "k%d", n);
        MUST(CALL(cuModuleGetFunction, (void **, void *, const char *))(&functions[n], module, name));
        MUST(launch(functions[n], 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
    }
    for (int round = 0; round < ROUNDS; round++)
        for (int many = 0; many < 2; many++) {
            double start = now();
            for (int n = 0; n < LAUNCHES; n++) launch(functions[many ? n % MANY : 0], 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
            double each = (now() - start) / LAUNCHES;
            if (each < best[many]) best[many] = each;
        }
    printf("one %.1f\nmany %.1f\n", best[0], best[1]);
    return 0;
}
