#include "session.h"

#include <stdio.h>
#include <stdlib.h>

#include "common.h"

bool session_call_failed(const char *call, weft_status status) {
    return complain("%s: %s: %s", call, weft_status_name(status), weft_last_error());
}

/* ---- Opening and closing ---- */

static void say_rails(weft_endpoint *endpoint) {
    weft_endpoint_properties has = WEFT_ENDPOINT_PROPERTIES_INIT;
    if (weft_endpoint_info(endpoint, &has, NULL) != WEFT_OK) return;
    fprintf(stderr, "%s: libfabric %s, %u rails, %u workers\n", program_role, has.libfabric, has.rails, has.workers);
    for (uint32_t i = 0; i < has.rails; i++) {
        weft_rail_properties rail = WEFT_RAIL_PROPERTIES_INIT;
        if (weft_rail_info(endpoint, i, &rail, NULL) != WEFT_OK) return;
        fprintf(stderr, "%s: rail %u: %s %s %s\n", program_role, i, rail.fabric, rail.name, rail.address);
    }
}

bool session_open(struct session *session, const struct options *options, message_handler *on_message) {
    *session = (struct session){.options = options, .on_message = on_message};
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    config.fabric = options->fabric;
    config.rails = options->rail_names;
    config.rail_count = options->rails;
    config.min_rails = options->rails; /* a user who requests four does not want to measure three */
    config.workers = options->workers;
    config.progress = options->manual ? WEFT_PROGRESS_MANUAL : WEFT_PROGRESS_THREADS;
    config.timeout_ns = options->timeout_ns;
    config.connect_timeout_ns = options->timeout_ns;
    weft_status status = weft_endpoint_create(&config, &session->endpoint);
    if (status != WEFT_OK) return session_call_failed("weft_endpoint_create", status);
    say_rails(session->endpoint);
    return true;
}

bool session_close(struct session *session) {
    if (!session->endpoint) return true;
    /* Drains, so that the other side still receives the failure. */
    weft_status status = weft_endpoint_shutdown(session->endpoint, NS_PER_S);
    if (status != WEFT_OK) return session_call_failed("weft_endpoint_shutdown", status);
    status = weft_endpoint_destroy(session->endpoint);
    if (status != WEFT_OK) return session_call_failed("weft_endpoint_destroy", status);
    session->endpoint = NULL;
    return true;
}

bool session_swap_addresses(struct session *session, int fd, void *theirs, size_t capacity, size_t *theirs_len) {
    uint8_t mine[65536];
    size_t mine_len;
    weft_status status = weft_endpoint_address(session->endpoint, mine, sizeof mine, &mine_len);
    if (status != WEFT_OK) return session_call_failed("weft_endpoint_address", status);
    return tcp_swap(fd, mine, mine_len, theirs, capacity, theirs_len, session->options->timeout_ns);
}

/* ---- Completions ---- */

static bool operation_failed(const char *what, const weft_completion *c) {
    complain("%s: %s: %s", what, weft_status_name(c->status), weft_status_text(c->status));
    if (c->provider_errno != 0) complain("libfabric's error number was %d", c->provider_errno);
    if (c->rail != UINT32_MAX) complain("it was rail %u that failed", c->rail);
    return false;
}

static bool peer_came(struct session *session, const weft_completion *c) {
    if (c->status != WEFT_OK) return operation_failed("connecting", c);
    if (session->peer != 0) return true; /* another endpoint, or the same one again: not our job's peer */
    session->peer = c->peer;
    /* Asked now, since the peer may be gone by the time the last line is printed. */
    session->properties = (weft_peer_properties)WEFT_PEER_PROPERTIES_INIT;
    weft_status status = weft_peer_info(session->endpoint, c->peer, &session->properties);
    return status == WEFT_OK || session_call_failed("weft_peer_info", status);
}

static bool peer_went(struct session *session, const weft_completion *c) {
    if (c->peer != session->peer) return true;
    session->peer_left = true;
    return session->peer_may_leave || operation_failed("the peer is down", c);
}

static bool take_message(struct session *session, const weft_completion *c) {
    bool ok = c->peer != session->peer || session->on_message(session, c->data, c->bytes);
    weft_message_release(session->endpoint, c->op);
    return ok;
}

static bool take_notification(struct session *session, const weft_completion *c) {
    weft_message_release(session->endpoint, c->op);
    if (session->notified) return complain("a second notification came, %llu", (unsigned long long)c->notify);
    session->notified = true;
    session->notification = c->notify;
    return true;
}

