/* What is submitted: any kind, to whoever is ready, at about a steady rate. */
#include "host.h"

#define AMPLE (10 * SECOND)
#define RATE 70 /* operations to each host and second */
#define BURST 8
#define NOTE_DATA 2048

/* ---- Slots ---- */

static bool is_free(struct slot *slot, uint64_t now)
{
    uint32_t state = slot->state;
    bool taken = (state & (DONE | FAILED | TAKEN)) == (DONE | TAKEN);
    if (taken || state & FENCED) {
        slot->since_ns = now;
        slot->state = state = 0;
    }
    /* Most rest shortly, some for seconds: nothing may land meanwhile. */
    uint64_t drawn = mix(slot->operation), rest = drawn % 8 ? drawn % 200 : drawn % 3000;
    return state == 0 && (slot->since_ns == 0 || now >= slot->since_ns + rest * MS);
}

static bool take_slot(struct operation *op, int target)
{
    struct way *way = &book->ways[self.me][target];
    uint64_t now = now_ns();
    uint32_t first = draw(SLOTS);
    for (uint32_t i = 0; i < SLOTS; i++) {
        uint32_t s = (first + i) % SLOTS;
        if (!is_free(&way->slots[s], now))
            continue;
        if (way->slots[s].since_ns) {
            check_guard(self.me, target, LOCAL, s);
            check_guard(self.me, target, REMOTE, s);
        }
        op->part[target].slot = (uint8_t)s;
        way->slots[s].operation = (uint32_t)(op - book->operations);
        way->slots[s].state = BUSY;
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
        book->ways[self.me][target].slots[op->part[target].slot].state = 0;
        op->part[target].slot = NOBODY;
    }
}

/* ---- Each kind ---- */

static weft_counter counter_of(const struct operation *op, int target)
{
    return op->counts || op->flags & WEFT_COUNT_PAGES ? book->ways[self.me][target].counter : 0;
}

static void *mark_of(const struct operation *op)
{
    return (void *)(uintptr_t)(op - book->operations + 1);
}

static uint32_t note_data(const struct operation *op, char *data)
{
    uint32_t len = op->notify && op->seed % 3 == 0 ? 1 + op->seed % WEFT_NOTIFY_DATA_MAX : 0;
    fill_random(data, len, op->seed);
    return len;
}

static weft_status submit_range(struct operation *op, int target)
{
    static char data[WEFT_NOTIFY_DATA_MAX];
    struct shape shape;
    uint32_t slot = op->part[target].slot;
    weft_range_args args = WEFT_RANGE_ARGS_INIT;
    shape_of(op, target, &shape);
    args.flags = op->flags;
    args.local = self.memory;
    args.remote = self.to[target]->remote;
    args.local_range = range_of(target, LOCAL, slot) + shape.local_layer;
    args.remote_range = range_of(self.me, REMOTE, slot) + shape.remote_layer;
    if (shape.count) {
        args.local_offset = shape.pieces[0].local % LAYER;
        args.remote_offset = shape.pieces[0].remote % LAYER;
        args.len = shape.bytes;
    }
    args.notify = op->notify ? (uint64_t)(op - book->operations) : 0;
    args.notify_data_len = note_data(op, data);
    args.notify_data = args.notify_data_len ? data : NULL;
    args.timeout_ns = op->timeout_ns;
    args.user_data = mark_of(op);
    args.counter = counter_of(op, target);
    return op->read ? weft_read(self.endpoint, &args, &op->transfer) : weft_write(self.endpoint, &args, &op->transfer);
}

static weft_pages_args pages_args(const struct operation *op, int target, struct shape *shape)
{
    weft_pages_args args = WEFT_PAGES_ARGS_INIT;
    uint32_t slot = op->part[target].slot;
    shape_of(op, target, shape);
    args.local = self.memory;
    args.remote = self.to[target]->remote;
    args.local_pages = shape->local_pages;
    args.remote_pages = shape->remote_pages;
    args.local_first_range = range_of(target, LOCAL, slot) + shape->local_layer;
    args.remote_first_range = range_of(self.me, REMOTE, slot) + shape->remote_layer;
    args.local_range_step = args.remote_range_step = 1;
    args.page_len = shape->page;
    args.page_count = shape->pages;
    args.layer_count = shape->layers;
    return args;
}

static weft_status submit_pages(struct operation *op, int target)
{
    static char data[WEFT_NOTIFY_DATA_MAX];
    struct shape shape;
    weft_pages_args args = pages_args(op, target, &shape);
    args.flags = op->flags;
    args.notify = op->notify ? (uint64_t)(op - book->operations) : 0;
    args.notify_data_len = note_data(op, data);
    args.notify_data = args.notify_data_len ? data : NULL;
    args.timeout_ns = op->timeout_ns;
    args.user_data = mark_of(op);
    args.counter = counter_of(op, target);
    return op->read ? weft_read_pages(self.endpoint, &args, &op->transfer)
                    : weft_write_pages(self.endpoint, &args, &op->transfer);
}

