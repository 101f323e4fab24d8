/* Memory behind a disk, which is slow, fails or hangs: a fake device that does so (":slow", src/device/fake.rs), or a file. */
#include "files.h"
#include "gpu.h"

#define LEN (4 * MIB)
#define RUN (192 * KIB)

/* Two endpoints; the second one has a disk, too. */
struct disk {
    struct duo duo;
    uint8_t *at;
    weft_memory *memory;
    weft_remote_memory *remote;
};

static struct disk disk_open(const char *options, uint32_t access)
{
    struct disk disk;
    weft_memory_args args = WEFT_MEMORY_ARGS_INIT;
    char blob[4096];
    devices_begin(options);
    disk.duo = duo_open(LEN);
    disk.at = device_alloc(0, LEN);
    weft_memory_range range = {disk.at, LEN};
    args.access = access;
    CHECK_OK(weft_memory_register(disk.duo.b->endpoint, &range, 1, &args, &disk.memory));
    size_t n = descriptor_of(disk.memory, blob, sizeof blob);
    CHECK_OK(weft_remote_memory_import(disk.duo.a->endpoint, disk.duo.a_to_b, blob, n, &disk.remote));
    fill_random(disk.duo.a_bytes, LEN, 1);
    return disk;
}

static struct range_request to_disk(struct disk *disk, uint64_t len, uint64_t timeout_ns)
{
    struct range_request args = range_args(disk->duo.a_memory, disk->remote, len);
    args.options.timeout_ns = timeout_ns;
    return args;
}

/* The disk's bytes are those of a seed. */
static void check_disk(struct disk *disk, uint64_t seed, uint64_t len)
{
    uint8_t *got = malloc(len);
    CHECK(got != NULL);
    device_get(got, disk->at, len);
    CHECK_EQ(differs_random(got, len, seed), -1);
    free(got);
}

static void fill_disk(struct disk *disk, uint64_t seed)
{
    uint8_t *bytes = malloc(LEN);
    CHECK(bytes != NULL);
    fill_random(bytes, LEN, seed);
    device_put(disk->at, bytes, LEN);
    free(bytes);
}

/* Memory of the same peer takes this many writes, reads and messages. */
static void move_memory(struct duo *duo, int count)
{
    struct range_request args = range_args(duo->a_memory, duo->b_of_a, 64 * KIB);
    for (int i = 0; i < count; i++) {
        weft_op id;
        CHECK_OK(box_await(duo->a, write_now(duo->a, &args), patience_ms()).status);
        CHECK_OK(submit_read(duo->a->endpoint, &args, &id));
        CHECK_OK(box_await(duo->a, id, patience_ms()).status);
        CHECK_OK(box_await(duo->a, send_now(duo->a, duo->a_to_b, "word", 4), patience_ms()).status);
        box_take(duo->b, WEFT_COMPLETION_MESSAGE, patience_ms());
    }
}

static uint64_t resets_of(struct box *box)
{
    weft_rail_statistics rail = WEFT_RAIL_STATISTICS_INIT;
    CHECK_OK(weft_rail_info(box->endpoint, 0, NULL, &rail));
    return rail.lane_resets;
}

