/*
 * Files as memory on a disk with faults (harness/fault_disk.h), by io_uring and by threads: each operation ends in time, with
 * the right bytes or the error's number, and nothing is left behind. Each test is a fault; `make disk-figures T=faults` counts
 * those that find something (file_fault_findings), with a disk that hangs for 10 s (WEFT_TEST_HANG_MS).
 */
#include "fault_disk.h"

#include <linux/io_uring.h>

#define LEN DISK_LEN

/* Two endpoints, the second with the disk; and what there was before. */
struct world {
    struct duo duo;
    int fd, fds, threads;
    weft_memory *memory;
    weft_remote_memory *remote;
};

/* `by`: how the owner does its I/O. */
static void begin(const char *by)
{
    struct io_uring_params params = {0};
    long ring = syscall(SYS_io_uring_setup, 4, &params);
    if (ring < 0 && by == NULL)
        skip("no io_uring here: %s", strerror(errno));
    close((int)ring);
    disk_begin(by);
    disk_starts();
}

static struct world open_world(const char *by, uint64_t owner_timeout_ns)
{
    struct world world;
    weft_endpoint_config writer = test_config(), owner = test_config();
    begin(by);
    judged_from(); /* starts a thread */
    owner.timeout_ns = owner_timeout_ns;
    world.fds = open_fds();
    world.threads = running_threads();
    world.duo = duo_open_between(LEN, &writer, &owner);
    world.fd = disk_open();
    world.memory = register_file(world.duo.b, world.fd, 0, LEN);
    world.remote = import_of(&world.duo, world.memory);
    fill_random(world.duo.a_bytes, LEN, 1);
    return world;
}

/* Nothing is left behind: descriptors, threads. */
static void close_world(struct world *world)
{
    weft_status status = WEFT_ERR_TIMED_OUT;
    for (uint64_t until = now_ns() + 4 * patience_ms() * MS; status == WEFT_ERR_TIMED_OUT && now_ns() < until;)
        status = weft_memory_deregister(world->memory);
    CHECK_OK(status);
    close(world->fd);
    duo_close(&world->duo);
    for (uint64_t until = now_ns() + patience_ms() * MS; now_ns() < until;) {
        if (open_fds() == world->fds && running_threads() == world->threads)
            return;
        sleep_ms(5);
    }
    FAIL("%d descriptors and %d threads were there, and %d and %d are left", world->fds, world->threads, open_fds(),
         running_threads());
}

static weft_completion moved(struct world *world, uint64_t offset, uint64_t len, uint32_t flags, bool read)
{
    struct range_request args = range_args(world->duo.a_memory, world->remote, len);
    args.local_offset = args.remote_offset = offset;
    args.options.flags = flags;
    return ended(&world->duo, &args, read);
}

/* Memory of the same peer, and its messages, go on. */
static void check_beside(struct world *world)
{
    struct range_request args = range_args(world->duo.a_memory, world->duo.b_of_a, MIB);
    CHECK_OK(ended(&world->duo, &args, false).status);
    CHECK_OK(box_await(world->duo.a, send_now(world->duo.a, world->duo.a_to_b, "word", 4), patience_ms()).status);
    box_take(world->duo.b, WEFT_COMPLETION_MESSAGE, patience_ms());
}

static void check_all_moves(struct world *world, uint64_t seed)
{
    fill_random(world->duo.a_bytes, LEN, seed);
    CHECK_OK(moved(world, 0, LEN, 0, false).status);
    CHECK_EQ(differs_random(disk->cached, LEN, seed), -1);
    memset(world->duo.a_bytes, 0, LEN);
    CHECK_OK(moved(world, 0, LEN, 0, true).status);
    CHECK_EQ(differs_random(world->duo.a_bytes, LEN, seed), -1);
}

/* ---- The faults ---- */

static void fails_in_the_middle(const char *by, int error)
{
    struct world world = open_world(by, 30 * SECOND);
    disk->fail_from = 2 * MIB;
    disk->fail_errno = error;
    for (int i = 0; i < 3; i++) {
        uint64_t odd = i * 1001;
        CHECK_OK(moved(&world, 4096 + odd, MIB, 0, false).status);
        CHECK_EQ(memcmp(disk->cached + 4096 + odd, world.duo.a_bytes + 4096 + odd, MIB), 0);
        check_file_error(moved(&world, 2 * MIB - 300000 + odd, 600000, 0, i == 1), error);
        check_file_error(moved(&world, 3 * MIB + odd, 5000, WEFT_DURABLE, false), error);
        CHECK_OK(moved(&world, odd, 4096, 0, true).status);
        check_beside(&world);
    }
    disk->fail_errno = 0;
    check_all_moves(&world, 2);
    close_world(&world);
}

