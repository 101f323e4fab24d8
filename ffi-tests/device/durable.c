/* Durable writes: what has completed survives a power cut. The fake disk (":volatile", src/device/file/fake.rs) has what is
 * not flushed in memory alone, so the file, read beside it, shows what a power cut would leave. */
#include "files.h"

#define LEN (2 * MIB)

/* Two endpoints, the second with a file. */
struct stored {
    struct duo duo;
    int fd;
    weft_memory *memory;
    weft_remote_memory *remote;
};

static int new_empty(void)
{
    int fd = new_file();
    CHECK_EQ(ftruncate(fd, LEN), 0);
    return fd;
}

static struct stored stored_open_between(const char *disk, const weft_endpoint_config *writer, const weft_endpoint_config *owner)
{
    struct stored stored;
    disk_begin(disk);
    stored.duo = duo_open_between(LEN, writer, owner);
    stored.fd = new_empty();
    stored.memory = register_file(stored.duo.b, stored.fd, 0, LEN);
    stored.remote = import_of(&stored.duo, stored.memory);
    fill_random(stored.duo.a_bytes, LEN, 1);
    return stored;
}

static struct stored stored_open(const char *disk)
{
    weft_endpoint_config config = test_config();
    return stored_open_between(disk, &config, &config);
}

static void stored_close(struct stored *stored)
{
    CHECK_OK(weft_memory_deregister(stored->memory));
    close(stored->fd);
    duo_close(&stored->duo);
}

static struct range_request durable_args(struct stored *stored, uint64_t offset, uint64_t len)
{
    struct range_request args = range_args(stored->duo.a_memory, stored->remote, len);
    args.local_offset = args.remote_offset = offset;
    args.options.flags = WEFT_DURABLE;
    return args;
}

static weft_completion moved(struct stored *stored, const struct range_request *args)
{
    return box_await(stored->duo.a, write_now(stored->duo.a, args), 4 * patience_ms());
}

/* Whether a power cut would leave these bytes. */
static bool survives(struct stored *stored, uint64_t offset, uint64_t len)
{
    uint8_t *got = malloc(len);
    CHECK(got != NULL);
    CHECK_EQ(pread(stored->fd, got, len, offset), (ssize_t)len);
    bool same = memcmp(got, stored->duo.a_bytes + offset, len) == 0;
    free(got);
    return same;
}

static double flushes_of(struct box *box)
{
    static char text[1 << 20];
    size_t len;
    CHECK_OK(weft_endpoint_metrics(box->endpoint, text, sizeof text - 1, &len));
    text[len] = 0;
    const char *at = strstr(text, "\nweft_file_flushes_total ");
    CHECK(at != NULL);
    return strtod(strchr(at, ' '), NULL);
}

/* ---- What has completed survives ---- */

static void completed_durable_writes_survive(void)
{
    struct stored stored = stored_open("fake:volatile:late=200");
    uint64_t seed = 3;
    struct range_request plain = durable_args(&stored, 0, 70000);
    plain.options.flags = 0;
    CHECK_OK(moved(&stored, &plain).status);
    CHECK(!survives(&stored, 0, 70000)); /* or this test would say nothing */
    for (int i = 0; i < 40; i++) {
        uint64_t len = 1 + next_random(&seed) % 200000, offset = next_random(&seed) % (LEN - len);
        struct range_request args = durable_args(&stored, offset, len);
        fill_random(stored.duo.a_bytes + offset, len, seed);
        CHECK_OK(moved(&stored, &args).status);
        CHECK(survives(&stored, offset, len));
        CHECK(i > 0 || survives(&stored, 0, 1)); /* and what was written before */
    }
    stored_close(&stored);
}

/* The tests above and below see it where a flush does nothing. */
static void flush_that_does_nothing_is_noticed(void)
{
    struct stored stored = stored_open("fake:volatile:flush-lies");
    struct range_request args = durable_args(&stored, 4096, 65536);
    CHECK_OK(moved(&stored, &args).status);
    CHECK(!survives(&stored, 4096, 65536));
    stored_close(&stored);
}