static weft_status submit_kept(struct operation *op, int target)
{
    struct shape shape;
    weft_pages_args pages = pages_args(op, target, &shape);
    weft_kept_args args = WEFT_KEPT_ARGS_INIT;
    weft_kept *kept = NULL;
    pages.flags = op->flags & WEFT_COUNT_PAGES;
    weft_status status = weft_pages_keep(self.endpoint, &pages, &kept);
    if (status != WEFT_OK)
        return status;
    args.flags = op->flags;
    args.notify = op->notify ? (uint64_t)(op - book->operations) : 0;
    args.timeout_ns = op->timeout_ns;
    args.user_data = mark_of(op);
    args.counter = counter_of(op, target);
    status = op->read ? weft_read_kept(self.endpoint, kept, &args, &op->transfer)
                      : weft_write_kept(self.endpoint, kept, &args, &op->transfer);
    CHECK_OK(weft_kept_release(kept)); /* what uses it goes on */
    return status;
}

static weft_status submit_list(struct operation *op, int first)
{
    static weft_list_entry entries[HOSTS * PIECES_MAX];
    weft_list_args args = WEFT_LIST_ARGS_INIT;
    (void)first;
    for (int target = 0; target < HOSTS; target++) {
        struct shape shape;
        if (!(op->targets >> target & 1))
            continue;
        shape_of(op, target, &shape);
        for (uint32_t i = 0; i < shape.count; i++) {
            const struct piece *piece = &shape.pieces[i];
            uint32_t slot = op->part[target].slot;
            entries[args.count++] = (weft_list_entry){
                .local = self.memory,
                .remote = self.to[target]->remote,
                .local_range = range_of(target, LOCAL, slot) + piece->local / LAYER,
                .remote_range = range_of(self.me, REMOTE, slot) + piece->remote / LAYER,
                .local_offset = piece->local % LAYER,
                .remote_offset = piece->remote % LAYER,
                .len = piece->len,
                .counter = i == 0 ? counter_of(op, target) : 0,
            };
        }
    }
    args.flags = op->flags | (op->each_peer ? WEFT_COMPLETE_EACH_PEER : 0);
    args.entries = entries;
    args.notify = op->notify ? (uint64_t)(op - book->operations) : 0;
    args.timeout_ns = op->timeout_ns;
    args.user_data = mark_of(op);
    return op->read ? weft_read_list(self.endpoint, &args, &op->transfer)
                    : weft_write_list(self.endpoint, &args, &op->transfer);
}

static weft_status submit_message(struct operation *op, int target)
{
    static char message[sizeof(struct note) + 65536];
    struct note note = {OPERATION, (uint64_t)(op - book->operations), self.life};
    size_t len = op->seed % 16 ? op->seed / 16 % NOTE_DATA : op->seed / 16 % 65536;
    weft_send_args args = WEFT_SEND_ARGS_INIT;
    memcpy(message, &note, sizeof note);
    fill_random(message + sizeof note, len, op->seed);
    args.peer = self.to[target]->peer;
    args.data = message;
    args.len = sizeof note + len;
    args.timeout_ns = op->timeout_ns;
    args.user_data = mark_of(op);
    return weft_send(self.endpoint, &args, &op->transfer);
}

static weft_status submit_atomic(struct operation *op, int target)
{
    weft_atomic_args args = WEFT_ATOMIC_ARGS_INIT;
    args.remote = self.to[target]->remote;
    args.remote_range = WORD_RANGE;
    args.remote_offset = (uint64_t)self.me * 8;
    args.operand = 1;
    args.timeout_ns = op->timeout_ns;
    args.user_data = mark_of(op);
    book->ways[self.me][target].adds_asked++;
    weft_status status = weft_fetch_add(self.endpoint, &args, &op->transfer);
    book->ways[self.me][target].adds_asked -= status != WEFT_OK;
    return status;
}

/* For what a peer was told to have counted here; or, with a short deadline, for more
 * than there will ever be. */
static weft_status submit_wait(struct operation *op, int owner)
{
    struct way *way = &book->ways[owner][self.me];
    weft_expect_args args = WEFT_EXPECT_ARGS_INIT;
    weft_counter counter = way->counter;
    uint64_t value = op->ample ? way->counts_ok : UINT64_C(1) << 40;
    if (!self.to[owner] || !self.to[owner]->prepared)
        return WEFT_ERR_AGAIN;
    args.counters = &counter;
    args.values = &value;
    args.count = 1;
    args.timeout_ns = op->timeout_ns;
    args.user_data = mark_of(op);
    return weft_counter_expect(self.endpoint, &args, &op->transfer);
}

static weft_status submit_any_fence(struct operation *op, int of)
{
    weft_fence_args args = WEFT_FENCE_ARGS_INIT;
    args.peer = self.to[of]->peer;
    args.timeout_ns = op->timeout_ns;
    args.user_data = mark_of(op);
    return weft_peer_fence(self.endpoint, &args, &op->transfer);
}

/* ---- Any of them ---- */