static void io_error(const char *by) { fails_in_the_middle(by, EIO); }
static void no_space(const char *by) { fails_in_the_middle(by, ENOSPC); }

static void short_io(const char *by)
{
    struct world world = open_world(by, 30 * SECOND);
    disk->shorts = true;
    for (uint64_t i = 0; i < 3; i++)
        check_all_moves(&world, 10 + i);
    CHECK_OK(moved(&world, 777, 123456, WEFT_DURABLE, false).status);
    CHECK_EQ(memcmp(disk->stable + 777, world.duo.a_bytes + 777, 123456), 0);
    close_world(&world);
}

/* What was accepted before, and has ended, arrives no longer. */
static void fence(struct world *world)
{
    struct fence_request args = FENCE_REQUEST_INIT;
    weft_op id;
    args.peer = world->duo.b_to_a;
    CHECK_OK(submit_fence(world->duo.b->endpoint, &args, &id));
    CHECK_OK(box_await(world->duo.b, id, 4 * patience_ms()).status);
}

static uint64_t hang_ms(void)
{
    const char *ms = getenv("WEFT_TEST_HANG_MS");
    return ms ? strtoull(ms, NULL, 10) : 1000;
}

/* It answers in the end: who waits that long gets the bytes, others end in time. */
static void hang_for_a_while(const char *by)
{
    struct world world = open_world(by, 60 * SECOND);
    struct range_request args = range_args(world.duo.a_memory, world.remote, 100000), late;
    weft_op ids[3];
    args.options.flags = WEFT_DURABLE;
    args.options.timeout_ns = 60 * SECOND;
    disk->hangs = disk->flush_hangs = true;
    uint64_t began = judged_from();
    for (uint64_t i = 0; i < COUNT(ids); i++) {
        args.local_offset = args.remote_offset = i * MIB;
        ids[i] = write_now(world.duo.a, &args);
    }
    late = args;
    late.local_offset = late.remote_offset = 3 * MIB + 500000;
    late.options.timeout_ns = 150 * MS;
    CHECK_STATUS(ended(&world.duo, &late, false).status, WEFT_ERR_TIMED_OUT);
    CHECK_WITHIN(began, now_ns(), 350 * MS);
    check_beside(&world);
    sleep_ms(hang_ms() / 2);
    disk->hangs = false;
    sleep_ms(hang_ms() / 2);
    check_beside(&world);
    disk->flush_hangs = false;
    for (uint64_t i = 0; i < COUNT(ids); i++) {
        CHECK_OK(box_await(world.duo.a, ids[i], 4 * patience_ms()).status);
        CHECK_EQ(memcmp(disk->stable + i * MIB, world.duo.a_bytes + i * MIB, 100000), 0);
    }
    fence(&world);
    check_all_moves(&world, 4);
    close_world(&world);
}

/* It never answers: operations end by the owner's patience, and what it gives back says so; then the disk is pulled. */
static void never_answers(const char *by, bool flush)
{
    struct world world = open_world(by, patiently(400) * MS);
    CHECK_OK(moved(&world, 0, LEN, 0, false).status);
    disk->hangs = !flush;
    disk->flush_hangs = flush;
    for (int i = 0; i < 2; i++)
        check_file_error(moved(&world, 8192, 65536, WEFT_DURABLE, false), ETIMEDOUT);
    check_beside(&world);
    CHECK_STATUS(weft_memory_deregister(world.memory), WEFT_ERR_TIMED_OUT);
    struct range_request args = range_args(world.duo.a_memory, world.remote, 4096);
    weft_op id;
    CHECK_STATUS(submit_read(world.duo.a->endpoint, &args, &id), WEFT_ERR_MEMORY_GONE);
    disk_ends();
    close_world(&world);
}

static void hang_for_ever(const char *by) { never_answers(by, false); }
static void flush_that_hangs_for_ever(const char *by) { never_answers(by, true); }

