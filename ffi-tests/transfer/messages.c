/* Messages: complete, in order, none lost, however slow the receiver is. */
#include "harness.h"

/* Message `i` of a sequence: its number, then random bytes. */
static void compose(uint8_t *data, uint64_t i, size_t len)
{
    fill_random(data, len, i);
    if (len >= sizeof i)
        memcpy(data, &i, sizeof i);
}

static void check_message(const weft_completion *c, uint64_t i, size_t len)
{
    static _Thread_local uint8_t *want;
    if (!want)
        want = malloc(WEFT_MESSAGE_MAX);
    CHECK(want != NULL);
    CHECK_OK(c->status);
    if (c->bytes != len)
        FAIL("message %" PRIu64 " has %" PRIu64 " bytes, not %zu", i, c->bytes, len);
    compose(want, i, len);
    if (len > 0 && memcmp(c->data, want, len) != 0)
        FAIL("message %" PRIu64 " of %zu bytes is not what was sent", i, len);
}

static void receive(struct box *box, uint64_t i, size_t len)
{
    weft_completion c = box_take(box, WEFT_COMPLETION_MESSAGE, patience_ms());
    check_message(&c, i, len);
    CHECK_OK(weft_message_release(box->endpoint, c.op));
}

static void expect_sent(struct box *box, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        weft_completion c = box_take(box, WEFT_COMPLETION_SEND, patience_ms());
        CHECK_OK(c.status);
    }
}

/* ---- Sizes and order ---- */

static const size_t sizes[] = {0,     1,     2,     7,     8,     63,      64,      65,
                               100,   127,   128,   129,   255,   256,     4095,    4096,
                               4097,  8191,  8192,  8193,  16383, 16384,   16385,   65535,
                               65536, 65537, 99999, 131072, 524288, 1048575, 1048576};

static void sends_sizes(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    weft_peer peer = join(team, 1, box);
    uint8_t *data = malloc(WEFT_MESSAGE_MAX);
    CHECK(data != NULL);
    for (size_t i = 0; i < COUNT(sizes); i++) {
        compose(data, i, sizes[i]);
        weft_op id = send_now(box, peer, data, sizes[i]);
        memset(data, 0xff, sizes[i]); /* copied by the call */
        weft_completion c = box_await(box, id, patience_ms());
        CHECK_OK(c.status);
        CHECK_EQ(c.bytes, sizes[i]);
        CHECK(c.peer == peer);
    }
    weft_op id = send_now(box, peer, NULL, 0);
    CHECK_OK(box_await(box, id, patience_ms()).status);
    meet(team, 1, box);
    box_close(box);
}

static void takes_sizes(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    join(team, 0, box);
    for (size_t i = 0; i < COUNT(sizes); i++)
        receive(box, i, sizes[i]);
    receive(box, 0, 0);
    meet(team, 0, box);
    box_quiet(box, 50);
    box_close(box);
}

static void messages_of_all_sizes_arrive(void)
{
    run_pair(sends_sizes, takes_sizes);
}

#define MANY 20000

static size_t random_size(uint64_t i)
{
    uint64_t r = mix(i);
    return r % 100 == 0 ? (size_t)(mix(r) % 65536) : (size_t)(mix(r) % 2000);
}

static void sends_many(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    weft_peer peer = join(team, 1, box);
    uint8_t data[65536];
    size_t completed = 0;
    weft_completion c;
    for (uint64_t i = 0; i < MANY; i++) {
        compose(data, i, random_size(i));
        send_now(box, peer, data, random_size(i));
        while (box_try(box, WEFT_COMPLETION_SEND, &c)) {
            CHECK_OK(c.status);
            completed++;
        }
    }
    expect_sent(box, MANY - completed);
    meet(team, 1, box);
    box_quiet(box, 50);
    box_close(box);
}

static void takes_many(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    join(team, 0, box);
    for (uint64_t i = 0; i < MANY; i++)
        receive(box, i, random_size(i));
    meet(team, 0, box);
    box_quiet(box, 50);
    box_close(box);
}

static void many_messages_arrive_in_order(void)
{
    run_pair(sends_many, takes_many);
}

/* A queue of the least depth and the least space for bytes: slower, but nothing is lost. */
static struct box *open_small(void)
{
    weft_endpoint_config config = test_config();
    config.queue_depth = 16;
    config.message_bytes = MIB;
    return box_of(open_with(&config));
}

