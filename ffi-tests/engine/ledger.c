/* Polled completions, and whether they are correct. */
#include "engine.h"

/* ---- When ---- */

static void look_at_the_clock(const struct operation *op, const weft_completion *c)
{
    bool is_virtual = book->plan.world == VIRTUAL;
    uint64_t now = is_virtual ? c->done_ns : now_ns();
    uint64_t deadline = (is_virtual ? c->submit_ns : op->submit_ns) + op->timeout_ns;
    if (c->status == WEFT_ERR_TIMED_OUT && c->done_ns - c->submit_ns < op->timeout_ns)
        finding(&book->odd, "%s timed out after %" PRIu64 " us", text_of(op), (c->done_ns - c->submit_ns) / 1000);
    if (now <= deadline + GRACE)
        return;
    uint64_t late = now - deadline, stalls = is_virtual ? 0 : stalled(deadline, now);
    if (late <= GRACE + stalls)
        return;
    finding(&book->late, "%s ended %" PRIu64 " ms after its deadline (by its own word %" PRId64 " ms; stalls %" PRIu64 " ms), %s",
            text_of(op), late / MS, (int64_t)(c->done_ns - deadline) / (int64_t)MS, stalls / MS,
            weft_status_name(c->status));
}

/* ---- The fields of a completion ---- */

static uint64_t bytes_of(const struct operation *op, const weft_completion *c)
{
    uint64_t bytes = 0;
    if (c->status != WEFT_OK || op->kind > SEND)
        return 0;
    if (op->kind == SEND)
        return sizeof(struct note) + message_len(op);
    for (int target = 0; target < HOSTS; target++) {
        struct shape shape;
        if (!(op->targets >> target & 1) || (op->each_peer && op->part[target].peer != c->peer))
            continue;
        shape_of(op, target, &shape);
        bytes += shape.bytes;
    }
    return bytes;
}

/* A failed list names the first entry of the failed part. */
static bool entry_fits(const struct operation *op, const weft_completion *c)
{
    if (!op->list || c->status == WEFT_OK)
        return c->entry == UINT64_MAX;
    if (c->status == WEFT_ERR_MEMORY_GONE)
        return c->entry < PIECES_MAX * HOSTS;
    for (int target = 0; target < HOSTS; target++)
        if (op->targets >> target & 1 && op->part[target].peer == c->peer)
            return c->entry == op->part[target].entry ||
                   /* The owner of a file refuses a part of what is for it. */
                   (c->status == WEFT_ERR_REVOKED && c->entry > op->part[target].entry && c->entry < PIECES_MAX * HOSTS);
    return false;
}

static void look_at_the_fields(const struct operation *op, const weft_completion *c, bool second)
{
    static const weft_completion_kind others[] = {
        [SEND] = WEFT_COMPLETION_SEND, [ATOMIC] = WEFT_COMPLETION_ATOMIC, [EXPECT] = WEFT_COMPLETION_COUNTER, [FENCE] = WEFT_COMPLETION_FENCE,
        [REVOKE] = WEFT_COMPLETION_FENCE};
    weft_completion_kind kind = op->kind >= SEND ? others[op->kind] : op->read ? WEFT_COMPLETION_READ : WEFT_COMPLETION_WRITE;
    bool ok = c->status == WEFT_OK, single = (op->targets & (op->targets - 1)) == 0;
    uint64_t value = ok && op->kind == ATOMIC && op->word ? op->old : 0;
    const char *wrong = NULL;
    if (c->kind != kind)
        wrong = "its kind";
    else if (second != op->second)
        wrong = "its queue";
    else if (c->bytes != bytes_of(op, c))
        wrong = "bytes";
    else if (op->kind == EXPECT || op->kind == REVOKE ? c->peer != 0 : single && c->peer != op->part[__builtin_ctz(op->targets)].peer)
        wrong = "its peer";
    else if (!(op->kind == ATOMIC && op->word == 0) && c->previous != value)
        wrong = "previous";
    else if (c->notify || c->accepted)
        wrong = "notify or accepted";
    else if (!entry_fits(op, c))
        wrong = "entry";
    else if (c->data || c->reserved[0] || c->reserved[1] || c->reserved[2] || c->reserved[3] || c->reserved[4])
        wrong = "data or reserved";
    else if (ok && (c->rail != UINT32_MAX || c->provider_errno))
        wrong = "rail or errno";
    else if (c->done_ns < c->submit_ns || (c->first_post_ns && (c->first_post_ns < c->submit_ns || c->first_post_ns > c->done_ns)))
        wrong = "times";
    else if (op->canceled && c->status != WEFT_ERR_CANCELED && (single || ok)) /* one part may have failed before */
        wrong = "a status that is not CANCELED";
    if (wrong)
        finding(&book->odd, "%s completed with %s, and %s is wrong: kind %d, peer %" PRIx64 ", previous %" PRIx64 ", bytes %" PRIu64 ", entry %" PRIx64
                ", rail %d, errno %d", text_of(op), weft_status_name(c->status), wrong, c->kind, c->peer, c->previous, c->bytes,
                c->entry, (int)c->rail, c->provider_errno);
}

