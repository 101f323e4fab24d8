/* Rails that fail and come back: others do their work, and nobody hears of it. */
#include "ledger.h"

static const char *const modes[] = {"tcp", "verbs"};

/* Two endpoints with so many rails each, whose ports follow each other; faults in us. */
static struct ledger *world_of(const char *mode, int rails, const char *faults)
{
    static char name[128];
    static int world;
    snprintf(name, sizeof name, "sim:like=%s:rails=%d:gbps=10:delay_us=20:clock=virtual:world=f%d", mode, rails,
             world++);
    CHECK_OK(weft_log_set(WEFT_LOG_ERROR, NULL, NULL));
    return ledger_open(name, faults, (uint64_t)world);
}

static void pass(struct ledger *ledger, uint64_t ns)
{
    for (uint64_t until = elapsed(ledger) + ns; elapsed(ledger) < until;)
        turn(ledger, ns);
}

/* Operations of all kinds (but pages that count one by one), messages and additions both ways, for so long; up to `most` at once. */
static void all_kinds(struct ledger *ledger, uint64_t until_ms, uint32_t most, uint64_t timeout_ns)
{
    uint64_t next = 0;
    while (elapsed(ledger) < until_ms * MS) {
        if (ledger->open < most && elapsed(ledger) >= next) {
            struct operation op = any_operation(ledger, (int)draw(ledger, 2));
            op.timeout_ns = timeout_ns;
            op.flags &= ~(uint32_t)WEFT_COUNT_PAGES; /* these may be lost */
            submit(ledger, op);
            if (draw(ledger, 8) == 0)
                send_message(ledger, (int)draw(ledger, 2), timeout_ns);
            if (draw(ledger, 8) == 0)
                add_one(ledger, (int)draw(ledger, 2), timeout_ns);
            next = elapsed(ledger) + draw(ledger, 1000) * 1000;
        }
        turn(ledger, 100 * 1000);
    }
}

static void no_errors(struct ledger *ledger)
{
    settle(ledger, 3 * SECOND);
    if (ledger->errors > 0)
        LEDGER_FAIL(ledger, "%" PRIu64 " errors, the last: %s", ledger->errors,
                    weft_status_name(ledger->last_error));
    LEDGER_CHECK(ledger, !ledger->side[0].down && !ledger->side[1].down);
    LEDGER_CHECK(ledger, ledger->count > 20);
}

static uint64_t bytes_over(struct ledger *ledger, int side, uint32_t rail)
{
    weft_rail_statistics statistics = WEFT_RAIL_STATISTICS_INIT;
    CHECK_OK(weft_rail_stats(ledger->side[side].box->endpoint, rail, &statistics));
    return statistics.bytes_written;
}

/* Whichever rail it is, and whichever of its ends and ways. */
static void others_take_over_and_the_rail_comes_back(void)
{
    const char *faults[] = {"%u rail%u down; %u * up", "%u port%u down; %u * up", "%u port%u down:tx; %u * up",
                            "%u port%u down:rx; %u * up"};
    for (uint32_t k = 0; k < COUNT(modes) * COUNT(faults) * 3; k++) {
        char plan[128];
        uint32_t rail = k / COUNT(modes) / COUNT(faults);
        snprintf(plan, sizeof plan, faults[k / COUNT(modes) % COUNT(faults)], 60000 + 137 * k, rail, 1200000);
        struct ledger *ledger = world_of(modes[k % COUNT(modes)], 3, plan);
        all_kinds(ledger, 3000, 16, 10 * SECOND);
        for (int i = 0; i < 2; i++)
            for (uint32_t r = 0; r < 3; r++) {
                LEDGER_CHECK(ledger, (ledger->side[i].rail_downs[r] > 0) == (r == rail));
                LEDGER_CHECK(ledger, ledger->side[i].rail_ups[r] == ledger->side[i].rail_downs[r]);
            }
        uint64_t before = bytes_over(ledger, 0, rail);
        all_kinds(ledger, 3200, 16, 10 * SECOND);
        if (bytes_over(ledger, 0, rail) == before)
            LEDGER_FAIL(ledger, "rail %u is not used again: %u operations, %u open", rail, ledger->count, ledger->open);
        no_errors(ledger);
        ledger_close(ledger);
    }
}

static void a_rail_that_flaps_loses_nothing(void)
{
    for (uint32_t k = 0; k < 12; k++) {
        char plan[1024];
        size_t len = 0;
        for (uint32_t i = 0, at = 60000; i < 20; i++, at += 7000 * (k + 1))
            len += (size_t)snprintf(plan + len, sizeof plan - len, "%s%u rail1 %s", i ? "; " : "", at,
                                    i % 2 ? "up" : "down");
        struct ledger *ledger = world_of(modes[k % COUNT(modes)], 2, plan);
        all_kinds(ledger, 2500, 12, 10 * SECOND);
        no_errors(ledger);
        ledger_close(ledger);
    }
}