static void sends_through_little(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    weft_peer peer = join(team, 1, box);
    uint8_t data[65536];
    for (uint64_t i = 0; i < 2000; i++) {
        compose(data, i, random_size(i));
        send_now(box, peer, data, random_size(i));
    }
    expect_sent(box, 2000);
    meet(team, 1, box);
    box_close(box);
}

static void takes_through_little(struct team *team)
{
    struct box *box = open_small();
    join(team, 0, box);
    for (uint64_t i = 0; i < 2000; i++) {
        if (i % 500 == 0)
            sleep_ms(50);
        receive(box, i, random_size(i));
    }
    meet(team, 0, box);
    box_quiet(box, 50);
    box_close(box);
}

static void small_queue_loses_no_message(void)
{
    run_pair(sends_through_little, takes_through_little);
}

/* ---- Back-pressure ---- */

#define BLOCK ((size_t)(64 * KIB))

/* Sends until the limit is reached, reports how many were accepted, and then sends ten more. */
static void presses(struct team *team)
{
    struct box *box = open_small();
    weft_peer peer = join(team, 1, box);
    uint8_t data[BLOCK];
    struct send_request args = SEND_REQUEST_INIT;
    uint64_t sent = 0, refused_since = 0;
    args.peer = peer;
    args.data = data;
    args.len = sizeof data;
    judged_from();
    /* At the limit for half a second: the receiver accepts none. */
    while (!refused_since || canary_ns(refused_since, now_ns()) < 500 * MS) {
        compose(data, sent, BLOCK);
        weft_status status = submit_send(box->endpoint, &args, NULL);
        if (status == WEFT_ERR_AGAIN) {
            refused_since = refused_since ? refused_since : now_ns();
            box_pump(box, 5);
            continue;
        }
        CHECK_OK(status);
        refused_since = 0;
        sent++;
        if (sent * BLOCK > 8 * MIB)
            FAIL("8 MiB went in where 1 MiB may wait on either side");
    }
    CHECK(sent * BLOCK >= MIB);
    printf("%" PRIu64 " blocks of 64 KiB went in\n", sent);
    tell(team, 1, &sent, sizeof sent);
    for (uint64_t i = sent; i < sent + 10; i++) {
        compose(data, i, BLOCK);
        send_now(box, peer, data, BLOCK);
    }
    expect_sent(box, sent + 10);
    meet(team, 1, box);
    box_close(box);
}

static void does_not_poll(struct team *team)
{
    struct box *box = open_small();
    uint64_t sent;
    join(team, 0, box);
    CHECK_EQ(hear(team, 0, NULL, &sent, sizeof sent), sizeof sent);
    for (uint64_t i = 0; i < sent + 10; i++)
        receive(box, i, BLOCK);
    meet(team, 0, box);
    box_quiet(box, 50);
    box_close(box);
}

static void messages_to_a_receiver_that_does_not_poll(void)
{
    run_pair(presses, does_not_poll);
}

/* ---- Notifications that have to wait ---- */

#define WAITING 200

/* Notifications wait for space at the receiver; their bytes, and other transfers, do not. */
static void notifies_a_peer_that_does_not_poll(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    weft_peer peer = join(team, 1, box);
    weft_memory *memory = register_one(box->endpoint, map_bytes(BLOCK), BLOCK);
    weft_remote_memory *theirs = take_memory(team, 1, box, peer);
    struct range_request plain = range_args(memory, theirs, BLOCK), notified = plain;
    weft_op ids[WAITING];
    notified.options.flags = WEFT_NOTIFY;
    for (size_t i = 0; i < WAITING; i++)
        CHECK_OK(submit_write(box->endpoint, &notified, &ids[i]));
    for (int i = 0; i < 100; i++)
        CHECK_OK(box_await(box, write_now(box, &plain), patience_ms()).status);
    notified.options.timeout_ns = 100 * MS;
    judged_from();
    weft_completion late = box_await(box, write_now(box, &notified), patience_ms());
    CHECK_STATUS(late.status, WEFT_ERR_TIMED_OUT);
    CHECK_WITHIN(late.submit_ns + 100 * MS, late.done_ns, LATE_MOST);
    CHECK_OK(box_await(box, write_now(box, &plain), patience_ms()).status);
    tell(team, 1, ids, 1);
    for (size_t i = 0; i < WAITING; i++)
        CHECK_OK(box_await(box, ids[i], patience_ms()).status);
    meet(team, 1, box);
    box_close(box);
}

