/* Rings and doorbells in a device's file: work requests and receives come out of them, completions go in. */
#ifndef EFA_RINGS_H
#define EFA_RINGS_H
#include "client.h"

struct send_ring {
    struct owner *client;
    struct block entries, doorbell;
    uint32_t count;
    uint16_t head;
};

struct receive_ring {
    struct owner *client;
    struct block entries, doorbell;
    uint32_t count;
    uint16_t head;
};

struct completion_ring {
    struct owner *client;
    struct block entries, doorbell;
    uint32_t count, entry_size, head, phase;
    struct channel *channel; /* NULL: nobody waits for it */
    struct completion_ring *next_armed;
    uint64_t element;
    uint32_t last_armed;
    unsigned events; /* sent over the channel */
};

/* Rings of zeroes, as after the reset of a queue pair; false: no room. `count` is a power of two. */
bool send_ring_make(struct send_ring *, struct owner *, uint32_t count);
bool receive_ring_make(struct receive_ring *, struct owner *, uint32_t count);
bool completion_ring_make(struct completion_ring *, struct owner *, uint32_t count, uint32_t entry_size);
void ring_give(struct owner *, struct block entries, struct block doorbell);
void send_ring_reset(struct send_ring *);
void receive_ring_reset(struct receive_ring *);

bool ring_next_work(struct send_ring *, struct work *);
bool ring_has_receive(struct receive_ring *);
bool ring_next_receive(struct receive_ring *, struct receive *);
void ring_complete(struct completion_ring *, const struct completion *);
void ring_notify(struct completion_ring *); /* if the program has asked to be woken, and there is something */
#endif
