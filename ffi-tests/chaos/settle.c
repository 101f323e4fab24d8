/* What is polled, and whether it is right. */
#include "host.h"

/* ---- How late ---- */

static void look_at_the_clock(struct operation *op, const weft_completion *c, uint64_t now)
{
    uint64_t deadline = op->submit_ns + op->timeout_ns;
    if (now <= deadline + GRACE)
        return;
    uint64_t late = now - deadline, stalls = stalled(deadline, now);
    if (late <= GRACE + stalls)
        return;
    op->late_ns = late - stalls;
    finding(&book->late, "%s ended %" PRIu64 " ms after its deadline (by its own word %" PRId64 " ms; stalls %" PRIu64 " ms), %s",
            text_of(op), late / MS, (int64_t)(c->done_ns - deadline) / (int64_t)MS, stalls / MS,
            weft_status_name(c->status));
}

/* ---- Our own operations ---- */

static void release(struct slot *slot)
{
    slot->since_ns = now_ns();
    slot->state = 0;
}

/* Our own end is used again at once: nobody may look at it, or touch it, any more. */
static void settle_slot(struct operation *op, int target, weft_status status)
{
    struct slot *slot = &book->ways[self.me][target].slots[op->part[target].slot];
    bool ok = status == WEFT_OK;
    if (op->read) {
        if (ok)
            check_content(op, target, LOCAL);
        put_guard_back(op, target, LOCAL);
        put_guard_back(op, target, REMOTE);
        release(slot);
        return;
    }
    put_guard_back(op, target, LOCAL);
    if (ok && !op->notify) {
        check_content(op, target, REMOTE);
        put_guard_back(op, target, REMOTE);
        release(slot);
        return;
    }
    atomic_fetch_or(&slot->state, ok ? DONE : DONE | FAILED);
}

static void settle_part(struct operation *op, int target, const weft_completion *c)
{
    struct part *part = &op->part[target];
    struct way *way = &book->ways[self.me][target];
    if (part->done) {
        finding(&book->extra, "%s completed again, with %s", text_of(op), weft_status_name(c->status));
        return;
    }
    part->status = c->status;
    part->done_ns = now_ns();
    part->done = true;
    /* A list over several peers can outlive the connection with one of them. */
    bool same = self.to[target] && self.to[target]->token == part->token;
    if (part->slot != NOBODY && same)
        settle_slot(op, target, c->status);
    if (c->status == WEFT_OK && same && op->kind != EXPECT && op->kind != FENCE) {
        struct shape shape;
        if (part->slot != NOBODY)
            shape_of(op, target, &shape);
        way->counts_ok += op->flags & WEFT_COUNT_PAGES ? shape.count : op->counts;
        way->adds_ok += op->kind == ATOMIC;
    }
}

static void fence_is_done(struct operation *op, int of, const weft_completion *c)
{
    struct link *link = link_of(c->peer);
    struct way *way = &book->ways[of][self.me];
    settle_part(op, of, c);
    if (!link)
        return;
    for (uint32_t s = 0; s < SLOTS && c->status == WEFT_OK; s++) {
        if (link->fencing >> s & 1) {
            put_guard(of, self.me, REMOTE, s);
            atomic_fetch_or(&way->slots[s].state, FENCED);
        }
    }
    link->fencing = 0;
    link->fence_at_ns = now_ns() + 50 * MS;
}

