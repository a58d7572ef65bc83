/* A library that asks libc10.so how to round requests up, and calls nothing else of it. */
#include "c10.h"

size_t divisions(size_t requested) { return c10_divisions(requested); }