static void slow_disk_gets_every_byte(void)
{
    struct disk disk = disk_open(":slow:late=3000", 0);
    struct range_request args = to_disk(&disk, LEN, 0);
    weft_op ids[16], id;
    CHECK_OK(box_await(disk.duo.a, write_now(disk.duo.a, &args), patience_ms()).status);
    check_disk(&disk, 1, LEN);
    memset(disk.duo.a_bytes, 0, LEN);
    args.len = LEN / COUNT(ids);
    for (size_t i = 0; i < COUNT(ids); i++) {
        args.local_offset = args.remote_offset = i * args.len;
        CHECK_OK(submit_read(disk.duo.a->endpoint, &args, &ids[i]));
    }
    for (size_t i = 0; i < COUNT(ids); i++)
        CHECK_OK(box_await(disk.duo.a, ids[i], patience_ms()).status);
    CHECK_EQ(differs_random(disk.duo.a_bytes, LEN, 1), -1);
    struct pages_request pages = PAGES_REQUEST_INIT;
    uint32_t from[64], to[64];
    for (uint32_t i = 0; i < COUNT(from); i++)
        from[i] = 63 - i, to[i] = i;
    pages.local = disk.duo.a_memory;
    pages.remote = disk.remote;
    pages.pages.local.pages = from;
    pages.pages.remote.pages = to;
    pages.pages.local.page_stride = pages.pages.remote.page_stride = pages.pages.page_len = LEN / 64;
    pages.pages.page_count = 64;
    CHECK_OK(submit_write_pages(disk.duo.a->endpoint, &pages, &id));
    CHECK_OK(box_await(disk.duo.a, id, patience_ms()).status);
    uint8_t *got = malloc(LEN);
    device_get(got, disk.at, LEN);
    for (size_t i = 0; i < 64; i++)
        CHECK_EQ(memcmp(got + i * (LEN / 64), disk.duo.a_bytes + (63 - i) * (LEN / 64), LEN / 64), 0);
    free(got);
    CHECK_EQ(resets_of(disk.duo.a) + resets_of(disk.duo.b), 0);
    duo_close(&disk.duo);
}

/* One of three entries fails: the disk is full there. */
static void failed_write_names_errno_and_entry(void)
{
    struct disk disk = disk_open(":slow:errno=28:fail=3", 0);
    struct range_request first = to_disk(&disk, 4096, 0);
    weft_list_entry entries[3];
    struct list_request list = LIST_REQUEST_INIT;
    weft_op id;
    /* Over host, this makes the channel whose requests have an entry each. */
    CHECK_OK(box_await(disk.duo.a, write_now(disk.duo.a, &first), patience_ms()).status);
    for (uint64_t i = 0; i < COUNT(entries); i++)
        entries[i] = (weft_list_entry){.local = disk.duo.a_memory, .remote = disk.remote,
                                       .local_offset = i * RUN, .remote_offset = i * RUN, .len = RUN};
    list.entries = entries;
    list.count = COUNT(entries);
    CHECK_OK(submit_write_list(disk.duo.a->endpoint, &list, &id));
    weft_completion c = box_await(disk.duo.a, id, patience_ms());
    CHECK_STATUS(c.status, WEFT_ERR_FILE);
    CHECK_EQ(c.provider_errno, ENOSPC);
    CHECK_EQ(c.entry, 1);
    CHECK_OK(submit_write_list(disk.duo.a->endpoint, &list, &id));
    CHECK_OK(box_await(disk.duo.a, id, patience_ms()).status);
    check_disk(&disk, 1, 3 * RUN);
    move_memory(&disk.duo, 3);
    CHECK_EQ(resets_of(disk.duo.a) + resets_of(disk.duo.b), 0);
    duo_close(&disk.duo);
}

static void failed_read_ends_alone(void)
{
    struct disk disk = disk_open(":slow:errno=5:fail=1", 0);
    struct range_request args = to_disk(&disk, RUN, 0);
    weft_op id;
    CHECK_OK(submit_read(disk.duo.a->endpoint, &args, &id));
    weft_completion c = box_await(disk.duo.a, id, patience_ms());
    CHECK_STATUS(c.status, WEFT_ERR_FILE);
    CHECK_EQ(c.provider_errno, EIO);
    CHECK_OK(submit_read(disk.duo.a->endpoint, &args, &id));
    CHECK_OK(box_await(disk.duo.a, id, patience_ms()).status);
    CHECK_EQ(resets_of(disk.duo.a) + resets_of(disk.duo.b), 0);
    duo_close(&disk.duo);
}

