/*
   Weft moves memory between processes over every NIC of a machine, and says by
   a completion when the bytes have arrived.

   SPDX-License-Identifier: Apache-2.0 OR MIT

   A transfer of 1000 pages of each of 80 layers
   (errors left out: compilers warn):

       weft_endpoint *ep;
       weft_endpoint_create(NULL, &ep);

       weft_memory *kv;                     // 80 layers, one handle
       weft_memory_register(ep, layers, 80, NULL, &kv);

       weft_peer decode;                    // its address came by any means
       weft_peer_connect(ep, address, address_len, NULL, &decode);
       weft_remote_memory *theirs;          // and so did its descriptor
       weft_remote_memory_import(ep, decode, descriptor, descriptor_len,
                                 &theirs);

       weft_pages pages = WEFT_PAGES_INIT;
       pages.page_count = 1000;
       pages.page_len = 65536;
       pages.layer_count = 80;
       pages.local.pages = mine;
       pages.local.range_step = 1;
       pages.remote.pages = yours;
       pages.remote.range_step = 1;
       weft_op_options options = WEFT_OP_OPTIONS_INIT;
       options.flags = WEFT_NOTIFY;
       options.notify = request_id;
       options.user_data = request;
       weft_write_pages(ep, kv, theirs, &pages, &options, NULL);

       weft_completion done[64];
       weft_queue *queue = weft_endpoint_queue(ep);
       int32_t n = weft_queue_poll(queue, done, 64, UINT64_MAX);
       for (int32_t i = 0; i < n; i++) finish(&done[i]);

   Promises:

     1. Every accepted operation ends in exactly one completion, by its deadline
        plus 0.2 s at most, mostly some ms (docs/failures.md, "What ended
        early"). (With manual progress: while somebody polls. A list
        with WEFT_COMPLETE_EACH_PEER: in one for each of its peers.)
     2. A completion with WEFT_OK means done: every byte is visible at the
        target, and none arrives later. The same holds for a notification, at
        the target.
     3. No byte is lost or doubled; a notification arrives once.
     4. Any input is answered with a status and a message.

   Rules for every function:

     - Any thread may call it at any time, except in signal handlers and in a
       forked child (WEFT_ERR_FORKED). It does not block unless it says so. None is
       a cancellation point: a pthread_cancel acts at the thread's next one
       (PTHREAD_CANCEL_ASYNCHRONOUS is not allowed in a call).
     - Handles and ids are checked: NULL, a stale one, one of another kind or of
       another endpoint gives WEFT_ERR_HANDLE. A handle is no address.
     - A call that fails has started nothing, and weft_last_error() says why.
       Besides the errors that a function names, it may return WEFT_ERR_HANDLE,
       WEFT_ERR_INVALID, WEFT_ERR_CLOSED (the endpoint is shut down) and
       WEFT_ERR_INTERNAL.
     - Arrays, structs and data that are passed are copied, and belong to the
       caller again when the call returns.
     - What gives an object back takes NULL; the handle is invalid after
       WEFT_OK, and stays valid after an error.
     - Operations take `options` (NULL: defaults) and store their id in `op`
       (NULL: not wanted). They may also return WEFT_ERR_AGAIN (`max_transfers`
       or `queue_depth` are in use: poll, try again), WEFT_ERR_LIMIT and
       WEFT_ERR_UNSUPPORTED.
     - Structs begin with their size: start from their _INIT macro, or zero them
       and set `size`, so that programs work with later libraries. `reserved`
       is 0.
     - len, offset and stride are bytes; *_ns are nanoseconds.

   docs/details.md has the rarer conditions of some functions, docs/glossary.md
   the terms.
*/
#ifndef WEFT_H
#define WEFT_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__) || defined(__clang__)
#define WEFT_MUST_USE __attribute__((warn_unused_result))
#define WEFT_API __attribute__((visibility("default")))
#else
#define WEFT_MUST_USE
#define WEFT_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Statuses as C sees them, and the last message of a thread ---- */

/** `WEFT_OK` (0) or a negative `WEFT_ERR_*`. The numbers never change. A newer
    library may return others: `weft_status_name` and `weft_status_category`
    answer for them, too. */
typedef int32_t weft_status;

/** What a caller can do about a status. */
typedef int32_t weft_category;

#define WEFT_OK 0

/** No room (operations, completions, bytes of messages in flight), or nothing
    there yet. Poll, then try again. */
#define WEFT_ERR_AGAIN -1

/** The object is in use, by operations or still by a fabric. Poll until they
    have completed, then try again: until `WEFT_OK`, do not free what it names.
*/
#define WEFT_ERR_BUSY -2

#define WEFT_ERR_TIMED_OUT -20

/** Ended by `weft_op_cancel`, `weft_peer_disconnect` or this endpoint's
    shutdown. */
#define WEFT_ERR_CANCELED -21

/** The peer died or can no longer be reached. */
#define WEFT_ERR_PEER_LOST -22

/** The address or descriptor names an endpoint that no longer exists, and
    another one answers there; where none does: `WEFT_ERR_UNREACHABLE`. */
#define WEFT_ERR_PEER_GONE -23

/** The peer disconnected or shut its endpoint down. */
#define WEFT_ERR_PEER_CLOSED -24

/** No answer from the address within the connect timeout, or it refused. */
#define WEFT_ERR_UNREACHABLE -25

/** The two libraries have no wire version in common; the message names both
    ranges. */
#define WEFT_ERR_VERSION -26

/** The two endpoints have no fabric in common; the
    message names both sides'. */
#define WEFT_ERR_NO_COMMON_FABRIC -27

/** The remote memory was deregistered by its owner, or pages of one side's
    memory are gone: a mapped file became shorter. */
#define WEFT_ERR_MEMORY_GONE -28

/** The target refused the access (wrong key, or not the allowed direction). */
#define WEFT_ERR_REMOTE_ACCESS -29

/** The two sides do not have the same `secret`, or only one has one. */
#define WEFT_ERR_DENIED -30

/** The peer broke the protocol or exceeded a bound, and was dropped; the log
    says how. */
#define WEFT_ERR_PROTOCOL -31

/** A rail failed after this operation may already have raised a counter or sent
    its notification there, so that it cannot be retried safely. All other
    operations are retried on the remaining rails (over efa and libfabric's
    tcp the peer is lost instead: docs/failures.md). Also the status of
    `WEFT_COMPLETION_RAIL_DOWN`. */
#define WEFT_ERR_RAIL_LOST -32

/** The target refused the operation's grant: it was revoked, its time is over,
    it is not this peer's, or it does not cover the bytes or the direction. Bytes
    may have arrived before. */
#define WEFT_ERR_REVOKED -33

/** A file of one side failed a read or write, or its disk does not answer:
    `provider_errno` of the completion is the system's error number, like EIO,
    ENOSPC, ENODATA (past the end of the file), ETIMEDOUT. */
#define WEFT_ERR_FILE -34

/** An argument is wrong; the message says which and why. */
#define WEFT_ERR_INVALID -40

/** The handle or id is NULL, stale, of another kind or of another endpoint. */
#define WEFT_ERR_HANDLE -41

/** An access lies outside the memory. */
#define WEFT_ERR_RANGE -42

/** This fabric, build or version cannot do that. */
#define WEFT_ERR_UNSUPPORTED -43

/** A documented limit is exceeded. */
#define WEFT_ERR_LIMIT -44

/** An address or descriptor is damaged, truncated or something else. */
#define WEFT_ERR_FORMAT -45

/** The buffer is too small; the length it needs was stored. */
#define WEFT_ERR_TOO_SMALL -46

#define WEFT_ERR_CLOSED -47

/** A forked child of a process that uses Weft: nothing of Weft works in it, new
    endpoints neither. */
#define WEFT_ERR_FORKED -48

#define WEFT_ERR_NO_LIBFABRIC -70

/** No rail could be opened, or fewer than `min_rails`. */
#define WEFT_ERR_NO_RAILS -71

/** libfabric reported an error: see the message, or `provider_errno`. */
#define WEFT_ERR_FABRIC -72

/** Out of memory, registrations or another resource of the system. (Without the
    few KiB that everything needs a process ends by abort(): docs/details.md.)
*/
#define WEFT_ERR_NO_MEMORY -73

#define WEFT_ERR_SYSTEM -74

/** A defect of Weft. Every later call on the endpoint returns this, too. */
#define WEFT_ERR_INTERNAL -90

#define WEFT_CATEGORY_OK 0

/** Poll, then try again. */
#define WEFT_CATEGORY_RETRY 1

/** The peer, or the path to it: reconnect, or use another peer. */
#define WEFT_CATEGORY_PEER 2

/** The call is wrong: mend the program. */
#define WEFT_CATEGORY_USAGE 3

/** The machine: install, free or configure something. */
#define WEFT_CATEGORY_SYSTEM 4

/** A defect of Weft: report it. */
#define WEFT_CATEGORY_INTERNAL 5

/** The name of a status, as "WEFT_ERR_TIMED_OUT"; "WEFT_ERR_UNKNOWN" for an
    unknown negative number, "WEFT_OK" for a count. Static text. */
WEFT_API const char *weft_status_name(weft_status status);

/** One sentence on what a status means. Static text. */
WEFT_API const char *weft_status_text(weft_status status);

/** The `WEFT_CATEGORY_*` of a status: of unknown negative numbers
    `WEFT_CATEGORY_INTERNAL`, of counts `WEFT_CATEGORY_OK`. */
WEFT_API weft_category weft_status_category(weft_status status);

/** The message of the last failed call of this thread. "" before the first
    failure, never NULL; a call that succeeds leaves it alone. The pointer stays
    valid while the thread lives; the thread's next failure overwrites the text
    (at most 1,023 bytes). */
WEFT_API const char *weft_last_error(void);

/* ---- Endpoint objects ---- */

/** Worker threads drive the rails (the default). */
#define WEFT_PROGRESS_THREADS 0

/** No thread is started: `weft_queue_poll` drives the rails in the caller's
    thread. A program that does not poll makes no progress, and its peers'
    operations time out. */
