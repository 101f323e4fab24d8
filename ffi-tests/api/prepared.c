/* Prepared geometry: checked once, used by many transfers; and the fate of its memories. */
#include "harness.h"

static weft_prepared *keep_pages(struct box *box, const struct pages_request *args)
{
    weft_prepared *kept;
    CHECK_OK(prepare_pages(box->endpoint, args, &kept));
    return kept;
}

static weft_completion write_kept(struct box *box, weft_prepared *kept, weft_op_options *args)
{
    weft_op id;
    CHECK_OK(weft_write_prepared(box->endpoint, kept, args, &id));
    weft_completion c = box_await(box, id, patience_ms());
    CHECK_EQ(c.kind, WEFT_COMPLETION_WRITE);
    return c;
}

/* ---- 1000 pages of 200 layers, in both directions, many transfers at a time ---- */

#define LAYERS 80
#define PAGES 1000
#define PAGE 64
#define LAYER (PAGES * PAGE)

static weft_memory *register_layers(weft_endpoint *endpoint, uint8_t *bytes)
{
    weft_memory_range ranges[LAYERS];
    weft_memory *memory;
    for (size_t i = 0; i < LAYERS; i++)
        ranges[i] = (weft_memory_range){bytes + i * LAYER, LAYER};
    CHECK_OK(weft_memory_register(endpoint, ranges, LAYERS, NULL, &memory));
    return memory;
}

static struct box *open_rails(uint32_t rails)
{
    weft_endpoint_config config = test_config();
    config.rail_count = rails;
    return box_of(open_with(&config));
}

static uint32_t rails = 1;

static void keeps_pages(struct team *team)
{
    struct box *box = open_rails(rails);
    weft_peer peer = join(team, 1, box);
    uint8_t *bytes = map_bytes(LAYERS * LAYER);
    weft_memory *memory = register_layers(box->endpoint, bytes);
    weft_remote_memory *theirs = take_memory(team, 1, box, peer);
    uint32_t list[PAGES], backwards[PAGES];
    struct pages_request pages = PAGES_REQUEST_INIT;
    for (uint32_t i = 0; i < PAGES; i++) {
        list[i] = i;
        backwards[i] = PAGES - 1 - i;
    }
    pages.local = memory;
    pages.remote = theirs;
    pages.pages.local.pages = list;
    pages.pages.remote.pages = backwards;
    pages.pages.local.range_step = pages.pages.remote.range_step = 1;
    pages.pages.page_len = PAGE;
    pages.pages.page_count = PAGES;
    pages.pages.layer_count = LAYERS;
    weft_prepared *kept = keep_pages(box, &pages);
    memset(list, 0xff, sizeof list); /* no longer needed */
    memset(backwards, 0xff, sizeof backwards);
    memset(&pages, 0xff, sizeof pages);
    weft_op_options args = WEFT_OP_OPTIONS_INIT;
    args.flags = WEFT_NOTIFY;
    args.notify_data = "kept";
    args.notify_data_len = 4;
    for (uint64_t round = 0; round < 3; round++) {
        fill_random(bytes, LAYERS * LAYER, round);
        args.notify = round;
        args.user_data = &args;
        args.flags ^= WEFT_CLASS_LATENCY;
        weft_completion c = write_kept(box, kept, &args);
        CHECK_OK(c.status);
        CHECK_EQ(c.bytes, LAYERS * LAYER);
        CHECK_EQ(c.entry, UINT64_MAX);
        CHECK(c.user_data == &args && c.peer == peer);
        meet(team, 1, box);
    }
    /* Several transfers at once, with the geometry destroyed while they run. */
    weft_op ids[4];
    weft_op_options plain = WEFT_OP_OPTIONS_INIT;
    memset(bytes, 0, LAYERS * LAYER);
    for (int i = 0; i < 4; i++)
        CHECK_OK(weft_read_prepared(box->endpoint, kept, &plain, &ids[i]));
    CHECK_OK(weft_prepared_destroy(kept));
    REFUSED(WEFT_ERR_HANDLE, weft_read_prepared(box->endpoint, kept, &plain, NULL));
    REFUSED(WEFT_ERR_HANDLE, weft_prepared_destroy(kept));
    for (int i = 0; i < 4; i++)
        CHECK_OK(box_await(box, ids[i], patience_ms()).status);
    CHECK_EQ(differs_random(bytes, LAYERS * LAYER, 2), -1);
    CHECK_OK(weft_remote_memory_release(theirs));
    CHECK_OK(weft_memory_deregister(memory));
    meet(team, 1, box);
    box_close(box);
}

