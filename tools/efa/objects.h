/* What a program has made on a device, by the handles that it knows it by. */
#ifndef EFA_OBJECTS_H
#define EFA_OBJECTS_H
#include "rings.h"

enum kind { FREE, PD, CQ, QP, MR, AH, KINDS };
struct object {
    enum kind kind;
    void *it;
};

struct cq_object {
    struct cq cq;
    struct completion_ring ring;
    unsigned events; /* asynchronous ones that were sent */
};

struct qp_object {
    struct qp *qp;
    struct cq_object *send_cq, *receive_cq;
    struct send_ring sends;
    struct receive_ring receives;
    unsigned events;
};

/* A memory, and what of a DMA-BUF is mapped here for it. */
struct mr_object {
    struct mr *mr;
    void *map;
    size_t map_len;
};

uint32_t object_add(struct owner *, enum kind, void *); /* a handle; 0: no memory is left */
void *object_find(struct owner *, enum kind, uint64_t handle);
void object_drop(struct owner *, uint32_t handle); /* ends it */
void objects_drop(struct owner *);                 /* ends all, users before what they use */

/* Tells a program of an event; the element is counted as long as its object lives. */
void objects_event(struct owner *, enum event, uint64_t element);

/* Completion queues whose programs may wait for them. */
void armed_add(struct completion_ring *);
void armed_notify(void);
#endif