#define WEFT_PROGRESS_MANUAL 1

/** Spin for 0.3 ms, then sleep until there is something to do (the default). */
#define WEFT_IDLE_ADAPTIVE 0

/** Never sleep: the shortest latency, for one core per worker. */
#define WEFT_IDLE_SPIN 1

/** Sleep at once, where all cores are needed. */
#define WEFT_IDLE_SLEEP 2

/** As `liveness_ns`: no peer is lost for its silence. */
#define WEFT_LIVENESS_OFF UINT64_MAX

/** An endpoint: the rails (opened NICs) of a process, the worker threads that
    drive them, and an address that peers connect to. Usually one for each GPU
    or rank. */
typedef struct weft_endpoint weft_endpoint;

/** How to open an endpoint. Start from `WEFT_ENDPOINT_CONFIG_INIT`; 0 or NULL
    in a field means its variable in the environment (WEFT_FABRIC for `fabric`),
    else its default. docs/configuration.md has each in full. */
typedef struct weft_endpoint_config {
    uint32_t size;
    /** None defined yet: 0. */
    uint32_t flags;
    /** Fabrics to open, separated by commas: "host" (between processes of one
        user on one host), "tcp" (plain sockets), "efa", "verbs", or a
        libfabric provider's exact name. A named fabric is never replaced by
        another. NULL or "": "host" and the best network fabric of this machine.
    */
    const char *fabric;
    /** NICs to use: patterns of their names, separated by commas; "*" matches
        any text, a leading "!" excludes ("eth*,!eth3"). NULL: the NICs near the
        GPUs or CPUs that this process may use. */
    const char *rails;
    /** Rails to open, 1 to 64, not counting that of "host". 0: one for each
        NIC. */
    uint32_t rail_count;
    /** With fewer rails than this the open fails with `WEFT_ERR_NO_RAILS`, 0 to
        64. 0: one is enough. */
    uint32_t min_rails;
    /** Connections between a NIC of tcp and one of a peer, 1 to 16; each is a
        rail. Not used with `rail_count`. 0: by the NIC's rate and the CPUs. */
    uint32_t tcp_streams;
    /** `WEFT_PROGRESS_THREADS` or `WEFT_PROGRESS_MANUAL`. */
    uint32_t progress;
    /** Worker threads, 1 to 64; never more than rails. 0: one for up to four
        rails of a NUMA node, fewer than CPUs. Ignored with manual progress. */
    uint32_t workers;
    /** Operations outstanding at once, 1 to 1,048,576. 0: 16,384. */
    uint32_t max_transfers;
    /** Completions that a queue holds, 16 to 1,048,576; an accepted operation
        has its place reserved. 0: 16,384. */
    uint32_t queue_depth;
    /** Peers at once, 1 to 65,536. 0: 4,096. */
    uint32_t max_peers;
    /** Counters at once, 1 to 1,048,576. 0: 65,536. */
    uint32_t max_counters;
    /** What idle workers do: `WEFT_IDLE_*`. With manual progress, what a
        waiting `weft_queue_poll` does. */
    uint32_t idle;
    /** Deadline of operations that name none, up to 24 hours. 0: 30 seconds. */
    uint64_t timeout_ns;
    /** Time that a connect may take, up to 24 hours. 0: 10 seconds. */
    uint64_t connect_timeout_ns;
    /** Bytes of messages that may wait for one peer, and that one peer may have
        waiting here unreleased, 1 MiB to 1 GiB. 0: 16 MiB. */
    uint64_t message_bytes;
    /** A secret that all endpoints share: 16 to 1,024 bytes, best 32 random
        ones. Peers prove it to connect, and it authenticates control frames;
        bytes of transfers need `encrypt`: docs/security.md. NULL: all who know
        the address may connect. */
    const void *secret;
    uint64_t secret_len;
    /** A peer that is silent for this long is lost: 1 second to 24 hours.
        Endpoints send each peer a keep-alive every second (manual progress:
        while they poll). 0: 120 seconds; `WEFT_LIVENESS_OFF`: never. */
    uint64_t liveness_ns;
    /** Another secret that peers may prove instead, of as many bytes, while one
        is replaced by the other. NULL: none. */
    const void *other_secret;
    uint64_t other_secret_len;
    /** A file with one or two secrets, one per line, in place of `secret` and
        `other_secret`; it is read again when it changes. NULL: none. */
    const char *secret_file;
    /** 1: encrypts and authenticates everything that crosses the network. Needs
        a secret, fabric "tcp", and the same on both sides. 0: no. */
    uint32_t encrypt;
    /** DSCP class of everything over tcp, 1 to 63. 0: the system's. */
    uint32_t tcp_dscp;
    /** Ports on which tcp listens, as "7000" or "7000-7099"; each rail takes
        one. NULL: the system picks them. */
    const char *tcp_ports;
    /** The address at which peers reach the rails of tcp, where addresses are
        translated; with `tcp_ports` it may have a port. NULL: the interface's.
    */
    const char *tcp_address;
    /** A file for a trace of this process until the shutdown: docs/traces.md.
        NULL: none. */
    const char *trace;
} weft_endpoint_config;

#define WEFT_ENDPOINT_CONFIG_INIT {sizeof(weft_endpoint_config),0,0,0,0,0,0, \
     0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0}

/** Opens an endpoint: opens the rails, starts the workers.

    `config`: NULL for all defaults. `endpoint`: receives the handle. Blocks for
    some ms ("host", "tcp") to some seconds (libfabric looks at the hardware).
    libfabric is libfabric.so.1, or what the environment variable WEFT_LIBFABRIC
    names; where it is used (not for "host" and "tcp"), other threads should not
    call getenv or setenv meanwhile. Signal handlers and mask, affinity and
    environment are as before on return.

    Errors: `WEFT_ERR_NO_LIBFABRIC`, `WEFT_ERR_NO_RAILS` (the message lists what
    was found), `WEFT_ERR_LIMIT`, `WEFT_ERR_UNSUPPORTED` (a newer config, or an
    unknown fabric), `WEFT_ERR_FABRIC`, `WEFT_ERR_NO_MEMORY`, `WEFT_ERR_SYSTEM`.
*/
WEFT_API
WEFT_MUST_USE
weft_status weft_endpoint_create(const weft_endpoint_config *config,
                                 weft_endpoint **endpoint);

/** Writes the address that peers pass to `weft_peer_connect`: some hundred
    bytes, not text, that may travel by any means. It is valid while the
    endpoint is open. If an interface gets other IP addresses meanwhile, tcp
    uses those, and so does what this function writes from then on; peers that
    are up return by themselves. An address that was written before reaches
    the endpoint over rails that still have one of their IP addresses in it.

    `buffer`, `capacity`: where to, and its size; NULL and 0 ask for the length
    only. `len`: receives the length.

    Errors: `WEFT_ERR_TOO_SMALL` (`len` is stored, nothing is written). */
WEFT_API
WEFT_MUST_USE
weft_status weft_endpoint_address(const weft_endpoint *endpoint,
                                  void *buffer,
                                  size_t capacity,
                                  size_t *len);

/** Ends all work: refuses new operations, lets running ones go on for
    `drain_timeout_ns` (0: none), cancels the rest, notifies the peers
    (`WEFT_ERR_PEER_CLOSED`), closes the rails and stops the workers. After
    `WEFT_OK` no NIC and no thread touches the caller's memory, and every
    completion (each peer's PEER_DOWN, too) can be polled: poll until
    `WEFT_ERR_CLOSED`. Memory can be deregistered and messages released until
    the destroy.

    Blocks for the drain time and some milliseconds; up to 1.2 s more while a
    peer does not answer. Again is harmless. Errors: `WEFT_ERR_TIMED_OUT` (a
    provider does not return, or does not close: keep the endpoint and the
    memory, and call again). */
WEFT_API
WEFT_MUST_USE
weft_status weft_endpoint_shutdown(weft_endpoint *endpoint,
                                   uint64_t drain_timeout_ns);

/** Destroys an endpoint, after a shutdown without draining if there was none.
    Completions not polled, messages not released, and memory, remote memory and
    other objects of the endpoint go with it.

    Errors: `WEFT_ERR_BUSY` (operations are outstanding: shut down first, or
    poll until they have completed), `WEFT_ERR_TIMED_OUT` as with shutdown. */
WEFT_API
WEFT_MUST_USE
weft_status weft_endpoint_destroy(weft_endpoint *endpoint);

/* ---- Operations: their ids, and the options that all of them take ---- */

/** Of transfers: when the last byte has arrived, the peer gets one
    `WEFT_COMPLETION_NOTIFICATION` with `notify`; the transfer completes when
    that has arrived, too. */
#define WEFT_NOTIFY 1

/** Of transfers and atomics: latency class, posted before bulk transfers, a
    little past a full window. For small transfers that somebody waits for. */
#define WEFT_CLASS_LATENCY 2

/** Of writes with a `counter`: raises it by 1 for each page that has arrived
    (of each layer; a `weft_write` is one page), not once at the end. A page is
    at most 1 GiB, or the fabric's longest message (`WEFT_ERR_LIMIT`). Over
    libfabric's tcp the counter rises by all pages after the last. A peer that
    does not poll (manual progress) may hold such pages up. Not of reads
    (`WEFT_ERR_UNSUPPORTED`). */
#define WEFT_COUNT_PAGES 4

/** Of lists: one completion for each peer instead of one for all. */
#define WEFT_COMPLETE_EACH_PEER 8

/** With `WEFT_NOTIFY`: of a failure, too, with its status instead of the data.
*/
#define WEFT_NOTIFY_FAILURE 16

/** Of writes into files (`WEFT_MEMORY_FILE`) of a peer with
    `WEFT_CAPABILITY_DURABLE`: the bytes, and all that was written to these files
    before, survive a power cut of the peer before completion, notification and
    counter. One flush serves all writes that wait for it. Where it fails, they
    end with `WEFT_ERR_FILE`, and so does all that uses the memory later, until
    the file is registered anew. Not of reads, nor of other memory
    (`WEFT_ERR_UNSUPPORTED`), nor with `WEFT_COUNT_PAGES`. Since 0.3. */