static void one_rail_of_four_is_enough(void)
{
    const char *plans[] = {
        "80000 rail0 down; 80000 rail2 down",
        "80000 rail0 down; 80000 rail1 down; 80000 rail2 down; 900000 * up",
        "80000 rail3 down; 90000 rail2 down; 300000 rail0 down; 1500000 * up",
        "80000 port0 down; 80000 port5 down:tx; 80000 port2 down:rx; 1000000 * up",
        "80000 rail1 kill; 85000 rail2 kill; 90000 rail3 kill",
        "80000 rail1 error=1; 85000 port2 error=3; 90000 rail3 error=2",
    };
    for (uint32_t k = 0; k < COUNT(modes) * COUNT(plans); k++) {
        struct ledger *ledger = world_of(modes[k % COUNT(modes)], 4, plans[k / COUNT(modes)]);
        all_kinds(ledger, 2500, 20, 10 * SECOND);
        no_errors(ledger);
        ledger_close(ledger);
    }
}

/* A second rail fails at any time of the first one's fence; or each side fails one. */
static void rails_fail_while_others_are_fenced(void)
{
    for (uint32_t k = 0; k < 60; k++) {
        const char *who[] = {"rail0 down; %u rail1 down", "port0 down:tx; %u port4 down:tx",
                             "port0 error=1; %u port4 error=1"};
        char format[80], plan[128];
        bool errors = k % COUNT(who) == 2;
        snprintf(format, sizeof format, "60000 %s; 1500000 * up", who[k % COUNT(who)]);
        snprintf(plan, sizeof plan, format, 60000 + k / 6 * (errors ? 30 : 15000));
        struct ledger *ledger = world_of(modes[k / 3 % COUNT(modes)], 3, plan);
        all_kinds(ledger, 1000, 16, 10 * SECOND);
        no_errors(ledger);
        ledger_close(ledger);
    }
}

/* Without any rail, everything ends by its deadline; or goes on, if one comes back before. */
static void without_any_rail_everything_ends(void)
{
    const char *plans[] = {"60000 * down", "60000 * down; 250000 * up", "60000 * down; 1500000 * up",
                           "60000 rail0 down; 300000 rail1 down; 500000 * up", "60000 rail0 kill; 70000 rail1 kill",
                           "60000 port0 down; 60000 port3 down; 2000000 * up"};
    for (uint32_t k = 0; k < COUNT(modes) * COUNT(plans); k++) {
        struct ledger *ledger = world_of(modes[k % COUNT(modes)], 2, plans[k / COUNT(modes)]);
        all_kinds(ledger, 2000, 16, 3 * SECOND);
        settle(ledger, 3 * SECOND);
        LEDGER_CHECK(ledger, ledger->count > 10);
        ledger_close(ledger);
    }
}

/* A rail that has nothing to carry but messages. */
static void messages_go_on_over_another_rail(void)
{
    const char *plans[] = {"60000 rail0 down; 1500000 rail0 up", "60000 port0 down:tx", "60000 port0 down:rx",
                           "60000 port2 down:tx; 700000 port2 up; 1100000 port1 down", "60000 port2 kill"};
    for (uint32_t k = 0; k < COUNT(modes) * COUNT(plans); k++) {
        struct ledger *ledger = world_of(modes[k % COUNT(modes)], 2, plans[k / COUNT(modes)]);
        for (int i = 0; i < 400; i++) {
            send_message(ledger, i % 2, 5 * SECOND);
            pass(ledger, 5 * MS);
        }
        settle(ledger, SECOND);
        if (ledger->errors > 0)
            LEDGER_FAIL(ledger, "%" PRIu64 " errors: %s", ledger->errors, weft_status_name(ledger->last_error));
        LEDGER_CHECK(ledger, ledger->side[0].heard == 200 && ledger->side[1].heard == 200);
        ledger_close(ledger);
    }
}

/* The target refills its pages at the notification: what still waited for the link is
 * never written, also when the link comes back. Bytes go one way: the target learns of the
 * failure from its peer alone. (Pages so long are not bundled.) */
static void what_waited_for_the_link_never_lands(void)
{
    for (uint32_t k = 0; k < 12; k++) {
        char plan[64];
        snprintf(plan, sizeof plan, "%u port%u down; 1000000 * up", 60000 + 31 * k, k / 2 % 6);
        struct ledger *ledger = world_of(modes[k % COUNT(modes)], 3, plan);
        while (elapsed(ledger) < 450 * MS) {
            struct operation op = {.side = k / 2 % 2, .kind = PAGES, .notify = true, .page = 32 * KIB,
                                   .count = 4, .factor = 3, .timeout_ns = 10 * SECOND};
            submit(ledger, op);
            pass(ledger, 2 * MS);
        }
        no_errors(ledger);
        ledger_close(ledger);
    }
}

