/* Fences: afterwards, nothing that the peer had accepted before lands, notifies or counts. */
#include "harness.h"

#define FABRICS "tcp,host,sim:like=tcp,sim:like=efa,sim:like=efa-direct,sim:like=verbs"
#define LEN (32 * MIB)
#define ROUNDS 8

static struct fence_request fence_args(weft_peer peer)
{
    struct fence_request args = FENCE_REQUEST_INIT;
    args.peer = peer;
    return args;
}

static weft_completion await_fence(struct duo *duo, weft_op id)
{
    uint64_t end = now_ns() + patience_ms() * MS;
    weft_completion c;
    while (!box_try(duo->b, WEFT_COMPLETION_FENCE, &c)) {
        CHECK(now_ns() < end);
        box_pump(duo->a, 0);
        box_pump(duo->b, 1);
    }
    CHECK_EQ(c.op, id);
    return c;
}

/* Canceled and late writes continue to move bytes, notify and count for a while, until the fence. */
static void nothing_lands_after_a_fence(void)
{
    struct duo duo = duo_open(LEN);
    weft_counter counter;
    weft_completion told;
    uint64_t before, after;
    struct fence_request fence = fence_args(duo.b_to_a);
    struct range_request args = range_args(duo.a_memory, duo.b_of_a, LEN);
    weft_op id;
    fill_random(duo.a_bytes, LEN, 1);
    CHECK_OK(box_await(duo.a, write_now(duo.a, &args), patience_ms()).status);
    CHECK_OK(weft_counter_create(duo.b->endpoint, &counter));
    args.options.flags = WEFT_NOTIFY;
    args.options.counter = counter;
    int early = 0;
    for (int round = 0; round < ROUNDS; round++) {
        memset(duo.a_bytes, round + 1, LEN);
        args.options.timeout_ns = round % 2 ? 1 * MS : 0;
        weft_op writes[4];
        for (int i = 0; i < 4; i++)
            writes[i] = write_now(duo.a, &args);
        for (int i = 0; i < 4; i++) {
            if (round % 2 == 0)
                CHECK_ONE_OF(weft_op_cancel(duo.a->endpoint, writes[i]), WEFT_OK, WEFT_ERR_HANDLE);
            weft_completion c = box_await(duo.a, writes[i], patience_ms());
            early += c.status != WEFT_OK;
        }
        CHECK_OK(submit_fence(duo.b->endpoint, &fence, &id));
        CHECK_OK(await_fence(&duo, id).status);
        while (box_try(duo.b, WEFT_COMPLETION_NOTIFICATION, &told)) {
        }
        CHECK_OK(weft_counter_read(duo.b->endpoint, counter, &before));
        fill_random(duo.b_bytes, LEN, 100 + round);
        pump_both(&duo, 100);
        CHECK_EQ(differs_random(duo.b_bytes, LEN, 100 + round), -1);
        CHECK(!box_try(duo.b, WEFT_COMPLETION_NOTIFICATION, &told));
        CHECK_OK(weft_counter_read(duo.b->endpoint, counter, &after));
        CHECK_EQ(after, before);
    }
    CHECK(early > 0);
    duo_close(&duo);
}

/* The peer's transfers continue, and none fails because of the fence. */
static void fence_lets_other_traffic_continue(void)
{
    struct duo duo = duo_open(LEN);
    struct fence_request fence = fence_args(duo.b_to_a);
    struct range_request args = range_args(duo.a_memory, duo.b_of_a, 256 * KIB);
    fill_random(duo.a_bytes, LEN, 3);
    weft_op writes[64], fences[4];
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < 64; i++) {
            args.local_offset = args.remote_offset = (uint64_t)i * 256 * KIB;
            writes[i] = write_now(duo.a, &args);
        }
        for (int i = 0; i < 4; i++)
            CHECK_OK(submit_fence(duo.b->endpoint, &fence, &fences[i]));
        for (int i = 0; i < 4; i++)
            CHECK_OK(await_fence(&duo, fences[i]).status);
        for (int i = 0; i < 64; i++)
            CHECK_OK(box_await(duo.a, writes[i], patience_ms()).status);
    }
    CHECK_EQ(differs_random(duo.b_bytes, 64 * 256 * KIB, 3), -1);
    duo_close(&duo);
}

