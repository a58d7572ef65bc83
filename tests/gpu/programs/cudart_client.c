/* Allocates memory with each allocation function of the CUDA runtime; built with the static and the shared cudart. */
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>

#define OK(call)                                                             \
    do {                                                                     \
        cudaError_t e_ = (call);                                             \
        if (e_ != cudaSuccess) {                                             \
            printf("RESULT %s failed: %s\n", #call, cudaGetErrorName(e_));   \
            exit(1);                                                         \
        }                                                                    \
    } while (0)

int main(void) {
    void *device, *pitched, *managed, *host, *async;
    size_t pitch;
    cudaArray_t array;
    cudaStream_t stream;
    struct cudaChannelFormatDesc format = cudaCreateChannelDesc(32, 0, 0, 0, cudaChannelFormatKindFloat);
    unsigned char back[4] = {0};

    OK(cudaMalloc(&device, 100u << 20));
    OK(cudaMallocPitch(&pitched, &pitch, 1000, 1000));
    OK(cudaMallocManaged(&managed, 8u << 20, cudaMemAttachGlobal));
    OK(cudaMallocArray(&array, &format, 1024, 1024, 0));
    OK(cudaMallocHost(&host, 4u << 20));
    OK(cudaStreamCreate(&stream));
    OK(cudaMallocAsync(&async, 50u << 20, stream));
    OK(cudaMemsetAsync(async, 7, 50u << 20, stream));
    OK(cudaStreamSynchronize(stream));
    OK(cudaMemcpy(back, async, 4, cudaMemcpyDeviceToHost));
    int after_bad_free = cudaFree((void *)0xdead000);
    (void)cudaGetLastError();
    printf("RESULT pitch=%zu byte=%d bad_free=%d\n", pitch, back[3], after_bad_free);
    printf("HOLD\n");
    fflush(stdout);
    (void)getchar();
    OK(cudaFreeAsync(async, stream));
    OK(cudaStreamSynchronize(stream));
    OK(cudaFree(device));
    OK(cudaFree(pitched));
    OK(cudaFree(managed));
    OK(cudaFreeArray(array));
    OK(cudaFreeHost(host));
    return 0;
}
