// engine [-c CONTEXT]: takes memory in the steps and through the functions in which llama.cpp does, for the page about it:
// the model, the cache of keys and values for CONTEXT tokens (default 4096), compute buffers, scratch memory, graphs.
// It computes nothing, so it needs no GPU (`vramtrace run --simulate`), and links nothing but the C library.
//
//   c++ -g -o engine engine.cpp

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <vector>

using Pointer = unsigned long long;
const size_t MiB = 1 << 20;

// The driver's functions that ggml calls, most of them through the CUDA runtime.
static void *driver(const char *name) {
    static void *library = dlopen("libcuda.so.1", RTLD_NOW);
    void *function = library ? dlsym(library, name) : nullptr;
    if (!function) {
        fprintf(stderr, "engine: the driver has no %s\n", name);
        exit(1);
    }
    return function;
}

#define DRIVER(name, ...) reinterpret_cast<int (*)(__VA_ARGS__)>(driver(#name))

static void check(int result, const char *what) {
    if (result != 0) {
        fprintf(stderr, "engine: %s: CUDA error %d\n", what, result);
        exit(1);
    }
}

// --- ggml: buffers ---

static int ggml_cuda_device_malloc(Pointer *pointer, size_t size) {
    return DRIVER(cuMemAlloc_v2, Pointer *, size_t)(pointer, size);
}

struct Buffer {
    Pointer pointer = 0;
    ~Buffer() { DRIVER(cuMemFree_v2, Pointer)(pointer); }
};

static Buffer *ggml_backend_cuda_buffer_type_alloc_buffer(size_t size) {
    Pointer pointer;
    if (ggml_cuda_device_malloc(&pointer, size) != 0) {
        fprintf(stderr, "engine: allocating %.2f MiB on device 0: out of memory\n", size / double(MiB));
        return nullptr;
    }
    Buffer *buffer = new Buffer;
    buffer->pointer = pointer;
    return buffer;
}

Buffer *ggml_backend_buft_alloc_buffer(size_t size) {
    return ggml_backend_cuda_buffer_type_alloc_buffer(size);
}

Buffer *ggml_backend_alloc_ctx_tensors_from_buft(size_t size) {
    return ggml_backend_buft_alloc_buffer(size);
}

static Buffer *ggml_vbuffer_alloc(size_t size) { return ggml_backend_buft_alloc_buffer(size); }

static Buffer *ggml_gallocr_reserve_n_impl(Buffer *old, size_t size) {
    delete old;
    return ggml_vbuffer_alloc(size);
}

Buffer *ggml_backend_sched_reserve(Buffer *old, size_t size) {
    return ggml_gallocr_reserve_n_impl(old, size);
}

// --- ggml: scratch memory, a reservation that only grows ---

struct Location {
    int type, id;
};

struct Properties {
    int type, handle_types;
    Location location;
    void *win32;
    unsigned char flags[8];
};

struct Access {
    Location location;
    int flags;
};

struct ggml_cuda_pool_vmm {
    Pointer address = 0;
    size_t mapped = 0, used = 0;
    std::vector<Pointer> handles;

    ggml_cuda_pool_vmm() {
        check(DRIVER(cuMemAddressReserve, Pointer *, size_t, size_t, Pointer, unsigned long long)(&address, size_t(1) << 35, 0, 0, 0),
              "cuMemAddressReserve");
    }

    void alloc(size_t size) {
        if (used + size > mapped) {
            size_t more = (used + size - mapped + 2 * MiB - 1) / (2 * MiB) * (2 * MiB);
            Properties properties{1, 0, {1, 0}, nullptr, {}};
            Access access{{1, 0}, 3};
            Pointer handle;
            check(DRIVER(cuMemCreate, Pointer *, size_t, const Properties *, unsigned long long)(&handle, more, &properties, 0), "cuMemCreate");
            check(DRIVER(cuMemMap, Pointer, size_t, size_t, Pointer, unsigned long long)(address + mapped, more, 0, handle, 0), "cuMemMap");
            check(DRIVER(cuMemSetAccess, Pointer, size_t, const Access *, size_t)(address + mapped, more, &access, 1), "cuMemSetAccess");
            check(DRIVER(cuMemRelease, Pointer)(handle), "cuMemRelease");
            mapped += more;
        }
        used += size;
    }

