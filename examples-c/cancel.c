/*
 * A request ends early: its pages are reused, and nothing of it lands in them later. The receiver asks the sender to
 * cancel, and fences: docs/pages-back.md has all cases. Both endpoints are in this process; they exchange messages, as
 * two processes would.
 */
#include <string.h>

#include "check.h"

#define SECOND UINT64_C(1000000000)

enum { LEN = 1 << 24, CANCEL = 1 };

static char source[LEN], pages[LEN];

/* The sender's side of a cancel: its write ends with WEFT_ERR_CANCELED, or with WEFT_OK if it completed first. */
static void cancel_when_asked(weft_endpoint *sender, weft_op write) {
    weft_completion done = check_next(sender, WEFT_COMPLETION_MESSAGE);
    int asked = done.bytes == 1 && *(const char *)done.data == CANCEL;
    CHECK(weft_message_release(sender, done.op));
    if (!asked) return;
    weft_status status = weft_op_cancel(sender, write);
    if (status != WEFT_ERR_HANDLE) CHECK(status); /* the error means that the write has completed already */
    do {
        if (CHECK(weft_queue_poll(weft_endpoint_queue(sender), &done, 1, SECOND)) == 0) done.op = 0;
    } while (done.op != write);
    printf("the write ended with %s\n", weft_status_name(done.status));
}

int main(void) {
    weft_endpoint *sender, *receiver;
    CHECK(weft_endpoint_create(NULL, &sender));
    CHECK(weft_endpoint_create(NULL, &receiver));
    weft_memory_range from = {source, LEN}, to = {pages, LEN};
    weft_memory *local, *target;
    CHECK(weft_memory_register(sender, &from, 1, NULL, &local));
    CHECK(weft_memory_register(receiver, &to, 1, NULL, &target));
    unsigned char address[4096], descriptor[4096];
    size_t address_len, descriptor_len;
    CHECK(weft_endpoint_address(receiver, address, sizeof address, &address_len));
    CHECK(weft_memory_export(target, descriptor, sizeof descriptor, &descriptor_len));
    weft_peer peer;
    weft_remote_memory *remote;
    CHECK(weft_peer_connect(sender, address, address_len, NULL, &peer));
    CHECK(weft_remote_memory_import(sender, peer, descriptor, descriptor_len, &remote));
    weft_peer back = check_next(receiver, WEFT_COMPLETION_PEER_UP).peer;

    memset(source, 'x', LEN);
    weft_op write;
    CHECK(weft_write(sender, local, 0, remote, 0, LEN, NULL, &write));

    /* The receiver's user has hung up. Ask, and fence at once: the fence covers everything that the sender has
       accepted, either way. */
    char ask = CANCEL;
    CHECK(weft_send(receiver, back, &ask, 1, NULL, NULL));
    weft_op_options soon = WEFT_OP_OPTIONS_INIT;
    soon.timeout_ns = 5 * SECOND;
    CHECK(weft_peer_fence(receiver, back, &soon, NULL));

    cancel_when_asked(sender, write);

    /* Only now. (If a fence times out: weft_peer_disconnect, and wait for PEER_DOWN.) */
    check_next(receiver, WEFT_COMPLETION_FENCE);
    memset(pages, 'y', LEN);
    int late = 0;
    for (int round = 0; round < 100; round++) {
        CHECK(weft_queue_poll(weft_endpoint_queue(receiver), &(weft_completion){0}, 1, SECOND / 1000));
        late += memchr(pages, 'x', LEN) != NULL;
    }
    printf("the pages are used again, %s\n", late ? "and were written to LATE" : "and nothing came later");
    CHECK(weft_endpoint_destroy(sender));
    CHECK(weft_endpoint_destroy(receiver));
    return late != 0;
}
