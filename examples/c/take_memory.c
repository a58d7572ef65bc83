/* Allocates and frees GPU memory with each kind of allocation in the driver API, one after the other.
 *
 *   cc -O1 -o take_memory take_memory.c -ldl
 *   vramtrace run ./take_memory               (or: vramtrace run --simulate ./take_memory)
 *   vramtrace report
 *
 * Needs no CUDA headers: it declares the functions and types that it uses.
 * Exit status: 0 each kind worked or is not supported here, 1 one failed, 2 no GPU.
 */
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef uint64_t Handle;      /* of a physical allocation */
typedef struct opaque *Object; /* contexts, pools, arrays, graphs, streams */

enum { SUCCESS = 0, NOT_SUPPORTED = 801 };
enum { LOCATION_DEVICE = 1, TYPE_PINNED = 1, ACCESS_READ_WRITE = 3, FORMAT_FLOAT = 0x20, MANAGED_GLOBAL = 1 };

typedef struct { int type, id; } Location;
typedef struct {
    int type, handle_types;
    Location location;
    void *win32;
    uint8_t flags[8];
} AllocationProp; /* 32 bytes */
typedef struct { Location location; int flags; } AccessDesc; /* 12 bytes */
typedef struct {
    int type, handle_types;
    Location location;
    void *win32;
    size_t max_size;
    uint8_t reserved[56];
} PoolProps; /* 88 bytes */
typedef struct {
    PoolProps pool;
    const AccessDesc *access;
    size_t access_count, bytes;
    CUdeviceptr pointer;
} AllocNodeParams; /* 120 bytes */
typedef struct { size_t width, height; int format; unsigned channels; } ArrayDesc;
typedef struct { size_t width, height, depth; int format; unsigned channels, flags; } Array3dDesc;

static const size_t MIB = 1 << 20;
static int failures;

static void *find(void *driver, const char *name)
{
    void *function = dlsym(driver, name);
    if (!function) {
        fprintf(stderr, "the driver has no %s: it is too old\n", name);
        exit(2);
    }
    return function;
}

/* Looks a function up and calls it. The types of the arguments are those of the call. */
#define CALL(types, name, ...) (((CUresult(*) types)find(driver, name))(__VA_ARGS__))

/* One step of a way; leaves the way when it fails. */
#define STEP(types, name, ...)                                             \
    do {                                                                   \
        CUresult result_ = CALL(types, name, __VA_ARGS__);                 \
        if (result_ == NOT_SUPPORTED) {                                    \
            printf("  %s: not supported here\n", name);                    \
            return;                                                        \
        }                                                                  \
        if (result_ != SUCCESS) {                                          \
            fprintf(stderr, "  %s: error %d\n", name, result_);            \
            failures++;                                                    \
            return;                                                        \
        }                                                                  \
    } while (0)

static const AllocationProp ON_DEVICE = {TYPE_PINNED, 0, {LOCATION_DEVICE, 0}, NULL, {0}};
static const PoolProps POOL_ON_DEVICE = {TYPE_PINNED, 0, {LOCATION_DEVICE, 0}, NULL, 0, {0}};

static void linear(void *driver)
{
    CUdeviceptr p;
    STEP((CUdeviceptr *, size_t), "cuMemAlloc_v2", &p, 64 * MIB);
    STEP((CUdeviceptr), "cuMemFree_v2", p);
}

static void small(void *driver)
{
    CUdeviceptr p[100];
    for (int i = 0; i < 100; i++)
        STEP((CUdeviceptr *, size_t), "cuMemAlloc_v2", &p[i], 1000);
    for (int i = 0; i < 100; i++)
        STEP((CUdeviceptr), "cuMemFree_v2", p[i]);
}

static void pitched(void *driver)
{
    CUdeviceptr p;
    size_t pitch;
    STEP((CUdeviceptr *, size_t *, size_t, size_t, unsigned), "cuMemAllocPitch_v2", &p, &pitch,
         1000, 4096, 4);
    printf("  rows of 1000 bytes are %zu apart\n", pitch);
    STEP((CUdeviceptr), "cuMemFree_v2", p);
}

static void managed(void *driver)
{
    CUdeviceptr p;
    STEP((CUdeviceptr *, size_t, unsigned), "cuMemAllocManaged", &p, 32 * MIB, MANAGED_GLOBAL);
    STEP((CUdeviceptr), "cuMemFree_v2", p);
}

static void default_pool(void *driver)
{
    CUdeviceptr p;
    STEP((CUdeviceptr *, size_t, Object), "cuMemAllocAsync", &p, 16 * MIB, NULL);
    STEP((CUdeviceptr, Object), "cuMemFreeAsync", p, NULL);
    STEP((Object), "cuStreamSynchronize", NULL);
}

static void own_pool(void *driver)
{
    Object pool;
    CUdeviceptr p;
    STEP((Object *, const PoolProps *), "cuMemPoolCreate", &pool, &POOL_ON_DEVICE);
    STEP((CUdeviceptr *, size_t, Object, Object), "cuMemAllocFromPoolAsync", &p, 48 * MIB, pool,
         NULL);
    STEP((CUdeviceptr, Object), "cuMemFreeAsync", p, NULL);
    STEP((Object), "cuStreamSynchronize", NULL);
    STEP((Object), "cuMemPoolDestroy", pool);
}

