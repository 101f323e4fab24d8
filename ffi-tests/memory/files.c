/* Memory of mapped files, whose pages may lack when they are registered, or go later. */
#include <sys/mount.h>

#include "harness.h"

#define LEN (4 * MIB)
#define KEPT UINT64_C(4096)

/* A file that is mapped, of as many bytes as asked for. */
struct mapped {
    int fd;
    uint8_t *bytes;
};

static struct mapped map_file(int fd, uint64_t len)
{
    CHECK(fd >= 0 && ftruncate(fd, (off_t)len) == 0);
    void *bytes = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(bytes != MAP_FAILED);
    return (struct mapped){fd, bytes};
}

static struct mapped map_new(uint64_t len)
{
    return map_file(memfd_create("weft-test", MFD_CLOEXEC), len);
}

static void refuse_memory(weft_endpoint *endpoint, void *bytes, const char *file)
{
    weft_memory_range range = {bytes, LEN};
    weft_memory *memory = NULL;
    REFUSED(WEFT_ERR_NO_MEMORY, weft_memory_register(endpoint, &range, 1, NULL, &memory));
    if (!strstr(weft_last_error(), file))
        FAIL("\"%s\" does not name %s", weft_last_error(), file);
    /* What is there can be registered. */
    CHECK_OK(weft_memory_deregister(register_one(endpoint, bytes, KEPT)));
}

static void registering_more_than_a_file_has_is_refused(void)
{
    weft_endpoint *endpoint = open_endpoint();
    struct mapped file = map_new(KEPT);
    refuse_memory(endpoint, file.bytes, "weft-test");
    char path[] = "/var/tmp/weft-test-XXXXXX";
    int fd = mkstemp(path);
    file = map_file(fd, KEPT);
    refuse_memory(endpoint, file.bytes, path);
    unlink(path);
    CHECK_OK(weft_endpoint_destroy(endpoint));
}

static void registering_pages_of_a_full_file_system_is_refused(void)
{
    char folder[] = "/tmp/weft-test-XXXXXX", path[64];
    CHECK(mkdtemp(folder) != NULL);
    /* Seen by this thread alone. */
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("weft-test", folder, "tmpfs", 0, "size=64k") != 0) {
        rmdir(folder);
        skip("no file system can be mounted: %s", strerror(errno));
    }
    weft_endpoint *endpoint = open_endpoint();
    snprintf(path, sizeof path, "%s/file", folder);
    struct mapped file = map_file(open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600), LEN);
    weft_memory_range range = {file.bytes, LEN};
    weft_memory *memory = NULL;
    REFUSED(WEFT_ERR_NO_MEMORY, weft_memory_register(endpoint, &range, 1, NULL, &memory));
    CHECK(strstr(weft_last_error(), path) != NULL);
    CHECK_OK(weft_endpoint_destroy(endpoint));
    umount2(folder, MNT_DETACH);
    rmdir(folder);
}

/* ---- A file that becomes shorter while it is registered ---- */

static weft_status move(struct duo *duo, bool read, weft_memory *local, uint64_t offset, uint64_t len)
{
    struct range_request args = range_args(local, duo->b_of_a, len);
    weft_op id;
    args.local_offset = args.remote_offset = offset;
    CHECK_OK((read ? submit_read : submit_write)(duo->a->endpoint, &args, &id));
    return box_await(duo->a, id, patience_ms()).status;
}

static const uint64_t lens[] = {8, 4096, 100000, LEN - KEPT};

static uint64_t rail_errors(weft_endpoint *endpoint)
{
    uint64_t errors = 0;
    weft_endpoint_properties properties = WEFT_ENDPOINT_PROPERTIES_INIT;
    CHECK_OK(weft_endpoint_info(endpoint, &properties, NULL));
    for (uint32_t i = 0; i < properties.rails; i++) {
        weft_rail_statistics statistics = WEFT_RAIL_STATISTICS_INIT;
        weft_rail_properties rail = WEFT_RAIL_PROPERTIES_INIT;
        CHECK_OK(weft_rail_info(endpoint, i, &rail, &statistics));
        errors += statistics.errors;
    }
    return errors;
}

static void check_moves(struct duo *duo, weft_memory *local)
{
    for (size_t i = 0; i < COUNT(lens); i++)
        for (int read = 0; read < 2; read++) {
            CHECK_STATUS(move(duo, read, local, KEPT, lens[i]), WEFT_ERR_MEMORY_GONE);
            /* What the file still has is reached, over the same lanes. */
            CHECK_OK(move(duo, read, local, 0, KEPT));
        }
    CHECK(!box_try(duo->a, WEFT_COMPLETION_PEER_DOWN, NULL));
    CHECK(!box_try(duo->a, WEFT_COMPLETION_RAIL_DOWN, NULL));
    CHECK_EQ(rail_errors(duo->a->endpoint), 0);
}

