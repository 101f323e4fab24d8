/* A peer that one rail reaches: what is stuck there is cut off, the peer stays, and all goes on over a
 * new connection. */
#include "ledger.h"

static const char *const modes[] = {"tcp", "verbs"};

static struct ledger *world_of(const char *mode, int rails, const char *faults)
{
    static char name[128];
    static int world;
    snprintf(name, sizeof name, "sim:like=%s:rails=%d:gbps=10:delay_us=20:clock=virtual:world=r%d", mode, rails,
             world++);
    CHECK_OK(weft_log_set(WEFT_LOG_ERROR, NULL, NULL));
    return ledger_open(name, faults, (uint64_t)world);
}

/* All kinds both ways for so long, but pages that count one by one: these may be lost. */
static void all_kinds(struct ledger *ledger, uint64_t until_ms, uint32_t most)
{
    uint64_t next = 0;
    while (elapsed(ledger) < until_ms * MS) {
        if (ledger->open < most && elapsed(ledger) >= next) {
            struct operation op = any_operation(ledger, (int)draw(ledger, 2));
            op.flags &= ~(uint32_t)WEFT_COUNT_PAGES;
            submit(ledger, op);
            if (draw(ledger, 4) == 0)
                send_message(ledger, (int)draw(ledger, 2), 20 * SECOND);
            if (draw(ledger, 4) == 0)
                add_one(ledger, (int)draw(ledger, 2), 20 * SECOND);
            next = elapsed(ledger) + draw(ledger, 3000) * 1000;
        }
        turn(ledger, 100 * 1000);
    }
}

#define SHORT (30 * MS)

/* One that may not have the time. */
static void too_short(struct ledger *ledger, int side, bool read)
{
    struct operation op = {.side = side, .read = read, .page = 64 * KIB, .count = 1, .timeout_ns = SHORT};
    CHECK(submit(ledger, op));
}

/* How many of these expired; nothing else may have failed. */
static uint64_t expired(struct ledger *ledger)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < ledger->count; i++) {
        const struct operation *op = &ledger->operations[i];
        count += op->timeout_ns == SHORT && op->status == WEFT_ERR_TIMED_OUT;
    }
    if (ledger->errors != count)
        LEDGER_FAIL(ledger, "%" PRIu64 " errors, the last: %s", ledger->errors, weft_status_name(ledger->last_error));
    return count;
}

static void must_stay(struct ledger *ledger)
{
    settle(ledger, 3 * SECOND);
    LEDGER_CHECK(ledger, !ledger->side[0].down && !ledger->side[1].down);
    LEDGER_CHECK(ledger, ledger->count > 20);
}

/* The link is away for 2 s, whichever end or way of it. What expires meanwhile is cut off, at one side or at both,
 * once or again and again; nothing else fails. */
static void what_expires_fails_no_other(void)
{
    const char *faults[] = {"%u * down; %u * up", "%u port0 down; %u * up", "%u port1 down:tx; %u * up",
                            "%u port0 down:tx; %u * up"};
    uint64_t all = 0;
    for (uint32_t k = 0; k < COUNT(modes) * COUNT(faults) * 4; k++) {
        char plan[128];
        uint32_t how = k / COUNT(modes) / COUNT(faults), count = 0;
        snprintf(plan, sizeof plan, faults[k / COUNT(modes) % COUNT(faults)], 60000 + 137 * k, 2060000);
        struct ledger *ledger = world_of(modes[k % COUNT(modes)], 1, plan);
        all_kinds(ledger, 59, 12);
        for (uint64_t at = 70; at < (how == 0 ? 80 : 1800); at += how == 1 ? 300 : 1000) {
            all_kinds(ledger, at, 12);
            for (int side = 0; side < (how == 2 ? 1 : 2); side++)
                too_short(ledger, side, how == 3 || count++ % 2);
        }
        all_kinds(ledger, 3500, 12);
        must_stay(ledger);
        all += expired(ledger);
        ledger_close(ledger);
    }
    CHECK(all > COUNT(modes) * COUNT(faults));
}

