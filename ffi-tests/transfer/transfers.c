/* Writes and reads between two processes: every byte, every completion. */
#include "harness.h"

/* ---- A matrix of shapes, checked against a model ---- */

#define ARENA (64 * MIB)
#define CASE_BYTES (8 * MIB)
#define GAP 64 /* bytes between ranges that are not registered */

/* The layout of the pages on one side. */
struct side {
    uint64_t stride, offset, layer_stride, range_len;
    uint32_t first_range, range_step, ranges;
    uint32_t *pages; /* NULL: 0, 1, 2, ... */
};

struct shape {
    uint64_t page_len, count;
    uint32_t layers;
    struct side local, remote;
    bool read;
};

enum order { ADJACENT, LISTED, REVERSED, SHUFFLED, REPEATED, ORDERS };

static uint32_t *new_list(uint64_t count)
{
    uint32_t *list = malloc((count ? count : 1) * sizeof *list);
    CHECK(list != NULL);
    for (uint64_t i = 0; i < count; i++)
        list[i] = (uint32_t)i;
    return list;
}

static void shuffle(uint32_t *list, uint64_t count, uint64_t *random)
{
    for (uint64_t i = count; i > 1; i--) {
        uint64_t k = next_random(random) % i;
        uint32_t page = list[i - 1];
        list[i - 1] = list[k];
        list[k] = page;
    }
}

/* Strides, offsets and ranges; a layer is a range of its own, or follows the last. */
static void lay_out(struct side *side, const struct shape *shape, bool own_ranges, uint64_t *random)
{
    uint64_t slack = next_random(random) % 3 == 0 ? next_random(random) % 100 : 0;
    side->stride = shape->page_len + slack;
    side->offset = next_random(random) % 3 == 0 ? next_random(random) % 5000 : 0;
    uint64_t layer = shape->count * side->stride;
    side->range_step = own_ranges ? 1 + (uint32_t)(next_random(random) % 2) : 0;
    side->layer_stride = own_ranges ? 0 : layer + next_random(random) % 40;
    side->first_range = (uint32_t)(next_random(random) % 3);
    side->ranges = side->first_range + side->range_step * (shape->layers - 1) + 1;
    side->range_len = side->offset + layer + side->layer_stride * (shape->layers - 1) + 1;
}

static uint64_t span(const struct side *side)
{
    return GAP + side->ranges * (side->range_len + GAP);
}

/* The same on both sides of the test: derived from its number alone. False: too large. */
static bool make_shape(struct shape *shape, uint64_t page_len, uint64_t count, uint32_t layers,
                       enum order order, uint64_t seed)
{
    uint64_t random = seed;
    memset(shape, 0, sizeof *shape);
    while (count > 1 && page_len * count * layers > CASE_BYTES)
        count /= 2;
    shape->page_len = page_len;
    shape->count = count;
    shape->layers = layers;
    lay_out(&shape->local, shape, next_random(&random) % 2, &random);
    lay_out(&shape->remote, shape, next_random(&random) % 2, &random);
    if (page_len * count * layers > 2 * CASE_BYTES || span(&shape->local) > ARENA ||
        span(&shape->remote) > ARENA)
        return false;
    if (order == ADJACENT)
        return true;
    shape->local.pages = new_list(count);
    shape->remote.pages = new_list(count);
    for (uint64_t i = 0; i < count && order == REVERSED; i++)
        shape->remote.pages[i] = (uint32_t)(count - 1 - i);
    if (order == SHUFFLED || order == REPEATED)
        shuffle(shape->remote.pages, count, &random);
    if (order == SHUFFLED)
        shuffle(shape->local.pages, count, &random);
    for (uint64_t i = 0; i < count && order == REPEATED; i++)
        shape->local.pages[i] = (uint32_t)(i % 3 * (count > 3)); /* a source for many */
    if (order == REPEATED && seed % 2) { /* for a read, the source is the remote side */
        uint32_t *list = shape->local.pages;
        shape->local.pages = shape->remote.pages;
        shape->remote.pages = list;
    }
    return true;
}

static void free_shape(struct shape *shape)
{
    free(shape->local.pages);
    free(shape->remote.pages);
}

static uint8_t *page_at(uint8_t *arena, const struct side *side, uint64_t i, uint32_t layer)
{
    uint64_t range = side->first_range + (uint64_t)layer * side->range_step;
    uint64_t page = side->pages ? side->pages[i] : i;
    return arena + GAP + range * (side->range_len + GAP) + side->offset + page * side->stride +
           layer * side->layer_stride;
}

/* A plain model of a transfer. */
static void model(uint8_t *to, const struct side *at, uint8_t *from, const struct side *source,
                  const struct shape *shape)
{
    for (uint32_t layer = 0; layer < shape->layers; layer++)
        for (uint64_t i = 0; i < shape->count; i++)
            memcpy(page_at(to, at, i, layer), page_at(from, source, i, layer), shape->page_len);
}

static weft_memory *register_side(weft_endpoint *endpoint, uint8_t *arena, const struct side *side)
{
    weft_memory_range *ranges = calloc(side->ranges, sizeof *ranges);
    weft_memory *memory = NULL;
    CHECK(ranges != NULL);
    for (uint32_t r = 0; r < side->ranges; r++)
        ranges[r] = (weft_memory_range){arena + GAP + r * (side->range_len + GAP), side->range_len};
    CHECK_OK(weft_memory_register(endpoint, ranges, side->ranges, NULL, &memory));
    free(ranges);
    return memory;
}

static void check_arena(const uint8_t *got, const uint8_t *want, uint64_t len,
                        const struct shape *shape)
{
    if (memcmp(got, want, len) == 0)
        return;
    uint64_t at = 0;
    while (got[at] == want[at])
        at++;
    FAIL("%s of %" PRIu64 " pages of %" PRIu64 " bytes in %u layers: byte %" PRIu64
         " of %" PRIu64 " is %#x, not %#x",
         shape->read ? "a read" : "a write", shape->count, shape->page_len, shape->layers, at, len,
         got[at], want[at]);
}

struct setting {
    uint32_t rails, workers, progress[2];
    uint64_t one_in; /* this many of all shapes are tried */
};

static struct setting setting;

static struct box *open_as_set(const struct team *team)
{
    weft_endpoint_config config = test_config();
    config.rail_count = setting.rails;
    config.min_rails = setting.rails;
    config.workers = setting.workers;
    config.progress = setting.progress[team->rank];
    struct box *box = box_of(open_with(&config));
    weft_endpoint_properties p = WEFT_ENDPOINT_PROPERTIES_INIT;
    CHECK_OK(weft_endpoint_info(box->endpoint, &p, NULL));
    CHECK_EQ(p.rails, setting.rails);
    CHECK_EQ(p.workers, config.progress == WEFT_PROGRESS_MANUAL ? 0 : setting.workers);
    return box;
}

