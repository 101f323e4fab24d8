/*
 * Manual progress: no thread of Weft. An engine with one thread, which works in steps, polls once in every step; bytes
 * move while it polls. Here both sides are in one thread.
 */
#include <string.h>

#include "check.h"

#define STEPS 1000
#define PAGE 65536

static weft_endpoint *open_manual(void) {
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    weft_endpoint *endpoint;
    weft_endpoint_properties has = WEFT_ENDPOINT_PROPERTIES_INIT;
    config.progress = WEFT_PROGRESS_MANUAL;
    CHECK(weft_endpoint_create(&config, &endpoint));
    CHECK(weft_endpoint_info(endpoint, &has, NULL));
    if (has.workers != 0) fprintf(stderr, "threads, after all\n"), exit(1);
    return endpoint;
}

/* The engine's own work in a step. */
static uint64_t compute(unsigned char *page) {
    uint64_t sum = 0;
    for (int i = 0; i < PAGE; i++) sum = sum * 31 + ++page[i];
    return sum;
}

/* Drives Weft, and counts completions. It never blocks. */
static int poll_all(weft_endpoint *endpoint, weft_completion_kind kind) {
    weft_completion done[16];
    int found = 0;
    int32_t n = CHECK(weft_queue_poll(weft_endpoint_queue(endpoint), done, 16, 0));
    for (int32_t i = 0; i < n; i++) {
        if (done[i].status != WEFT_OK) fprintf(stderr, "%s\n", weft_status_text(done[i].status)), exit(1);
        found += done[i].kind == kind;
    }
    return found;
}

int main(void) {
    static unsigned char mine[PAGE], theirs[PAGE];
    weft_endpoint *here = open_manual(), *there = open_manual();
    weft_memory_range source = {mine, PAGE}, target = {theirs, PAGE};
    weft_memory *from, *to;
    weft_peer peer;
    weft_remote_memory *remote;
    char address[4096], descriptor[4096];
    size_t address_len, descriptor_len;
    CHECK(weft_memory_register(here, &source, 1, NULL, &from));
    CHECK(weft_memory_register(there, &target, 1, NULL, &to));
    CHECK(weft_endpoint_address(there, address, sizeof address, &address_len));
    CHECK(weft_memory_export(to, descriptor, sizeof descriptor, &descriptor_len));
    CHECK(weft_peer_connect(here, address, address_len, NULL, &peer));
    CHECK(weft_remote_memory_import(here, peer, descriptor, descriptor_len, &remote));

    weft_op_options options = WEFT_OP_OPTIONS_INIT;
    options.flags = WEFT_NOTIFY;
    int written = 0, notified = 0, under_way = 0, steps = 0;
    while (notified < STEPS || written < STEPS) {
        if (!under_way && written < STEPS) { /* until it has completed, the page must not change */
            compute(mine);
            CHECK(weft_write(here, from, 0, remote, 0, PAGE, &options, NULL));
            under_way = 1;
        }
        if (poll_all(here, WEFT_COMPLETION_WRITE)) written++, under_way = 0;
        notified += poll_all(there, WEFT_COMPLETION_NOTIFICATION);
        steps++;
    }
    int right = memcmp(mine, theirs, PAGE) == 0;
    printf("%d writes in %d steps, last page %s\n", written, steps, right ? "right" : "wrong");
    /* Closing needs both sides as well. A program with one side simply destroys its endpoint; the other gets
       PEER_DOWN. */
    CHECK(weft_peer_disconnect(here, peer));
    for (int down = 0; down < 1;) {
        down += poll_all(here, WEFT_COMPLETION_PEER_DOWN);
        weft_completion left; /* PEER_CLOSED is the expected end */
        CHECK(weft_queue_poll(weft_endpoint_queue(there), &left, 1, 0));
    }
    CHECK(weft_endpoint_shutdown(here, 0)), CHECK(weft_endpoint_destroy(here));
    CHECK(weft_endpoint_shutdown(there, 0)), CHECK(weft_endpoint_destroy(there));
    return 0;
}