/* Not only posted writes: a fence also waits for a write that had hardly begun, with its notification and counts. */
static void a_fence_waits_for_accepted_writes(void)
{
    enum { WRITES = 4 };
    struct duo duo = duo_open(LEN);
    struct fence_request fence = fence_args(duo.b_to_a);
    struct range_request args = range_args(duo.a_memory, duo.b_of_a, LEN);
    weft_counter counter;
    uint64_t value, rounds = 0;
    CHECK_OK(weft_counter_create(duo.b->endpoint, &counter));
    args.options.flags = WEFT_NOTIFY;
    args.options.counter = counter;
    for (uint64_t round = 1; round <= 3; round++) {
        weft_op writes[WRITES], id;
        memset(duo.a_bytes, (int)round, LEN);
        for (int i = 0; i < WRITES; i++) {
            args.options.notify = round * WRITES + (uint64_t)i;
            writes[i] = write_now(duo.a, &args);
        }
        CHECK_OK(submit_fence(duo.b->endpoint, &fence, &id));
        CHECK_OK(await_fence(&duo, id).status);
        CHECK_OK(weft_counter_read(duo.b->endpoint, counter, &value));
        CHECK_EQ(value, round * WRITES);
        uint64_t told = 0;
        for (weft_completion c; box_try(duo.b, WEFT_COMPLETION_NOTIFICATION, &c);)
            told++;
        CHECK_EQ(told, WRITES);
        fill_random(duo.b_bytes, LEN, round);
        pump_both(&duo, 50);
        CHECK_EQ(differs_random(duo.b_bytes, LEN, round), -1);
        for (int i = 0; i < WRITES; i++)
            rounds += box_await(duo.a, writes[i], patience_ms()).status == WEFT_OK;
    }
    CHECK_EQ(rounds, 3 * WRITES);
    duo_close(&duo);
}

/* A write that waits for its start is accepted, too: the fence ends after that write, and not before. */
static void a_fence_waits_for_writes_that_have_not_started(void)
{
    struct duo duo = duo_open(MIB);
    struct fence_request fence = fence_args(duo.b_to_a);
    struct range_request args = range_args(duo.a_memory, duo.b_of_a, MIB);
    weft_completion c;
    weft_watch *watch;
    uint64_t *word;
    weft_op id;
    CHECK_OK(weft_watch_create(duo.a->endpoint, &watch, &word));
    args.options.start_watch = watch;
    args.options.start_value = 1;
    weft_op write = write_now(duo.a, &args);
    CHECK_OK(submit_fence(duo.b->endpoint, &fence, &id));
    pump_both(&duo, 50);
    CHECK(!box_try(duo.b, WEFT_COMPLETION_FENCE, &c));
    /* Later operations neither delay the fence, nor are delayed by it. */
    args.options.start_watch = NULL;
    args.options.start_value = 0;
    CHECK_OK(box_await(duo.a, write_now(duo.a, &args), patience_ms()).status);
    CHECK_OK(weft_op_cancel(duo.a->endpoint, write));
    CHECK_STATUS(box_await(duo.a, write, patience_ms()).status, WEFT_ERR_CANCELED);
    CHECK_OK(await_fence(&duo, id).status);
    duo_close(&duo);
}

/* Both sides at once: neither waits for the other's fence. */
static void two_peers_fence_each_other(void)
{
    struct duo duo = duo_open(LEN);
    struct fence_request to_a = fence_args(duo.b_to_a), to_b = fence_args(duo.a_to_b);
    struct range_request args = range_args(duo.a_memory, duo.b_of_a, LEN);
    weft_completion c;
    weft_op at_a, at_b;
    for (int round = 0; round < 5; round++) {
        weft_op write = write_now(duo.a, &args);
        CHECK_OK(submit_fence(duo.b->endpoint, &to_a, &at_b));
        CHECK_OK(submit_fence(duo.a->endpoint, &to_b, &at_a));
        CHECK_OK(await_fence(&duo, at_b).status);
        while (!box_try(duo.a, WEFT_COMPLETION_FENCE, &c))
            pump_both(&duo, 1);
        CHECK_OK(c.status);
        CHECK_EQ(c.op, at_a);
        CHECK_OK(box_await(duo.a, write, patience_ms()).status);
    }
    duo_close(&duo);
}

static void fences_end_like_other_operations(void)
{
    struct duo duo = duo_open(MIB);
    struct fence_request fence = fence_args(duo.b_to_a);
    weft_op id;
    struct box *b = duo.b;
    fence.options.flags = 1;
    REFUSED(WEFT_ERR_UNSUPPORTED, submit_fence(b->endpoint, &fence, &id));
    fence.options.flags = 0;
    fence.peer = 0;
    REFUSED(WEFT_ERR_HANDLE, submit_fence(b->endpoint, &fence, &id));
    fence.peer = duo.b_to_a;
    fence.options.timeout_ns = 25ull * 3600 * SECOND;
    REFUSED_EITHER(WEFT_ERR_INVALID, WEFT_ERR_LIMIT, submit_fence(b->endpoint, &fence, &id));
    REFUSED(WEFT_ERR_HANDLE, weft_peer_fence(b->endpoint, 0, NULL, &id));
    fence.options.timeout_ns = 0;
    fence.options.user_data = &fence;
    CHECK_OK(submit_fence(b->endpoint, &fence, &id));
    weft_completion c = await_fence(&duo, id);
    CHECK_OK(c.status);
    CHECK(c.user_data == &fence && c.peer == duo.b_to_a);
    CHECK_OK(submit_fence(b->endpoint, &fence, NULL));
    CHECK_OK(weft_peer_disconnect(b->endpoint, duo.b_to_a));
    c = box_take(b, WEFT_COMPLETION_FENCE, patience_ms());
    CHECK_ONE_OF(c.status, WEFT_ERR_CANCELED, WEFT_OK);
    duo_close(&duo);
}

