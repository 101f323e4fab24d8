#include "content.h"

static uint32_t below(uint64_t *random, uint32_t limit)
{
    return (uint32_t)(next_random(random) >> 16) % limit;
}

/* ---- Shapes ---- */

/* `count` different numbers below `limit`. */
static void draw_places(uint64_t *random, uint32_t *places, uint32_t count, uint32_t limit)
{
    uint32_t all[PIECES_MAX];
    for (uint32_t i = 0; i < limit; i++)
        all[i] = i;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t other = i + below(random, limit - i), was = all[i];
        all[i] = all[other];
        all[other] = was;
        places[i] = all[i];
    }
}

static void add_piece(struct shape *shape, uint32_t local, uint32_t remote, uint32_t len)
{
    shape->pieces[shape->count++] = (struct piece){local, remote, len};
    shape->bytes += len;
}

static void range_shape(uint64_t *random, struct shape *shape)
{
    uint32_t len = below(random, 8) ? 1 + below(random, LAYER) : 0, room = (uint32_t)LAYER - len;
    shape->local_layer = below(random, LAYERS);
    shape->remote_layer = below(random, LAYERS);
    uint32_t local = shape->local_layer * (uint32_t)LAYER + below(random, room + 1);
    uint32_t remote = shape->remote_layer * (uint32_t)LAYER + below(random, room + 1);
    if (len > 0)
        add_piece(shape, local, remote, len);
}

static void pages_shape(uint64_t *random, struct shape *shape)
{
    shape->page = 4096u << below(random, 4);
    uint32_t places = (uint32_t)LAYER / shape->page;
    shape->layers = 1 + below(random, LAYERS);
    shape->pages = 1 + below(random, places);
    shape->local_layer = below(random, LAYERS - shape->layers + 1);
    shape->remote_layer = below(random, LAYERS - shape->layers + 1);
    draw_places(random, shape->local_pages, shape->pages, places);
    draw_places(random, shape->remote_pages, shape->pages, places);
    for (uint32_t l = 0; l < shape->layers; l++)
        for (uint32_t i = 0; i < shape->pages; i++)
            add_piece(shape, (shape->local_layer + l) * (uint32_t)LAYER + shape->local_pages[i] * shape->page,
                      (shape->remote_layer + l) * (uint32_t)LAYER + shape->remote_pages[i] * shape->page,
                      shape->page);
}

static void list_shape(uint64_t *random, struct shape *shape)
{
    shape->page = 4096u << below(random, 3);
    uint32_t places = (uint32_t)SLOT / shape->page;
    shape->pages = 1 + below(random, 16 < places ? 16 : places);
    draw_places(random, shape->local_pages, shape->pages, places);
    draw_places(random, shape->remote_pages, shape->pages, places);
    for (uint32_t i = 0; i < shape->pages; i++)
        add_piece(shape, shape->local_pages[i] * shape->page, shape->remote_pages[i] * shape->page, shape->page);
}

void shape_of(const struct operation *op, int target, struct shape *shape)
{
    uint64_t random = mix(op->seed + (uint64_t)target);
    shape->page = shape->pages = shape->layers = shape->count = 0;
    shape->bytes = 0;
    if (op->kind == RANGE)
        range_shape(&random, shape);
    else if (op->kind == LIST)
        list_shape(&random, shape);
    else
        pages_shape(&random, shape);
}

/* ---- Where ---- */

uint8_t *slot_at(int owner, int target, enum end_of end, uint32_t slot)
{
    return end == LOCAL ? memories[owner] + (uint64_t)target * AREA + slot * SLOT
                        : memories[target] + (uint64_t)(HOSTS + owner) * AREA + slot * SLOT;
}

uint32_t range_of(int other, enum end_of end, uint32_t slot)
{
    return ((uint32_t)(end == LOCAL ? other : HOSTS + other) * SLOTS + slot) * LAYERS;
}

static uint32_t offset_of(const struct piece *piece, enum end_of end)
{
    return end == LOCAL ? piece->local : piece->remote;
}

static uint64_t content_of(const struct operation *op, int target, uint32_t piece)
{
    return mix(op->seed ^ mix(((uint64_t)target << 32) + piece));
}