/* Pages that count one by one: done with the exact count, or said to be lost. */
static void counted_pages_are_exact_or_lost(void)
{
    uint64_t lost = 0;
    for (uint32_t k = 0; k < 12; k++) {
        char plan[80];
        snprintf(plan, sizeof plan, "%u port%u down%s; 1200000 * up", 60000 + 53 * k, k / 2 % 6, k % 4 < 2 ? ":rx" : "");
        struct ledger *ledger = world_of(modes[k % COUNT(modes)], 3, plan);
        while (elapsed(ledger) < 1400 * MS) {
            struct operation op = {.side = (int)draw(ledger, 2), .kind = k % 3 ? PAGES : KEPT, .page = 4096, .count = 32,
                                   .factor = 5, .flags = WEFT_COUNT_PAGES, .counter = 1, .timeout_ns = 10 * SECOND};
            if (ledger->open < 8)
                submit(ledger, op);
            pass(ledger, 2 * MS);
        }
        lost += ledger->rail_lost;
        no_errors(ledger);
        ledger_close(ledger);
    }
    CHECK(lost > 0);
}

/* What is planned for the world's next NICs happens: they are there for a moment. */
static void strike(const char *fabric)
{
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    config.fabric = fabric;
    CHECK_OK(weft_endpoint_close(open_with(&config)));
}

/* A worker all of whose rails are down is still handed transfers: it passes them on. */
static void a_worker_without_lanes_fails_nothing(void)
{
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    config.fabric = "sim:like=tcp:rails=2:delay_us=10:world=passes";
    config.workers = 2;
    setenv("WEFT_SIM_FAULTS", "port4+0 rail1 down", 1);
    struct duo duo = duo_open_with(MIB, &config);
    weft_range_args args = range_args(duo.a_memory, duo.b_of_a, 4096);
    weft_completion c;
    strike(config.fabric);
    uint64_t end = now_ns() + patience_ms() * MS;
    while (!box_try(duo.a, WEFT_COMPLETION_RAIL_DOWN, &c)) {
        CHECK(now_ns() < end);
        CHECK_OK(box_await(duo.a, write_now(duo.a, &args), patience_ms()).status);
    }
    for (int i = 0; i < 300; i++)
        CHECK_OK(box_await(duo.a, write_now(duo.a, &args), patience_ms()).status);
    duo_close(&duo);
}

/* A fence waits for what is stuck on a lane that is not known to be dead; the other lane
 * goes on meanwhile. */
static void a_dead_lane_holds_up_no_other(void)
{
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    config.fabric = "sim:like=tcp:rails=2:gbps=1:delay_us=20:world=held";
    setenv("WEFT_SIM_FAULTS", "port4+0 rail1 down", 1);
    struct duo duo = duo_open_with(MIB, &config);
    weft_range_args args = range_args(duo.a_memory, duo.b_of_a, 256 * KIB);
    weft_fence_args fence = WEFT_FENCE_ARGS_INIT;
    weft_completion c;
    int open = 0, small = 0;
    for (int written = 0; written < 100;) { /* something is under way over both */
        for (; open < 16; open++)
            write_now(duo.a, &args);
        box_pump(duo.a, 5);
        for (; box_try(duo.a, WEFT_COMPLETION_WRITE, &c); open--, written++)
            CHECK_OK(c.status);
    }
    for (; open < 16; open++)
        write_now(duo.a, &args);
    strike(config.fabric);
    fence.peer = duo.b_to_a;
    CHECK_OK(weft_peer_fence(duo.b->endpoint, &fence, NULL));
    sleep_ms(20);
    args.len = 4096;
    for (int i = 0; i < 20; i++, open++)
        write_now(duo.a, &args);
    for (uint64_t from = judged_from(); small < 5 && canary_ns(from, now_ns()) < patiently(150 * MS);) {
        box_pump(duo.a, 5);
        for (; box_try(duo.a, WEFT_COMPLETION_WRITE, &c); open--)
            small += c.status == WEFT_OK && c.bytes == 4096;
    }
    CHECK(small >= 5); /* the others may be on the dead one */
    for (; open > 0; open--)
        CHECK_OK(box_take(duo.a, WEFT_COMPLETION_WRITE, patience_ms()).status);
    CHECK_OK(box_take(duo.b, WEFT_COMPLETION_FENCE, patience_ms()).status);
    duo_close(&duo);
}

/* Two endpoints of two rails and two workers, which do as the plan says. */
#define OF_TWO "sim:like=tcp:rails=2:gbps=10:delay_us=20:world=two"

