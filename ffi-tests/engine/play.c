/* Submissions: any kind, to any ready host, at a steady rate. */
#include "engine.h"

#define BURST 8
#define NOTE_DATA 2048

/* ---- Slots ---- */

static bool is_free(struct slot *slot, int target, uint64_t now)
{
    uint32_t state = slot->state;
    if (state & STUCK && now >= slot->since_ns) {
        put_guard_back(&book->operations[slot->operation], target, LOCAL);
        slot->since_ns = now;
        slot->state = state = 0;
    }
    bool taken = (state & (DONE | FAILED | TAKEN)) == (DONE | TAKEN);
    if (taken || (state & (DONE | FENCED)) == (DONE | FENCED)) {
        slot->since_ns = now;
        slot->state = state = 0;
    }
    /* Most slots stay unused briefly, some longer: nothing may land meanwhile. */
    uint64_t drawn = mix(slot->operation), most = book->plan.rest_ms;
    return state == 0 && (slot->since_ns == 0 || now >= slot->since_ns + (drawn % 8 ? drawn % most : drawn % (15 * most)) * MS);
}

/* The geometry prepared for a slot determines the layout. */
static void take_geometry(struct operation *op, int target, uint32_t slot)
{
    struct kept *kept = &self->kept[target][slot];
    if (op->kind != KEPT || !kept->handle)
        return;
    if (draw(4) == 0) {
        CHECK_OK(weft_prepared_destroy(kept->handle)); /* its transfers continue */
        kept->handle = NULL;
        return;
    }
    op->shape = kept->operation.shape;
    op->list = kept->operation.list;
    op->counts = op->list ? kept->operation.counts : op->counts;
    op->flags = (op->flags & ~(uint32_t)WEFT_COUNT_PAGES) | (kept->operation.flags & WEFT_COUNT_PAGES && !op->read ? WEFT_COUNT_PAGES : 0);
}

static bool take_slot(struct operation *op, int target)
{
    struct way *way = &book->ways[self->me][target];
    uint64_t now = world_ns();
    uint32_t first = draw(book->plan.slots);
    for (uint32_t i = 0; i < book->plan.slots; i++) {
        uint32_t s = (first + i) % book->plan.slots;
        if (!is_free(&way->slots[s], target, now))
            continue;
        if (way->slots[s].since_ns) {
            check_guard(self->me, target, LOCAL, s);
            check_guard(self->me, target, REMOTE, s);
        }
        op->part[target].slot = (uint8_t)s;
        way->slots[s].operation = (uint32_t)(op - book->operations);
        way->slots[s].state = BUSY;
        take_geometry(op, target, s);
        put_content(op, target, op->read ? REMOTE : LOCAL);
        return true;
    }
    return false;
}

static void give_slots_back(struct operation *op)
{
    for (int target = 0; target < HOSTS; target++) {
        if (op->part[target].slot == NOBODY)
            continue;
        put_guard_back(op, target, LOCAL);
        put_guard_back(op, target, REMOTE);
        book->ways[self->me][target].slots[op->part[target].slot].state = 0;
        op->part[target].slot = NOBODY;
    }
    if (op->kind == ATOMIC && op->word > 0)
        for (int target = 0; target < HOSTS; target++)
            if (op->targets >> target & 1)
                book->ways[self->me][target].word_state[op->word] = 0;
}

static bool prepare_slots(struct operation *op)
{
    for (int target = 0; target < HOSTS; target++) {
        if (!(op->targets >> target & 1) || take_slot(op, target))
            continue;
        give_slots_back(op);
        return false;
    }
    return true;
}

/* A word that nothing changes now, so that its value is known. */
static bool take_word(struct operation *op, int target)
{
    struct way *way = &book->ways[self->me][target];
    uint32_t word = draw(2) ? 0 : 1 + draw(WORDS - 1);
    if (word > 0 && way->word_state[word])
        return false;
    op->word = (uint8_t)word;
    op->old = way->words[word];
    op->fresh = word ? mix(op->seed) : 0;
    way->word_state[word] = word ? BUSY : 0;
    return true;
}

/* ---- Each kind ---- */