/* A disk hangs for good (so its endpoint cannot be closed): memory and messages of the same peer go on, and its operation ends by its deadline. */
static void memory_goes_on_beside_a_hung_disk(void)
{
    struct disk disk = disk_open(":slow:hang=1:ever:patience=600000000", 0);
    struct range_request args = to_disk(&disk, RUN, 60000 * MS);
    weft_op hung = write_now(disk.duo.a, &args);
    move_memory(&disk.duo, 50);
    CHECK_OK(weft_op_cancel(disk.duo.a->endpoint, hung));
    CHECK_STATUS(box_await(disk.duo.a, hung, patience_ms()).status, WEFT_ERR_CANCELED);
    move_memory(&disk.duo, 5);
    CHECK_EQ(resets_of(disk.duo.a) + resets_of(disk.duo.b), 0);
}

static void hung_write_ends_by_its_deadline(void)
{
    struct disk disk = disk_open(":slow:hang=1:ever:patience=600000000", 0);
    struct range_request args = to_disk(&disk, LEN, 150 * MS);
    uint64_t began = judged_from();
    weft_completion c = box_await(disk.duo.a, write_now(disk.duo.a, &args), patience_ms());
    CHECK_WITHIN(began, now_ns(), 350 * MS);
    CHECK_STATUS(c.status, WEFT_ERR_TIMED_OUT);
    memset(disk.duo.a_bytes, 0, LEN);
    move_memory(&disk.duo, 5);
    CHECK_EQ(resets_of(disk.duo.a) + resets_of(disk.duo.b), 0);
}

/* The owner gives its disk up: the operation fails, and what takes the access back says that it cannot. */
static void disk_that_does_not_return_holds_its_memory(void)
{
    struct disk disk = disk_open(":slow:hang=1:ever:patience=100000", 0);
    struct range_request args = to_disk(&disk, RUN, 0);
    struct fence_request fence = FENCE_REQUEST_INIT;
    weft_op id;
    weft_completion c = box_await(disk.duo.a, write_now(disk.duo.a, &args), patience_ms());
    CHECK_STATUS(c.status, WEFT_ERR_FILE);
    CHECK_EQ(c.provider_errno, ETIMEDOUT);
    args.local_offset = args.remote_offset = RUN;
    CHECK_OK(box_await(disk.duo.a, write_now(disk.duo.a, &args), patience_ms()).status);
    fence.peer = disk.duo.b_to_a;
    fence.options.timeout_ns = 100 * MS;
    CHECK_OK(submit_fence(disk.duo.b->endpoint, &fence, &id));
    CHECK_STATUS(box_await(disk.duo.b, id, patience_ms()).status, WEFT_ERR_TIMED_OUT);
    move_memory(&disk.duo, 3);
    CHECK_STATUS(weft_memory_deregister(disk.memory), WEFT_ERR_TIMED_OUT);
    CHECK_STATUS(weft_memory_deregister(disk.memory), WEFT_ERR_TIMED_OUT);
}

/* So many writes hang that the rest fails at once, and other memory goes on. */
static void disk_that_hangs_is_refused(void)
{
    struct disk disk = disk_open(":slow:hang=1:all:ever:patience=50000", 0);
    struct range_request args = to_disk(&disk, RUN, 60000 * MS);
    weft_op ids[40];
    for (size_t i = 0; i < COUNT(ids); i++)
        ids[i] = write_now(disk.duo.a, &args);
    for (size_t i = 0; i < COUNT(ids); i++) {
        weft_completion c = box_await(disk.duo.a, ids[i], patience_ms());
        CHECK_STATUS(c.status, WEFT_ERR_FILE);
        CHECK_EQ(c.provider_errno, ETIMEDOUT);
    }
    move_memory(&disk.duo, 5);
    CHECK_EQ(resets_of(disk.duo.a) + resets_of(disk.duo.b), 0);
}

/* ---- What takes access back waits for a copy in flight: nothing lands afterwards ---- */

/* The first write takes 0.6 s, and its operation ends long before. */
#define HANGS ":slow:hang=1:patience=300000"

static void begin_late_write(struct disk *disk, const weft_grant_token *grant)
{
    struct range_request args = to_disk(disk, RUN, 50 * MS);
    if (grant != NULL)
        args.options.grant = *grant;
    CHECK_STATUS(box_await(disk->duo.a, write_now(disk->duo.a, &args), patience_ms()).status, WEFT_ERR_TIMED_OUT);
}