static void has_pages(struct team *team)
{
    struct box *box = open_rails(rails);
    join(team, 0, box);
    uint8_t *bytes = map_bytes(LAYERS * LAYER), *want = map_bytes(LAYERS * LAYER);
    give_memory(team, 0, register_layers(box->endpoint, bytes));
    for (uint64_t round = 0; round < 3; round++) {
        weft_completion c = box_take(box, WEFT_COMPLETION_NOTIFICATION, patience_ms());
        CHECK_EQ(c.notify, round);
        CHECK(c.bytes == 4 && memcmp(c.data, "kept", 4) == 0);
        CHECK_OK(weft_message_release(box->endpoint, c.op));
        fill_random(want, LAYERS * LAYER, round);
        for (size_t layer = 0; layer < LAYERS; layer++)
            for (size_t i = 0; i < PAGES; i++)
                if (memcmp(bytes + layer * LAYER + (PAGES - 1 - i) * PAGE,
                           want + layer * LAYER + i * PAGE, PAGE))
                    FAIL("round %d: page %zu of layer %zu", (int)round, i, layer);
        meet(team, 0, box);
    }
    meet(team, 0, box);
    box_close(box);
}

static void prepared_pages_round_trip(void)
{
    run_pair(keeps_pages, has_pages);
}

static void prepared_pages_round_trip_on_four_rails(void)
{
    rails = 4;
    run_pair(keeps_pages, has_pages);
}

/* ---- 100,000 pages, and lists ---- */

static void hundred_thousand_pages_are_prepared(void)
{
    enum { COUNT_OF = 100000, LEN = 16 };
    struct duo duo = duo_open(COUNT_OF * LEN);
    uint32_t *list = malloc(COUNT_OF * sizeof *list);
    struct pages_request pages = PAGES_REQUEST_INIT;
    weft_op_options args = WEFT_OP_OPTIONS_INIT;
    for (uint32_t i = 0; i < COUNT_OF; i++)
        list[i] = (uint32_t)((uint64_t)i * 7919 % COUNT_OF);
    pages.local = duo.a_memory;
    pages.remote = duo.b_of_a;
    pages.pages.local.pages = pages.pages.remote.pages = list;
    pages.pages.page_len = LEN;
    pages.pages.page_count = COUNT_OF;
    weft_prepared *kept = keep_pages(duo.a, &pages);
    free(list);
    for (uint64_t round = 0; round < 2; round++) {
        fill_random(duo.a_bytes, duo.len, round);
        CHECK_OK(write_kept(duo.a, kept, &args).status);
        CHECK_EQ(differs_random(duo.b_bytes, duo.len, round), -1);
    }
    CHECK_OK(weft_prepared_destroy(kept));
    CHECK_OK(weft_prepared_destroy(NULL));
    duo_close(&duo);
}