#define WEFT_DURABLE 32

#define WEFT_NOTIFY_DATA_MAX 256

/** A completion queue: the endpoint's own (`weft_endpoint_queue`), or one more.
*/
typedef struct weft_queue weft_queue;

/** A word that starts an operation, or that is set when one has ended. */
typedef struct weft_watch weft_watch;

/** A submitted operation, as an id that is not reused within 2^42 operations. 0
    is never an operation. */
typedef uint64_t weft_op;

/** A counter, as an id that its owner sends to peers and that they name in
    operations that raise it. 0 is no counter. A peer that knows or guesses an
    id can raise the counter. */
typedef uint64_t weft_counter;

/** Names a grant: 16 bytes, 64 random bits among them, that never repeat. The
    owner sends them to the peer, for the options of its operations. */
typedef struct weft_grant_token {
    uint8_t bytes[16];
} weft_grant_token;

/** Options of an operation: start from `WEFT_OP_OPTIONS_INIT`, or pass NULL for
    all defaults. Every operation has `timeout_ns`, `user_data` and `queue` (a
    connect no `queue`); transfers have all but what their functions except;
    `weft_counter_expect` has `done_watch`. An option that an operation does not
    have is refused (`WEFT_ERR_INVALID`, flags: `WEFT_ERR_UNSUPPORTED`). */
typedef struct weft_op_options {
    uint32_t size;
    /** Such flags added up; 0: none. */
    uint32_t flags;
    /** Nanoseconds from the call to the deadline, up to 24 hours. 0: the
        endpoint's `timeout_ns` (of a connect: `connect_timeout_ns`). */
    uint64_t timeout_ns;
    /** Returned in the completion. */
    void *user_data;
    /** The queue that gets the completion. NULL: the endpoint's own. */
    const weft_queue *queue;
    /** With `WEFT_NOTIFY`: the notification's value; else 0. */
    uint64_t notify;
    /** With `WEFT_NOTIFY`: data of the notification; NULL: none. */
    const void *notify_data;
    /** Bytes of `notify_data`, up to `WEFT_NOTIFY_DATA_MAX`. */
    uint32_t notify_data_len;
    uint32_t reserved;
    /** A counter of the peer, raised by 1, exactly once, after the last byte,
        also where there are no bytes; the transfer completes when it was
        raised. With `WEFT_COUNT_PAGES`: by 1 for each page. 0: none. Increments
        to a counter that the peer has destroyed are discarded silently; another
        endpoint's is `WEFT_ERR_HANDLE`. Not of lists, whose entries name
        counters. */
    weft_counter counter;
    /** The transfer starts when this watch has reached `start_value`; its
        deadline counts from the call. NULL: at once. */
    const weft_watch *start_watch;
    uint64_t start_value;
    /** Set to `done_value` when the operation has ended, with whatever status,
        just before its completion. NULL: none. */
    const weft_watch *done_watch;
    uint64_t done_value;
    /** Of transfers and atomics: the peer's grant; all bytes 0: none.
        What it does not cover, and all after its revoke, ends with
        `WEFT_ERR_REVOKED`. */
    weft_grant_token grant;
} weft_op_options;

#define WEFT_OP_OPTIONS_INIT {sizeof(weft_op_options),0,0,0,0,0,0,0,0,0,0,0, \
     0,0,{{0}}}

/** Ends a transfer, send, atomic or wait for counters early: it completes with
    `WEFT_ERR_CANCELED`, unless it has completed already. A transfer completes
    when its NICs have stopped using the local memory, in most cases at once.
    Bytes, notification and counter may have arrived, or may still until a fence
    or (also if the sender lies) a revoke at the target: treat its contribution
    to a counter as unknown.

    Errors: `WEFT_ERR_HANDLE` (completed already). */
WEFT_API
WEFT_MUST_USE
weft_status weft_op_cancel(weft_endpoint *endpoint,
                           weft_op op);

/* ---- Peers: connecting, disconnecting, and what is known of them ---- */

/** Of a peer: it does `weft_fetch_add` and `weft_compare_swap`. */
#define WEFT_CAPABILITY_ATOMICS 1

/** Of a peer: it does `WEFT_DURABLE`. Since 0.3. */
#define WEFT_CAPABILITY_DURABLE 2

/** A remote endpoint, as a checked id. 0 is never a peer. Calls that name one
    which has ended return `WEFT_ERR_PEER_LOST` or `WEFT_ERR_PEER_CLOSED` until its
    PEER_DOWN was polled, then `WEFT_ERR_HANDLE`: also while you handle what came
    before the PEER_DOWN in the same poll. Treat it as `WEFT_ERR_PEER_CLOSED`. Calls
    that name the peer's memory (`weft_write`) keep the first two. */
typedef uint64_t weft_peer;

/** Filled by `weft_peer_info`. */
typedef struct weft_peer_properties {
    uint32_t size;
    uint32_t up;
    /** Lanes that are up: pairs of one of our rails and one of theirs. */
    uint32_t lanes;
    /** Rails of ours, and of theirs, that have a lane. Ours count by the NICs
        that carry: one in whose place another NIC carries does not count. */
    uint32_t local_rails;
    uint32_t remote_rails;
    /** `WEFT_CAPABILITY_*` added up; 0 until it is up. */
    uint32_t capabilities;
    /** As in the peer's `weft_endpoint_properties`. */
    uint64_t incarnation;
    /** The fabric in use for this peer; "" until it is up. */
    char fabric[64];
    /** Why this fabric; of better ones, why not. */
    char reason[256];
    /** Of its first rail over this fabric, as "10.0.0.7:4711". Since 0.3. */
    char address[128];
} weft_peer_properties;

#define WEFT_PEER_PROPERTIES_INIT {sizeof(weft_peer_properties),0,0,0,0,0,0, \
     {0},{0},{0}}

/** Starts to connect to the endpoint that wrote `address`. One
    `WEFT_COMPLETION_PEER_UP` in the endpoint's own queue answers: `WEFT_OK`,
    `WEFT_ERR_UNREACHABLE`, `WEFT_ERR_PEER_GONE`, `WEFT_ERR_VERSION`,
    `WEFT_ERR_DENIED`, `WEFT_ERR_CANCELED` or `WEFT_ERR_SYSTEM` (this side has no
    port or descriptor left). The other side gets one with
    `accepted` 1, and needs to do nothing. A peer that was up ends in exactly
    one `WEFT_COMPLETION_PEER_DOWN`; once that is polled, nothing of the peer
    arrives here any longer (over efa its writes may, in memory without
    `WEFT_ACCESS_GRANTED`, until that is deregistered).

    `options`: `timeout_ns` and `user_data`. `peer`: receives the id, for use at
    once: operations wait until the peer is up. Endpoints that connect to each
    other become one peer, and one may connect to itself; connecting to a peer
    gives the same id and one more PEER_UP, with `accepted` 0: one that is ending
    answers `WEFT_ERR_CANCELED`, `WEFT_ERR_PEER_CLOSED` or `WEFT_ERR_PEER_LOST`. To
    identify a peer that connected, compare `incarnation` of
    `weft_peer_properties`.
    docs/details.md: choice of the fabric. docs/failures.md: how soon a death is
    noticed.

    Errors: `WEFT_ERR_FORMAT`, `WEFT_ERR_NO_COMMON_FABRIC`, `WEFT_ERR_VERSION`,
    `WEFT_ERR_INVALID`, `WEFT_ERR_LIMIT` (`max_peers`), `WEFT_ERR_AGAIN` (the
    queue is full). */
WEFT_API
WEFT_MUST_USE
weft_status weft_peer_connect(weft_endpoint *endpoint,
                              const void *address,
                              size_t address_len,
                              const weft_op_options *options,
                              weft_peer *peer);

/** Ends the connection with a peer: its operations end at once with
    `WEFT_ERR_CANCELED`; both sides drain what is in flight; a
    `WEFT_COMPLETION_PEER_DOWN` with `WEFT_OK` follows, within 3 seconds also if
    the peer does not answer, unless a provider does not return. The id is valid until then. The peer gets a
    PEER_DOWN with `WEFT_ERR_PEER_CLOSED`. Its remote memory remains to be
    released. */
WEFT_API
WEFT_MUST_USE
weft_status weft_peer_disconnect(weft_endpoint *endpoint,
                                 weft_peer peer);

/** Writes why a peer ended or could not be reached, as text: the addresses that
    were tried, and what each answered. Known of the last 256 peers that ended,
    from the completion that says so; of one that is there, why its fabric
    serves it. Since 0.3.

    `buffer`, `capacity`, `len`: as in `weft_topology`: `*len` does not count the
    NUL, for which `capacity` needs a byte more. Errors: `WEFT_ERR_HANDLE` (no such
    peer), `WEFT_ERR_TOO_SMALL`. */
WEFT_API
WEFT_MUST_USE
weft_status weft_peer_reason(const weft_endpoint *endpoint,
                             weft_peer peer,
                             char *buffer,
                             size_t capacity,
                             size_t *len);

/** Fills in what is known of a peer that has not ended. */
WEFT_API
WEFT_MUST_USE
weft_status weft_peer_info(const weft_endpoint *endpoint,
                           weft_peer peer,
                           weft_peer_properties *properties);

/* ---- Memory of this process, and memory of peers ---- */

#define WEFT_ACCESS_REMOTE_WRITE 1

#define WEFT_ACCESS_REMOTE_READ 2

/** Only this process uses it, in its own transfers; it has no descriptor.
    Excludes the others. */
#define WEFT_ACCESS_LOCAL 4

/** Peers reach it under grants alone (`weft_grant_create`): add REMOTE_WRITE or
    REMOTE_READ; neither: both. Without this grants protect nothing: the
    descriptor reaches all. */
#define WEFT_ACCESS_GRANTED 8

/** Found out from the pointers, if the program has loaded CUDA. */
#define WEFT_MEMORY_ANY 0

