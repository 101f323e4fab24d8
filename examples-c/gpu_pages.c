/*
 * Moves pages between the memories of two GPUs (or of one, if there is only one): a stream fills the pages and sets a
 * watch; the transfer then starts; another stream continues when it has ended. The CPU waits for neither.
 *
 *     cc gpu_pages.c -lweft -lcuda
 */
#include <stdio.h>
#include <stdlib.h>
#include <weft.h>
#if __has_include(<cuda.h>)
#include <cuda.h>
#else /* what is used of it */
typedef int CUresult, CUdevice;
typedef unsigned long long CUdeviceptr;
typedef void *CUcontext, *CUstream;
CUresult cuInit(unsigned), cuDeviceGetCount(int *), cuDeviceGet(CUdevice *, int);
CUresult cuDevicePrimaryCtxRetain(CUcontext *, CUdevice), cuCtxSetCurrent(CUcontext);
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t), cuStreamCreate(CUstream *, unsigned);
CUresult cuMemsetD32Async(CUdeviceptr, unsigned, size_t, CUstream), cuStreamSynchronize(CUstream);
CUresult cuStreamWriteValue64_v2(CUstream, CUdeviceptr, unsigned long long, unsigned);
CUresult cuStreamWaitValue64_v2(CUstream, CUdeviceptr, unsigned long long, unsigned);
CUresult cuMemcpyDtoHAsync_v2(void *, CUdeviceptr, size_t, CUstream);
#define cuMemAlloc cuMemAlloc_v2
#define cuStreamWriteValue64 cuStreamWriteValue64_v2
#define cuStreamWaitValue64 cuStreamWaitValue64_v2
#define cuMemcpyDtoHAsync cuMemcpyDtoHAsync_v2
#endif

#define PAGE (64 * 1024)
#define PAGES 256
#define CHECK(call) check((call) < 0, #call, weft_last_error())
#define CUDA(call) check((call) != 0, #call, "CUDA")

static void check(int failed, const char *what, const char *why) {
    if (failed) fprintf(stderr, "%s: %s\n", what, why), exit(1);
}

/* A device's memory and one of its streams, registered with an endpoint. */
static CUdeviceptr on_device(int ordinal, weft_endpoint *endpoint, CUstream *stream, weft_memory **memory) {
    CUdevice device;
    CUcontext context;
    CUdeviceptr pages;
    CUDA(cuDeviceGet(&device, ordinal)), CUDA(cuDevicePrimaryCtxRetain(&context, device));
    CUDA(cuCtxSetCurrent(context)), CUDA(cuMemAlloc(&pages, PAGES * PAGE)), CUDA(cuStreamCreate(stream, 1));
    weft_memory_range range = {(void *)(uintptr_t)pages, PAGES * PAGE};
    weft_memory_args args = WEFT_MEMORY_ARGS_INIT;
    args.kind = WEFT_MEMORY_CUDA;
    CHECK(weft_memory_register(endpoint, &range, 1, &args, memory));
    return pages;
}

static void await_write(weft_endpoint *endpoint) {
    weft_completion done = {0};
    while (done.kind != WEFT_COMPLETION_WRITE) /* PEER_UP comes first */
        CHECK(weft_queue_poll(weft_endpoint_queue(endpoint), &done, 1, UINT64_C(10000000000)));
    check(done.status != WEFT_OK, "the write", weft_status_text(done.status));
}

int main(void) {
    int devices;
    CUDA(cuInit(0)), CUDA(cuDeviceGetCount(&devices));
    check(devices == 0, "no GPU", "here");
    weft_endpoint *here, *there;
    CHECK(weft_endpoint_create(NULL, &here)), CHECK(weft_endpoint_create(NULL, &there));
    CUstream fills, reads;
    weft_memory *mine, *theirs;
    CUdeviceptr source = on_device(0, here, &fills, &mine);
    CUdeviceptr target = on_device(devices - 1, there, &reads, &theirs);

    unsigned char address[4096], descriptor[8192]; /* these two travel by any means */
    size_t address_len, descriptor_len;
    CHECK(weft_endpoint_address(there, address, sizeof address, &address_len));
    CHECK(weft_memory_export(theirs, descriptor, sizeof descriptor, &descriptor_len));
    weft_peer peer;
    weft_remote_memory *remote;
    CHECK(weft_peer_connect(here, address, address_len, NULL, &peer));
    CHECK(weft_remote_memory_import(here, peer, descriptor, descriptor_len, &remote));

    weft_watch *filled, *moved;
    uint64_t *filled_word, *moved_word;
    CHECK(weft_watch_create(here, &filled, &filled_word)), CHECK(weft_watch_create(here, &moved, &moved_word));

    uint32_t from[PAGES], to[PAGES];
    for (uint32_t i = 0; i < PAGES; i++) from[i] = i, to[i] = PAGES - 1 - i;
    weft_pages pages = WEFT_PAGES_INIT;
    pages.local.pages = from, pages.remote.pages = to, pages.page_len = PAGE, pages.page_count = PAGES;
    /* Once before any stream waits: CUDA allocates what copies need (streams, say) only while none does. */
    CHECK(weft_write_pages(here, mine, remote, &pages, NULL, NULL)), await_write(here);
    weft_op_options options = WEFT_OP_OPTIONS_INIT;
    options.start_watch = filled, options.start_value = 1; /* not before the pages are filled */
    options.done_watch = moved, options.done_value = 1;
    CHECK(weft_write_pages(here, mine, remote, &pages, &options, NULL));

    /* The streams, which do not block the CPU. */
    for (unsigned i = 0; i < PAGES; i++)
        CUDA(cuMemsetD32Async(source + (CUdeviceptr)i * PAGE, 1000 + i, PAGE / 4, fills));
    CUDA(cuStreamWriteValue64(fills, (CUdeviceptr)(uintptr_t)filled_word, 1, 0));
    static unsigned last[PAGE / 4];
    CUDA(cuStreamWaitValue64(reads, (CUdeviceptr)(uintptr_t)moved_word, 1, 0));
    CUDA(cuMemcpyDtoHAsync(last, target, PAGE, reads));

    await_write(here);
    CUDA(cuStreamSynchronize(reads));
    check(last[0] != 1000 + PAGES - 1 || last[PAGE / 4 - 1] != last[0], "page 0", "is not the last one");
    printf("%d pages of %d KiB, from GPU 0 to GPU %d\n", PAGES, PAGE / 1024, devices - 1);
    CHECK(weft_endpoint_destroy(here)), CHECK(weft_endpoint_destroy(there));
}