static void lists_are_prepared(void)
{
    struct duo duo = duo_open(MIB);
    weft_list_entry entries[1000];
    struct list_request list = LIST_REQUEST_INIT;
    weft_op_options args = WEFT_OP_OPTIONS_INIT;
    weft_prepared *kept;
    for (uint64_t i = 0; i < 1000; i++)
        entries[i] = (weft_list_entry){duo.a_memory, duo.b_of_a, 0, 0, 0, i * 1000, (999 - i) * 1000,
                                       i % 9 ? 1000 : 0, 0};
    list.entries = entries;
    list.count = 1000;
    CHECK_OK(prepare_list(duo.a->endpoint, &list, &kept));
    memset(entries, 0xff, sizeof entries);
    for (uint64_t round = 0; round < 3; round++) {
        fill_random(duo.a_bytes, MIB, round);
        memset(duo.b_bytes, 0, MIB);
        args.flags = round ? WEFT_NOTIFY | WEFT_COMPLETE_EACH_PEER : 0;
        args.notify = round;
        weft_completion c = write_kept(duo.a, kept, &args);
        CHECK_OK(c.status);
        CHECK_EQ(c.bytes, 888 * 1000);
        CHECK_EQ(c.peer, duo.a_to_b);
        for (uint64_t i = 0; i < 1000; i++) {
            const uint8_t *got = duo.b_bytes + (999 - i) * 1000;
            CHECK(i % 9 ? memcmp(got, duo.a_bytes + i * 1000, 1000) == 0 : got[0] == 0);
        }
        if (round)
            CHECK_EQ(box_take(duo.b, WEFT_COMPLETION_NOTIFICATION, patience_ms()).notify, round);
    }
    CHECK_OK(weft_prepared_destroy(kept));
    duo_close(&duo);
}

/* ---- What a geometry keeps in use, and what ends it ---- */

static struct pages_request one_page(const struct duo *duo)
{
    struct pages_request pages = PAGES_REQUEST_INIT;
    pages.local = duo->a_memory;
    pages.remote = duo->b_of_a;
    pages.pages.page_len = pages.pages.page_count = 1;
    return pages;
}

static void prepared_pages_hold_their_memories(void)
{
    struct duo duo = duo_open(4096);
    struct pages_request pages = one_page(&duo);
    weft_op_options args = WEFT_OP_OPTIONS_INIT;
    weft_list_entry entry = {duo.a_memory, duo.b_of_a, 0, 0, 0, 0, 0, 1, 0};
    struct list_request list = LIST_REQUEST_INIT;
    weft_prepared *kept[2];
    list.entries = &entry;
    list.count = 1;
    kept[0] = keep_pages(duo.a, &pages);
    CHECK_OK(prepare_list(duo.a->endpoint, &list, &kept[1]));
    for (int i = 0; i < 2; i++) {
        REFUSED(WEFT_ERR_BUSY, weft_memory_deregister(duo.a_memory));
        REFUSED(WEFT_ERR_BUSY, weft_remote_memory_release(duo.b_of_a));
        CHECK_OK(write_kept(duo.a, kept[i], &args).status);
        CHECK_OK(weft_prepared_destroy(kept[i]));
    }
    CHECK_OK(weft_remote_memory_release(duo.b_of_a));
    CHECK_OK(weft_memory_deregister(duo.a_memory));
    CHECK_OK(weft_memory_deregister(duo.b_memory));
    box_close(duo.a);
    box_close(duo.b);
}