uint32_t range_of(int other, uint32_t slot)
{
    return ((uint32_t)other * book->plan.slots + slot) * LAYERS;
}

static weft_counter counter_of(const struct operation *op, int target)
{
    return op->counts || op->flags & WEFT_COUNT_PAGES ? book->ways[self->me][target].counter : 0;
}

void *mark_of(const struct operation *op)
{
    return (void *)(uintptr_t)(op - book->operations + 1);
}

/* What all kinds of arguments have. */
#define SET_TERMS(args)                                                                     \
    ((args).options.timeout_ns = op->timeout_ns, (args).options.user_data = mark_of(op),      \
     (args).options.queue = op->second ? self->second : NULL)

/* What all transfers have, too. */
#define SET_NOTIFY(args)                                                                    \
    (SET_TERMS(args), (args).options.grant = grant_of, (args).options.flags |= op->flags | (op->notify ? WEFT_NOTIFY : 0),   \
     (args).options.notify = op->notify ? (uint64_t)(op - book->operations) : 0,            \
     (args).options.notify_data_len = note_data(op),                                        \
     (args).options.notify_data = (args).options.notify_data_len ? note_bytes : NULL)

static _Thread_local char note_bytes[WEFT_NOTIFY_DATA_MAX];

static uint32_t note_data(const struct operation *op)
{
    uint32_t len = op->notify && op->seed % 3 == 0 ? 1 + op->seed % WEFT_NOTIFY_DATA_MAX : 0;
    fill_random(note_bytes, len, op->seed);
    return len;
}

/* The beginning of a range, counted from the start of its memory. */
uint64_t start_of(uint32_t range)
{
    return (uint64_t)range * book->plan.layer;
}

static weft_status submit_range(struct operation *op, int target)
{
    struct shape shape;
    uint32_t slot = op->part[target].slot;
    struct range_request args = RANGE_REQUEST_INIT;
    shape_of(op, target, &shape);
    args.local = self->local[op->seed % 2];
    args.remote = self->to[target]->remote;
    args.local_offset = start_of(range_of(target, slot) + shape.side[LOCAL].first_layer) + shape.side[LOCAL].offset;
    args.remote_offset = start_of(range_of(0, slot) + shape.side[REMOTE].first_layer) + shape.side[REMOTE].offset;
    args.len = shape.bytes;
    args.options.counter = counter_of(op, target);
    SET_NOTIFY(args);
    return op->read ? submit_read(self->endpoint, &args, op->transfers) : submit_write(self->endpoint, &args, op->transfers);
}

struct pages_request pages_args(const struct operation *op, int target, struct shape *shape)
{
    struct pages_request args = PAGES_REQUEST_INIT;
    uint32_t slot = op->part[target].slot;
    shape_of(op, target, shape);
    const struct layout *local = &shape->side[LOCAL], *remote = &shape->side[REMOTE];
    args.local = self->local[op->seed % 2];
    args.remote = self->to[target]->remote;
    args.pages.local.pages = local->listed ? local->list : NULL;
    args.pages.remote.pages = remote->listed ? remote->list : NULL;
    args.pages.local.page_stride = local->stride == shape->page ? 0 : local->stride;
    args.pages.remote.page_stride = remote->stride;
    args.pages.local.offset = local->offset;
    args.pages.remote.offset = remote->offset;
    args.pages.local.layer_stride = local->layer_stride;
    args.pages.remote.layer_stride = remote->layer_stride;
    args.pages.local.first_range = range_of(target, slot) + local->first_layer;
    args.pages.remote.first_range = range_of(0, slot) + remote->first_layer;
    args.pages.local.range_step = local->step;
    args.pages.remote.range_step = remote->step;
    args.pages.page_len = shape->page;
    args.pages.page_count = shape->pages;
    args.pages.layer_count = shape->layers;
    return args;
}

static weft_status submit_pages(struct operation *op, int target)
{
    struct shape shape;
    struct pages_request args = pages_args(op, target, &shape);
    args.options.counter = counter_of(op, target);
    SET_NOTIFY(args);
    return op->read ? submit_read_pages(self->endpoint, &args, op->transfers)
                    : submit_write_pages(self->endpoint, &args, op->transfers);
}