/* An operation fails for no reason: what the connection had under way is done again. */
static void a_connection_that_fails_is_made_anew(void)
{
    for (uint32_t k = 0; k < COUNT(modes) * 10; k++) {
        char plan[160];
        const char *format = k / 2 % 2 ? "%u * error=1; %u port0 error=1" : "%u port1 error=1; %u port1 error=2";
        snprintf(plan, sizeof plan, format, 60000 + 137 * k, 60300 + k / 4 * 40000);
        struct ledger *ledger = world_of(modes[k % COUNT(modes)], 1, plan);
        all_kinds(ledger, 1500, 16);
        must_stay(ledger);
        expired(ledger);
        ledger_close(ledger);
    }
}

/* Of several rails none is left for a while: whichever comes back first. */
static void all_rails_may_be_away(void)
{
    const char *plans[] = {"60000 * down; 900000 rail1 up; 1300000 * up", "60000 * down; 900000 rail0 up; 2300000 * up",
                           "60000 rail0 down; 260000 rail1 down; 900000 rail0 up; 1000000 * up",
                           "60000 * error=1", "60000 rail1 error=1; 60100 rail0 error=1; 160000 * error=2"};
    for (uint32_t k = 0; k < COUNT(modes) * COUNT(plans); k++) {
        struct ledger *ledger = world_of(modes[k % COUNT(modes)], 2, plans[k / COUNT(modes)]);
        all_kinds(ledger, 300, 12);
        for (int side = 0; side < 2; side++)
            for (int i = 0; k / COUNT(modes) < 3 && i < 4; i++)
                too_short(ledger, side, i % 2);
        all_kinds(ledger, 3500, 12);
        must_stay(ledger);
        expired(ledger);
        ledger_close(ledger);
    }
}

/* ---- Two processes ---- */

#define ROUNDS 6
#define WORDS 160
#define PART (4 * KIB)
#define LONG (4 * MIB)
#define ALL (ROUNDS * WORDS)
#define SIZE (ALL * PART + LONG)

static struct box *box_of_one_rail(void)
{
    weft_endpoint_config config = test_config();
    config.rail_count = 1;
    return box_of(open_with(&config));
}

/* The peer hears of each write by a notification, or by a counter alone. */
static bool by_counter;

/* The peer is stopped in the middle of writes that it is to hear of, some of them all posted; what expires then is
 * cut off, and takes nothing along. */
static void stops_in_the_middle(struct team *team)
{
    weft_counter counter = 0;
    struct box *box = box_of_one_rail();
    weft_peer peer = join(team, 1, box);
    uint8_t *bytes = map_bytes(SIZE);
    fill_random(bytes, SIZE, 7);
    weft_memory *memory = register_one(box->endpoint, bytes, SIZE);
    weft_remote_memory *theirs = take_memory(team, 1, box, peer);
    if (by_counter)
        hear(team, 1, box, &counter, sizeof counter);
    static weft_transfer ids[ALL];
    weft_transfer late = 0;
    judged_from();
    for (uint64_t i = 0; i < ALL; i++) {
        weft_range_args args = range_args(memory, theirs, PART);
        args.local_offset = args.remote_offset = i * PART;
        args.flags = (by_counter ? 0 : WEFT_NOTIFY) | WEFT_CLASS_LATENCY; /* goes past what fills the line */
        args.notify = by_counter ? 0 : i + 1;
        args.counter = counter;
        args.timeout_ns = 2 * patience_ms() * MS;
        CHECK_OK(weft_write(box->endpoint, &args, &ids[i]));
        if (i % WORDS == WORDS / 4) {
            stop_process(pid_of(team, 1));
            args = range_args(memory, theirs, LONG);
            args.local_offset = args.remote_offset = ALL * PART;
            args.timeout_ns = 50 * MS;
            CHECK_OK((i / WORDS % 2 ? weft_read : weft_write)(box->endpoint, &args, &late));
            sleep_ms(10);
        }
        if (i % WORDS == WORDS / 2) {
            weft_completion c = box_await(box, late, patience_ms());
            CHECK_STATUS(c.status, WEFT_ERR_TIMED_OUT);
            CHECK_WITHIN(c.submit_ns + 50 * MS, c.done_ns, LATE_MOST);
        }
        if (i % WORDS == WORDS * 3 / 4) {
            sleep_ms(60 * (i / WORDS));
            CHECK(kill(pid_of(team, 1), SIGCONT) == 0);
        }
        for (uint64_t k = i + 1 - WORDS; i % WORDS == WORDS - 1 && k <= i; k++)
            CHECK_OK(box_await(box, ids[k], patience_ms()).status);
    }
    meet(team, 1, box);
    weft_completion down;
    CHECK(!box_try(box, WEFT_COMPLETION_PEER_DOWN, &down));
    meet(team, 1, box);
    box_close(box);
}

