/* One endpoint, one peer, and what has completed so far: the part that both sides of random_fill share. */
#ifndef SESSION_H
#define SESSION_H

#include <stdbool.h>
#include <weft.h>

#include "options.h"

struct session;

/* * Called for each message of the peer; false (after complaining) ends the job. */
typedef bool message_handler(struct session *session, const void *data, uint64_t len);

struct session {
    const struct options *options;
    weft_endpoint *endpoint;
    message_handler *on_message;

    weft_peer peer; /* 0 until it is up */
    weft_peer_properties properties;
    bool peer_left;
    bool peer_may_leave; /* the job is done: a closed peer is no longer a failure */

    uint32_t sends_open;
    bool write_ended;
    weft_completion write;
    bool notified;
    uint64_t notification;
};

/** Opens the endpoint that the options ask for. */
bool session_open(struct session *session, const struct options *options, message_handler *on_message);

/** Shuts down and closes. Memory can be freed when it has returned true. */
bool session_close(struct session *session);

/** Writes this endpoint's address to the socket and reads the other's from it. */
bool session_swap_addresses(struct session *session, int fd, void *theirs, size_t capacity, size_t *theirs_len);

/* * Handles completions, waiting up to `wait_ns` for the first. False if the job cannot continue. */
bool session_poll(struct session *session, uint64_t wait_ns);

/* * Polls until `done` returns true. `what` is shown meanwhile. False after complaining. */
bool session_wait(struct session *session, const char *what, bool (*done)(const struct session *));

/* * Sends a message to the peer, polling while the limit is reached. */
bool session_send(struct session *session, const void *data, uint64_t len);

/** For `session_wait`. */
bool session_peer_is_up(const struct session *session);
bool session_all_sent(const struct session *session);
bool session_peer_has_left(const struct session *session);

/** Complains about a call that failed. Returns false. */
bool session_call_failed(const char *call, weft_status status);

/** Equally long buffers, one for each layer, behind one memory handle. */
struct pool {
    uint8_t **layers;
    uint32_t count;
    uint64_t len;
    weft_memory *memory;
};

/** Allocates `count` buffers of `len` bytes, at least one of each. */
bool pool_allocate(struct pool *pool, uint32_t count, uint64_t len);
bool pool_register(struct pool *pool, struct session *session, uint32_t access);
/** Deregisters the memory; while own transfers still use it, polls. */
bool pool_deregister(struct pool *pool, struct session *session);
/** Frees the buffers: only once nothing can reach them, deregistered or with the endpoint closed. */
void pool_free(struct pool *pool);

#endif