/* Entries for each peer: those with bytes, and occasionally one that names only memories, or only the peer. */
static uint64_t make_entries(struct operation *op, weft_list_entry *entries)
{
    uint64_t count = 0;
    for (int target = 0; target < HOSTS; target++) {
        struct shape shape;
        uint32_t slot = op->part[target].slot, layer = book->plan.layer;
        if (!(op->targets >> target & 1))
            continue;
        shape_of(op, target, &shape);
        op->part[target].entry = count;
        const struct link *link = self->to[target];
        for (uint32_t i = 0; i < shape.count; i++) {
            const struct piece *piece = &shape.pieces[i];
            entries[count++] = (weft_list_entry){
                .local = self->local[op->seed % 2],
                .remote = link->remote,
                .peer = i % 3 ? 0 : link->peer,
                .local_range = range_of(target, slot) + piece->at[LOCAL] / layer,
                .remote_range = range_of(0, slot) + piece->at[REMOTE] / layer,
                .local_offset = piece->at[LOCAL] % layer,
                .remote_offset = piece->at[REMOTE] % layer,
                .len = piece->len,
                .counter = i + 1 < shape.raises ? counter_of(op, target) : 0,
            };
        }
        /* The last entry that raises the counter: an empty one, or the last with bytes. */
        if (op->shape % 2)
            entries[count++] = (weft_list_entry){.peer = link->peer, .counter = counter_of(op, target)};
        else
            entries[count - 1].counter = counter_of(op, target);
        if (op->shape % 5 == 0)
            entries[count++] = (weft_list_entry){.local = self->local[op->seed % 2], .remote = link->remote};
    }
    return count;
}

static _Thread_local weft_list_entry entries[HOSTS * (PIECES_MAX + 2)];

static weft_status submit_list(struct operation *op, int first)
{
    struct list_request args = LIST_REQUEST_INIT;
    (void)first;
    args.entries = entries;
    args.count = make_entries(op, entries);
    args.options.flags = op->each_peer ? WEFT_COMPLETE_EACH_PEER : 0;
    SET_NOTIFY(args);
    return op->read ? submit_read_list(self->endpoint, &args, op->transfers)
                    : submit_write_list(self->endpoint, &args, op->transfers);
}

static weft_status prepare_geometry(struct operation *op, int target, weft_prepared **handle)
{
    struct shape shape;
    if (!op->list) {
        struct pages_request pages = pages_args(op, target, &shape);
        pages.options.flags = op->flags & WEFT_COUNT_PAGES;
        return prepare_pages(self->endpoint, &pages, handle);
    }
    struct list_request list = LIST_REQUEST_INIT;
    list.entries = entries;
    list.count = make_entries(op, entries);
    return prepare_list(self->endpoint, &list, handle);
}

/* Submitted as often at once; if the queue is full, less often. */
static weft_status submit_kept(struct operation *op, int target)
{
    struct kept *kept = &self->kept[target][op->part[target].slot];
    struct prepared_request args = PREPARED_REQUEST_INIT;
    weft_status status = WEFT_OK;
    if (!kept->handle) {
        status = prepare_geometry(op, target, &kept->handle);
        kept->operation = *op;
    }
    if (status != WEFT_OK) {
        kept->handle = NULL;
        return status;
    }
    args.prepared = kept->handle;
    args.options.counter = op->list ? 0 : counter_of(op, target);
    SET_NOTIFY(args);
    for (uint8_t i = 0; i < op->uses; i++) {
        status = op->read ? submit_read_prepared(self->endpoint, &args, &op->transfers[i])
                          : submit_write_prepared(self->endpoint, &args, &op->transfers[i]);
        if (status != WEFT_OK && i > 0)
            op->uses = i;
        if (status != WEFT_OK)
            return i > 0 ? WEFT_OK : status;
    }
    return status;
}

uint64_t message_len(const struct operation *op)
{
    uint64_t drawn = op->seed / 32;
    return op->seed % 32 == 0 && !(book->plan.world & (PROCESSES | NAMESPACES)) ? drawn % (WEFT_MESSAGE_MAX - sizeof(struct note))
           : op->seed % 16 == 1                                                 ? drawn % 65536
                                                                                : drawn % NOTE_DATA;
}

