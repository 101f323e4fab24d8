/* Memory that is reached only under grants: each target makes some for each owner, and revokes them at any time. */
#include "engine.h"

_Thread_local weft_grant_token grant_of;

/* ---- The owner's side ---- */

/* Each has one for what raises the counter and one for atomics: what these change stands still from a revoke to the next. */
enum { COUNTING, CHANGING, OTHERS };

static uint8_t grant_for(const struct operation *op)
{
    if (op->kind == ATOMIC)
        return CHANGING;
    return op->counts || op->flags & WEFT_COUNT_PAGES ? COUNTING : (uint8_t)(OTHERS + op->seed % (GRANTS - OTHERS));
}

bool take_grant(struct operation *op, int target)
{
    uint8_t which = grant_for(op);
    struct grant *grant = &book->ways[self->me][target].grants[which];
    memset(&grant_of, 0, sizeof grant_of);
    if (!book->plan.granted || (op->kind >= SEND && op->kind != ATOMIC))
        return true;
    uint64_t number = grant->number;
    grant_of = grant->token;
    op->grant = which;
    op->part[target].grant = number;
    return number != 0 && number == grant->number;
}

bool may_be_revoked(const struct operation *op, int target)
{
    const struct part *part = &op->part[target];
    /* The grants of an ended life end with it, and so does the record of them. */
    return part->grant && (book->ways[self->me][target].grants[op->grant].ending >= part->grant ||
                           part->life != book->hosts[target].lives_count - 1);
}

/* ---- The target's side ---- */

static uint64_t scale(void) { return book->plan.world & (THREADS | VIRTUAL) ? MS : 20 * MS; }

static void make_grant(const struct link *link, struct way *way, struct grant *grant)
{
    weft_grant_token token;
    grant->number = 0;
    grant->watched = false;
    if (weft_grant_create(self->exported[link->host], link->peer, NULL, &token) != WEFT_OK)
        return; /* the peer has ended */
    grant->token = token;
    grant->link = link->peer;
    grant->number = ++way->grants_count;
}

void make_grants(const struct link *link)
{
    struct way *way = &book->ways[link->host][self->me];
    /* A grant that is not revoked yet, from an earlier connection, is handled when it is. */
    for (int i = 0; i < GRANTS && book->plan.granted; i++)
        if (way->grants[i].number == 0)
            make_grant(link, way, &way->grants[i]);
}

static void take_back(int owner, int which)
{
    struct grant *grant = &book->ways[owner][self->me].grants[which];
    weft_op_options options = WEFT_OP_OPTIONS_INIT;
    struct operation *op = grant->number && !grant->revoking ? new_operation(REVOKE) : NULL;
    if (!op)
        return;
    op->ample = true;
    op->timeout_ns = AMPLE;
    op->grant = (uint8_t)which;
    op->targets = (uint8_t)(1u << owner);
    op->part[owner].grant = grant->number;
    op->submit_ns = world_ns();
    options.timeout_ns = op->timeout_ns;
    options.user_data = mark_of(op);
    grant->ending = grant->number;
    grant->revoking = true;
    weft_status status = weft_grant_revoke(self->endpoint, &grant->token, &options, op->transfers);
    op->accepted = status == WEFT_OK;
    if (op->accepted)
        count_open(op);
    else if (status != WEFT_ERR_CLOSED && status != WEFT_ERR_AGAIN)
        finding(&book->odd, "host %d: weft_grant_revoke: %s", self->me, weft_last_error());
    grant->revoking = op->accepted;
}

void revoke_grants(int owner)
{
    for (int i = 0; i < GRANTS; i++)
        take_back(owner, i);
}

static uint64_t sum_of(int owner, uint32_t s)
{
    const uint8_t *bytes = slot_at(owner, self->me, REMOTE, s);
    uint64_t sum = 0, word;
    for (uint64_t i = 0; i + sizeof word <= slot_len(); i += sizeof word) {
        memcpy(&word, bytes + i, sizeof word);
        sum = mix(sum ^ word);
    }
    return sum;
}