/* ---- Guards: a stream for each slot's end ---- */

static uint64_t guard_of(int owner, int target, enum end_of end, uint32_t slot)
{
    return mix(0x6775617264 + (uint64_t)(((uint32_t)(owner * HOSTS + target) * 2 + end) * SLOTS + slot));
}

/* Calls for the whole words and the odd bytes of a range alike. */
static void guard_bytes(uint8_t *slot, uint64_t guard, uint64_t from, uint64_t to)
{
    for (uint64_t i = from; i < to;) {
        uint64_t word = mix(guard + i / 8), skip = i % 8, len = 8 - skip < to - i ? 8 - skip : to - i;
        memcpy(slot + i, (uint8_t *)&word + skip, len);
        i += len;
    }
}

/* The first byte that is not the guard's, or -1. */
static int64_t guard_differs(const uint8_t *slot, uint64_t guard, uint64_t from, uint64_t to)
{
    for (uint64_t i = from; i < to;) {
        uint64_t word = mix(guard + i / 8), skip = i % 8, len = 8 - skip < to - i ? 8 - skip : to - i;
        if (memcmp(slot + i, (uint8_t *)&word + skip, len) != 0)
            return (int64_t)i;
        i += len;
    }
    return -1;
}

void put_guard(int owner, int target, enum end_of end, uint32_t slot)
{
    guard_bytes(slot_at(owner, target, end, slot), guard_of(owner, target, end, slot), 0, SLOT);
}

void put_guard_back(const struct operation *op, int target, enum end_of end)
{
    struct shape shape;
    uint32_t slot = op->part[target].slot;
    uint8_t *bytes = slot_at(op->host, target, end, slot);
    shape_of(op, target, &shape);
    for (uint32_t i = 0; i < shape.count; i++) {
        uint32_t from = offset_of(&shape.pieces[i], end);
        guard_bytes(bytes, guard_of(op->host, target, end, slot), from, from + shape.pieces[i].len);
    }
}

/* ---- Looking ---- */

/* Whether a byte of a slot is what an operation brought there. */
static bool is_of(const struct operation *op, int target, enum end_of end, const uint8_t *bytes, uint64_t at)
{
    struct shape shape;
    shape_of(op, target, &shape);
    for (uint32_t i = 0; i < shape.count; i++) {
        uint64_t from = offset_of(&shape.pieces[i], end), in = at - from;
        uint64_t word = mix(content_of(op, target, i) ^ mix(in / 8 * 8));
        if (at >= from && in < shape.pieces[i].len && bytes[at] == ((uint8_t *)&word)[in % 8])
            return true;
    }
    return false;
}

/* The words that begin at eight places in a row: bytes may have moved by less than a word. */
struct words {
    uint64_t word[8];
};

static bool has_word(const struct words *words, uint64_t word)
{
    bool any = false;
    for (int i = 0; i < 8; i++)
        any |= words->word[i] == word;
    return any;
}

static bool of_operation(const struct words *words, const struct operation *op, char *text, size_t len)
{
    for (int target = 0; target < HOSTS; target++) {
        struct shape shape;
        if (!(op->targets >> target & 1))
            continue;
        shape_of(op, target, &shape);
        for (uint32_t k = 0; k < shape.count; k++)
            for (uint64_t at = 0; at < shape.pieces[k].len; at += 8)
                if (has_word(words, mix(content_of(op, target, k) ^ mix(at)))) {
                    snprintf(text, len, "has bytes that operation %td moved elsewhere (%d to %d, slot %u, %u to %u + %" PRIu64 ")",
                             op - book->operations, op->host, target, op->part[target].slot, shape.pieces[k].local,
                             shape.pieces[k].remote, at);
                    return true;
                }
    }
    return false;
}

static bool of_guard(const struct words *words, int owner, int target, enum end_of end, uint32_t slot, char *text,
                     size_t len)
{
    uint64_t guard = guard_of(owner, target, end, slot);
    for (uint64_t i = 0; i < SLOT / 8; i++)
        if (has_word(words, mix(guard + i))) {
            snprintf(text, len, "has the guard of slot %u (%s, %d to %d) at %" PRIu64, slot,
                     end == LOCAL ? "local" : "remote", owner, target, i * 8);
            return true;
        }
    return false;
}

