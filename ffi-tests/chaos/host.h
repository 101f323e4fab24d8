/* One host's process: what its parts know of each other. */
#ifndef WEFT_CHAOS_HOST_H
#define WEFT_CHAOS_HOST_H

#include "content.h"

#define LINKS_MAX 64

/* A peer that is up, or was. */
struct link {
    weft_peer peer;
    int host; /* -1: nobody's that we know */
    uint32_t life;
    bool up, greeted, prepared;
    uint64_t token, their_token;
    weft_remote_memory *remote;
    uint64_t heard; /* 1 + the operation of its last message */
    weft_transfer hello;
    uint64_t fencing; /* slots that a fence is under way for */
    uint64_t fence_at_ns;
};

struct self {
    int me;
    uint32_t life;
    weft_endpoint *endpoint;
    weft_memory *memory;
    uint64_t random;
    struct link links[LINKS_MAX];
    uint32_t links_count;
    struct link *to[HOSTS]; /* the one that is in use */
    bool connecting[HOSTS];
    uint64_t connect_at_ns[HOSTS];
    uint64_t submit_at_ns[HOSTS];
    struct {
        uint64_t at_ns;
        weft_transfer transfer;
    } cancels[64];
};

extern struct self self;

uint32_t draw(uint32_t below);

/* links.c: who is connected. */
void links_step(void);
void link_is_up(const weft_completion *c);
void link_is_down(const weft_completion *c);
struct link *link_of(weft_peer peer);
/* The way to a host is open. */
bool is_ready(int host);
void hello_arrives(struct link *link, const weft_completion *c);
bool hello_is_sent(const weft_completion *c);
/* What peers have counted and added here, against what they know of. */
void check_counts(int owner);

/* operations.c: what is submitted. */
void operations_step(void);
/* With `slots`: a fence of those that the operations of a peer failed in. */
bool submit_fence(struct link *link);

/* settle.c: what is polled. */
void take(const weft_completion *c);

/* stalls.c: what the machine does not give us. */
void stalls_watch(void);
/* How long, of this time, this process or a thread of it wanted to run and did not. */
uint64_t stalled(uint64_t from_ns, uint64_t to_ns);

/* A message: what kind, and of which operation. */
struct note {
    uint64_t magic, what, life;
};
#define HELLO UINT64_C(0x6f6c6c6568)
#define OPERATION UINT64_C(0x6e6f6974)

#endif
