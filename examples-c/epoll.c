/*
 * An event loop: one epoll watches an endpoint and the program's other descriptors, here a timer. Every tick sends a
 * message to a second endpoint, which answers.
 */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>
#include <weft.h>

#define CHECK(call) check(call, #call)
#define TICKS 10

static int32_t check(int32_t status, const char *call) {
    if (status < 0) {
        fprintf(stderr, "%s: %s: %s\n", call, weft_status_name(status), weft_last_error()), exit(1);
    }
    return status;
}

static void must(int bad, const char *what) {
    if (bad) perror(what), exit(1);
}

/* An endpoint in the loop, and its handler of messages. */
struct party {
    const char *name;
    weft_endpoint *endpoint;
    int32_t event_fd;
    weft_peer peer; /* 0 until it is up */
    int answers;    /* it returns each message */
    int received;
};

static void say(struct party *party, const void *data, uint64_t len) {
    CHECK(weft_send(party->endpoint, party->peer, data, len, NULL, NULL)); /* copies the data */
}

static void handle(struct party *party, const weft_completion *c) {
    CHECK(c->status);
    if (c->kind == WEFT_COMPLETION_PEER_UP) party->peer = c->peer;
    if (c->kind != WEFT_COMPLETION_MESSAGE) return;
    printf("%s received: %.*s\n", party->name, (int)c->bytes, (const char *)c->data);
    party->received++;
    if (party->answers) say(party, c->data, c->bytes);
    CHECK(weft_message_release(party->endpoint, c->op));
}

/*
 * The rule for every loop: poll until the queue is empty, arm, and sleep only if arming returned WEFT_OK. Any later
 * completion makes the fd readable.
 */
static void drain(struct party *party) {
    weft_completion done[16];
    weft_status armed;
    do {
        int32_t n;
        while ((n = CHECK(weft_queue_poll(weft_endpoint_queue(party->endpoint), done, 16, 0))) > 0)
            for (int32_t i = 0; i < n; i++) handle(party, &done[i]);
        armed = weft_queue_arm(weft_endpoint_queue(party->endpoint), &party->event_fd);
    } while (armed == WEFT_ERR_AGAIN);
    CHECK(armed);
}

static void join_loop(int loop, struct party *party) {
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    config.fabric = "host"; /* between processes, or endpoints, of one host */
    CHECK(weft_endpoint_create(&config, &party->endpoint));
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.ptr = party}; /* EPOLLIN alone is fine, too */
    drain(party); /* arms it for the first time */
    must(epoll_ctl(loop, EPOLL_CTL_ADD, party->event_fd, &event) != 0, "epoll_ctl"); /* ours to watch, not to close */
}

static int start_timer(int loop) {
    struct itimerspec every = {.it_interval.tv_nsec = 20000000, .it_value.tv_nsec = 20000000};
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
    must(timer < 0 || timerfd_settime(timer, 0, &every, NULL) != 0, "timerfd");
    must(epoll_ctl(loop, EPOLL_CTL_ADD, timer, &event) != 0, "epoll_ctl");
    return timer;
}

static void tick(int timer, struct party *party, int *ticks) {
    uint64_t passed;
    char text[32];
    must(read(timer, &passed, sizeof passed) != sizeof passed, "read");
    if (party->peer != 0 && *ticks < TICKS) say(party, text, (uint64_t)sprintf(text, "tick %d", ++*ticks));
}

int main(void) {
    struct party here = {.name = "here"}, there = {.name = "there", .answers = 1};
    int loop = epoll_create1(EPOLL_CLOEXEC), ticks = 0;
    must(loop < 0, "epoll_create1");
    join_loop(loop, &here);
    join_loop(loop, &there);
    int timer = start_timer(loop);
    char address[4096];
    size_t len;
    weft_peer peer;
    CHECK(weft_endpoint_address(there.endpoint, address, sizeof address, &len));
    CHECK(weft_peer_connect(here.endpoint, address, len, NULL, &peer)); /* PEER_UP wakes the loop */
    while (here.received < TICKS) {
        struct epoll_event event;
        if (epoll_wait(loop, &event, 1, -1) != 1) continue; /* a signal */
        if (event.data.ptr) drain(event.data.ptr);
        else tick(timer, &here, &ticks);
    }
    CHECK(weft_endpoint_shutdown(here.endpoint, 0)), CHECK(weft_endpoint_destroy(here.endpoint));
    CHECK(weft_endpoint_shutdown(there.endpoint, 0)), CHECK(weft_endpoint_destroy(there.endpoint));
    close(timer), close(loop);
}
