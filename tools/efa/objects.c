/* What a program has made on a device, by the handles that it knows it by. */
#define _GNU_SOURCE
#include "objects.h"
#include <rdma/ib_user_verbs.h>
#include <stdlib.h>
#include <sys/mman.h>

static struct completion_ring *armed;

void armed_add(struct completion_ring *ring) {
    ring->next_armed = armed;
    armed = ring;
}

static void armed_remove(struct completion_ring *ring) {
    for (struct completion_ring **at = &armed; *at; at = &(*at)->next_armed) {
        if (*at != ring) continue;
        *at = ring->next_armed;
        return;
    }
}

void armed_notify(void) {
    for (struct completion_ring *ring = armed; ring; ring = ring->next_armed) ring_notify(ring);
}

uint32_t object_add(struct owner *client, enum kind kind, void *it) {
    uint32_t at = 1; /* 0 is none */
    while (at < client->object_count && client->objects[at].kind != FREE) at++;
    if (at >= client->object_count) {
        uint32_t count = client->object_count ? 2 * client->object_count : 64;
        struct object *more = reallocarray(client->objects, count, sizeof *more);
        if (!more) return 0;
        for (uint32_t i = client->object_count; i < count; i++) more[i].kind = FREE;
        client->objects = more;
        client->object_count = count;
    }
    client->objects[at] = (struct object){kind, it};
    return at;
}

void *object_find(struct owner *client, enum kind kind, uint64_t handle) {
    if (!handle || handle >= client->object_count || client->objects[handle].kind != kind) return NULL;
    return client->objects[handle].it;
}

static void drop_cq(struct cq_object *cq) {
    armed_remove(&cq->ring);
    ring_give(cq->ring.client, cq->ring.entries, cq->ring.doorbell);
    free(cq);
}

static void drop_qp(struct qp_object *qp) {
    struct owner *client = qp->qp->owner;
    qp_destroy(qp->qp);
    ring_give(client, qp->sends.entries, qp->sends.doorbell);
    ring_give(client, qp->receives.entries, qp->receives.doorbell);
    free(qp);
}

static void drop_mr(struct owner *client, struct mr_object *mr) {
    mr_deregister(client->nic, mr->mr);
    if (mr->map) munmap(mr->map, mr->map_len);
    free(mr);
}

void object_drop(struct owner *client, uint32_t handle) {
    struct object object = client->objects[handle];
    client->objects[handle].kind = FREE;
    switch (object.kind) {
    case CQ: drop_cq(object.it); break;
    case QP: drop_qp(object.it); break;
    case MR: drop_mr(client, object.it); break;
    case AH: ah_destroy(object.it); break;
    case FREE:
    case PD:
    case KINDS: break;
    }
}

void objects_drop(struct owner *client) {
    static const enum kind order[] = {QP, CQ, MR, AH, PD};
    for (size_t k = 0; k < sizeof order / sizeof *order; k++)
        for (uint32_t i = 1; i < client->object_count; i++)
            if (client->objects[i].kind == order[k]) object_drop(client, i);
    free(client->objects);
    client->objects = NULL;
    client->object_count = 0;
}

void objects_event(struct owner *client, enum event event, uint64_t element) {
    struct ib_uverbs_async_event_desc what = {.element = element, .event_type = event};
    if (!client->async || !channel_send(client->async, &what, sizeof what)) return;
    for (uint32_t i = 1; i < client->object_count; i++) {
        struct object *object = &client->objects[i];
        struct qp_object *qp = object->kind == QP ? object->it : NULL;
        struct cq_object *cq = object->kind == CQ ? object->it : NULL;
        if (qp && event == EVENT_QP_FATAL && qp->qp->element == element) qp->events++;
        if (cq && event == EVENT_CQ_ERROR && cq->cq.element == element) cq->events++;
    }
}
