/* A library of which many are made, of equal size, with other frames and other names: SALT chooses. */
#define FRAMES_LIBRARY
#include "frames.h"
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define ROOM (32 + 16 * (SALT % 13))

/* The same code but for the size of its frame. */
__attribute__((noinline)) void JOIN(inner_, SALT)(frames_take take, const char *label) {
    volatile char room[ROOM];
    room[0] = 1;
    take(label);
    STAY;
}

void enter(frames_take take, const char *label) {
    volatile char room[ROOM + 48];
    room[0] = 1;
    JOIN(inner_, SALT)(take, label);
    STAY;
}