/* Notification and counter come after the flush, of pages and of a list, whose entries raise counters, too. */
static void notification_and_counter_follow_the_flush(void)
{
    struct stored stored = stored_open("fake:volatile:flush-late=20000");
    struct duo *duo = &stored.duo;
    weft_counter counter;
    uint64_t value;
    CHECK_OK(weft_counter_create(duo->b->endpoint, &counter));
    struct range_request args = durable_args(&stored, 0, 100000);
    args.options.flags |= WEFT_NOTIFY;
    args.options.notify = 7;
    args.options.counter = counter;
    weft_op id = write_now(duo->a, &args), expected = expect_one(duo->b->endpoint, counter, 20 * SECOND, NULL);
    CHECK_OK(box_await(duo->b, expected, patience_ms()).status);
    CHECK(survives(&stored, 0, 100000));
    CHECK_EQ(box_take(duo->b, WEFT_COMPLETION_NOTIFICATION, patience_ms()).notify, 7);
    CHECK_OK(box_await(duo->a, id, patience_ms()).status);

    struct list_request list = LIST_REQUEST_INIT;
    weft_list_entry entries[3] = {{0}};
    for (int i = 0; i < 3; i++)
        entries[i] = (weft_list_entry){.local = duo->a_memory, .remote = stored.remote, .len = 50000, .counter = counter,
                                       .local_offset = 200000 + i * 60000, .remote_offset = 200000 + i * 60000};
    entries[2] = (weft_list_entry){.peer = duo->a_to_b, .counter = counter};
    list.entries = entries;
    list.count = 3;
    list.options.flags = WEFT_DURABLE;
    CHECK_OK(submit_write_list(duo->a->endpoint, &list, &id));
    do {
        CHECK_OK(weft_counter_read(duo->b->endpoint, counter, &value));
        box_pump(duo->b, 0);
    } while (value == 1);
    CHECK(survives(&stored, 200000, 50000) && survives(&stored, 260000, 50000));
    CHECK_OK(box_await(duo->a, id, patience_ms()).status);
    CHECK_OK(weft_counter_read(duo->b->endpoint, counter, &value));
    CHECK_EQ(value, 4);
    stored_close(&stored);
}

/* Pages, prepared ones, none at all, a grant, and an endpoint that is its own peer. */
static void every_form_of_a_write_is_durable(void)
{
    struct stored stored = stored_open("fake:volatile");
    struct duo *duo = &stored.duo;
    uint32_t pages[4] = {3, 0, 2, 1};
    struct pages_request args = PAGES_REQUEST_INIT;
    struct range_request plain = durable_args(&stored, MIB, 5000);
    weft_op id;
    args.local = duo->a_memory;
    args.remote = stored.remote;
    args.pages.local.pages = args.pages.remote.pages = pages;
    args.pages.page_len = 64 * KIB;
    args.pages.page_count = 4;
    args.options.flags = WEFT_DURABLE;
    CHECK_OK(submit_write_pages(duo->a->endpoint, &args, &id));
    CHECK_OK(box_await(duo->a, id, patience_ms()).status);
    CHECK(survives(&stored, 0, 256 * KIB));
    plain.options.flags = 0;
    CHECK_OK(moved(&stored, &plain).status);
    CHECK(!survives(&stored, MIB, 5000));
    args.pages.page_count = 0;
    CHECK_OK(submit_write_pages(duo->a->endpoint, &args, &id));
    CHECK_OK(box_await(duo->a, id, patience_ms()).status);
    CHECK(survives(&stored, MIB, 5000));

    weft_memory_range range = {(void *)0, LEN};
    weft_memory *granted;
    CHECK_OK(try_file(duo->b, stored.fd, &range, 1, WEFT_ACCESS_GRANTED, &granted));
    weft_remote_memory *remote = import_of(duo, granted);
    struct range_request under = durable_args(&stored, 300000, 70000);
    under.remote = remote;
    CHECK_OK(weft_grant_create(granted, duo->b_to_a, NULL, &under.options.grant));
    CHECK_OK(moved(&stored, &under).status);
    CHECK(survives(&stored, 300000, 70000));
    CHECK_OK(weft_grant_revoke(duo->b->endpoint, &under.options.grant, NULL, &id));
    CHECK_OK(box_await(duo->b, id, patience_ms()).status);
    CHECK_STATUS(moved(&stored, &under).status, WEFT_ERR_REVOKED);
    CHECK_OK(weft_memory_deregister(granted));
    stored_close(&stored);
}

static void endpoint_flushes_its_own_file(void)
{
    struct box *box = (disk_begin("fake:volatile"), box_of(open_endpoint()));
    char address[4096], blob[4096];
    uint8_t *bytes = map_bytes(LEN), *got = malloc(LEN);
    weft_memory *mine = register_one(box->endpoint, bytes, LEN);
    int fd = new_empty();
    weft_memory *memory = register_file(box, fd, 0, LEN);
    weft_remote_memory *remote;
    weft_peer self;
    weft_op id;
    fill_random(bytes, LEN, 4);
    CHECK_OK(weft_peer_connect(box->endpoint, address, address_of(box->endpoint, address, sizeof address), NULL, &self));
    box_take(box, WEFT_COMPLETION_PEER_UP, patience_ms());
    CHECK_OK(weft_remote_memory_import(box->endpoint, self, blob, descriptor_of(memory, blob, sizeof blob), &remote));
    struct range_request args = range_args(mine, remote, LEN);
    args.options.flags = WEFT_DURABLE;
    CHECK_OK(submit_write(box->endpoint, &args, &id));
    CHECK_OK(box_await(box, id, patience_ms()).status);
    CHECK_EQ(pread(fd, got, LEN, 0), (ssize_t)LEN);
    check_bytes(got, bytes, LEN);
    CHECK_OK(weft_memory_deregister(memory));
    free(got);
    close(fd);
    box_close(box);
}

