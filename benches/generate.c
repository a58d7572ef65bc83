/* generate.c: a module for generate.py, a tensor whose memory is a block of the stand-in of PyTorch's
   cache. An operation does what one of PyTorch's does to the processor: some code and data of its own
   push ours out of the nearest caches. Blocks come back in the order of a cache that takes the best fit
   of a size. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdlib.h>
#include <time.h>
#include <x86intrin.h>

void cache_block(int device, void *at, int64_t size);
void cache_reserve(int device, int64_t bytes);

#define SIZES 64
#define MOST 4096
static struct {
    char *free[MOST];
    int count;
} bins[SIZES];
static char *segment, *end;
static unsigned long long blocks;

/* How long a call took, in ticks: one of each 4 ticks up to 4096. */
static unsigned took[2][1024];
static int timing;

static void report_block(void *at, int64_t size) {
    if (!timing) {
        cache_block(0, at, size);
        return;
    }
    unsigned core;
    _mm_lfence();
    unsigned long long from = __rdtsc();
    cache_block(0, at, size);
    unsigned long long ticks = __rdtscp(&core) - from;
    took[size < 0][ticks / 4 < 1023 ? ticks / 4 : 1023]++;
}

static char *take(int64_t size) {
    int bin = size / 512 % SIZES;
    char *at;
    if (bins[bin].count)
        at = bins[bin].free[--bins[bin].count];
    else {
        at = segment;
        segment += (size + 511) / 512 * 512;
        if (segment > end) abort();
    }
    report_block(at, size);
    blocks++;
    return at;
}

static void give(char *at, int64_t size) {
    int bin = size / 512 % SIZES;
    report_block(at, -size);
    if (bins[bin].count < MOST) bins[bin].free[bins[bin].count++] = at;
}

/* Code and data that belong to nobody. */
#define CODE 256
static int (*code[CODE])(int);
static char *data;
static size_t code_bytes, data_bytes, data_at;
static volatile int sink;

#define ONE(n)                                                            \
    static int __attribute__((noinline, aligned(512))) code_##n(int x) {  \
        x += n;                                                           \
        if (x & 1) x ^= n * 77; else x -= n;                              \
        __asm__ volatile(".fill 100, 3, 0x001f0f");                       \
        return x * 3;                                                     \
    }
#define FOUR(n) ONE(n##0) ONE(n##1) ONE(n##2) ONE(n##3)
#define SIXTEEN(n) FOUR(n##0) FOUR(n##1) FOUR(n##2) FOUR(n##3)
#define ALL(n) SIXTEEN(n##0) SIXTEEN(n##1) SIXTEEN(n##2) SIXTEEN(n##3)
ALL(10) ALL(11) ALL(12) ALL(13)
#define NAME(n) code_##n,
#define FOURNAMES(n) NAME(n##0) NAME(n##1) NAME(n##2) NAME(n##3)
#define SIXTEENNAMES(n) FOURNAMES(n##0) FOURNAMES(n##1) FOURNAMES(n##2) FOURNAMES(n##3)
#define ALLNAMES(n) SIXTEENNAMES(n##0) SIXTEENNAMES(n##1) SIXTEENNAMES(n##2) SIXTEENNAMES(n##3)
static int (*const names[CODE])(int) = {ALLNAMES(10) ALLNAMES(11) ALLNAMES(12) ALLNAMES(13)};

static void work(void) {
    int x = sink;
    for (size_t n = 0; n < code_bytes / 512; n++) x = names[(n * 37) % CODE](x);
    for (size_t n = 0; n < data_bytes; n += 64) {
        x += data[data_at];
        data[data_at] = x;
        data_at = (data_at + 64) % (1 << 20);
    }
    sink = x;
}

typedef struct {
    PyObject_HEAD
    char *at;
    int64_t size;
} Tensor;

static void tensor_end(Tensor *self) {
    give(self->at, self->size);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyTypeObject type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "generate.Tensor",
    .tp_basicsize = sizeof(Tensor),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = (destructor)tensor_end,
};

/* op(size) -> Tensor */
static PyObject *op(PyObject *module, PyObject *argument) {
    (void)module;
    int64_t size = PyLong_AsLongLong(argument);
    if (size <= 0) return NULL;
    Tensor *tensor = PyObject_New(Tensor, &type);
    if (!tensor) return NULL;
    tensor->size = size;
    /* As PyTorch's bindings do; blocks are given back with the lock held. */
    Py_BEGIN_ALLOW_THREADS
    work();
    tensor->at = take(size);
    work();
    Py_END_ALLOW_THREADS
    return (PyObject *)tensor;
}

/* start(address, bytes, bytes of code, bytes of data) */
static PyObject *start(PyObject *module, PyObject *arguments) {
    (void)module;
    unsigned long long at, bytes;
    unsigned long codes, datas;
    if (!PyArg_ParseTuple(arguments, "KKkk", &at, &bytes, &codes, &datas)) return NULL;
    segment = (char *)at;
    end = segment + bytes;
    code_bytes = codes;
    data_bytes = datas;
    data = calloc(1 << 20, 1);
    cache_reserve(0, bytes);
    Py_RETURN_NONE;
}

static unsigned middle(unsigned *of) {
    unsigned long long all = 0, below = 0;
    for (int n = 0; n < 1024; n++) all += of[n];
    for (int n = 0; n < 1024; n++)
        if ((below += of[n]) * 2 >= all) return 4 * n;
    return 0;
}

/* clock(on): begins to time the calls, or ends it: (median ticks of a block made, of one freed) */
static PyObject *clock_(PyObject *module, PyObject *argument) {
    (void)module;
    timing = PyObject_IsTrue(argument);
    PyObject *found = Py_BuildValue("(II)", middle(took[0]), middle(took[1]));
    if (timing) memset(took, 0, sizeof took);
    return found;
}

/* -> processor time of this thread, ns; blocks made so far */
static PyObject *now(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return Py_BuildValue("(dK)", t.tv_sec * 1e9 + t.tv_nsec, blocks);
}

static PyMethodDef methods[] = {
    {"op", op, METH_O, NULL},
    {"start", start, METH_VARARGS, NULL},
    {"clock", clock_, METH_O, NULL},
    {"now", now, METH_NOARGS, NULL},
    {0},
};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, .m_name = "generate_blocks", .m_size = -1, .m_methods = methods};

PyMODINIT_FUNC PyInit_generate_blocks(void) {
    if (PyType_Ready(&type) < 0) return NULL;
    return PyModule_Create(&module);
}