static weft_status submit_message(struct operation *op, int target)
{
    static _Thread_local char message[WEFT_MESSAGE_MAX];
    struct note note = {OPERATION, (uint64_t)(op - book->operations), self->life, 0};
    struct link *link = self->to[target];
    struct send_request args = SEND_REQUEST_INIT;
    size_t len = message_len(op);
    memcpy(message, &note, sizeof note);
    fill_random(message + sizeof note, len, op->seed);
    args.peer = link->peer;
    args.data = message;
    args.len = sizeof note + len;
    SET_TERMS(args);
    weft_status status = submit_send(self->endpoint, &args, op->transfers);
    link->sending += status == WEFT_OK ? args.len + 64 : 0;
    return status;
}

static weft_status submit_atomic(struct operation *op, int target)
{
    struct atomic_request args = ATOMIC_REQUEST_INIT;
    args.remote = self->to[target]->remote;
    args.remote_offset = start_of(book->plan.slots * LAYERS) + op->word * sizeof(uint64_t);
    args.operand = op->word ? op->fresh : 1;
    SET_TERMS(args);
    args.options.grant = grant_of;
    if (op->word == 0) {
        book->ways[self->me][target].adds_asked++;
        weft_status status = submit_fetch_add(self->endpoint, &args, op->transfers);
        book->ways[self->me][target].adds_asked -= status != WEFT_OK;
        return status;
    }
    if (op->seed % 3 == 0) {
        args.operand = op->fresh - op->old;
        return submit_fetch_add(self->endpoint, &args, op->transfers);
    }
    args.compare = op->old;
    if (op->seed % 3 == 1) { /* A wrong expected value: nothing is swapped. */
        args.compare++;
        op->fresh = op->old;
    }
    return submit_compare_swap(self->endpoint, &args, op->transfers);
}

/* For the count that a peer has sent here; for all that it may send; or, with a short deadline, for more than that. */
static weft_status submit_wait(struct operation *op, int owner)
{
    struct way *way = &book->ways[owner][self->me];
    struct expect_request args = EXPECT_REQUEST_INIT;
    weft_counter counters[2] = {way->counter, way->counter};
    uint64_t values[2] = {op->ample ? way->counts_sure : way->counts_asked + draw(2), 0};
    if (!self->to[owner] || !self->to[owner]->prepared)
        return WEFT_ERR_AGAIN;
    if (draw(3) == 0 && !op->ample)
        values[0] = UINT64_C(1) << 40;
    op->old = counters[0];
    op->fresh = values[0];
    args.counters = counters;
    args.values = values;
    args.count = 1 + draw(2);
    SET_TERMS(args);
    return submit_expect(self->endpoint, &args, op->transfers);
}

static weft_status submit_any_fence(struct operation *op, int peer)
{
    struct fence_request args = FENCE_REQUEST_INIT;
    args.peer = self->to[peer]->peer;
    SET_TERMS(args);
    return submit_fence(self->endpoint, &args, op->transfers);
}

/* ---- Any of them ---- */

struct operation *new_operation(enum kind kind)
{
    uint32_t index = book->operations_count;
    if ((index >= book->plan.operations && kind != FENCE && kind != REVOKE) || (index = atomic_fetch_add(&book->operations_count, 1)) >= OPERATIONS_MAX)
        return NULL;
    struct operation *op = &book->operations[index];
    op->kind = (uint8_t)kind;
    op->host = (uint8_t)self->me;
    op->life = self->life;
    op->seed = next_random(&self->random);
    op->shape = next_random(&self->random);
    op->uses = 1;
    op->list = kind == LIST;
    for (int h = 0; h < HOSTS; h++)
        op->part[h].slot = NOBODY;
    return op;
}

static void aim(struct operation *op, int target)
{
    struct part *part = &op->part[target];
    const struct link *link = self->to[target];
    op->targets |= (uint8_t)(1u << target);
    if (!link)
        return;
    part->life = link->life;
    part->token = link->token;
    part->peer = link->peer;
    part->version = op->kind == EXPECT ? book->ways[target][self->me].version : link->version;
}