static bool take(struct session *session, const weft_completion *c) {
    switch (c->kind) {
    case WEFT_COMPLETION_PEER_UP: return peer_came(session, c);
    case WEFT_COMPLETION_PEER_DOWN: return peer_went(session, c);
    case WEFT_COMPLETION_MESSAGE: return take_message(session, c);
    case WEFT_COMPLETION_NOTIFICATION: return take_notification(session, c);
    case WEFT_COMPLETION_SEND:
        session->sends_open--;
        return c->status == WEFT_OK || operation_failed("sending a message", c);
    case WEFT_COMPLETION_WRITE: /* the prefill side judges the result */
        session->write = *c;
        session->write_ended = true;
        return true;
    default: return true; /* a kind of a newer library */
    }
}

bool session_poll(struct session *session, uint64_t wait_ns) {
    weft_completion done[64];
    int32_t n = weft_queue_poll(weft_endpoint_queue(session->endpoint), done, 64, wait_ns);
    if (n < 0) return session_call_failed("weft_queue_poll", n);
    bool ok = true;
    for (int32_t i = 0; i < n; i++) ok = take(session, &done[i]) && ok;
    return ok;
}

bool session_wait(struct session *session, const char *what, bool (*done)(const struct session *)) {
    /* A little more than Weft's own deadline, so that Weft's more precise answer comes first. */
    uint64_t deadline = now_ns() + session->options->timeout_ns + 3 * NS_PER_S;
    progress_begin(what, 0);
    while (!done(session)) {
        if (session->peer_left) return complain("%s: the peer has left", what);
        if (now_ns() > deadline) return complain("%s: nothing came within --timeout", what);
        if (!session_poll(session, NS_PER_S / 10)) return false;
        progress_at(0);
    }
    progress_end();
    return true;
}

bool session_send(struct session *session, const void *data, uint64_t len) {
    weft_status status;
    while ((status = weft_send(session->endpoint, session->peer, data, len, NULL, NULL)) == WEFT_ERR_AGAIN) {
        if (!session_poll(session, NS_PER_S / 10)) return false;
    }
    if (status != WEFT_OK) return session_call_failed("weft_send", status);
    session->sends_open++;
    return true;
}

bool session_peer_is_up(const struct session *session) { return session->peer != 0; }
bool session_all_sent(const struct session *session) { return session->sends_open == 0; }
bool session_peer_has_left(const struct session *session) { return session->peer_left; }

/* ---- Memory ---- */

bool pool_allocate(struct pool *pool, uint32_t count, uint64_t len) {
    const uint64_t unit = 4096;
    *pool = (struct pool){.count = count, .len = len > 0 ? len : 1};
    pool->layers = calloc(count, sizeof *pool->layers);
    if (!pool->layers || pool->len > SIZE_MAX - unit) return complain("out of memory");
    for (uint32_t i = 0; i < count; i++) {
        pool->layers[i] = aligned_alloc(unit, (pool->len + unit - 1) / unit * unit);
        if (!pool->layers[i]) {
            return complain("cannot allocate %u x %s bytes", (unsigned)count, with_commas(pool->len).text);
        }
    }
    return true;
}

bool pool_register(struct pool *pool, struct session *session, uint32_t access) {
    weft_memory_range *ranges = calloc(pool->count, sizeof *ranges);
    if (!ranges) return complain("out of memory");
    for (uint32_t i = 0; i < pool->count; i++) {
        ranges[i] = (weft_memory_range){.address = pool->layers[i], .len = pool->len};
    }
    weft_memory_args args = WEFT_MEMORY_ARGS_INIT;
    args.access = access;
    weft_status status = weft_memory_register(session->endpoint, ranges, pool->count, &args, &pool->memory);
    free(ranges);
    return status == WEFT_OK || session_call_failed("weft_memory_register", status);
}

bool pool_deregister(struct pool *pool, struct session *session) {
    weft_status status;
    while ((status = weft_memory_deregister(pool->memory)) == WEFT_ERR_BUSY) {
        if (!session_poll(session, NS_PER_S / 10)) return false;
    }
    pool->memory = NULL;
    return status == WEFT_OK || session_call_failed("weft_memory_deregister", status);
}

void pool_free(struct pool *pool) {
    for (uint32_t i = 0; pool->layers && i < pool->count; i++) free(pool->layers[i]);
    free(pool->layers);
    *pool = (struct pool){0};
}