/* Physical memory under reserved addresses: what torch's expandable segments and NCCL do. */
static void virtual_memory(void *driver)
{
    const size_t bytes = 32 * MIB;
    const AccessDesc access = {{LOCATION_DEVICE, 0}, ACCESS_READ_WRITE};
    CUdeviceptr address;
    Handle handle;
    STEP((CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long), "cuMemAddressReserve",
         &address, bytes, 0, 0, 0);
    STEP((Handle *, size_t, const AllocationProp *, unsigned long long), "cuMemCreate", &handle,
         bytes, &ON_DEVICE, 0);
    STEP((CUdeviceptr, size_t, size_t, Handle, unsigned long long), "cuMemMap", address, bytes, 0,
         handle, 0);
    STEP((CUdeviceptr, size_t, const AccessDesc *, size_t), "cuMemSetAccess", address, bytes,
         &access, 1);
    /* The mapping keeps the memory until it is unmapped. */
    STEP((Handle), "cuMemRelease", handle);
    STEP((CUdeviceptr, size_t), "cuMemUnmap", address, bytes);
    STEP((CUdeviceptr, size_t), "cuMemAddressFree", address, bytes);
}

static void array(void *driver)
{
    const ArrayDesc desc = {1024, 1024, FORMAT_FLOAT, 4};
    Object a;
    STEP((Object *, const ArrayDesc *), "cuArrayCreate_v2", &a, &desc);
    STEP((Object), "cuArrayDestroy", a);
}

static void array_3d(void *driver)
{
    const Array3dDesc desc = {128, 128, 64, FORMAT_FLOAT, 1, 0};
    Object a;
    STEP((Object *, const Array3dDesc *), "cuArray3DCreate_v2", &a, &desc);
    STEP((Object), "cuArrayDestroy", a);
}

static void mipmapped(void *driver)
{
    const Array3dDesc desc = {1024, 1024, 0, FORMAT_FLOAT, 4, 0};
    Object a;
    STEP((Object *, const Array3dDesc *, unsigned), "cuMipmappedArrayCreate", &a, &desc, 5);
    STEP((Object), "cuMipmappedArrayDestroy", a);
}

/* The memory of a graph is taken at its first launch, and kept until it is trimmed. */
static void graph(void *driver)
{
    AllocNodeParams params = {POOL_ON_DEVICE, NULL, 0, 100 * MIB, 0};
    Object graph, alloc, release, exec;
    STEP((Object *, unsigned), "cuGraphCreate", &graph, 0);
    STEP((Object *, Object, const Object *, size_t, AllocNodeParams *), "cuGraphAddMemAllocNode",
         &alloc, graph, NULL, 0, &params);
    STEP((Object *, Object, const Object *, size_t, CUdeviceptr), "cuGraphAddMemFreeNode",
         &release, graph, &alloc, 1, params.pointer);
    STEP((Object *, Object, unsigned long long), "cuGraphInstantiateWithFlags", &exec, graph, 0);
    STEP((Object, Object), "cuGraphLaunch", exec, NULL);
    STEP((Object), "cuStreamSynchronize", NULL);
    STEP((Object), "cuGraphExecDestroy", exec);
    STEP((Object), "cuGraphDestroy", graph);
    STEP((CUdevice), "cuDeviceGraphMemTrim", 0);
}

static void host(void *driver)
{
    void *pinned, *own = aligned_alloc(4096, 8 * MIB);
    STEP((void **, size_t, unsigned), "cuMemHostAlloc", &pinned, 8 * MIB, 0);
    STEP((void *), "cuMemFreeHost", pinned);
    STEP((void *, size_t, unsigned), "cuMemHostRegister_v2", own, 8 * MIB, 0);
    STEP((void *), "cuMemHostUnregister", own);
    free(own);
}

int main(void)
{
    static const struct { const char *name; void (*take)(void *); } ways[] = {
        {"linear memory", linear},           {"small blocks", small},
        {"pitched memory", pitched},         {"managed memory", managed},
        {"the default pool", default_pool},  {"a pool of its own", own_pool},
        {"virtual memory", virtual_memory},  {"an array", array},
        {"a 3D array", array_3d},            {"a mipmapped array", mipmapped},
        {"a graph", graph},                  {"pinned host memory", host},
    };
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    Object context;
    if (!driver) {
        fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
    CUresult result = CALL((unsigned), "cuInit", 0);
    if (result == SUCCESS)
        result = CALL((Object *, CUdevice), "cuDevicePrimaryCtxRetain", &context, 0);
    if (result == SUCCESS)
        result = CALL((Object), "cuCtxSetCurrent", context);
    if (result != SUCCESS) {
        fprintf(stderr, "no usable GPU: error %d\n", result);
        return 2;
    }
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        printf("%s\n", ways[i].name);
        ways[i].take(driver);
    }
    CALL((CUdevice), "cuDevicePrimaryCtxRelease_v2", 0);
    return failures ? 1 : 0;
}
