/* Faults of simulated rails from a table, in virtual time: the ledger judges which operations may fail. */
#include "engine.h"

static const char *const modes[] = {"tcp", "verbs"};
#define MODES COUNT(modes)

/* Two hosts with this many rails, whose ports are consecutive; fault times in us since the world's beginning. No
   operation may fail. */
static struct plan scene(uint32_t k, int rails, uint64_t length_ms, const char *faults, ...) __attribute__((format(printf, 4, 5)));

static struct plan scene(uint32_t k, int rails, uint64_t length_ms, const char *faults, ...)
{
    static uint64_t scenes;
    struct plan plan = {.seed = ++scenes, .world = VIRTUAL, .hosts = 2, .rails = rails, .spared = true, .manual = true,
                        .layer = 8 * KIB, .slots = 16, .most = 12, .operations = OPERATIONS_MAX, .rate = 400, .rest_ms = 1,
                        .length_ns = length_ms * MS};
    va_list args;
    snprintf(plan.fabric, sizeof plan.fabric, "sim:like=%s:rails=%d:gbps=10:delay_us=20:clock=virtual:seed=%" PRIu64 ":world=f%" PRIu64,
             modes[k % MODES], rails, plan.seed, plan.seed);
    va_start(args, faults);
    vsnprintf(plan.sim_faults, sizeof plan.sim_faults, faults, args);
    va_end(args);
    return plan;
}

/* How many operations ended with this status. */
static uint32_t ended(weft_status status)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < book_operations(); i++)
        for (int h = 0; h < HOSTS; h++)
            count += book->operations[i].accepted && book->operations[i].part[h].done && book->operations[i].part[h].status == status;
    return count;
}

static void must_be_well(const struct plan *plan)
{
    bool well = world_close(), played = ended(WEFT_OK) > 10;
    if (played && well)
        return;
    printf("%s, faults %s: %s\n", plan->fabric, plan->sim_faults, played ? "as above" : "next to nothing was played");
    fflush(NULL);
    _exit(1);
}

static void play_all(const struct plan *plan)
{
    world_open(plan);
    world_play(plan->length_ns);
    must_be_well(plan);
}

/* ---- Others take over ---- */

static uint64_t bytes_over(uint32_t rail)
{
    weft_rail_statistics statistics = WEFT_RAIL_STATISTICS_INIT;
    CHECK_OK(weft_rail_info(parties[0].endpoint, rail, NULL, &statistics));
    return statistics.bytes_written;
}

/* For any rail, end and direction. */
static void rails_take_over_and_the_failed_one_comes_back(void)
{
    static const char *const whose[] = {"rail%u down", "port%u down", "port%u down:tx", "port%u down:rx"};
    for (uint32_t k = 0; k < MODES * COUNT(whose) * 3; k++) {
        char who[32];
        uint32_t rail = k / MODES / COUNT(whose);
        snprintf(who, sizeof who, whose[k / MODES % COUNT(whose)], rail);
        struct plan plan = scene(k, 3, 3200, "%u %s; 1200000 * up", 60000 + 137 * k, who);
        world_open(&plan);
        world_play(3 * SECOND);
        for (int i = 0; i < 2; i++)
            for (uint32_t r = 0; r < 3; r++)
                if ((parties[i].rail_downs[r] > 0) != (r == rail) || parties[i].rail_down[r])
                    finding(&book->odd, "host %d: rail %u went down %u times", i, r, parties[i].rail_downs[r]);
        uint64_t before = bytes_over(rail);
        world_play(200 * MS);
        if (bytes_over(rail) == before)
            finding(&book->odd, "rail %u is not used again", rail);
        must_be_well(&plan);
    }
}

/* Whether what an event names happened within 100 ms of a time of the world. */
static void must_be_soon(uint64_t at_ns, uint64_t fault_ms, const char *what)
{
    uint64_t began_ns = SECOND; /* virtual time begins there */
    if (at_ns - began_ns - fault_ms * MS > 100 * MS)
        finding(&book->odd, "%s %" PRId64 " ms after the fault", what, (int64_t)(at_ns - began_ns) / (int64_t)MS - (int64_t)fault_ms);
}

/* A port of one side loses its link, or the device goes, and the kernel reports it: lanes over it are left before they
   stall, and return when the kernel reports the link, not after a pause. */