static void disk_is_pulled(const char *by)
{
    struct world world = open_world(by, 30 * SECOND);
    CHECK_OK(moved(&world, 0, MIB, 0, false).status);
    disk->hangs = true;
    struct range_request args = range_args(world.duo.a_memory, world.remote, 65536);
    weft_op id = write_now(world.duo.a, &args);
    sleep_ms(50);
    disk_ends();
    weft_completion done = box_await(world.duo.a, id, 4 * patience_ms());
    CHECK_STATUS(done.status, WEFT_ERR_FILE);
    CHECK(done.provider_errno == ECONNABORTED || done.provider_errno == ENOTCONN || done.provider_errno == EIO);
    done = moved(&world, 0, 4096, WEFT_DURABLE, false);
    CHECK_STATUS(done.status, WEFT_ERR_FILE);
    CHECK(done.provider_errno != 0);
    check_beside(&world);
    close_world(&world);
}

static void failed_flush(const char *by)
{
    struct world world = open_world(by, 30 * SECOND);
    disk->flush_errno = EIO;
    check_file_error(moved(&world, 0, 65536, WEFT_DURABLE, false), EIO);
    check_file_error(moved(&world, 0, 65536, WEFT_DURABLE, false), EIO);
    check_file_error(moved(&world, 0, 65536, 0, true), EIO);
    CHECK_EQ(disk->flushes, 1);
    check_beside(&world);
    CHECK_OK(weft_memory_deregister(world.memory));
    world.memory = register_file(world.duo.b, world.fd, 0, LEN);
    world.remote = import_of(&world.duo, world.memory);
    CHECK_OK(moved(&world, 0, 65536, WEFT_DURABLE, false).status);
    CHECK_EQ(memcmp(disk->stable, world.duo.a_bytes, 65536), 0);
    close_world(&world);
}

/* Others make the file shorter and longer meanwhile. */
static void truncation(const char *by)
{
    struct world world = open_world(by, 30 * SECOND);
    uint64_t seed = 5;
    int gone = 0;
    for (int i = 0; i < 60; i++) {
        uint64_t offset = next_random(&seed) % (LEN - 200000), len = 1 + next_random(&seed) % 200000;
        uint64_t size = next_random(&seed) % LEN;
        struct range_request args = range_args(world.duo.a_memory, world.remote, len);
        args.local_offset = args.remote_offset = offset;
        weft_op id;
        CHECK_OK((i % 2 ? submit_read : submit_write)(world.duo.a->endpoint, &args, &id));
        CHECK_EQ(ftruncate(world.fd, size), 0);
        weft_completion done = box_await(world.duo.a, id, 4 * patience_ms());
        gone += done.status == WEFT_ERR_FILE;
        if (done.status == WEFT_ERR_FILE)
            CHECK(i % 2 && done.provider_errno == ENODATA);
        else
            CHECK_OK(done.status);
        CHECK_EQ(ftruncate(world.fd, LEN), 0);
    }
    check_file_error((CHECK_EQ(ftruncate(world.fd, MIB), 0), moved(&world, MIB, 1, 0, true)), ENODATA);
    CHECK(gone >= 0);
    CHECK_EQ(ftruncate(world.fd, LEN), 0);
    check_all_moves(&world, 6);
    close_world(&world);
}

/* What completed durable is there after a power cut, at any moment, and beside writes that are not. */
static void power_cut(const char *by)
{
    enum { WRITES = 12, ROUNDS = 20 };
    struct world world = open_world(by, 30 * SECOND);
    uint64_t seed = 9;
    CHECK_OK(moved(&world, 0, LEN, 0, false).status);
    CHECK_EQ(disk->flushes, 0);
    CHECK(differs_random(disk->stable, LEN, 1) >= 0); /* or this test would say nothing */
    for (int round = 0; round < ROUNDS; round++) {
        const uint64_t part = LEN / WRITES;
        weft_op ids[WRITES];
        uint64_t lens[WRITES];
        fill_random(world.duo.a_bytes, LEN, 100 + round);
        for (uint64_t i = 0; i < WRITES; i++) {
            lens[i] = 1 + next_random(&seed) % part;
            struct range_request args = range_args(world.duo.a_memory, world.remote, lens[i]);
            args.local_offset = args.remote_offset = i * part;
            args.options.flags = WEFT_DURABLE;
            ids[i] = write_now(world.duo.a, &args);
        }
        for (uint64_t i = 0; i < WRITES; i++) {
            CHECK_OK(box_await(world.duo.a, ids[i], 4 * patience_ms()).status);
            CHECK_EQ(memcmp(disk->stable + i * part, world.duo.a_bytes + i * part, lens[i]), 0);
        }
    }
    CHECK(disk->flushes < WRITES * ROUNDS); /* some served several */
    CHECK_OK(moved(&world, 0, LEN, WEFT_DURABLE, false).status);
    CHECK_EQ(memcmp(disk->stable, world.duo.a_bytes, LEN), 0);
    close_world(&world);
}