#define OF_LATE 3000 /* operations that are looked at */

/* Whether bytes belong elsewhere: to another operation of late, or a guard. */
static bool from_elsewhere(const uint8_t *bytes, char *text, size_t len)
{
    uint32_t count = book->operations_count < OPERATIONS_MAX ? book->operations_count : OPERATIONS_MAX;
    struct words words;
    for (int i = 0; i < 8; i++)
        memcpy(&words.word[i], bytes + i, sizeof words.word[i]);
    for (uint32_t i = count; i-- > (count > OF_LATE ? count - OF_LATE : 0);)
        if (book->operations[i].kind < SEND && of_operation(&words, &book->operations[i], text, len))
            return true;
    for (int owner = 0; owner < HOSTS; owner++)
        for (int target = 0; target < HOSTS; target++)
            for (uint32_t slot = 0; owner != target && slot < SLOTS; slot++)
                if (of_guard(&words, owner, target, LOCAL, slot, text, len) ||
                    of_guard(&words, owner, target, REMOTE, slot, text, len))
                    return true;
    return false;
}

/* Whether bytes are the guard of the other end, at the place that the slot's last operation
 * moved them from: they were moved after that had been put back. */
static bool moved_too_late(const struct operation *last, int owner, int target, enum end_of end, const uint8_t *bytes,
                           uint64_t at, uint64_t run)
{
    struct shape shape;
    enum end_of other = end == LOCAL ? REMOTE : LOCAL;
    uint64_t guard = guard_of(owner, target, other, last->part[target].slot);
    shape_of(last, target, &shape);
    for (uint32_t i = 0; i < shape.count; i++) {
        uint64_t from = offset_of(&shape.pieces[i], end), there = offset_of(&shape.pieces[i], other) + at - from;
        uint8_t moved[4];
        if (at < from || at + run > from + shape.pieces[i].len)
            continue;
        for (uint64_t k = 0; k < run; k++) {
            uint64_t word = mix(guard + (there + k) / 8);
            moved[k] = ((uint8_t *)&word)[(there + k) % 8];
        }
        if (memcmp(moved, bytes + at, run) == 0)
            return true;
    }
    return false;
}

/* Whose bytes these are, for who looks for the reason. */
static const char *origin(int owner, int target, enum end_of end, uint32_t slot, uint64_t at)
{
    static char text[128];
    const uint8_t *bytes = slot_at(owner, target, end, slot);
    uint32_t count = book->operations_count < OPERATIONS_MAX ? book->operations_count : OPERATIONS_MAX;
    uint64_t run = SLOT - at < 4 ? SLOT - at : 4; /* one byte may be chance */
    for (uint32_t i = count; i-- > 0;) {
        const struct operation *op = &book->operations[i];
        bool all = op->kind < SEND && op->host == owner && op->targets >> target & 1 && op->part[target].slot == slot;
        for (uint64_t k = 0; all && k < run; k++)
            all = is_of(op, target, end, bytes, at + k);
        if (all) {
            snprintf(text, sizeof text, "has the bytes of operation %u", i);
            return text;
        }
    }
    if (guard_differs(bytes, guard_of(owner, target, end, slot), at, at + run) < 0)
        return "has the guard";
    const struct operation *last = &book->operations[book->ways[owner][target].slots[slot].operation];
    if (moved_too_late(last, owner, target, end, bytes, at, run))
        return "has what was put back at the other end";
    return at + 16 <= SLOT && from_elsewhere(bytes + at, text, sizeof text) ? text : "has bytes of nobody";
}

/* The first of the places that an operation moves. */
static const char *where_of(const struct operation *op, int target, enum end_of end)
{
    static char text[64];
    struct shape shape;
    shape_of(op, target, &shape);
    const struct piece *first = &shape.pieces[0];
    if (shape.count == 0)
        return "no bytes";
    snprintf(text, sizeof text, "%u pieces, the first of %u bytes at %u", shape.count, first->len, offset_of(first, end));
    return text;
}

