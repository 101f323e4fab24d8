/*
 * Two processes, on one host or two: one offers memory, the other writes a text into it.
 *
 *     two_processes receive PORT              PORT 0: any free port
 *     two_processes send HOST PORT TEXT
 */
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "exchange.h"

static void receive(weft_endpoint *endpoint, const char *port) {
    char page[4096] = "", blob[4096];
    size_t len;
    weft_memory_range range = {page, sizeof page};
    weft_memory *memory;
    CHECK(weft_memory_register(endpoint, &range, 1, NULL, &memory));
    int listener = exchange_listen(port), fd = exchange_accept(listener);
    CHECK(weft_endpoint_address(endpoint, blob, sizeof blob, &len));
    exchange_put(fd, blob, len);
    CHECK(weft_memory_export(memory, blob, sizeof blob, &len));
    exchange_put(fd, blob, len);
    /* Nothing has to be accepted: the peer connects, and its bytes arrive. */
    weft_completion received = check_next(endpoint, WEFT_COMPLETION_NOTIFICATION);
    printf("received %u bytes: %s\n", (unsigned)received.notify, page);
    /* The sender leaves first: by then everything has arrived. */
    weft_completion done = {0};
    while (done.kind != WEFT_COMPLETION_PEER_DOWN) CHECK(weft_queue_poll(weft_endpoint_queue(endpoint), &done, 1, UINT64_MAX));
    CHECK(weft_memory_deregister(memory)); /* only now may `page` be freed */
    close(fd), close(listener);
}

static void send_text(weft_endpoint *endpoint, const char *host, const char *port, const char *text) {
    char address[4096], descriptor[4096], page[4096];
    int fd = exchange_connect(host, port);
    size_t address_len = exchange_get(fd, address, sizeof address);
    size_t descriptor_len = exchange_get(fd, descriptor, sizeof descriptor);
    close(fd);
    snprintf(page, sizeof page, "%s", text);

    weft_memory_range range = {page, sizeof page};
    weft_memory *memory;
    weft_peer peer;
    weft_remote_memory *remote;
    CHECK(weft_memory_register(endpoint, &range, 1, NULL, &memory));
    CHECK(weft_peer_connect(endpoint, address, address_len, NULL, &peer));
    CHECK(weft_remote_memory_import(endpoint, peer, descriptor, descriptor_len, &remote));
    uint64_t len = strlen(page) + 1;
    weft_op_options options = WEFT_OP_OPTIONS_INIT;
    options.flags = WEFT_NOTIFY, options.notify = len;
    /* It can be submitted at once: it waits until the peer is up. */
    CHECK(weft_write(endpoint, memory, 0, remote, 0, len, &options, NULL));
    weft_completion done = check_next(endpoint, WEFT_COMPLETION_WRITE);
    printf("sent %u bytes in %.1f us\n", (unsigned)done.bytes, (double)(done.done_ns - done.first_post_ns) / 1000);
    CHECK(weft_memory_deregister(memory));
}

int main(int argc, char **argv) {
    weft_endpoint *endpoint;
    int receives = argc == 3 && strcmp(argv[1], "receive") == 0, sends = argc == 5 && strcmp(argv[1], "send") == 0;
    if (!receives && !sends) {
        fprintf(stderr, "%s receive PORT | send HOST PORT TEXT\n", argv[0]);
        return 2;
    }
    CHECK(weft_endpoint_create(NULL, &endpoint));
    if (receives) receive(endpoint, argv[2]);
    else send_text(endpoint, argv[2], argv[3], argv[4]);
    CHECK(weft_endpoint_shutdown(endpoint, 0)); /* notifies the peer at once that we leave */
    CHECK(weft_endpoint_destroy(endpoint));
    return 0;
}