/* ---- One flush for all ---- */

static void one_flush_serves_all_that_wait(void)
{
    enum { WRITES = 32 };
    struct stored stored = stored_open("fake:volatile:flush-late=100000");
    struct duo *duo = &stored.duo;
    weft_op ids[WRITES];
    for (int i = 0; i < WRITES; i++) {
        struct range_request args = durable_args(&stored, i * 64 * KIB, 64 * KIB);
        ids[i] = write_now(duo->a, &args);
    }
    for (int i = 0; i < WRITES; i++) {
        CHECK_OK(box_await(duo->a, ids[i], patience_ms()).status);
        CHECK(survives(&stored, i * 64 * KIB, 64 * KIB));
    }
    CHECK(flushes_of(duo->b) < WRITES / 4);
    stored_close(&stored);
}

/* ---- A flush that fails, or does not end ---- */

static void check_spoiled(weft_completion done)
{
    check_file_error(done, EIO);
}

static void failed_flush_spoils_the_memory(void)
{
    struct stored stored = stored_open("fake:volatile:flush-errno=5");
    struct range_request args = durable_args(&stored, 0, 65536), plain = args, again = args;
    weft_memory *second = register_file(stored.duo.b, stored.fd, 0, LEN);
    weft_op id;
    plain.options.flags = 0;
    again.remote = import_of(&stored.duo, second);
    CHECK_OK(moved(&stored, &plain).status);
    check_spoiled(moved(&stored, &args)); /* the next flush would succeed, and has lost these bytes */
    check_spoiled(moved(&stored, &again));
    check_spoiled(moved(&stored, &args));
    check_spoiled(moved(&stored, &plain));
    CHECK_OK(submit_read(stored.duo.a->endpoint, &plain, &id));
    check_spoiled(box_await(stored.duo.a, id, patience_ms()));
    struct range_request beside = range_args(stored.duo.a_memory, stored.duo.b_of_a, LEN);
    CHECK_OK(moved(&stored, &beside).status);
    CHECK_OK(weft_memory_deregister(stored.memory));
    CHECK_OK(weft_memory_deregister(second));
    stored.memory = register_file(stored.duo.b, stored.fd, 0, LEN);
    args.remote = import_of(&stored.duo, stored.memory);
    CHECK_OK(moved(&stored, &args).status);
    CHECK(survives(&stored, 0, 65536));
    stored_close(&stored);
}

/* It ends by the deadline, by a cancel, by the owner's patience, and with the peer; and the owner can be closed. */
static void flush_that_hangs_holds_no_operation(void)
{
    weft_endpoint_config writer = test_config(), owner = test_config();
    owner.timeout_ns = patiently(700) * MS;
    struct stored stored = stored_open_between("fake:volatile:flush-hang", &writer, &owner);
    struct duo *duo = &stored.duo;
    struct range_request args = durable_args(&stored, 0, 65536);
    struct range_request beside = range_args(duo->a_memory, duo->b_of_a, LEN);
    args.options.timeout_ns = 100 * MS;
    CHECK_STATUS(moved(&stored, &args).status, WEFT_ERR_TIMED_OUT);
    args.options.timeout_ns = 60 * SECOND;
    weft_op canceled = write_now(duo->a, &args), late = write_now(duo->a, &args);
    CHECK_OK(moved(&stored, &beside).status);
    CHECK_OK(weft_op_cancel(duo->a->endpoint, canceled));
    CHECK_STATUS(box_await(duo->a, canceled, patience_ms()).status, WEFT_ERR_CANCELED);
    check_file_error(box_await(duo->a, late, 4 * patience_ms()), ETIMEDOUT);
    check_file_error(moved(&stored, &args), ETIMEDOUT); /* at once */
    CHECK_OK(moved(&stored, &beside).status);
    CHECK_STATUS(weft_memory_deregister(stored.memory), WEFT_ERR_TIMED_OUT);
    CHECK_STATUS(weft_endpoint_destroy(duo->b->endpoint), WEFT_ERR_TIMED_OUT);
    close(stored.fd);
}