static struct operation *new_operation(enum kind kind)
{
    uint32_t index = book->operations_count;
    if (index >= OPERATIONS_MAX || (index = atomic_fetch_add(&book->operations_count, 1)) >= OPERATIONS_MAX)
        return NULL;
    struct operation *op = &book->operations[index];
    op->kind = (uint8_t)kind;
    op->host = (uint8_t)self.me;
    op->life = self.life;
    op->seed = next_random(&self.random);
    for (int h = 0; h < HOSTS; h++)
        op->part[h].slot = NOBODY;
    return op;
}

static void aim(struct operation *op, int target)
{
    op->targets |= (uint8_t)(1u << target);
    op->part[target].life = self.to[target] ? self.to[target]->life : 0;
    op->part[target].token = self.to[target] ? self.to[target]->token : 0;
}

static void draw_terms(struct operation *op)
{
    op->ample = draw(10) != 0;
    op->timeout_ns = op->ample ? AMPLE : (1 + draw(60)) * MS;
    op->will_cancel = draw(16) == 0;
    if (op->kind >= SEND)
        return;
    op->read = !book->no_reads && draw(3) == 0;
    op->notify = draw(2);
    op->flags = (op->notify ? WEFT_NOTIFY : 0) | (draw(10) == 0 ? WEFT_CLASS_LATENCY : 0);
    uint32_t counted = draw(16);
    if (counted == 0 && !op->read && op->kind != LIST)
        op->flags |= WEFT_COUNT_PAGES;
    else
        op->counts = counted < 4;
}

static void cancel_later(const struct operation *op)
{
    size_t i = 0;
    while (i < COUNT(self.cancels) && self.cancels[i].transfer)
        i++;
    if (i == COUNT(self.cancels))
        return;
    self.cancels[i].transfer = op->transfer;
    self.cancels[i].at_ns = now_ns() + draw(20000) * 1000;
}

static void cancel_due(void)
{
    uint64_t now = now_ns();
    for (size_t i = 0; i < COUNT(self.cancels); i++) {
        if (!self.cancels[i].transfer || now < self.cancels[i].at_ns)
            continue;
        CHECK_ONE_OF(weft_transfer_cancel(self.endpoint, self.cancels[i].transfer), WEFT_OK, WEFT_ERR_HANDLE);
        self.cancels[i].transfer = 0;
    }
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

static void ask_counts(const struct operation *op, bool back)
{
    for (int target = 0; target < HOSTS; target++) {
        struct shape shape;
        if (!(op->targets >> target & 1) || op->kind >= SEND)
            continue;
        shape_of(op, target, &shape);
        uint64_t counts = op->flags & WEFT_COUNT_PAGES ? shape.count : op->counts;
        book->ways[self.me][target].counts_asked += back ? -counts : counts;
    }
}

static bool submit(struct operation *op, int target)
{
    static weft_status (*const how[KINDS])(struct operation *, int) = {
        submit_range, submit_pages, submit_list, submit_kept, submit_message, submit_atomic, submit_wait, submit_any_fence};
    if (op->kind < SEND && !prepare_slots(op))
        return false;
    ask_counts(op, false);
    op->submit_ns = now_ns();
    weft_status status = how[op->kind](op, target);
    op->accepted = status == WEFT_OK;
    if (status == WEFT_OK)
        return true;
    ask_counts(op, true);
    give_slots_back(op);
    if (status != WEFT_ERR_AGAIN && weft_status_category(status) != WEFT_CATEGORY_PEER && status != WEFT_ERR_HANDLE)
        finding(&book->odd, "%s was refused: %s", text_of(op), weft_last_error());
    return false;
}

bool submit_fence(struct link *link)
{
    struct operation *op = new_operation(FENCE);
    if (!op)
        return false;
    op->ample = true;
    op->timeout_ns = AMPLE;
    aim(op, link->host);
    return self.to[link->host] == link && submit(op, link->host);
}

static void submit_one(int target)
{
    static const enum kind kinds[] = {RANGE, RANGE, RANGE, PAGES, PAGES, PAGES, PAGES, LIST,
                                      LIST, KEPT, KEPT, SEND, SEND, ATOMIC, EXPECT};
    struct operation *op = new_operation(kinds[draw(COUNT(kinds))]);
    if (!op)
        return;
    draw_terms(op);
    aim(op, target);
    int other = HOSTS - self.me - target;
    if (op->kind == LIST && is_ready(other) && draw(2)) {
        aim(op, other);
        op->each_peer = draw(2);
    }
    if (submit(op, target) && op->will_cancel)
        cancel_later(op);
}

void operations_step(void)
{
    uint64_t now = now_ns();
    cancel_due();
    for (int target = 0; target < HOSTS; target++) {
        if (target == self.me || book->quiet || now < self.submit_at_ns[target] || !is_ready(target))
            continue;
        uint32_t burst = 1 + draw(BURST);
        self.submit_at_ns[target] = now + burst * SECOND / RATE;
        for (uint32_t i = 0; i < burst && is_ready(target); i++)
            submit_one(target);
    }
}