static void rails_follow_what_the_kernel_reports(void)
{
    enum { DOWN_MS = 400, UP_MS = 1540 }; /* in a pause between attempts */
    static const struct {
        const char *fault, *link;
        int error;
    } cases[] = {{"unplugged", "down", ENETDOWN}, {"removed", "removed", ENODEV}};
    for (uint32_t k = 0; k < MODES * COUNT(cases) * 4; k++) {
        uint32_t which = k / MODES % COUNT(cases), port = k / MODES / COUNT(cases), host = port / 2, rail = port % 2;
        struct plan plan = scene(k, 2, 2500, "%u000 port%u %s; %u000 port%u plugged", DOWN_MS, port, cases[which].fault, UP_MS, port);
        weft_rail_statistics statistics = WEFT_RAIL_STATISTICS_INIT;
        world_open(&plan);
        world_play(SECOND);
        CHECK_OK(weft_rail_info(parties[host].endpoint, rail, NULL, &statistics));
        if (strcmp(statistics.link, cases[which].link) != 0 || statistics.up || statistics.lanes)
            finding(&book->odd, "rail %u: its link is %s, with %u lanes", rail, statistics.link, statistics.lanes);
        if (parties[host].rail_moves[rail][1].error != cases[which].error)
            finding(&book->odd, "rail %u: went down with error %d", rail, parties[host].rail_moves[rail][1].error);
        must_be_soon(parties[host].rail_moves[rail][1].at_ns, DOWN_MS, "RAIL_DOWN");
        world_play(1500 * MS);
        if (which == 0)
            must_be_soon(parties[host].rail_moves[rail][0].at_ns, UP_MS, "RAIL_UP");
        must_be_well(&plan);
    }
}

static void flapping_rail_loses_nothing(void)
{
    for (uint32_t k = 0; k < 12; k++) {
        struct plan plan = scene(k, 2, 2500, " ");
        size_t len = 0;
        for (uint32_t i = 0, at = 60000; i < 20; i++, at += 7000 * (k + 1))
            len += (size_t)snprintf(plan.sim_faults + len, sizeof plan.sim_faults - len, "%s%u rail1 %s", i ? "; " : "", at, i % 2 ? "up" : "down");
        play_all(&plan);
    }
}

static void play_each(const char *const *faults, uint32_t count, int rails, uint64_t length_ms, bool spared, uint32_t kinds)
{
    for (uint32_t k = 0; k < MODES * count; k++) {
        struct plan plan = scene(k, rails, length_ms, "%s", faults[k / MODES]);
        plan.spared = spared;
        plan.kinds = kinds;
        play_all(&plan);
    }
}

static void one_rail_of_four_carries_everything(void)
{
    static const char *const faults[] = {
        "80000 rail0 down; 80000 rail2 down",
        "80000 rail0 down; 80000 rail1 down; 80000 rail2 down; 900000 * up",
        "80000 rail3 down; 90000 rail2 down; 300000 rail0 down; 1500000 * up",
        "80000 port0 down; 80000 port5 down:tx; 80000 port2 down:rx; 1000000 * up",
        "80000 rail1 kill; 85000 rail2 kill; 90000 rail3 kill",
        "80000 rail1 error=1; 85000 port2 error=3; 90000 rail3 error=2",
    };
    play_each(faults, COUNT(faults), 4, 2500, true, 0);
}

/* Without any rail, everything ends by its deadline; or continues, if a rail returns earlier. */
static void operations_end_without_any_rail(void)
{
    static const char *const faults[] = {"60000 * down", "60000 * down; 250000 * up", "60000 * down; 1500000 * up",
                                         "60000 rail0 down; 300000 rail1 down; 500000 * up", "60000 rail0 kill; 70000 rail1 kill",
                                         "60000 port0 down; 60000 port3 down; 2000000 * up"};
    play_each(faults, COUNT(faults), 2, 2000, false, 0);
}

/* A rail that carries only messages. */
static void messages_continue_over_another_rail(void)
{
    static const char *const faults[] = {"60000 rail0 down; 1500000 rail0 up", "60000 port0 down:tx", "60000 port0 down:rx",
                                         "60000 port2 down:tx; 700000 port2 up; 1100000 port1 down", "60000 port2 kill"};
    play_each(faults, COUNT(faults), 2, 2000, true, 1u << SEND);
}

/* A second rail fails at any time during the first one's reset; or each side fails one. */
static void rails_fail_while_others_are_reset(void)
{
    static const char *const first[] = {"rail0 down", "port0 down:tx", "port0 error=1"};
    static const char *const second[] = {"rail1 down", "port4 down:tx", "port4 error=1"};
    for (uint32_t k = 0; k < 60; k++) {
        uint32_t which = k % COUNT(first), at = 60000 + k / 6 * (which == 2 ? 30 : 15000);
        struct plan plan = scene(k / 3, 3, 1000, "60000 %s; %u %s; 1500000 * up", first[which], at, second[which]);
        play_all(&plan);
    }
}

