/* The bytes that an operation moves, their contents, and whether they are correct. */
#include "engine.h"

uint32_t below(uint64_t *random, uint32_t limit)
{
    return (uint32_t)(next_random(random) >> 16) % limit;
}

/* ---- Shapes ---- */

/* Different numbers below `limit`: random, ascending, or descending. */
static void draw_list(uint64_t *random, uint32_t *list, uint32_t count, uint32_t limit)
{
    uint32_t all[PAGES_MAX], order = below(random, 4);
    for (uint32_t i = 0; i < limit; i++)
        all[i] = i;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t other = order > 1 ? i + below(random, limit - i) : order ? i : limit - 1 - i, was = all[i];
        if (order > 1)
            all[i] = all[other], all[other] = was;
        list[i] = order > 1 ? all[i] : other;
    }
}

/* Some pages occur more than once. */
static void repeat(uint64_t *random, uint32_t *list, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++)
        if (below(random, 3) == 0)
            list[i] = list[below(random, i)];
}

/* How a side lays out pages and layers; makes the pages smaller until they fit. */
static void lay(uint64_t *random, struct shape *shape, struct layout *side)
{
    uint32_t room = book->plan.layer;
    side->stride = shape->page + (below(random, 3) ? 0 : below(random, shape->page + 64));
    side->step = shape->layers == 1 ? below(random, 2) : 1u + (shape->layers == 2 && below(random, 3) == 0);
    bool one_range = shape->layers > 1 && shape->layers * shape->page <= room && below(random, 3) == 0;
    if (one_range)
        room /= shape->layers;
    if (side->stride > room)
        side->stride = shape->page;
    uint32_t places = (room - shape->page) / side->stride + 1;
    places = places < PAGES_MAX ? places : PAGES_MAX;
    shape->pages = shape->pages < places ? shape->pages : places;
    side->listed = below(random, 4) != 0;
    if (!side->listed)
        places = shape->pages;
    uint32_t used = (places - 1) * side->stride + shape->page;
    if (one_range) {
        side->step = 0;
        side->layer_stride = used + below(random, room - used + 1);
        side->first_layer = below(random, LAYERS);
        used += (shape->layers - 1) * side->layer_stride;
    } else {
        side->first_layer = below(random, LAYERS - (shape->layers - 1) * side->step);
    }
    side->offset = below(random, 2) ? below(random, book->plan.layer - used + 1) : 0;
    draw_list(random, side->list, shape->pages, places);
}

static uint32_t place(const struct layout *side, uint32_t page, uint32_t layer)
{
    return (side->first_layer + layer * side->step) * book->plan.layer + side->offset + layer * side->layer_stride +
           (side->listed ? side->list[page] : page) * side->stride;
}

static void add_piece(struct shape *shape, uint32_t local, uint32_t remote, uint32_t len)
{
    shape->pieces[shape->count] = (struct piece){{local, remote}, len, shape->count};
    shape->count++;
    shape->bytes += len;
}

static uint32_t draw_page(uint64_t *random)
{
    uint32_t most = book->plan.layer;
    switch (below(random, 4)) {
    case 0:
        return 1 + below(random, 700);
    case 1:
        return 1 + below(random, most);
    default:
        return most >> below(random, 6);
    }
}

static void pages_shape(uint64_t *random, struct shape *shape, bool repeats, enum end_of source)
{
    shape->page = draw_page(random);
    shape->layers = 1 + below(random, LAYERS);
    shape->pages = 1 + below(random, below(random, 3) ? 16 : PAGES_MAX);
    lay(random, shape, &shape->side[LOCAL]);
    lay(random, shape, &shape->side[REMOTE]);
    /* The first side may have been laid out for more pages; its list is long enough. For repeated destinations any
       bytes may win. */
    enum end_of end = below(random, 4) ? source : (enum end_of)(1 - source);
    if (repeats && shape->side[end].listed && below(random, 4) == 0)
        repeat(random, shape->side[end].list, shape->pages);
    if (below(random, 16) == 0)
        shape->pages = 0;
    for (uint32_t l = 0; l < shape->layers; l++)
        for (uint32_t i = 0; i < shape->pages; i++) {
            add_piece(shape, place(&shape->side[LOCAL], i, l), place(&shape->side[REMOTE], i, l), shape->page);
            struct piece *last = &shape->pieces[shape->count - 1];
            for (uint32_t k = l * shape->pages; repeats && k + 1 < shape->count; k++)
                if (shape->pieces[k].at[source] == last->at[source])
                    last->content = shape->pieces[k].content;
        }
}