static void run_case(struct team *team, struct box *box, weft_peer peer, struct shape *shape,
                     uint64_t seed, uint8_t *arena, uint8_t *expected, uint8_t *source)
{
    const bool here = team->rank == 0; /* this side submits */
    const int other = 1 - team->rank;
    struct side *mine = here ? &shape->local : &shape->remote;
    struct side *from = shape->read ? &shape->remote : &shape->local;
    struct side *to = shape->read ? &shape->local : &shape->remote;
    const bool is_source = here != shape->read;
    fill_random(source, span(from), seed);
    if (is_source) {
        memcpy(arena, source, span(from));
        memcpy(expected, source, span(from)); /* the source does not change */
    } else {
        memset(arena, (int)(seed % 251), span(to));
        memset(expected, (int)(seed % 251), span(to));
        model(expected, to, source, from, shape);
    }
    weft_memory *memory = register_side(box->endpoint, arena, mine);
    if (here) {
        weft_remote_memory *theirs = take_memory(team, other, box, peer);
        struct pages_request args = PAGES_REQUEST_INIT;
        weft_op id = 0;
        args.local = memory;
        args.remote = theirs;
        args.pages.local.pages = shape->local.pages;
        args.pages.remote.pages = shape->remote.pages;
        args.pages.local.page_stride = shape->local.stride;
        args.pages.remote.page_stride = shape->remote.stride;
        args.pages.local.offset = shape->local.offset;
        args.pages.remote.offset = shape->remote.offset;
        args.pages.local.layer_stride = shape->local.layer_stride;
        args.pages.remote.layer_stride = shape->remote.layer_stride;
        args.pages.local.first_range = shape->local.first_range;
        args.pages.remote.first_range = shape->remote.first_range;
        args.pages.local.range_step = shape->local.range_step;
        args.pages.remote.range_step = shape->remote.range_step;
        args.pages.page_len = shape->page_len;
        args.pages.page_count = shape->count;
        args.pages.layer_count = shape->layers;
        args.options.user_data = &args;
        uint64_t before = now_ns();
        CHECK_OK(shape->read ? submit_read_pages(box->endpoint, &args, &id)
                             : submit_write_pages(box->endpoint, &args, &id));
        memset(&args, 0xff, sizeof args); /* no longer needed */
        weft_completion c = box_await(box, id, patience_ms());
        CHECK_OK(c.status);
        CHECK_EQ(c.kind, shape->read ? WEFT_COMPLETION_READ : WEFT_COMPLETION_WRITE);
        CHECK_EQ(c.bytes, shape->page_len * shape->count * shape->layers);
        CHECK(c.user_data == &args && c.peer == peer);
        CHECK(c.submit_ns >= before && c.done_ns >= c.submit_ns && c.done_ns <= now_ns());
        CHECK(shape->count == 0 ||
              (c.first_post_ns >= c.submit_ns && c.first_post_ns <= c.done_ns));
        CHECK_EQ(c.provider_errno, 0);
        CHECK_EQ(c.rail, 0xffffffff);
        CHECK(c.entry == UINT64_MAX);
        CHECK_OK(weft_remote_memory_release(theirs));
    } else {
        give_memory(team, other, memory);
    }
    meet(team, other, box);
    check_arena(arena, expected, span(mine), shape);
    CHECK_OK(weft_memory_deregister(memory));
    meet(team, other, box);
}

static void runs_the_matrix(struct team *team)
{
    static const uint64_t lens[] = {1, 7, 4096, 4097, 65536, MIB + 3};
    static const uint64_t counts[] = {0, 1, 2, 1000};
    static const uint32_t layers[] = {1, 3, 80};
    struct box *box = open_as_set(team);
    weft_peer peer = join(team, 1 - team->rank, box);
    uint8_t *arena = map_bytes(ARENA), *expected = map_bytes(ARENA), *source = map_bytes(ARENA);
    uint64_t number = 0, tried = 0, began = now_ns();
    for (size_t a = 0; a < COUNT(lens); a++)
        for (size_t b = 0; b < COUNT(counts); b++)
            for (size_t c = 0; c < COUNT(layers); c++)
                for (int order = 0; order < ORDERS; order++)
                    for (int read = 0; read < 2; read++) {
                        struct shape shape;
                        uint64_t seed = ++number * 2 + (uint64_t)read;
                        if (mix(number) % setting.one_in != 0)
                            continue;
                        if (make_shape(&shape, lens[a], counts[b], layers[c], (enum order)order,
                                       seed)) {
                            shape.read = read;
                            run_case(team, box, peer, &shape, seed, arena, expected, source);
                            tried++;
                        }
                        free_shape(&shape);
                    }
    printf("%" PRIu64 " shapes in %" PRIu64 " ms\n", tried, (now_ns() - began) / MS);
    box_quiet(box, 50);
    meet(team, 1 - team->rank, box);
    box_close(box);
}

/* On a slow machine, WEFT_TEST_SHAPES=8 leaves one in eight of all shapes where a test would try all. */
static void run_matrix(struct setting s)
{
    const char *text = getenv("WEFT_TEST_SHAPES");
    const uint64_t one_in = text ? strtoull(text, NULL, 10) : 1;
    setting = s;
    setting.one_in = s.one_in > one_in ? s.one_in : one_in;
    run_pair(runs_the_matrix, runs_the_matrix);
}

#define THREADS WEFT_PROGRESS_THREADS
#define MANUAL WEFT_PROGRESS_MANUAL

static void pages_of_all_shapes_move(void)
{
    run_matrix((struct setting){1, 1, {THREADS, THREADS}, 1});
}

static void pages_on_four_rails(void)
{
    run_matrix((struct setting){4, 1, {THREADS, THREADS}, 8});
}

static void pages_on_four_rails_of_three_workers(void)
{
    run_matrix((struct setting){4, 3, {THREADS, THREADS}, 8});
}

static void pages_from_manual_progress(void)
{
    run_matrix((struct setting){1, 1, {MANUAL, THREADS}, 10});
}

static void writer_with_workers_reaches_manual_peer(void)
{
    run_matrix((struct setting){2, 2, {THREADS, MANUAL}, 10});
}

static void pages_all_manual(void)
{
    run_matrix((struct setting){2, 1, {MANUAL, MANUAL}, 10});
}

/* ---- Ranges ---- */

#define RANGE_ARENA (8 * MIB)