static void check_nothing_lands(struct disk *disk)
{
    fill_disk(disk, 7);
    sleep_ms(700);
    check_disk(disk, 7, LEN);
}

static void fence_waits_for_a_disk(void)
{
    struct disk disk = disk_open(HANGS, 0);
    struct fence_request fence = FENCE_REQUEST_INIT;
    weft_op id;
    begin_late_write(&disk, NULL);
    fence.peer = disk.duo.b_to_a;
    CHECK_OK(submit_fence(disk.duo.b->endpoint, &fence, &id));
    CHECK_OK(box_await(disk.duo.b, id, patience_ms()).status);
    check_nothing_lands(&disk);
    duo_close(&disk.duo);
}

/* Writes from a file here, which end early: their peer has yet to begin some of what it was asked for. */
static void fence_waits_for_what_was_asked_for_a_file(void)
{
    struct disk disk = disk_open(":slow:late=700000", 0);
    struct duo *duo = &disk.duo;
    struct fence_request fence = FENCE_REQUEST_INIT;
    struct range_request args = to_disk(&disk, 4096, 150 * MS);
    int fd = new_file();
    weft_op ids[30], id;
    CHECK(pwrite(fd, duo->a_bytes, 64 * 4096, 0) == 64 * 4096);
    args.local = register_file(duo->a, fd, 0, 64 * 4096);
    for (size_t i = 0; i < COUNT(ids); i++) {
        args.local_offset = args.remote_offset = i * 4096;
        ids[i] = write_now(duo->a, &args);
        if (i == 19 || i + 1 == COUNT(ids)) /* the first have taken all of the disk's slots */
            for (size_t j = i == 19 ? 0 : 20; j <= i; j++)
                CHECK_STATUS(box_await(duo->a, ids[j], patience_ms()).status, WEFT_ERR_TIMED_OUT);
    }
    fence.peer = duo->b_to_a;
    CHECK_OK(submit_fence(duo->b->endpoint, &fence, &id));
    CHECK_OK(box_await(duo->b, id, patience_ms()).status);
    fill_disk(&disk, 7);
    sleep_ms(1000);
    check_disk(&disk, 7, LEN);
    close(fd);
    duo_close(duo);
}

static void revoke_waits_for_a_disk(void)
{
    struct disk disk = disk_open(HANGS, WEFT_ACCESS_GRANTED);
    weft_grant_token token;
    weft_op id;
    CHECK_OK(weft_grant_create(disk.memory, disk.duo.b_to_a, NULL, &token));
    begin_late_write(&disk, &token);
    CHECK_OK(weft_grant_revoke(disk.duo.b->endpoint, &token, NULL, &id));
    CHECK_OK(box_await(disk.duo.b, id, patience_ms()).status);
    check_nothing_lands(&disk);
    duo_close(&disk.duo);
}

/* A write has its bytes, but its count waits behind a write that the disk keeps: the revoke waits for the count. */
static void revoke_waits_for_a_count(bool own_disk)
{
    struct disk disk = disk_open(HANGS, 0);
    struct duo *duo = &disk.duo;
    struct range_request first = to_disk(&disk, RUN, 0);
    struct list_request list = LIST_REQUEST_INIT;
    weft_memory_range range = {own_disk ? duo->b_bytes : device_alloc(0, RUN), RUN}, from = {device_alloc(0, RUN), RUN};
    weft_memory_args granted = WEFT_MEMORY_ARGS_INIT;
    weft_memory *memory, *own = NULL;
    weft_counter counter;
    weft_op id;
    uint64_t before, after;
    granted.access = WEFT_ACCESS_GRANTED;
    CHECK_OK(weft_memory_register(duo->b->endpoint, &range, 1, &granted, &memory));
    CHECK_OK(weft_grant_create(memory, duo->b_to_a, NULL, &list.options.grant));
    CHECK_OK(weft_counter_create(duo->b->endpoint, &counter));
    if (own_disk)
        CHECK_OK(weft_memory_register(duo->a->endpoint, &from, 1, NULL, &own));
    weft_list_entry entry = {.local = own_disk ? own : duo->a_memory, .remote = import_of(duo, memory), .len = RUN, .counter = counter};
    list.entries = &entry;
    list.count = 1;
    write_now(duo->a, &first);
    sleep_ms(50); /* its launch is the one that hangs */
    CHECK_OK(submit_write_list(duo->a->endpoint, &list, &id));
    sleep_ms(100);
    CHECK_OK(weft_grant_revoke(duo->b->endpoint, &list.options.grant, NULL, &id));
    CHECK_OK(box_await(duo->b, id, patience_ms()).status);
    CHECK_OK(weft_counter_read(duo->b->endpoint, counter, &before));
    sleep_ms(700);
    CHECK_OK(weft_counter_read(duo->b->endpoint, counter, &after));
    CHECK_EQ(after, before);
    duo_close(duo);
}

