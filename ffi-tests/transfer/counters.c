/* Counters: raised once for each page or transfer, never before its bytes; expected, reused. */
#include "harness.h"

/* ---- Two endpoints of one process, and the owner's counters ---- */

static weft_counter new_counter(weft_endpoint *endpoint)
{
    weft_counter counter = 0;
    CHECK_OK(weft_counter_create(endpoint, &counter));
    CHECK(counter != 0);
    return counter;
}

static uint64_t read_counter(weft_endpoint *endpoint, weft_counter counter)
{
    uint64_t value = UINT64_MAX;
    CHECK_OK(weft_counter_read(endpoint, counter, &value));
    return value;
}

static void await_value(struct duo *duo, weft_counter counter, uint64_t value)
{
    uint64_t until = now_ns() + patience_ms() * MS;
    while (read_counter(duo->b->endpoint, counter) < value) {
        CHECK(now_ns() < until);
        pump_both(duo, 0); /* either side may have to poll */
    }
    CHECK_EQ(read_counter(duo->b->endpoint, counter), value);
}

static weft_completion await_of(struct duo *duo, struct box *box, weft_op transfer)
{
    uint64_t until = now_ns() + patience_ms() * MS;
    for (;;) {
        for (size_t i = 0; i < box->count; i++)
            if (box->items[i].op == transfer)
                return box_await(box, transfer, 0);
        CHECK(now_ns() < until);
        pump_both(duo, 0);
    }
}

static weft_status try_expect(weft_endpoint *endpoint, const weft_counter *counters,
                              const uint64_t *values, uint32_t count, uint64_t timeout_ns,
                              weft_op *transfer)
{
    struct expect_request args = EXPECT_REQUEST_INIT;
    args.counters = counters;
    args.values = values;
    args.count = count;
    args.options.timeout_ns = timeout_ns;
    args.options.user_data = (void *)(uintptr_t)count;
    return submit_expect(endpoint, &args, transfer);
}

static weft_op expect(weft_endpoint *endpoint, weft_counter counter, uint64_t value)
{
    weft_op transfer = 0;
    CHECK_OK(try_expect(endpoint, &counter, &value, 1, 0, &transfer));
    return transfer;
}

static void raise_once(struct duo *duo, weft_counter counter)
{
    struct range_request args = range_args(duo->a_memory, duo->b_of_a, 0);
    args.options.counter = counter;
    CHECK_OK(await_of(duo, duo->a, write_now(duo->a, &args)).status);
}

/* ---- Once per transfer ---- */

static void counter_rises_once_per_transfer(void)
{
    struct duo duo = duo_open(8 * MIB);
    weft_endpoint *b = duo.b->endpoint;
    weft_counter counter = new_counter(b);
    CHECK_EQ(read_counter(b, counter), 0);
    const uint64_t lens[] = {0, 1, 4096, MIB, 3 * MIB + 7, 8 * MIB};
    uint64_t value = 0;
    for (size_t i = 0; i < COUNT(lens); i++) {
        fill_random(duo.a_bytes, lens[i], i);
        struct range_request args = range_args(duo.a_memory, duo.b_of_a, lens[i]);
        args.options.counter = counter;
        weft_op id = write_now(duo.a, &args);
        value++;
        await_value(&duo, counter, value);
        CHECK(differs_random(duo.b_bytes, lens[i], i) == -1);
        weft_completion c = await_of(&duo, duo.a, id);
        CHECK_OK(c.status);
        CHECK_EQ(c.bytes, lens[i]);
    }
    /* A transfer counts once it is complete. */
    raise_once(&duo, counter);
    CHECK_EQ(read_counter(b, counter), ++value);
    struct range_request args = range_args(duo.a_memory, duo.b_of_a, MIB);
    args.options.counter = counter;
    weft_op id = 0;
    fill_random(duo.b_bytes, MIB, 77);
    CHECK_OK(submit_read(duo.a->endpoint, &args, &id));
    CHECK_OK(await_of(&duo, duo.a, id).status);
    CHECK(differs_random(duo.a_bytes, MIB, 77) == -1);
    CHECK_EQ(read_counter(b, counter), ++value);
    struct pages_request pages = PAGES_REQUEST_INIT;
    pages.local = duo.a_memory;
    pages.remote = duo.b_of_a;
    pages.pages.page_len = 4096;
    pages.pages.page_count = 100;
    pages.pages.layer_count = 3;
    pages.pages.local.layer_stride = pages.pages.remote.layer_stride = 100 * 4096;
    pages.options.counter = counter;
    CHECK_OK(submit_write_pages(duo.a->endpoint, &pages, &id));
    CHECK_OK(await_of(&duo, duo.a, id).status);
    CHECK_EQ(read_counter(b, counter), ++value);
    CHECK_OK(weft_counter_destroy(b, counter));
    duo_close(&duo);
}

