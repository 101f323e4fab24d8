/* Rings and doorbells in a device's file: work requests and receives come out of them, completions go in. */
#include "rings.h"
#include <rdma/ib_user_verbs.h>
#include <string.h>

enum { PAGE = 4096 };

static uint32_t *word(struct owner *client, struct block block) { return (uint32_t *)(void *)(client->base + block.at); }

static uint32_t doorbell(struct owner *client, struct block block) { return __atomic_load_n(word(client, block), __ATOMIC_ACQUIRE); }

static bool take(struct owner *client, size_t len, struct block *entries, struct block *bell) {
    if (!block_take(client, len, entries)) return false;
    if (block_take(client, PAGE, bell)) return true;
    block_give(client, *entries);
    return false;
}

bool send_ring_make(struct send_ring *ring, struct owner *client, uint32_t count) {
    *ring = (struct send_ring){.client = client, .count = count};
    return take(client, count * sizeof(struct wire_request), &ring->entries, &ring->doorbell);
}

bool receive_ring_make(struct receive_ring *ring, struct owner *client, uint32_t count) {
    *ring = (struct receive_ring){.client = client, .count = count};
    return take(client, count * sizeof(struct wire_receive), &ring->entries, &ring->doorbell);
}

bool completion_ring_make(struct completion_ring *ring, struct owner *client, uint32_t count, uint32_t entry_size) {
    *ring = (struct completion_ring){.client = client, .count = count, .entry_size = entry_size, .phase = 1};
    return take(client, (size_t)count * entry_size, &ring->entries, &ring->doorbell);
}

void ring_give(struct owner *client, struct block entries, struct block bell) {
    block_give(client, entries);
    block_give(client, bell);
}

void send_ring_reset(struct send_ring *ring) {
    ring->head = 0;
    *word(ring->client, ring->doorbell) = 0;
}

void receive_ring_reset(struct receive_ring *ring) {
    ring->head = 0;
    *word(ring->client, ring->doorbell) = 0;
}

static struct buffer buffer_of(const struct wire_buffer *wire) {
    return (struct buffer){.at = wire->low | (uint64_t)wire->high << 32, .len = wire->len, .key = wire->lkey};
}

bool ring_next_work(struct send_ring *ring, struct work *work) {
    struct wire_request wire;
    if (ring->head == (uint16_t)doorbell(ring->client, ring->doorbell)) return false;
    memcpy(&wire, ring->client->base + ring->entries.at + (ring->head & (ring->count - 1)) * sizeof wire, sizeof wire);
    if ((wire.control2 & CONTROL2_PHASE) != (ring->head / ring->count & 1))
        say(0, "pid %d: the phase of work request %u is wrong", ring->client->pid, ring->head);
    ring->head++;
    *work = (struct work){
        .id = wire.id,
        .ah = wire.ah,
        .qpn = wire.qpn,
        .op = wire.control1 & CONTROL1_OP,
        .has_immediate = wire.control1 & CONTROL1_IMMEDIATE,
        .is_inline = wire.control1 & CONTROL1_INLINE,
        .immediate = wire.immediate,
        .qkey = wire.qkey,
    };
    if (work->op != OP_SEND) {
        work->remote = buffer_of(&wire.rdma.remote);
        work->local = buffer_of(&wire.rdma.local);
    } else if (work->is_inline) {
        work->count = wire.length < INLINE_BYTES ? wire.length : INLINE_BYTES;
        memcpy(work->bytes, wire.bytes, sizeof work->bytes);
    } else {
        work->count = wire.length < 2 ? wire.length : 2;
        for (int i = 0; i < 2; i++) work->buffers[i] = buffer_of(&wire.buffers[i]);
    }
    return true;
}

bool ring_has_receive(struct receive_ring *ring) { return ring->head != (uint16_t)doorbell(ring->client, ring->doorbell); }

bool ring_next_receive(struct receive_ring *ring, struct receive *receive) {
    uint16_t end = (uint16_t)doorbell(ring->client, ring->doorbell);
    struct wire_receive wire;
    receive->count = 0;
    while (ring->head != end) {
        memcpy(&wire, ring->client->base + ring->entries.at + (ring->head & (ring->count - 1)) * sizeof wire, sizeof wire);
        ring->head++;
        if (!receive->count) receive->id = wire.id;
        receive->buffers[receive->count++] =
            (struct buffer){.at = wire.low | (uint64_t)wire.high << 32, .len = wire.len, .key = wire.lkey & RECEIVE_KEY};
        if (wire.lkey & RECEIVE_LAST || receive->count == MAX_BUFFERS) break;
    }
    return receive->count > 0;
}

void ring_complete(struct completion_ring *ring, const struct completion *from) {
    uint8_t *at = ring->client->base + ring->entries.at + (size_t)(ring->head & (ring->count - 1)) * ring->entry_size;
    struct wire_completion wire = {
        .id = from->id,
        .status = from->status,
        .flags = (uint8_t)(ring->phase | (from->received ? FLAG_RECEIVED : FLAG_SENT) | (from->has_immediate ? FLAG_IMMEDIATE : 0) |
                           (from->op & 7) << FLAG_OP_SHIFT | (from->unsolicited ? FLAG_UNSOLICITED : 0)),
        .qpn = from->qpn,
        .len = (uint16_t)from->len,
        .ah = from->ah,
        .source_qpn = from->source_qpn,
        .immediate = from->immediate,
    };
    uint32_t first;
    if (from->received && from->op == OP_WRITE) wire.len_high = (uint16_t)(from->len >> 16);
    else if (from->received && from->ah == NO_AH && from->gid) memcpy(wire.gid, from->gid, sizeof wire.gid);
    /* The phase bit last: the program takes an entry by it. */
    memcpy(at + sizeof first, (uint8_t *)&wire + sizeof first, ring->entry_size - sizeof first);
    memcpy(&first, &wire, sizeof first);
    __atomic_store_n((uint32_t *)(void *)at, first, __ATOMIC_RELEASE);
    if (!(++ring->head & (ring->count - 1))) ring->phase ^= 1;
}

/* Interface: a program arms a queue by its doorbell, once for each event. */
void ring_notify(struct completion_ring *ring) {
    uint32_t bell = doorbell(ring->client, ring->doorbell);
    struct ib_uverbs_comp_event_desc event = {ring->element};
    if (!(bell & DOORBELL_ARM) || bell == ring->last_armed || !(uint16_t)(ring->head - bell)) return;
    ring->last_armed = bell;
    if (channel_send(ring->channel, &event, sizeof event)) ring->events++;
    else say(0, "pid %d: an event could not be sent", ring->client->pid);
}
