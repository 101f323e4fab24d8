/* Memory of a fake device; its streams are the CPU. With: weft_simulated. */
#include <stdlib.h>
#include <sys/mman.h>
#define CUDA CHECK
typedef void *CUstream;
typedef unsigned long long CUdeviceptr;
static int cuStreamWriteValue64(CUstream stream, CUdeviceptr word, unsigned long long value, unsigned flags) {
    (void)stream, (void)flags;
    __atomic_store_n((uint64_t *)(uintptr_t)word, value, __ATOMIC_SEQ_CST);
    return 0;
}
static int cuStreamWaitValue64(CUstream stream, CUdeviceptr word, unsigned long long value, unsigned flags) {
    (void)stream, (void)flags;
    while (__atomic_load_n((uint64_t *)(uintptr_t)word, __ATOMIC_SEQ_CST) < value)
        ;
    return 0;
}

int main(void) {
    const uint64_t bytes = 1 << 20;
    void *device_pointer = (void *)UINT64_C(0x2a0000000000);
    if (mmap(device_pointer, 2 * bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != device_pointer)
        return 1;
    setenv("WEFT_DEVICES", "fake:at=46179488366592", 1);
    weft_endpoint *endpoint;
    CHECK(weft_endpoint_create(NULL, &endpoint));
    unsigned char address[4096], descriptor[4096];
    size_t len;
    weft_peer peer;
    CHECK(weft_endpoint_address(endpoint, address, sizeof address, &len));
    CHECK(weft_peer_connect(endpoint, address, len, NULL, &peer));
    weft_memory_range pool = {(unsigned char *)device_pointer + bytes, bytes};
    weft_memory *mine;
    weft_remote_memory *theirs;
    CHECK(weft_memory_register(endpoint, &pool, 1, NULL, &mine));
    CHECK(weft_memory_export(mine, descriptor, sizeof descriptor, &len));
    CHECK(weft_remote_memory_import(endpoint, peer, descriptor, len, &theirs));
    uint32_t from[] = {0, 1}, to[] = {8, 9};
    weft_pages pages = WEFT_PAGES_INIT;
    pages.page_count = 2, pages.page_len = 4096, pages.local.pages = from, pages.remote.pages = to;
    CUstream fills = NULL, reads = NULL;
    BLOCKS
    return 0;
}
