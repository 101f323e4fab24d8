/* Watches: words that transfers wait for, and that are set when transfers, or waits for counters, have ended. */
#include "gpu.h"

#define LEN 4096

struct word {
    weft_watch *watch;
    uint64_t *at;
};

/* An operation of any kind starts when one watch has reached a value, and sets the other. */
#define FROM_TO(options, start, from, done, to)                                                     \
    ((options).start_watch = (start).watch, (options).start_value = (from),             \
     (options).done_watch = (done).watch, (options).done_value = (to))

static struct word word_of(struct box *box)
{
    struct word word;
    CHECK_OK(weft_watch_create(box->endpoint, &word.watch, &word.at));
    return word;
}

static uint64_t value_of(struct word word)
{
    return atomic_load((_Atomic uint64_t *)word.at);
}

static void raise_to(struct word word, uint64_t value)
{
    atomic_store((_Atomic uint64_t *)word.at, value);
}

static void free_words(struct word one, struct word other)
{
    CHECK_OK(weft_watch_destroy(one.watch));
    CHECK_OK(weft_watch_destroy(other.watch));
}

/* It has not ended, and ends once `start` is reached; `done` is set before its completion. */
static void check_waits(struct duo *duo, weft_op id, struct word start, struct word done, uint64_t value)
{
    box_quiet(duo->a, 10);
    CHECK_EQ(value_of(done), value - 1);
    raise_to(start, value);
    CHECK_OK(box_await(duo->a, id, 4 * patience_ms()).status);
    CHECK_EQ(value_of(done), value);
}

/* A third endpoint, with memory that the first endpoint of a duo has imported. */
static struct box *third_of(struct duo *duo, uint8_t *bytes, weft_remote_memory **remote)
{
    char blob[16384];
    weft_peer peer;
    struct box *c = box_of(open_endpoint());
    size_t n = address_of(c->endpoint, blob, sizeof blob);
    CHECK_OK(weft_peer_connect(duo->a->endpoint, blob, n, NULL, &peer));
    n = descriptor_of(register_one(c->endpoint, bytes, LEN), blob, sizeof blob);
    CHECK_OK(weft_remote_memory_import(duo->a->endpoint, peer, blob, n, remote));
    box_take(duo->a, WEFT_COMPLETION_PEER_UP, 4 * patience_ms());
    return c;
}

static void lists_of_several_peers(void)
{
    struct duo duo = duo_open(LEN);
    uint8_t *c_bytes = map_bytes(LEN);
    weft_remote_memory *c_of_a;
    struct box *c = third_of(&duo, c_bytes, &c_of_a);
    struct word start = word_of(duo.a), done = word_of(duo.a);
    for (uint64_t i = 1; i <= 4; i++) {
        weft_list_entry entries[2] = {{.local = duo.a_memory, .remote = duo.b_of_a, .len = LEN},
                                      {.local = duo.a_memory, .remote = c_of_a, .len = LEN}};
        struct list_request args = LIST_REQUEST_INIT;
        weft_op id;
        args.entries = entries;
        args.count = i % 2 == 0 ? 2 : 1;
        FROM_TO(args.options, start, i, done, i);
        CHECK_OK(submit_write_list(duo.a->endpoint, &args, &id));
        /* The contents at the start are moved. */
        fill_random(duo.a_bytes, LEN, i);
        check_waits(&duo, id, start, done, i);
        CHECK_EQ(differs_random(duo.b_bytes, LEN, i), -1);
        if (args.count == 2)
            CHECK_EQ(differs_random(c_bytes, LEN, i), -1);
    }
    free_words(start, done);
    box_close(c);
    duo_close(&duo);
}

/* A whole list is canceled while it waits: the watch is set all the same. */
static void unstarted_lists_set_their_watch(void)
{
    struct duo duo = duo_open(LEN);
    uint8_t *c_bytes = map_bytes(LEN);
    weft_remote_memory *c_of_a;
    struct box *c = third_of(&duo, c_bytes, &c_of_a);
    struct word start = word_of(duo.a), done = word_of(duo.a);
    weft_list_entry entries[2] = {{.local = duo.a_memory, .remote = duo.b_of_a, .len = LEN},
                                  {.local = duo.a_memory, .remote = c_of_a, .len = LEN}};
    struct list_request args = LIST_REQUEST_INIT;
    weft_op id;
    args.entries = entries;
    args.count = 2;
    FROM_TO(args.options, start, 1, done, 7);
    CHECK_OK(submit_write_list(duo.a->endpoint, &args, &id));
    box_quiet(duo.a, 5);
    CHECK_EQ(value_of(done), 0);
    CHECK_OK(weft_op_cancel(duo.a->endpoint, id));
    CHECK_STATUS(box_await(duo.a, id, 4 * patience_ms()).status, WEFT_ERR_CANCELED);
    CHECK_EQ(value_of(done), 7);
    args.options.done_watch = NULL;
    REFUSED(WEFT_ERR_INVALID, submit_write_list(duo.a->endpoint, &args, &id));
    CHECK(strstr(weft_last_error(), "done_value") != NULL);
    REFUSED(WEFT_ERR_INVALID, prepare_list(duo.a->endpoint, &args, NULL));
    box_close(c);
    duo_close(&duo);
}

