/*
 * No pass of a worker takes longer than 5 ms of its own, however many operations end at once at a deadline. Prints
 * `worker_pass_ms`, also of a peer that ends with as many, whose pass has no bound yet.
 */
#include "harness.h"

#define OPERATIONS 65536

static char text[100]; /* What the operations are told by, too. */

static struct duo crowded(void)
{
    weft_endpoint_config config = test_config();
    config.max_transfers = OPERATIONS + 16;
    config.queue_depth = 2 * OPERATIONS;
    return duo_open_with(4096, &config);
}

/* All of them have ended, with this. */
static void all_end(struct duo *duo, weft_status status)
{
    weft_completion done[256];
    uint64_t first = UINT64_MAX, last = 0, not_ok = 0;
    uint64_t until = now_ns() + 10 * patience_ms() * MS;
    for (int ended = 0; ended < OPERATIONS && now_ns() < until;) {
        int32_t n = weft_wait(duo->a->endpoint, done, 256, 100 * MS);
        for (int32_t i = 0; i < n; i++)
            if (done[i].user_data == text) {
                CHECK(done[i].status == WEFT_OK || done[i].status == status);
                first = done[i].done_ns < first ? done[i].done_ns : first;
                last = done[i].done_ns > last ? done[i].done_ns : last;
                not_ok += done[i].status != WEFT_OK;
                ended++;
            }
        CHECK(n >= 0);
    }
    weft_endpoint_statistics statistics = {.size = sizeof statistics};
    CHECK_OK(weft_endpoint_stats(duo->a->endpoint, &statistics));
    printf("%" PRIu64 " of %d did not end with OK; %.2f ms from the first to the last\n", not_ok, OPERATIONS,
           (double)(last - first) / MS);
    printf("worker_pass_ms %.2f\n", (double)statistics.pass_longest_ns / MS);
    if (status == WEFT_ERR_TIMED_OUT)
        CHECK(statistics.pass_longest_ns < patiently(5 * MS));
}

static void operations_of_one_deadline_end_in_short_passes(void)
{
    struct duo duo = crowded();
    weft_counter counter;
    uint64_t value = 1, due = now_ns() + 2 * SECOND;
    CHECK_OK(weft_counter_create(duo.a->endpoint, &counter));
    for (int i = 0; i < OPERATIONS; i++) {
        weft_expect_args args = WEFT_EXPECT_ARGS_INIT;
        weft_transfer id;
        args.counters = &counter;
        args.values = &value;
        args.count = 1;
        args.user_data = text;
        args.timeout_ns = due > now_ns() + MS ? due - now_ns() : MS;
        CHECK_OK(weft_counter_expect(duo.a->endpoint, &args, &id));
    }
    all_end(&duo, WEFT_ERR_TIMED_OUT);
    duo_close(&duo);
}

static void operations_of_a_peer_all_end(void)
{
    struct duo duo = crowded();
    for (int i = 0; i < OPERATIONS; i++) {
        weft_send_args args = WEFT_SEND_ARGS_INIT;
        weft_transfer id;
        args.peer = duo.a_to_b;
        args.data = text;
        args.len = sizeof text;
        args.user_data = text;
        args.timeout_ns = 600 * SECOND;
        CHECK_OK(weft_send(duo.a->endpoint, &args, &id));
    }
    CHECK_OK(weft_peer_disconnect(duo.a->endpoint, duo.a_to_b));
    all_end(&duo, WEFT_ERR_CANCELED);
    duo_close(&duo);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        {"operations_of_one_deadline_end_in_short_passes", "tcp alone", operations_of_one_deadline_end_in_short_passes},
        {"operations_of_a_peer_all_end", "tcp,host alone", operations_of_a_peer_all_end},
        {NULL, NULL, NULL},
    };
    return run_tests(argc, argv, tests);
}