/* ---- Our own operations ---- */

static void release(struct slot *slot)
{
    slot->since_ns = world_ns();
    slot->state = 0;
}

/* Our own end is used again at once: nothing may read or touch it any longer. */
static void settle_slot(const struct operation *op, int target, weft_status status)
{
    struct slot *slot = &book->ways[self->me][target].slots[op->part[target].slot];
    bool ok = status == WEFT_OK;
    if (op->read) {
        if (ok)
            check_content(op, target, LOCAL);
        put_guard_back(op, target, REMOTE);
        if (!ok && book->plan.open_lanes) {
            slot->since_ns = world_ns() + STUCK_NS;
            atomic_fetch_or(&slot->state, STUCK);
            return;
        }
        put_guard_back(op, target, LOCAL);
        release(slot);
        return;
    }
    put_guard_back(op, target, LOCAL);
    if (ok && !op->notify) {
        if (!(slot->state & FENCED)) {
            check_content(op, target, REMOTE);
            put_guard_back(op, target, REMOTE);
        }
        release(slot);
        return;
    }
    atomic_fetch_or(&slot->state, ok ? DONE : DONE | FAILED);
}

static void settle_word(const struct operation *op, int target, const weft_completion *c)
{
    struct way *way = &book->ways[self->me][target];
    bool ok = c->status == WEFT_OK;
    if (op->word) {
        way->word_state[op->word] = ok ? 0 : FAILED;
        if (ok)
            way->words[op->word] = op->fresh;
        uint64_t is = *word_at(self->me, target, op->word);
        if (ok ? is != op->fresh : is != op->fresh && is != op->old)
            finding(&book->wrong, "%s: its word is %" PRIx64 " after %s, was %" PRIx64 ", becomes %" PRIx64, text_of(op), is,
                    weft_status_name(c->status), op->old, op->fresh);
        return;
    }
    way->adds_ok += ok;
    if (ok && c->previous >= way->adds_asked)
        finding(&book->wrong, "%s got ticket %" PRIu64 " of %" PRIu64, text_of(op), c->previous, (uint64_t)way->adds_asked);
    if (!ok || c->previous >= TICKETS)
        return;
    if (way->tickets[c->previous / 8] >> c->previous % 8 & 1)
        finding(&book->doubled, "%s got ticket %" PRIu64 ", which was given before", text_of(op), c->previous);
    way->tickets[c->previous / 8] |= (uint8_t)(1 << c->previous % 8);
}

/* Values that were waited for are there. */
static void settle_wait(const struct operation *op, const weft_completion *c)
{
    uint64_t value;
    if (c->status == WEFT_OK && weft_counter_read(self->endpoint, op->old, &value) == WEFT_OK && value < op->fresh)
        finding(&book->odd, "%s: its counter is %" PRIu64 ", not %" PRIu64, text_of(op), value, op->fresh);
    int owner = __builtin_ctz(op->targets);
    if (c->status == WEFT_OK && book->ways[owner][self->me].counter == op->old)
        check_counts(owner, false);
}

/* The connection, and its memory, are those at submission: its effects still count. */
static bool is_same(const struct operation *op, int target)
{
    const struct part *part = &op->part[target];
    return self->to[target] && self->to[target]->token == part->token && book->ways[self->me][target].version == part->version;
}

static void settle_part(struct operation *op, int target, const weft_completion *c)
{
    struct part *part = &op->part[target];
    struct way *way = &book->ways[self->me][target];
    part->done_ns = world_ns();
    part->done = true;
    if (part->status == WEFT_ERR_REVOKED && !may_be_revoked(op, target))
        finding(&book->odd, "%s ended as revoked, and its grant was not", text_of(op));
    if (op->kind == EXPECT)
        settle_wait(op, c);
    /* A list over several peers can outlive the connection to one of them. */
    if (part->slot != NOBODY && self->to[target] && self->to[target]->token == part->token)
        settle_slot(op, target, part->status);
    if (op->kind == ATOMIC && is_same(op, target))
        settle_word(op, target, c);
    if (part->slot != NOBODY && part->status == WEFT_OK && is_same(op, target)) {
        struct shape shape;
        shape_of(op, target, &shape);
        way->counts_ok += counts_of(op, &shape);
        /* Pages and entries are counted as the target finds them. */
        way->counts_sure += op->flags & WEFT_COUNT_PAGES || op->list ? 0 : counts_of(op, &shape);
    }
}

