/*
 * Requests that end early, and pages that are reused at once: docs/pages-back.md. Four senders, each a process, write
 * one page after another as long as they may. The receiver gives each request a grant, and revokes it because its user
 * has hung up, its time has passed, or its sender is silent or dead.
 */
#define _POSIX_C_SOURCE 200809L
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "exchange.h"

#define SECOND UINT64_C(1000000000)

enum { LEN = 1 << 22, CASES = 4 };
enum why { USER_HUNG_UP, TIME_IS_OVER, SENDER_IS_SILENT, SENDER_IS_DEAD };

static const char *const words[CASES] = {"the user hung up", "the time is over", "the sender is silent",
                                         "the sender is dead"};

struct order {
    uint64_t request;
    weft_grant_token grant;
};

static char pages[LEN];

/* Writes for a request until its grant is revoked, or the receiver is gone. */
static void send_pages(int fd) {
    weft_endpoint *endpoint;
    weft_peer peer;
    weft_memory *local;
    weft_remote_memory *remote;
    char blob[4096];
    weft_memory_range range = {pages, LEN};
    memset(pages, 'x', LEN);
    CHECK(weft_endpoint_create(NULL, &endpoint));
    CHECK(weft_memory_register(endpoint, &range, 1, NULL, &local));
    CHECK(weft_peer_connect(endpoint, blob, exchange_get(fd, blob, sizeof blob), NULL, &peer));
    CHECK(weft_remote_memory_import(endpoint, peer, blob, exchange_get(fd, blob, sizeof blob), &remote));
    weft_completion done = check_next(endpoint, WEFT_COMPLETION_MESSAGE);
    struct order order;
    memcpy(&order, done.data, sizeof order);
    CHECK(weft_message_release(endpoint, done.op));
    weft_op_options options = WEFT_OP_OPTIONS_INIT;
    options.grant = order.grant;
    options.flags = WEFT_NOTIFY, options.notify = order.request;
    weft_status status = WEFT_OK;
    while (status == WEFT_OK) {
        status = weft_write(endpoint, local, 0, remote, 0, LEN, &options, NULL);
        if (status == WEFT_OK) {
            CHECK(weft_queue_poll(weft_endpoint_queue(endpoint), &done, 1, UINT64_MAX));
            status = done.status;
        }
    }
    CHECK(weft_endpoint_destroy(endpoint));
}

static weft_grant_token grant(weft_memory *memory, weft_peer sender, uint64_t request, enum why why) {
    weft_grant_args args = WEFT_GRANT_ARGS_INIT; /* the whole memory; `pages` would select some */
    weft_grant_token token;
    args.access = WEFT_ACCESS_REMOTE_WRITE;
    args.flags = WEFT_NOTIFY_FAILURE; /* notifies if the sender ends, or the grant expires, before the revoke */
    args.notify = request;
    args.timeout_ns = why == TIME_IS_OVER ? SECOND / 10 : 0;
    CHECK(weft_grant_create(memory, sender, &args, &token));
    return token;
}

/* The ways in which a request ends. */
static void end(weft_endpoint *endpoint, pid_t sender, enum why why) {
    weft_completion received = {0};
    if (why == SENDER_IS_SILENT) kill(sender, SIGSTOP);
    if (why == SENDER_IS_DEAD) kill(sender, SIGKILL);
    /* The grant's own notification, whose status is not OK. */
    while ((why == TIME_IS_OVER || why == SENDER_IS_DEAD) &&
           (received.kind != WEFT_COMPLETION_NOTIFICATION || received.status == WEFT_OK))
        CHECK(weft_queue_poll(weft_endpoint_queue(endpoint), &received, 1, 10 * SECOND));
}

/* True if nothing arrived late. */
static bool take_back(int fd, pid_t sender, enum why why) {
    weft_endpoint *endpoint;
    weft_memory *memory;
    unsigned char blob[4096];
    size_t len;
    weft_memory_range range = {pages, LEN};
    weft_memory_args args = WEFT_MEMORY_ARGS_INIT;
    args.access = WEFT_ACCESS_GRANTED; /* reached only under a grant */
    CHECK(weft_endpoint_create(NULL, &endpoint));
    CHECK(weft_memory_register(endpoint, &range, 1, &args, &memory));
    CHECK(weft_endpoint_address(endpoint, blob, sizeof blob, &len));
    exchange_put(fd, blob, len);
    CHECK(weft_memory_export(memory, blob, sizeof blob, &len));
    exchange_put(fd, blob, len);
    weft_peer peer = check_next(endpoint, WEFT_COMPLETION_PEER_UP).peer;

    struct order order = {.request = 7 + why};
    order.grant = grant(memory, peer, order.request, why);
    CHECK(weft_send(endpoint, peer, &order, sizeof order, NULL, NULL));
    check_next(endpoint, WEFT_COMPLETION_NOTIFICATION);
    end(endpoint, sender, why);

    CHECK(weft_grant_revoke(endpoint, &order.grant, NULL, NULL));
    check_next(endpoint, WEFT_COMPLETION_FENCE);
    memset(pages, 'y', LEN); /* from here on, the pages belong to another request */

    bool late = false;
    for (int round = 0; round < 100; round++) {
        weft_completion received;
        if (CHECK(weft_queue_poll(weft_endpoint_queue(endpoint), &received, 1, SECOND / 1000)) == 1)
            late |= received.kind == WEFT_COMPLETION_NOTIFICATION;
        late |= memchr(pages, 'x', LEN) != NULL;
    }
    printf("%s: the pages are used again, %s\n", words[why], late ? "and were written to LATE" : "nothing came later");
    fflush(stdout);
    CHECK(weft_endpoint_destroy(endpoint));
    kill(sender, SIGKILL);
    return !late;
}

int main(void) {
    int fds[CASES][2], failed = 0;
    pid_t senders[CASES];
    /* Before any endpoint: a forked child cannot use one. */
    for (int i = 0; i < CASES; i++) {
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds[i]) != 0 || (senders[i] = fork()) < 0) return 1;
        if (senders[i] == 0) {
            send_pages(fds[i][1]);
            return 0;
        }
    }
    for (int i = 0; i < CASES; i++) failed |= !take_back(fds[i][0], senders[i], (enum why)i);
    while (wait(NULL) > 0) {}
    return failed;
}