static void revoke_waits_for_a_count_behind_a_disk(void) { revoke_waits_for_a_count(false); }
static void revoke_waits_for_a_count_of_an_own_disk(void) { revoke_waits_for_a_count(true); }

static void deregistration_waits_for_a_disk(void)
{
    struct disk disk = disk_open(HANGS, 0);
    begin_late_write(&disk, NULL);
    CHECK_OK(weft_memory_deregister(disk.memory));
    check_nothing_lands(&disk);
    duo_close(&disk.duo);
}

static void end_of_a_peer_waits_for_a_disk(void)
{
    struct disk disk = disk_open(HANGS, 0);
    begin_late_write(&disk, NULL);
    CHECK_OK(weft_peer_disconnect(disk.duo.b->endpoint, disk.duo.b_to_a));
    box_take(disk.duo.b, WEFT_COMPLETION_PEER_DOWN, patience_ms());
    check_nothing_lands(&disk);
    duo_close(&disk.duo);
}

/* ---- Operations that have ended leave the initiator's memory alone ---- */

/* Several NICs read pages of one operation: its completion waits until each of them leaves the memory alone. */
static void canceled_read_leaves_memory_alone_over_every_rail(void)
{
    enum { ROUNDS = 150 };
    weft_endpoint_config config = test_config();
    config.workers = config.tcp_streams = 3;
    struct duo duo = duo_open_between(LEN, &config, &config);
    int fd = new_file(), canceled = 0;
    uint8_t *zero = calloc(1, LEN);
    CHECK(zero != NULL && pwrite(fd, zero, LEN, 0) == LEN);
    weft_memory *memory = register_file(duo.b, fd, 0, LEN);
    struct range_request args = range_args(duo.a_memory, import_of(&duo, memory), LEN);
    for (int round = 0; round < ROUNDS; round++) {
        weft_op id;
        CHECK_OK(submit_read(duo.a->endpoint, &args, &id));
        for (uint64_t until = now_ns() + round % 10 * 300000; now_ns() < until;)
            box_pump(duo.a, 0);
        weft_status status = weft_op_cancel(duo.a->endpoint, id);
        CHECK_ONE_OF(status, WEFT_OK, WEFT_ERR_HANDLE);
        status = box_await(duo.a, id, patience_ms()).status;
        CHECK_ONE_OF(status, WEFT_OK, WEFT_ERR_CANCELED);
        memset(duo.a_bytes, 0x33, LEN);
        canceled += status == WEFT_ERR_CANCELED;
        sleep_ms(2);
        for (uint64_t i = 0; i < LEN; i++)
            if (duo.a_bytes[i] != 0x33)
                FAIL("in round %d byte %" PRIu64 " has changed since the completion", round, i);
    }
    CHECK(canceled > 0);
    CHECK_OK(weft_memory_deregister(memory));
    free(zero);
    close(fd);
    duo_close(&duo);
}