static void fence_is_done(const struct operation *op, int peer, const weft_completion *c)
{
    struct link *link = link_of(op->part[peer].peer);
    struct way *way = &book->ways[peer][self->me];
    if (!link || !link->up)
        return;
    for (uint32_t s = 0; s < book->plan.slots && c->status == WEFT_OK; s++) {
        if (link->fencing >> s & 1 && !(way->slots[s].state & FENCED)) {
            put_guard(peer, self->me, REMOTE, s);
            atomic_fetch_or(&way->slots[s].state, FENCED);
        }
    }
    link->fencing = 0;
    /* Repeatedly, but not while the run ends. */
    link->fence_at_ns = c->status != WEFT_OK && book->quiet ? UINT64_MAX : world_ns() + 50 * MS;
}

static void leave_queue(const struct operation *op, const weft_completion *c)
{
    self->open--;
    self->queued -= op->second;
    struct link *link = op->second || !c->peer ? NULL : link_of(c->peer);
    if (link && (op->each_peer || (op->targets & (op->targets - 1)) == 0)) {
        if (!link->up)
            finding(&book->odd, "%s completed after the PEER_DOWN", text_of(op));
        link->open -= link->open > 0;
    }
}

/* The first operation that matches this completion, by mark and id. */
static struct operation *of_completion(const weft_completion *c, int *use)
{
    uint64_t index = (uintptr_t)c->user_data - 1;
    struct operation *op = index < book_operations() ? &book->operations[index] : NULL;
    if (!op || !op->accepted || op->host != self->me || op->life != self->life)
        return NULL;
    for (*use = 0; *use < op->uses; ++*use)
        if (op->transfers[*use] == c->op && !(op->ended >> *use & 1))
            return op;
    return NULL;
}

static void ours(const weft_completion *c, bool second)
{
    int use;
    if (c->kind == WEFT_COMPLETION_SEND && !c->user_data) {
        hello_is_sent(c);
        return;
    }
    struct operation *op = of_completion(c, &use);
    if (!op) {
        finding(&book->stray, "host %d: a completion of nothing, or the second of something: kind %d, mark %p, %s", self->me, c->kind,
                c->user_data, weft_status_name(c->status));
        return;
    }
    look_at_the_fields(op, c, second);
    look_at_the_clock(op, c);
    leave_queue(op, c);
    if (op->kind == SEND && c->status == WEFT_OK && link_of(c->peer))
        link_of(c->peer)->sending -= c->bytes + 64;
    if (op->each_peer) {
        for (int target = 0; target < HOSTS; target++)
            if (op->targets >> target & 1 && op->part[target].peer == c->peer) {
                if (op->part[target].done)
                    finding(&book->stray, "%s completed again for host %d", text_of(op), target);
                op->part[target].status = c->status;
                settle_part(op, target, c);
            }
        return;
    }
    op->ended |= (uint8_t)(1 << use);
    for (int target = 0; target < HOSTS; target++) {
        if (!(op->targets >> target & 1))
            continue;
        if (op->part[target].status == WEFT_OK)
            op->part[target].status = c->status;
        if (op->ended == (1 << op->uses) - 1)
            settle_part(op, target, c);
        if (op->kind == FENCE)
            fence_is_done(op, target, c);
        if (op->kind == REVOKE)
            revoke_is_done(op, target, c);
    }
}

/* ---- What other hosts did ---- */

static struct operation *arrives(const weft_completion *c, uint64_t index)
{
    struct link *link = link_of(c->peer);
    struct operation *op = index < book_operations() ? &book->operations[index] : NULL;
    if (!op || !link || !link->up || op->host != link->host || !(op->targets >> self->me & 1) || (op->kind < SEND && !op->notify)) {
        finding(&book->stray, "host %d: an arrival of nothing, %" PRIu64, self->me, index);
        return NULL;
    }
    if (c->status != WEFT_OK || c->user_data || (c->data == NULL) != (c->bytes == 0) || (c->op == 0) != (c->bytes == 0))
        finding(&book->odd, "the arrival of %s has status, user_data, data, bytes or id that do not fit", text_of(op));
    if (atomic_fetch_add(&op->part[self->me].arrived, 1) > 0)
        finding(&book->doubled, "%s arrived again", text_of(op));
    return op;
}