static void draw_terms(struct operation *op)
{
    bool calm = book->plan.world & (THREADS | VIRTUAL);
    op->ample = draw(10) != 0;
    op->timeout_ns = op->ample          ? AMPLE
                     : calm && draw(2) ? 1 + draw(300000)
                                       : (1 + draw(60)) * MS;
    op->will_cancel = draw(16) == 0;
    op->second = draw(4) == 0;
    if (op->kind >= SEND)
        return;
    op->read = draw(3) == 0;
    op->notify = draw(2);
    op->flags = draw(10) == 0 ? WEFT_CLASS_LATENCY : 0;
    uint32_t counted = draw(16);
    if (op->kind == KEPT) {
        op->list = draw(3) == 0;
        op->uses = (uint8_t)(op->notify ? 1 : 1 + draw(USES_MAX));
    }
    if (book->plan.flags) {
        op->read = op->list = false;
        op->notify = book->plan.flags & WEFT_NOTIFY;
        counted = book->plan.flags & WEFT_COUNT_PAGES ? 0 : 4;
    }
    if (counted == 0 && !op->read && !op->list)
        op->flags |= WEFT_COUNT_PAGES;
    else
        op->counts = counted < 4;
}

static void cancel_later(const struct operation *op)
{
    for (size_t i = 0; i < COUNT(self->cancels); i++) {
        if (self->cancels[i].at_ns)
            continue;
        self->cancels[i].operation = (uint32_t)(op - book->operations);
        self->cancels[i].at_ns = world_ns() + draw(20000) * (uint64_t)(draw(2) ? 1000 : 10) + 1;
        return;
    }
}

static void cancel_due(void)
{
    uint64_t now = world_ns();
    for (size_t i = 0; i < COUNT(self->cancels); i++) {
        if (!self->cancels[i].at_ns || now < self->cancels[i].at_ns)
            continue;
        struct operation *op = &book->operations[self->cancels[i].operation];
        for (int use = 0; use < op->uses; use++) {
            weft_status status = weft_op_cancel(self->endpoint, op->transfers[use]);
            if (status != WEFT_OK && status != WEFT_ERR_HANDLE)
                finding(&book->odd, "%s: weft_op_cancel gave %s", text_of(op), weft_status_name(status));
            else if (status == WEFT_OK && op->uses == 1 && !op->each_peer)
                op->canceled = true;
        }
        self->cancels[i].at_ns = 0;
    }
}

static void ask_counts(const struct operation *op, bool back)
{
    for (int target = 0; target < HOSTS; target++) {
        struct shape shape;
        if (!(op->targets >> target & 1) || op->kind >= SEND)
            continue;
        shape_of(op, target, &shape);
        uint64_t counts = counts_of(op, &shape);
        book->ways[self->me][target].counts_asked += back ? -counts : counts;
    }
}

/* Places that its completions need in the queue. */
static uint32_t places_of(const struct operation *op)
{
    return op->each_peer ? (uint32_t)__builtin_popcount(op->targets) : op->uses;
}

void count_open(const struct operation *op)
{
    self->open += places_of(op);
    self->queued += op->second ? places_of(op) : 0;
    for (int target = 0; target < HOSTS; target++)
        if (!op->second && op->part[target].peer && op->targets >> target & 1 && op->kind != EXPECT && op->kind != REVOKE &&
            (op->each_peer || op->targets == 1u << target))
            self->to[target]->open += op->uses;
}

/* Whether a refused call had a reason. */
static bool may_refuse(const struct operation *op, weft_status status, bool was_full)
{
    bool faults = !book->plan.spared || book->plan.world == NAMESPACES, ending = false;
    uint64_t sending = 0;
    for (int target = 0; target < HOSTS; target++) {
        const struct link *link = self->to[target];
        if (!(op->targets >> target & 1))
            continue;
        sending += link ? link->sending : 0;
        ending |= !link || is_ending(link);
    }
    if (status == WEFT_ERR_AGAIN)
        return was_full || (op->kind == SEND && sending + message_len(op) + 65536 > MESSAGES) || op->kind == EXPECT ||
               book->plan.world & (PROCESSES | NAMESPACES);
    if (status == WEFT_ERR_REVOKED)
        for (int target = 0; target < HOSTS; target++)
            if (op->part[target].grant)
                return may_be_revoked(op, target);
    return (weft_status_category(status) == WEFT_CATEGORY_PEER || status == WEFT_ERR_HANDLE) && (faults || ending);
}

