/* A peer that has ended, and whose PEER_DOWN was not polled yet: what calls that name it say. */
#include "harness.h"

#define LEN (64 * KIB)

/* What a call says that names the peer, of a category that tells a program to reconnect. */
static void every_call_says(struct duo *duo, weft_status expected)
{
    struct box *box = duo->a;
    weft_peer peer = duo->a_to_b;
    weft_op_options none = WEFT_OP_OPTIONS_INIT;
    weft_peer_properties properties = WEFT_PEER_PROPERTIES_INIT;
    weft_list_entry empty = {.peer = peer};
    weft_remote_memory *again;
    weft_grant_token token;
    char blob[8192];
    size_t n = descriptor_of(duo->b_memory, blob, sizeof blob);
    CHECK_STATUS(weft_send(box->endpoint, peer, "x", 1, NULL, NULL), expected);
    CHECK_STATUS(weft_peer_fence(box->endpoint, peer, &none, NULL), expected);
    CHECK_STATUS(weft_grant_create(duo->a_memory, peer, NULL, &token), expected);
    CHECK_STATUS(weft_peer_info(box->endpoint, peer, &properties), expected);
    CHECK_STATUS(weft_remote_memory_import(box->endpoint, peer, blob, n, &again), expected);
    CHECK_STATUS(weft_write_list(box->endpoint, &empty, 1, NULL, NULL), expected);
    CHECK_STATUS(weft_peer_disconnect(box->endpoint, peer), expected);
    /* What explains the end is there. */
    weft_lane_statistics lane = WEFT_LANE_STATISTICS_INIT;
    char why[4096];
    size_t len;
    CHECK_STATUS(weft_peer_reason(box->endpoint, peer, why, sizeof why, &len), WEFT_OK);
    CHECK_STATUS(weft_lane_info(box->endpoint, peer, 0, &lane), expected == WEFT_ERR_HANDLE ? expected : WEFT_OK);
}

static void calls_that_name_an_ended_peer_say_so(void)
{
    struct duo duo = duo_open(LEN);
    struct range_request args = range_args(duo.a_memory, duo.b_of_a, 8);
    weft_queue *queue;
    weft_completion c;
    weft_status status;
    CHECK_OK(weft_queue_create(duo.a->endpoint, 0, &queue));
    args.options.queue = queue; /* a's own queue is not polled meanwhile */
    CHECK_OK(weft_peer_disconnect(duo.b->endpoint, duo.b_to_a));
    uint64_t end = now_ns() + patience_ms() * MS;
    while ((status = submit_write(duo.a->endpoint, &args, NULL)) == WEFT_OK || status == WEFT_ERR_AGAIN) {
        CHECK(now_ns() < end);
        box_pump(duo.b, 1);
        while (weft_queue_poll(queue, &c, 1, 0) > 0) {
        }
    }
    CHECK_STATUS(status, WEFT_ERR_PEER_CLOSED);
    CHECK_EQ(weft_status_category(status), WEFT_CATEGORY_PEER);
    /* Between its end and its PEER_DOWN, and when that is in the queue. */
    every_call_says(&duo, status);
    sleep_ms(100);
    every_call_says(&duo, status);
    CHECK_STATUS(submit_write(duo.a->endpoint, &args, NULL), status);
    CHECK_STATUS(box_take(duo.a, WEFT_COMPLETION_PEER_DOWN, patience_ms()).status, WEFT_ERR_PEER_CLOSED);
    every_call_says(&duo, WEFT_ERR_HANDLE);
    CHECK_STATUS(submit_write(duo.a->endpoint, &args, NULL), status);
    box_take(duo.b, WEFT_COMPLETION_PEER_DOWN, patience_ms());
    while (weft_queue_poll(queue, &c, 1, 0) > 0) {
    }
    CHECK_OK(weft_queue_destroy(queue));
    duo_close(&duo);
}

static void is_killed(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    join(team, 0, box);
    meet(team, 0, box);
    pause();
}

static void kills(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    weft_peer peer = join(team, 1, box);
    weft_peer_properties properties = WEFT_PEER_PROPERTIES_INIT;
    weft_status status;
    meet(team, 1, box);
    kill_member(team, 1);
    uint64_t end = now_ns() + patience_ms() * MS;
    while ((status = weft_peer_info(box->endpoint, peer, &properties)) == WEFT_OK)
        CHECK(now_ns() < end);
    CHECK_STATUS(status, WEFT_ERR_PEER_LOST);
    CHECK_STATUS(weft_send(box->endpoint, peer, "x", 1, NULL, NULL), WEFT_ERR_PEER_LOST);
    CHECK_STATUS(box_take(box, WEFT_COMPLETION_PEER_DOWN, patience_ms()).status, WEFT_ERR_PEER_LOST);
    CHECK_STATUS(weft_send(box->endpoint, peer, "x", 1, NULL, NULL), WEFT_ERR_HANDLE);
    box_close(box);
}

static void a_peer_that_was_killed_is_lost(void) { run_pair(kills, is_killed); }

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        {"calls_that_name_an_ended_peer_say_so", "any", calls_that_name_an_ended_peer_say_so},
        {"a_peer_that_was_killed_is_lost", "tcp,host", a_peer_that_was_killed_is_lost},
        {0},
    };
    return run_tests(argc, argv, tests);
}
