// unwinding MODE: leaves a driver call by another way than its return, and goes on.
//   alloc, sync   a thread that waits in the driver is cancelled
//   exit          a thread that waits in the driver ends itself from a signal handler
//   throw         an exception comes out of the driver
//   pending       a thread with a cancellation pending makes its first calls
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <csignal>
#include <pthread.h>
#include <sched.h>

extern "C" {
int cuInit(unsigned);
int cuMemAlloc_v2(uint64_t *, size_t);
int cuMemFree_v2(uint64_t);
int cuStreamSynchronize(void *);
extern int waiting;
extern void (*thrower)();
}

static const char *mode;
static int unwound;
static int results[3] = {-1, -1, 0};

struct Frame {
    ~Frame() { unwound++; }
};

static void *wait_in_driver(void *) {
    Frame frame;
    uint64_t address;
    if (!strcmp(mode, "sync")) cuStreamSynchronize(nullptr);
    else cuMemAlloc_v2(&address, 1);
    return nullptr;
}

static void *pending(void *) {
    Frame frame;
    uint64_t address;
    pthread_cancel(pthread_self());
    // Printing would be a place to be cancelled at.
    results[0] = cuInit(0);
    results[1] = cuMemAlloc_v2(&address, 4096);
    pthread_testcancel();
    results[2] = 1;
    return nullptr;
}

static void leave(int) { pthread_exit(nullptr); }

int main(int, char **words) {
    mode = words[1];
    uint64_t address = 0;
    setvbuf(stdout, nullptr, _IONBF, 0);
    if (!strcmp(mode, "throw")) {
        thrower = [] { throw 42; };
        try {
            cuMemAlloc_v2(&address, 2);
        } catch (int caught) {
            printf("caught %d\n", caught);
        }
    } else {
        pthread_t thread;
        void *how = nullptr;
        bool self = !strcmp(mode, "pending");
        signal(SIGUSR2, leave);
        pthread_create(&thread, nullptr, self ? pending : wait_in_driver, nullptr);
        if (!self) {
            while (!__atomic_load_n(&waiting, __ATOMIC_SEQ_CST)) sched_yield();
            if (!strcmp(mode, "exit")) pthread_kill(thread, SIGUSR2);
            else pthread_cancel(thread);
        }
        pthread_join(thread, &how);
        printf("cancelled %d\n", how == PTHREAD_CANCELED);
        printf("unwound %d\n", unwound);
        if (self) printf("init %d alloc %d beyond %d\n", results[0], results[1], results[2]);
    }
    // This thread's hooks are as before.
    for (int n = 0; n < 3; n++) {
        int taken = cuMemAlloc_v2(&address, 4096);
        printf("alloc %d free %d\n", taken, cuMemFree_v2(address));
    }
}