static bool submit(struct operation *op, int target)
{
    static weft_status (*const how[KINDS])(struct operation *, int) = {
        submit_range, submit_pages, submit_list, submit_kept, submit_message, submit_atomic, submit_wait, submit_any_fence};
    if ((op->kind < SEND && !prepare_slots(op)) || (op->kind == ATOMIC && !take_word(op, target)))
        return false;
    if (!take_grant(op, target)) { /* of what is known by now: prepared geometry has its own flags */
        give_slots_back(op);
        return false;
    }
    bool was_full = op->second && self->queued + places_of(op) > QUEUE_DEPTH;
    uint8_t uses = op->uses;
    ask_counts(op, false);
    op->submit_ns = world_ns();
    weft_status status = how[op->kind](op, target);
    op->accepted = status == WEFT_OK;
    if (status == WEFT_OK && op->uses != uses) { /* fewer than requested */
        uint8_t used = op->uses;
        op->uses = uses;
        ask_counts(op, true);
        op->uses = used;
        ask_counts(op, false);
    }
    if (status == WEFT_OK) {
        if (was_full && uses == op->uses)
            finding(&book->odd, "%s was accepted, but its queue of %d places was full", text_of(op), QUEUE_DEPTH);
        count_open(op);
        return true;
    }
    ask_counts(op, true);
    give_slots_back(op);
    if (!may_refuse(op, status, was_full))
        finding(&book->odd, "%s was refused with %s: %s", text_of(op), weft_status_name(status), weft_last_error());
    return false;
}

bool fence_link(struct link *link)
{
    struct operation *op = self->to[link->host] == link ? new_operation(FENCE) : NULL;
    if (!op)
        return false;
    op->ample = true;
    op->timeout_ns = AMPLE;
    aim(op, link->host);
    return submit(op, link->host);
}

static void submit_one(int target)
{
    static const enum kind kinds[] = {RANGE, RANGE, RANGE, PAGES, PAGES, PAGES, PAGES, LIST,
                                      LIST, KEPT, KEPT, SEND, SEND, ATOMIC, EXPECT};
    enum kind kind = kinds[draw(COUNT(kinds))];
    while ((book->plan.kinds && !(book->plan.kinds >> kind & 1)) || (kind == ATOMIC && book->plan.files >> target & 1))
        kind = kinds[draw(COUNT(kinds))];
    struct operation *op = new_operation(kind);
    if (!op)
        return;
    draw_terms(op);
    aim(op, target);
    int other = HOSTS - self->me - target;
    if (op->kind == LIST && book->plan.hosts == HOSTS && !book->plan.granted && is_ready(other) && draw(2)) {
        aim(op, other);
        op->each_peer = draw(2);
    }
    if (submit(op, target) && op->will_cancel)
        cancel_later(op);
}

void play_step(void)
{
    uint64_t now = world_ns();
    cancel_due();
    for (int target = 0; target < book->plan.hosts; target++) {
        if (target == self->me || book->quiet || (book->plan.only && book->plan.only != 1 + self->me) || now < self->submit_at_ns[target] || !is_ready(target))
            continue;
        if (now >= self->wrong_at_ns) {
            self->wrong_at_ns = now + draw(16) * SECOND / book->plan.rate * 8;
            if (!book->plan.granted)
                play_wrong(target);
            if (self->to[target]->prepared)
                check_counts(target, false);
        }
        uint32_t burst = 1 + draw(BURST);
        self->submit_at_ns[target] = now + burst * SECOND / book->plan.rate;
        for (uint32_t i = 0; i < burst && is_ready(target) && self->open < book->plan.most; i++)
            submit_one(target);
    }
}