/* More of them than may wait for disks at once: requests behind these, as atomics, wait until a disk has answered some. */
static void flushes_beyond_their_most_hold_back_requests(void)
{
    enum { FLUSHES = 1200, LATE_MS = 600 };
    struct stored stored = stored_open("fake:flush-late=600000");
    struct duo *duo = &stored.duo;
    struct pages_request args = PAGES_REQUEST_INIT;
    struct atomic_request beside = ATOMIC_REQUEST_INIT;
    weft_op ids[FLUSHES], id;
    uint64_t began = now_ns(), longest = 0;
    args.local = duo->a_memory;
    args.remote = stored.remote;
    args.pages.page_len = 4096;
    args.options.flags = WEFT_DURABLE;
    beside.remote = duo->b_of_a;
    for (int i = 0; i < FLUSHES; i++)
        CHECK_OK(submit_write_pages(duo->a->endpoint, &args, &ids[i]));
    while (now_ns() - began < LATE_MS * MS) {
        uint64_t asked = now_ns();
        CHECK_OK(submit_fetch_add(duo->a->endpoint, &beside, &id));
        CHECK_OK(box_await(duo->a, id, 4 * patience_ms()).status);
        longest = now_ns() - asked > longest ? now_ns() - asked : longest;
    }
    CHECK(longest > LATE_MS / 2 * MS);
    for (int i = 0; i < FLUSHES; i++)
        CHECK_OK(box_await(duo->a, ids[i], 4 * patience_ms()).status);
    stored_close(&stored);
}

/* ---- What is refused ---- */

static void what_cannot_be_durable_is_refused(void)
{
    struct stored stored = stored_open(NULL);
    struct duo *duo = &stored.duo;
    weft_op id;
    weft_counter counter;
    struct range_request args = durable_args(&stored, 0, 4096);
    weft_peer_properties peer = {.size = sizeof peer};
    CHECK_OK(weft_peer_info(duo->a->endpoint, duo->a_to_b, &peer));
    CHECK(peer.capabilities & WEFT_CAPABILITY_DURABLE);
    REFUSED(WEFT_ERR_UNSUPPORTED, submit_read(duo->a->endpoint, &args, &id));
    args.remote = duo->b_of_a;
    REFUSED(WEFT_ERR_UNSUPPORTED, submit_write(duo->a->endpoint, &args, &id));
    weft_list_entry entries[2] = {
        {.local = duo->a_memory, .remote = stored.remote, .len = 4096},
        {.local = duo->a_memory, .remote = duo->b_of_a, .len = 4096},
    };
    struct list_request list = LIST_REQUEST_INIT;
    list.entries = entries;
    list.count = 2;
    list.options.flags = WEFT_DURABLE;
    REFUSED(WEFT_ERR_UNSUPPORTED, submit_write_list(duo->a->endpoint, &list, &id));
    CHECK_OK(weft_counter_create(duo->b->endpoint, &counter));
    args.remote = stored.remote;
    args.options.counter = counter;
    args.options.flags |= WEFT_COUNT_PAGES;
    REFUSED(WEFT_ERR_INVALID, submit_write(duo->a->endpoint, &args, &id));
    stored_close(&stored);
}

/* ---- The owner dies ---- */

static void durable_writes_survive_the_end_of_their_owner(void)
{
    disk_begin("fake:volatile:flush-late=3000");
    kill_an_owner(WEFT_DURABLE);
}

/* Where NICs check no grants, a submission under one that was revoked is refused. */
#define FABRICS "tcp,host,verbs,efa,sim:like=verbs"

static const struct test tests[] = {
    {"completed_durable_writes_survive", FABRICS, completed_durable_writes_survive},
    {"flush_that_does_nothing_is_noticed", FABRICS, flush_that_does_nothing_is_noticed},
    {"notification_and_counter_follow_the_flush", FABRICS, notification_and_counter_follow_the_flush},
    {"every_form_of_a_write_is_durable", "tcp,host", every_form_of_a_write_is_durable},
    {"endpoint_flushes_its_own_file", FABRICS, endpoint_flushes_its_own_file},
    {"one_flush_serves_all_that_wait", FABRICS, one_flush_serves_all_that_wait},
    {"failed_flush_spoils_the_memory", FABRICS, failed_flush_spoils_the_memory},
    {"flush_that_hangs_holds_no_operation", FABRICS, flush_that_hangs_holds_no_operation},
    {"flushes_beyond_their_most_hold_back_requests", "tcp,host", flushes_beyond_their_most_hold_back_requests},
    {"what_cannot_be_durable_is_refused", FABRICS, what_cannot_be_durable_is_refused},
    {"durable_writes_survive_the_end_of_their_owner", FABRICS, durable_writes_survive_the_end_of_their_owner},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