/* With a notification: both arrive, each once. */
static void counter_and_notification_arrive_once(void)
{
    struct duo duo = duo_open(MIB);
    weft_counter counter = new_counter(duo.b->endpoint);
    for (uint64_t i = 0; i < 100; i++) {
        struct range_request args = range_args(duo.a_memory, duo.b_of_a, i % 2 ? MIB : 0);
        args.options.flags = WEFT_NOTIFY;
        args.options.notify = i;
        args.options.notify_data = &i;
        args.options.notify_data_len = sizeof i;
        args.options.counter = counter;
        CHECK_OK(await_of(&duo, duo.a, write_now(duo.a, &args)).status);
        weft_completion c = box_take(duo.b, WEFT_COMPLETION_NOTIFICATION, patience_ms());
        CHECK_EQ(c.notify, i);
        CHECK(c.bytes == sizeof i && memcmp(c.data, &i, sizeof i) == 0);
        CHECK_OK(weft_message_release(duo.b->endpoint, c.op));
        await_value(&duo, counter, i + 1);
    }
    duo_close(&duo);
}

/* ---- Once per page: between processes, with the target checking all the time ---- */

#define ARENA (64 * MIB)

struct shape {
    uint64_t page_len, count;
    uint32_t layers, rails, progress;
    bool adjacent;
};

static const struct shape *shape; /* of this test */

static weft_endpoint_config shape_config(void)
{
    weft_endpoint_config config = test_config();
    config.rail_count = shape->rails;
    config.progress = shape->progress;
    return config;
}

static uint64_t stride(void)
{
    return shape->adjacent ? shape->page_len : shape->page_len + 40;
}

static uint64_t pages_in_all(void)
{
    return shape->count * shape->layers;
}

/* The last byte of each page shows whether it has arrived: then check all of it. */
static uint64_t arrived(const uint8_t *arena, uint64_t round, uint8_t *seen)
{
    uint64_t count = 0;
    for (uint64_t i = 0; i < pages_in_all(); i++) {
        const uint8_t *page = arena + i * stride();
        uint64_t seed = round * 1000003 + i;
        if (!seen[i])
            seen[i] = differs_random(page, shape->page_len, seed) == -1;
        count += seen[i];
    }
    return count;
}

#define ROUNDS 3

static void counts_pages(struct team *team)
{
    weft_endpoint_config config = shape_config();
    struct box *box = box_of(open_with(&config));
    uint8_t *arena = map_bytes(ARENA), *seen = malloc(pages_in_all());
    CHECK(seen != NULL);
    /* tools/test-verbs.sh adds these lines up. */
    printf("pages to count: %" PRIu64 "\n", ROUNDS * pages_in_all());
    fflush(stdout);
    join(team, 1, box);
    give_memory(team, 1, register_one(box->endpoint, arena, ARENA));
    for (uint64_t round = 0; round < ROUNDS; round++) {
        weft_counter counter = new_counter(box->endpoint);
        weft_op done = expect(box->endpoint, counter, pages_in_all());
        uint64_t until = now_ns() + patience_ms() * MS, value = 0;
        memset(seen, 0, pages_in_all());
        memset(arena, 0, ARENA);
        tell(team, 1, &counter, sizeof counter);
        while (value < pages_in_all()) {
            value = read_counter(box->endpoint, counter);
            uint64_t count = arrived(arena, round, seen);
            if (count < value)
                FAIL("%" PRIu64 " pages counted, %" PRIu64 " are here", value, count);
            CHECK(value <= pages_in_all());
            CHECK(now_ns() < until);
            box_pump(box, 0);
        }
        CHECK_OK(box_await(box, done, patience_ms()).status);
        meet(team, 1, box);
        CHECK_EQ(read_counter(box->endpoint, counter), pages_in_all());
        CHECK_OK(weft_counter_destroy(box->endpoint, counter));
        printf("pages counted once: %" PRIu64 "\n", pages_in_all());
    }
    meet(team, 1, box);
    box_close(box);
}

static void writes_pages(struct team *team)
{
    weft_endpoint_config config = shape_config();
    struct box *box = box_of(open_with(&config));
    uint8_t *arena = map_bytes(ARENA);
    weft_peer peer = join(team, 0, box);
    weft_memory *memory = register_one(box->endpoint, arena, ARENA);
    struct pages_request args = PAGES_REQUEST_INIT;
    args.options.flags = WEFT_COUNT_PAGES;
    args.local = memory;
    args.remote = take_memory(team, 0, box, peer);
    args.pages.local.page_stride = args.pages.remote.page_stride = stride();
    args.pages.local.layer_stride = args.pages.remote.layer_stride = shape->count * stride();
    args.pages.page_len = shape->page_len;
    args.pages.page_count = shape->count;
    args.pages.layer_count = shape->layers;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        weft_op id = 0;
        for (uint64_t i = 0; i < pages_in_all(); i++)
            fill_random(arena + i * stride(), shape->page_len, round * 1000003 + i);
        CHECK_EQ(hear(team, 0, box, &args.options.counter, sizeof args.options.counter), sizeof args.options.counter);
        CHECK_OK(submit_write_pages(box->endpoint, &args, &id));
        weft_completion c = box_await(box, id, patience_ms());
        CHECK_OK(c.status);
        CHECK_EQ(c.bytes, pages_in_all() * shape->page_len);
        meet(team, 0, box);
    }
    meet(team, 0, box);
    box_close(box);
}