static void writes_ranges(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    weft_peer peer = join(team, 1, box);
    uint8_t *bytes = map_bytes(RANGE_ARENA), *theirs_now = map_bytes(RANGE_ARENA);
    uint8_t *expected = map_bytes(RANGE_ARENA);
    weft_memory *memory = register_one(box->endpoint, bytes, RANGE_ARENA);
    weft_memory *check = register_one(box->endpoint, theirs_now, RANGE_ARENA);
    weft_remote_memory *theirs = take_memory(team, 1, box, peer);
    const uint64_t lens[] = {0, 1, 2, 3, 8, 63, 64, 4095, 4096, 4097, 65535, 65536, 65537,
                             MIB - 1, MIB, MIB + 1, 5 * MIB + 7, RANGE_ARENA};
    uint64_t random = 77;
    fill_random(bytes, RANGE_ARENA, 4);
    for (int round = 0; round < 200; round++) {
        struct range_request args = range_args(memory, theirs, lens[(size_t)round % COUNT(lens)]);
        args.local_offset = next_random(&random) % (RANGE_ARENA - args.len + 1);
        args.remote_offset = next_random(&random) % (RANGE_ARENA - args.len + 1);
        weft_completion c = box_await(box, write_now(box, &args), patience_ms());
        CHECK_OK(c.status);
        CHECK_EQ(c.kind, WEFT_COMPLETION_WRITE);
        CHECK_EQ(c.bytes, args.len);
        memcpy(expected + args.remote_offset, bytes + args.local_offset, args.len);
        if (round % 10 != 9)
            continue;
        /* Reads the bytes back, in whole and in part. */
        weft_op id;
        memset(theirs_now, 0, RANGE_ARENA);
        args = range_args(check, theirs, RANGE_ARENA);
        CHECK_OK(submit_read(box->endpoint, &args, &id));
        c = box_await(box, id, patience_ms());
        CHECK_OK(c.status);
        CHECK_EQ(c.kind, WEFT_COMPLETION_READ);
        CHECK(memcmp(theirs_now, expected, RANGE_ARENA) == 0);
        memset(theirs_now, 0x6b, RANGE_ARENA);
        args.local_offset = 3;
        args.remote_offset = next_random(&random) % MIB;
        args.len = 1 + next_random(&random) % MIB;
        CHECK_OK(submit_read(box->endpoint, &args, &id));
        CHECK_OK(box_await(box, id, patience_ms()).status);
        CHECK(memcmp(theirs_now + 3, expected + args.remote_offset, args.len) == 0);
        CHECK(theirs_now[2] == 0x6b && theirs_now[3 + args.len] == 0x6b);
    }
    meet(team, 1, box);
    box_close(box);
}

static void has_ranges(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    join(team, 0, box);
    give_memory(team, 0, register_one(box->endpoint, map_bytes(RANGE_ARENA), RANGE_ARENA));
    meet(team, 0, box);
    box_close(box);
}

static void ranges_of_all_sizes_move(void)
{
    run_pair(writes_ranges, has_ranges);
}

/* ---- Notifications ---- */

#define NOTIFIED 600
#define NOTIFY_SLOT (24 * KIB)

static uint64_t bytes_of(uint64_t i)
{
    return i % 7 == 0 ? 0 : 1 + mix(i) % NOTIFY_SLOT;
}

/* i % 3: 0 a range write, 1 a pages write, 2 a read. */
static void notifies(struct team *team)
{
    struct box *box = open_as_set(team);
    weft_peer peer = join(team, 1, box);
    uint8_t *bytes = map_bytes(NOTIFIED * NOTIFY_SLOT), data[WEFT_NOTIFY_DATA_MAX];
    weft_memory *memory = register_one(box->endpoint, bytes, NOTIFIED * NOTIFY_SLOT);
    weft_remote_memory *theirs = take_memory(team, 1, box, peer);
    weft_op ids[NOTIFIED];
    for (uint64_t i = 0; i < NOTIFIED; i++)
        fill_random(bytes + i * NOTIFY_SLOT, NOTIFY_SLOT, i);
    for (uint64_t i = 0; i < NOTIFIED; i++) {
        uint32_t data_len = (uint32_t)(i % 2 ? mix(i) % (WEFT_NOTIFY_DATA_MAX + 1) : 0);
        fill_random(data, sizeof data, i);
        weft_status status;
        do {
            if (i % 3 == 1) {
                struct pages_request args = PAGES_REQUEST_INIT;
                args.options.flags = WEFT_NOTIFY;
                args.local = memory;
                args.remote = theirs;
                args.pages.local.offset = args.pages.remote.offset = i * NOTIFY_SLOT;
                args.pages.page_len = 64;
                args.pages.page_count = bytes_of(i) / 64;
                args.options.notify = mix(i);
                args.options.notify_data = data_len ? data : NULL;
                args.options.notify_data_len = data_len;
                status = submit_write_pages(box->endpoint, &args, &ids[i]);
            } else {
                struct range_request args = range_args(memory, theirs, bytes_of(i));
                args.options.flags = WEFT_NOTIFY;
                args.local_offset = args.remote_offset = i * NOTIFY_SLOT;
                args.options.notify = mix(i);
                args.options.notify_data = data_len ? data : NULL;
                args.options.notify_data_len = data_len;
                status = i % 3 == 0 ? submit_write(box->endpoint, &args, &ids[i])
                                    : submit_read(box->endpoint, &args, &ids[i]);
            }
            if (status == WEFT_ERR_AGAIN)
                box_pump(box, 1);
        } while (status == WEFT_ERR_AGAIN);
        CHECK_OK(status);
        memset(data, 0xff, sizeof data); /* copied by the call */
    }
    for (uint64_t i = 0; i < NOTIFIED; i++)
        CHECK_OK(box_await(box, ids[i], patience_ms()).status);
    meet(team, 1, box);
    box_close(box);
}

static void is_notified(struct team *team)
{
    struct box *box = open_as_set(team);
    weft_peer peer = join(team, 0, box);
    uint8_t *bytes = map_bytes(NOTIFIED * NOTIFY_SLOT);
    weft_memory *memory = register_one(box->endpoint, bytes, NOTIFIED * NOTIFY_SLOT);
    int seen[NOTIFIED] = {0};
    give_memory(team, 0, memory);
    for (int n = 0; n < NOTIFIED; n++) {
        weft_completion c = box_take(box, WEFT_COMPLETION_NOTIFICATION, patience_ms());
        uint64_t i = 0;
        while (i < NOTIFIED && mix(i) != c.notify)
            i++;
        CHECK(i < NOTIFIED);
        CHECK_EQ(++seen[i], 1);
        CHECK_OK(c.status);
        CHECK(c.peer == peer);
        uint64_t len = i % 3 == 1 ? bytes_of(i) / 64 * 64 : bytes_of(i);
        if (i % 3 != 2 && differs_random(bytes + i * NOTIFY_SLOT, len, i) >= 0)
            FAIL("notification %" PRIu64 " came before byte %" PRId64 " of %" PRIu64, i,
                 differs_random(bytes + i * NOTIFY_SLOT, len, i), len);
        uint64_t data_len = i % 2 ? mix(i) % (WEFT_NOTIFY_DATA_MAX + 1) : 0;
        CHECK_EQ(c.bytes, data_len);
        if (data_len) {
            CHECK(c.data != NULL && c.op != 0);
            CHECK_EQ(differs_random(c.data, data_len, i), -1);
        } else {
            CHECK(c.data == NULL);
        }
        CHECK_OK(weft_message_release(box->endpoint, c.op)); /* 0 is fine */
        if (data_len)
            CHECK_STATUS(weft_message_release(box->endpoint, c.op), WEFT_ERR_HANDLE);
    }
    meet(team, 0, box);
    weft_completion c;
    CHECK(!box_try(box, WEFT_COMPLETION_NOTIFICATION, &c));
    box_close(box);
}