/** Memory that the CPU reads and writes: ordinary, pinned by CUDA, or managed
    by it (the CPU does the copying). */
#define WEFT_MEMORY_HOST 1

/** Memory of a CUDA device: cudaMalloc, cudaMallocAsync, the virtual memory
    API, or managed. */
#define WEFT_MEMORY_CUDA 2

/** Bytes of a file or block device, `fd`: a range's `address` is its first
    byte's offset (NULL: 0). See docs/files.md. */
#define WEFT_MEMORY_FILE 3

/** The NUMA node of most of the endpoint's rails, if known, else the system's
    choice. */
#define WEFT_NUMA_ANY -1

/** Ranges of this process's memory, registered with the rails. */
typedef struct weft_memory weft_memory;

/** Memory of a peer. */
typedef struct weft_remote_memory weft_remote_memory;

typedef struct weft_memory_range {
    void *address;
    /** Bytes, 1 to 2^47. */
    uint64_t len;
} weft_memory_range;

/** How to register. Start from `WEFT_MEMORY_ARGS_INIT`. */
typedef struct weft_memory_args {
    uint32_t size;
    /** `WEFT_ACCESS_*`. 0: remote write and remote read. */
    uint32_t access;
    /** The rails that carry transfers of the memory: bit i is rail i of
        `weft_rail_info` (that of `host` is one, too). 0: all; of a GPU's
        memory, those nearest to it. Where no lane joins the rails of two
        memories, the first transfer has one made, or ends with
        `WEFT_ERR_NO_RAILS` or `WEFT_ERR_UNREACHABLE`. */
    uint64_t rails;
    /** `WEFT_MEMORY_*`. All ranges are of one kind, and on one device. */
    uint32_t kind;
    uint32_t reserved;
    /** With `WEFT_MEMORY_FILE`, else 0: the file or block device. Weft opens it
        again; yours may be closed afterwards. */
    int32_t fd;
    uint32_t reserved2;
} weft_memory_args;

#define WEFT_MEMORY_ARGS_INIT {sizeof(weft_memory_args),0,0,0,0,0,0}

/** Allocates zeroed memory that is ready for transfers: on huge pages if the
    system has them, and such that writes from it to peers on this host are
    about 1.5 times as fast.

    `len`: 1 to 2^47, rounded up to whole pages. `numa_node`: 0 to 63 (another
    if that has no room), or `WEFT_NUMA_ANY`. `address`: receives the first
    byte. The caller owns the memory, registers it like any other, and gives it
    back with `weft_memory_free`; it outlives the endpoint. A peer on this host
    that is written to may read all of it. Blocks while the system provides the
    pages.

    Errors: `WEFT_ERR_NO_MEMORY`, `WEFT_ERR_LIMIT`, `WEFT_ERR_SYSTEM`. */
WEFT_API
WEFT_MUST_USE
weft_status weft_memory_alloc(weft_endpoint *endpoint,
                              uint64_t len,
                              int32_t numa_node,
                              void **address);

/** Frees memory of `weft_memory_alloc`. `endpoint`: any endpoint of this
    process. `address`: as it was received; NULL is fine.

    Errors: `WEFT_ERR_BUSY` (some of it is registered by an endpoint that is not
    shut down), `WEFT_ERR_INVALID` (no such address, or freed already). */
WEFT_API
WEFT_MUST_USE
weft_status weft_memory_free(weft_endpoint *endpoint,
                             void *address);

/** Registers memory, so that transfers can use it and peers can reach it.

    `ranges`, `count`: 1 to 65,536 ranges, which keep their order. They must be
    readable, and writable where peers may write or a `weft_read` goes to, and
    stay mapped so until `weft_memory_deregister` has returned `WEFT_OK`: else
    this process can crash. Of mapped files: docs/details.md. GPU memory:
    docs/gpu.md. Files: docs/files.md. `args`: NULL for defaults. `memory`:
    receives the handle.

    Blocks while the NICs register the pages, up to seconds for many gigabytes.
    Errors: `WEFT_ERR_INVALID` (also memory that is not mapped, or not of that
    `kind`), `WEFT_ERR_UNSUPPORTED` (no CUDA driver, memory of another
    context), `WEFT_ERR_LIMIT`,
    `WEFT_ERR_SYSTEM` (no thread for files), `WEFT_ERR_FABRIC`,
    `WEFT_ERR_NO_MEMORY` (the NIC or the limit of locked memory is exhausted, or
    a mapped file has no such pages, or no room for them), `WEFT_ERR_TIMED_OUT`
    (a provider does not return, or does not give back what it had registered: a
    NIC may still use the memory, so keep it). */
WEFT_API
WEFT_MUST_USE
weft_status weft_memory_register(weft_endpoint *endpoint,
                                 const weft_memory_range *ranges,
                                 size_t count,
                                 const weft_memory_args *args,
                                 weft_memory **memory);

/** Writes the descriptor that a peer passes to `weft_remote_memory_import`. It
    is a key: treat it as a secret. Its size grows with ranges x rails.

    `buffer`, `capacity`, `len`: as in `weft_endpoint_address`. Errors:
    `WEFT_ERR_TOO_SMALL`, `WEFT_ERR_INVALID` (`WEFT_ACCESS_LOCAL`). */
WEFT_API
WEFT_MUST_USE
weft_status weft_memory_export(const weft_memory *memory,
                               void *buffer,
                               size_t capacity,
                               size_t *len);

/** Takes memory back from NICs and peers. After `WEFT_OK` nothing changes it
    any longer, and it can be freed; later transfers of peers to it end with
    `WEFT_ERR_MEMORY_GONE`.

    Blocks for a round trip to the slowest importer; one that does not answer
    within 2 seconds is disconnected (PEER_DOWN with `WEFT_ERR_PEER_LOST`). With
    manual progress keep polling until the peers have deregistered, too. Waits up
    to 10 ms for what ended early and is being put away.

    Errors: `WEFT_ERR_BUSY` (own transfers or grants use it: poll, revoke, try
    again; over host also what ended early at a process that is stopped, until
    it goes on or is down), `WEFT_ERR_FABRIC` (a NIC keeps a part of it), `WEFT_ERR_TIMED_OUT`
    (a provider does not return). After the last two NICs may still use it: do
    not free it; call again, or shut down (which waits for a disk, too). */
WEFT_API
WEFT_MUST_USE
weft_status weft_memory_deregister(weft_memory *memory);

/** Makes a peer's memory usable as the remote side of transfers.

    `peer`: its owner; it may still be connecting. `descriptor`: from its
    `weft_memory_export`. Transfers may be submitted at once: the owner is asked
    in the background whether the memory still exists, and they end with
    `WEFT_ERR_MEMORY_GONE` if it does not.

    Errors: `WEFT_ERR_FORMAT`, `WEFT_ERR_PEER_GONE` (of another incarnation than
    the peer, as after a restart), `WEFT_ERR_MEMORY_GONE`. */
WEFT_API
WEFT_MUST_USE
weft_status weft_remote_memory_import(weft_endpoint *endpoint,
                                      weft_peer peer,
                                      const void *descriptor,
                                      size_t descriptor_len,
                                      weft_remote_memory **remote);

/** Gives a remote memory back; waits as `weft_memory_deregister` does for what
    ended early. Errors: `WEFT_ERR_BUSY` (transfers, atomics or prepared
    geometries use it). */
WEFT_API
WEFT_MUST_USE
weft_status weft_remote_memory_release(weft_remote_memory *remote);

/* ---- Completions, and the queues that hand them out ---- */

typedef int32_t weft_completion_kind;

/** One completion, of 128 bytes. Fields that a kind does not name are 0; `rail`
    and `entry` all ones.

    In the endpoint's own queue a peer's PEER_UP comes before anything else of
    that peer, and nothing of it after its PEER_DOWN, as one polling thread sees
    it. (A list over several peers may name one that has ended.) */
typedef struct weft_completion {
    weft_completion_kind kind;
    /** `WEFT_OK`, or how it failed. */
    weft_status status;
    /** Id of the operation; of a message or of a notification with data, the id
        for `weft_message_release`. */
    weft_op op;
    void *user_data;
    /** The other side; 0 of a wait for counters and of a revoke. Of a
        NOTIFICATION, its sender: any peer can send any `notify`, so compare
        this. Lists: `weft_write_list`. */
    weft_peer peer;
    /** NOTIFICATION: the `notify` of the peer's transfer. */
    uint64_t notify;
    /** WRITE, READ, SEND: bytes moved, all or (failed) 0. MESSAGE,
        NOTIFICATION: bytes of `data`. */
    uint64_t bytes;
    /** MESSAGE, NOTIFICATION: the data, until it is released. */
    const void *data;
    /** The error number of the system, or of libfabric (fi_errno.h); 0: none.
        The log has its text. */
    int32_t provider_errno;
    /** The rail that failed, or 0xffffffff. */
    uint32_t rail;
    /** WRITE, READ of a list that failed: the first entry of what failed. */
    uint64_t entry;
    /** When it was submitted, first posted to a NIC, and done: nanoseconds of
        CLOCK_MONOTONIC. 0: never. */
    uint64_t submit_ns;
    uint64_t first_post_ns;
    uint64_t done_ns;
    /** ATOMIC: what the word was before. */
    uint64_t previous;
    /** PEER_UP: 1 if the peer connected to us; 0 if it
        answers our own connect. */
    uint32_t accepted;
    uint32_t reserved[5];
} weft_completion;

/** A `weft_write`, `weft_write_pages`, `_list` or `_prepared` ended. */
#define WEFT_COMPLETION_WRITE 1

/** A `weft_read`, `weft_read_pages`, `_list` or `_prepared` ended. */
#define WEFT_COMPLETION_READ 2

#define WEFT_COMPLETION_SEND 3

/** A message of a peer arrived: `data`, `bytes`; to be released. */
#define WEFT_COMPLETION_MESSAGE 4

/** A notification of a peer arrived: `notify`, and `data` and `bytes` if it has
    data (then release it). All bytes of its transfer arrived before it. */
