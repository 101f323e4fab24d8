/*
 * A ledger of what two endpoints in one simulated world do to each other: every
 * operation's completion, every byte, notification, count and message is accounted for.
 * Time is virtual; a run is replayable.
 *
 * Each operation has a slot of the submitter's memory and one of the target's. Bytes are
 * checked when they are said to be there; then the slots are filled with a guard that
 * nobody may touch.
 */
#ifndef WEFT_TEST_LEDGER_H
#define WEFT_TEST_LEDGER_H

#include "harness.h"

#define SLOT (128 * KIB)
#define SLOTS 24
#define HALF (SLOTS * SLOT)
#define MEMORY (2 * HALF + 64)
#define OPERATIONS_MAX 4096
#define RAILS_MAX 8

enum kind { RANGE, PAGES, LIST, KEPT, KINDS };

struct operation {
    int side; /* who submitted it */
    enum kind kind;
    bool read, notify, done, retired;
    uint32_t flags; /* WEFT_COUNT_PAGES or WEFT_CLASS_LATENCY */
    uint32_t slot, page, count, factor;
    uint64_t seed, timeout_ns;
    weft_counter counter;
    weft_status status;
    int notified;
    uint64_t submit_ns, done_ns;
};

struct side {
    struct box *box;
    weft_peer peer;
    weft_memory *memory;
    weft_remote_memory *theirs;
    uint8_t *bytes;
    uint8_t guard[2 * SLOTS]; /* what its slots are filled with; 0: something is under way */
    uint32_t user[SLOTS];     /* 1 + the operation that has a slot */
    bool down;                /* PEER_DOWN came */
    int rail_downs[RAILS_MAX], rail_ups[RAILS_MAX];
    uint64_t sent, sends_done, sends_ok, heard;
    uint64_t adds, adds_done, adds_ok;
    uint8_t *values; /* of the additions */
};

struct ledger {
    const char *name, *faults;
    struct side side[2];
    struct operation *operations;
    uint32_t count, open;
    uint64_t random, now_ns, begin_ns;
    uint64_t errors, rail_lost; /* operations that did not end well */
    weft_status last_error;
};

#define LEDGER_FAIL(ledger, ...)                                                            \
    do {                                                                                    \
        fprintf(stderr, "%s, faults \"%s\":\n", (ledger)->name, (ledger)->faults);          \
        FAIL(__VA_ARGS__);                                                                  \
    } while (0)