static void truncated_target_fails_its_operations_alone(void)
{
    struct duo duo = duo_open(LEN);
    struct mapped file = map_new(LEN);
    uint8_t blob[4096];
    weft_memory *lost = register_one(duo.b->endpoint, file.bytes, LEN), *plain = duo.a_memory;
    weft_remote_memory *steady = duo.b_of_a;
    CHECK_OK(weft_remote_memory_import(duo.a->endpoint, duo.a_to_b, blob, descriptor_of(lost, blob, sizeof blob),
                                       &duo.b_of_a));
    fill_random(duo.a_bytes, LEN, 3);
    CHECK_OK(move(&duo, false, plain, 0, LEN));
    CHECK_EQ(differs_random(file.bytes, LEN, 3), -1);
    memset(duo.a_bytes, 0, LEN);
    CHECK_OK(move(&duo, true, plain, 0, LEN));
    CHECK_EQ(differs_random(duo.a_bytes, LEN, 3), -1);

    CHECK(ftruncate(file.fd, KEPT) == 0);
    check_moves(&duo, plain);
    CHECK_OK(weft_remote_memory_release(duo.b_of_a));
    CHECK_OK(weft_memory_deregister(lost));
    duo.b_of_a = steady;
    CHECK_OK(move(&duo, false, plain, 0, LEN));
    duo_close(&duo);
}

static void truncated_source_fails_its_operations_alone(void)
{
    struct duo duo = duo_open(LEN);
    struct mapped file = map_new(LEN);
    weft_memory *lost = register_one(duo.a->endpoint, file.bytes, LEN);
    fill_random(file.bytes, LEN, 4);
    CHECK_OK(move(&duo, false, lost, 0, LEN));
    CHECK_EQ(differs_random(duo.b_bytes, LEN, 4), -1);
    memset(file.bytes, 0, LEN);
    CHECK_OK(move(&duo, true, lost, 0, LEN));
    CHECK_EQ(differs_random(file.bytes, LEN, 4), -1);

    CHECK(ftruncate(file.fd, KEPT) == 0);
    check_moves(&duo, lost);
    CHECK_OK(move(&duo, false, duo.a_memory, 0, LEN));
    CHECK_OK(weft_memory_deregister(lost));
    duo_close(&duo);
}

static void truncated_target_fails_atomics(void)
{
    struct duo duo = duo_open(KEPT);
    struct mapped file = map_new(LEN);
    uint8_t blob[4096];
    weft_op id;
    weft_memory *lost = register_one(duo.b->endpoint, file.bytes, LEN);
    weft_remote_memory *remote;
    CHECK_OK(weft_remote_memory_import(duo.a->endpoint, duo.a_to_b, blob, descriptor_of(lost, blob, sizeof blob), &remote));
    CHECK_OK(weft_fetch_add(duo.a->endpoint, remote, KEPT, 5, NULL, &id));
    CHECK_OK(box_await(duo.a, id, patience_ms()).status);
    CHECK(ftruncate(file.fd, KEPT) == 0);
    CHECK_OK(weft_fetch_add(duo.a->endpoint, remote, KEPT, 5, NULL, &id));
    CHECK_STATUS(box_await(duo.a, id, patience_ms()).status, WEFT_ERR_MEMORY_GONE);
    CHECK_OK(weft_fetch_add(duo.a->endpoint, remote, 0, 5, NULL, &id));
    CHECK_OK(box_await(duo.a, id, patience_ms()).status);
    duo_close(&duo);
}

/* ---- A file that becomes shorter and longer again while it is written to and read ---- */

#define ROUNDS 30

static _Atomic int stop;

static void *resizes(void *file)
{
    for (int i = 0; !stop; i++) {
        usleep(300 + i * 97 % 1000);
        CHECK(ftruncate(*(int *)file, (off_t)(i % 2 ? LEN : LEN / 4 * (i / 2 % 4))) == 0);
    }
    return NULL;
}