#define SHAPE(name, ...)                                                                     \
    static void name(void)                                                                   \
    {                                                                                        \
        static const struct shape counted = {__VA_ARGS__};                                        \
        shape = &counted;                                                                         \
        run_pair(counts_pages, writes_pages);                                                \
    }

SHAPE(pages, .page_len = 65536, .count = 100, .layers = 3, .adjacent = true)
SHAPE(pages_over_rails, .page_len = 65536, .count = 100, .layers = 3, .rails = 4)
SHAPE(small_pages, .page_len = 4096, .count = 500, .layers = 2, .adjacent = true)
SHAPE(small_pages_are_counted_over_rails, .page_len = 4096, .count = 500, .layers = 2, .rails = 4)
SHAPE(separate_small_pages_are_counted, .page_len = 4096, .count = 500, .layers = 1)
SHAPE(tiny_pages_are_counted, .page_len = 9, .count = 3000, .layers = 1)
SHAPE(adjacent_tiny_pages_are_counted, .page_len = 8, .count = 3000, .layers = 1, .adjacent = true)
/* Not a multiple of the pages in one post. */
SHAPE(pages_of_odd_size_are_counted, .page_len = 40001, .count = 101, .layers = 3)
SHAPE(pages_of_odd_size_are_counted_over_rails, .page_len = 41011, .count = 103, .layers = 5, .rails = 3)
SHAPE(adjacent_pages_of_odd_size_are_counted, .page_len = 70000, .count = 7, .layers = 11, .rails = 2, .adjacent = true)
SHAPE(few_pages, .page_len = 50000, .count = 5, .layers = 1)
SHAPE(large_pages, .page_len = 3 * MIB + 5, .count = 5, .layers = 2, .rails = 2)
SHAPE(pages_with_manual_progress, .page_len = 16384, .count = 300, .layers = 1,
      .progress = WEFT_PROGRESS_MANUAL)

/* One post carries a counted page, and one of soft-RoCE at most 8 MiB. */
static void one_huge_page_is_counted(void)
{
    static struct shape counted = {.page_len = 60 * MIB, .count = 1, .layers = 1};
    if (on_fabric("verbs"))
        counted.page_len = 8 * MIB;
    shape = &counted;
    run_pair(counts_pages, writes_pages);
}

/* A counted page is counted once, whatever else the lanes carry. */
static void pages_are_counted_among_other_traffic(void)
{
    struct duo duo = duo_open(4 * MIB);
    weft_counter counter = new_counter(duo.b->endpoint);
    struct pages_request args = PAGES_REQUEST_INIT;
    uint64_t value = 0;
    args.local = duo.a_memory;
    args.remote = duo.b_of_a;
    for (int i = 0; i < 200; i++) {
        weft_op id = 0;
        bool counted = i % 2;
        args.options.flags = (counted ? WEFT_COUNT_PAGES : 0) | (i % 3 ? WEFT_CLASS_LATENCY : 0);
        args.options.counter = counted ? counter : 0;
        args.pages.page_len = i % 5 ? 2048 : 40000;
        args.pages.page_count = (uint64_t)(i % 7) * 10;
        value += counted ? args.pages.page_count : 0;
        CHECK_OK(submit_write_pages(duo.a->endpoint, &args, &id));
    }
    for (int i = 0; i < 200; i++)
        CHECK_OK(box_take(duo.a, WEFT_COMPLETION_WRITE, patience_ms()).status);
    await_value(&duo, counter, value);
    duo_close(&duo);
}

/* ---- Expecting ---- */

static void increments_before_and_after_an_expect_count(void)
{
    struct duo duo = duo_open(4096);
    weft_endpoint *b = duo.b->endpoint;
    weft_counter counter = new_counter(b);
    weft_completion c = await_of(&duo, duo.b, expect(b, counter, 0));
    CHECK_OK(c.status);
    CHECK_EQ(c.kind, WEFT_COMPLETION_COUNTER);
    CHECK(c.user_data == (void *)1 && c.peer == 0 && c.bytes == 0 && c.first_post_ns == 0);
    CHECK(c.submit_ns != 0 && c.done_ns >= c.submit_ns);
    weft_op third = expect(b, counter, 3), again = expect(b, counter, 3);
    raise_once(&duo, counter);
    raise_once(&duo, counter);
    box_quiet(duo.b, 20);
    weft_op second = expect(b, counter, 2);
    CHECK_OK(await_of(&duo, duo.b, second).status);
    raise_once(&duo, counter);
    CHECK_OK(await_of(&duo, duo.b, third).status);
    CHECK_OK(await_of(&duo, duo.b, again).status);
    raise_once(&duo, counter);
    CHECK_EQ(read_counter(b, counter), 4);
    CHECK_OK(await_of(&duo, duo.b, expect(b, counter, 1)).status);
    box_quiet(duo.b, 20);
    duo_close(&duo);
}

#define MANY 1000

