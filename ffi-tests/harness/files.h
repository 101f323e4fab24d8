/* What the tests of files as memory share. */
#ifndef WEFT_TEST_FILES_H
#define WEFT_TEST_FILES_H

#include "harness.h"

/* Chooses the disk: fake ones, or NULL for the real one. Call before any function of Weft. */
static inline void disk_begin(const char *choice)
{
    if (choice)
        CHECK_EQ(setenv("WEFT_FILES", choice, 1), 0);
}

/* A file without a name, on a disk if /var/tmp is on one. */
static inline int new_file(void)
{
    char name[] = "/var/tmp/weft-files-XXXXXX";
    int fd = mkstemp(name);
    CHECK(fd >= 0);
    CHECK_EQ(unlink(name), 0);
    return fd;
}

static inline weft_status try_file(struct box *box, int fd, const weft_memory_range *ranges, size_t count, uint32_t access,
                            weft_memory **memory)
{
    weft_memory_args args = WEFT_MEMORY_ARGS_INIT;
    args.kind = WEFT_MEMORY_FILE;
    args.fd = fd;
    args.access = access;
    return weft_memory_register(box->endpoint, ranges, count, &args, memory);
}

static inline weft_memory *register_file(struct box *box, int fd, uint64_t offset, uint64_t len)
{
    weft_memory_range range = {(void *)offset, len};
    weft_memory *memory;
    CHECK_OK(try_file(box, fd, &range, 1, 0, &memory));
    return memory;
}

static inline weft_remote_memory *import_of(struct duo *duo, weft_memory *memory)
{
    char blob[4096];
    weft_remote_memory *remote;
    size_t len = descriptor_of(memory, blob, sizeof blob);
    CHECK_OK(weft_remote_memory_import(duo->a->endpoint, duo->a_to_b, blob, len, &remote));
    return remote;
}

static inline weft_completion ended(struct duo *duo, const struct range_request *args, bool read)
{
    weft_op id;
    CHECK_OK((read ? submit_read : submit_write)(duo->a->endpoint, args, &id));
    return box_await(duo->a, id, 4 * patience_ms());
}

static inline void check_file_error(weft_completion done, int want)
{
    CHECK_STATUS(done.status, WEFT_ERR_FILE);
    CHECK_EQ(done.provider_errno, want);
}

/* The same bytes, or the first that differs. */
static inline void check_bytes(const uint8_t *got, const uint8_t *want, uint64_t len)
{
    for (uint64_t i = 0; i < len; i++)
        if (got[i] != want[i])
            FAIL("byte %" PRIu64 " is %d and should be %d", i, got[i], want[i]);
}

/* ---- An owner that is killed ---- */

#define OWNED_PAGES 64
#define OWNED_PAGE (32 * KIB)
static int owned_fd;
static uint32_t owned_flags;

static inline void owns_a_file(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    weft_memory *memory = register_file(box, owned_fd, 0, OWNED_PAGES * OWNED_PAGE);
    join(team, 0, box);
    give_memory(team, 0, memory);
    for (;;)
        box_pump(box, 1);
}

static inline void kills_it(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    uint8_t *bytes = map_bytes(OWNED_PAGES * OWNED_PAGE), *got = malloc(OWNED_PAGE);
    weft_memory *memory = register_one(box->endpoint, bytes, OWNED_PAGES * OWNED_PAGE);
    weft_peer peer = join(team, 1, box);
    struct range_request args = range_args(memory, take_memory(team, 1, box, peer), OWNED_PAGE);
    weft_op writes[OWNED_PAGES];
    CHECK(got != NULL);
    fill_random(bytes, OWNED_PAGES * OWNED_PAGE, 1);
    for (int i = 0; i < OWNED_PAGES; i++) {
        args.local_offset = args.remote_offset = i * OWNED_PAGE;
        args.options.flags = i % 4 ? owned_flags : 0;
        writes[i] = write_now(box, &args);
        if (i == OWNED_PAGES / 2)
            CHECK_OK(box_await(box, writes[1], patience_ms()).status);
    }
    kill_member(team, 1); /* a flush may be in flight */
    for (int i = 0; i < OWNED_PAGES; i++) {
        weft_status status = i == 1 ? WEFT_OK : box_await(box, writes[i], 4 * patience_ms()).status;
        CHECK_ONE_OF(status, WEFT_OK, WEFT_ERR_PEER_LOST, WEFT_ERR_TIMED_OUT);
        if (status != WEFT_OK || (owned_flags & WEFT_DURABLE && i % 4 == 0))
            continue;
        CHECK_EQ(pread(owned_fd, got, OWNED_PAGE, i * OWNED_PAGE), OWNED_PAGE);
        check_bytes(got, bytes + i * OWNED_PAGE, OWNED_PAGE);
    }
    box_close(box);
}

/* What has completed with these flags (three of four writes have them) is in the file of an owner that was killed. */
static inline void kill_an_owner(uint32_t flags)
{
    owned_flags = flags;
    owned_fd = new_file();
    CHECK_EQ(ftruncate(owned_fd, OWNED_PAGES * OWNED_PAGE), 0);
    run_pair(kills_it, owns_a_file);
}

#endif