#define WEFT_COMPLETION_NOTIFICATION 5

/** A connect ended, or a peer connected (`accepted` 1). */
#define WEFT_COMPLETION_PEER_UP 6

/** A peer that was up has ended: `WEFT_OK` (we disconnected),
    `WEFT_ERR_PEER_CLOSED`, `WEFT_ERR_PEER_LOST`. All operations with it have
    completed; its id is stale. */
#define WEFT_COMPLETION_PEER_DOWN 7

#define WEFT_COMPLETION_COUNTER 8

/** A `weft_fetch_add` or `weft_compare_swap` ended: `previous`. */
#define WEFT_COMPLETION_ATOMIC 9

/** `rail` has no lane up to any peer, though others serve one of them (for 0.3
    s; at once without a link): `WEFT_ERR_RAIL_LOST`, `provider_errno`. Its work
    moves to the others. (A rail that is the only one of its peers is not
    reported: they wait for it, or end.) */
#define WEFT_COMPLETION_RAIL_DOWN 10

/** `rail` reaches a peer again, and is used. */
#define WEFT_COMPLETION_RAIL_UP 11

/** A `weft_peer_fence` or `weft_grant_revoke` ended. */
#define WEFT_COMPLETION_FENCE 12

/** The endpoint's own queue: it gets messages, notifications, events of peers
    and rails, and completions of operations that name no other queue. It is not
    destroyed by the caller. NULL if the handle is not that of an open endpoint
    (`weft_last_error`). */
WEFT_API
WEFT_MUST_USE
weft_queue *weft_endpoint_queue(const weft_endpoint *endpoint);

/** Makes a further queue, for operations that name it. `depth`: completions it
    holds, 16 to 1,048,576; 0: the endpoint's `queue_depth`. Errors:
    `WEFT_ERR_LIMIT`, `WEFT_ERR_NO_MEMORY`. */
WEFT_API
WEFT_MUST_USE
weft_status weft_queue_create(weft_endpoint *endpoint,
                              uint32_t depth,
                              weft_queue **queue);

/** Takes up to `max` completions from a queue, in the order in which they were
    published, and waits up to `timeout_ns` for the first (0: does not block;
    UINT64_MAX: for ever). Several threads may poll one queue. With manual
    progress this drives the rails.

    Returns how many were stored, 0 to `max` (a count, not a status; 0: the time
    passed), or a negative `weft_status`: `WEFT_ERR_CLOSED` once the endpoint is
    shut down and the queue is empty. */
WEFT_API
int32_t weft_queue_poll(weft_queue *queue,
                        weft_completion *completions,
                        uint32_t max,
                        uint64_t timeout_ns);

/** Arms the event fd of a queue: the next completion makes it readable
    (POLLIN), once. For epoll, poll(2), asyncio: poll until 0, arm, and sleep
    only if arming returned `WEFT_OK`.

    `fd`: receives the event fd, always the same one; NULL if not wanted. It
    belongs to the queue: do not read, write or close it. It stays readable
    until the next arm; edge-triggered epoll is fine.

    Returns `WEFT_OK` (the queue is empty) or `WEFT_ERR_AGAIN` (`fd` is stored,
    but there are completions: poll first). Errors: `WEFT_ERR_CLOSED` once the
    endpoint is shut down and the queue is empty; `WEFT_ERR_UNSUPPORTED` with
    manual progress; `WEFT_ERR_SYSTEM` (no descriptor is left). */
WEFT_API
WEFT_MUST_USE
weft_status weft_queue_arm(weft_queue *queue,
                           int32_t *fd);

/** Destroys a queue. A thread that waits in `weft_queue_poll` for it returns
    `WEFT_ERR_HANDLE`. Errors: `WEFT_ERR_BUSY` (operations that name it are
    outstanding, or completions were not polled), `WEFT_ERR_INVALID` (an
    endpoint's own queue). */
WEFT_API WEFT_MUST_USE weft_status weft_queue_destroy(weft_queue *queue);

/* ---- Transfers: writes and reads of ranges and pages ---- */

/** Where the pages of a transfer are on one side. */
typedef struct weft_page_side {
    /** `page_count` page indexes. NULL: 0, 1, 2, ... */
    const uint32_t *pages;
    /** Bytes from one page to the next. 0: `page_len`. */
    uint64_t page_stride;
    /** Bytes from the start of the range to page 0 of layer 0. */
    uint64_t offset;
    /** Bytes from one layer to the next, within a range. */
    uint64_t layer_stride;
    /** The range of layer 0. */
    uint32_t first_range;
    /** Ranges from one layer to the next. Several layers are not written to one
        place (both 0: `WEFT_ERR_INVALID`), but may be read from one. Of one
        layer, both may be 0. */
    uint32_t range_step;
} weft_page_side;

/** The geometry of pages x layers. Start from `WEFT_PAGES_INIT`. On each side,
    page `i` of layer `l` is at

        range   first_range + l * range_step
        offset  offset + pages[i] * page_stride + l * layer_stride
        len     page_len

    so that layers can be ranges of their own (`range_step` 1) or lie behind
    each other in one (`layer_stride`), and a page can be a part of the other
    side's page. Nothing else is moved. Pages may repeat; where destinations
    overlap, it is not defined which bytes win. */
typedef struct weft_pages {
    uint32_t size;
    /** Layers, up to 65,536. 0: 1. */
    uint32_t layer_count;
    /** Bytes of a page: 1 to 2^47; 0 only with a `page_count` of 0. */
    uint64_t page_len;
    /** Pages in each layer, up to 2^32 - 1. 0 moves nothing, and completes and
        notifies all the same. */
    uint64_t page_count;
    weft_page_side local;
    weft_page_side remote;
} weft_pages;

#define WEFT_PAGES_INIT {sizeof(weft_pages),0,0,0,{0,0,0,0,0,0}, \
     {0,0,0,0,0,0}}

/** Writes one range of local memory into remote memory.

    Ends in one `WEFT_COMPLETION_WRITE`. `WEFT_OK`: every byte is visible at the
    target, and none arrives later. The local bytes must not change before.
    Operations have no order among each other.

    After any other status, bytes (any of them: a page may be cut at any byte),
    notification and counter may have arrived, each once, or may still arrive
    until the target has a `weft_peer_fence` or `weft_grant_revoke`, has polled
    this peer's PEER_DOWN or has deregistered the memory: docs/pages-back.md.
    Local memory is left alone after the completion, with one exception (a NIC
    that does not return it within 160 ms): docs/failures.md.

    `local`, `remote`: needed also with a `len` of 0, which moves nothing, and
    completes and notifies all the same. `local_offset`, `remote_offset`: from
    the memory's start, all ranges counted through; the bytes must be in one
    range.

    Errors: `WEFT_ERR_RANGE`, `WEFT_ERR_REMOTE_ACCESS` (registered without this
    direction), `WEFT_ERR_INVALID` (also: the memory needs a grant),
    `WEFT_ERR_REVOKED`, `WEFT_ERR_MEMORY_GONE`, `WEFT_ERR_PEER_LOST`,
    `WEFT_ERR_PEER_CLOSED`. */
WEFT_API
WEFT_MUST_USE
weft_status weft_write(weft_endpoint *endpoint,
                       const weft_memory *local,
                       uint64_t local_offset,
                       const weft_remote_memory *remote,
                       uint64_t remote_offset,
                       uint64_t len,
                       const weft_op_options *options,
                       weft_op *op);

/** Reads one range of remote memory into local memory: as `weft_write`, in the
    other direction. `WEFT_COMPLETION_READ` with `WEFT_OK`: every byte is in
    local memory. A notification goes to the peer after the last byte was read.
*/
WEFT_API
WEFT_MUST_USE
weft_status weft_read(weft_endpoint *endpoint,
                      const weft_memory *local,
                      uint64_t local_offset,
                      const weft_remote_memory *remote,
                      uint64_t remote_offset,
                      uint64_t len,
                      const weft_op_options *options,
                      weft_op *op);

/** Writes pages; otherwise as `weft_write`. The cost of the call grows with
    `page_count`, not with layers or bytes. */
WEFT_API
WEFT_MUST_USE
weft_status weft_write_pages(weft_endpoint *endpoint,
                             const weft_memory *local,
                             const weft_remote_memory *remote,
                             const weft_pages *pages,
                             const weft_op_options *options,
                             weft_op *op);

/** Reads pages; otherwise as `weft_read` and `weft_write_pages`. Many small
    pages are faster written by the peer. */
WEFT_API
WEFT_MUST_USE
weft_status weft_read_pages(weft_endpoint *endpoint,
                            const weft_memory *local,
                            const weft_remote_memory *remote,
                            const weft_pages *pages,
                            const weft_op_options *options,
                            weft_op *op);

/* ---- Messages: small control data, in order ---- */

#define WEFT_MESSAGE_MAX 1048576

/** Sends a message. Messages of one peer arrive in the order of their calls,
    each once, as `WEFT_COMPLETION_MESSAGE` in the peer's own endpoint queue;
    they have no order with transfers.

    Ends in one `WEFT_COMPLETION_SEND`; `WEFT_OK`: it is in the peer's queue. A
    peer that does not poll or release holds back its senders, within
    `message_bytes`; nothing is dropped. After any other status it may have
    arrived, or may still; later ones arrive all the same.

    `peer`: it may still be connecting. `data`: copied, `len` bytes, 0 to
    `WEFT_MESSAGE_MAX`. Errors: `WEFT_ERR_PEER_LOST`, `WEFT_ERR_PEER_CLOSED`. */
WEFT_API
WEFT_MUST_USE
weft_status weft_send(weft_endpoint *endpoint,
                      weft_peer peer,
                      const void *data,
                      uint64_t len,
                      const weft_op_options *options,
                      weft_op *op);

/** Gives back the data of a `WEFT_COMPLETION_MESSAGE` or
    `WEFT_COMPLETION_NOTIFICATION`, named by its `op`; `data` is valid until
    then. 0 is fine (there was no data). */