/* The target deregisters its memory, then leaves. */
static void prepared_pages_of_a_closed_peer_fail(void)
{
    struct duo duo = duo_open(4096);
    struct pages_request pages = one_page(&duo);
    weft_op_options args = WEFT_OP_OPTIONS_INIT;
    weft_list_entry entry = {duo.a_memory, duo.b_of_a, 0, 0, 0, 0, 0, 1, 0}, empty = {.peer = duo.a_to_b};
    struct list_request list = LIST_REQUEST_INIT;
    weft_prepared *kept[3];
    list.count = 1;
    list.entries = &entry;
    kept[0] = keep_pages(duo.a, &pages);
    CHECK_OK(prepare_list(duo.a->endpoint, &list, &kept[1]));
    list.entries = &empty;
    CHECK_OK(prepare_list(duo.a->endpoint, &list, &kept[2]));
    for (int i = 0; i < 3; i++)
        CHECK_OK(write_kept(duo.a, kept[i], &args).status);
    CHECK_OK(weft_memory_deregister(duo.b_memory));
    for (int i = 0; i < 2; i++)
        REFUSED(WEFT_ERR_MEMORY_GONE, weft_write_prepared(duo.a->endpoint, kept[i], &args, NULL));
    CHECK_OK(write_kept(duo.a, kept[2], &args).status);
    box_close(duo.b);
    CHECK_STATUS(box_take(duo.a, WEFT_COMPLETION_PEER_DOWN, patience_ms()).status, WEFT_ERR_PEER_CLOSED);
    for (int i = 0; i < 3; i++) {
        weft_status status = weft_write_prepared(duo.a->endpoint, kept[i], &args, NULL);
        CHECK_ONE_OF(status, WEFT_ERR_MEMORY_GONE, WEFT_ERR_PEER_CLOSED, WEFT_ERR_HANDLE);
    }
    CHECK_OK(weft_prepared_destroy(kept[0]));
    CHECK_OK(weft_prepared_destroy(kept[1]));
    box_close(duo.a); /* with one that was not released */
    REFUSED(WEFT_ERR_HANDLE, weft_prepared_destroy(kept[2]));
}

static void bad_arguments(void)
{
    struct duo duo = duo_open(4096), other = duo_open(4096);
    weft_endpoint *ep = duo.a->endpoint;
    const struct pages_request good = one_page(&duo);
    weft_op_options args = WEFT_OP_OPTIONS_INIT;
    struct pages_request pages;
    weft_prepared *kept;
    REFUSED(WEFT_ERR_INVALID, weft_pages_prepare(ep, good.local, good.remote, NULL, 0, &kept));
    REFUSED(WEFT_ERR_INVALID, prepare_pages(ep, &good, NULL));
    REFUSED(WEFT_ERR_INVALID, weft_list_prepare(ep, NULL, 1, 0, &kept));
    REFUSED(WEFT_ERR_HANDLE, prepare_pages(NULL, &good, &kept));
    const uint32_t flags[] = {WEFT_NOTIFY, WEFT_COMPLETE_EACH_PEER, 64};
    for (size_t i = 0; i < COUNT(flags); i++) {
        pages = good, pages.options.flags = flags[i];
        REFUSED(WEFT_ERR_UNSUPPORTED, prepare_pages(ep, &pages, &kept));
        CHECK(i > 0 || strstr(weft_last_error(), "WEFT_NOTIFY"));
    }
    pages = good, pages.pages.page_len = 4097;
    REFUSED(WEFT_ERR_RANGE, prepare_pages(ep, &pages, &kept));
    pages = good, pages.local = other.a_memory;
    REFUSED(WEFT_ERR_HANDLE, prepare_pages(ep, &pages, &kept));

    kept = keep_pages(duo.a, &good);
    REFUSED(WEFT_ERR_HANDLE, weft_write_prepared(ep, NULL, &args, NULL));
    REFUSED(WEFT_ERR_HANDLE, weft_write_prepared(ep, (weft_prepared *)duo.a_memory, &args, NULL));
    REFUSED(WEFT_ERR_HANDLE, weft_write_prepared(other.a->endpoint, kept, &args, NULL));
    REFUSED(WEFT_ERR_HANDLE, weft_memory_deregister((weft_memory *)kept));
    REFUSED(WEFT_ERR_HANDLE, weft_prepared_destroy((weft_prepared *)&duo));
    weft_op_options bad;
    bad = args, bad.size = 1;
    REFUSED(WEFT_ERR_INVALID, weft_write_prepared(ep, kept, &bad, NULL));
    bad = args, bad.flags = WEFT_COMPLETE_EACH_PEER; /* not a list */
    REFUSED(WEFT_ERR_UNSUPPORTED, weft_write_prepared(ep, kept, &bad, NULL));
    bad = args, bad.reserved = 1;
    REFUSED(WEFT_ERR_UNSUPPORTED, weft_write_prepared(ep, kept, &bad, NULL));
    bad = args, bad.counter = 1;
    REFUSED(WEFT_ERR_HANDLE, weft_write_prepared(ep, kept, &bad, NULL));
    CHECK_OK(weft_counter_create(duo.b->endpoint, &bad.counter));
    bad.flags = WEFT_COUNT_PAGES; /* a flag that it was not prepared with */
    REFUSED(WEFT_ERR_INVALID, weft_write_prepared(ep, kept, &bad, NULL));
    bad = args, bad.notify_data_len = 1;
    REFUSED(WEFT_ERR_INVALID, weft_write_prepared(ep, kept, &bad, NULL));
    bad = args, bad.timeout_ns = UINT64_MAX;
    REFUSED(WEFT_ERR_LIMIT, weft_write_prepared(ep, kept, &bad, NULL));
    bad = args, bad.queue = (const weft_queue *)kept;
    REFUSED(WEFT_ERR_HANDLE, weft_write_prepared(ep, kept, &bad, NULL));
    CHECK_OK(write_kept(duo.a, kept, &args).status);
    CHECK_OK(weft_prepared_destroy(kept));
    duo_close(&duo);
    duo_close(&other);
}