static struct duo duo_of_two(const char *faults)
{
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    config.fabric = OF_TWO;
    config.workers = 2;
    setenv("WEFT_SIM_FAULTS", faults, 1);
    CHECK_OK(weft_log_set(WEFT_LOG_ERROR, NULL, NULL));
    return duo_open_with(MIB, &config);
}

/* Writes until an event has come. */
static void write_until(struct duo *duo, const weft_range_args *args, weft_completion_kind event)
{
    weft_completion c;
    for (uint64_t until = now_ns() + patience_ms() * MS; !box_try(duo->a, event, &c);) {
        CHECK(now_ns() < until);
        CHECK_OK(box_await(duo->a, write_now(duo->a, args), patience_ms()).status);
    }
}

/* Whatever lanes come up meanwhile. */
static void what_waits_for_its_start_waits(void)
{
    struct duo duo = duo_of_two("port4+0 rail1 down; port6+0 rail1 up");
    weft_range_args args = range_args(duo.a_memory, duo.b_of_a, 64 * KIB);
    weft_watch *start;
    uint64_t *word;
    weft_transfer id;
    CHECK_OK(weft_watch_alloc(duo.a->endpoint, &start, &word));
    strike(OF_TWO);
    write_until(&duo, &args, WEFT_COMPLETION_RAIL_DOWN);
    fill_random(duo.a_bytes, MIB, 1);
    args.len = MIB / 2;
    args.local_offset = args.remote_offset = MIB / 2;
    args.start_watch = start;
    args.start_value = 1;
    CHECK_OK(weft_write(duo.a->endpoint, &args, &id));
    args = range_args(duo.a_memory, duo.b_of_a, 64 * KIB);
    strike(OF_TWO);
    write_until(&duo, &args, WEFT_COMPLETION_RAIL_UP);
    sleep_ms(50);
    for (size_t i = MIB / 2; i < MIB; i++)
        CHECK_EQ(duo.b_bytes[i], 0);
    fill_random(duo.a_bytes, MIB, 2);
    atomic_store((_Atomic uint64_t *)word, 1);
    CHECK_OK(box_await(duo.a, id, patience_ms()).status);
    CHECK(memcmp(duo.a_bytes + MIB / 2, duo.b_bytes + MIB / 2, MIB / 2) == 0);
    CHECK_OK(weft_watch_free(start));
    duo_close(&duo);
}

/* By memory, too, that was imported before. */
static void a_lane_of_another_worker_is_used_when_it_returns(void)
{
    struct duo duo = duo_of_two("port3+0 rail1 down; port4+0 rail1 up");
    weft_range_args args = range_args(duo.a_memory, duo.b_of_a, MIB);
    weft_rail_statistics statistics = WEFT_RAIL_STATISTICS_INIT;
    CHECK_OK(box_await(duo.a, write_now(duo.a, &args), patience_ms()).status);
    CHECK_OK(weft_rail_stats(duo.a->endpoint, 1, &statistics));
    CHECK_EQ(statistics.bytes_written, 0);
    strike(OF_TWO);
    for (uint64_t until = now_ns() + patience_ms() * MS; statistics.bytes_written < MIB;) {
        CHECK(now_ns() < until);
        CHECK_OK(box_await(duo.a, write_now(duo.a, &args), patience_ms()).status);
        CHECK_OK(weft_rail_stats(duo.a->endpoint, 1, &statistics));
    }
    duo_close(&duo);
}

static const struct test tests[] = {
    {"what_waits_for_its_start_waits", "once", what_waits_for_its_start_waits},
    {"a_lane_of_another_worker_is_used_when_it_returns", "once", a_lane_of_another_worker_is_used_when_it_returns},
    {"a_dead_lane_holds_up_no_other", "once timed", a_dead_lane_holds_up_no_other},
    {"a_worker_without_lanes_fails_nothing", "once", a_worker_without_lanes_fails_nothing},
    {"others_take_over_and_the_rail_comes_back", "once", others_take_over_and_the_rail_comes_back},
    {"a_rail_that_flaps_loses_nothing", "once", a_rail_that_flaps_loses_nothing},
    {"one_rail_of_four_is_enough", "once", one_rail_of_four_is_enough},
    {"rails_fail_while_others_are_fenced", "once", rails_fail_while_others_are_fenced},
    {"without_any_rail_everything_ends", "once", without_any_rail_everything_ends},
    {"messages_go_on_over_another_rail", "once", messages_go_on_over_another_rail},
    {"what_waited_for_the_link_never_lands", "once", what_waited_for_the_link_never_lands},
    {"counted_pages_are_exact_or_lost", "once", counted_pages_are_exact_or_lost},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
