/* The device model: the NICs of one host, and the network between them, without I/O. Commands and work requests go in;
 * completions and events come out through `struct host`. Time is what the caller says, in microseconds. */
#ifndef EFA_MODEL_H
#define EFA_MODEL_H
#include "hardware.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    MAX_NICS = 64,       /* documentation: two p5 have as many */
    MAX_QPS = 256,       /* documentation: what fi_info of a p5 shows (max_qp) */
    MAX_AHS = 4096,      /* guess */
    MAX_MRS = 1 << 18,   /* documentation: fi_info of a p5 (mr_cnt 256 Ki) */
    MAX_MESSAGE = 8928,  /* documentation: the MTU of EFA; also how long a piece of a write is on the network (guess) */
    MAX_BUFFERS = 4,     /* of one receive; interface: at least the 3 that the device announces */
    MAX_RDMA = 1 << 30,  /* documentation: fi_info of a p5 */
    NOT_READY_WAIT = 100, /* guess: us until a send to a queue without receives is tried again */
    RETRY_WAIT = 1000,   /* guess: us until what was not answered is sent again */
    STEP_BYTES = 1 << 18, /* what one operation moves until the others have their turn; no property of the device */
};
enum { ACCESS_LOCAL_WRITE = 1, ACCESS_REMOTE_WRITE = 2, ACCESS_REMOTE_READ = 4 }; /* interface: ib_user_ioctl_verbs.h */
enum qp_state { QP_RESET, QP_INIT, QP_RTR, QP_RTS, QP_SQD, QP_SQE, QP_ERROR };    /* interface: enum ib_qp_state */
enum event { EVENT_CQ_ERROR = 0, EVENT_QP_FATAL = 1, EVENT_DEVICE_FATAL = 8, EVENT_PORT_ACTIVE = 9, EVENT_PORT_ERROR = 10 };
#define TIMEOUT_US 2000000 /* guess: how long a NIC repeats what is not answered */
#define NOT_READY_FOREVER 7 /* interface: of rnr_retry */
#define NEVER UINT64_MAX
#define NO_AH 0xffff

struct owner;     /* a program that has opened a device */
struct send_ring; /* rings are the host's */
struct receive_ring;
struct completion_ring;

struct buffer {
    uint64_t at;
    uint32_t len, key;
};

/* A work request. */
struct work {
    uint16_t id, ah, qpn;
    uint8_t op;
    bool has_immediate, is_inline;
    uint32_t immediate, qkey;
    uint32_t count; /* of a send: inline bytes, or buffers */
    struct buffer buffers[2];
    struct buffer remote, local;
    uint8_t bytes[INLINE_BYTES];
};

struct receive {
    uint16_t id;
    int count;
    struct buffer buffers[MAX_BUFFERS];
};

struct completion {
    uint16_t id, qpn, source_qpn, ah;
    uint8_t status, op;
    bool received, has_immediate, unsolicited;
    uint32_t immediate, len;
    const uint8_t *gid; /* the sender's, if it has no address handle here */
};

enum access { ACCESS_OK, ACCESS_FAULT, ACCESS_GONE };

struct nic;
/* What the model needs of the world. */
struct host {
    enum access (*load)(struct owner *, uint64_t at, void *to, size_t len);
    enum access (*store)(struct owner *, uint64_t at, const void *from, size_t len);
    bool (*next_work)(struct send_ring *, struct work *);
    bool (*has_receive)(struct receive_ring *);
    bool (*next_receive)(struct receive_ring *, struct receive *);
    void (*complete)(struct completion_ring *, const struct completion *);
    void (*event)(struct owner *, enum event, uint64_t element);
    void (*reset)(struct nic *); /* takes all programs' objects away, in the model too */
};

struct cq {
    struct owner *owner;
    struct completion_ring *ring;
    uint64_t element; /* its name in events */
    bool overrun;     /* takes no more completions */
};

struct mr {
    struct owner *owner; /* NULL: free */
    uint8_t *mapped;     /* the memory of a DMA-BUF, here; NULL: the owner's */
    uint64_t start, iova, len, pages;
    uint32_t access, key, pd;
};

struct ah {
    struct owner *owner;
    uint8_t gid[16];
    uint16_t number;
    int users;
    bool answered, lost;
};

/* A work request under way. `moved` counts bytes, or pieces: `stride` and `first_piece` say in which order these go. */
struct operation {
    struct operation *next;
    struct work work;
    uint8_t gid[16];
    bool bad_ah, in_pieces;
    uint64_t due, begin;
    unsigned tries, moved, stride, first_piece;
};

struct qp {
    struct owner *owner;
    struct nic *nic;
    struct send_ring *sends;
    struct receive_ring *receives;
    struct cq *send_cq, *receive_cq;
    uint64_t element;
    uint16_t number;
    enum qp_state state;
    bool unsolicited; /* an immediate of a write takes no receive */
    uint8_t not_ready_retries;
    uint32_t pd, qkey;
    struct operation *first, **end;
};

/* What goes wrong at a NIC, by faults.c. */
struct trouble {
    bool dead, pieces;
    uint64_t hung_until, not_ready_until;
    uint64_t reorder_us, delay_us, rate_mbps; /* 0: none, none, unlimited */
    uint64_t max_pages;                       /* 0: any */
};

struct nic {
    struct fabric *fabric;
    int index;
    uint8_t gid[16];
    struct qp *qps[MAX_QPS];
    struct mr *mrs;
    struct ah ahs[MAX_AHS];
    unsigned next_qp, next_mr, generation, live_qps;
    int ah_end; /* handles from here on were never used */
    uint64_t pages; /* registered */
    uint64_t line_free;
    bool port_down;
    struct trouble trouble;
    uint64_t done[3], bytes, errors;
};

struct fabric {
    const struct host *host;
    int nics;
    uint32_t caps;
    uint64_t random;
    uint64_t work; /* grows with all that is done: to see whether there is something to do */
    bool cut[MAX_NICS][MAX_NICS];
    struct nic nic[MAX_NICS];
};

/* model.c: what commands do. */
void fabric_make(struct fabric *, int nics, uint32_t caps, const struct host *, uint64_t seed);
uint64_t fabric_random(struct fabric *, uint64_t below);
struct nic *fabric_find(struct fabric *, const uint8_t gid[16]);
struct qp *qp_create(struct nic *, const struct qp *as); /* its owner, rings and queues; NULL: there are too many */
void qp_set_state(struct qp *, enum qp_state);
void qp_destroy(struct qp *);
int mr_register(struct nic *, const struct mr *as, struct mr **made); /* 0 or an errno */
void mr_deregister(struct nic *, struct mr *);
struct mr *mr_find(struct nic *, uint32_t key);
struct ah *ah_create(struct nic *, struct owner *, const uint8_t gid[16]);
void ah_destroy(struct ah *);
uint16_t ah_number(struct nic *, struct owner *, const uint8_t gid[16]);
void cq_complete(struct nic *, struct cq *, const struct completion *);
void cq_overrun(struct nic *, struct cq *);

/* transport.c: what work requests do. */
uint64_t nic_step(struct nic *, uint64_t now); /* when it wants to be asked again; rings are looked at each time */

/* faults.c: a line of words, as README.md has them; NULL, or what is wrong with it. */
const char *fault_apply(struct fabric *, const char *line, uint64_t now);
#endif
