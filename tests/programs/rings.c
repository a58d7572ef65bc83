/* rings.c: reads a file by io_uring, with a registered file and buffer and with a thread of the kernel that
   polls, while it allocates and frees. Prints what was read, or that the system has no io_uring. */
#include "driver.h"
#include <linux/io_uring.h>
#include <sys/uio.h>

#define ROUNDS 200

static volatile int over;
static CUcontext context;

static void *allocate(void *unused) {
    (void)unused;
    MUST(CALL(cuCtxSetCurrent, (CUcontext))(context));
    while (!over) {
        driver_pairs(1, 2 * MIB);
        usleep(50);
    }
    return NULL;
}

static void read_all(unsigned flags) {
    struct io_uring_params params = {.flags = flags, .sq_thread_idle = 10};
    static char buffer[4096];
    char name[] = "ring-XXXXXX";
    int ring = syscall(SYS_io_uring_setup, 8, &params), file = mkstemp(name);
    unsigned long sum = 0;
    unlink(name);
    if (file < 0 || ftruncate(file, ROUNDS * 8)) exit(90);
    for (unsigned long k = 0; k < ROUNDS; k++)
        if (pwrite(file, &k, 8, k * 8) != 8) exit(91);
    if (ring < 0) {
        printf("flags %u: no io_uring (%d)\n", flags, errno == ENOSYS || errno == EPERM || errno == ENOMEM);
        close(file);
        return;
    }
    size_t size = params.sq_off.array + params.sq_entries * 4;
    size_t done = params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe);
    char *sq = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQ_RING);
    char *cq = mmap(NULL, done, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_CQ_RING);
    struct io_uring_sqe *entries = mmap(NULL, params.sq_entries * sizeof *entries, PROT_READ | PROT_WRITE,
                                        MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQES);
    if (sq == MAP_FAILED || cq == MAP_FAILED || (void *)entries == MAP_FAILED) exit(92);
    struct iovec whole = {buffer, sizeof buffer};
    if (syscall(SYS_io_uring_register, ring, IORING_REGISTER_FILES, &file, 1)) exit(93);
    if (syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &whole, 1)) exit(94);
    close(file); /* the ring has it */
    unsigned mask = *(unsigned *)(sq + params.sq_off.ring_mask), done_mask = *(unsigned *)(cq + params.cq_off.ring_mask);
    for (unsigned long k = 0; k < ROUNDS; k++) {
        unsigned *tail = (unsigned *)(sq + params.sq_off.tail), *head = (unsigned *)(cq + params.cq_off.head);
        unsigned index = *tail & mask, wakes = IORING_ENTER_GETEVENTS;
        entries[index] = (struct io_uring_sqe){.opcode = IORING_OP_READ_FIXED, .flags = IOSQE_FIXED_FILE, .fd = 0,
                                               .addr = (uintptr_t)buffer, .len = 8, .off = k * 8, .user_data = k};
        ((unsigned *)(sq + params.sq_off.array))[index] = index;
        __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
        if (flags & IORING_SETUP_SQPOLL) wakes |= IORING_ENTER_SQ_WAKEUP;
        if (syscall(SYS_io_uring_enter, ring, flags & IORING_SETUP_SQPOLL ? 0 : 1, 1, wakes, NULL, 0) < 0) exit(95);
        while (*head == __atomic_load_n((unsigned *)(cq + params.cq_off.tail), __ATOMIC_ACQUIRE)) sched_yield();
        struct io_uring_cqe *entry = (struct io_uring_cqe *)(cq + params.cq_off.cqes) + (*head & done_mask);
        if (entry->res != 8 || entry->user_data != k) exit(96);
        __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
        unsigned long value;
        memcpy(&value, buffer, 8);
        sum += value;
    }
    close(ring);
    printf("flags %u: sum %lu\n", flags, sum);
}

int main(void) {
    pthread_t thread;
    context = begin(0);
    pthread_create(&thread, NULL, allocate, NULL);
    read_all(0);
    read_all(IORING_SETUP_SQPOLL);
    over = 1;
    pthread_join(thread, NULL);
    return 0;
}
