/* Reports the memory of PyTorch's CPU tensors as blocks of a GPU, and runs a function in a thread that has no Python
   frames, as PyTorch runs backward passes on a GPU. */
#include <atomic>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <mutex>
#include <thread>

static void (*block)(int, void *, int64_t);
static std::atomic<uint64_t> next;

/* Before each allocation: what to free, and the block's address and size on the GPU. */
struct Head {
    void *memory;
    uint64_t at;
    int64_t size;
};
constexpr size_t HEAD = 64;

static void release(void *data) {
    Head *head = (Head *)((char *)data - HEAD);
    if (head->size > 0) block(0, (void *)head->at, -head->size);
    free(head->memory);
}

struct Blocks : c10::Allocator {
    c10::DataPtr allocate(size_t bytes) override {
        void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64 + 2 * HEAD);
        Head *head = (Head *)memory;
        *head = {memory, 0, 0};
        if (bytes > 0) {
            head->size = (bytes + 511) / 512 * 512;
            head->at = next.fetch_add(head->size);
            block(0, (void *)head->at, head->size);
        }
        void *data = (char *)memory + HEAD;
        return {data, data, &release, c10::Device(c10::DeviceType::CPU)};
    }
    c10::DeleterFnPtr raw_deleter() const override { return &release; }
    void copy_data(void *to, const void *from, size_t bytes) const override { memcpy(to, from, bytes); }
};
static Blocks blocks;

extern "C" int blocks_install(const char *library, uint64_t base, int64_t bytes) {
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!handle) return 1;
    block = (decltype(block))dlsym(handle, "cache_block");
    ((void (*)(int, int64_t))dlsym(handle, "cache_reserve"))(0, bytes);
    next = base;
    c10::SetCPUAllocator(&blocks, 100);
    return 0;
}

extern "C" {
typedef struct object PyObject;
int PyGILState_Ensure(void);
PyObject *PyObject_Call(PyObject *, PyObject *, PyObject *);
void *PyEval_SaveThread(void);
void PyEval_RestoreThread(void *);
void PyErr_Fetch(PyObject **, PyObject **, PyObject **);
void PyErr_Restore(PyObject *, PyObject *, PyObject *);
}

/* Never destroyed: the thread waits on it when the process ends. */
struct Call {
    std::mutex lock;
    std::condition_variable changed;
    enum { NONE, WANTED, DONE } state = NONE;
    PyObject *function, *arguments, *names, *result, *error[3];
};
static Call &call = *new Call;

static void engine() {
    PyGILState_Ensure();
    void *python = PyEval_SaveThread();
    for (;;) {
        std::unique_lock<std::mutex> locked(call.lock);
        call.changed.wait(locked, [] { return call.state == Call::WANTED; });
        locked.unlock();
        PyEval_RestoreThread(python);
        call.result = PyObject_Call(call.function, call.arguments, call.names);
        if (!call.result) PyErr_Fetch(&call.error[0], &call.error[1], &call.error[2]);
        python = PyEval_SaveThread();
        locked.lock();
        call.state = Call::DONE;
        call.changed.notify_all();
    }
}

extern "C" PyObject *blocks_call(PyObject *function, PyObject *arguments, PyObject *names) {
    static std::thread *thread = new std::thread(engine);
    void *python = PyEval_SaveThread();
    std::unique_lock<std::mutex> locked(call.lock);
    call.function = function, call.arguments = arguments, call.names = names;
    call.state = Call::WANTED;
    call.changed.notify_all();
    call.changed.wait(locked, [] { return call.state == Call::DONE; });
    call.state = Call::NONE;
    locked.unlock();
    PyEval_RestoreThread(python);
    (void)thread;
    if (!call.result) PyErr_Restore(call.error[0], call.error[1], call.error[2]);
    return call.result;
}