static void takes_notifications_late(struct team *team)
{
    struct box *box = open_small();
    char byte;
    join(team, 0, box);
    give_memory(team, 0, register_one(box->endpoint, map_bytes(BLOCK), BLOCK));
    CHECK_EQ(hear(team, 0, NULL, &byte, 1), 1);
    for (int i = 0; i < WAITING; i++)
        CHECK_OK(box_take(box, WEFT_COMPLETION_NOTIFICATION, patience_ms()).status);
    meet(team, 0, box); /* the one that timed out may arrive, too */
    box_close(box);
}

static void unpolled_notifications_delay_nothing(void)
{
    run_pair(notifies_a_peer_that_does_not_poll, takes_notifications_late);
}

static void does_not_release(struct team *team)
{
    struct box *box = open_small();
    uint64_t sent;
    join(team, 0, box);
    CHECK_EQ(hear(team, 0, box, &sent, sizeof sent), sizeof sent);
    for (uint64_t i = 0; i < sent + 10; i++)
        receive(box, i, BLOCK);
    meet(team, 0, box);
    box_quiet(box, 50);
    box_close(box);
}

static void messages_to_a_receiver_that_does_not_release(void)
{
    run_pair(presses, does_not_release);
}

/* ---- Messages that are kept ---- */

#define HELD 500

static void sends_to_a_keeper(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    weft_peer peer = join(team, 1, box);
    uint8_t data[1000];
    for (uint64_t i = 0; i < 10 * HELD; i++) {
        compose(data, i, sizeof data);
        send_now(box, peer, data, sizeof data);
    }
    expect_sent(box, 10 * HELD);
    meet(team, 1, box);
    box_close(box);
}

static void keeps(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    weft_completion *held = calloc(HELD, sizeof *held);
    CHECK(held != NULL);
    join(team, 0, box);
    for (uint64_t i = 0; i < 10 * HELD; i++) {
        weft_completion c = box_take(box, WEFT_COMPLETION_MESSAGE, patience_ms());
        check_message(&c, i, 1000);
        if (i % 10 == 0)
            held[i / 10] = c;
        else
            CHECK_OK(weft_message_release(box->endpoint, c.op));
    }
    meet(team, 0, box);
    for (uint64_t n = 0; n < HELD; n++) { /* released in another order */
        uint64_t i = n * 7 % HELD;
        check_message(&held[i], i * 10, 1000);
        CHECK_OK(weft_message_release(box->endpoint, held[i].op));
        CHECK_STATUS(weft_message_release(box->endpoint, held[i].op), WEFT_ERR_HANDLE);
    }
    free(held);
    box_close(box);
}

static void unreleased_messages_stay_whole(void)
{
    run_pair(sends_to_a_keeper, keeps);
}

/* A message outlives its peer until it is released. */
static void sends_and_leaves(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    weft_peer peer = join(team, 1, box);
    uint8_t data[5000];
    compose(data, 3, sizeof data);
    weft_op id = send_now(box, peer, data, sizeof data);
    CHECK_OK(box_await(box, id, patience_ms()).status);
    box_close(box);
}

static void keeps_after_the_peer(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    join(team, 0, box);
    weft_completion c = box_take(box, WEFT_COMPLETION_MESSAGE, patience_ms());
    CHECK_STATUS(box_take(box, WEFT_COMPLETION_PEER_DOWN, patience_ms()).status,
                 WEFT_ERR_PEER_CLOSED);
    sleep_ms(100);
    check_message(&c, 3, 5000);
    CHECK_OK(weft_message_release(box->endpoint, c.op));
    box_close(box);
}

static void messages_outlive_their_peer(void)
{
    run_pair(sends_and_leaves, keeps_after_the_peer);
}

/* ---- Both directions, and from many ---- */

#define BOTH 5000

static bool all_manual;

