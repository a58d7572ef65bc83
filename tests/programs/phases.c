/* phases.c: memory in phases. With -DREAL_NVTX (and the include path of NVTX 3) the real headers. */
#include "driver.h"
#ifdef REAL_NVTX
#include <nvtx3/nvToolsExt.h>
#else
#include "nvtx_min.h"
#endif

static void *other(void *context) {
    MUST(CALL(cuCtxSetCurrent, (CUcontext))(context));
    nvtxRangePushA("other thread");
    driver_take(32 * MIB);
    nvtxRangePop();
    return NULL;
}

int main(void) {
    nvtxEventAttributes_t event = {0};
    pthread_t thread;
    /* Before the process uses the GPU. */
    nvtxRangePushA("gone before");
    nvtxRangePop();
    nvtxRangePushA("epoch");
    nvtxRangeId_t early = nvtxRangeStartA("early");
    CUcontext context = begin(0);
    CUdeviceptr weights = driver_take(64 * MIB);
    nvtxRangeEnd(early);

    nvtxDomainHandle_t domain = nvtxDomainCreateA("NCCL");
    event.version = NVTX_VERSION;
    event.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    for (int step = 0; step < 10; step++) {
        nvtxRangePushW(L"forward \u00e9");
        CUdeviceptr activation = driver_take(20 * MIB);
        driver_take(2 * MIB);
        nvtxRangePop();
        nvtxMarkA("a moment");
        event.messageType = NVTX_MESSAGE_TYPE_ASCII;
        event.message.ascii = "backward";
        nvtxRangePushEx(&event);
        CUdeviceptr gradient = driver_take(40 * MIB);
        event.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
        event.message.registered = nvtxDomainRegisterStringA(domain, "AllReduce");
        nvtxDomainRangePushEx(domain, &event);
        driver_give(driver_take(8 * MIB));
        nvtxDomainRangePop(domain);
        driver_give(gradient);
        driver_give(activation);
        errno = 77;
        nvtxRangePop();
        if (errno != 77) return 91;
    }
    nvtxRangePop();
    nvtxRangePop(); /* one too many */

    nvtxRangeId_t range = nvtxRangeStartA("everyone's");
    pthread_create(&thread, NULL, other, context);
    pthread_join(thread, NULL);
    nvtxRangeEnd(range);
    driver_give(weights);
    nvtxRangePushA("never ended");
    driver_take(4 * MIB);
    puts("done");
    return 0;
}