static void many_counters_rise_at_once(void)
{
    struct duo duo = duo_open(4096);
    weft_endpoint *b = duo.b->endpoint;
    weft_counter counters[MANY + 1];
    uint64_t values[MANY + 1];
    weft_op all = 0, single[MANY];
    for (size_t i = 0; i < MANY; i++) {
        counters[i] = new_counter(b);
        values[i] = 1 + i % 2;
        single[i] = expect(b, counters[i], 1);
    }
    counters[MANY] = counters[5]; /* listed twice */
    values[MANY] = 3;
    CHECK_OK(try_expect(b, counters, values, MANY + 1, 0, &all));
    memset(values, 0, sizeof values); /* copied by the call */
    for (size_t i = 0; i < MANY; i++)
        for (size_t k = 0; k < 1 + i % 2; k++)
            raise_once(&duo, counters[i]);
    for (size_t i = 0; i < MANY; i++)
        CHECK_OK(await_of(&duo, duo.b, single[i]).status);
    box_quiet(duo.b, 20);
    raise_once(&duo, counters[5]);
    CHECK_OK(await_of(&duo, duo.b, all).status);
    duo_close(&duo);
}

static void many_expectations_wait_for_one_counter(void)
{
    struct duo duo = duo_open(MIB);
    weft_endpoint *b = duo.b->endpoint;
    weft_counter counter = new_counter(b);
    weft_op ids[MANY];
    for (size_t i = 0; i < MANY; i++)
        ids[i] = expect(b, counter, MANY - i);
    struct pages_request args = PAGES_REQUEST_INIT;
    args.options.flags = WEFT_COUNT_PAGES;
    args.local = duo.a_memory;
    args.remote = duo.b_of_a;
    args.pages.page_len = 100;
    args.pages.page_count = MANY;
    args.options.counter = counter;
    CHECK_OK(submit_write_pages(duo.a->endpoint, &args, NULL));
    for (size_t i = 0; i < MANY; i++)
        CHECK_OK(await_of(&duo, duo.b, ids[i]).status);
    CHECK_EQ(read_counter(b, counter), MANY);
    box_quiet(duo.b, 20);
    duo_close(&duo);
}

/* Expects that are submitted while increments arrive: none is missed. */
static void counter_races_lose_no_arrival(void)
{
    struct duo duo = duo_open(MIB);
    weft_endpoint *b = duo.b->endpoint;
    weft_counter counter = new_counter(b);
    struct pages_request args = PAGES_REQUEST_INIT;
    args.options.flags = WEFT_COUNT_PAGES;
    args.local = duo.a_memory;
    args.remote = duo.b_of_a;
    args.pages.page_len = 64;
    args.pages.page_count = 10000;
    args.options.counter = counter;
    for (uint64_t round = 1; round <= 5; round++) {
        CHECK_OK(submit_write_pages(duo.a->endpoint, &args, NULL));
        for (uint64_t value; (value = read_counter(b, counter)) < round * args.pages.page_count;) {
            weft_completion c = await_of(&duo, duo.b, expect(b, counter, value + 1));
            CHECK_OK(c.status);
            CHECK(read_counter(b, counter) > value);
        }
        CHECK_OK(box_take(duo.a, WEFT_COMPLETION_WRITE, patience_ms()).status);
    }
    CHECK_EQ(read_counter(b, counter), 5 * args.pages.page_count);
    duo_close(&duo);
}

static void counter_expectation_ends_early(void)
{
    struct duo duo = duo_open(4096);
    weft_endpoint *b = duo.b->endpoint;
    weft_counter counter = new_counter(b), other = new_counter(b);
    const weft_counter both[] = {other, counter};
    const uint64_t ones[] = {1, 1};
    weft_op late = 0, canceled = expect(b, counter, 1), pair = 0;
    uint64_t start = now_ns();
    CHECK_OK(try_expect(b, both, ones, 2, 100 * MS, &late));
    CHECK_OK(weft_op_cancel(b, canceled));
    CHECK_STATUS(await_of(&duo, duo.b, canceled).status, WEFT_ERR_CANCELED);
    REFUSED(WEFT_ERR_HANDLE, weft_op_cancel(b, canceled));
    CHECK_STATUS(await_of(&duo, duo.b, late).status, WEFT_ERR_TIMED_OUT);
    CHECK(now_ns() - start >= 100 * MS);
    CHECK_OK(try_expect(b, both, ones, 2, 0, &pair));
    raise_once(&duo, counter);
    weft_op rest = expect(b, other, 5);
    CHECK_OK(weft_counter_destroy(b, other));
    CHECK_STATUS(await_of(&duo, duo.b, pair).status, WEFT_ERR_CANCELED);
    CHECK_STATUS(await_of(&duo, duo.b, rest).status, WEFT_ERR_CANCELED);
    raise_once(&duo, counter);
    CHECK_EQ(read_counter(b, counter), 2);
    box_quiet(duo.b, 20);
    /* An expect that is outstanding when the endpoint is destroyed. */
    weft_op last = expect(b, counter, 9);
    REFUSED(WEFT_ERR_BUSY, weft_endpoint_destroy(b));
    CHECK_OK(weft_endpoint_shutdown(b, 0));
    CHECK_STATUS(box_await(duo.b, last, patience_ms()).status, WEFT_ERR_CANCELED);
    REFUSED(WEFT_ERR_CLOSED, weft_counter_create(b, &counter));
    duo_close(&duo);
}

