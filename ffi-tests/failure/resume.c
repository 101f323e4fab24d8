/* A peer that one rail reaches: stuck operations are reset, the peer stays up, and everything continues over a new
 * connection. (In virtual time: engine/scenarios.c.) */
#include "harness.h"

#include <sys/socket.h>

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

/* Each write notifies the peer, or only raises a counter. */
static bool by_counter;

/* The peer is stopped in the middle of writes with notifications, some of them completely posted; those that expire
 * then are reset, and fail no others. */
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
    static weft_op ids[ALL];
    weft_op late = 0;
    judged_from();
    for (uint64_t i = 0; i < ALL; i++) {
        struct range_request args = range_args(memory, theirs, PART);
        args.local_offset = args.remote_offset = i * PART;
        args.options.flags = (by_counter ? 0 : WEFT_NOTIFY) | WEFT_CLASS_LATENCY; /* more than fills the line */
        args.options.notify = by_counter ? 0 : i + 1;
        args.options.counter = counter;
        args.options.timeout_ns = 2 * patience_ms() * MS;
        CHECK_OK(submit_write(box->endpoint, &args, &ids[i]));
        if (i % WORDS == WORDS / 4) {
            stop_process(pid_of(team, 1));
            args = range_args(memory, theirs, LONG);
            args.local_offset = args.remote_offset = ALL * PART;
            args.options.timeout_ns = 50 * MS;
            CHECK_OK((i / WORDS % 2 ? submit_read : submit_write)(box->endpoint, &args, &late));
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

static void receives_all_once(struct team *team)
{
    struct box *box = box_of_one_rail();
    join(team, 0, box);
    uint8_t *bytes = map_bytes(SIZE), *want = map_bytes(SIZE);
    static uint8_t heard[ALL];
    fill_random(want, SIZE, 7);
    give_memory(team, 0, register_one(box->endpoint, bytes, SIZE));
    for (int i = 0; i < ALL; i++) {
        weft_completion c = box_take(box, WEFT_COMPLETION_NOTIFICATION, patience_ms());
        CHECK(c.notify >= 1 && c.notify <= ALL);
        if (heard[c.notify - 1]++)
            FAIL("notification %" PRIu64 " came twice", c.notify);
        size_t at = (c.notify - 1) * PART;
        if (memcmp(bytes + at, want + at, PART) != 0)
            FAIL("the bytes of %" PRIu64 " are wrong at its notification", c.notify);
        memset(bytes + at, 0x5a, PART); /* none of it may arrive any longer */
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

static void stopped_peer_receives_each_notification_once(void)
{
    run_pair(stops_in_the_middle, receives_all_once);
}

static void counts_all_once(struct team *team)
{
    struct box *box = box_of_one_rail();
    uint64_t value = 0, all = ALL;
    weft_counter counter;
    struct expect_request args = EXPECT_REQUEST_INIT;
    join(team, 0, box);
    uint8_t *bytes = map_bytes(SIZE), *want = map_bytes(SIZE);
    fill_random(want, SIZE, 7);
    give_memory(team, 0, register_one(box->endpoint, bytes, SIZE));
    CHECK_OK(weft_counter_create(box->endpoint, &counter));
    tell(team, 0, &counter, sizeof counter);
    args.counters = &counter;
    args.values = &all;
    args.count = 1;
    args.options.timeout_ns = 3 * patience_ms() * MS;
    CHECK_OK(submit_expect(box->endpoint, &args, NULL));
    CHECK_OK(box_take(box, WEFT_COMPLETION_COUNTER, 2 * patience_ms()).status);
    CHECK(memcmp(bytes, want, ALL * PART) == 0);
    meet(team, 0, box);
    box_pump(box, 300);
    CHECK_OK(weft_counter_read(box->endpoint, counter, &value));
    CHECK_EQ(value, ALL);
    meet(team, 0, box);
    box_close(box);
}

static void stopped_peer_counts_each_arrival_once(void)
{
    by_counter = true;
    run_pair(stops_in_the_middle, counts_all_once);
}

/* Shuts down each connection of the process; returns how many. */
static int end_connections(int how)
{
    int ended = 0;
    for (int fd = 3; fd < 4096; fd++) {
        struct sockaddr_storage peer;
        socklen_t len = sizeof peer;
        if (getpeername(fd, (struct sockaddr *)&peer, &len) == 0 && peer.ss_family == AF_INET)
            ended += shutdown(fd, how) == 0;
    }
    return ended;
}

/* Nothing is in flight when connections end, on both sides or one: later operations use new ones. */
static void ended_idle_connections_are_made_again(void)
{
    static const int ways[] = {SHUT_RDWR, SHUT_WR, SHUT_RD};
    struct duo duo = duo_open(PART);
    weft_completion down;
    for (int i = 0; i < 12; i++) {
        CHECK(end_connections(ways[i % 3]) > 0);
        if (i % 2)
            sleep_ms(10 * i);
        struct range_request args = range_args(duo.a_memory, duo.b_of_a, PART);
        args.options.flags = WEFT_NOTIFY;
        args.options.notify = i + 1;
        CHECK_OK(box_await(duo.a, write_now(duo.a, &args), patience_ms()).status);
        CHECK_EQ(box_take(duo.b, WEFT_COMPLETION_NOTIFICATION, patience_ms()).notify, args.options.notify);
        CHECK(!box_try(duo.a, WEFT_COMPLETION_PEER_DOWN, &down) && !box_try(duo.b, WEFT_COMPLETION_PEER_DOWN, &down));
    }
    duo_close(&duo);
}

static const struct test tests[] = {
    {"ended_idle_connections_are_made_again", "tcp,tcp-encrypted timed", ended_idle_connections_are_made_again},
    {"stopped_peer_receives_each_notification_once", "tcp,host timed", stopped_peer_receives_each_notification_once},
    {"stopped_peer_counts_each_arrival_once", "tcp,host timed", stopped_peer_counts_each_arrival_once},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