/* ---- kill -9 of either side, and a reset of the owner's machine: its disk has what was flushed ---- */

#define PAGES 64
#define PAGE (LEN / PAGES)
static bool owner_dies;
static uint64_t died_at;

static void owner(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    int fd = disk_open();
    weft_memory *memory = register_file(box, fd, 0, LEN);
    join(team, 0, box);
    give_memory(team, 0, memory);
    weft_completion down;
    while (!box_try(box, WEFT_COMPLETION_PEER_DOWN, &down))
        box_pump(box, 1);
    /* Nothing of a peer that is gone arrives any longer. */
    uint8_t *before = malloc(LEN);
    CHECK(before != NULL);
    memcpy(before, disk->cached, LEN);
    sleep_ms(50);
    CHECK_EQ(memcmp(before, disk->cached, LEN), 0);
    CHECK_OK(weft_memory_deregister(memory));
    close(fd);
    box_close(box);
    free(before);
}

static void writer(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    uint8_t *bytes = map_bytes(LEN);
    weft_memory *memory = register_one(box->endpoint, bytes, LEN);
    weft_peer peer = join(team, 1, box);
    struct range_request args = range_args(memory, take_memory(team, 1, box, peer), PAGE);
    weft_op writes[PAGES];
    fill_random(bytes, LEN, 1);
    for (int i = 0; i < PAGES; i++) {
        args.local_offset = args.remote_offset = i * PAGE;
        args.options.flags = i % 4 ? WEFT_DURABLE : 0;
        writes[i] = write_now(box, &args);
    }
    int last = 1 + died_at % (PAGES - 1), lost = 0;
    weft_status ends[PAGES];
    ends[last] = box_await(box, writes[last], patience_ms()).status;
    CHECK_OK(ends[last]);
    kill_member(team, owner_dies ? 1 : 0);
    for (int i = 0; i < PAGES; i++) {
        if (i != last)
            ends[i] = box_await(box, writes[i], 4 * patience_ms()).status;
        CHECK_ONE_OF(ends[i], WEFT_OK, WEFT_ERR_PEER_LOST, WEFT_ERR_TIMED_OUT);
        lost += ends[i] == WEFT_OK && i % 4 && memcmp(disk->stable + i * PAGE, bytes + i * PAGE, PAGE) != 0;
    }
    CHECK_EQ(lost, 0);
    box_close(box);
}

static void death(const char *by, bool of_owner)
{
    const char *resets = getenv("WEFT_TEST_RESETS");
    begin(by);
    owner_dies = of_owner;
    for (int i = 0; i < (resets && of_owner ? atoi(resets) : 2); i++) {
        died_at = mix(i);
        memset(disk->cached, i, LEN);
        memset(disk->stable, i, LEN);
        run_pair(writer, owner);
    }
}

static void death_of_the_owner(const char *by) { death(by, true); }
static void death_of_the_writer(const char *by) { death(by, false); }

#define EACH(FAULT)                                                                                         \
    FAULT(io_error) FAULT(no_space) FAULT(short_io) FAULT(hang_for_a_while) FAULT(hang_for_ever)             \
    FAULT(flush_that_hangs_for_ever) FAULT(disk_is_pulled) FAULT(failed_flush) FAULT(truncation)             \
    FAULT(power_cut) FAULT(death_of_the_owner) FAULT(death_of_the_writer)

#define DEFINE(fault)                                            \
    static void fault##_by_io_uring(void) { fault(NULL); }       \
    static void fault##_by_threads(void) { fault("threads"); }
EACH(DEFINE)

#define LIST(fault)                                              \
    {#fault "_by_io_uring", "tcp", fault##_by_io_uring},         \
    {#fault "_by_threads", "tcp", fault##_by_threads},
static const struct test tests[] = {
    EACH(LIST)
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
