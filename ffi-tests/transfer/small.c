/* Small transfers with manual progress: the call posts them, and they are operations like any other. */
#include "harness.h"

#define LEN (64 * KIB)
#define MARK 0xee

/* A polls manually, B has threads. */
static struct duo open_duo(uint32_t max_transfers)
{
    char blob[8192];
    struct duo duo = {.len = LEN};
    weft_endpoint_config config = test_config();
    duo.b = box_of(open_with(&config));
    config.progress = WEFT_PROGRESS_MANUAL;
    config.max_transfers = max_transfers;
    duo.a = box_of(open_with(&config));
    size_t n = address_of(duo.b->endpoint, blob, sizeof blob);
    CHECK_OK(weft_peer_connect(duo.a->endpoint, blob, n, NULL, &duo.a_to_b));
    CHECK_OK(box_take(duo.a, WEFT_COMPLETION_PEER_UP, patience_ms()).status);
    duo_share(&duo);
    return duo;
}

static struct range_request piece(struct duo *duo, uint64_t local, uint64_t remote, uint64_t len)
{
    struct range_request args = range_args(duo->a_memory, duo->b_of_a, len);
    args.local_offset = local;
    args.remote_offset = remote;
    return args;
}

static weft_completion await(struct duo *duo, weft_op id)
{
    weft_completion c = box_await(duo->a, id, patience_ms());
    CHECK_EQ(c.op, id);
    CHECK(c.submit_ns <= c.done_ns);
    return c;
}

/* A round trip, with nothing else in flight. */
static void small_writes_of_every_size_arrive(void)
{
    static const uint64_t around[] = {1, 7, 8, 31, 32, 33, 64, 255, 4095, 4096, 4097, 16383, 16384, 16385, 20000};
    struct duo duo = open_duo(0);
    uint64_t state = 7;
    for (size_t i = 0; i < COUNT(around) * 8; i++) {
        uint64_t len = around[i % COUNT(around)], from = next_random(&state) % (LEN - len - 2) + 1;
        uint64_t to = next_random(&state) % (LEN - len - 2) + 1;
        weft_op id;
        memset(duo.b_bytes, MARK, LEN);
        fill_random(duo.a_bytes, LEN, i);
        struct range_request args = piece(&duo, from, to, len);
        args.options.flags = i % 3 ? 0 : WEFT_CLASS_LATENCY;
        CHECK_OK(submit_write(duo.a->endpoint, &args, &id));
        weft_completion c = await(&duo, id);
        CHECK_OK(c.status);
        CHECK_EQ(c.bytes, len);
        CHECK(memcmp(duo.a_bytes + from, duo.b_bytes + to, len) == 0);
        CHECK_EQ(duo.b_bytes[to - 1], MARK);
        CHECK_EQ(duo.b_bytes[to + len], MARK);
        fill_random(duo.b_bytes, LEN, i + 1000);
        memset(duo.a_bytes, MARK, LEN);
        CHECK_OK(submit_read(duo.a->endpoint, &args, &id));
        CHECK_OK(await(&duo, id).status);
        CHECK(memcmp(duo.a_bytes + from, duo.b_bytes + to, len) == 0);
        CHECK_EQ(duo.a_bytes[from - 1], MARK);
        CHECK_EQ(duo.a_bytes[from + len], MARK);
    }
    duo_close(&duo);
}

/* An invalid transfer is reported and takes nothing; so is one that does not fit. */
static void refused_small_writes_take_no_slot(void)
{
    enum { SLOTS = 16 };
    struct duo duo = open_duo(SLOTS);
    weft_op ids[SLOTS];
    struct range_request args = piece(&duo, 0, LEN - 8, 9);
    for (int round = 0; round < 3 * SLOTS; round++) {
        REFUSED(WEFT_ERR_RANGE, submit_write(duo.a->endpoint, &args, NULL));
        args.remote_offset = UINT64_MAX - 4;
        REFUSED(WEFT_ERR_RANGE, submit_write(duo.a->endpoint, &args, NULL));
        args = piece(&duo, LEN - 8, 0, 9);
        REFUSED(WEFT_ERR_RANGE, submit_write(duo.a->endpoint, &args, NULL));
        args.local_offset = UINT64_MAX;
        REFUSED(WEFT_ERR_RANGE, submit_write(duo.a->endpoint, &args, NULL));
        args = piece(&duo, 0, LEN - 8, 9);
    }
    for (int round = 0; round < 4; round++) {
        int accepted = 0;
        weft_status status = WEFT_OK;
        while (status == WEFT_OK) {
            CHECK(accepted <= SLOTS);
            args = piece(&duo, 8 * accepted, 8 * accepted, 8);
            status = submit_write(duo.a->endpoint, &args, accepted < SLOTS ? &ids[accepted] : NULL);
            accepted += status == WEFT_OK;
        }
        CHECK_STATUS(status, WEFT_ERR_AGAIN);
        CHECK_EQ(accepted, SLOTS);
        for (int i = 0; i < SLOTS; i++)
            CHECK_OK(await(&duo, ids[i]).status);
    }
    box_quiet(duo.a, 50);
    duo_close(&duo);
}