static void hears_all_once(struct team *team)
{
    struct box *box = box_of_one_rail();
    join(team, 0, box);
    uint8_t *bytes = map_bytes(SIZE), *want = map_bytes(SIZE);
    static uint8_t heard[ALL];
    fill_random(want, SIZE, 7);
    give_memory(team, 0, register_one(box->endpoint, bytes, SIZE));
    for (int i = 0; i < ALL; i++) {
        weft_completion c = box_take(box, WEFT_COMPLETION_NOTIFICATION, patience_ms());
        CHECK(c.value >= 1 && c.value <= ALL);
        if (heard[c.value - 1]++)
            FAIL("notification %" PRIu64 " came twice", c.value);
        size_t at = (c.value - 1) * PART;
        if (memcmp(bytes + at, want + at, PART) != 0)
            FAIL("the bytes of %" PRIu64 " are wrong at its notification", c.value);
        memset(bytes + at, 0x5a, PART); /* none of it may come any more */
    }
    meet(team, 0, box);
    box_pump(box, 300);
    weft_completion more;
    CHECK(!box_try(box, WEFT_COMPLETION_NOTIFICATION, &more) && !box_try(box, WEFT_COMPLETION_PEER_DOWN, &more));
    for (size_t i = 0; i < ALL * PART; i++)
        if (bytes[i] != 0x5a)
            FAIL("byte %zu was written after its notification", i);
    meet(team, 0, box);
    box_close(box);
}

static void a_peer_that_is_stopped_hears_all_once(void)
{
    run_pair(stops_in_the_middle, hears_all_once);
}

static void counts_all_once(struct team *team)
{
    struct box *box = box_of_one_rail();
    uint64_t value = 0, all = ALL;
    weft_counter counter;
    weft_expect_args args = WEFT_EXPECT_ARGS_INIT;
    join(team, 0, box);
    uint8_t *bytes = map_bytes(SIZE), *want = map_bytes(SIZE);
    fill_random(want, SIZE, 7);
    give_memory(team, 0, register_one(box->endpoint, bytes, SIZE));
    CHECK_OK(weft_counter_create(box->endpoint, &counter));
    tell(team, 0, &counter, sizeof counter);
    args.counters = &counter;
    args.values = &all;
    args.count = 1;
    args.timeout_ns = 3 * patience_ms() * MS;
    CHECK_OK(weft_counter_expect(box->endpoint, &args, NULL));
    CHECK_OK(box_take(box, WEFT_COMPLETION_COUNTER, 2 * patience_ms()).status);
    CHECK(memcmp(bytes, want, ALL * PART) == 0);
    meet(team, 0, box);
    box_pump(box, 300);
    CHECK_OK(weft_counter_read(box->endpoint, counter, &value));
    CHECK_EQ(value, ALL);
    meet(team, 0, box);
    box_close(box);
}

static void a_peer_that_is_stopped_counts_all_once(void)
{
    by_counter = true;
    run_pair(stops_in_the_middle, counts_all_once);
}

static const struct test tests[] = {
    {"a_peer_that_is_stopped_hears_all_once", "tcp,host timed", a_peer_that_is_stopped_hears_all_once},
    {"a_peer_that_is_stopped_counts_all_once", "tcp,host timed", a_peer_that_is_stopped_counts_all_once},
    {"what_expires_fails_no_other", "once", what_expires_fails_no_other},
    {"a_connection_that_fails_is_made_anew", "once", a_connection_that_fails_is_made_anew},
    {"all_rails_may_be_away", "once", all_rails_may_be_away},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
