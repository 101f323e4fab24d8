/*
 * No pass of a worker takes longer than 5 ms of its own time, however many operations end at once: at a deadline, with
 * their peer, or with its memory. Prints `worker_pass_ms`.
 */
#include "harness.h"

#define OPERATIONS 65536

static char text[100]; /* What the operations notify, too. */

static weft_endpoint_config crowded(void)
{
    weft_endpoint_config config = test_config();
    config.max_transfers = OPERATIONS + 16;
    config.queue_depth = 2 * OPERATIONS;
    return config;
}

/* All of them have ended with this status; and then the peer, if they had one. */
static void all_end(weft_endpoint *endpoint, weft_status status, bool peer)
{
    weft_completion done[256];
    uint64_t first = UINT64_MAX, last = 0, not_ok = 0;
    uint64_t until = now_ns() + 10 * patience_ms() * MS;
    for (int ended = 0; ended < OPERATIONS + peer;) {
        CHECK(now_ns() < until);
        int32_t n = weft_queue_poll(weft_endpoint_queue(endpoint), done, 256, 100 * MS);
        CHECK(n >= 0);
        for (int32_t i = 0; i < n; i++)
            if (done[i].kind == WEFT_COMPLETION_PEER_DOWN) {
                CHECK_EQ(ended, OPERATIONS);
                ended++;
            } else if (done[i].user_data == text) {
                CHECK(done[i].status == WEFT_OK || done[i].status == status);
                first = done[i].done_ns < first ? done[i].done_ns : first;
                last = done[i].done_ns > last ? done[i].done_ns : last;
                not_ok += done[i].status != WEFT_OK;
                ended++;
            }
    }
    sleep_ms(20); /* That pass has ended, too. */
    printf("%" PRIu64 " of %d did not end with OK; %.2f ms from the first to the last\n", not_ok, OPERATIONS,
           (double)(last - first) / MS);
    count_passes(endpoint);
}

static void one_deadline(void)
{
    weft_endpoint_config config = crowded();
    weft_endpoint *endpoint = open_with(&config);
    weft_counter counter;
    uint64_t due = now_ns() + 2 * SECOND;
    CHECK_OK(weft_counter_create(endpoint, &counter));
    for (int i = 0; i < OPERATIONS; i++) {
        uint64_t now = now_ns();
        expect_one(endpoint, counter, due > now + MS ? due - now : MS, text);
    }
    all_end(endpoint, WEFT_ERR_TIMED_OUT, false);
    box_close(box_of(endpoint));
}

#define COUNTERS 256

/* One list of the peer raises all the counters that they wait for. */
static void counters_are_raised(int counters)
{
    weft_endpoint_config config = crowded();
    struct duo duo = duo_open_with(4096, &config);
    static weft_list_entry entries[COUNTERS];
    for (int i = 0; i < counters; i++) {
        entries[i] = (weft_list_entry){.peer = duo.b_to_a};
        CHECK_OK(weft_counter_create(duo.a->endpoint, &entries[i].counter));
    }
    for (int i = 0; i < OPERATIONS; i++)
        expect_one(duo.a->endpoint, entries[i % counters].counter, 600 * SECOND, text);
    struct list_request args = LIST_REQUEST_INIT;
    weft_op list;
    args.entries = entries;
    args.count = (uint64_t)counters;
    CHECK_OK(submit_write_list(duo.b->endpoint, &args, &list));
    CHECK_STATUS(box_await(duo.b, list, patience_ms()).status, WEFT_OK);
    all_end(duo.a->endpoint, WEFT_OK, false);
    duo_close(&duo);
}

static void one_counter(void) { counters_are_raised(1); }

static void many_counters(void) { counters_are_raised(COUNTERS); }

/* ---- With a peer that is stopped ---- */

enum way { MESSAGES_LOST, WRITES_LOST, WRITES_DISCONNECTED };
static enum way way;

static void stands_still(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    weft_memory *memory = register_one(box->endpoint, map_bytes(MIB), MIB);
    join(team, 0, box);
    give_memory(team, 0, memory);
    for (;;)
        box_pump(box, 100);
}

static void has_many_under_way(struct team *team)
{
    weft_endpoint_config config = crowded();
    struct box *box = box_of(open_with(&config));
    weft_memory *memory = register_one(box->endpoint, map_bytes(MIB), MIB);
    weft_peer peer = join(team, 1, box);
    weft_remote_memory *remote = take_memory(team, 1, box, peer);
    stop_process(pid_of(team, 1));
    for (int i = 0; i < OPERATIONS; i++) {
        struct send_request send = SEND_REQUEST_INIT;
        struct range_request write = range_args(memory, remote, MIB);
        send.peer = peer;
        send.data = text;
        send.len = sizeof text;
        send.options.user_data = write.options.user_data = text;
        send.options.timeout_ns = write.options.timeout_ns = 600 * SECOND;
        CHECK_OK(way == MESSAGES_LOST ? submit_send(box->endpoint, &send, NULL) : submit_write(box->endpoint, &write, NULL));
    }
    if (way == WRITES_DISCONNECTED)
        CHECK_OK(weft_peer_disconnect(box->endpoint, peer));
    else
        kill_member(team, 1);
    all_end(box->endpoint, way == WRITES_DISCONNECTED ? WEFT_ERR_CANCELED : WEFT_ERR_PEER_LOST, true);
    if (way == WRITES_DISCONNECTED)
        kill_member(team, 1);
    box_close(box);
}

static void peer_ends(void)
{
    static const role roles[] = {has_many_under_way, stands_still};
    run_team(2, roles);
}

static void operations_of_one_deadline_end_in_short_passes(void) { check_passes(one_deadline); }

static void operations_of_one_counter_end_in_short_passes(void) { check_passes(one_counter); }

static void operations_of_many_counters_end_in_short_passes(void) { check_passes(many_counters); }

static void messages_of_a_lost_peer_end_in_short_passes(void)
{
    way = MESSAGES_LOST;
    check_passes(peer_ends);
}

static void writes_of_a_lost_peer_end_in_short_passes(void)
{
    way = WRITES_LOST;
    check_passes(peer_ends);
}

static void writes_of_a_disconnected_peer_end_in_short_passes(void)
{
    way = WRITES_DISCONNECTED;
    check_passes(peer_ends);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        {"operations_of_one_deadline_end_in_short_passes", "tcp alone", operations_of_one_deadline_end_in_short_passes},
        {"operations_of_one_counter_end_in_short_passes", "tcp alone", operations_of_one_counter_end_in_short_passes},
        {"operations_of_many_counters_end_in_short_passes", "tcp alone", operations_of_many_counters_end_in_short_passes},
        {"messages_of_a_lost_peer_end_in_short_passes", "tcp,host alone", messages_of_a_lost_peer_end_in_short_passes},
        {"writes_of_a_lost_peer_end_in_short_passes", "tcp,host alone", writes_of_a_lost_peer_end_in_short_passes},
        {"writes_of_a_disconnected_peer_end_in_short_passes", "tcp,host alone",
         writes_of_a_disconnected_peer_end_in_short_passes},
        {NULL, NULL, NULL},
    };
    return run_tests(argc, argv, tests);
}
