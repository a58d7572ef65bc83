/* 8 threads, 20 forks each; every child looks names up, allocates, and leaves. */
#include "../../../tests/programs/driver.h"
static int look(int times) {
    int bad = 0;
    for (int i = 0; i < times; i++) {
        bad += dlsym(RTLD_DEFAULT, "malloc") == NULL;
        bad += dlsym(RTLD_DEFAULT, "cuInit") != NULL;
        bad += dlsym(RTLD_NEXT, "nvmlInit_v2") != NULL;
    }
    return bad;
}
static void *work(void *failed) {
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        if (child == 0) {
            free(malloc(100));
            _exit(look(200) != 0);
        }
        look(200);
        int status = -1;
        waitpid(child, &status, 0);
        if (status != 0) __sync_fetch_and_add((int *)failed, 1);
    }
    return NULL;
}
int main(void) {
    pthread_t threads[8];
    int failed = 0;
    for (int i = 0; i < 8; i++) pthread_create(&threads[i], NULL, work, &failed);
    for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
    printf("failed %d\n", failed);
    return failed != 0;
}