void release_message(weft_op message)
{
    CHECK_OK(weft_message_release(self->endpoint, message));
    if (message && weft_message_release(self->endpoint, message) != WEFT_ERR_HANDLE)
        finding(&book->odd, "host %d: a message was released twice", self->me);
}

static void notification(const weft_completion *c)
{
    struct operation *op = arrives(c, c->notify);
    uint64_t len = op && op->seed % 3 == 0 ? 1 + op->seed % WEFT_NOTIFY_DATA_MAX : 0;
    if (op && (c->bytes != len || (len && differs_random(c->data, c->bytes, op->seed) >= 0)))
        finding(&book->wrong, "the data of the notification of %s", text_of(op));
    release_message(c->op);
    struct way *way = op ? &book->ways[op->host][self->me] : NULL;
    if (op && op->part[self->me].grant && way->grants[op->grant].ended >= op->part[self->me].grant)
        finding(&book->revoked, "%s notified after the revoke of its grant", text_of(op));
    if (!op || op->read || op->part[self->me].token != way->ready || op->part[self->me].version != way->version)
        return;
    struct slot *slot = &way->slots[op->part[self->me].slot];
    if (slot->operation != c->notify || (slot->state & (BUSY | TAKEN | FENCED)) != BUSY)
        return;
    check_content(op, self->me, REMOTE);
    put_guard_back(op, self->me, REMOTE);
    atomic_fetch_or(&slot->state, TAKEN);
}

/* Some are kept for a while: their bytes must stay. */
static void hold(const weft_completion *c)
{
    for (size_t i = 0; i < COUNT(self->held) && draw(4) == 0; i++)
        if (!self->held[i].message) {
            self->held[i].message = c->op;
            self->held[i].at_ns = world_ns() + draw(20) * MS;
            return;
        }
    release_message(c->op);
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
        if (op && (c->bytes != sizeof note + message_len(op) ||
                   differs_random((const char *)c->data + sizeof note, c->bytes - sizeof note, op->seed) >= 0))
            finding(&book->wrong, "%s", text_of(op));
        if (op && note.what < link->heard)
            finding(&book->doubled, "%s came after %" PRIu64, text_of(op), link->heard - 1);
        link->heard = note.what + 1;
    } else {
        finding(&book->stray, "host %d: a message of nobody", self->me);
    }
    hold(c);
}

static void rail_moved(const weft_completion *c)
{
    bool down = c->kind == WEFT_COMPLETION_RAIL_DOWN;
    if (c->notify || c->rail >= COUNT(self->rail_down) || c->status != (down ? WEFT_ERR_RAIL_LOST : WEFT_OK) ||
        self->rail_down[c->rail] == down)
        finding(&book->odd, "host %d: rail %u goes %s with %s, notify %" PRIu64, self->me, c->rail, down ? "down" : "up",
                weft_status_name(c->status), c->notify);
    self->rail_down[c->rail % COUNT(self->rail_down)] = down;
    self->rail_downs[c->rail % COUNT(self->rail_down)] += down;
    self->rail_moves[c->rail % COUNT(self->rail_down)][down].at_ns = c->done_ns;
    self->rail_moves[c->rail % COUNT(self->rail_down)][down].error = c->provider_errno;
}

void take(const weft_completion *c, bool second)
{
    if (second && (c->kind == WEFT_COMPLETION_PEER_UP || c->kind == WEFT_COMPLETION_PEER_DOWN || c->kind == WEFT_COMPLETION_MESSAGE ||
                   c->kind == WEFT_COMPLETION_NOTIFICATION))
        finding(&book->odd, "host %d: kind %d in the second queue", self->me, c->kind);
    if (book->plan.world == VIRTUAL && c->done_ns > book->clock_ns)
        book->clock_ns = c->done_ns;
    switch (c->kind) {
    case WEFT_COMPLETION_PEER_UP:
        link_is_up(c);
        break;
    case WEFT_COMPLETION_PEER_DOWN:
        link_is_down(c);
        break;
    case WEFT_COMPLETION_RAIL_DOWN:
    case WEFT_COMPLETION_RAIL_UP:
        rail_moved(c);
        break;
    case WEFT_COMPLETION_NOTIFICATION:
        notification(c);
        break;
    case WEFT_COMPLETION_MESSAGE:
        message(c);
        break;
    default:
        ours(c, second);
    }
}