static void file_that_shrinks_under_load_loses_no_peer(void)
{
    struct duo duo = duo_open(LEN);
    struct mapped near = map_new(LEN), far = map_new(LEN);
    uint8_t blob[4096];
    weft_memory *ours = register_one(duo.a->endpoint, near.bytes, LEN);
    weft_memory *theirs = register_one(duo.b->endpoint, far.bytes, LEN);
    weft_remote_memory *steady = duo.b_of_a;
    CHECK_OK(weft_remote_memory_import(duo.a->endpoint, duo.a_to_b, blob, descriptor_of(theirs, blob, sizeof blob),
                                       &duo.b_of_a));
    pthread_t threads[2];
    int gone = 0;
    stop = 0;
    CHECK(pthread_create(&threads[0], NULL, resizes, &near.fd) == 0);
    CHECK(pthread_create(&threads[1], NULL, resizes, &far.fd) == 0);
    for (int i = 0; i < ROUNDS || (gone == 0 && i < 100 * ROUNDS); i++) {
        weft_op ids[4];
        for (int k = 0; k < 4; k++) {
            struct range_request args = range_args(k / 2 ? ours : duo.a_memory, duo.b_of_a, LEN);
            CHECK_OK((k % 2 ? submit_read : submit_write)(duo.a->endpoint, &args, &ids[k]));
        }
        for (int k = 0; k < 4; k++)
            gone += CHECK_ONE_OF(box_await(duo.a, ids[k], patience_ms()).status, WEFT_OK, WEFT_ERR_MEMORY_GONE) != WEFT_OK;
    }
    stop = 1;
    CHECK(pthread_join(threads[0], NULL) == 0 && pthread_join(threads[1], NULL) == 0);
    printf("%d operations of %d ended without their bytes\n", gone, 4 * ROUNDS);
    CHECK(gone > 0);
    CHECK(!box_try(duo.a, WEFT_COMPLETION_PEER_DOWN, NULL));
    /* Requests that failed operations left to the fabric may still be there. */
    while (CHECK_ONE_OF(weft_remote_memory_release(duo.b_of_a), WEFT_OK, WEFT_ERR_BUSY) != WEFT_OK)
        box_pump(duo.a, 1);
    duo.b_of_a = steady;
    CHECK_OK(move(&duo, false, duo.a_memory, 0, LEN));
    duo_close(&duo);
}

/* ---- Many mappings ---- */

#define MAPPINGS 60000

static uint64_t fastest_registration(weft_endpoint *endpoint, void *bytes)
{
    uint64_t fastest = UINT64_MAX;
    for (int i = 0; i < 30; i++) {
        uint64_t began = now_ns();
        weft_memory *memory = register_one(endpoint, bytes, MIB);
        uint64_t took = now_ns() - began;
        fastest = took < fastest ? took : fastest;
        CHECK_OK(weft_memory_deregister(memory));
    }
    return fastest;
}

/* `struct procmap_query` has 104 bytes: _IOWR('f', 17, struct procmap_query). */
static bool kernel_finds_one_mapping(void)
{
    uint64_t query[13] = {sizeof query, 0, (uint64_t)(uintptr_t)&query};
    int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    bool finds = fd >= 0 && syscall(SYS_ioctl, fd, 0xc0686611ul, query) == 0;
    close(fd);
    return finds;
}

static void registering_takes_no_longer_among_many_mappings(void)
{
    if (!kernel_finds_one_mapping())
        skip("this kernel only lists all mappings (Linux before 6.11)");
    weft_endpoint *endpoint = open_endpoint();
    void *bytes = map_bytes(MIB);
    uint64_t few = fastest_registration(endpoint, bytes);
    uint8_t *area = map_bytes((size_t)MAPPINGS * 4096);
    for (size_t i = 0; i < MAPPINGS; i += 2)
        if (mprotect(area + i * 4096, 4096, PROT_READ) != 0)
            skip("a process may not have %d mappings here", MAPPINGS);
    uint64_t many = fastest_registration(endpoint, bytes);
    printf("%" PRIu64 " us, among %d mappings %" PRIu64 " us\n", few / 1000, MAPPINGS, many / 1000);
    CHECK(many < 10 * few + MS);
    CHECK_OK(weft_endpoint_destroy(endpoint));
}

static const struct test tests[] = {
    {"registering_more_than_a_file_has_is_refused", "once", registering_more_than_a_file_has_is_refused},
    {"registering_pages_of_a_full_file_system_is_refused", "once", registering_pages_of_a_full_file_system_is_refused},
    {"truncated_target_fails_its_operations_alone", "tcp,tcp-encrypted,host", truncated_target_fails_its_operations_alone},
    {"truncated_source_fails_its_operations_alone", "tcp,tcp-encrypted,host", truncated_source_fails_its_operations_alone},
    {"file_that_shrinks_under_load_loses_no_peer", "tcp,tcp-encrypted,host", file_that_shrinks_under_load_loses_no_peer},
    {"truncated_target_fails_atomics", "tcp,host", truncated_target_fails_atomics},
    {"registering_takes_no_longer_among_many_mappings", "once timed", registering_takes_no_longer_among_many_mappings},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