/* Canceled, late or neither. */
static void small_writes_complete_once(void)
{
    struct duo duo = open_duo(0);
    int canceled = 0;
    for (int i = 0; i < 2000; i++) {
        weft_op id;
        struct range_request args = piece(&duo, 0, 0, 8 + i % 5000);
        args.options.timeout_ns = i % 4 == 3 ? 1 : 0;
        CHECK_OK(submit_write(duo.a->endpoint, &args, &id));
        if (i % 2 == 0)
            CHECK_ONE_OF(weft_op_cancel(duo.a->endpoint, id), WEFT_OK, WEFT_ERR_HANDLE);
        weft_completion c = await(&duo, id);
        if (c.status != WEFT_OK)
            CHECK_STATUS(c.status, i % 2 ? WEFT_ERR_TIMED_OUT : WEFT_ERR_CANCELED);
        CHECK_STATUS(weft_op_cancel(duo.a->endpoint, id), WEFT_ERR_HANDLE);
        canceled += c.status == WEFT_ERR_CANCELED;
    }
    CHECK(canceled > 0);
    box_quiet(duo.a, 50);
    duo_close(&duo);
}

struct shutter {
    weft_endpoint *endpoint;
    uint64_t after_us;
};

static void *shuts_down(void *argument)
{
    struct shutter *shutter = argument;
    usleep(shutter->after_us);
    CHECK_OK(weft_endpoint_shutdown(shutter->endpoint, 0));
    return NULL;
}

/* While another thread shuts down, every accepted submission ends. */
static void small_writes_end_with_the_endpoint(void)
{
    for (int round = 0; round < 20; round++) {
        struct duo duo = open_duo(0);
        struct shutter shutter = {duo.a->endpoint, 100 + 300 * round};
        pthread_t thread;
        uint64_t accepted = 0, ended = 0;
        weft_status status = WEFT_OK;
        struct range_request args = piece(&duo, 0, 0, 8);
        CHECK(pthread_create(&thread, NULL, shuts_down, &shutter) == 0);
        while (status == WEFT_OK || status == WEFT_ERR_AGAIN) {
            status = submit_write(duo.a->endpoint, &args, NULL);
            accepted += status == WEFT_OK;
            if (accepted % 3 == 0 || status == WEFT_ERR_AGAIN)
                box_pump(duo.a, 0);
        }
        CHECK_ONE_OF(status, WEFT_ERR_CLOSED, WEFT_ERR_PEER_CLOSED);
        int32_t n;
        weft_completion got[64], c;
        while ((n = weft_queue_poll(weft_endpoint_queue(duo.a->endpoint), got, COUNT(got), 0)) >= 0)
            for (int32_t i = 0; i < n; i++)
                ended += got[i].kind == WEFT_COMPLETION_WRITE;
        CHECK_STATUS(n, WEFT_ERR_CLOSED);
        while (box_try(duo.a, WEFT_COMPLETION_WRITE, &c))
            ended++;
        CHECK_EQ(ended, accepted);
        CHECK(pthread_join(thread, NULL) == 0);
        duo_close(&duo);
    }
}

static void serves(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    join(team, 0, box);
    give_memory(team, 0, register_one(box->endpoint, map_bytes(LEN), LEN));
    for (;;)
        box_pump(box, 100);
}

/* And with the peer, whose death is detected by a caller that only submits and polls. */
static void writes_until_it_dies(struct team *team)
{
    weft_endpoint_config config = test_config();
    config.progress = WEFT_PROGRESS_MANUAL;
    struct box *box = box_of(open_with(&config));
    weft_peer peer = join(team, 1, box);
    weft_memory *memory = register_one(box->endpoint, map_bytes(LEN), LEN);
    weft_remote_memory *theirs = take_memory(team, 1, box, peer);
    struct range_request args = range_args(memory, theirs, 8);
    uint64_t accepted = 0, ended = 0, end = now_ns() + patience_ms() * MS;
    weft_status status = WEFT_OK;
    weft_completion c;
    while (status == WEFT_OK || status == WEFT_ERR_AGAIN) {
        CHECK(now_ns() < end);
        status = submit_write(box->endpoint, &args, NULL);
        accepted += status == WEFT_OK;
        box_pump(box, 0);
        while (box_try(box, WEFT_COMPLETION_WRITE, &c))
            ended++;
        if (ended > 100 && atomic_load(&team->board->may_die[1]) == 0)
            kill_member(team, 1);
    }
    CHECK_ONE_OF(status, WEFT_ERR_PEER_LOST, WEFT_ERR_HANDLE);
    box_take(box, WEFT_COMPLETION_PEER_DOWN, patience_ms());
    while (box_try(box, WEFT_COMPLETION_WRITE, &c))
        ended++;
    CHECK_EQ(ended, accepted);
    box_close(box);
}

static void small_writes_to_a_peer_that_is_killed(void)
{
    run_pair(writes_until_it_dies, serves);
}

static const struct test tests[] = {
    {"small_writes_of_every_size_arrive", "any", small_writes_of_every_size_arrive},
    {"refused_small_writes_take_no_slot", "once", refused_small_writes_take_no_slot},
    {"small_writes_complete_once", "any", small_writes_complete_once},
    {"small_writes_end_with_the_endpoint", "any", small_writes_end_with_the_endpoint},
    {"small_writes_to_a_peer_that_is_killed", "tcp,host", small_writes_to_a_peer_that_is_killed},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