static void notifications_come_once_and_last(void)
{
    setting = (struct setting){1, 1, {THREADS, THREADS}, 1};
    run_pair(notifies, is_notified);
}

static void notifications_on_four_rails(void)
{
    setting = (struct setting){4, 2, {THREADS, THREADS}, 1};
    run_pair(notifies, is_notified);
}

static void notifications_with_manual_progress(void)
{
    setting = (struct setting){1, 1, {MANUAL, MANUAL}, 1};
    run_pair(notifies, is_notified);
}

/* ---- Deadlines and cancels, against a target that makes no progress ---- */

enum { STOP = 1, GO_ON = 2, DONE = 3 };

/* Sleeps when requested, without polling: with manual progress nothing moves then. */
static void naps(struct team *team)
{
    weft_endpoint_config config = test_config();
    config.progress = WEFT_PROGRESS_MANUAL;
    struct box *box = box_of(open_with(&config));
    join(team, 0, box);
    uint8_t *bytes = map_bytes(4 * MIB);
    give_memory(team, 0, register_one(box->endpoint, bytes, 4 * MIB));
    char order = 0;
    while (order != DONE) {
        hear(team, 0, box, &order, 1);
        if (order == STOP) {
            tell(team, 0, &order, 1);
            hear(team, 0, NULL, &order, 1);
        }
        tell(team, 0, &order, 1);
    }
    box_close(box);
}

static void order(struct team *team, struct box *box, char what)
{
    char answer;
    tell(team, 1, &what, 1);
    hear(team, 1, box, &answer, 1);
    CHECK_EQ(answer, what);
}

/* Without message or notification: NICs do it while the target sleeps. */
static bool ends_well(size_t i)
{
    return !target_must_poll() && !(i >= 8 && i < 12) && i % 2 == 0;
}

static void waits_for_deadlines(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    weft_peer peer = join(team, 1, box);
    weft_memory *memory = register_one(box->endpoint, map_bytes(4 * MIB), 4 * MIB);
    weft_remote_memory *theirs = take_memory(team, 1, box, peer);
    struct range_request args = range_args(memory, theirs, 4 * MIB);
    CHECK_OK(box_await(box, write_now(box, &args), patience_ms()).status);
    order(team, box, STOP);
    const uint64_t limits[] = {1, 100, 400, 700};
    weft_op ids[16];
    judged_from();
    for (size_t i = 0; i < 16; i++) {
        struct send_request message = SEND_REQUEST_INIT;
        args.options.timeout_ns = message.options.timeout_ns = ends_well(i) ? 0 : limits[i % 4] * MS;
        args.options.flags = i % 2 ? WEFT_NOTIFY : 0;
        message.peer = peer;
        message.data = "late";
        message.len = 4;
        CHECK_OK(i < 4    ? submit_write(box->endpoint, &args, &ids[i])
                 : i < 8  ? submit_read(box->endpoint, &args, &ids[i])
                 : i < 12 ? submit_send(box->endpoint, &message, &ids[i])
                          : submit_write(box->endpoint, &args, &ids[i]));
    }
    for (size_t i = 0; i < 16; i++) {
        weft_completion c = box_await(box, ids[i], patience_ms());
        uint64_t took = c.done_ns - c.submit_ns;
        if (ends_well(i)) {
            CHECK_OK(c.status);
            continue;
        }
        CHECK_STATUS(c.status, WEFT_ERR_TIMED_OUT);
        CHECK_EQ(c.bytes, 0);
        if (took < limits[i % 4] * MS)
            FAIL("operation %zu timed out after %" PRIu64 " us, not %" PRIu64 " ms", i, took / 1000,
                 limits[i % 4]);
        CHECK_WITHIN(c.submit_ns + limits[i % 4] * MS, c.done_ns, LATE_MOST);
        CHECK_STATUS(weft_op_cancel(box->endpoint, ids[i]), WEFT_ERR_HANDLE);
    }
    order(team, box, GO_ON);
    args = range_args(memory, theirs, 4 * MIB);
    CHECK_OK(box_await(box, write_now(box, &args), patience_ms()).status);
    box_quiet(box, 100); /* the late ones do not complete again */
    order(team, box, DONE);
    box_close(box);
}

static void deadlines_are_kept(void)
{
    run_pair(waits_for_deadlines, naps);
}

static void cancels(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    weft_peer peer = join(team, 1, box);
    weft_memory *memory = register_one(box->endpoint, map_bytes(4 * MIB), 4 * MIB);
    weft_remote_memory *theirs = take_memory(team, 1, box, peer);
    struct range_request args = range_args(memory, theirs, 4 * MIB);
    CHECK_OK(box_await(box, write_now(box, &args), patience_ms()).status);
    for (int round = 0; round < 3; round++) {
        weft_op ids[20];
        order(team, box, STOP);
        for (size_t i = 0; i < 20; i++)
            CHECK_OK(i % 2 ? submit_write(box->endpoint, &args, &ids[i])
                           : submit_read(box->endpoint, &args, &ids[i]));
        sleep_ms(20);
        for (size_t i = 0; i < 20; i++) {
            uint64_t began = judged_from();
            weft_status status = weft_op_cancel(box->endpoint, ids[i]);
            if (status != WEFT_OK) {
                /* They have completed: bytes in sockets may have arrived. */
                CHECK_STATUS(status, WEFT_ERR_HANDLE);
                CHECK_OK(box_await(box, ids[i], patience_ms()).status);
                continue;
            }
            weft_completion c = box_await(box, ids[i], patience_ms());
            CHECK_STATUS(c.status, WEFT_ERR_CANCELED);
            CHECK_WITHIN(began, c.done_ns, LATE_MOST);
            CHECK_EQ(c.bytes, 0);
            CHECK_STATUS(weft_op_cancel(box->endpoint, ids[i]), WEFT_ERR_HANDLE);
        }
        order(team, box, GO_ON);
        CHECK_OK(box_await(box, write_now(box, &args), patience_ms()).status);
    }
    box_quiet(box, 100);
    order(team, box, DONE);
    box_close(box);
}

static void cancel_takes_effect_at_once(void)
{
    run_pair(cancels, naps);
}