/* ---- Generations ---- */

static void late_arrivals_for_a_destroyed_counter_are_discarded(void)
{
    weft_endpoint_config config = test_config();
    config.max_counters = 1;
    struct duo duo = duo_open_with(MIB, &config);
    weft_endpoint *b = duo.b->endpoint;
    weft_counter first = new_counter(b), extra = 0;
    REFUSED(WEFT_ERR_LIMIT, weft_counter_create(b, &extra));
    CHECK(strstr(weft_last_error(), "max_counters") != NULL);
    CHECK_OK(weft_counter_destroy(b, first));
    for (int round = 0; round < 50; round++) {
        weft_counter next = new_counter(b);
        CHECK(next != first);
        struct pages_request args = PAGES_REQUEST_INIT;
        args.options.flags = WEFT_COUNT_PAGES;
        args.local = duo.a_memory;
        args.remote = duo.b_of_a;
        args.pages.page_len = round % 2 ? 1000 : 65536;
        args.pages.page_count = 10;
        args.options.counter = first;
        weft_op id = 0;
        CHECK_OK(submit_write_pages(duo.a->endpoint, &args, &id));
        CHECK_OK(await_of(&duo, duo.a, id).status);
        raise_once(&duo, first);
        raise_once(&duo, next); /* comes after them */
        await_value(&duo, next, 1);
        CHECK_OK(weft_counter_destroy(b, next));
        REFUSED(WEFT_ERR_HANDLE, weft_counter_destroy(b, next));
        first = next;
    }
    duo_close(&duo);
}

/* Destroyed and made again while pages arrive: each increments the counter that it names, or none. */
static void counters_are_reused_under_load(void)
{
    weft_endpoint_config config = test_config();
    config.max_counters = 1;
    struct duo duo = duo_open_with(MIB, &config);
    weft_endpoint *b = duo.b->endpoint;
    struct pages_request args = PAGES_REQUEST_INIT;
    args.options.flags = WEFT_COUNT_PAGES;
    args.local = duo.a_memory;
    args.remote = duo.b_of_a;
    args.pages.page_len = 64;
    args.pages.page_count = 2000;
    for (int round = 0; round < 20; round++) {
        weft_counter aborted = new_counter(b);
        weft_op one = 0, two = 0;
        args.options.counter = aborted;
        CHECK_OK(submit_write_pages(duo.a->endpoint, &args, &one));
        for (int i = 0; i < round; i++)
            pump_both(&duo, 0);
        CHECK_OK(weft_counter_destroy(b, aborted));
        weft_counter next = new_counter(b);
        args.options.counter = next;
        CHECK_OK(submit_write_pages(duo.a->endpoint, &args, &two));
        CHECK_OK(await_of(&duo, duo.a, one).status);
        CHECK_OK(await_of(&duo, duo.a, two).status);
        await_value(&duo, next, args.pages.page_count);
        CHECK_OK(weft_counter_destroy(b, next));
    }
    duo_close(&duo);
}

static void counters_fill_every_table_slot(void)
{
    enum { ALL = 65536, STEP = 4096 };
    struct duo duo = duo_open(MIB);
    weft_endpoint *b = duo.b->endpoint;
    weft_counter *counters = calloc(ALL, sizeof *counters), extra = 0;
    uint64_t *values = calloc(ALL, sizeof *values);
    weft_op all = 0;
    CHECK(counters != NULL && values != NULL);
    for (size_t i = 0; i < ALL; i++) {
        counters[i] = new_counter(b);
        values[i] = 1;
    }
    REFUSED(WEFT_ERR_LIMIT, weft_counter_create(b, &extra));
    CHECK_OK(try_expect(b, counters, values, ALL, 60 * SECOND, &all));
    struct range_request args = range_args(duo.a_memory, duo.b_of_a, 8);
    args.options.flags = WEFT_COUNT_PAGES;
    for (size_t from = 0; from < ALL; from += STEP) {
        for (size_t i = from; i < from + STEP; i++) {
            args.options.counter = counters[i];
            write_now(duo.a, &args);
        }
        for (size_t i = from; i < from + STEP; i++)
            CHECK_OK(box_take(duo.a, WEFT_COMPLETION_WRITE, patience_ms()).status);
    }
    CHECK_OK(await_of(&duo, duo.b, all).status);
    for (size_t i = 0; i < ALL; i++) {
        CHECK_EQ(read_counter(b, counters[i]), 1);
        CHECK_OK(weft_counter_destroy(b, counters[i]));
    }
    for (size_t i = 0; i < ALL; i++)
        REFUSED(WEFT_ERR_HANDLE, weft_counter_read(b, counters[i], values));
    new_counter(b);
    free(counters);
    free(values);
    duo_close(&duo);
}