static void ours(const weft_completion *c)
{
    static const weft_completion_kind writes[] = {[SEND] = WEFT_COMPLETION_SEND,
                                                  [ATOMIC] = WEFT_COMPLETION_ATOMIC,
                                                  [EXPECT] = WEFT_COMPLETION_COUNTER,
                                                  [FENCE] = WEFT_COMPLETION_FENCE};
    uint64_t index = (uintptr_t)c->user_data - 1;
    if (c->kind == WEFT_COMPLETION_SEND && hello_is_sent(c))
        return;
    struct operation *op = index < OPERATIONS_MAX ? &book->operations[index] : NULL;
    if (!op || !op->accepted || op->host != self.me || op->life != self.life || op->transfer != c->transfer) {
        finding(&book->extra, "host %d: a completion of nothing: kind %d, %s", self.me, c->kind,
                weft_status_name(c->status));
        return;
    }
    weft_completion_kind wanted = op->kind >= SEND ? writes[op->kind]
                                  : op->read       ? WEFT_COMPLETION_READ
                                                   : WEFT_COMPLETION_WRITE;
    if (c->kind != wanted)
        finding(&book->odd, "%s completed as kind %d", text_of(op), c->kind);
    look_at_the_clock(op, c, now_ns());
    for (int target = 0; target < HOSTS; target++) {
        const struct link *link = op->each_peer ? link_of(c->peer) : NULL;
        if (!(op->targets >> target & 1) || (op->each_peer && (!link || link->host != target)))
            continue;
        if (op->kind == FENCE)
            fence_is_done(op, target, c);
        else
            settle_part(op, target, c);
    }
}

/* ---- What others did ---- */

static struct operation *arrives(const weft_completion *c, uint64_t index)
{
    struct link *link = link_of(c->peer);
    struct operation *op = index < OPERATIONS_MAX ? &book->operations[index] : NULL;
    if (!op || !link || !link->up || op->host != link->host || !(op->targets >> self.me & 1)) {
        finding(&book->extra, "host %d: an arrival of nothing, %" PRIu64, self.me, index);
        return NULL;
    }
    if (atomic_fetch_add(&op->part[self.me].arrived, 1) > 0)
        finding(&book->doubled, "%s arrived again", text_of(op));
    return op;
}

static void notification(const weft_completion *c)
{
    struct operation *op = arrives(c, c->value);
    if (c->bytes > 0) {
        if (op && differs_random(c->data, c->bytes, op->seed) >= 0)
            finding(&book->wrong, "the data of the notification of %s", text_of(op));
        CHECK_OK(weft_message_release(self.endpoint, c->transfer));
    }
    if (!op || op->read || op->part[self.me].token != book->ways[op->host][self.me].ready)
        return;
    struct slot *slot = &book->ways[op->host][self.me].slots[op->part[self.me].slot];
    if (slot->operation != c->value || (slot->state & (BUSY | TAKEN | FENCED)) != BUSY)
        return;
    check_content(op, self.me, REMOTE);
    put_guard_back(op, self.me, REMOTE);
    atomic_fetch_or(&slot->state, TAKEN);
}

static void message(const weft_completion *c)
{
    struct link *link = link_of(c->peer);
    struct note note = {0};
    if (link && c->bytes >= sizeof note)
        memcpy(&note, c->data, sizeof note);
    if (note.magic == HELLO) {
        hello_arrives(link, c);
    } else if (note.magic == OPERATION) {
        struct operation *op = arrives(c, note.what);
        if (op && differs_random((const char *)c->data + sizeof note, c->bytes - sizeof note, op->seed) >= 0)
            finding(&book->wrong, "%s", text_of(op));
        if (op && note.what < link->heard)
            finding(&book->doubled, "%s came after %" PRIu64, text_of(op), link->heard - 1);
        link->heard = note.what + 1;
    } else {
        finding(&book->extra, "host %d: a message of nobody", self.me);
    }
    CHECK_OK(weft_message_release(self.endpoint, c->transfer));
}

void take(const weft_completion *c)
{
    switch (c->kind) {
    case WEFT_COMPLETION_PEER_UP:
        link_is_up(c);
        break;
    case WEFT_COMPLETION_PEER_DOWN:
        link_is_down(c);
        break;
    case WEFT_COMPLETION_RAIL_DOWN:
    case WEFT_COMPLETION_RAIL_UP:
        break;
    case WEFT_COMPLETION_NOTIFICATION:
        notification(c);
        break;
    case WEFT_COMPLETION_MESSAGE:
        message(c);
        break;
    default:
        ours(c);
    }
}