/* After any completion the library no longer touches local memory. */
static void reuses_memory(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    weft_peer peer = join(team, 1, box);
    uint8_t *bytes = map_bytes(4 * MIB);
    weft_memory *memory = register_one(box->endpoint, bytes, 4 * MIB);
    weft_remote_memory *theirs = take_memory(team, 1, box, peer);
    struct range_request args = range_args(memory, theirs, 4 * MIB);
    weft_op id;
    CHECK_OK(box_await(box, write_now(box, &args), patience_ms()).status);
    order(team, box, STOP);
    args.options.timeout_ns = 100 * MS;
    CHECK_OK(submit_read(box->endpoint, &args, &id));
    weft_completion c = box_await(box, id, patience_ms());
    CHECK_STATUS(c.status, WEFT_ERR_TIMED_OUT);
    memset(bytes, 0x42, 4 * MIB);
    order(team, box, GO_ON); /* now the target answers the old read */
    sleep_ms(300);
    for (size_t i = 0; i < 4 * MIB; i++)
        if (bytes[i] != 0x42)
            FAIL("byte %zu changed after the read had completed", i);
    order(team, box, DONE);
    box_close(box);
}

static void late_read_changes_no_memory(void)
{
    run_pair(reuses_memory, naps);
}

/* The same with a process that is stopped by a signal. */
/* Once the completions are polled, nothing is left to poll: the memories can be given back by few calls, which wait. */
static void memories_of_canceled_transfers_are_given_back(void)
{
    enum { WRITES = 16, ROUNDS = 16 };
    struct duo duo = duo_open(16 * MIB);
    uint8_t *bytes = calloc(16, MIB);
    int busy = 0;
    for (int round = 0; round < ROUNDS; round++) {
        weft_memory *memory = register_one(duo.a->endpoint, bytes, 16 * MIB);
        weft_op ids[WRITES];
        for (int i = 0; i < WRITES; i++) {
            struct range_request args = range_args(memory, duo.b_of_a, MIB);
            args.local_offset = args.remote_offset = i * MIB;
            ids[i] = write_now(duo.a, &args);
        }
        for (int i = 0; i < WRITES; i++)
            CHECK_ONE_OF(weft_op_cancel(duo.a->endpoint, ids[i]), WEFT_OK, WEFT_ERR_HANDLE);
        for (int i = 0; i < WRITES; i++)
            CHECK_ONE_OF(box_await(duo.a, ids[i], patience_ms()).status, WEFT_OK, WEFT_ERR_CANCELED);
        weft_status status;
        while ((status = weft_memory_deregister(memory)) == WEFT_ERR_BUSY)
            busy++;
        CHECK_OK(status);
    }
    CHECK(busy <= 16 * ROUNDS); /* each waits 10 ms, which is enough but for a machine with much load */
    free(bytes);
    duo_close(&duo);
}

static void stops_its_peer(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    weft_peer peer = join(team, 1, box);
    weft_memory *memory = register_one(box->endpoint, map_bytes(4 * MIB), 4 * MIB);
    weft_remote_memory *theirs = take_memory(team, 1, box, peer);
    struct range_request args = range_args(memory, theirs, 4 * MIB);
    CHECK_OK(box_await(box, write_now(box, &args), patience_ms()).status);
    stop_process(pid_of(team, 1));
    args.options.timeout_ns = 500 * MS;
    weft_op ids[20];
    judged_from();
    for (size_t i = 0; i < 20; i++)
        CHECK_OK(submit_write(box->endpoint, &args, &ids[i]));
    for (size_t i = 0; i < 20; i++) {
        weft_completion c = box_await(box, ids[i], patience_ms());
        CHECK_STATUS(c.status, WEFT_ERR_TIMED_OUT);
        CHECK(c.done_ns - c.submit_ns >= 500 * MS);
        CHECK_WITHIN(c.submit_ns + 500 * MS, c.done_ns, LATE_MOST);
    }
    CHECK(kill(pid_of(team, 1), SIGCONT) == 0);
    args.options.timeout_ns = 0;
    CHECK_OK(box_await(box, write_now(box, &args), patience_ms()).status);
    box_quiet(box, 100);
    meet(team, 1, box);
    box_close(box);
}

static void is_stopped(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    join(team, 0, box);
    give_memory(team, 0, register_one(box->endpoint, map_bytes(4 * MIB), 4 * MIB));
    meet(team, 0, box);
    box_close(box);
}

static void stopped_peer_delays_no_completion(void)
{
    run_pair(stops_its_peer, is_stopped);
}

/* Lanes are reset for operations that it does not return; it is not lost for that. */
static void pauses_its_peer(struct team *team)
{
    struct box *box = open_as_set(team);
    weft_peer peer = join(team, 1, box);
    weft_memory *memory = register_one(box->endpoint, map_bytes(4 * MIB), 4 * MIB);
    weft_remote_memory *theirs = take_memory(team, 1, box, peer);
    struct range_request args = range_args(memory, theirs, 4 * MIB);
    weft_op ids[20];
    for (int read = 0; read < 2; read++) {
        CHECK_OK(box_await(box, write_now(box, &args), patience_ms()).status);
        stop_process(pid_of(team, 1));
        args.options.timeout_ns = 100 * MS;
        judged_from();
        for (size_t i = 0; i < 20; i++)
            CHECK_OK((read ? submit_read : submit_write)(box->endpoint, &args, &ids[i]));
        for (size_t i = 0; i < 20; i++) {
            weft_completion c = box_await(box, ids[i], patience_ms());
            CHECK_STATUS(c.status, WEFT_ERR_TIMED_OUT);
            CHECK_WITHIN(c.submit_ns + 100 * MS, c.done_ns, LATE_MOST);
        }
        sleep_ms(200);
        CHECK(kill(pid_of(team, 1), SIGCONT) == 0);
        args.options.timeout_ns = 0;
    }
    CHECK_OK(box_await(box, write_now(box, &args), patience_ms()).status);
    weft_completion down;
    box_pump(box, 200);
    CHECK(!box_try(box, WEFT_COMPLETION_PEER_DOWN, &down));
    meet(team, 1, box);
    box_close(box);
}

static void is_paused(struct team *team)
{
    struct box *box = open_as_set(team);
    join(team, 0, box);
    give_memory(team, 0, register_one(box->endpoint, map_bytes(4 * MIB), 4 * MIB));
    meet(team, 0, box);
    box_close(box);
}

static void paused_peer_stays_connected(void)
{
    setting = (struct setting){4, 2, {THREADS, THREADS}, 1};
    run_pair(pauses_its_peer, is_paused);
}

static void paused_peer_of_one_rail_stays_connected(void)
{
    setting = (struct setting){1, 1, {THREADS, THREADS}, 1};
    run_pair(pauses_its_peer, is_paused);
}

/* ---- One completion for each operation ---- */

#define MIXED 2000
#define QUEUES 3

struct ledger {
    weft_op id[MIXED];
    int8_t queue[MIXED], kind[MIXED];
    uint64_t bytes[MIXED];
    int seen[MIXED];
    size_t accepted, completed;
};