/* The target refills its pages at the notification: a write that still waited for the link never lands, not even when
 * the link returns. Bytes move in one direction: the target learns of the failure only from its peer. */
static void expired_writes_never_land_when_the_link_returns(void)
{
    for (uint32_t k = 0; k < 12; k++) {
        struct plan plan = scene(k, 3, 450, "%u port%u down; 1000000 * up", 60000 + 31 * k, k / 2 % 6);
        plan.layer = 32 * KIB;
        plan.kinds = 1u << PAGES;
        plan.flags = WEFT_NOTIFY;
        plan.only = 1 + k / 2 % 2;
        play_all(&plan);
    }
}

/* Pages that count individually: done with the exact count, or reported as lost. */
static void counted_pages_are_exact_or_lost(void)
{
    uint32_t lost = 0;
    for (uint32_t k = 0; k < 12; k++) {
        struct plan plan = scene(k, 3, 1400, "%u port%u down%s; 1200000 * up", 60000 + 53 * k, k / 2 % 6, k % 4 < 2 ? ":rx" : "");
        plan.kinds = k % 3 ? 1u << PAGES : 1u << KEPT;
        plan.flags = WEFT_COUNT_PAGES;
        play_all(&plan);
        lost += ended(WEFT_ERR_RAIL_LOST);
    }
    CHECK(lost > 0);
}

/* ---- A peer that one rail reaches: stuck operations are reset, and continue over a new connection ---- */

/* The link is down for 2 s, at either end or in either direction. Operations that expire meanwhile are reset; nothing
   else fails. */
static void expired_operation_fails_no_other(void)
{
    static const char *const whose[] = {"*", "port0", "port1", "port0"}, *const ways[] = {"", "", ":tx", ":tx"};
    uint32_t expired = 0;
    for (uint32_t k = 0; k < MODES * COUNT(whose) * 4; k++) {
        uint32_t which = k / MODES % COUNT(whose);
        struct plan plan = scene(k, 1, 3500, "%u %s down%s; 2060000 * up", 60000 + 137 * k, whose[which], ways[which]);
        play_all(&plan);
        expired += ended(WEFT_ERR_TIMED_OUT);
    }
    CHECK(expired > MODES * COUNT(whose));
}

/* An operation fails for no reason: everything in flight on the connection is repeated. */
static void failed_connection_is_made_again(void)
{
    for (uint32_t k = 0; k < MODES * 10; k++) {
        const char *first = k / 2 % 2 ? "* error=1" : "port1 error=1", *second = k / 2 % 2 ? "port0 error=1" : "port1 error=2";
        struct plan plan = scene(k, 1, 1500, "%u %s; %u %s", 60000 + 137 * k, first, 60300 + k / 4 * 40000, second);
        play_all(&plan);
    }
}

/* Several rails are all down for a while, whichever returns first. */
static void operations_survive_an_outage_of_all_rails(void)
{
    static const char *const faults[] = {"60000 * down; 900000 rail1 up; 1300000 * up", "60000 * down; 900000 rail0 up; 2300000 * up",
                                         "60000 rail0 down; 260000 rail1 down; 900000 rail0 up; 1000000 * up",
                                         "60000 * error=1", "60000 rail1 error=1; 60100 rail0 error=1; 160000 * error=2"};
    play_each(faults, COUNT(faults), 2, 3500, true, 0);
}

const struct test scenarios[] = {
    {"rails_take_over_and_the_failed_one_comes_back", "once", rails_take_over_and_the_failed_one_comes_back},
    {"rails_follow_what_the_kernel_reports", "once", rails_follow_what_the_kernel_reports},
    {"flapping_rail_loses_nothing", "once", flapping_rail_loses_nothing},
    {"one_rail_of_four_carries_everything", "once", one_rail_of_four_carries_everything},
    {"rails_fail_while_others_are_reset", "once", rails_fail_while_others_are_reset},
    {"operations_end_without_any_rail", "once", operations_end_without_any_rail},
    {"messages_continue_over_another_rail", "once", messages_continue_over_another_rail},
    {"expired_writes_never_land_when_the_link_returns", "once", expired_writes_never_land_when_the_link_returns},
    {"counted_pages_are_exact_or_lost", "once", counted_pages_are_exact_or_lost},
    {"expired_operation_fails_no_other", "once", expired_operation_fails_no_other},
    {"failed_connection_is_made_again", "once", failed_connection_is_made_again},
    {"operations_survive_an_outage_of_all_rails", "once", operations_survive_an_outage_of_all_rails},
    {NULL, NULL, NULL},
};
