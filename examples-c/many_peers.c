/*
 * Peers that come and go: a server answers every message of as many clients as like. Some leave, some die; the server
 * notices either, and the others do not.
 *
 *     many_peers serve PORT CLIENTS         ends when that many have gone
 *     many_peers ask HOST PORT NAME
 *     many_peers die HOST PORT NAME         asks, and exits without closing
 */
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "exchange.h"

static void say(weft_endpoint *endpoint, weft_peer peer, const char *text) {
    weft_status status = weft_send(endpoint, peer, text, strlen(text), NULL, NULL);
    /* The client may have gone while its message waited here, which must not end a server. */
    if (weft_status_category(status) != WEFT_CATEGORY_PEER && status != WEFT_ERR_HANDLE) CHECK(status);
}

/* ---- The server ---- */

struct server {
    weft_endpoint *endpoint;
    int32_t event_fd;
    int here; /* peers now */
    int gone;
};

static void answer(struct server *server, const weft_completion *c) {
    char text[64];
    printf("%.*s\n", (int)c->bytes, (const char *)c->data);
    snprintf(text, sizeof text, "hello, one of %d", server->here);
    CHECK(weft_message_release(server->endpoint, c->op));
    say(server->endpoint, c->peer, text);
}

static void handle(struct server *server, const weft_completion *c) {
    switch (c->kind) {
    case WEFT_COMPLETION_PEER_UP: server->here++; break; /* the client's state (c->peer is its id) is made here, */
    case WEFT_COMPLETION_PEER_DOWN:                      /* and freed here: nothing of it comes later */
        server->here--, server->gone++;
        printf("one has gone: %s\n", weft_status_name(c->status)); /* PEER_CLOSED: it left; PEER_LOST: it died */
        break;
    case WEFT_COMPLETION_MESSAGE: answer(server, c); break;
    default: break; /* a failed SEND: PEER_DOWN follows */
    }
}

/* Takes all completions, until it is safe to sleep. */
static void drain(struct server *server) {
    weft_completion done[64];
    weft_status armed;
    do {
        int32_t n;
        while ((n = CHECK(weft_queue_poll(weft_endpoint_queue(server->endpoint), done, 64, 0))) > 0)
            for (int32_t i = 0; i < n; i++) handle(server, &done[i]);
    } while ((armed = weft_queue_arm(weft_endpoint_queue(server->endpoint), &server->event_fd)) == WEFT_ERR_AGAIN);
    CHECK(armed);
}

/* Each connection to the socket gets the endpoint's address: it is the same for all. */
static void tell_address(weft_endpoint *endpoint, int listener) {
    char address[4096];
    size_t len;
    int fd = exchange_accept(listener);
    CHECK(weft_endpoint_address(endpoint, address, sizeof address, &len));
    exchange_put(fd, address, len);
    close(fd);
}

static void serve(weft_endpoint *endpoint, const char *port, int clients) {
    struct server server = {.endpoint = endpoint};
    int listener = exchange_listen(port);
    while (drain(&server), server.gone < clients) {
        struct pollfd ready[] = {{.fd = listener, .events = POLLIN}, {.fd = server.event_fd, .events = POLLIN}};
        if (poll(ready, 2, -1) > 0 && ready[0].revents != 0) tell_address(endpoint, listener);
    }
    close(listener);
}

/* ---- A client ---- */

static void ask(weft_endpoint *endpoint, const char *host, const char *port, const char *name) {
    char address[4096], text[64];
    int fd = exchange_connect(host, port);
    size_t len = exchange_get(fd, address, sizeof address);
    weft_peer server;
    CHECK(weft_peer_connect(endpoint, address, len, NULL, &server));
    snprintf(text, sizeof text, "here is %s", name);
    say(endpoint, server, text);
    weft_completion answer = check_next(endpoint, WEFT_COMPLETION_MESSAGE);
    printf("%s received: %.*s\n", name, (int)answer.bytes, (const char *)answer.data);
    fflush(stdout);
    CHECK(weft_message_release(endpoint, answer.op));
    close(fd);
}

int main(int argc, char **argv) {
    weft_endpoint *endpoint;
    int serves = argc == 4 && strcmp(argv[1], "serve") == 0;
    int dies = argc == 5 && strcmp(argv[1], "die") == 0, asks = argc == 5 && strcmp(argv[1], "ask") == 0;
    if (!serves && !dies && !asks) {
        fprintf(stderr, "%s serve PORT CLIENTS | ask HOST PORT NAME | die HOST PORT NAME\n", argv[0]);
        return 2;
    }
    CHECK(weft_endpoint_create(NULL, &endpoint));
    if (serves) serve(endpoint, argv[2], atoi(argv[3]));
    else ask(endpoint, argv[2], argv[3], argv[4]);
    if (dies) _exit(0);
    CHECK(weft_endpoint_shutdown(endpoint, UINT64_C(1000000000))); /* operations in flight have a second */
    CHECK(weft_endpoint_destroy(endpoint));
    return 0;
}