static void enter_all(struct ledger *ledger, struct box *box, weft_queue *const *queues, uint64_t ms)
{
    weft_completion c[64];
    for (int q = 0; q < QUEUES; q++) {
        int32_t n = q > 0 ? weft_queue_poll(queues[q], c, 64, 0)
                          : weft_queue_poll(weft_endpoint_queue(box->endpoint), c, 64, ms * MS);
        CHECK(n >= 0);
        for (int32_t k = 0; k < n; k++) {
            size_t i = (size_t)(uintptr_t)c[k].user_data - 1;
            if (c[k].kind == WEFT_COMPLETION_RAIL_DOWN || c[k].kind == WEFT_COMPLETION_RAIL_UP)
                continue; /* of a busy machine, where one worker may wait for its turn */
            CHECK(i < MIXED && c[k].op == ledger->id[i]);
            CHECK_EQ(ledger->queue[i], q);
            CHECK_EQ(ledger->kind[i], c[k].kind);
            CHECK_ONE_OF(c[k].status, WEFT_OK, WEFT_ERR_CANCELED, WEFT_ERR_TIMED_OUT);
            CHECK(c[k].bytes == (c[k].status == WEFT_OK ? ledger->bytes[i] : 0));
            CHECK_EQ(++ledger->seen[i], 1);
            ledger->completed++;
        }
    }
}

static void keeps_a_ledger(struct team *team)
{
    struct box *box = open_as_set(team);
    weft_peer peer = join(team, 1, box);
    uint8_t *bytes = map_bytes(4 * MIB);
    weft_memory *memory = register_one(box->endpoint, bytes, 4 * MIB);
    weft_remote_memory *theirs = take_memory(team, 1, box, peer);
    weft_queue *queues[QUEUES] = {NULL};
    struct ledger *ledger = calloc(1, sizeof *ledger);
    uint64_t random = 2024, until = now_ns() + 2 * patience_ms() * MS;
    CHECK(ledger != NULL);
    for (int q = 1; q < QUEUES; q++)
        CHECK_OK(weft_queue_create(box->endpoint, q == 1 ? 16 : 0, &queues[q]));
    for (size_t i = 0; i < MIXED;) {
        uint64_t r = next_random(&random);
        uint64_t len = r % 5 == 0 ? r % (2 * MIB) : r % 9000;
        uint64_t timeout = r % 11 == 0 ? 1 + next_random(&random) % (5 * MS) : 0;
        int q = (int)((r >> 20) % QUEUES), kind = (int)((r >> 30) % 5);
        weft_status status;
        CHECK(now_ns() < until);
        if (kind == 4) {
            struct send_request args = SEND_REQUEST_INIT;
            args.peer = peer;
            args.data = bytes;
            args.len = len = len % 1000;
            args.options.timeout_ns = timeout;
            args.options.user_data = (void *)(uintptr_t)(i + 1);
            args.options.queue = queues[q];
            status = submit_send(box->endpoint, &args, &ledger->id[i]);
        } else if (kind >= 2) {
            struct pages_request args = PAGES_REQUEST_INIT;
            args.local = memory;
            args.remote = theirs;
            args.pages.page_len = 1000;
            args.pages.page_count = len / 1000;
            len = args.pages.page_count * 1000;
            args.pages.local.page_stride = 1024;
            args.options.timeout_ns = timeout;
            args.options.flags = r % 2 ? WEFT_NOTIFY : 0;
            args.options.user_data = (void *)(uintptr_t)(i + 1);
            args.options.queue = queues[q];
            status = kind == 2 ? submit_write_pages(box->endpoint, &args, &ledger->id[i])
                               : submit_read_pages(box->endpoint, &args, &ledger->id[i]);
        } else {
            struct range_request args = range_args(memory, theirs, len);
            args.options.timeout_ns = timeout;
            args.options.flags = r % 3 == 0 ? WEFT_NOTIFY : 0;
            args.options.user_data = (void *)(uintptr_t)(i + 1);
            args.options.queue = queues[q];
            status = kind == 0 ? submit_write(box->endpoint, &args, &ledger->id[i])
                               : submit_read(box->endpoint, &args, &ledger->id[i]);
        }
        if (status == WEFT_ERR_AGAIN) {
            enter_all(ledger, box, queues, 1);
            continue;
        }
        CHECK_OK(status);
        ledger->accepted++;
        ledger->queue[i] = (int8_t)q;
        ledger->bytes[i] = len;
        ledger->kind[i] = (int8_t)(kind == 4                ? WEFT_COMPLETION_SEND
                                   : kind == 0 || kind == 2 ? WEFT_COMPLETION_WRITE
                                                            : WEFT_COMPLETION_READ);
        if (r % 13 == 0) {
            size_t which = i - next_random(&random) % (i + 1 < 50 ? i + 1 : 50);
            CHECK_ONE_OF(weft_op_cancel(box->endpoint, ledger->id[which]), WEFT_OK,
                         WEFT_ERR_HANDLE);
        }
        i++;
        if (r % 3 == 0)
            enter_all(ledger, box, queues, 0);
    }
    while (ledger->completed < ledger->accepted) {
        size_t before = (size_t)ledger->completed;
        CHECK(now_ns() < until);
        enter_all(ledger, box, queues, 1);
        if ((size_t)ledger->completed > before) /* it must continue; how fast does not matter */
            until = now_ns() + patience_ms() * MS;
    }
    sleep_ms(100);
    enter_all(ledger, box, queues, 0);
    CHECK_EQ(ledger->completed, MIXED);
    free(ledger);
    for (int q = 1; q < QUEUES; q++)
        CHECK_OK(weft_queue_destroy(queues[q]));
    CHECK_OK(weft_memory_deregister(memory));
    meet(team, 1, box);
    box_close(box);
}

static void takes_the_mix(struct team *team)
{
    struct box *box = open_as_set(team);
    join(team, 0, box);
    give_memory(team, 0, register_one(box->endpoint, map_bytes(4 * MIB), 4 * MIB));
    char byte = 'm';
    tell(team, 0, &byte, 1); /* like meet, but accepts messages and notifications */
    for (;;) {
        struct pollfd ready = {team->fd[0], POLLIN, 0};
        box_pump(box, 1);
        for (size_t i = 0; i < box->count; i++)
            CHECK_OK(weft_message_release(box->endpoint, box->items[i].op));
        box->count = 0;
        if (poll(&ready, 1, 0) > 0)
            break;
    }
    CHECK_EQ(hear(team, 0, box, &byte, 1), 1);
    box_close(box);
}

static void every_operation_completes_once(void)
{
    setting = (struct setting){1, 1, {THREADS, THREADS}, 1};
    run_pair(keeps_a_ledger, takes_the_mix);
}

static void every_operation_completes_once_on_four_rails(void)
{
    setting = (struct setting){4, 3, {THREADS, THREADS}, 1};
    run_pair(keeps_a_ledger, takes_the_mix);
}