static void prepared_geometries(void)
{
    struct duo duo = duo_open(LEN);
    struct word start = word_of(duo.a), done = word_of(duo.a);
    struct pages_request pages = PAGES_REQUEST_INIT;
    struct list_request list = LIST_REQUEST_INIT;
    weft_list_entry entry = {.local = duo.a_memory, .remote = duo.b_of_a, .len = LEN};
    weft_prepared *kept[2];
    pages.local = duo.a_memory;
    pages.remote = duo.b_of_a;
    pages.pages.page_len = LEN;
    pages.pages.page_count = 1;
    CHECK_OK(prepare_pages(duo.a->endpoint, &pages, &kept[0]));
    list.entries = &entry;
    list.count = 1;
    CHECK_OK(prepare_list(duo.a->endpoint, &list, &kept[1]));
    for (uint64_t i = 1; i <= 4; i++) {
        weft_op_options args = WEFT_OP_OPTIONS_INIT;
        weft_op id;
        FROM_TO(args, start, i, done, i);
        CHECK_OK(weft_write_prepared(duo.a->endpoint, kept[i % 2], &args, &id));
        fill_random(duo.a_bytes, LEN, i);
        check_waits(&duo, id, start, done, i);
        CHECK_EQ(differs_random(duo.b_bytes, LEN, i), -1);
    }
    CHECK_OK(weft_prepared_destroy(kept[0]));
    CHECK_OK(weft_prepared_destroy(kept[1]));
    free_words(start, done);
    duo_close(&duo);
}

/* An empty transfer waits, too: its notification follows the watch. */
static void notifications_without_bytes(void)
{
    struct duo duo = duo_open(LEN);
    struct word start = word_of(duo.a), done = word_of(duo.a);
    struct range_request args = range_args(duo.a_memory, duo.b_of_a, 0);
    weft_op id;
    args.options.flags = WEFT_NOTIFY;
    args.options.notify = 5;
    FROM_TO(args.options, start, 1, done, 1);
    CHECK_OK(submit_write(duo.a->endpoint, &args, &id));
    box_quiet(duo.b, 10);
    check_waits(&duo, id, start, done, 1);
    CHECK_EQ(box_take(duo.b, WEFT_COMPLETION_NOTIFICATION, 4 * patience_ms()).notify, 5);
    free_words(start, done);
    duo_close(&duo);
}

/* A watch, or a stream that waits for it, signals that a counter has reached a value. */
static void counters(void)
{
    devices_begin("");
    struct duo duo = duo_open(LEN);
    struct word done = word_of(duo.b);
    struct range_request write = range_args(duo.a_memory, duo.b_of_a, LEN);
    struct expect_request args = EXPECT_REQUEST_INIT;
    weft_counter counter;
    weft_op waits, id;
    uint64_t two = 2;
    CHECK_OK(weft_counter_create(duo.b->endpoint, &counter));
    args.counters = &counter;
    args.values = &two;
    args.count = 1;
    args.options.done_value = 9;
    REFUSED(WEFT_ERR_INVALID, submit_expect(duo.b->endpoint, &args, &waits));
    args.options.done_watch = done.watch;
    CHECK_OK(submit_expect(duo.b->endpoint, &args, &waits));
    REFUSED(WEFT_ERR_BUSY, weft_watch_destroy(done.watch));
    if (on_cuda()) {
        use_device(0);
        CU(cuStreamWaitValue64_v2, NULL, (unsigned long long)(uintptr_t)done.at, 9ull, 0);
    }
    write.options.counter = counter;
    for (uint64_t i = 0; i < 2; i++) {
        CHECK_EQ(value_of(done), 0);
        CHECK_OK(submit_write(duo.a->endpoint, &write, &id));
        CHECK_OK(box_await(duo.a, id, 4 * patience_ms()).status);
    }
    CHECK_OK(box_await(duo.b, waits, 4 * patience_ms()).status);
    CHECK_EQ(value_of(done), 9);
    if (on_cuda())
        CU(cuCtxSynchronize, 0);
    /* A deadline also sets the watch. */
    args.options.done_value = 10;
    args.options.timeout_ns = MS;
    two = 3;
    CHECK_OK(submit_expect(duo.b->endpoint, &args, &waits));
    CHECK_STATUS(box_await(duo.b, waits, 4 * patience_ms()).status, WEFT_ERR_TIMED_OUT);
    CHECK_EQ(value_of(done), 10);
    CHECK_OK(weft_watch_destroy(done.watch));
    duo_close(&duo);
}

#define SOME "tcp,host,sim:like=efa"

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        {"lists_of_several_peers", SOME, lists_of_several_peers},
        {"unstarted_lists_set_their_watch", "tcp,host", unstarted_lists_set_their_watch},
        {"prepared_geometries", SOME, prepared_geometries},
        {"notifications_without_bytes", SOME, notifications_without_bytes},
        {"counters", SOME, counters},
        {0},
    };
    return run_tests(argc, argv, tests);
}
