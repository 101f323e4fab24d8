/*
 * Pages of a KV cache: 8 layers, each a tensor of its own. Two prefill ranks have half of the heads each, so a page of
 * theirs is half of a page of the decode rank, which has all. Each moves its pages of one request with one call; the
 * decode rank continues when both have notified it.
 */
#include <string.h>

#include "check.h"

#define LAYERS 8
#define PAGES 64
#define HALF 4096 /* bytes of a prefill rank's page */
#define REQUEST 4711

/* An endpoint and its part of the cache. In an engine each would be a separate process. */
struct rank {
    weft_endpoint *endpoint;
    weft_memory *memory;
    unsigned char *layers[LAYERS];
};

static struct rank rank_open(uint64_t page_len) {
    struct rank rank;
    weft_memory_range ranges[LAYERS];
    CHECK(weft_endpoint_create(NULL, &rank.endpoint));
    for (int l = 0; l < LAYERS; l++) {
        rank.layers[l] = calloc(PAGES, page_len);
        ranges[l] = (weft_memory_range){rank.layers[l], PAGES * page_len};
    }
    CHECK(weft_memory_register(rank.endpoint, ranges, LAYERS, NULL, &rank.memory)); /* layer l is range l */
    return rank;
}

static void rank_close(struct rank *rank) {
    CHECK(weft_endpoint_shutdown(rank->endpoint, 0));
    CHECK(weft_endpoint_destroy(rank->endpoint)); /* deregisters the memory, too */
    for (int l = 0; l < LAYERS; l++) free(rank->layers[l]);
}

static unsigned char byte_of(int half, int layer, uint32_t page) {
    return (unsigned char)(100 * half + 10 * layer + (int)page + 1);
}

/* A prefill rank's work for one request: `mine[i]` here is `theirs[i]` there. */
static void write_half(struct rank *prefill, struct rank *decode, int half, const uint32_t *mine,
                       const uint32_t *theirs, uint64_t count) {
    char address[4096], descriptor[4096]; /* these two travel by any means: see two_processes.c */
    size_t address_len, descriptor_len;
    weft_peer peer;
    weft_remote_memory *remote;
    CHECK(weft_endpoint_address(decode->endpoint, address, sizeof address, &address_len));
    CHECK(weft_memory_export(decode->memory, descriptor, sizeof descriptor, &descriptor_len));
    CHECK(weft_peer_connect(prefill->endpoint, address, address_len, NULL, &peer));
    CHECK(weft_remote_memory_import(prefill->endpoint, peer, descriptor, descriptor_len, &remote));
    for (int l = 0; l < LAYERS; l++)
        for (uint64_t i = 0; i < count; i++)
            memset(prefill->layers[l] + mine[i] * HALF, byte_of(half, l, mine[i]), HALF);

    weft_pages pages = WEFT_PAGES_INIT;
    pages.page_count = count, pages.page_len = HALF, pages.layer_count = LAYERS;
    pages.local.pages = mine, pages.remote.pages = theirs;
    pages.local.range_step = pages.remote.range_step = 1; /* the next layer is the next range */
    pages.remote.page_stride = 2 * HALF;                  /* remote pages are twice as long, */
    pages.remote.offset = (uint64_t)half * HALF;          /* and this is their first or second half */
    weft_op_options options = WEFT_OP_OPTIONS_INIT;
    options.flags = WEFT_NOTIFY, options.notify = REQUEST;
    options.notify_data = &half, options.notify_data_len = sizeof half;
    options.timeout_ns = UINT64_C(5000000000);
    CHECK(weft_write_pages(prefill->endpoint, prefill->memory, remote, &pages, &options, NULL));
}

/* Waits for both halves. All bytes of a transfer arrive before its notification. */
static void await_halves(struct rank *decode) {
    for (int halves = 0; halves != 3;) {
        int half;
        weft_completion received = check_next(decode->endpoint, WEFT_COMPLETION_NOTIFICATION);
        memcpy(&half, received.data, sizeof half);
        CHECK(weft_message_release(decode->endpoint, received.op)); /* the data must not be used any longer */
        printf("request %u: half %d has arrived\n", (unsigned)received.notify, half);
        halves |= 1 << half;
    }
}

int main(void) {
    const uint32_t mine[] = {3, 60, 7}, theirs[] = {40, 41, 5}; /* any pages, in any order */
    struct rank first = rank_open(HALF), second = rank_open(HALF), decode = rank_open(2 * HALF);
    write_half(&first, &decode, 0, mine, theirs, 3);
    write_half(&second, &decode, 1, mine, theirs, 3);
    await_halves(&decode);
    int wrong = 0;
    for (int l = 0; l < LAYERS; l++)
        for (int i = 0; i < 3; i++)
            for (int b = 0; b < 2 * HALF; b++)
                wrong += decode.layers[l][theirs[i] * 2 * HALF + (uint32_t)b] != byte_of(b / HALF, l, mine[i]);
    printf("%d pages of %d layers, %d bytes wrong\n", 3, LAYERS, wrong);
    check_next(first.endpoint, WEFT_COMPLETION_WRITE), check_next(second.endpoint, WEFT_COMPLETION_WRITE);
    rank_close(&first), rank_close(&second), rank_close(&decode);
    return wrong != 0;
}