/* ---- Bad input ---- */

static void foreign_and_stale_counter_ids_are_refused(void)
{
    struct duo duo = duo_open(4096);
    weft_endpoint *a = duo.a->endpoint, *b = duo.b->endpoint;
    weft_counter mine = new_counter(a), theirs = new_counter(b), stale = new_counter(b);
    weft_op id = 0;
    uint64_t value = 0;
    CHECK_OK(weft_counter_destroy(b, stale));
    CHECK_OK(weft_counter_destroy(b, 0));
    const weft_counter bad[] = {0, 1, mine, stale, theirs + 1, theirs ^ UINT64_C(1) << 63, UINT64_MAX};
    for (size_t i = 0; i < COUNT(bad); i++) {
        REFUSED(WEFT_ERR_HANDLE, weft_counter_read(b, bad[i], &value));
        if (bad[i] != 0) /* none: nothing to give back */
            REFUSED(WEFT_ERR_HANDLE, weft_counter_destroy(b, bad[i]));
        REFUSED(WEFT_ERR_HANDLE, try_expect(b, &bad[i], &value, 1, 0, &id));
        const weft_counter list[] = {theirs, bad[i]};
        const uint64_t values[] = {1, 1};
        REFUSED(WEFT_ERR_HANDLE, try_expect(b, list, values, 2, 0, &id));
        CHECK(strstr(weft_last_error(), "counter 1 of the list") != NULL);
    }
    /* The sender knows the counter's owner, not whether the counter exists. */
    struct range_request args = range_args(duo.a_memory, duo.b_of_a, 8);
    const weft_counter foreign[] = {mine, 1, theirs ^ UINT64_C(1) << 63, theirs & ~UINT64_C(0xffffffff)};
    for (size_t i = 0; i < COUNT(foreign); i++) {
        args.options.counter = foreign[i];
        REFUSED(WEFT_ERR_HANDLE, submit_write(a, &args, &id));
        CHECK(strstr(weft_last_error(), "counter") != NULL);
    }
    args.options.counter = stale;
    CHECK_OK(await_of(&duo, duo.a, write_now(duo.a, &args)).status);
    args.options.flags = WEFT_COUNT_PAGES;
    CHECK_OK(await_of(&duo, duo.a, write_now(duo.a, &args)).status);
    args.options.counter = theirs + 5; /* never made */
    CHECK_OK(await_of(&duo, duo.a, write_now(duo.a, &args)).status);
    args.options.counter = theirs;
    CHECK_OK(await_of(&duo, duo.a, write_now(duo.a, &args)).status);
    await_value(&duo, theirs, 1);
    duo_close(&duo);
}

/* ---- Entries of lists, and kept pages ---- */

#define ENTRIES 300

/* Entry i goes to slot ENTRIES - 1 - i and raises counter i % 3; empty entries raise the fourth. */
static void fill_entries(struct duo *duo, const weft_counter *counters, weft_list_entry *entries)
{
    memset(entries, 0, ENTRIES * sizeof *entries);
    for (uint64_t i = 0; i < ENTRIES; i++) {
        bool empty = i % 10 == 9;
        entries[i].local = duo->a_memory;
        entries[i].remote = duo->b_of_a;
        entries[i].local_offset = i * 8192;
        entries[i].remote_offset = (ENTRIES - 1 - i) * 8192;
        entries[i].len = empty ? 0 : i % 3 == 0 ? 1 : i % 3 == 1 ? 4096 : 8192;
        entries[i].counter = counters[empty ? 3 : i % 3];
    }
}

static void entries_of_lists(void)
{
    struct duo duo = duo_open(ENTRIES * 8192);
    weft_endpoint *b = duo.b->endpoint;
    weft_counter counters[4];
    uint64_t values[4] = {0};
    for (int i = 0; i < 4; i++)
        counters[i] = new_counter(b);
    weft_list_entry entries[ENTRIES];
    fill_entries(&duo, counters, entries);
    struct list_request args = LIST_REQUEST_INIT;
    args.entries = entries;
    args.count = ENTRIES;
    weft_prepared *kept = NULL;
    CHECK_OK(prepare_list(duo.a->endpoint, &args, &kept));
    for (uint64_t round = 1; round <= 4; round++) {
        bool read = round == 3, notify = round == 2;
        fill_random(duo.a_bytes, ENTRIES * 8192, round);
        fill_random(duo.b_bytes, ENTRIES * 8192, round + 100);
        weft_op id = 0;
        weft_op_options again = WEFT_OP_OPTIONS_INIT;
        args.options.flags = again.flags = notify ? WEFT_NOTIFY : 0;
        args.options.notify = again.notify = notify ? 5 : 0;
        if (round == 4)
            CHECK_OK(weft_write_prepared(duo.a->endpoint, kept, &again, &id));
        else if (read)
            CHECK_OK(submit_read_list(duo.a->endpoint, &args, &id));
        else
            CHECK_OK(submit_write_list(duo.a->endpoint, &args, &id));
        for (uint64_t i = 0; i < ENTRIES; i++)
            values[i % 10 == 9 ? 3 : i % 3]++;
        weft_op all = 0;
        CHECK_OK(try_expect(b, counters, values, 4, 0, &all));
        CHECK_OK(await_of(&duo, duo.b, all).status);
        /* Once all counters are reached, all bytes are there. */
        for (uint64_t i = 0; i < ENTRIES && !read; i++)
            CHECK(memcmp(duo.b_bytes + entries[i].remote_offset, duo.a_bytes + entries[i].local_offset,
                         entries[i].len) == 0);
        CHECK_OK(await_of(&duo, duo.a, id).status);
        for (int i = 0; i < 4; i++)
            CHECK_EQ(read_counter(b, counters[i]), values[i]);
        if (notify)
            CHECK_EQ(box_take(duo.b, WEFT_COMPLETION_NOTIFICATION, patience_ms()).notify, 5);
    }
    CHECK_OK(weft_prepared_destroy(kept));
    entries[7].counter = new_counter(duo.a->endpoint); /* our own, not the peer's */
    args.options.flags = 0, args.options.notify = 0;
    REFUSED(WEFT_ERR_HANDLE, submit_write_list(duo.a->endpoint, &args, NULL));
    CHECK(strstr(weft_last_error(), "entry 7"));
    duo_close(&duo);
}