static void sends_and_takes(struct team *team)
{
    weft_endpoint_config config = test_config();
    config.progress = all_manual ? WEFT_PROGRESS_MANUAL : WEFT_PROGRESS_THREADS;
    struct box *box = box_of(open_with(&config));
    weft_peer peer = join(team, 1 - team->rank, box);
    uint8_t data[65536];
    uint64_t sent = 0, completed = 0, taken = 0, until = now_ns() + 2 * patience_ms() * MS;
    weft_completion c;
    while (completed < BOTH || taken < BOTH) {
        CHECK(now_ns() < until);
        for (int burst = 0; burst < 20 && sent < BOTH; burst++) {
            struct send_request args = SEND_REQUEST_INIT;
            args.peer = peer;
            args.data = data;
            args.len = random_size(sent);
            compose(data, sent, args.len);
            weft_status status = submit_send(box->endpoint, &args, NULL);
            if (status == WEFT_ERR_AGAIN)
                break;
            CHECK_OK(status);
            sent++;
        }
        box_pump(box, sent < BOTH ? 0 : 1);
        while (box_try(box, WEFT_COMPLETION_SEND, &c)) {
            CHECK_OK(c.status);
            completed++;
        }
        while (box_try(box, WEFT_COMPLETION_MESSAGE, &c)) {
            check_message(&c, taken, random_size(taken));
            taken++;
            CHECK_OK(weft_message_release(box->endpoint, c.op));
        }
    }
    meet(team, 1 - team->rank, box);
    box_close(box);
}

static void messages_flow_both_ways_at_once(void)
{
    run_pair(sends_and_takes, sends_and_takes);
}

static void messages_flow_both_ways_with_manual_progress(void)
{
    all_manual = true;
    run_pair(sends_and_takes, sends_and_takes);
}

#define SENDERS 8
#define EACH 1000

static void takes_from_many(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    char address[4096];
    weft_peer peers[SENDERS] = {0};
    uint64_t taken[SENDERS] = {0};
    size_t len = address_of(box->endpoint, address, sizeof address), known = 0;
    for (int r = 1; r <= SENDERS; r++)
        tell(team, r, address, len);
    for (size_t n = 0; n < SENDERS * EACH; n++) {
        weft_completion c = box_take(box, WEFT_COMPLETION_MESSAGE, patience_ms());
        size_t who = 0;
        while (who < known && peers[who] != c.peer)
            who++;
        CHECK(who < SENDERS);
        if (who == known)
            peers[known++] = c.peer;
        check_message(&c, taken[who], random_size(taken[who]));
        taken[who]++;
        CHECK_OK(weft_message_release(box->endpoint, c.op));
    }
    for (size_t i = 0; i < SENDERS; i++)
        CHECK_EQ(taken[i], EACH);
    for (int r = 1; r <= SENDERS; r++)
        CHECK_OK(box_take(box, WEFT_COMPLETION_PEER_UP, 0).status);
    for (int r = 1; r <= SENDERS; r++)
        meet(team, r, box);
    box_close(box);
}

static void sends_among_many(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    char address[4096];
    uint8_t data[65536];
    weft_peer peer;
    size_t len = hear(team, 0, NULL, address, sizeof address);
    CHECK_OK(weft_peer_connect(box->endpoint, address, len, NULL, &peer));
    for (uint64_t i = 0; i < EACH; i++) { /* at once: it may still be connecting */
        compose(data, i, random_size(i));
        send_now(box, peer, data, random_size(i));
    }
    expect_sent(box, EACH);
    CHECK_OK(box_take(box, WEFT_COMPLETION_PEER_UP, 0).status);
    meet(team, 0, box);
    box_close(box);
}

static void eight_senders_to_one_receiver(void)
{
    role roles[SENDERS + 1] = {takes_from_many};
    for (int i = 1; i <= SENDERS; i++)
        roles[i] = sends_among_many;
    run_team(SENDERS + 1, roles);
}

