/* odd_process.c name|thread: interactive.c in a process that looks odd in /proc.

     name      its name is no UTF-8, and has brackets and spaces
     thread    its main thread has ended: /proc shows a zombie, with threads */
#define main interactive
#include "interactive.c"
#undef main

#include <pthread.h>
#include <sys/prctl.h>
#include <unistd.h>

static void *run(void *argument) {
    if (argument) {
        char path[64], state[512] = "";
        snprintf(path, sizeof path, "/proc/%d/stat", (int)getpid());
        do {
            FILE *file = fopen(path, "r");
            if (file) {
                if (!fgets(state, sizeof state, file)) state[0] = 0;
                fclose(file);
            }
        } while (!strstr(state, ") Z "));
    }
    exit(interactive(1, NULL));
}

int main(int arguments, char **argument) {
    if (arguments > 1 && strcmp(argument[1], "name") == 0) {
        prctl(PR_SET_NAME, "\xff\xfe) Z (\xc3");
        run(NULL);
    }
    pthread_t thread;
    pthread_create(&thread, NULL, run, "thread");
    pthread_exit(NULL);
}
