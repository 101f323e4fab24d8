/* Two endpoints in one process: one writes a text into the other's memory. */
#include <stdio.h>
#include <stdlib.h>
#include <weft.h>

#define CHECK(call) check((call) >= 0, #call, weft_last_error())
static void check(int good, const char *what, const char *why) {
    if (!good) {
        fprintf(stderr, "%s: %s\n", what, why);
        exit(1);
    }
}

int main(void) {
    weft_endpoint *sender, *receiver;
    CHECK(weft_endpoint_create(NULL, &sender));
    CHECK(weft_endpoint_create(NULL, &receiver));

    char text[] = "Hello from the other endpoint.", page[sizeof text] = "";
    weft_memory_range from = {text, sizeof text}, to = {page, sizeof page};
    weft_memory *source, *target;
    CHECK(weft_memory_register(sender, &from, 1, NULL, &source));
    CHECK(weft_memory_register(receiver, &to, 1, NULL, &target));

    unsigned char address[4096], key[4096]; /* both travel by any means */
    size_t len, key_len;
    CHECK(weft_endpoint_address(receiver, address, sizeof address, &len));
    CHECK(weft_memory_export(target, key, sizeof key, &key_len));

    weft_peer peer;
    weft_remote_memory *remote;
    CHECK(weft_peer_connect(sender, address, len, NULL, &peer));
    CHECK(weft_remote_memory_import(sender, peer, key, key_len, &remote));
    CHECK(weft_write(sender, source, 0, remote, 0, sizeof text, NULL, NULL));

    weft_completion done = {0};
    while (done.kind != WEFT_COMPLETION_WRITE) /* PEER_UP comes first */
        CHECK(weft_queue_poll(weft_endpoint_queue(sender), &done, 1,
                              UINT64_C(1000000000)));
    check(done.status == WEFT_OK, "weft_write", weft_status_text(done.status));
    printf("%s\n", page); /* every byte is there */

    CHECK(weft_endpoint_destroy(sender));
    CHECK(weft_endpoint_destroy(receiver));
}