WEFT_API
weft_status weft_message_release(weft_endpoint *endpoint,
                                 weft_op message);

/* ---- Fences: what a peer has accepted no longer changes memory here ---- */

/** Waits until no operation that the peer had accepted before it saw the fence
    can change local memory, notify or raise counters here, whatever its
    outcome.

    Call it before memory is reused that writes of the peer may still reach:
    your request timed out, or the peer says that a write failed. Without
    grants, nothing is needed after the write's notification, PEER_DOWN (except
    over efa) or `weft_memory_deregister`. docs/pages-back.md has the whole of
    it.

    Ends in one `WEFT_COMPLETION_FENCE`. With `WEFT_OK` it is so, and every
    notification of those operations is in the queue already; any other status
    promises nothing. The fence ends no operation, and waits for the peer's
    until their deadlines: have the peer cancel them, give the fence a longer
    deadline, or disconnect. What the peer accepts later is not waited for.

    `peer`: it may still be connecting. In the completion: `WEFT_ERR_TIMED_OUT`,
    `WEFT_ERR_LIMIT` (64 fences are under way), `WEFT_ERR_PEER_LOST`,
    `WEFT_ERR_PEER_CLOSED`. */
WEFT_API
WEFT_MUST_USE
weft_status weft_peer_fence(weft_endpoint *endpoint,
                            weft_peer peer,
                            const weft_op_options *options,
                            weft_op *op);

/* ---- Grants: what a peer may reach of a memory until it is revoked ---- */

/** What is granted. Start from `WEFT_GRANT_ARGS_INIT`. */
typedef struct weft_grant_args {
    uint32_t size;
    /** `WEFT_ACCESS_REMOTE_WRITE` and `WEFT_ACCESS_REMOTE_READ` added up. 0:
        what the memory has. */
    uint32_t access;
    /** Which pages, as the peer's `remote` side has them. NULL: the whole
        memory. */
    const weft_page_side *pages;
    /** With `pages`, as in `weft_pages`; up to 1,048,576 pages in all. */
    uint64_t page_len;
    uint64_t page_count;
    uint32_t layer_count;
    /** 0, or `WEFT_NOTIFY_FAILURE`: here, if the peer ends or the time is over.
    */
    uint32_t flags;
    /** Nanoseconds, up to 24 hours, until the grant ends as by a revoke; revoke
        it all the same. 0: none. */
    uint64_t timeout_ns;
    /** With the flag: the value of one notification, with the PEER_DOWN's
        status, `WEFT_ERR_CANCELED` (we ended the peer) or `WEFT_ERR_TIMED_OUT`;
        also after a success, but not after a revoke or a failure of which a
        transfer notified. It takes a place in the endpoint's queue until the
        revoke; such grants take half of the queue at most. */
    uint64_t notify;
} weft_grant_args;

#define WEFT_GRANT_ARGS_INIT {sizeof(weft_grant_args),0,0,0,0,0,0,0,0}

/** Lets a peer reach a memory, or some pages of it, until
    `weft_grant_revoke`: docs/pages-back.md. Nothing is sent: send the peer the
    token by any means. The peer names it in the options of its operations; no
    other peer can use it. The peer imports the memory once.

    The memory is in use until its grants are revoked, also after a success.

    `peer`: it may still be connecting, or have connected (PEER_UP). `args`:
    NULL: the whole memory. Errors: `WEFT_ERR_RANGE`, `WEFT_ERR_LIMIT`,
    `WEFT_ERR_NO_MEMORY`, `WEFT_ERR_AGAIN`. */
WEFT_API
WEFT_MUST_USE
weft_status weft_grant_create(const weft_memory *memory,
                              weft_peer peer,
                              const weft_grant_args *args,
                              weft_grant_token *token);

/** Takes a grant back. After its completion (`WEFT_COMPLETION_FENCE`) with
    `WEFT_OK` no byte, notification or count under the grant can arrive, and the
    memory can be reused at once. The peer's operations under it end with
    `WEFT_ERR_REVOKED`, in their completions or, once its side knows, as the
    status of its calls; its others go on. So may a write that has just arrived
    and notified here, since its side knows that a little later: a peer that has
    to know is sent a message.

    No answer of the peer is needed where the memory has `WEFT_ACCESS_GRANTED`,
    and over host and tcp: docs/pages-back.md. After `WEFT_ERR_TIMED_OUT` call
    it again. After the grant's own timeout it completes at once, and it is valid
    after the peer's PEER_DOWN, too. Notifications that arrived under the grant
    are in the endpoint's queue before.

    Errors: `WEFT_ERR_HANDLE` (no such grant, or revoked before). In the
    completion: `WEFT_ERR_TIMED_OUT`, `WEFT_ERR_CANCELED`. */
WEFT_API
WEFT_MUST_USE
weft_status weft_grant_revoke(weft_endpoint *endpoint,
                              const weft_grant_token *token,
                              const weft_op_options *options,
                              weft_op *op);

/* ---- Lists: writes and reads between many memories and many peers ---- */

#define WEFT_LIST_ENTRIES_MAX 1048576

/** One entry of a list: bytes between a local and a remote range. With a `len`
    of 0 it needs only a peer, to notify it or to raise its counter. */
typedef struct weft_list_entry {
    /** Source of a write, destination of a read; NULL
        only with a `len` of 0. */
    const weft_memory *local;
    /** Destination of a write, source of a read; NULL
        only with a `len` of 0. */
    const weft_remote_memory *remote;
    /** 0: the peer of `remote`; anything else must be that peer. */
    weft_peer peer;
    uint32_t local_range;
    uint32_t remote_range;
    uint64_t local_offset;
    uint64_t remote_offset;
    /** 0 moves nothing; ranges and offsets are not read then. */
    uint64_t len;
    /** A counter of the peer, raised by 1 when the bytes of this entry have
        arrived, or (an empty entry, a read) when all bytes of the list for this
        peer have. 0: none. With one, `len` is at most 1 GiB. */
    weft_counter counter;
} weft_list_entry;

/** Writes the entries of a list, between any memories of this endpoint and its
    peers; otherwise as `weft_write`.

    Every entry is checked before any starts; `weft_last_error` names the entry,
    from 0. Entries have no order; where destinations overlap, it is not defined
    which bytes win.

    Ends in one `WEFT_COMPLETION_WRITE`, when all peers have everything or have
    failed; a peer that fails does not stop the others. `bytes` is the sum;
    `peer` is the only peer, or 0. After a failure `status` and `peer` are those
    of the peer that failed first, and `entry` is its first entry (any of that
    peer may have failed; with `WEFT_ERR_MEMORY_GONE`: the first of that
    memory). With `WEFT_COMPLETE_EACH_PEER` each peer has a completion, with its
    bytes and the same `op` and `user_data`. A cancel is for all peers.

    `entries`: `count` of them, 1 to `WEFT_LIST_ENTRIES_MAX`. With `WEFT_NOTIFY`
    every peer gets one notification, after its own last byte; watches are of
    the whole list. N peers take N + 1 of `max_transfers` (one: 1), and a queue
    place for each completion.

    Errors: those of `weft_write`; `WEFT_ERR_LIMIT` also beyond `max_transfers`
    or the queue. In the completion `WEFT_ERR_NO_RAILS` (no rail knows all
    memories of a peer's entries). */
WEFT_API
WEFT_MUST_USE
weft_status weft_write_list(weft_endpoint *endpoint,
                            const weft_list_entry *entries,
                            uint64_t count,
                            const weft_op_options *options,
                            weft_op *op);

/** Reads the entries of a list; otherwise as
    `weft_read` and `weft_write_list`. */
WEFT_API
WEFT_MUST_USE
weft_status weft_read_list(weft_endpoint *endpoint,
                           const weft_list_entry *entries,
                           uint64_t count,
                           const weft_op_options *options,
                           weft_op *op);

/* ---- Prepared transfers: geometry, checked once, used many times ---- */

/** The geometry of a transfer, checked. */
typedef struct weft_prepared weft_prepared;

/** Checks pages as `weft_write_pages` does, and keeps a copy (4 bytes per page
    index) for any number of transfers in either direction.

    `flags`: `WEFT_CLASS_LATENCY` cuts large pages finer; pages can be counted
    only if prepared with `WEFT_COUNT_PAGES`. `prepared`: receives the handle;
    the memories are in use until `weft_prepared_destroy`.

    Errors: as `weft_write_pages`, but for the access, which each transfer
    checks. */
WEFT_API
WEFT_MUST_USE
weft_status weft_pages_prepare(weft_endpoint *endpoint,
                               const weft_memory *local,
                               const weft_remote_memory *remote,
                               const weft_pages *pages,
                               uint32_t flags,
                               weft_prepared **prepared);

/** As `weft_pages_prepare`, for a list: about 72 bytes per entry. `flags`: 0 or
    `WEFT_CLASS_LATENCY`. */
WEFT_API
WEFT_MUST_USE
weft_status weft_list_prepare(weft_endpoint *endpoint,
                              const weft_list_entry *entries,
                              uint64_t count,
                              uint32_t flags,
                              weft_prepared **prepared);

/** Writes what was prepared, as `weft_write_pages` or `weft_write_list`.
    Several transfers may use it at once. The cost does not grow with pages,
    layers or entries, only (of a list) with memories and peers.

    `options`: `WEFT_COUNT_PAGES` only of pages prepared with it,
    `WEFT_COMPLETE_EACH_PEER` of lists. Errors: those of `weft_write`; after
    `WEFT_ERR_MEMORY_GONE`, `WEFT_ERR_PEER_LOST` and `WEFT_ERR_PEER_CLOSED` it
    is of no more use: destroy it. */
WEFT_API
WEFT_MUST_USE
weft_status weft_write_prepared(weft_endpoint *endpoint,
                                const weft_prepared *prepared,
                                const weft_op_options *options,
                                weft_op *op);

/** Reads what was prepared; otherwise as `weft_write_prepared`. */
WEFT_API
WEFT_MUST_USE
weft_status weft_read_prepared(weft_endpoint *endpoint,
                               const weft_prepared *prepared,
                               const weft_op_options *options,
                               weft_op *op);