void check_guard(int owner, int target, enum end_of end, uint32_t slot)
{
    int64_t at =
        guard_differs(slot_at(owner, target, end, slot), guard_of(owner, target, end, slot), 0, SLOT);
    atomic_fetch_add(&book->verified, SLOT);
    if (at < 0)
        return;
    const struct slot *of = &book->ways[owner][target].slots[slot];
    const struct operation *last = &book->operations[of->operation];
    uint64_t until = (uint64_t)at, guard = guard_of(owner, target, end, slot);
    while (until < SLOT && guard_differs(slot_at(owner, target, end, slot), guard, until, until + 1) >= 0)
        until++;
    finding(&book->ghosts, "bytes %" PRId64 " to %" PRIu64 " of slot %u (%s, %d to %d) %s, %" PRIu64 " ms after %s (%s) ended with %s",
            at, until, slot, end == LOCAL ? "local" : "remote", owner, target, origin(owner, target, end, slot, (uint64_t)at),
            (now_ns() - last->part[target].done_ns) / MS, text_of(last), where_of(last, target, end),
            weft_status_name(last->part[target].status));
    put_guard(owner, target, end, slot);
}

/* ---- Contents ---- */

void put_content(const struct operation *op, int target, enum end_of end)
{
    struct shape shape;
    shape_of(op, target, &shape);
    uint8_t *bytes = slot_at(op->host, target, end, op->part[target].slot);
    for (uint32_t i = 0; i < shape.count; i++)
        fill_random(bytes + offset_of(&shape.pieces[i], end), shape.pieces[i].len, content_of(op, target, i));
}

/* The pieces in the order of their places: there are few. */
static void order(const struct shape *shape, enum end_of end, uint32_t *sorted)
{
    for (uint32_t i = 0; i < shape->count; i++) {
        uint32_t at = i;
        for (; at > 0 && offset_of(&shape->pieces[sorted[at - 1]], end) > offset_of(&shape->pieces[i], end); at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = i;
    }
}

bool check_content(const struct operation *op, int target, enum end_of end)
{
    struct shape shape;
    uint32_t sorted[PIECES_MAX], slot = op->part[target].slot;
    const uint8_t *bytes = slot_at(op->host, target, end, slot);
    uint64_t guard = guard_of(op->host, target, end, slot), done = 0;
    shape_of(op, target, &shape);
    order(&shape, end, sorted);
    atomic_fetch_add(&book->verified, SLOT);
    for (uint32_t i = 0; i <= shape.count; i++) {
        const struct piece *piece = i < shape.count ? &shape.pieces[sorted[i]] : NULL;
        uint64_t until = piece ? offset_of(piece, end) : SLOT;
        int64_t at = guard_differs(bytes, guard, done, until);
        if (at >= 0) {
            finding(&book->ghosts, "byte %" PRId64 " of slot %u (%s) %s, beside what %s moved", at, slot,
                    end == LOCAL ? "local" : "remote", origin(op->host, target, end, slot, (uint64_t)at), text_of(op));
            return false;
        }
        if (!piece)
            break;
        at = differs_random(bytes + until, piece->len, content_of(op, target, sorted[i]));
        if (at >= 0) {
            finding(&book->wrong, "byte %" PRIu64 " of slot %u (%s) %s, %s of %s (piece %u of %u)",
                    until + (uint64_t)at, slot, end == LOCAL ? "local" : "remote",
                    origin(op->host, target, end, slot, until + (uint64_t)at), "not its own,", text_of(op), sorted[i],
                    shape.count);
            return false;
        }
        done = until + piece->len;
    }
    return true;
}

const char *text_of(const struct operation *op)
{
    static const char *const kinds[] = {"range", "pages", "list", "kept pages", "message", "atomic", "wait", "fence"};
    static _Thread_local char text[160];
    snprintf(text, sizeof text, "operation %td (host %d life %u, %s %s to %x, %s%s%s, deadline %" PRIu64 " ms, at %" PRIu64 ")",
             op - book->operations, op->host, op->life, op->read ? "reads" : "does", kinds[op->kind], op->targets,
             op->notify ? "notifies" : "-", op->flags & WEFT_COUNT_PAGES ? ", counts pages" : op->counts ? ", counts" : "",
             op->will_cancel ? ", canceled" : "", op->timeout_ns / MS,
             op->submit_ns ? (op->submit_ns - book->begin_ns) / MS : 0);
    return text;
}