    void free(size_t size) { used -= size; }

    ~ggml_cuda_pool_vmm() {
        DRIVER(cuMemUnmap, Pointer, size_t)(address, mapped);
        DRIVER(cuMemAddressFree, Pointer, size_t)(address, size_t(1) << 35);
    }
};

// --- ggml: an operation, and the graph of a batch ---

static void ggml_cuda_op_mul_mat_cublas(ggml_cuda_pool_vmm &pool, size_t tokens) {
    size_t size = tokens * 5632 * 2 * 2;
    pool.alloc(size);
    pool.free(size);
}

static void *ggml_cuda_graph_update_executable(int nodes) {
    void *graph, *node, *executable;
    check(DRIVER(cuGraphCreate, void **, unsigned)(&graph, 0), "cuGraphCreate");
    for (int n = 0; n < nodes; n++)
        check(DRIVER(cuGraphAddEmptyNode, void **, void *, void **, size_t)(&node, graph, nullptr, 0), "cuGraphAddEmptyNode");
    check(DRIVER(cuGraphInstantiateWithFlags, void **, void *, uint64_t)(&executable, graph, 0), "cuGraphInstantiateWithFlags");
    check(DRIVER(cuGraphDestroy, void *)(graph), "cuGraphDestroy");
    return executable;
}

// --- llama.cpp ---

struct llama_model {
    std::vector<Buffer *> buffers;

    bool load_tensors() {
        for (size_t size : {1300 * MiB, 1274 * MiB}) {
            Buffer *buffer = ggml_backend_alloc_ctx_tensors_from_buft(size);
            if (!buffer)
                return false;
            buffers.push_back(buffer);
        }
        return true;
    }

    ~llama_model() {
        for (Buffer *buffer : buffers)
            delete buffer;
    }
};

struct llama_kv_cache {
    Buffer *buffer;

    // Keys and values of 24 layers of 2,048 in two bytes each.
    explicit llama_kv_cache(size_t context) {
        buffer = ggml_backend_alloc_ctx_tensors_from_buft(context * 24 * 2 * 2048 * 2);
    }

    ~llama_kv_cache() { delete buffer; }
};

struct llama_context {
    llama_kv_cache cache;
    Buffer *compute = nullptr;
    ggml_cuda_pool_vmm pool;
    void *graph = nullptr;

    explicit llama_context(size_t context) : cache(context) {
        if (cache.buffer)
            graph_reserve(context);
    }

    void graph_reserve(size_t context) {
        compute = ggml_backend_sched_reserve(compute, 64 * MiB);
        compute = ggml_backend_sched_reserve(compute, 160 * MiB + context * 32 * 1024);
    }

    void process_ubatch(size_t tokens) {
        ggml_cuda_op_mul_mat_cublas(pool, tokens);
        if (!graph)
            graph = ggml_cuda_graph_update_executable(2000);
        check(DRIVER(cuGraphLaunch, void *, void *)(graph, nullptr), "cuGraphLaunch");
    }

    ~llama_context() {
        if (graph)
            DRIVER(cuGraphExecDestroy, void *)(graph);
        delete compute;
    }
};

int main(int count, char **arguments) {
    size_t context = count > 2 ? strtoul(arguments[2], nullptr, 10) : 4096;
    void *current;
    check(DRIVER(cuInit, unsigned)(0), "cuInit");
    check(DRIVER(cuDevicePrimaryCtxRetain, void **, int)(&current, 0), "cuDevicePrimaryCtxRetain");
    check(DRIVER(cuCtxSetCurrent, void *)(current), "cuCtxSetCurrent");
    llama_model model;
    if (!model.load_tensors())
        return 1;
    llama_context session(context);
    if (!session.compute)
        return 1;
    session.process_ubatch(512);
    for (int token = 0; token < 16; token++)
        session.process_ubatch(1);
    printf("16 tokens\n");
}
