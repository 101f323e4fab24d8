/*
 * Files and block devices as memory, on a disk that device-mapper breaks: bad blocks, errors now and then, delays, a disk
 * that is suspended; and what file systems add. tools/test-files-vm.sh runs it in a virtual machine.
 *     WEFT_DISK       the block device, which is overwritten
 *     WEFT_DISK_KIND  raw, or ext4 on it
 */
#include "files.h"

#include <linux/fiemap.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>

#define DISK (96 * MIB)
#define LEN (8 * MIB)
#define RUN (192 * KIB)
#define SECTOR 512
#define BAD (4 * MIB) /* where a megabyte of the file fails */
#define FOLDER "/run/weft-disk"
#define DEVICE "/dev/mapper/weft"

/* ---- The disk ---- */

static bool on_file_system(void)
{
    const char *kind = getenv("WEFT_DISK_KIND");
    return kind != NULL && strcmp(kind, "ext4") == 0;
}

static const char *device(void)
{
    const char *path = getenv("WEFT_DISK");
    CHECK(path != NULL);
    return path;
}

/* Puts a table behind the device, as lines of dmsetup; what is in flight ends before. */
static void put_table(const char *lines)
{
    shell("printf '%%s' '%s' | dmsetup reload weft && dmsetup suspend --nolockfs weft && dmsetup resume weft", lines);
}

static void whole_disk(void)
{
    char line[256];
    snprintf(line, sizeof line, "0 %d linear %s 0\n", (int)(DISK / SECTOR), device());
    put_table(line);
}

static void suspend_disk(void) { shell("dmsetup suspend --nolockfs --noflush weft"); }
static void resume_disk(void) { shell("dmsetup resume weft"); }

/* The disk is another target, all of it. */
static void all_is(const char *target, const char *options)
{
    char line[256];
    snprintf(line, sizeof line, "0 %d %s %s 0 %s\n", (int)(DISK / SECTOR), target, device(), options);
    put_table(line);
}

/* A megabyte of the disk is bad. */
static void bad_from(uint64_t offset)
{
    char lines[512];
    unsigned long long at = offset / SECTOR, len = MIB / SECTOR, all = DISK / SECTOR;
    snprintf(lines, sizeof lines, "0 %llu linear %s 0\n%llu %llu error\n%llu %llu linear %s %llu\n", at, device(), at, len,
             at + len, all - at - len, device(), at + len);
    put_table(lines);
}

/* Where the file's bytes are on the disk. */
static uint64_t place_of(int fd, uint64_t offset)
{
    if (!on_file_system())
        return offset;
    struct fiemap *map = calloc(1, sizeof *map + sizeof(struct fiemap_extent));
    CHECK(map != NULL);
    *map = (struct fiemap){.fm_start = offset, .fm_length = MIB, .fm_flags = FIEMAP_FLAG_SYNC, .fm_extent_count = 1};
    CHECK_EQ(ioctl(fd, FS_IOC_FIEMAP, map), 0);
    CHECK_EQ(map->fm_mapped_extents, 1);
    struct fiemap_extent extent = map->fm_extents[0];
    free(map);
    CHECK(extent.fe_logical + extent.fe_length >= offset + MIB);
    return extent.fe_physical + (offset - extent.fe_logical);
}

static void remove_disk(void)
{
    CHECK_EQ(system("dmsetup resume weft 2>/dev/null; while umount " FOLDER " 2>/dev/null; do :; done;"
                    "dmsetup remove --retry weft 2>/dev/null; true"), 0);
}