/* One post carries each page that was prepared for counting, with or without a counter. */
static void counted_pages_have_a_length_limit(void)
{
    const uint64_t len = GIB + 1;
    struct duo duo = duo_open(4096);
    uint8_t *from = map_bytes(len), *to = map_bytes(len);
    weft_memory *local = register_one(duo.a->endpoint, from, len);
    weft_memory *remote = register_one(duo.b->endpoint, to, len);
    weft_remote_memory *theirs;
    char blob[4096];
    size_t n = descriptor_of(remote, blob, sizeof blob);
    CHECK_OK(weft_remote_memory_import(duo.a->endpoint, duo.a_to_b, blob, n, &theirs));
    struct pages_request pages = PAGES_REQUEST_INIT;
    weft_op_options args = WEFT_OP_OPTIONS_INIT;
    weft_prepared *kept;
    pages.local = local;
    pages.remote = theirs;
    pages.pages.page_count = 1;
    pages.options.flags = WEFT_COUNT_PAGES;
    pages.pages.page_len = len;
    REFUSED(WEFT_ERR_LIMIT, prepare_pages(duo.a->endpoint, &pages, &kept));
    pages.pages.page_len = 4096;
    kept = keep_pages(duo.a, &pages);
    CHECK_OK(write_kept(duo.a, kept, &args).status);
    CHECK_OK(weft_prepared_destroy(kept));
    duo_close(&duo);
}

/* A peer that allows only reads: the geometry can be read, not written. */
static void prepared_access_is_checked_at_submission(void)
{
    struct duo duo = duo_open(4096);
    weft_memory_args how = WEFT_MEMORY_ARGS_INIT;
    weft_memory_range range = {duo.b_bytes, 4096};
    weft_op_options args = WEFT_OP_OPTIONS_INIT;
    weft_memory *memory;
    weft_remote_memory *remote;
    char blob[4096];
    how.access = WEFT_ACCESS_REMOTE_READ;
    CHECK_OK(weft_memory_register(duo.b->endpoint, &range, 1, &how, &memory));
    size_t n = descriptor_of(memory, blob, sizeof blob);
    CHECK_OK(weft_remote_memory_import(duo.a->endpoint, duo.a_to_b, blob, n, &remote));
    weft_list_entry entries[2] = {{duo.a_memory, duo.b_of_a, 0, 0, 0, 0, 0, 9, 0},
                                  {duo.a_memory, remote, 0, 0, 0, 0, 0, 9, 0}};
    struct list_request list = LIST_REQUEST_INIT;
    weft_prepared *kept;
    weft_op id;
    list.entries = entries;
    list.count = 2;
    REFUSED(WEFT_ERR_REMOTE_ACCESS, submit_write_list(duo.a->endpoint, &list, NULL));
    CHECK(strstr(weft_last_error(), "entry 1:"));
    CHECK_OK(prepare_list(duo.a->endpoint, &list, &kept));
    REFUSED(WEFT_ERR_REMOTE_ACCESS, weft_write_prepared(duo.a->endpoint, kept, &args, NULL));
    CHECK_OK(weft_read_prepared(duo.a->endpoint, kept, &args, &id));
    CHECK_OK(box_await(duo.a, id, patience_ms()).status);
    CHECK_OK(weft_prepared_destroy(kept));
    struct pages_request pages = one_page(&duo);
    pages.remote = remote;
    kept = keep_pages(duo.a, &pages);
    REFUSED(WEFT_ERR_REMOTE_ACCESS, weft_write_prepared(duo.a->endpoint, kept, &args, NULL));
    CHECK_OK(weft_read_prepared(duo.a->endpoint, kept, &args, &id));
    CHECK_OK(box_await(duo.a, id, patience_ms()).status);
    CHECK_OK(weft_prepared_destroy(kept));
    CHECK_OK(weft_remote_memory_release(remote));
    CHECK_OK(weft_memory_deregister(memory));
    duo_close(&duo);
}

