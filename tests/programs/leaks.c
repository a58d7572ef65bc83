/* leaks.c PROGRAM [LIBC10_CUDA]: small programs of which it is known whether they leak, at driver
   level, or with the stand-in of PyTorch's cache. Most do some hundred steps in which temporaries
   come and go; `leaking_line` is where those that leak do. */
#include "memory.h"

#define STEPS 300
#define KIB 1024ull

static CUcontext context;
static const char *libc10_cuda;

LINE(leaking_line)
LINE(other_line)
LINE(weights_line)

static int step(void) {
    piece p[6];
    for (int n = 0; n < 6; n++) p[n] = other_line((size_t)(n + 1) * 3 * MIB);
    pause_us(20);
    for (int n = 5; n >= 0; n--) give(p[n]);
    return 1;
}

/* After each step: n is its number. */
#define EACH_STEP for (int n = 0; n < STEPS && step(); n++)

static piece kept[1 << 14];
static int used;

static void keep(piece p) { kept[used++] = p; }

static void drop_all(void) {
    while (used) give(kept[--used]);
}

/* Sizes of a model's parameters: 12 layers of 6, over 60 MiB. */
static size_t parameter(int n) {
    static const size_t sizes[6] = {3 * KIB, 9 * KIB, 1728 * KIB, 576 * KIB, 2304 * KIB, 12 * KIB};
    return sizes[n % 6];
}

static void load(void) {
    for (int n = 0; n < 72; n++) weights_line(parameter(n));
}

LINE(site_0) LINE(site_1) LINE(site_2) LINE(site_3) LINE(site_4) LINE(site_5)
LINE(site_6) LINE(site_7) LINE(site_8) LINE(site_9) LINE(site_10) LINE(site_11)
typedef piece (*site)(size_t);
static const site sites[12] = {site_0, site_1, site_2, site_3, site_4, site_5,
                               site_6, site_7, site_8, site_9, site_10, site_11};

#include "leaks_growing.h"
#include "leaks_harmless.h"

/* Until the one who watches has seen enough. */
static void waits(void) {
    linear();
    puts("ready");
    fflush(stdout);
    pause();
}

int main(int count, char **words) {
    if (count < 2) return 2;
    if (!strcmp(words[1], "lend") && count == 4) lend(atoi(words[2]), atoi(words[3]));
    if (!strcmp(words[1], "imports")) {
        imports("/proc/self/exe");
        return 0;
    }
    context = begin(0);
    if (count > 2) libc10_cuda = words[2];
    if (libc10_cuda && strcmp(words[1], "framework")) use_blocks(libc10_cuda);
    return RUN_WAY(
        words[1],
        {"linear", linear}, {"alone", alone}, {"slow", slow}, {"under-steps", under_steps},
        {"under-epochs", under_epochs}, {"thread", thread}, {"one-of-many-sites", one_of_many_sites},
        {"many-ways", many_ways}, {"late", late}, {"bursts", bursts}, {"paused", paused},
        {"short-loop", short_loop}, {"two-sizes", two_sizes}, {"queue-that-leaks", queue_that_leaks},
        {"buffer", buffer}, {"list", list}, {"list-of-the-interpreter", list_of_the_interpreter},
        {"forgotten", forgotten}, {"async", async}, {"objects", objects}, {"nothing", nothing},
        {"cache", cache}, {"cache-then-slow", cache_then_slow}, {"lru", lru},
        {"lru-of-sizes", lru_of_sizes}, {"shapes", shapes}, {"warm-up", warm_up},
        {"saw-tooth", saw_tooth}, {"requests", requests}, {"queue", queue},
        {"singletons", singletons}, {"library-start", library_start}, {"exit", exit_in_order},
        {"fill-and-drain", fill_and_drain}, {"only-load", only_load},
        {"load-and-convert", load_and_convert}, {"one-training-step", one_training_step},
        {"few-training-steps", few_training_steps}, {"training", training}, {"item", item},
        {"pool", pool}, {"fragmentation", fragmentation}, {"framework", framework}, {"host", host},
        {"larger-and-larger", larger_and_larger}, {"larger-pieces", larger_pieces},
        {"waits", waits});
}