static int new_disk(void)
{
    remove_disk();
    shell("dmsetup create weft --table '0 %d linear %s 0'", (int)(DISK / SECTOR), device());
    int fd;
    if (on_file_system()) {
        shell("mkfs.ext4 -q -F -E lazy_itable_init=0 " DEVICE " && mkdir -p " FOLDER " && mount " DEVICE " " FOLDER);
        fd = open(FOLDER "/file", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    } else {
        fd = open(DEVICE, O_RDWR | O_CLOEXEC);
    }
    CHECK(fd >= 0);
    uint8_t *zeros = calloc(1, LEN);
    CHECK(zeros != NULL);
    CHECK_EQ(pwrite(fd, zeros, LEN, 0), LEN);
    CHECK_EQ(fsync(fd), 0);
    free(zeros);
    return fd;
}

/* ---- Two endpoints, of which the second has the file ---- */

struct bed {
    struct duo duo;
    int fd, fds, threads;
    weft_memory *memory;
    weft_remote_memory *remote;
};

static void register_disk(struct bed *bed, uint32_t access)
{
    weft_memory_range range = {NULL, LEN};
    CHECK_OK(try_file(bed->duo.b, bed->fd, &range, 1, access, &bed->memory));
    bed->remote = import_of(&bed->duo, bed->memory);
}

/* How long the owner waits for its disk. */
#define OWNER_MS 1500

static struct bed bed_open(uint32_t access)
{
    judged_from(); /* which starts a thread */
    box_close(box_of(open_endpoint())); /* libfabric keeps descriptors from the first one on */
    struct bed bed = {.fds = open_fds(), .threads = running_threads()};
    weft_endpoint_config mine = test_config(), owner = test_config();
    mine.timeout_ns = 120 * SECOND;
    owner.timeout_ns = patiently(OWNER_MS) * MS;
    bed.fd = new_disk();
    bed.duo = duo_open_between(LEN, &mine, &owner);
    register_disk(&bed, access);
    return bed;
}

/* Nothing is left: no slot, descriptor or thread. */
static void bed_close(struct bed *bed)
{
    if (bed->memory != NULL)
        CHECK_OK(weft_memory_deregister(bed->memory));
    close(bed->fd);
    duo_close(&bed->duo);
    remove_disk();
    CHECK_EQ(open_fds(), bed->fds);
    for (int i = 0; running_threads() > bed->threads && i < 1000; i++)
        sleep_ms(10);
    CHECK_EQ(running_threads(), bed->threads);
}

static struct range_request at(struct bed *bed, uint64_t offset, uint64_t len)
{
    struct range_request args = range_args(bed->duo.a_memory, bed->remote, len);
    args.local_offset = args.remote_offset = offset;
    return args;
}

static weft_op begin(struct bed *bed, const struct range_request *args, bool read)
{
    weft_op id;
    CHECK_OK((read ? submit_read : submit_write)(bed->duo.a->endpoint, args, &id));
    return id;
}

static weft_completion move(struct bed *bed, const struct range_request *args, bool read)
{
    return box_await(bed->duo.a, begin(bed, args, read), 2 * patience_ms());
}

/* Every place of the file is written and read again, directly and at odd places. */
static void all_is_well(struct bed *bed, uint64_t seed)
{
    uint8_t *bytes = bed->duo.a_bytes;
    fill_random(bytes, LEN, seed);
    struct range_request args = at(bed, 0, LEN), odd = at(bed, MIB + 777, MIB + 1);
    CHECK_OK(move(bed, &args, false).status);
    CHECK_OK(move(bed, &odd, false).status);
    memset(bytes, 0, LEN);
    CHECK_OK(move(bed, &args, true).status);
    CHECK_EQ(differs_random(bytes, LEN, seed), -1);
    memset(bytes, 0, LEN);
    CHECK_EQ(pread(bed->fd, bytes, LEN, 0), LEN);
    CHECK_EQ(differs_random(bytes, LEN, seed), -1);
}

/* Memory of the same peer, and messages, go on. */
static void memory_goes_on(struct bed *bed)
{
    struct range_request args = range_args(bed->duo.a_memory, bed->duo.b_of_a, 64 * KIB);
    for (int i = 0; i < 10; i++)
        CHECK_OK(move(bed, &args, i % 2).status);
    CHECK_OK(box_await(bed->duo.a, send_now(bed->duo.a, bed->duo.a_to_b, "word", 4), patience_ms()).status);
    box_take(bed->duo.b, WEFT_COMPLETION_MESSAGE, patience_ms());
}

/* The owner's disk has its answers again: deregistering ends. */
static void deregister_in_the_end(struct bed *bed)
{
    weft_status status = weft_memory_deregister(bed->memory);
    for (uint64_t until = now_ns() + 2 * patience_ms() * MS; status == WEFT_ERR_TIMED_OUT && now_ns() < until;)
        status = weft_memory_deregister(bed->memory);
    CHECK_OK(status);
    CHECK_OK(weft_remote_memory_release(bed->remote));
    bed->memory = NULL;
}

/* ---- Bad blocks, a disk that fails now and then, a slow one ---- */

static void good_disk_has_every_byte(void)
{
    struct bed bed = bed_open(0);
    for (uint64_t seed = 1; seed <= 3; seed++)
        all_is_well(&bed, seed);
    memory_goes_on(&bed);
    bed_close(&bed);
}

static void bad_blocks_fail_alone(void)
{
    struct bed bed = bed_open(0);
    weft_list_entry entries[3];
    struct list_request list = LIST_REQUEST_INIT;
    weft_op id;
    all_is_well(&bed, 1);
    bad_from(place_of(bed.fd, BAD));
    struct range_request bad = at(&bed, BAD + 4096, RUN), good = at(&bed, BAD - RUN, RUN), both = at(&bed, BAD - MIB, 3 * MIB);
    /* More often than there are slots. */
    for (int i = 0; i < 150; i++)
        check_file_error(move(&bed, &bad, i % 2), EIO);
    check_file_error(move(&bed, &both, true), EIO);
    check_file_error(move(&bed, &both, false), EIO);
    for (uint64_t i = 0; i < COUNT(entries); i++)
        entries[i] = (weft_list_entry){.local = bed.duo.a_memory, .remote = bed.remote, .local_offset = i * RUN,
                                       .remote_offset = i == 1 ? BAD : i * RUN, .len = RUN};
    list.entries = entries;
    list.count = COUNT(entries);
    for (int read = 0; read < 2; read++) {
        CHECK_OK((read ? submit_read_list : submit_write_list)(bed.duo.a->endpoint, &list, &id));
        weft_completion done = box_await(bed.duo.a, id, 2 * patience_ms());
        check_file_error(done, EIO);
        CHECK_EQ(done.entry, 1);
    }
    CHECK_OK(move(&bed, &good, false).status);
    CHECK_OK(move(&bed, &good, true).status);
    memory_goes_on(&bed);
    whole_disk();
    all_is_well(&bed, 2);
    bed_close(&bed);
}

/* Up for a second, down for a second. What was written stays. */
static void flaky_disk_loses_nothing_that_was_written(void)
{
    enum { PLACES = LEN / RUN };
    struct bed bed = bed_open(0);
    uint64_t seeds[PLACES] = {0}, seed = 1, until = now_ns() + patiently(2000) * MS, random = 3;
    int worked = 0, failed = 0;
    all_is("flakey", "1 1");
    while (now_ns() < until || worked == 0 || failed == 0) {
        uint64_t place = next_random(&random) % PLACES;
        struct range_request args = at(&bed, place * RUN, RUN);
        fill_random(bed.duo.a_bytes + args.local_offset, RUN, ++seed);
        weft_completion done = move(&bed, &args, false);
        seeds[place] = done.status == WEFT_OK ? seed : 0;
        *(done.status == WEFT_OK ? &worked : &failed) += 1;
        if (done.status != WEFT_OK)
            check_file_error(done, EIO);
        CHECK(now_ns() < until + 60 * SECOND);
    }
    memory_goes_on(&bed);
    whole_disk();
    for (uint64_t place = 0; place < PLACES; place++) {
        struct range_request args = at(&bed, place * RUN, RUN);
        CHECK_OK(move(&bed, &args, true).status);
        if (seeds[place] != 0)
            CHECK_EQ(differs_random(bed.duo.a_bytes + args.local_offset, RUN, seeds[place]), -1);
    }
    printf("%d writes worked, %d failed\n", worked, failed);
    if (!on_file_system()) /* which may be read-only since then */
        all_is_well(&bed, 2);
    bed_close(&bed);
}

static void slow_disk_is_waited_for_until_the_deadline(void)
{
    struct bed bed = bed_open(0);
    struct range_request args = at(&bed, 0, MIB), late = at(&bed, 2 * MIB, RUN);
    fill_random(bed.duo.a_bytes, LEN, 5);
    all_is("delay", "300");
    weft_op slow = begin(&bed, &args, false);
    late.options.timeout_ns = 50 * MS;
    uint64_t began = judged_from();
    weft_completion done = move(&bed, &late, false);
    CHECK_WITHIN(began, now_ns(), 50 * MS + LATE_MOST);
    CHECK_STATUS(done.status, WEFT_ERR_TIMED_OUT);
    memory_goes_on(&bed);
    CHECK_OK(box_await(bed.duo.a, slow, 2 * patience_ms()).status);
    memset(bed.duo.a_bytes, 0, MIB);
    CHECK_OK(move(&bed, &args, true).status);
    CHECK_EQ(differs_random(bed.duo.a_bytes, MIB, 5), -1);
    whole_disk();
    all_is_well(&bed, 6);
    bed_close(&bed);
}

/* A write ends long before its disk has done it. Once the grant is revoked, nothing of it lands. */
static void nothing_lands_after_a_revoke(void)
{
    struct bed bed = bed_open(WEFT_ACCESS_GRANTED);
    uint8_t *zeros = calloc(1, LEN), *got = malloc(LEN);
    CHECK(zeros != NULL && got != NULL);
    memset(bed.duo.a_bytes, 0x55, LEN);
    all_is("delay", "400");
    for (int round = 0; round < 3; round++) {
        weft_op writes[8], id;
        struct range_request args = at(&bed, 0, MIB);
        args.options.timeout_ns = patiently(50) * MS;
        CHECK_OK(weft_grant_create(bed.memory, bed.duo.b_to_a, NULL, &args.options.grant));
        for (size_t i = 0; i < COUNT(writes); i++) {
            args.local_offset = args.remote_offset = i * MIB;
            writes[i] = begin(&bed, &args, false);
        }
        for (size_t i = 0; i < COUNT(writes); i++)
            CHECK_ONE_OF(box_await(bed.duo.a, writes[i], patience_ms()).status, WEFT_OK, WEFT_ERR_TIMED_OUT);
        CHECK_OK(weft_grant_revoke(bed.duo.b->endpoint, &args.options.grant, NULL, &id));
        CHECK_OK(box_await(bed.duo.b, id, 2 * patience_ms()).status);
        CHECK_EQ(pwrite(bed.fd, zeros, LEN, 0), LEN);
        CHECK_EQ(fsync(bed.fd), 0);
        sleep_ms(1000);
        CHECK_EQ(posix_fadvise(bed.fd, 0, 0, POSIX_FADV_DONTNEED), 0);
        CHECK_EQ(pread(bed.fd, got, LEN, 0), LEN);
        CHECK_EQ(memcmp(got, zeros, LEN), 0);
    }
    whole_disk();
    free(zeros);
    free(got);
    bed_close(&bed);
}

/* ---- A disk that is suspended: it answers nothing, until it is resumed ---- */

static void suspended_disk_is_named_and_comes_back(void)
{
    struct bed bed = bed_open(0);
    fill_random(bed.duo.a_bytes, LEN, 7);
    suspend_disk();
    struct range_request soon = at(&bed, 0, RUN), odd = at(&bed, MIB + 99, RUN), late = at(&bed, 2 * MIB, RUN);
    weft_op waits = begin(&bed, &late, false), cancels = begin(&bed, &late, true);
    for (int i = 0; i < 6; i++) {
        struct range_request *args = i % 3 == 2 ? &odd : &soon;
        args->options.timeout_ns = 300 * MS;
        uint64_t began = judged_from();
        weft_completion done = move(&bed, args, i % 2);
        CHECK_WITHIN(began, now_ns(), 300 * MS + LATE_MOST);
        CHECK_STATUS(done.status, WEFT_ERR_TIMED_OUT);
    }
    memory_goes_on(&bed);
    CHECK_ONE_OF(weft_op_cancel(bed.duo.a->endpoint, cancels), WEFT_OK, WEFT_ERR_HANDLE); /* it may have ended */
    weft_completion cancelled = box_await(bed.duo.a, cancels, 2 * patience_ms());
    if (cancelled.status == WEFT_ERR_FILE)
        check_file_error(cancelled, ETIMEDOUT);
    else
        CHECK_STATUS(cancelled.status, WEFT_ERR_CANCELED);
    check_file_error(box_await(bed.duo.a, waits, 2 * patience_ms()), ETIMEDOUT);
    memory_goes_on(&bed);
    /* So many more that the file is refused at once. */
    weft_op many[60];
    for (size_t i = 0; i < COUNT(many); i++)
        many[i] = begin(&bed, &late, false);
    for (size_t i = 0; i < COUNT(many); i++)
        check_file_error(box_await(bed.duo.a, many[i], 2 * patience_ms()), ETIMEDOUT);
    memory_goes_on(&bed);
    CHECK_STATUS(weft_memory_deregister(bed.memory), WEFT_ERR_TIMED_OUT);
    memory_goes_on(&bed);
    resume_disk();
    deregister_in_the_end(&bed);
    register_disk(&bed, 0);
    for (uint64_t seed = 1; seed <= 3; seed++)
        all_is_well(&bed, seed);
    bed_close(&bed);
}

/* Without an end of the registration, too. */
static void resumed_disk_is_used_again(void)
{
    struct bed bed = bed_open(0);
    struct range_request args = at(&bed, 0, RUN);
    for (int round = 0; round < 2; round++) {
        weft_op many[60];
        suspend_disk();
        for (size_t i = 0; i < COUNT(many); i++)
            many[i] = begin(&bed, &args, i % 2);
        for (size_t i = 0; i < COUNT(many); i++)
            check_file_error(box_await(bed.duo.a, many[i], 2 * patience_ms()), ETIMEDOUT);
        resume_disk();
        weft_completion done;
        uint64_t until = now_ns() + 2 * patience_ms() * MS;
        while ((done = move(&bed, &args, false)).status != WEFT_OK && now_ns() < until)
            check_file_error(done, ETIMEDOUT);
        all_is_well(&bed, 8);
    }
    bed_close(&bed);
}

/* The disk hangs for a while, less than its owner waits: all arrives. */
static void short_suspension_loses_nothing(void)
{
    struct bed bed = bed_open(0);
    weft_op writes[32];
    fill_random(bed.duo.a_bytes, LEN, 9);
    suspend_disk();
    for (size_t i = 0; i < COUNT(writes); i++) {
        struct range_request args = at(&bed, i * (LEN / COUNT(writes)), LEN / COUNT(writes));
        writes[i] = begin(&bed, &args, false);
    }
    box_pump(bed.duo.a, OWNER_MS / 4);
    resume_disk();
    for (size_t i = 0; i < COUNT(writes); i++)
        CHECK_OK(box_await(bed.duo.a, writes[i], 2 * patience_ms()).status);
    memset(bed.duo.a_bytes, 0, LEN);
    CHECK_EQ(pread(bed.fd, bed.duo.a_bytes, LEN, 0), LEN);
    CHECK_EQ(differs_random(bed.duo.a_bytes, LEN, 9), -1);
    bed_close(&bed);
}

static void revoke_waits_for_a_suspended_disk(void)
{
    struct bed bed = bed_open(WEFT_ACCESS_GRANTED);
    struct range_request args = at(&bed, 0, RUN);
    struct fence_request fence = FENCE_REQUEST_INIT;
    weft_op id;
    uint8_t *zeros = calloc(1, RUN), *got = malloc(RUN);
    CHECK(zeros != NULL && got != NULL);
    fill_random(bed.duo.a_bytes, LEN, 9);
    CHECK_OK(weft_grant_create(bed.memory, bed.duo.b_to_a, NULL, &args.options.grant));
    CHECK_OK(move(&bed, &args, false).status); /* the connection is there */
    args.options.timeout_ns = patiently(200) * MS;
    suspend_disk();
    CHECK_STATUS(move(&bed, &args, false).status, WEFT_ERR_TIMED_OUT);
    fence.peer = bed.duo.b_to_a;
    fence.options.timeout_ns = 300 * MS;
    CHECK_OK(submit_fence(bed.duo.b->endpoint, &fence, &id));
    CHECK_STATUS(box_await(bed.duo.b, id, 2 * patience_ms()).status, WEFT_ERR_TIMED_OUT);
    CHECK_OK(weft_grant_revoke(bed.duo.b->endpoint, &args.options.grant, NULL, &id));
    box_pump(bed.duo.b, 500);
    memory_goes_on(&bed);
    resume_disk();
    weft_status status = box_await(bed.duo.b, id, 2 * patience_ms()).status;
    CHECK_ONE_OF(status, WEFT_OK, WEFT_ERR_TIMED_OUT);
    while (status != WEFT_OK) {
        CHECK_OK(weft_grant_revoke(bed.duo.b->endpoint, &args.options.grant, NULL, &id));
        CHECK_ONE_OF(status = box_await(bed.duo.b, id, 2 * patience_ms()).status, WEFT_OK, WEFT_ERR_TIMED_OUT);
    }
    CHECK_EQ(pwrite(bed.fd, zeros, RUN, 0), (ssize_t)RUN);
    CHECK_EQ(fsync(bed.fd), 0);
    sleep_ms(500);
    CHECK_EQ(posix_fadvise(bed.fd, 0, 0, POSIX_FADV_DONTNEED), 0);
    CHECK_EQ(pread(bed.fd, got, RUN, 0), (ssize_t)RUN);
    CHECK_EQ(memcmp(got, zeros, RUN), 0);
    free(zeros);
    free(got);
    bed_close(&bed);
}

/* The owner's endpoint ends while its disk does not answer: its peer is gone at once, and the endpoint ends in time. */
static void endpoint_ends_beside_a_suspended_disk(void)
{
    struct bed bed = bed_open(0);
    struct range_request args = at(&bed, 0, RUN);
    suspend_disk();
    weft_op waits = begin(&bed, &args, false);
    box_pump(bed.duo.a, 200);
    uint64_t began = now_ns();
    weft_status status = weft_endpoint_destroy(bed.duo.b->endpoint);
    CHECK_ONE_OF(status, WEFT_OK, WEFT_ERR_TIMED_OUT);
    CHECK(now_ns() - began < patiently(20000) * MS);
    CHECK_ONE_OF(box_await(bed.duo.a, waits, 2 * patience_ms()).status, WEFT_ERR_PEER_CLOSED, WEFT_ERR_FILE);
    box_take(bed.duo.a, WEFT_COMPLETION_PEER_DOWN, 2 * patience_ms());
    resume_disk();
    for (uint64_t until = now_ns() + 2 * patience_ms() * MS; status == WEFT_ERR_TIMED_OUT && now_ns() < until;)
        status = weft_endpoint_destroy(bed.duo.b->endpoint);
    CHECK_OK(status);
    box_close(bed.duo.a);
    close(bed.fd);
}

/* ---- Durable writes ---- */

/* The kernel says once that a flush failed, and forgets what it should have written: nothing of this memory is believed. */
static void failed_flush_spoils_the_memory(void)
{
    struct bed bed = bed_open(0);
    struct range_request args = at(&bed, MIB + 99, RUN), empty = at(&bed, 0, 0);
    args.options.flags = empty.options.flags = WEFT_DURABLE;
    CHECK_OK(move(&bed, &args, false).status);
    args.options.flags = 0;
    CHECK_OK(move(&bed, &args, false).status);
    all_is("error", "");
    check_file_error(move(&bed, &empty, false), EIO);
    whole_disk();
    check_file_error(move(&bed, &empty, false), EIO);
    for (int read = 0; read < 2; read++)
        check_file_error(move(&bed, &args, read), EIO);
    memory_goes_on(&bed);
    deregister_in_the_end(&bed);
    register_disk(&bed, 0);
    if (!on_file_system()) /* which may be read-only since then */
        all_is_well(&bed, 1);
    bed_close(&bed);
}

/* The flush of a disk that is suspended cannot be taken back. */
static void flush_of_a_suspended_disk_is_named_and_comes_back(void)
{
    struct bed bed = bed_open(0);
    struct range_request soon = at(&bed, 0, RUN), late = at(&bed, MIB, 0);
    soon.options.flags = late.options.flags = WEFT_DURABLE;
    CHECK_OK(move(&bed, &soon, false).status);
    suspend_disk();
    soon.options.timeout_ns = 300 * MS;
    soon.len = 0;
    weft_op waits = begin(&bed, &late, false);
    uint64_t began = judged_from();
    weft_completion done = move(&bed, &soon, false);
    CHECK_WITHIN(began, now_ns(), 300 * MS + LATE_MOST);
    CHECK_STATUS(done.status, WEFT_ERR_TIMED_OUT);
    memory_goes_on(&bed);
    check_file_error(box_await(bed.duo.a, waits, 2 * patience_ms()), ETIMEDOUT);
    memory_goes_on(&bed);
    resume_disk();
    deregister_in_the_end(&bed);
    register_disk(&bed, 0);
    all_is_well(&bed, 1);
    bed_close(&bed);
}

/* ---- The owner's process ends, by SIGKILL ---- */

static void kills(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    weft_memory *mine = register_one(box->endpoint, map_bytes(LEN), LEN);
    weft_peer peer = join(team, 1, box);
    struct range_request args = range_args(mine, take_memory(team, 1, box, peer), RUN);
    weft_op writes[8];
    CHECK_OK(box_await(box, write_now(box, &args), 2 * patience_ms()).status);
    suspend_disk();
    for (size_t i = 0; i < COUNT(writes); i++) {
        args.local_offset = args.remote_offset = i * RUN;
        writes[i] = write_now(box, &args);
    }
    box_pump(box, 300);
    atomic_store(&team->board->may_die[1], 1);
    CHECK_EQ(kill(pid_of(team, 1), SIGKILL), 0);
    for (size_t i = 0; i < COUNT(writes); i++)
        CHECK_ONE_OF(box_await(box, writes[i], 2 * patience_ms()).status, WEFT_ERR_PEER_LOST, WEFT_ERR_FILE);
    box_take(box, WEFT_COMPLETION_PEER_DOWN, 2 * patience_ms());
    /* Where its disk was written directly, the process has gone; with threads it waits for its disk. */
    resume_disk();
    box_close(box);
}

static void killed_owner_of_a_suspended_disk_is_a_lost_peer(void)
{
    owned_fd = new_disk();
    run_pair(kills, owns_a_file);
    close(owned_fd);
    remove_disk();
}

/* ---- File systems ---- */

static void full_file_system_says_so(void)
{
    if (!on_file_system())
        skip("of file systems");
    struct bed bed = bed_open(0);
    CHECK_EQ(ftruncate(bed.fd, 0), 0);
    CHECK_EQ(system("dd if=/dev/zero of=" FOLDER "/filler bs=1M 2>/dev/null"), 256);
    struct range_request args = at(&bed, 0, MIB), page = at(&bed, 3 * MIB + 1, 5000);
    for (int i = 0; i < 80; i++)
        check_file_error(move(&bed, &args, false), ENOSPC);
    check_file_error(move(&bed, &page, false), ENOSPC);
    memory_goes_on(&bed);
    CHECK_EQ(unlink(FOLDER "/filler"), 0);
    sync();
    all_is_well(&bed, 1);
    bed_close(&bed);
}

static void truncated_file_says_so(void)
{
    if (!on_file_system())
        skip("of file systems");
    struct bed bed = bed_open(0);
    for (int round = 0; round < 20; round++) {
        weft_op reads[8];
        struct range_request args = at(&bed, 0, MIB);
        CHECK_EQ(ftruncate(bed.fd, LEN), 0);
        for (size_t i = 0; i < COUNT(reads); i++) {
            args.local_offset = args.remote_offset = i * MIB;
            reads[i] = begin(&bed, &args, true);
        }
        box_pump(bed.duo.a, round % 3);
        CHECK_EQ(ftruncate(bed.fd, MIB / 2), 0);
        for (size_t i = 0; i < COUNT(reads); i++) {
            weft_completion done = box_await(bed.duo.a, reads[i], 2 * patience_ms());
            if (done.status != WEFT_OK)
                check_file_error(done, ENODATA);
        }
        check_file_error(move(&bed, &args, true), ENODATA);
    }
    memory_goes_on(&bed);
    all_is_well(&bed, 1);
    bed_close(&bed);
}

/* All of the disk fails below its file system, which may be read-only then: it is named as long as it lasts. */
static void file_system_whose_disk_fails_says_so(void)
{
    if (!on_file_system())
        skip("of file systems");
    struct bed bed = bed_open(0);
    struct range_request args = at(&bed, 0, RUN), grows = at(&bed, 0, RUN);
    CHECK_EQ(ftruncate(bed.fd, LEN / 2), 0);
    CHECK_EQ(fsync(bed.fd), 0);
    grows.remote_offset = LEN - RUN;
    all_is("error", "");
    for (int i = 0; i < 20; i++) {
        check_file_error(move(&bed, &args, i % 2), EIO);
        weft_completion done = move(&bed, &grows, false);
        if (done.status != WEFT_OK) { /* its blocks may be known, and its bytes in the page cache */
            CHECK_STATUS(done.status, WEFT_ERR_FILE);
            CHECK(done.provider_errno == EIO || done.provider_errno == EROFS);
        }
    }
    memory_goes_on(&bed);
    whole_disk();
    CHECK_OK(move(&bed, &args, true).status);
    bed_close(&bed);
}

/* A snapshot is taken: writes wait until the file system is thawed. */
static void frozen_file_system_is_waited_for(void)
{
    if (!on_file_system())
        skip("of file systems");
    struct bed bed = bed_open(0);
    struct range_request args = at(&bed, 0, RUN), odd = at(&bed, MIB + 99, RUN);
    int folder = open(FOLDER, O_RDONLY | O_CLOEXEC);
    fill_random(bed.duo.a_bytes, LEN, 3);
    CHECK_EQ(ioctl(folder, FIFREEZE, 0), 0);
    weft_op first = begin(&bed, &args, false), second = begin(&bed, &odd, false);
    struct range_request read = at(&bed, 4 * MIB, RUN);
    const char *by = getenv("WEFT_FILES");
    if (by == NULL || strcmp(by, "threads") != 0) /* all of which may wait for writes */
        CHECK_OK(move(&bed, &read, true).status);
    memory_goes_on(&bed);
    args.options.timeout_ns = 300 * MS;
    CHECK_STATUS(move(&bed, &args, false).status, WEFT_ERR_TIMED_OUT);
    check_file_error(box_await(bed.duo.a, first, 2 * patience_ms()), ETIMEDOUT);
    check_file_error(box_await(bed.duo.a, second, 2 * patience_ms()), ETIMEDOUT);
    CHECK_EQ(ioctl(folder, FITHAW, 0), 0);
    close(folder);
    deregister_in_the_end(&bed);
    register_disk(&bed, 0);
    all_is_well(&bed, 1);
    bed_close(&bed);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        {"good_disk_has_every_byte", "tcp", good_disk_has_every_byte},
        {"bad_blocks_fail_alone", "tcp", bad_blocks_fail_alone},
        {"flaky_disk_loses_nothing_that_was_written", "tcp", flaky_disk_loses_nothing_that_was_written},
        {"slow_disk_is_waited_for_until_the_deadline", "tcp", slow_disk_is_waited_for_until_the_deadline},
        {"nothing_lands_after_a_revoke", "tcp", nothing_lands_after_a_revoke},
        {"suspended_disk_is_named_and_comes_back", "tcp", suspended_disk_is_named_and_comes_back},
        {"resumed_disk_is_used_again", "tcp", resumed_disk_is_used_again},
        {"short_suspension_loses_nothing", "tcp", short_suspension_loses_nothing},
        {"revoke_waits_for_a_suspended_disk", "tcp", revoke_waits_for_a_suspended_disk},
        {"endpoint_ends_beside_a_suspended_disk", "tcp", endpoint_ends_beside_a_suspended_disk},
        {"failed_flush_spoils_the_memory", "tcp", failed_flush_spoils_the_memory},
        {"flush_of_a_suspended_disk_is_named_and_comes_back", "tcp", flush_of_a_suspended_disk_is_named_and_comes_back},
        {"killed_owner_of_a_suspended_disk_is_a_lost_peer", "tcp", killed_owner_of_a_suspended_disk_is_a_lost_peer},
        {"full_file_system_says_so", "tcp", full_file_system_says_so},
        {"truncated_file_says_so", "tcp", truncated_file_says_so},
        {"file_system_whose_disk_fails_says_so", "tcp", file_system_whose_disk_fails_says_so},
        {"frozen_file_system_is_waited_for", "tcp", frozen_file_system_is_waited_for},
        {0},
    };
    return run_tests(argc, argv, tests);
}