static void prepared_pages(void)
{
    struct duo duo = duo_open(4 * MIB);
    weft_endpoint *a = duo.a->endpoint, *b = duo.b->endpoint;
    weft_counter counter = new_counter(b);
    struct pages_request pages = PAGES_REQUEST_INIT;
    pages.local = duo.a_memory;
    pages.remote = duo.b_of_a;
    pages.pages.page_len = 4096;
    pages.pages.page_count = 1000;
    pages.options.flags = WEFT_COUNT_PAGES;
    weft_prepared *kept = NULL;
    CHECK_OK(prepare_pages(a, &pages, &kept));
    weft_op_options args = WEFT_OP_OPTIONS_INIT;
    weft_op id = 0;
    uint64_t value = 0;
    for (int round = 0; round < 4; round++) {
        bool each = round % 2;
        args.flags = each ? WEFT_COUNT_PAGES : 0;
        args.counter = counter;
        value += each ? 1000 : 1;
        fill_random(duo.a_bytes, 4 * MIB, round);
        CHECK_OK(weft_write_prepared(a, kept, &args, &id));
        await_value(&duo, counter, value);
        CHECK(memcmp(duo.a_bytes, duo.b_bytes, 4096 * 1000) == 0);
        CHECK_OK(await_of(&duo, duo.a, id).status);
    }
    CHECK_OK(weft_prepared_destroy(kept));
    duo_close(&duo);
}

#define MEMBERS 4
#define BARRIERS 50

/* Each endpoint raises the counters of all others by a list of empty entries, and waits for its own. */
static void waits_for_all(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    weft_counter mine = new_counter(box->endpoint);
    weft_list_entry entries[MEMBERS - 1];
    memset(entries, 0, sizeof entries);
    size_t count = 0;
    for (int with = 0; with < MEMBERS; with++) {
        if (with == team->rank)
            continue;
        entries[count].peer = join(team, with, box);
        tell(team, with, &mine, sizeof mine);
        hear(team, with, box, &entries[count].counter, sizeof entries[count].counter);
        count++;
    }
    struct list_request args = LIST_REQUEST_INIT;
    args.entries = entries;
    args.count = count;
    for (uint64_t round = 1; round <= BARRIERS; round++) {
        atomic_fetch_add(&team->board->word[0], 1);
        weft_op raised, all;
        uint64_t value = round * (MEMBERS - 1);
        CHECK_OK(try_expect(box->endpoint, &mine, &value, 1, 0, &all));
        CHECK_OK(submit_write_list(box->endpoint, &args, &raised));
        CHECK_OK(box_await(box, all, patience_ms()).status);
        /* No endpoint passes a barrier that another has not reached. */
        CHECK(atomic_load(&team->board->word[0]) >= round * MEMBERS);
        CHECK_OK(box_await(box, raised, patience_ms()).status);
    }
    for (int with = 0; with < MEMBERS; with++)
        if (with != team->rank)
            meet(team, with, box);
    box_close(box);
}

static void counters_form_a_barrier(void)
{
    run_team(MEMBERS, (const role[]){waits_for_all, waits_for_all, waits_for_all, waits_for_all});
}