/* A peer that does not poll does not answer. */
static void fence_does_not_wait_for_a_silent_peer(void)
{
    weft_endpoint_config config = test_config();
    struct box *own = box_of(open_endpoint());
    weft_completion c, ignored[16];
    weft_peer peer;
    char blob[8192];
    config.progress = WEFT_PROGRESS_MANUAL;
    weft_endpoint *silent = open_with(&config);
    size_t len = address_of(silent, blob, sizeof blob);
    CHECK_OK(weft_peer_connect(own->endpoint, blob, len, NULL, &peer));
    while (!box_try(own, WEFT_COMPLETION_PEER_UP, &c)) {
        CHECK(weft_queue_poll(weft_endpoint_queue(silent), ignored, 16, 0) >= 0);
        box_pump(own, 0);
    }
    struct fence_request fence = fence_args(peer);
    weft_op id;
    fence.options.timeout_ns = 50 * MS;
    CHECK_OK(submit_fence(own->endpoint, &fence, &id));
    CHECK_STATUS(box_await(own, id, patience_ms()).status, WEFT_ERR_TIMED_OUT);
    fence.options.timeout_ns = 0;
    CHECK_OK(submit_fence(own->endpoint, &fence, &id));
    while (!box_try(own, WEFT_COMPLETION_FENCE, &c)) {
        CHECK(weft_queue_poll(weft_endpoint_queue(silent), ignored, 16, 0) >= 0);
        box_pump(own, 0);
    }
    CHECK(c.op == id && c.status == WEFT_OK);
    CHECK_OK(weft_endpoint_destroy(silent));
    box_close(own);
}

/* What several workers have received is counted before the fence ends, which one of them learns. */
static void what_has_arrived_is_counted_before_a_fence(void)
{
    enum { ROUNDS_OF = 300, COUNTS = 24 };
    weft_endpoint_config config = test_config();
    weft_list_entry entries[COUNTS];
    struct list_request list = LIST_REQUEST_INIT;
    weft_counter counter;
    weft_completion c;
    weft_op id, write;
    uint64_t before, after;
    if (strncmp(fabric(), "sim", 3) == 0)
        config.fabric = "sim:like=efa-direct:rails=3";
    config.workers = config.tcp_streams = 3;
    struct duo duo = duo_open_between(COUNTS * 64 * KIB, &config, &config);
    struct fence_request fence = fence_args(duo.b_to_a);
    CHECK_OK(weft_counter_create(duo.b->endpoint, &counter));
    for (uint64_t i = 0; i < COUNTS; i++)
        entries[i] = (weft_list_entry){.local = duo.a_memory, .remote = duo.b_of_a, .local_offset = i * 64 * KIB, .remote_offset = i * 64 * KIB,
                                       .len = 64 * KIB, .counter = counter};
    list.entries = entries;
    list.count = COUNTS;
    int early = 0;
    for (int round = 0; round < ROUNDS_OF; round++) {
        CHECK_OK(submit_write_list(duo.a->endpoint, &list, &write));
        for (uint64_t until = now_ns() + round % 30 * 20000; now_ns() < until;) {
        }
        CHECK_ONE_OF(weft_op_cancel(duo.a->endpoint, write), WEFT_OK, WEFT_ERR_HANDLE);
        CHECK_OK(submit_fence(duo.b->endpoint, &fence, &id));
        for (uint64_t until = now_ns() + patience_ms() * MS; !box_try(duo.b, WEFT_COMPLETION_FENCE, &c);) {
            CHECK(now_ns() < until);
            box_pump(duo.b, 0); /* what waits in its sleep comes too late to see */
        }
        CHECK_OK(weft_counter_read(duo.b->endpoint, counter, &before));
        CHECK_OK(c.status);
        early += box_await(duo.a, write, patience_ms()).status != WEFT_OK;
        sleep_ms(1);
        CHECK_OK(weft_counter_read(duo.b->endpoint, counter, &after));
        CHECK_EQ(before, after);
    }
    CHECK(early > 0);
    duo_close(&duo);
}

static const struct test tests[] = {
    {"nothing_lands_after_a_fence", FABRICS, nothing_lands_after_a_fence},
    {"a_fence_waits_for_accepted_writes", FABRICS, a_fence_waits_for_accepted_writes},
    {"a_fence_waits_for_writes_that_have_not_started", FABRICS, a_fence_waits_for_writes_that_have_not_started},
    {"two_peers_fence_each_other", FABRICS, two_peers_fence_each_other},
    {"fence_lets_other_traffic_continue", FABRICS, fence_lets_other_traffic_continue},
    {"fences_end_like_other_operations", FABRICS, fences_end_like_other_operations},
    {"fence_does_not_wait_for_a_silent_peer", FABRICS, fence_does_not_wait_for_a_silent_peer},
    {"what_has_arrived_is_counted_before_a_fence", "tcp,host,sim:like=efa-direct", what_has_arrived_is_counted_before_a_fence},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
