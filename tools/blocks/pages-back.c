/* The endpoint is its own sender. */
#include <stdlib.h>
enum { CANCEL = 1 };
static void give_back(void *pages) { (void)pages; }
static void give_back_all_of(weft_peer peer) { (void)peer; }

int main(void) {
    weft_endpoint *ep;
    CHECK(weft_endpoint_create(NULL, &ep));
    unsigned char address[4096];
    size_t address_len;
    CHECK(weft_endpoint_address(ep, address, sizeof address, &address_len));
    weft_peer sender;
    CHECK(weft_peer_connect(ep, address, address_len, NULL, &sender));
    weft_completion up;
    CHECK(weft_queue_poll(weft_endpoint_queue(ep), &up, 1, UINT64_C(5000000000)));
    uint64_t page_count = 4, request = 7;
    void *pages = NULL;
    weft_memory_range pool = {calloc(16, 65536), 16 * 65536};
    uint32_t indexes[4] = {1, 3, 5, 7};
    weft_memory *memory;
    CHECK(weft_memory_register(ep, &pool, 1, NULL, &memory));
    BLOCKS
    return 0;
}