/** Destroys a prepared geometry. Transfers that use it go on; its memories stay
    in use until the last has ended. */
WEFT_API
weft_status weft_prepared_destroy(weft_prepared *prepared);

/* ---- Counters: raised by what peers write, expected and read here ---- */

/** Makes a counter of value 0, which peers' transfers raise. `counter`:
    receives the id. Errors: `WEFT_ERR_LIMIT` (`max_counters`). */
WEFT_API
WEFT_MUST_USE
weft_status weft_counter_create(weft_endpoint *endpoint,
                                weft_counter *counter);

/** Reads a counter: all bytes that it counts are visible then. It stops at 2^48
    - 1. With manual progress it changes only while somebody polls. */
WEFT_API
WEFT_MUST_USE
weft_status weft_counter_read(weft_endpoint *endpoint,
                              weft_counter counter,
                              uint64_t *value);

/** Waits for counters: ends in one `WEFT_COMPLETION_COUNTER`, with `WEFT_OK`
    once each has reached its value and all bytes they count are visible, with
    `WEFT_ERR_TIMED_OUT`, or with `WEFT_ERR_CANCELED` (canceled, or one was
    destroyed). Any number may wait for one counter.

    A counter does not know its peers: cancel this on PEER_DOWN. Counters only
    grow: expect totals (round k of N peers: k x (N - 1)).

    `counters`, `values`: `count` of each, 1 to 65,536; values up to 2^48 - 1;
    one counter may be listed twice. */
WEFT_API
WEFT_MUST_USE
weft_status weft_counter_expect(weft_endpoint *endpoint,
                                const weft_counter *counters,
                                const uint64_t *values,
                                uint32_t count,
                                const weft_op_options *options,
                                weft_op *op);

/** Destroys a counter; 0 is fine. Waits for values that it has not reached end
    with `WEFT_ERR_CANCELED`. */
WEFT_API
weft_status weft_counter_destroy(weft_endpoint *endpoint,
                                 weft_counter counter);

/* ---- Atomics: single words of peers' memory, changed by many at once ---- */

/** Adds `operand` to a word of remote memory (modulo 2^64), for coordination:
    it costs a message there and one back.

    The word is 8 bytes in the owner's byte order. The owner's CPU does it,
    sequentially consistent: atomic with what all peers ask for and with the
    owner's atomic instructions, but not with writes of peers to the same bytes.
    With manual progress it is done while the owner polls.

    Ends in one `WEFT_COMPLETION_ATOMIC` with `previous`. `WEFT_OK`: done, once.
    After `WEFT_ERR_TIMED_OUT`, `WEFT_ERR_CANCELED`, `WEFT_ERR_PEER_LOST` or
    `WEFT_ERR_PEER_CLOSED` it may have been done (once) or may still be, until
    the owner has deregistered the memory or polled PEER_DOWN; after
    `WEFT_ERR_MEMORY_GONE` it may have been; else not. No order with other
    operations. docs/details.md has more, and a lock.

    `remote`: registered for remote write and read. `offset`: as in
    `weft_write`; the word's address at the owner must be a multiple of 8.

    Errors: those of `weft_write`; `WEFT_ERR_UNSUPPORTED` (the peer does no
    atomics), `WEFT_ERR_INVALID` (not aligned). */
WEFT_API
WEFT_MUST_USE
weft_status weft_fetch_add(weft_endpoint *endpoint,
                           const weft_remote_memory *remote,
                           uint64_t offset,
                           uint64_t operand,
                           const weft_op_options *options,
                           weft_op *op);

/** Replaces a word of remote memory by `desired` if it is `expected`, which it
    was if the completion's `previous` is `expected`; otherwise as
    `weft_fetch_add`. */
WEFT_API
WEFT_MUST_USE
weft_status weft_compare_swap(weft_endpoint *endpoint,
                              const weft_remote_memory *remote,
                              uint64_t offset,
                              uint64_t expected,
                              uint64_t desired,
                              const weft_op_options *options,
                              weft_op *op);

/* ---- Memory of GPUs ---- */

/** NICs reach the memory by themselves: the host's, or a GPU's over rails whose
    provider can (FI_HMEM), if CUDA was loaded before the endpoint was opened.
*/
#define WEFT_WAY_DIRECT 1

/** Its bytes go through host buffers of Weft: at most 12 MiB of pinned memory
    for each NIC of tcp, 8 MiB for each connection of host, and 12 MiB for each
    worker where NICs do not reach the memory. */
#define WEFT_WAY_STAGED 2

/** To and from GPU memory of peers on this host, a GPU copies, where the two
    reach each other and other processes can open the memory. */
#define WEFT_WAY_SHARED 4

/** Beside `WEFT_WAY_DIRECT`: NICs know the memory by a DMA-BUF. */
#define WEFT_WAY_DMABUF 8

/** It is a file's: its bytes go through host buffers of Weft. */
#define WEFT_WAY_FILE 16

/** Beside `WEFT_WAY_FILE`: and through the page cache, since O_DIRECT was
    refused. */
#define WEFT_WAY_CACHED 32

/** Filled by `weft_memory_info`. */
typedef struct weft_memory_properties {
    uint32_t size;
    /** `WEFT_MEMORY_HOST`, `WEFT_MEMORY_CUDA` or `WEFT_MEMORY_FILE`. */
    uint32_t kind;
    /** CUDA's number of the device, as this process
        sees it; -1: no memory of a GPU. */
    int32_t device;
    /** How its bytes move: `WEFT_WAY_*`. */
    uint32_t ways;
    uint64_t bytes;
    /** The rails that know it, as in `weft_memory_args`. */
    uint64_t rails;
    uint64_t ranges;
} weft_memory_properties;

#define WEFT_MEMORY_PROPERTIES_INIT {sizeof(weft_memory_properties),0,0,0,0, \
     0,0}

/** Fills in what a memory is, and how its bytes move. */
WEFT_API
WEFT_MUST_USE
weft_status weft_memory_info(const weft_memory *memory,
                             weft_memory_properties *properties);

/** Makes a word of 8 bytes, 0, that orders transfers with the streams of GPUs
    without a CPU that waits for either.

    A transfer with this `start_watch` starts once (int64_t)(*word -
    start_value) >= 0, and moves what was done before: a stream
    (cuStreamWriteValue64), a kernel (store, __threadfence_system) or the
    program writes it. An operation with this `done_watch` sets the word when it
    has ended, also when it failed; a stream that waits for it
    (cuStreamWaitValue64) then sees the bytes. Between two memories, let one
    transfer end before the first that a stream waits for (docs/gpu.md).

    `watch`: receives the handle. `word`: receives its address, for the CPU, and
    for all GPUs if CUDA is loaded. Blocks as long as CUDA takes. Errors:
    `WEFT_ERR_NO_MEMORY`, `WEFT_ERR_SYSTEM`, `WEFT_ERR_LIMIT`. */
WEFT_API
WEFT_MUST_USE
weft_status weft_watch_create(weft_endpoint *endpoint,
                              weft_watch **watch,
                              uint64_t **word);

/** Destroys a watch; its word is invalid afterwards, and no stream may still
    wait for it. Errors: `WEFT_ERR_BUSY` (transfers name it). */
WEFT_API WEFT_MUST_USE weft_status weft_watch_destroy(weft_watch *watch);

/* ---- What an endpoint and its rails are, and what they have done ---- */

#define WEFT_STATISTICS_STATUSES 96

#define WEFT_STATISTICS_BUCKETS 40

/** What an endpoint is. Filled by `weft_endpoint_info`. */
typedef struct weft_endpoint_properties {
    uint32_t size;
    uint32_t rails;
    /** Worker threads; 0 with manual progress. */
    uint32_t workers;
    uint32_t peers;
    /** Random, and different for every endpoint ever opened. */
    uint64_t incarnation;
    /** Version and path of libfabric; "" if it was not
        needed or is not there. */
    char libfabric[256];
} weft_endpoint_properties;

#define WEFT_ENDPOINT_PROPERTIES_INIT {sizeof(weft_endpoint_properties),0,0, \
     0,0,{0}}

/** What an endpoint has done since it was opened. All but `peers`, `active` and
    `grants` only grow; an operation counts before its completion can be polled.
*/
typedef struct weft_endpoint_statistics {
    uint32_t size;
    uint32_t peers;
    /** Operations that have not ended. It is summed up while others begin and
        end, so it may be some too high: count completions to know. */
    uint64_t active;
    /** Operations that were accepted; a list counts once per completion. */
    uint64_t writes;
    uint64_t reads;
    uint64_t sends;
    uint64_t atomics;
    uint64_t expects;
    uint64_t fences;
    uint64_t bytes_written;
    uint64_t bytes_read;
    uint64_t bytes_sent;
    /** Sends that ended with `WEFT_OK`; notifications that arrived with
        transfers. */
    uint64_t messages_sent;
    uint64_t notifications_sent;
    uint64_t messages_received;
    uint64_t bytes_received;
    uint64_t notifications_received;
    /** Frames dropped as malformed, or of peers that have ended. */
    uint64_t frames_dropped;
    /** Operations that have ended, by status: `completions[-status]`; with
        `active`, all that were accepted. */
    uint64_t completions[WEFT_STATISTICS_STATUSES];
    /** Times of writes and reads that succeeded, from submission: [i] counts
        2^i to 2^(i + 1) ns, the last all longer ones. */
    uint64_t latency[WEFT_STATISTICS_BUCKETS];
    uint64_t latency_sum_ns;
    /** Handshakes and connections that were rejected. */
    uint64_t handshakes_rejected;
    /** The longest pass of a worker thread, in its own CPU time; 0: none has
        taken 0.5 ms, or progress is manual. */
    uint64_t pass_longest_ns;
    /** The longest call into a driver, which passes leave out. */
    uint64_t driver_call_longest_ns;
    /** Grants of this endpoint's memory that peers may use now. Since 0.3. */
    uint64_t grants;
} weft_endpoint_statistics;