#define LEDGER_CHECK(ledger, what)                                                          \
    do {                                                                                    \
        if (!(what))                                                                        \
            LEDGER_FAIL(ledger, "failed: %s", #what);                                       \
    } while (0)

static inline uint32_t draw(struct ledger *ledger, uint32_t below)
{
    return (uint32_t)(next_random(&ledger->random) >> 16) % below;
}

static inline const char *text_of(const struct ledger *ledger, const struct operation *op)
{
    static const char *const kinds[] = {"range", "pages", "list", "kept"};
    static char text[160];
    snprintf(text, sizeof text, "operation %u (side %d %s, %s of %u x %u%s%s)",
             (uint32_t)(op - ledger->operations), op->side, op->read ? "reads" : "writes", kinds[op->kind],
             op->count, op->page, op->notify ? ", notifies" : "",
             op->flags & WEFT_COUNT_PAGES ? ", counts pages" : op->counter ? ", raises once" : "");
    return text;
}

/* How long it has been, of virtual time. */
static inline uint64_t elapsed(const struct ledger *ledger)
{
    return ledger->now_ns - ledger->begin_ns;
}

/* ---- Slots and their bytes ---- */

static inline uint8_t *own_slot(struct ledger *ledger, const struct operation *op)
{
    return ledger->side[op->side].bytes + op->slot * SLOT;
}

static inline uint8_t *their_slot(struct ledger *ledger, const struct operation *op)
{
    return ledger->side[1 - op->side].bytes + HALF + op->slot * SLOT;
}

static inline void guard(struct ledger *ledger, int side, uint32_t place)
{
    uint8_t fill = (uint8_t)(1 + draw(ledger, 255));
    ledger->side[side].guard[place] = fill;
    memset(ledger->side[side].bytes + place * SLOT, fill, SLOT);
}

static inline void check_guard(struct ledger *ledger, int side, uint32_t place)
{
    const uint8_t *bytes = ledger->side[side].bytes + place * SLOT;
    uint8_t fill = ledger->side[side].guard[place];
    if (fill != 0 && (bytes[0] != fill || memcmp(bytes, bytes + 1, SLOT - 1) != 0))
        LEDGER_FAIL(ledger, "side %d: slot %u was written to after it was done: a ghost", side, place);
}

static inline uint64_t bytes_of(const struct operation *op)
{
    return (uint64_t)op->page * op->count;
}

/* Where a page of one side lies on the other. */
static inline uint32_t other_page(const struct operation *op, uint32_t page)
{
    return (page * op->factor + 1) % op->count;
}

static inline void check_bytes(struct ledger *ledger, const struct operation *op, const char *when)
{
    for (uint32_t i = 0; i < op->count; i++) {
        const uint8_t *own = own_slot(ledger, op) + (uint64_t)i * op->page;
        const uint8_t *theirs = their_slot(ledger, op) + (uint64_t)other_page(op, i) * op->page;
        if (memcmp(own, theirs, op->page) != 0)
            LEDGER_FAIL(ledger, "%s: page %u of %u is wrong %s", text_of(ledger, op), i, op->count, when);
    }
}

/* ---- The world ---- */

static inline struct ledger *ledger_open(const char *name, const char *faults, uint64_t seed)
{
    struct ledger *ledger = calloc(1, sizeof *ledger);
    char blob[8192];
    CHECK(ledger != NULL);
    ledger->operations = calloc(OPERATIONS_MAX, sizeof *ledger->operations);
    CHECK(ledger->operations != NULL);
    (ledger->name = name, ledger->faults = faults, ledger->random = mix(seed + 1));
    setenv("WEFT_SIM_FAULTS", faults, 1);
    for (int i = 0; i < 2; i++) {
        struct side *side = &ledger->side[i];
        weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
        config.fabric = name;
        config.progress = WEFT_PROGRESS_MANUAL;
        side->box = box_of(open_with(&config));
        side->bytes = map_bytes(MEMORY);
        side->values = calloc(OPERATIONS_MAX, 1);
        side->memory = register_one(side->box->endpoint, side->bytes, MEMORY);
        for (uint32_t place = 0; place < 2 * SLOTS; place++)
            guard(ledger, i, place);
    }
    size_t len = address_of(ledger->side[1].box->endpoint, blob, sizeof blob);
    CHECK_OK(weft_peer_connect(ledger->side[0].box->endpoint, blob, len, NULL, &ledger->side[0].peer));
    weft_completion up[2];
    for (int tries = 0, have = 0; have != 3; tries++) {
        LEDGER_CHECK(ledger, tries < 100000);
        for (int i = 0; i < 2; i++) {
            box_pump(ledger->side[i].box, 1);
            if (!(have >> i & 1) && box_try(ledger->side[i].box, WEFT_COMPLETION_PEER_UP, &up[i]))
                have |= 1 << i;
        }
    }
    ledger->begin_ns = ledger->now_ns = up[0].done_ns;
    for (int i = 0; i < 2; i++) {
        CHECK_OK(up[i].status);
        ledger->side[i].peer = up[i].peer;
        len = descriptor_of(ledger->side[1 - i].memory, blob, sizeof blob);
        CHECK_OK(weft_remote_memory_import(ledger->side[i].box->endpoint, up[i].peer, blob, len,
                                           &ledger->side[i].theirs));
    }
    return ledger;
}

/* ---- Submitting ---- */

static inline weft_status submit_pages(struct ledger *ledger, struct operation *op, bool keep)
{
    struct side *side = &ledger->side[op->side];
    uint32_t theirs[SLOT / 512];
    for (uint32_t i = 0; i < op->count; i++)
        theirs[i] = other_page(op, i);
    weft_pages_args args = WEFT_PAGES_ARGS_INIT;
    args.local = side->memory;
    args.remote = side->theirs;
    args.remote_pages = theirs;
    args.page_len = op->page;
    args.page_count = op->count;
    args.local_offset = op->slot * SLOT;
    args.remote_offset = HALF + op->slot * SLOT;
    args.flags = op->flags;
    weft_endpoint *endpoint = side->box->endpoint;
    uint64_t value = (uint64_t)(op - ledger->operations) + 1;
    if (keep) {
        weft_kept *kept;
        weft_kept_args with = WEFT_KEPT_ARGS_INIT;
        weft_status status = weft_pages_keep(endpoint, &args, &kept);
        if (status != WEFT_OK)
            return status;
        with.flags = op->flags | (op->notify ? WEFT_NOTIFY : 0);
        with.notify = op->notify ? value : 0;
        with.counter = op->counter;
        with.timeout_ns = op->timeout_ns;
        with.user_data = op;
        status = op->read ? weft_read_kept(endpoint, kept, &with, NULL)
                          : weft_write_kept(endpoint, kept, &with, NULL);
        CHECK_OK(weft_kept_release(kept));
        return status;
    }
    args.flags |= op->notify ? WEFT_NOTIFY : 0;
    args.notify = op->notify ? value : 0;
    args.counter = op->counter;
    args.timeout_ns = op->timeout_ns;
    args.user_data = op;
    return op->read ? weft_read_pages(endpoint, &args, NULL) : weft_write_pages(endpoint, &args, NULL);
}

static inline weft_status submit_range(struct ledger *ledger, struct operation *op)
{
    struct side *side = &ledger->side[op->side];
    weft_range_args args = range_args(side->memory, side->theirs, bytes_of(op));
    args.local_offset = op->slot * SLOT;
    args.remote_offset = HALF + op->slot * SLOT;
    args.flags = op->flags | (op->notify ? WEFT_NOTIFY : 0);
    args.notify = op->notify ? (uint64_t)(op - ledger->operations) + 1 : 0;
    args.counter = op->counter;
    args.timeout_ns = op->timeout_ns;
    args.user_data = op;
    return op->read ? weft_read(side->box->endpoint, &args, NULL)
                    : weft_write(side->box->endpoint, &args, NULL);
}

/* Its last entry raises the counter, if there is one. */
static inline weft_status submit_list(struct ledger *ledger, struct operation *op)
{
    struct side *side = &ledger->side[op->side];
    weft_list_entry *entries = calloc(op->count + 1, sizeof *entries);
    CHECK(entries != NULL);
    for (uint32_t i = 0; i < op->count; i++) {
        entries[i].local = side->memory;
        entries[i].remote = side->theirs;
        entries[i].local_offset = op->slot * SLOT + (uint64_t)i * op->page;
        entries[i].remote_offset = HALF + op->slot * SLOT + (uint64_t)other_page(op, i) * op->page;
        entries[i].len = op->page;
    }
    entries[op->count].peer = side->peer;
    entries[op->count].counter = op->counter;
    weft_list_args args = WEFT_LIST_ARGS_INIT;
    args.entries = entries;
    args.count = op->count + (op->counter != 0);
    args.flags = op->flags | (op->notify ? WEFT_NOTIFY : 0);
    args.notify = op->notify ? (uint64_t)(op - ledger->operations) + 1 : 0;
    args.timeout_ns = op->timeout_ns;
    args.user_data = op;
    weft_status status = op->read ? weft_read_list(side->box->endpoint, &args, NULL)
                                  : weft_write_list(side->box->endpoint, &args, NULL);
    free(entries);
    return status;
}

/* Submits an operation in a free slot; false if there is none, or the peer is no more. */
static inline bool submit(struct ledger *ledger, struct operation wanted)
{
    struct side *side = &ledger->side[wanted.side], *other = &ledger->side[1 - wanted.side];
    uint32_t slot = 0;
    while (slot < SLOTS && side->user[slot] != 0)
        slot++;
    if (slot == SLOTS || ledger->count == OPERATIONS_MAX || side->down)
        return false;
    check_guard(ledger, wanted.side, slot);
    check_guard(ledger, 1 - wanted.side, SLOTS + slot);
    struct operation *op = &ledger->operations[ledger->count];
    *op = wanted;
    op->slot = slot;
    op->seed = next_random(&ledger->random);
    op->submit_ns = ledger->now_ns;
    if (op->counter == 1)
        CHECK_OK(weft_counter_create(other->box->endpoint, &op->counter));
    side->guard[slot] = other->guard[SLOTS + slot] = 0;
    fill_random(op->read ? their_slot(ledger, op) : own_slot(ledger, op), bytes_of(op), op->seed);
    weft_status status = op->kind == RANGE  ? submit_range(ledger, op)
                         : op->kind == LIST ? submit_list(ledger, op)
                                            : submit_pages(ledger, op, op->kind == KEPT);
    if (status != WEFT_OK) {
        CHECK_ONE_OF(status, WEFT_ERR_AGAIN, WEFT_ERR_PEER_LOST, WEFT_ERR_PEER_CLOSED, WEFT_ERR_HANDLE);
        guard(ledger, wanted.side, slot);
        guard(ledger, 1 - wanted.side, SLOTS + slot);
        return false;
    }
    side->user[slot] = ++ledger->count;
    ledger->open++;
    return true;
}

/* An operation of any kind. */
static inline struct operation any_operation(struct ledger *ledger, int side)
{
    struct operation op = {.side = side, .timeout_ns = 20 * SECOND};
    op.kind = (enum kind)draw(ledger, KINDS);
    op.read = draw(ledger, 4) == 0;
    op.notify = draw(ledger, 2);
    op.page = op.kind == RANGE ? 1 + draw(ledger, SLOT) : 512u << draw(ledger, 7);
    op.count = 1;
    while (op.kind != RANGE && 2 * op.page * op.count <= SLOT && draw(ledger, 8) != 0)
        op.count *= 2;
    op.factor = 2 * draw(ledger, 64) + 1;
    op.counter = draw(ledger, 3) == 0;
    if (op.counter && op.kind != LIST && !op.read && draw(ledger, 2))
        op.flags |= WEFT_COUNT_PAGES;
    else if (draw(ledger, 4) == 0)
        op.flags |= WEFT_CLASS_LATENCY;
    return op;
}

static inline void send_message(struct ledger *ledger, int from, uint64_t timeout_ns)
{
    static uint64_t words[2500];
    struct side *side = &ledger->side[from];
    size_t count = draw(ledger, 8) == 0 ? COUNT(words) : 1;
    for (size_t i = 0; i < count; i++)
        words[i] = side->sent + i;
    weft_send_args args = WEFT_SEND_ARGS_INIT;
    args.peer = side->peer;
    args.data = words;
    args.len = count * sizeof *words;
    args.timeout_ns = timeout_ns;
    if (!side->down &&
        CHECK_ONE_OF(weft_send(side->box->endpoint, &args, NULL), WEFT_OK, WEFT_ERR_AGAIN,
                     WEFT_ERR_PEER_LOST, WEFT_ERR_PEER_CLOSED, WEFT_ERR_HANDLE) == WEFT_OK)
        side->sent++;
}

/* Adds 1 to a word behind the other side's slots. */
static inline void add_one(struct ledger *ledger, int from, uint64_t timeout_ns)
{
    struct side *side = &ledger->side[from];
    weft_atomic_args args = WEFT_ATOMIC_ARGS_INIT;
    args.remote = side->theirs;
    args.remote_offset = 2 * HALF;
    args.operand = 1;
    args.timeout_ns = timeout_ns;
    if (!side->down && side->adds < OPERATIONS_MAX &&
        CHECK_ONE_OF(weft_fetch_add(side->box->endpoint, &args, NULL), WEFT_OK, WEFT_ERR_AGAIN,
                     WEFT_ERR_PEER_LOST, WEFT_ERR_PEER_CLOSED, WEFT_ERR_HANDLE) == WEFT_OK)
        side->adds++;
}

/* ---- What comes ---- */

static inline uint64_t count_of(struct ledger *ledger, const struct operation *op)
{
    uint64_t value = 0;
    CHECK_OK(weft_counter_read(ledger->side[1 - op->side].box->endpoint, op->counter, &value));
    return value;
}

static inline uint64_t full_count(const struct operation *op)
{
    return op->flags & WEFT_COUNT_PAGES ? op->count : 1;
}

/* Both sides are through with an operation that went well. */
static inline void free_slot(struct ledger *ledger, struct operation *op)
{
    if (op->done && op->status == WEFT_OK && op->notified == op->notify)
        ledger->side[op->side].user[op->slot] = 0;
}

static inline void ended(struct ledger *ledger, int side, const weft_completion *c)
{
    struct operation *op = c->user_data;
    LEDGER_CHECK(ledger, op != NULL && op->side == side && !op->done);
    LEDGER_CHECK(ledger, (c->kind == WEFT_COMPLETION_READ) == op->read);
    (op->done = true, op->status = c->status, op->done_ns = c->done_ns);
    ledger->open--;
    if (c->done_ns - c->submit_ns > op->timeout_ns + 200 * MS)
        LEDGER_FAIL(ledger, "%s ended late", text_of(ledger, op));
    if (op->status != WEFT_OK) {
        if (strstr(ledger->name, "like=tcp") || strstr(ledger->name, "like=verbs")) /* which can be cut */
            guard(ledger, side, op->slot);
        bool allowed = op->status == WEFT_ERR_RAIL_LOST && op->flags & WEFT_COUNT_PAGES;
        ledger->errors += !allowed;
        ledger->rail_lost += allowed;
        ledger->last_error = allowed ? ledger->last_error : op->status;
        op->retired = true;
        if (!allowed && getenv("WEFT_SEED"))
            fprintf(stderr, "%" PRIu64 " us: %s, submitted at %" PRIu64 " us, ended with %s\n",
                    elapsed(ledger) / 1000, text_of(ledger, op), (op->submit_ns - ledger->begin_ns) / 1000,
                    weft_status_name(op->status));
        return;
    }
    LEDGER_CHECK(ledger, c->bytes == bytes_of(op));
    /* Pages are counted as the target finds them. */
    if (op->counter != 0 && !(op->flags & WEFT_COUNT_PAGES) && count_of(ledger, op) != 1)
        LEDGER_FAIL(ledger, "%s: a count of %" PRIu64, text_of(ledger, op), count_of(ledger, op));
    /* The target of one that notifies may have refilled its slot. */
    if (op->read || op->notified == 0)
        check_bytes(ledger, op, "at its completion");
    guard(ledger, side, op->slot);
    /* The target waits for the notification, if there is one, and still looks at its bytes. */
    if (!op->notify || op->read)
        guard(ledger, 1 - side, SLOTS + op->slot);
    free_slot(ledger, op);
}

static inline void notified(struct ledger *ledger, int side, const weft_completion *c)
{
    LEDGER_CHECK(ledger, c->value >= 1 && c->value <= ledger->count);
    struct operation *op = &ledger->operations[c->value - 1];
    LEDGER_CHECK(ledger, op->side == 1 - side && op->notify);
    if (op->notified++ > 0)
        LEDGER_FAIL(ledger, "%s notified twice", text_of(ledger, op));
    if (!op->read) {
        uint8_t *theirs = their_slot(ledger, op);
        uint8_t want[SLOT];
        fill_random(want, bytes_of(op), op->seed);
        for (uint32_t i = 0; i < op->count; i++)
            if (memcmp(theirs + (uint64_t)other_page(op, i) * op->page, want + (uint64_t)i * op->page,
                       op->page) != 0)
                LEDGER_FAIL(ledger, "%s: page %u is wrong at its notification", text_of(ledger, op), i);
        /* Right away: nothing of it may come any more. */
        guard(ledger, side, SLOTS + op->slot);
    }
    free_slot(ledger, op);
}

static inline void message(struct ledger *ledger, struct side *side, const weft_completion *c)
{
    const uint64_t *words = c->data;
    LEDGER_CHECK(ledger, c->bytes % sizeof *words == 0 && c->bytes > 0);
    for (size_t i = 0; i < c->bytes / sizeof *words; i++)
        if (words[i] != side->heard + i)
            LEDGER_FAIL(ledger, "message %" PRIu64 " came as number %" PRIu64, words[0], side->heard);
    side->heard++;
    CHECK_OK(weft_message_release(side->box->endpoint, c->transfer));
}

static inline void added(struct ledger *ledger, struct side *side, const weft_completion *c)
{
    side->adds_done++;
    if (c->status != WEFT_OK) {
        ledger->errors++;
        ledger->last_error = c->status;
        return;
    }
    LEDGER_CHECK(ledger, c->value < OPERATIONS_MAX && !side->values[c->value]);
    side->values[c->value] = 1;
    side->adds_ok++;
}

static inline void take(struct ledger *ledger, int i, const weft_completion *c)
{
    struct side *side = &ledger->side[i];
    ledger->now_ns = c->done_ns > ledger->now_ns ? c->done_ns : ledger->now_ns;
    switch (c->kind) {
    case WEFT_COMPLETION_WRITE:
    case WEFT_COMPLETION_READ:
        ended(ledger, i, c);
        break;
    case WEFT_COMPLETION_NOTIFICATION:
        notified(ledger, i, c);
        break;
    case WEFT_COMPLETION_MESSAGE:
        message(ledger, side, c);
        break;
    case WEFT_COMPLETION_SEND:
        side->sends_done++;
        side->sends_ok += c->status == WEFT_OK;
        ledger->errors += c->status != WEFT_OK;
        if (c->status != WEFT_OK)
            ledger->last_error = c->status;
        break;
    case WEFT_COMPLETION_ATOMIC:
        added(ledger, side, c);
        break;
    case WEFT_COMPLETION_PEER_DOWN:
        LEDGER_CHECK(ledger, !side->down);
        side->down = true;
        break;
    case WEFT_COMPLETION_RAIL_DOWN:
        LEDGER_CHECK(ledger, c->status == WEFT_ERR_RAIL_LOST && c->value == c->rail);
        LEDGER_CHECK(ledger, side->rail_downs[c->rail]++ == side->rail_ups[c->rail]);
        break;
    case WEFT_COMPLETION_RAIL_UP:
        LEDGER_CHECK(ledger, c->status == WEFT_OK && c->value == c->rail);
        LEDGER_CHECK(ledger, ++side->rail_ups[c->rail] == side->rail_downs[c->rail]);
        break;
    default:
        LEDGER_FAIL(ledger, "a completion of kind %d", (int)c->kind);
    }
}

/* Both sides poll once; if nothing comes, up to `ns` pass. */
static inline void turn(struct ledger *ledger, uint64_t ns)
{
    weft_completion items[16];
    int32_t seen = 0;
    for (int i = 0; i < 2; i++) {
        int32_t n = weft_poll(ledger->side[i].box->endpoint, items, COUNT(items));
        CHECK(n >= 0);
        for (int32_t k = 0; k < n; k++)
            take(ledger, i, &items[k]);
        seen += n;
    }
    if (seen > 0)
        return;
    int i = (int)draw(ledger, 2);
    int32_t n = weft_wait(ledger->side[i].box->endpoint, items, COUNT(items), ns);
    CHECK(n >= 0);
    for (int32_t k = 0; k < n; k++)
        take(ledger, i, &items[k]);
    if (n == 0)
        ledger->now_ns += ns;
}

static inline bool is_settled(const struct ledger *ledger)
{
    for (int i = 0; i < 2; i++) {
        const struct side *side = &ledger->side[i], *other = &ledger->side[1 - i];
        if (side->sends_done < side->sent || side->adds_done < side->adds)
            return false;
        if (!other->down && !side->down && other->heard < side->sends_ok)
            return false;
    }
    return ledger->open == 0;
}

/* Everything ends; then nothing changes for a while, although all links are up. */
static inline void settle(struct ledger *ledger, uint64_t quiet_ns)
{
    uint64_t limit = elapsed(ledger) + 60 * SECOND;
    while (!is_settled(ledger)) {
        turn(ledger, 500 * 1000);
        if (elapsed(ledger) > limit)
            LEDGER_FAIL(ledger, "%u operations, %" PRIu64 " and %" PRIu64 " sends did not end", ledger->open,
                        ledger->side[0].sent - ledger->side[0].sends_done,
                        ledger->side[1].sent - ledger->side[1].sends_done);
    }
    for (uint64_t until = elapsed(ledger) + quiet_ns; elapsed(ledger) < until;)
        turn(ledger, MS);
    bool both = !ledger->side[0].down && !ledger->side[1].down;
    for (int i = 0; i < 2; i++) {
        struct side *side = &ledger->side[i], *other = &ledger->side[1 - i];
        for (uint32_t place = 0; place < 2 * SLOTS; place++)
            check_guard(ledger, i, place);
        uint64_t word;
        memcpy(&word, other->bytes + 2 * HALF, sizeof word);
        LEDGER_CHECK(ledger, word >= side->adds_ok && word <= side->adds);
        LEDGER_CHECK(ledger, other->heard >= side->sends_ok || other->down);
        LEDGER_CHECK(ledger, !both || side->sends_ok < side->sent || other->heard == side->sent);
    }
    for (uint32_t i = 0; i < ledger->count; i++) {
        struct operation *op = &ledger->operations[i];
        if (op->status == WEFT_OK && op->notified != op->notify && !ledger->side[1 - op->side].down)
            LEDGER_FAIL(ledger, "%s: its notification was lost", text_of(ledger, op));
        if (op->counter != 0 && (count_of(ledger, op) > full_count(op) ||
                                 (op->status == WEFT_OK && count_of(ledger, op) != full_count(op))))
            LEDGER_FAIL(ledger, "%s: a count of %" PRIu64 " of %" PRIu64 " in the end, %s", text_of(ledger, op),
                        count_of(ledger, op), full_count(op), weft_status_name(op->status));
    }
}

static inline void ledger_close(struct ledger *ledger)
{
    for (int i = 0; i < 2; i++) {
        weft_endpoint *endpoint = ledger->side[i].box->endpoint;
        CHECK_OK(weft_endpoint_shutdown(endpoint, 0));
    }
    for (int i = 0; i < 2; i++) {
        struct side *side = &ledger->side[i];
        box_close(side->box);
        munmap(side->bytes, MEMORY);
        free(side->values);
    }
    free(ledger->operations);
    free(ledger);
}

#endif