static void range_shape(uint64_t *random, struct shape *shape)
{
    uint32_t len = below(random, 8) ? 1 + below(random, book->plan.layer) : 0, room = book->plan.layer - len;
    shape->page = len;
    shape->pages = shape->layers = 1;
    for (int end = LOCAL; end <= REMOTE; end++)
        shape->side[end] = (struct layout){.first_layer = below(random, LAYERS), .offset = below(random, room + 1)};
    if (len > 0)
        add_piece(shape, place(&shape->side[LOCAL], 0, 0), place(&shape->side[REMOTE], 0, 0), len);
}

/* Entries of one size, anywhere in the slot. */
static void list_shape(uint64_t *random, struct shape *shape)
{
    uint32_t least = (uint32_t)slot_len() / PAGES_MAX, grid = least << below(random, 4);
    uint32_t places = (uint32_t)slot_len() / grid;
    shape->page = below(random, 2) ? grid : 1 + below(random, grid);
    shape->pages = 1 + below(random, 16 < places ? 16 : places);
    for (int end = LOCAL; end <= REMOTE; end++)
        draw_list(random, shape->side[end].list, shape->pages, places);
    for (uint32_t i = 0; i < shape->pages; i++)
        add_piece(shape, shape->side[LOCAL].list[i] * grid, shape->side[REMOTE].list[i] * grid, shape->page);
    shape->raises = 1 + below(random, shape->pages);
}

void shape_of(const struct operation *op, int target, struct shape *shape)
{
    uint64_t random = mix(op->shape + (uint64_t)target);
    shape->count = shape->raises = 0;
    shape->bytes = 0;
    shape->side[LOCAL] = shape->side[REMOTE] = (struct layout){0};
    if (op->kind == RANGE)
        range_shape(&random, shape);
    else if (op->list)
        list_shape(&random, shape);
    else if (op->kind == PAGES || op->kind == KEPT)
        pages_shape(&random, shape, op->kind == PAGES, op->read ? REMOTE : LOCAL);
}

uint64_t counts_of(const struct operation *op, const struct shape *shape)
{
    uint64_t once = op->flags & WEFT_COUNT_PAGES ? shape->count : op->list && op->counts ? shape->raises : op->counts;
    return once * op->uses;
}

/* ---- Addresses ---- */

uint64_t slot_len(void)
{
    return (uint64_t)LAYERS * book->plan.layer;
}

uint64_t reached_len(void)
{
    return HOSTS * book->plan.slots * slot_len();
}

static uint64_t words_offset(void)
{
    return 2 * reached_len();
}

uint64_t memory_len(void)
{
    return words_offset() + HOSTS * WORDS * sizeof(uint64_t);
}

uint8_t *slot_at(int owner, int target, enum end_of end, uint32_t slot)
{
    uint64_t area = book->plan.slots * slot_len();
    return end == LOCAL ? memories[owner] + (uint64_t)target * area + slot * slot_len()
                        : memories[target] + (uint64_t)(HOSTS + owner) * area + slot * slot_len();
}

_Atomic uint64_t *word_at(int owner, int target, uint32_t word)
{
    return (_Atomic uint64_t *)(void *)(memories[target] + words_offset()) + (uint32_t)owner * WORDS + word;
}

static uint64_t content_of(const struct operation *op, int target, uint32_t content)
{
    return mix(op->seed ^ mix(((uint64_t)target << 32) + content));
}

/* ---- Guards: a stream for each slot's end ---- */

static uint64_t guard_of(int owner, int target, enum end_of end, uint32_t slot)
{
    return mix(0x6775617264 + (uint64_t)(((uint32_t)(owner * HOSTS + target) * 2 + end) * SLOTS_MAX + slot));
}