static void every_operation_completes_once_manually(void)
{
    setting = (struct setting){2, 1, {MANUAL, MANUAL}, 1};
    run_pair(keeps_a_ledger, takes_the_mix);
}

/* ---- Queues and limits ---- */

static void fills_up(struct team *team)
{
    weft_endpoint_config config = test_config();
    config.max_transfers = 64;
    struct box *box = box_of(open_with(&config));
    weft_peer peer = join(team, 1, box);
    weft_memory *memory = register_one(box->endpoint, map_bytes(4096), 4096);
    weft_remote_memory *theirs = take_memory(team, 1, box, peer);
    weft_queue *queue;
    weft_completion c[200];
    CHECK_OK(weft_queue_create(box->endpoint, 16, &queue));
    struct range_request args = range_args(memory, theirs, 4096);
    args.options.queue = queue;
    /* Each operation has its place reserved: at most as many are accepted as the queue holds. */
    for (int round = 0; round < 20; round++) {
        int32_t accepted = 0, n = 0;
        weft_status status;
        uint64_t until = now_ns() + patience_ms() * MS;
        while ((status = submit_write(box->endpoint, &args, NULL)) == WEFT_OK)
            CHECK(++accepted <= 64);
        CHECK_STATUS(status, WEFT_ERR_AGAIN);
        CHECK(accepted >= 16);
        CHECK_STATUS(weft_queue_destroy(queue), WEFT_ERR_BUSY);
        while (n < accepted) {
            int32_t got = weft_queue_poll(queue, c, 200, SECOND);
            CHECK(got >= 0 && now_ns() < until);
            for (int32_t i = 0; i < got; i++)
                CHECK_OK(c[i].status);
            n += got;
        }
        CHECK_EQ(n, accepted);
        CHECK_EQ(weft_queue_poll(queue, c, 200, 0), 0);
    }
    CHECK_OK(weft_queue_destroy(queue));
    box_quiet(box, 20); /* nothing went to the endpoint's own queue */

    /* Exactly as many transfers as configured. */
    args.options.queue = NULL;
    order(team, box, STOP);
    args.len = 4096;
    weft_status status;
    int accepted = 0;
    while ((status = submit_write(box->endpoint, &args, NULL)) == WEFT_OK && accepted < 1000)
        accepted++;
    CHECK_STATUS(status, WEFT_ERR_AGAIN);
    order(team, box, GO_ON);
    for (int i = 0; i < accepted; i++)
        CHECK_OK(box_take(box, WEFT_COMPLETION_WRITE, patience_ms()).status);
    box_quiet(box, 20);
    order(team, box, DONE);
    box_close(box);
}

static void full_queue_returns_again(void)
{
    run_pair(fills_up, naps);
}

/* ---- Before the peer is up ---- */

static void hurries(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    char address[4096], descriptor[4096];
    size_t address_len = hear(team, 1, NULL, address, sizeof address);
    size_t descriptor_len = hear(team, 1, NULL, descriptor, sizeof descriptor);
    uint8_t *bytes = map_bytes(MIB);
    weft_memory *memory = register_one(box->endpoint, bytes, MIB);
    weft_peer peer;
    weft_remote_memory *theirs;
    weft_op id;
    fill_random(bytes, MIB, 8);
    CHECK_OK(weft_peer_connect(box->endpoint, address, address_len, NULL, &peer));
    CHECK_OK(weft_remote_memory_import(box->endpoint, peer, descriptor, descriptor_len, &theirs));
    struct range_request args = range_args(memory, theirs, MIB);
    args.options.flags = WEFT_NOTIFY;
    args.options.notify = 99;
    CHECK_OK(submit_write(box->endpoint, &args, &id)); /* not connected yet */
    CHECK_OK(box_await(box, id, patience_ms()).status);
    CHECK_OK(box_take(box, WEFT_COMPLETION_PEER_UP, patience_ms()).status);
    meet(team, 1, box);
    box_close(box);
}

static void is_hurried(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    char address[4096];
    uint8_t *bytes = map_bytes(MIB);
    weft_memory *memory = register_one(box->endpoint, bytes, MIB);
    tell(team, 0, address, address_of(box->endpoint, address, sizeof address));
    give_memory(team, 0, memory);
    weft_completion c = box_take(box, WEFT_COMPLETION_NOTIFICATION, patience_ms());
    CHECK_EQ(c.notify, 99);
    CHECK_EQ(differs_random(bytes, MIB, 8), -1);
    meet(team, 0, box);
    box_close(box);
}

static void write_before_the_peer_is_up(void)
{
    run_pair(hurries, is_hurried);
}

/* ---- More than 32 bits ---- */

#define HUGE_LEN (4 * GIB + 1)

static uint64_t available_memory(void)
{
    char line[256];
    unsigned long long kib = 0;
    FILE *info = fopen("/proc/meminfo", "r");
    CHECK(info != NULL);
    while (fgets(line, sizeof line, info))
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
            break;
    fclose(info);
    return kib * KIB;
}

static uint64_t huge_word(uint64_t at)
{
    return at * UINT64_C(0x9e3779b97f4a7c15) ^ UINT64_C(0x5bd1e995a5a5a5a5);
}

static void writes_huge(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    weft_peer peer = join(team, 1, box);
    uint8_t *bytes = map_bytes(HUGE_LEN);
    for (uint64_t i = 0; i + 8 <= HUGE_LEN; i += 8) {
        uint64_t word = huge_word(i);
        memcpy(bytes + i, &word, 8);
    }
    bytes[HUGE_LEN - 1] = 0xa7;
    weft_memory *memory = register_one(box->endpoint, bytes, HUGE_LEN);
    weft_remote_memory *theirs = take_memory(team, 1, box, peer);
    struct range_request args = range_args(memory, theirs, HUGE_LEN);
    args.options.timeout_ns = 8 * patience_ms() * MS;
    args.options.flags = WEFT_NOTIFY;
    uint64_t began = now_ns();
    weft_completion c = box_await(box, write_now(box, &args), 8 * patience_ms());
    CHECK_OK(c.status);
    CHECK(c.bytes == HUGE_LEN);
    printf("%.2f GB/s\n", (double)HUGE_LEN / (double)(now_ns() - began));
    meet(team, 1, box);
    box_close(box);
}

static void has_huge(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    join(team, 0, box);
    uint8_t *bytes = map_bytes(HUGE_LEN);
    give_memory(team, 0, register_one(box->endpoint, bytes, HUGE_LEN));
    (void)box_take(box, WEFT_COMPLETION_NOTIFICATION, 8 * patience_ms());
    for (uint64_t i = 0; i + 8 <= HUGE_LEN; i += 8) {
        uint64_t word;
        memcpy(&word, bytes + i, 8);
        if (word != huge_word(i))
            FAIL("the word at %" PRIu64 " is wrong", i);
    }
    CHECK_EQ(bytes[HUGE_LEN - 1], 0xa7);
    meet(team, 0, box);
    box_close(box);
}