#define WEFT_ENDPOINT_STATISTICS_INIT {sizeof(weft_endpoint_statistics),0,0, \
     0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,{0},{0},0,0,0,0,0}

/** What a rail is. Filled by `weft_rail_info`. */
typedef struct weft_rail_properties {
    uint32_t size;
    /** The worker that drives it, from 0. */
    uint32_t worker;
    /** "host", "tcp", or the libfabric provider, as "verbs". */
    char fabric[64];
    /** The network interface, or libfabric's domain, as "eth0". */
    char name[64];
    /** As "10.0.0.7:4711"; "" if it has none. */
    char address[128];
    /** -1 if not known. */
    int32_t numa_node;
    /** PCI address, as "0000:53:00.0"; "" if it has none. */
    char pci[32];
} weft_rail_properties;

#define WEFT_RAIL_PROPERTIES_INIT {sizeof(weft_rail_properties),0,{0},{0}, \
     {0},0,{0}}

/** What a rail has done since it was opened, by this endpoint's own writes and
    reads. "Now" is up to some ms ago. */
typedef struct weft_rail_statistics {
    uint32_t size;
    /** 1 while it is open and its NIC has a link, 0 once the endpoint has shut down.
    */
    uint32_t up;
    /** Rails of peers that it reaches now; those with bytes in flight that have
        taken none for 20 ms. */
    uint32_t lanes;
    uint32_t lanes_stalled;
    /** Bytes delivered. */
    uint64_t bytes_written;
    uint64_t bytes_read;
    /** Slices of these: pages, or pieces of large ones. */
    uint64_t slices_written;
    uint64_t slices_read;
    uint64_t posts;
    /** Posts for which the NIC had no room (EAGAIN); each was retried. */
    uint64_t posts_refused;
    uint64_t errors;
    /** Handshakes sent again for lack of an answer. */
    uint64_t retries;
    /** Control frames: handshakes, messages,
        notifications, acknowledgements. */
    uint64_t frames_sent;
    uint64_t frames_received;
    /** Bytes and posts that are in flight now. */
    uint64_t inflight_bytes;
    uint64_t inflight_posts;
    /** Recent rate of its fastest lane while it had work; 0: not measured. */
    uint64_t bytes_per_s;
    /** The shortest time from post to delivery; 0: not measured. */
    uint64_t round_trip_ns;
    /** Lanes that served a peer and were reset, and lanes that came up again.
        Since 0.3. */
    uint64_t lane_resets;
    uint64_t lane_reconnects;
    /** The NIC's link, as the kernel reports it: "up", "down" or "removed" (its
        device is gone, or was reset, until one of its name is open). Since 0.3.
    */
    char link[16];
} weft_rail_statistics;

#define WEFT_RAIL_STATISTICS_INIT {sizeof(weft_rail_statistics),0,0,0,0,0,0, \
     0,0,0,0,0,0,0,0,0,0,0,0,0,{0}}

/** A lane: one of our rails and one of a peer's, and what it has done since the
    peer was connected, also before it was reset. Filled by `weft_lane_info`. */
typedef struct weft_lane_statistics {
    uint32_t size;
    /** Our rail, for `weft_rail_info`, and the peer's, by its own count. */
    uint32_t rail;
    uint32_t remote_rail;
    /** 1 while it carries operations. */
    uint32_t up;
    /** "handshake", "probe" (its first write is in flight), "up", "stalled" (up,
        and bytes in flight that have not moved for 20 ms) or "down" (reset, or not
        reached; it may return). */
    char state[16];
    /** The peer's rail, as "10.1.0.7:4711"; "" if it has none. */
    char remote_address[128];
    /** Bytes of this endpoint's own writes and reads that were delivered. What the
        peer writes and reads here is not in them: NICs with RDMA do that without
        the CPU. */
    uint64_t bytes_written;
    uint64_t bytes_read;
    /** tcp: all bytes that the system has sent and got acknowledged, and received:
        both sides' writes, reads and messages, with their headers. 0 on other
        fabrics, where nobody counts them. */
    uint64_t bytes_sent;
    uint64_t bytes_received;
    /** tcp: segments that the system has sent again. 0 on other fabrics. */
    uint64_t retransmits;
    /** tcp: the system's present estimate, from what this side sends: where it only
        answers, that says little, and the side that writes has the better one. On
        other fabrics, the shortest time from post to delivery. 0: not measured, or
        not up. */
    uint64_t round_trip_ns;
    /** Recent rate of `bytes_written` and `bytes_read` while it had work; 0: not
        measured, or not up. A rate over time is the difference of two looks. */
    uint64_t bytes_per_s;
    /** Bytes of `bytes_written` and `bytes_read` that are in flight now. */
    uint64_t inflight_bytes;
    /** How often it served and was reset, and how often it came up again. */
    uint64_t resets;
    uint64_t reconnects;
    /** tcp: the two ends of the connection that carries what this endpoint writes
        and reads, as `ss -ti` shows them: "10.1.0.5:41234". "": not up, or another
        fabric. */
    char connection_local[64];
    char connection_remote[64];
} weft_lane_statistics;

#define WEFT_LANE_STATISTICS_INIT {sizeof(weft_lane_statistics),0,0,0,{0}, \
     {0},0,0,0,0,0,0,0,0,0,0,{0},{0}}

/** Fills in what an endpoint is, and what it has done; `properties` or
    `statistics` may be NULL. The figures are not of one moment. */
WEFT_API
WEFT_MUST_USE
weft_status weft_endpoint_info(const weft_endpoint *endpoint,
                               weft_endpoint_properties *properties,
                               weft_endpoint_statistics *statistics);

/** Fills in what rail `index` (0 to `rails - 1`) is, and what it has done;
    otherwise as `weft_endpoint_info`. Errors: `WEFT_ERR_RANGE` (no such rail).
*/
WEFT_API
WEFT_MUST_USE
weft_status weft_rail_info(const weft_endpoint *endpoint,
                           uint32_t index,
                           weft_rail_properties *properties,
                           weft_rail_statistics *statistics);

/** Fills in lane `index` of a peer, from 0. Its index stays while the peer is up;
    lanes are added when rails meet that had none. Only lanes over the fabric that
    serves the peer; until one does, over all. Does not wait for a worker: the
    system is asked on this thread, and state, rate and bytes in flight are up to
    some ms old. A peer that has ended keeps its last counts until its PEER_DOWN
    was polled. Errors: `WEFT_ERR_RANGE` (no such lane: the loop over them ends),
    `WEFT_ERR_HANDLE` (no such peer). Since 0.3. */
WEFT_API
WEFT_MUST_USE
weft_status weft_lane_info(const weft_endpoint *endpoint,
                           weft_peer peer,
                           uint32_t index,
                           weft_lane_statistics *statistics);

/** Writes all that is counted as text for Prometheus; docs/metrics.md has the
    names. Meant for every second. `buffer`, `capacity`, `len`, errors: as in
    `weft_topology`. */
WEFT_API
WEFT_MUST_USE
weft_status weft_endpoint_metrics(const weft_endpoint *endpoint,
                                  char *buffer,
                                  size_t capacity,
                                  size_t *len);

/* ---- The machine: what is near what ---- */

/** Writes this machine's topology, and the rails that an endpoint with all
    defaults would open, as JSON: docs/topology.md has its schema.

    `buffer`, `capacity`, `len`, errors: as in `weft_endpoint_address`; the text
    may grow between two calls. A NUL follows it where `capacity` is larger than
    `*len`, which does not count it. Blocks for 10 ms to some seconds. Where there
    are RDMA devices, no other thread should use the environment meanwhile. */
WEFT_API
WEFT_MUST_USE
weft_status weft_topology(char *buffer,
                          size_t capacity,
                          size_t *len);

/* ---- The log ---- */

/** How much is logged: `WEFT_LOG_*`. Each level includes those before it. */
typedef uint32_t weft_log_level;

/** Receives one line of the log: level, part of the library ("endpoint",
    "rail", ...) and text without a newline. Both strings are valid during the
    call only.

    Any thread may call it, several at once, while they move data: return
    quickly. It must not call Weft, wait for a thread that does, throw or
    longjmp. */
typedef void (*weft_log_callback)(weft_log_level level,
                                  const char *component,
                                  const char *message,
                                  void *user_data);

/** What the environment variable WEFT_LOG names (error, warn, info, debug,
    trace), else warnings. */
#define WEFT_LOG_DEFAULT 0

/** What stops an endpoint. */
#define WEFT_LOG_ERROR 1

/** What an operator should know: a NIC left out, a peer unreachable or lost. */
#define WEFT_LOG_WARN 2

/** Operations that failed because a fabric reported an error. */
#define WEFT_LOG_INFO 3

/** Choices of rails and fabrics, and every failed operation. */
#define WEFT_LOG_DEBUG 4

/** Connects, registrations, imports, shutdowns. */
#define WEFT_LOG_TRACE 5

/** Sets what all endpoints of this process log, and where, also before the
    first one is opened. Warnings of refused requests and of connections that
    are not authenticated, which others can cause again and again, come once a
    second at most for each kind; the next says how many were left out.

    `callback`: gets the lines in place of stderr; NULL: stderr. `user_data`:
    passed to it; keep it until the callback is replaced. Blocks while another
    thread is in the old callback, which is not called after the return.

    Errors: `WEFT_ERR_BUSY` (called by a log callback), `WEFT_ERR_UNSUPPORTED`
    (a Rust program that has a logger). */
WEFT_API
WEFT_MUST_USE
weft_status weft_log_set(weft_log_level level,
                         weft_log_callback callback,
                         void *user_data);

/* ---- Which library this is ---- */

/** Version of this header: major, minor, patch. */
#define WEFT_VERSION_MAJOR 0

#define WEFT_VERSION_MINOR 3

#define WEFT_VERSION_PATCH 0

/** The version of the library that is loaded: `major << 16 | minor << 8 |
    patch`. */
WEFT_API uint32_t weft_version(void);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* WEFT_H */