/* Writes the guard into a range, or finds the first byte that differs from it (else -1). */
static int64_t guard_bytes(uint8_t *slot, uint64_t guard, uint64_t from, uint64_t to, bool put)
{
    for (uint64_t i = from; i < to;) {
        uint64_t word = (guard + i / 8) * UINT64_C(0x9e3779b97f4a7c15), skip = i % 8, len = 8 - skip < to - i ? 8 - skip : to - i;
        uint8_t *bytes = (uint8_t *)&word + skip;
        if (put)
            memcpy(slot + i, bytes, len);
        else if (memcmp(slot + i, bytes, len) != 0)
            for (uint64_t k = 0; k < len; k++)
                if (slot[i + k] != bytes[k])
                    return (int64_t)(i + k);
        i += len;
    }
    return -1;
}

void put_guard(int owner, int target, enum end_of end, uint32_t slot)
{
    guard_bytes(slot_at(owner, target, end, slot), guard_of(owner, target, end, slot), 0, slot_len(), true);
}

void put_guard_back(const struct operation *op, int target, enum end_of end)
{
    struct shape shape;
    uint32_t slot = op->part[target].slot;
    shape_of(op, target, &shape);
    for (uint32_t i = 0; i < shape.count; i++) {
        const struct piece *piece = &shape.pieces[i];
        guard_bytes(slot_at(op->host, target, end, slot), guard_of(op->host, target, end, slot), piece->at[end],
                    piece->at[end] + piece->len, true);
    }
}

/* Finds the origin of a wrong byte: an operation that used the slot, or a guard. */
static const char *origin(int owner, int target, enum end_of end, uint32_t slot, uint64_t at)
{
    static _Thread_local char text[96];
    const uint8_t *bytes = slot_at(owner, target, end, slot) + at;
    uint64_t run = slot_len() - at < 4 ? 1 : 4; /* one byte may match by chance */
    for (uint32_t i = book_operations(); i-- > 0;) {
        const struct operation *op = &book->operations[i];
        struct shape shape;
        if (op->kind >= SEND || op->host != owner || !(op->targets >> target & 1) || op->part[target].slot != slot)
            continue;
        shape_of(op, target, &shape);
        for (uint32_t k = 0; k < shape.count; k++) {
            const struct piece *piece = &shape.pieces[k];
            uint8_t content[4];
            if (at < piece->at[end] || at + run > piece->at[end] + piece->len)
                continue;
            for (uint64_t b = 0; b < run; b++) {
                uint64_t in = at + b - piece->at[end], word = mix(content_of(op, target, piece->content) ^ mix(in & ~7ull));
                content[b] = ((uint8_t *)&word)[in % 8];
            }
            snprintf(text, sizeof text, "has the bytes of operation %u", i);
            if (memcmp(content, bytes, run) == 0)
                return text;
        }
    }
    for (int e = LOCAL; e <= REMOTE; e++)
        for (uint32_t s = 0; s < book->plan.slots; s++)
            if (guard_bytes((uint8_t *)(uintptr_t)bytes - at, guard_of(owner, target, (enum end_of)e, s), at, at + run, false) < 0) {
                snprintf(text, sizeof text, "has the guard of slot %u (%s)", s, e == LOCAL ? "local" : "remote");
                return text;
            }
    return "has bytes of nobody";
}

void check_guard(int owner, int target, enum end_of end, uint32_t slot)
{
    int64_t at = guard_bytes(slot_at(owner, target, end, slot), guard_of(owner, target, end, slot), 0, slot_len(), false);
    atomic_fetch_add(&book->verified, slot_len());
    if (at < 0)
        return;
    const struct operation *last = &book->operations[book->ways[owner][target].slots[slot].operation];
    finding(&book->ghosts, "byte %" PRId64 " of slot %u (%s, %d to %d) %s, %" PRIu64 " ms after %s ended with %s", at, slot,
            end == LOCAL ? "local" : "remote", owner, target, origin(owner, target, end, slot, (uint64_t)at),
            (world_ns() - last->part[target].done_ns) / MS, text_of(last), weft_status_name(last->part[target].status));
    put_guard(owner, target, end, slot);
}