static void invalid_counter_arguments_are_refused(void)
{
    struct duo duo = duo_open(4096);
    weft_endpoint *a = duo.a->endpoint, *b = duo.b->endpoint;
    weft_counter counter = new_counter(b);
    weft_op id = 0;
    const uint64_t one = 1, largest = (UINT64_C(1) << 48) - 1, larger = largest + 1;
    REFUSED(WEFT_ERR_INVALID, weft_counter_create(b, NULL));
    REFUSED(WEFT_ERR_HANDLE, weft_counter_create(NULL, &counter));
    REFUSED(WEFT_ERR_INVALID, weft_counter_read(b, counter, NULL));
    REFUSED(WEFT_ERR_INVALID, weft_counter_expect(b, NULL, NULL, 1, NULL, &id));
    REFUSED(WEFT_ERR_LIMIT, try_expect(b, &counter, &one, 0, 0, &id));
    REFUSED(WEFT_ERR_LIMIT, try_expect(b, &counter, &one, 65537, 0, &id));
    REFUSED(WEFT_ERR_LIMIT, try_expect(b, &counter, &larger, 1, 0, &id));
    REFUSED(WEFT_ERR_LIMIT, try_expect(b, &counter, &one, 1, 25 * 3600 * SECOND, &id));
    REFUSED(WEFT_ERR_INVALID, try_expect(b, NULL, &one, 1, 0, &id));
    REFUSED(WEFT_ERR_INVALID, try_expect(b, &counter, NULL, 1, 0, &id));
    REFUSED(WEFT_ERR_INVALID, try_expect(b, (void *)((char *)&counter + 1), &one, 1, 0, &id));
    CHECK_OK(try_expect(b, &counter, &largest, 1, 0, NULL));
    struct range_request args = range_args(duo.a_memory, duo.b_of_a, 8);
    args.options.flags = WEFT_COUNT_PAGES;
    REFUSED(WEFT_ERR_INVALID, submit_write(a, &args, &id));
    CHECK(strstr(weft_last_error(), "counter is 0") != NULL);
    args.options.counter = counter;
    REFUSED(WEFT_ERR_UNSUPPORTED, submit_read(a, &args, &id));
    CHECK(strstr(weft_last_error(), "WEFT_COUNT_PAGES") != NULL);
    args.len = GIB + 1;
    REFUSED(WEFT_ERR_LIMIT, submit_write(a, &args, &id));
    struct pages_request pages = PAGES_REQUEST_INIT;
    pages.options.flags = WEFT_COUNT_PAGES;
    pages.local = duo.a_memory;
    pages.remote = duo.b_of_a;
    pages.pages.page_len = 64;
    pages.options.counter = counter;
    CHECK_OK(submit_write_pages(a, &pages, &id)); /* without pages nothing is raised */
    CHECK_OK(await_of(&duo, duo.a, id).status);
    raise_once(&duo, counter);
    CHECK_EQ(read_counter(b, counter), 1);
    CHECK_OK(weft_counter_destroy(b, counter)); /* the largest is canceled */
    CHECK_STATUS(box_take(duo.b, WEFT_COMPLETION_COUNTER, patience_ms()).status, WEFT_ERR_CANCELED);
    duo_close(&duo);
}

static const struct test tests[] = {
    {"counter_rises_once_per_transfer", "any", counter_rises_once_per_transfer},
    {"counter_and_notification_arrive_once", "any", counter_and_notification_arrive_once},
    {"pages", "any wide", pages},
    {"pages_over_rails", "any", pages_over_rails},
    {"small_pages", "any", small_pages},
    {"small_pages_are_counted_over_rails", "any", small_pages_are_counted_over_rails},
    {"separate_small_pages_are_counted", "any", separate_small_pages_are_counted},
    {"tiny_pages_are_counted", "any", tiny_pages_are_counted},
    {"adjacent_tiny_pages_are_counted", "any", adjacent_tiny_pages_are_counted},
    {"pages_of_odd_size_are_counted", "any", pages_of_odd_size_are_counted},
    {"pages_of_odd_size_are_counted_over_rails", "any", pages_of_odd_size_are_counted_over_rails},
    {"adjacent_pages_of_odd_size_are_counted", "any", adjacent_pages_of_odd_size_are_counted},
    {"few_pages", "any", few_pages},
    {"large_pages", "any", large_pages},
    {"one_huge_page_is_counted", "any", one_huge_page_is_counted},
    {"pages_with_manual_progress", "any", pages_with_manual_progress},
    {"pages_are_counted_among_other_traffic", "any", pages_are_counted_among_other_traffic},
    {"increments_before_and_after_an_expect_count", "any", increments_before_and_after_an_expect_count},
    {"many_counters_rise_at_once", "any", many_counters_rise_at_once},
    {"many_expectations_wait_for_one_counter", "once", many_expectations_wait_for_one_counter},
    {"counter_races_lose_no_arrival", "once", counter_races_lose_no_arrival},
    {"counter_expectation_ends_early", "any", counter_expectation_ends_early},
    {"late_arrivals_for_a_destroyed_counter_are_discarded", "any", late_arrivals_for_a_destroyed_counter_are_discarded},
    {"counters_are_reused_under_load", "once", counters_are_reused_under_load},
    {"counters_fill_every_table_slot", "any", counters_fill_every_table_slot},
    {"foreign_and_stale_counter_ids_are_refused", "once", foreign_and_stale_counter_ids_are_refused},
    {"entries_of_lists", "any", entries_of_lists},
    {"prepared_pages", "any", prepared_pages},
    {"counters_form_a_barrier", "any", counters_form_a_barrier},
    {"invalid_counter_arguments_are_refused", "once", invalid_counter_arguments_are_refused},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