/* Notifications of transfers that timed out do not accumulate for a sleeping peer. */
static void late_notifications_do_not_accumulate(void)
{
    enum { BATCHES = 10, BATCH = 1000 };
    char blob[8192];
    weft_endpoint_config idle = test_config();
    idle.progress = WEFT_PROGRESS_MANUAL;
    struct box *a = box_of(open_endpoint()), *b = box_of(open_with(&idle));
    weft_completion c;
    weft_list_entry entry = {0};
    size_t n = address_of(b->endpoint, blob, sizeof blob);
    CHECK_OK(weft_peer_connect(a->endpoint, blob, n, NULL, &entry.peer));
    while (!box_try(a, WEFT_COMPLETION_PEER_UP, &c)) {
        box_pump(b, 1);
        box_pump(a, 1);
    }
    struct list_request args = LIST_REQUEST_INIT;
    args.entries = &entry;
    args.count = 1;
    args.options.flags = WEFT_NOTIFY;
    args.options.timeout_ns = 30 * MS;
    for (int batch = 0; batch < BATCHES; batch++) {
        for (int i = 0; i < BATCH; i++)
            CHECK_OK(submit_write_list(a->endpoint, &args, NULL));
        for (int i = 0; i < BATCH; i++)
            CHECK_STATUS(box_take(a, WEFT_COMPLETION_WRITE, patience_ms()).status, WEFT_ERR_TIMED_OUT);
    }
    args.options.timeout_ns = 0;
    args.options.notify = 1;
    CHECK_OK(submit_write_list(a->endpoint, &args, NULL));
    uint64_t seen = 0, until = now_ns() + patience_ms() * MS;
    do {
        for (; !box_try(b, WEFT_COMPLETION_NOTIFICATION, &c); box_pump(b, 1))
            CHECK(now_ns() < until);
        seen++;
    } while (c.notify != 1);
    CHECK(seen < 4 * BATCH);
    CHECK_OK(box_take(a, WEFT_COMPLETION_WRITE, patience_ms()).status);
    box_quiet(a, 20);
    box_close(a);
    box_close(b);
}

/* As weft.h promises: a peer with many unreleased messages still gets its own through. */
static void notification_data_counts_in_no_limit(void)
{
    weft_endpoint_config config = test_config();
    config.message_bytes = MIB;
    struct duo duo = duo_open_with(4096, &config);
    char data[256];
    fill_random(data, sizeof data, 5);
    for (uint64_t i = 0; i < MIB / sizeof data + 100; i++) {
        struct range_request args = range_args(duo.a_memory, duo.b_of_a, 8);
        args.options.flags = WEFT_NOTIFY;
        args.options.notify = i;
        args.options.notify_data = data;
        args.options.notify_data_len = sizeof data;
        CHECK_OK(box_await(duo.a, write_now(duo.a, &args), patience_ms()).status);
        CHECK_EQ(box_take(duo.b, WEFT_COMPLETION_NOTIFICATION, patience_ms()).notify, i);
    }
    CHECK_OK(box_await(duo.a, send_now(duo.a, duo.a_to_b, data, 200), patience_ms()).status);
    weft_completion got = box_take(duo.b, WEFT_COMPLETION_MESSAGE, patience_ms());
    CHECK_EQ(got.bytes, 200);
    CHECK_OK(weft_message_release(duo.b->endpoint, got.op));
    duo_close(&duo);
}

static const struct test tests[] = {
    {"messages_of_all_sizes_arrive", "any wide", messages_of_all_sizes_arrive},
    {"many_messages_arrive_in_order", "any", many_messages_arrive_in_order},
    {"small_queue_loses_no_message", "any", small_queue_loses_no_message},
    {"notification_data_counts_in_no_limit", "any", notification_data_counts_in_no_limit},
    {"unpolled_notifications_delay_nothing", "any timed", unpolled_notifications_delay_nothing},
    {"messages_to_a_receiver_that_does_not_poll", "any timed", messages_to_a_receiver_that_does_not_poll},
    {"messages_to_a_receiver_that_does_not_release", "any timed", messages_to_a_receiver_that_does_not_release},
    {"unreleased_messages_stay_whole", "any", unreleased_messages_stay_whole},
    {"messages_outlive_their_peer", "any", messages_outlive_their_peer},
    {"messages_flow_both_ways_at_once", "any", messages_flow_both_ways_at_once},
    {"messages_flow_both_ways_with_manual_progress", "any", messages_flow_both_ways_with_manual_progress},
    {"late_notifications_do_not_accumulate", "tcp,host,sim:like=tcp,sim:like=efa",
     late_notifications_do_not_accumulate},
    {"eight_senders_to_one_receiver", "any", eight_senders_to_one_receiver},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