/* ---- Contents ---- */

void put_content(const struct operation *op, int target, enum end_of end)
{
    struct shape shape;
    shape_of(op, target, &shape);
    uint8_t *bytes = slot_at(op->host, target, end, op->part[target].slot);
    for (uint32_t i = 0; i < shape.count; i++)
        fill_random(bytes + shape.pieces[i].at[end], shape.pieces[i].len, content_of(op, target, shape.pieces[i].content));
}

static _Thread_local enum end_of ordered_by;

static int by_place(const void *a, const void *b)
{
    uint32_t x = ((const struct piece *)a)->at[ordered_by], y = ((const struct piece *)b)->at[ordered_by];
    return x < y ? -1 : x > y;
}

/* Where several pages share a destination, each byte belongs to one of them. */
static int64_t differs_of(const struct operation *op, int target, const uint8_t *bytes, const struct piece *pieces, uint32_t count)
{
    if (count == 1)
        return differs_random(bytes, pieces->len, content_of(op, target, pieces->content));
    for (uint64_t i = 0; i < pieces->len; i++) {
        bool any = false;
        for (uint32_t k = 0; k < count && !any; k++) {
            uint64_t word = mix(content_of(op, target, pieces[k].content) ^ mix(i & ~UINT64_C(7)));
            any = ((uint8_t *)&word)[i % 8] == bytes[i];
        }
        if (!any)
            return (int64_t)i;
    }
    return -1;
}

bool check_content(const struct operation *op, int target, enum end_of end)
{
    struct shape shape;
    uint32_t slot = op->part[target].slot;
    uint8_t *bytes = slot_at(op->host, target, end, slot);
    uint64_t guard = guard_of(op->host, target, end, slot), done = 0;
    shape_of(op, target, &shape);
    ordered_by = end;
    qsort(shape.pieces, shape.count, sizeof shape.pieces[0], by_place);
    atomic_fetch_add(&book->verified, slot_len());
    for (uint32_t i = 0; i <= shape.count; i++) {
        const struct piece *piece = i < shape.count ? &shape.pieces[i] : NULL;
        uint64_t until = piece ? piece->at[end] : slot_len();
        int64_t at = guard_bytes(bytes, guard, done, until, false);
        if (at >= 0) {
            finding(&book->ghosts, "byte %" PRId64 " of slot %u (%s) %s, beside what %s moved", at, slot,
                    end == LOCAL ? "local" : "remote", origin(op->host, target, end, slot, (uint64_t)at), text_of(op));
            return false;
        }
        if (!piece)
            break;
        uint32_t same = 1;
        while (i + same < shape.count && piece[same].at[end] == piece->at[end])
            same++;
        at = differs_of(op, target, bytes + until, piece, same);
        i += same - 1;
        if (at >= 0) {
            finding(&book->wrong, "byte %" PRIu64 " of slot %u (%s) %s, not its own, of %s (a piece of %u, one of %u)",
                    until + (uint64_t)at, slot, end == LOCAL ? "local" : "remote",
                    origin(op->host, target, end, slot, until + (uint64_t)at), text_of(op), piece->len, shape.count);
            return false;
        }
        done = until + piece->len;
    }
    return true;
}

const char *text_of(const struct operation *op)
{
    static const char *const kinds[] = {"range", "pages", "list", "prepared", "message", "atomic", "wait", "fence", "revoke"};
    static _Thread_local char text[192];
    snprintf(text, sizeof text, "operation %td (host %d life %u, %s %s to %x%s%s%s%s%s, deadline %" PRIu64 " us, at %" PRIu64 " us)",
             op - book->operations, op->host, op->life, op->read ? "reads" : "does", kinds[op->kind], op->targets,
             op->list ? ", entries" : "", op->notify ? ", notifies" : "",
             op->flags & WEFT_COUNT_PAGES ? ", counts pages" : op->counts ? ", counts" : "", op->second ? ", second queue" : "",
             op->canceled ? ", canceled" : "", op->timeout_ns / 1000,
             op->submit_ns ? (op->submit_ns - book->begin_ns) / 1000 : 0);
    return text;
}
