/*
 * What can go wrong, and how a program continues; then a clean shutdown.
 *
 * A call fails at once: it has started nothing, and weft_last_error() gives the reason. An accepted operation fails in
 * its completion. Either way there is a status, and its category tells what to do.
 */
#include <string.h>

#include "check.h"

#define SECOND UINT64_C(1000000000)

static char mine[1 << 20], theirs[1 << 20];

struct side {
    weft_endpoint *endpoint;
    weft_memory *memory;
};

static struct side side_open(void *bytes, size_t len) {
    struct side side;
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    weft_memory_range range = {bytes, len};
    config.max_transfers = 8; /* few, to show what happens when they run out */
    CHECK(weft_endpoint_create(&config, &side.endpoint));
    CHECK(weft_memory_register(side.endpoint, &range, 1, NULL, &side.memory));
    return side;
}

/* What to do about a status. */
static const char *advice(weft_status status) {
    switch (weft_status_category(status)) {
    case WEFT_CATEGORY_OK: return "go on";
    case WEFT_CATEGORY_RETRY: return "poll, and try again";
    case WEFT_CATEGORY_PEER: return "ask another peer, or connect again";
    case WEFT_CATEGORY_USAGE: return "correct the program";
    case WEFT_CATEGORY_SYSTEM: return "look at the machine";
    default: return "report it";
    }
}

static void show(const char *what, weft_status status, const char *why) {
    printf("%s: %s, so %s (%s)\n", what, weft_status_name(status), advice(status), why);
}

/* Polls for up to `ns`, and prints failures. Returns how many operations have ended. */
static int take(weft_endpoint *endpoint, uint64_t ns) {
    weft_completion done[16];
    int ended = 0;
    int32_t n = CHECK(weft_queue_poll(weft_endpoint_queue(endpoint), done, 16, ns));
    for (int32_t i = 0; i < n; i++) {
        ended += done[i].op != 0;
        if (done[i].status != WEFT_OK) show("a completion", done[i].status, weft_status_text(done[i].status));
    }
    return ended;
}

/* A program that submits more than the limit: AGAIN is not a failure. */
static void write_many(const struct side *here, const weft_remote_memory *remote) {
    int submitted = 0, ended = 0, full = 0;
    while (submitted < 100) {
        weft_status status = weft_write(here->endpoint, here->memory, 0, remote, 0, sizeof mine, NULL, NULL);
        if (status == WEFT_ERR_AGAIN) {
            if (full++ == 0) show("one of many writes", status, weft_last_error());
            ended += take(here->endpoint, SECOND);
            continue;
        }
        CHECK(status);
        submitted++;
    }
    while (ended < submitted) ended += take(here->endpoint, SECOND);
    printf("%d writes, all of which have ended\n", ended);
}

/* Memory in use is not deregistered: the handle stays valid, and the bytes must stay. */
static void deregister(struct side *side) {
    weft_status status;
    while ((status = weft_memory_deregister(side->memory)) == WEFT_ERR_BUSY) {
        show("deregistering", status, weft_last_error());
        take(side->endpoint, SECOND);
    }
    CHECK(status);
}

static void nobody_there(weft_endpoint *endpoint) {
    weft_endpoint *gone;
    char address[4096];
    size_t len;
    weft_peer peer;
    weft_op_options soon = WEFT_OP_OPTIONS_INIT;
    soon.timeout_ns = SECOND / 2;
    CHECK(weft_endpoint_create(NULL, &gone));
    CHECK(weft_endpoint_address(gone, address, sizeof address, &len));
    CHECK(weft_endpoint_destroy(gone));
    CHECK(weft_peer_connect(endpoint, address, len, &soon, &peer)); /* fails in its PEER_UP, never silently */
    take(endpoint, 2 * SECOND);
}

/* Every operation ends, at the latest by its deadline: here a wait for a counter that nothing raises. */
static weft_op never(weft_endpoint *endpoint) {
    weft_counter counter;
    uint64_t one = 1;
    weft_op id;
    weft_op_options soon = WEFT_OP_OPTIONS_INIT;
    soon.timeout_ns = SECOND / 50;
    CHECK(weft_counter_create(endpoint, &counter));
    CHECK(weft_counter_expect(endpoint, &counter, &one, 1, &soon, &id));
    return id;
}

static weft_remote_memory *connect_to(struct side *there, weft_endpoint *here) {
    char address[4096], descriptor[4096];
    size_t address_len, descriptor_len;
    weft_peer peer;
    weft_remote_memory *remote;
    CHECK(weft_endpoint_address(there->endpoint, address, sizeof address, &address_len));
    CHECK(weft_memory_export(there->memory, descriptor, sizeof descriptor, &descriptor_len));
    CHECK(weft_peer_connect(here, address, address_len, NULL, &peer));
    CHECK(weft_remote_memory_import(here, peer, descriptor, descriptor_len, &remote));
    check_next(here, WEFT_COMPLETION_PEER_UP);
    return remote;
}

/* The order that is always right: shut down, take the remaining completions, deregister the memory, destroy. */
static void end(struct side *side, const char *name) {
    int left = 0;
    int32_t n;
    weft_completion done;
    /* Running operations have a second; then nothing touches the memory. */
    CHECK(weft_endpoint_shutdown(side->endpoint, SECOND));
    while ((n = weft_queue_poll(weft_endpoint_queue(side->endpoint), &done, 1, 0)) == 1) left++;
    if (n != WEFT_ERR_CLOSED) CHECK(n);
    CHECK(weft_memory_deregister(side->memory));
    CHECK(weft_endpoint_destroy(side->endpoint));
    printf("%s is closed; %s\n", name, left > 0 ? "the last completions were taken" : "there was nothing left");
}

int main(void) {
    struct side here = side_open(mine, sizeof mine), there = side_open(theirs, sizeof theirs);
    nobody_there(here.endpoint);
    weft_remote_memory *remote = connect_to(&there, here.endpoint);

    weft_status status = weft_write(here.endpoint, here.memory, 0, remote, 1, sizeof mine, NULL, NULL);
    show("a write beyond the end", status, weft_last_error());
    write_many(&here, remote);

    weft_op id = never(here.endpoint);
    while (take(here.endpoint, SECOND) == 0) {}
    status = weft_op_cancel(here.endpoint, id);
    show("canceling what has ended", status, weft_last_error()); /* normal, where the two race */

    CHECK(weft_write(here.endpoint, here.memory, 0, remote, 0, sizeof mine, NULL, NULL));
    deregister(&here);
    status = weft_write(here.endpoint, here.memory, 0, remote, 0, sizeof mine, NULL, NULL);
    show("a write from memory that was given back", status, weft_last_error());
    CHECK(weft_memory_register(here.endpoint, &(weft_memory_range){mine, sizeof mine}, 1, NULL, &here.memory));

    end(&there, "there");
    while (take(here.endpoint, SECOND) > 0) {} /* the peer is gone: its PEER_DOWN follows everything that was in flight to it */
    end(&here, "here");
    return 0;
}
