/* The few driver declarations that the test programs use, written for them. Link with nothing:
   programs get the driver by the lookup that they test (see driver.h), or link -l:libcuda.so.1. */
#ifndef CUDA_MIN_H
#define CUDA_MIN_H
#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUhandle;
typedef void *CUcontext, *CUstream, *CUmemoryPool, *CUarray, *CUmipmappedArray;
typedef void *CUgraph, *CUgraphExec, *CUgraphNode;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_NOT_FOUND = 500
};

typedef struct {
    int type, id;
} CUmemLocation;

typedef struct {
    int type;
    int handle_types;
    CUmemLocation location;
    void *win32;
    unsigned char flags[8];
} CUmemAllocationProp; /* 32 bytes */

typedef struct {
    CUmemLocation location;
    int flags;
} CUmemAccessDesc;

typedef struct {
    int alloc_type;
    int handle_types;
    CUmemLocation location;
    void *win32;
    size_t max_size;
    unsigned char reserved[56];
} CUmemPoolProps; /* 88 bytes */

typedef struct {
    size_t width, height;
    int format;
    unsigned channels;
} CUarrayDesc; /* 24 bytes */

typedef struct {
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
} CUarray3dDesc; /* 40 bytes */

typedef struct {
    CUmemPoolProps pool;
    const CUmemAccessDesc *access;
    size_t access_count;
    size_t bytes;
    CUdeviceptr address;
} CUmemAllocNode; /* 120 bytes */

typedef struct {
    char bytes[64];
} CUipcMemHandle;

#ifdef __cplusplus
#define _Static_assert static_assert
#endif
_Static_assert(sizeof(CUmemAllocationProp) == 32, "CUmemAllocationProp");
_Static_assert(sizeof(CUmemPoolProps) == 88, "CUmemPoolProps");
_Static_assert(sizeof(CUarrayDesc) == 24, "CUDA_ARRAY_DESCRIPTOR");
_Static_assert(sizeof(CUarray3dDesc) == 40, "CUDA_ARRAY3D_DESCRIPTOR");
_Static_assert(sizeof(CUmemAllocNode) == 120, "CUDA_MEM_ALLOC_NODE_PARAMS");

#define MIB (1024ull * 1024ull)

/* Initializers: memory of device 0. */
#define OBJECT_ON_DEVICE {.type = 1, .location = {1, 0}}
#define POOL_ON_DEVICE {.alloc_type = 1, .location = {1, 0}}
#endif