/* Whether a disk answers or not, what was canceled, or is late, leaves its memory alone, and its room to others. */
static void ended_operations_of_a_hung_disk_hold_nothing(void)
{
    enum { COUNT_OF = 18 }; /* more than a memory has without answers, fewer than it has slots at its owner */
    disk_begin("fake:hang=0");
    struct duo duo = duo_open(LEN);
    int fd = new_file();
    CHECK_EQ(ftruncate(fd, LEN), 0);
    uint8_t *bytes = map_bytes(MIB);
    weft_memory *memory = register_file(duo.b, fd, 0, LEN), *local = register_one(duo.a->endpoint, bytes, MIB);
    weft_remote_memory *remote = import_of(&duo, memory);
    struct range_request hung = range_args(local, remote, 4096), beside = range_args(duo.a_memory, remote, 4096);
    weft_op ids[COUNT_OF];
    for (int i = 0; i < COUNT_OF; i++) {
        hung.options.timeout_ns = i % 2 ? 60 * SECOND : 150 * MS;
        hung.local_offset = i * 4096;
        CHECK_OK((i == 1 ? submit_write : submit_read)(duo.a->endpoint, &hung, &ids[i]));
    }
    for (int i = 0; i < COUNT_OF; i += 2)
        CHECK_STATUS(box_await(duo.a, ids[i], patience_ms()).status, WEFT_ERR_TIMED_OUT);
    for (int i = 1; i < COUNT_OF; i += 2) {
        CHECK_OK(weft_op_cancel(duo.a->endpoint, ids[i]));
        CHECK_STATUS(box_await(duo.a, ids[i], patience_ms()).status, WEFT_ERR_CANCELED);
    }
    weft_status status = WEFT_ERR_BUSY;
    for (uint64_t until = now_ns() + patience_ms() * MS; status == WEFT_ERR_BUSY && now_ns() < until; sleep_ms(1))
        status = weft_memory_deregister(local);
    CHECK_OK(status);
    beside.remote_offset = 2 * MIB + 4096; /* farther than direct and cached I/O wait for each other */
    beside.options.timeout_ns = patience_ms() * MS;
    for (int i = 0; i < 4; i++)
        CHECK_OK(ended(&duo, &beside, i % 2).status);
}

/* Over NICs, bytes for disks go in frames. */
#define FABRICS "tcp,host,verbs,efa,sim:like=verbs"

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        {"slow_disk_gets_every_byte", FABRICS, slow_disk_gets_every_byte},
        {"failed_write_names_errno_and_entry", FABRICS, failed_write_names_errno_and_entry},
        {"failed_read_ends_alone", FABRICS, failed_read_ends_alone},
        {"memory_goes_on_beside_a_hung_disk", FABRICS, memory_goes_on_beside_a_hung_disk},
        {"hung_write_ends_by_its_deadline", FABRICS " timed", hung_write_ends_by_its_deadline},
        {"disk_that_does_not_return_holds_its_memory", FABRICS, disk_that_does_not_return_holds_its_memory},
        {"disk_that_hangs_is_refused", FABRICS, disk_that_hangs_is_refused},
        {"fence_waits_for_a_disk", FABRICS, fence_waits_for_a_disk},
        {"fence_waits_for_what_was_asked_for_a_file", "host,tcp", fence_waits_for_what_was_asked_for_a_file},
        {"revoke_waits_for_a_disk", FABRICS, revoke_waits_for_a_disk},
        {"revoke_waits_for_a_count_behind_a_disk", FABRICS, revoke_waits_for_a_count_behind_a_disk},
        {"revoke_waits_for_a_count_of_an_own_disk", FABRICS, revoke_waits_for_a_count_of_an_own_disk},
        {"deregistration_waits_for_a_disk", FABRICS, deregistration_waits_for_a_disk},
        {"end_of_a_peer_waits_for_a_disk", FABRICS, end_of_a_peer_waits_for_a_disk},
        {"canceled_read_leaves_memory_alone_over_every_rail", "tcp", canceled_read_leaves_memory_alone_over_every_rail},
        {"ended_operations_of_a_hung_disk_hold_nothing", "sim:like=verbs,verbs,efa", ended_operations_of_a_hung_disk_hold_nothing},
        {0},
    };
    return run_tests(argc, argv, tests);
}
