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

/* One that does not have the time. */
static void too_short(struct ledger *ledger, int side, bool read)
{
    struct operation op = {.side = side, .read = read, .page = 64 * KIB, .count = 1, .timeout_ns = 30 * MS};
    CHECK(submit(ledger, op));
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
    for (uint32_t k = 0; k < COUNT(modes) * COUNT(faults) * 4; k++) {
        char plan[128];
        uint32_t how = k / COUNT(modes) / COUNT(faults), expired = 0;
        snprintf(plan, sizeof plan, faults[k / COUNT(modes) % COUNT(faults)], 60000 + 137 * k, 2060000);
        struct ledger *ledger = world_of(modes[k % COUNT(modes)], 1, plan);
        all_kinds(ledger, 59, 12);
        for (uint64_t at = 70; at < (how == 0 ? 80 : 1800); at += how == 1 ? 300 : 1000) {
            all_kinds(ledger, at, 12);
            for (int side = 0; side < (how == 2 ? 1 : 2); side++, expired++)
                too_short(ledger, side, how == 3 || expired % 2);
        }
        all_kinds(ledger, 3500, 12);
        must_stay(ledger);
        if (ledger->errors != expired || (expired > 0 && ledger->last_error != WEFT_ERR_TIMED_OUT))
            LEDGER_FAIL(ledger, "%" PRIu64 " errors of which %u were to be, the last: %s", ledger->errors, expired,
                        weft_status_name(ledger->last_error));
        ledger_close(ledger);
    }
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
        if (ledger->errors > 0)
            LEDGER_FAIL(ledger, "%" PRIu64 " errors, the last: %s", ledger->errors,
                        weft_status_name(ledger->last_error));
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
        uint32_t expired = 0;
        all_kinds(ledger, 300, 12);
        for (int side = 0; side < 2; side++)
            for (int i = 0; k / COUNT(modes) < 3 && i < 4; i++, expired++)
                too_short(ledger, side, i % 2);
        all_kinds(ledger, 3500, 12);
        must_stay(ledger);
        /* The peer may have heard of some, and nobody can say of which. */
        if (ledger->errors > expired + 16 || (expired == 0 && ledger->errors > 0 && ledger->last_error != WEFT_ERR_RAIL_LOST))
            LEDGER_FAIL(ledger, "%" PRIu64 " errors, the last: %s", ledger->errors, weft_status_name(ledger->last_error));
        ledger_close(ledger);
    }
}

static const struct test tests[] = {
    {"what_expires_fails_no_other", "once", what_expires_fails_no_other},
    {"a_connection_that_fails_is_made_anew", "once", a_connection_that_fails_is_made_anew},
    {"all_rails_may_be_away", "once", all_rails_may_be_away},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
