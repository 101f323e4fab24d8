/* Two hosts and one rail: its link is down for 2 s in the middle of a long transfer. The two stay peers. */
#include "lab.h"

#define RAILS 4 /* of the lab; the endpoints open one */
#define LONG (24 * MIB)
#define AWAY_MS 2000

/* Indexes of the board. */
enum { GO, GONE, BACK };

static bool something_expires;

static struct box *box_on(enum side side)
{
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    lab_enter(side);
    config.fabric = "tcp";
    config.rail_count = 1;
    return box_of(open_with(&config));
}

static void must_be_up(struct box *box)
{
    weft_completion down;
    if (box_try(box, WEFT_COMPLETION_PEER_DOWN, &down))
        FAIL("the peer is lost: %s", weft_status_name(down.status));
}

static void sends(struct team *team)
{
    struct box *box = box_on(LEFT);
    weft_peer peer = join(team, 1, box);
    uint8_t *bytes = map_bytes(LONG + MIB);
    fill_random(bytes, LONG, 1);
    weft_memory *memory = register_one(box->endpoint, bytes, LONG + MIB);
    weft_remote_memory *theirs = take_memory(team, 1, box, peer);
    meet(team, 2, box);
    struct range_request args = range_args(memory, theirs, LONG);
    args.options.flags = WEFT_NOTIFY;
    args.options.notify = 77;
    args.options.timeout_ns = 60 * SECOND;
    weft_op id = write_now(box, &args);
    uint64_t begin = now_ns();
    box_pump(box, 300);
    team->board->word[GO] = 1;
    while (!team->board->word[GONE])
        box_pump(box, 10);
    for (int i = 0; something_expires && i < 3; i++) {
        weft_op late;
        args = range_args(memory, theirs, MIB);
        args.local_offset = args.remote_offset = LONG;
        args.options.timeout_ns = 200 * MS;
        args.options.flags = WEFT_CLASS_LATENCY;
        judged_from();
        CHECK_OK(submit_write(box->endpoint, &args, &late));
        weft_completion c = box_await(box, late, patience_ms());
        CHECK_STATUS(c.status, WEFT_ERR_TIMED_OUT);
        CHECK_WITHIN(c.submit_ns, c.done_ns, 400 * MS);
    }
    weft_completion c = box_await(box, id, patience_ms());
    CHECK_OK(c.status);
    printf("%d MiB took %" PRIu64 " ms, of which the link was down for %d\n", (int)(LONG / MIB),
           (now_ns() - begin) / MS, AWAY_MS);
    CHECK_OK(box_await(box, send_now(box, peer, "and goes on", 11), patience_ms()).status);
    must_be_up(box);
    meet(team, 1, box);
    box_close(box);
}

static void takes(struct team *team)
{
    struct box *box = box_on(RIGHT);
    join(team, 0, box);
    uint8_t *bytes = map_bytes(LONG + MIB);
    give_memory(team, 0, register_one(box->endpoint, bytes, LONG + MIB));
    weft_completion c = box_take(box, WEFT_COMPLETION_NOTIFICATION, patience_ms());
    CHECK_EQ(c.notify, 77);
    int64_t at = differs_random(bytes, LONG, 1);
    if (at >= 0)
        FAIL("byte %" PRId64 " is wrong at the notification", at);
    memset(bytes, 0x5a, LONG);
    c = box_take(box, WEFT_COMPLETION_MESSAGE, patience_ms());
    CHECK_EQ(c.bytes, 11);
    CHECK_OK(weft_message_release(box->endpoint, c.op));
    box_pump(box, 1000);
    for (size_t i = 0; i < LONG; i++)
        if (bytes[i] != 0x5a)
            FAIL("byte %zu was written after the notification", i);
    CHECK(!box_try(box, WEFT_COMPLETION_NOTIFICATION, &c));
    must_be_up(box);
    meet(team, 0, box);
    box_close(box);
}

static void takes_the_link_away(struct team *team)
{
    meet(team, 0, NULL);
    while (!team->board->word[GO])
        sleep_ms(5);
    for (int rail = 0; rail < RAILS; rail++)
        link_down(rail);
    team->board->word[GONE] = 1;
    sleep_ms(AWAY_MS);
    for (int rail = 0; rail < RAILS; rail++)
        link_up(rail);
}

static void run(bool expires)
{
    const role roles[] = {sends, takes, takes_the_link_away};
    something_expires = expires;
    run_team(3, roles);
}

static void only_link_returns(void)
{
    run(false);
}

static void only_link_returns_after_an_operation_expired(void)
{
    run(true);
}

static const struct test tests[] = {
    {"only_link_returns", "lab", only_link_returns},
    {"only_link_returns_after_an_operation_expired", "lab", only_link_returns_after_an_operation_expired},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