static bool counted(const struct way *way, uint64_t *value)
{
    return weft_counter_read(self->endpoint, way->counter, value) == WEFT_OK;
}

/* From now on nothing counts and no word changes, until there is another such grant. */
static void begin_to_watch(int owner, int which)
{
    struct way *way = &book->ways[owner][self->me];
    struct grant *grant = &way->grants[which];
    if (which == CHANGING)
        memcpy(grant->words, word_at(owner, self->me, 0), sizeof grant->words);
    grant->watched = which == CHANGING || (which == COUNTING && counted(way, &grant->counted));
}

static void look_at_watched(int owner, int which)
{
    struct way *way = &book->ways[owner][self->me];
    struct grant *grant = &way->grants[which];
    uint64_t value;
    if (!grant->watched)
        return;
    if (which == CHANGING ? memcmp(grant->words, word_at(owner, self->me, 0), sizeof grant->words) != 0
                          : counted(way, &value) && value != grant->counted) {
        finding(&book->revoked_counts, "host %d: %s of host %d changed after the revoke of its grant", self->me,
                which == CHANGING ? "a word" : "the counter", owner);
        grant->watched = false;
    }
}

void end_watch(struct way *way)
{
    for (int i = 0; i < GRANTS; i++)
        way->grants[i].watched = false;
}

/* The target's end of a slot whose write is in flight stays unchanged, unless the write has succeeded, which its owner
   knows. */
void revoke_is_done(const struct operation *op, int owner, const weft_completion *c)
{
    struct way *way = &book->ways[owner][self->me];
    struct grant *grant = &way->grants[op->grant];
    uint64_t number = op->part[owner].grant;
    if (number != grant->number)
        return;
    grant->revoking = false;
    if (c->status != WEFT_OK)
        return;
    grant->ended = number;
    for (uint32_t s = 0; s < book->plan.slots; s++) {
        struct slot *slot = &way->slots[s];
        const struct operation *written = &book->operations[slot->operation];
        if ((slot->state & (BUSY | TAKEN | FENCED | REVOKED)) != BUSY || written->read || written->part[self->me].grant != number)
            continue;
        slot->sum = sum_of(owner, s);
        atomic_fetch_or(&slot->state, REVOKED);
    }
    grant->number = 0;
    grant->again_ns = world_ns() + draw(4) * scale();
    begin_to_watch(owner, op->grant);
}

static void look_at_revoked(struct link *link)
{
    int owner = link->host;
    struct way *way = &book->ways[owner][self->me];
    for (uint32_t s = 0; s < book->plan.slots; s++) {
        struct slot *slot = &way->slots[s];
        if ((slot->state & (FAILED | FENCED | REVOKED)) != (FAILED | REVOKED))
            continue;
        if (slot->sum != sum_of(owner, s))
            finding(&book->ghosts, "%s changed memory after the revoke of its grant", text_of(&book->operations[slot->operation]));
        put_guard(owner, self->me, REMOTE, s);
        link->fencing &= ~(UINT64_C(1) << s); /* it may be in use again when that fence ends */
        atomic_fetch_or(&slot->state, FENCED);
    }
}

void grants_step(struct link *link)
{
    uint64_t now = world_ns();
    struct way *way = &book->ways[link->host][self->me];
    if (!book->plan.granted || !link->prepared)
        return;
    look_at_revoked(link);
    for (int i = 0; i < GRANTS; i++) {
        struct grant *grant = &way->grants[i];
        look_at_watched(link->host, i);
        if (grant->link != link->peer)
            take_back(link->host, i);
        if (grant->number == 0 && now >= grant->again_ns && !(self->going && self->going_of == link->host))
            make_grant(link, way, grant);
    }
    if (now < link->revoke_at_ns || book->quiet)
        return;
    link->revoke_at_ns = now + (1 + draw(20)) * scale();
    take_back(link->host, (int)draw(GRANTS));
}