static void transfer_of_more_than_4_gib_completes(void)
{
    if (available_memory() < 12 * GIB)
        skip("less than 12 GiB of memory are available");
    run_pair(writes_huge, has_huge);
}

/* ---- Memory registered with some rails only ---- */

static weft_memory *register_on(weft_endpoint *endpoint, uint8_t *bytes, uint64_t len, uint64_t rails)
{
    weft_memory_args args = WEFT_MEMORY_ARGS_INIT;
    weft_memory_range range = {bytes, len};
    weft_memory *memory = NULL;
    args.rails = rails;
    CHECK_OK(weft_memory_register(endpoint, &range, 1, &args, &memory));
    return memory;
}

static uint64_t bytes_of_rail(weft_endpoint *endpoint, uint32_t rail)
{
    weft_rail_statistics statistics = WEFT_RAIL_STATISTICS_INIT;
    CHECK_OK(weft_rail_info(endpoint, rail, NULL, &statistics));
    return statistics.bytes_written + statistics.bytes_read;
}

/* Whichever rails have the two memories, transfers find or make lanes between these, and no other rail carries a
 * byte. */
static void memory_of_some_rails_uses_only_those(void)
{
    const struct { uint64_t ours, theirs; } cases[] = {
        {1, 1}, {1, 8}, {8, 1}, {2, 15}, {12, 3}, {0, 4}, {4, 0}, {5, 10},
    };
    weft_endpoint_config config = test_config();
    config.rail_count = 4;
    config.workers = 2;
    struct box *box[2] = {box_of(open_with(&config)), box_of(open_with(&config))};
    char blob[16384];
    weft_peer peer;
    size_t n = address_of(box[1]->endpoint, blob, sizeof blob);
    CHECK_OK(weft_peer_connect(box[0]->endpoint, blob, n, NULL, &peer));
    CHECK_OK(box_take(box[0], WEFT_COMPLETION_PEER_UP, patience_ms()).status);
    CHECK_OK(box_take(box[1], WEFT_COMPLETION_PEER_UP, patience_ms()).status);
    weft_rail_properties first = WEFT_RAIL_PROPERTIES_INIT;
    CHECK_OK(weft_rail_info(box[0]->endpoint, 0, &first, NULL));
    uint8_t *mine = map_bytes(MIB), *theirs = map_bytes(MIB);
    for (size_t i = 0; i < COUNT(cases); i++) {
        weft_memory *near = register_on(box[0]->endpoint, mine, MIB, cases[i].ours);
        weft_memory *far = register_on(box[1]->endpoint, theirs, MIB, cases[i].theirs);
        weft_remote_memory *remote;
        n = descriptor_of(far, blob, sizeof blob);
        CHECK_OK(weft_remote_memory_import(box[0]->endpoint, peer, blob, n, &remote));
        uint64_t before[4];
        for (uint32_t rail = 0; rail < 4; rail++)
            before[rail] = bytes_of_rail(box[0]->endpoint, rail);
        for (int k = 0; k < 3; k++) {
            struct range_request args = range_args(near, remote, MIB);
            weft_op id;
            fill_random(mine, MIB, 2 * i + (uint64_t)k);
            CHECK_OK(box_await(box[0], write_now(box[0], &args), patience_ms()).status);
            CHECK(memcmp(mine, theirs, MIB) == 0);
            fill_random(theirs, MIB, 99 + i);
            CHECK_OK(submit_read(box[0]->endpoint, &args, &id));
            CHECK_OK(box_await(box[0], id, patience_ms()).status);
            CHECK(memcmp(mine, theirs, MIB) == 0);
        }
        uint64_t all = 0;
        for (uint32_t rail = 0; rail < 4; rail++) {
            uint64_t moved = bytes_of_rail(box[0]->endpoint, rail) - before[rail];
            CHECK(moved == 0 || cases[i].ours == 0 || cases[i].ours & UINT64_C(1) << rail);
            all += moved;
        }
        CHECK_EQ(all, 6 * MIB);
        CHECK_OK(weft_remote_memory_release(remote));
        CHECK_OK(weft_memory_deregister(near));
        CHECK_OK(weft_memory_deregister(far));
    }
    weft_memory_args args = WEFT_MEMORY_ARGS_INIT;
    weft_memory_range range = {mine, MIB};
    weft_memory *memory;
    args.rails = 16;
    REFUSED(WEFT_ERR_INVALID, weft_memory_register(box[0]->endpoint, &range, 1, &args, &memory));
    box_close(box[0]);
    box_close(box[1]);
}

static const struct test tests[] = {
    {"memory_of_some_rails_uses_only_those", "tcp,sim:like=tcp,sim:like=efa", memory_of_some_rails_uses_only_those},
    {"pages_of_all_shapes_move", "any", pages_of_all_shapes_move},
    {"pages_on_four_rails", "any", pages_on_four_rails},
    {"pages_on_four_rails_of_three_workers", "any", pages_on_four_rails_of_three_workers},
    {"pages_from_manual_progress", "any", pages_from_manual_progress},
    {"writer_with_workers_reaches_manual_peer", "any", writer_with_workers_reaches_manual_peer},
    {"pages_all_manual", "any", pages_all_manual},
    {"ranges_of_all_sizes_move", "any wide", ranges_of_all_sizes_move},
    {"notifications_come_once_and_last", "any wide", notifications_come_once_and_last},
    {"notifications_on_four_rails", "any", notifications_on_four_rails},
    {"notifications_with_manual_progress", "any", notifications_with_manual_progress},
    {"deadlines_are_kept", "any timed", deadlines_are_kept},
    {"cancel_takes_effect_at_once", "any timed", cancel_takes_effect_at_once},
    {"memories_of_canceled_transfers_are_given_back", "tcp,host", memories_of_canceled_transfers_are_given_back},
    {"late_read_changes_no_memory", "tcp,host,sim:like=tcp", late_read_changes_no_memory},
    {"stopped_peer_delays_no_completion", "tcp,host timed", stopped_peer_delays_no_completion},
    {"every_operation_completes_once", "any wide", every_operation_completes_once},
    {"paused_peer_stays_connected", "tcp,host timed", paused_peer_stays_connected},
    {"paused_peer_of_one_rail_stays_connected", "tcp,host timed", paused_peer_of_one_rail_stays_connected},
    {"every_operation_completes_once_on_four_rails", "any",
     every_operation_completes_once_on_four_rails},
    {"every_operation_completes_once_manually", "any", every_operation_completes_once_manually},
    {"full_queue_returns_again", "any", full_queue_returns_again},
    {"write_before_the_peer_is_up", "any", write_before_the_peer_is_up},
    {"transfer_of_more_than_4_gib_completes", "tcp,host long", transfer_of_more_than_4_gib_completes},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