/* ---- One geometry used by several threads, and destroyed by one ---- */

#define THREADS 4
#define EACH 200

struct shared {
    struct duo duo;
    weft_prepared *kept;
    atomic_int accepted;
};

static void *writes_until_released(void *context)
{
    struct shared *shared = context;
    weft_op_options args = WEFT_OP_OPTIONS_INIT;
    for (int i = 0; i < EACH; i++) {
        weft_status status = weft_write_prepared(shared->duo.a->endpoint, shared->kept, &args, NULL);
        if (status == WEFT_ERR_HANDLE)
            break;
        CHECK(status == WEFT_OK || status == WEFT_ERR_AGAIN);
        shared->accepted += status == WEFT_OK;
    }
    return NULL;
}

static void threads_share_prepared_pages(void)
{
    struct shared shared = {.duo = duo_open(MIB)};
    struct duo *duo = &shared.duo;
    struct pages_request pages = one_page(duo);
    pages.pages.page_len = 1000;
    pages.pages.page_count = 1000;
    for (int round = 0; round < 5; round++) {
        pthread_t threads[THREADS];
        shared.accepted = 0;
        shared.kept = keep_pages(duo->a, &pages);
        for (int i = 0; i < THREADS; i++)
            CHECK(pthread_create(&threads[i], NULL, writes_until_released, &shared) == 0);
        while (shared.accepted < 20)
            sched_yield();
        CHECK_OK(weft_prepared_destroy(shared.kept));
        for (int i = 0; i < THREADS; i++)
            pthread_join(threads[i], NULL);
        for (int i = 0; i < shared.accepted; i++)
            CHECK_OK(box_take(duo->a, WEFT_COMPLETION_WRITE, patience_ms()).status);
        box_quiet(duo->a, 5);
    }
    duo_close(duo);
}

static const struct test tests[] = {
    {"prepared_pages_round_trip", "any", prepared_pages_round_trip},
    {"prepared_pages_round_trip_on_four_rails", "tcp,sim:like=tcp,sim:like=efa,sim:like=verbs",
     prepared_pages_round_trip_on_four_rails},
    {"hundred_thousand_pages_are_prepared", "tcp,host,sim:like=efa", hundred_thousand_pages_are_prepared},
    {"lists_are_prepared", "once", lists_are_prepared},
    {"prepared_pages_hold_their_memories", "once", prepared_pages_hold_their_memories},
    {"prepared_pages_of_a_closed_peer_fail", "any", prepared_pages_of_a_closed_peer_fail},
    {"counted_pages_have_a_length_limit", "once", counted_pages_have_a_length_limit},
    {"bad_arguments", "tcp,host,sim:like=efa", bad_arguments},
    {"prepared_access_is_checked_at_submission", "once", prepared_access_is_checked_at_submission},
    {"threads_share_prepared_pages", "once", threads_share_prepared_pages},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
