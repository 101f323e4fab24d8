/* Files as memory over tcp: what moves, and what is past their end. */
#include "harness.h"

#define LEN (3 * MIB)

/* Two endpoints; the second one has a file, of which the last MiB is not there. */
struct files {
    struct duo duo;
    int fd;
    weft_memory *memory;
    weft_remote_memory *remote;
};

static weft_memory *register_file(weft_endpoint *endpoint, int fd, uint64_t len)
{
    weft_memory *memory = NULL;
    weft_memory_args args = WEFT_MEMORY_ARGS_INIT;
    weft_memory_range range = {NULL, len};
    args.kind = WEFT_MEMORY_FILE;
    args.fd = fd;
    CHECK_OK(weft_memory_register(endpoint, &range, 1, &args, &memory));
    return memory;
}

static int open_file(off_t len)
{
    char path[] = "/var/tmp/weft-disk-files-XXXXXX";
    int fd = mkstemp(path);
    CHECK(fd >= 0 && unlink(path) == 0 && ftruncate(fd, len) == 0);
    return fd;
}

static struct files files_open(void)
{
    struct files files = {.duo = duo_open(LEN), .fd = open_file(LEN - MIB)};
    char blob[4096];
    files.memory = register_file(files.duo.b->endpoint, files.fd, LEN);
    size_t n = descriptor_of(files.memory, blob, sizeof blob);
    CHECK_OK(weft_remote_memory_import(files.duo.a->endpoint, files.duo.a_to_b, blob, n, &files.remote));
    fill_random(files.duo.a_bytes, LEN, 1);
    return files;
}

static void files_close(struct files *files)
{
    CHECK_OK(weft_remote_memory_release(files->remote));
    CHECK_OK(weft_memory_deregister(files->memory));
    close(files->fd);
    duo_close(&files->duo);
}

/* Whole blocks, odd bytes, and beside them what must not change. */
static void peers_file_is_written_and_read(void)
{
    struct files files = files_open();
    struct range_request args = range_args(files.duo.a_memory, files.remote, LEN - MIB);
    uint8_t *got = malloc(LEN);
    weft_op id;
    CHECK(got != NULL);
    CHECK_OK(box_await(files.duo.a, write_now(files.duo.a, &args), patience_ms()).status);
    CHECK_EQ(pread(files.fd, got, LEN, 0), (ssize_t)(LEN - MIB));
    CHECK_EQ(differs_random(got, LEN - MIB, 1), -1);
    args.local_offset = 7, args.remote_offset = 5001, args.len = 300001;
    memcpy(got + 5001, files.duo.a_bytes + 7, 300001);
    CHECK_OK(box_await(files.duo.a, write_now(files.duo.a, &args), patience_ms()).status);
    uint8_t *now = malloc(LEN);
    CHECK_EQ(pread(files.fd, now, LEN, 0), (ssize_t)(LEN - MIB));
    CHECK_EQ(memcmp(now, got, LEN - MIB), 0);
    memset(files.duo.a_bytes, 0, LEN);
    args.local_offset = 11, args.remote_offset = 4000, args.len = 700003;
    CHECK_OK(submit_read(files.duo.a->endpoint, &args, &id));
    CHECK_OK(box_await(files.duo.a, id, patience_ms()).status);
    CHECK_EQ(memcmp(files.duo.a_bytes + 11, got + 4000, 700003), 0);
    free(got), free(now);
    files_close(&files);
}

/* The second entry of a list is not there: the operation names it, and the lane goes on. */
static void read_past_the_end_names_errno_and_entry(void)
{
    struct files files = files_open();
    weft_list_entry entries[3];
    struct list_request list = LIST_REQUEST_INIT;
    weft_op id;
    for (uint64_t i = 0; i < COUNT(entries); i++)
        entries[i] = (weft_list_entry){.local = files.duo.a_memory, .remote = files.remote, .local_offset = i * 192 * KIB,
                                       .remote_offset = i == 1 ? LEN - MIB : i * 192 * KIB, .len = 192 * KIB};
    list.entries = entries;
    list.count = COUNT(entries);
    CHECK_OK(submit_read_list(files.duo.a->endpoint, &list, &id));
    weft_completion c = box_await(files.duo.a, id, patience_ms());
    CHECK_STATUS(c.status, WEFT_ERR_FILE);
    CHECK_EQ(c.provider_errno, ENODATA);
    CHECK_EQ(c.entry, 1);
    list.count = 1;
    CHECK_OK(submit_read_list(files.duo.a->endpoint, &list, &id));
    CHECK_OK(box_await(files.duo.a, id, patience_ms()).status);
    files_close(&files);
}

/* Our own file is written to a peer's memory, and read from it. */
static void own_file_moves_to_and_from_memory(void)
{
    struct files files = files_open();
    uint8_t *bytes = malloc(MIB);
    int fd = open_file(MIB);
    weft_op id;
    fill_random(bytes, MIB, 5);
    CHECK_EQ(pwrite(fd, bytes, MIB, 0), (ssize_t)MIB);
    weft_memory *own = register_file(files.duo.a->endpoint, fd, MIB);
    struct range_request args = range_args(own, files.duo.b_of_a, MIB);
    CHECK_OK(box_await(files.duo.a, write_now(files.duo.a, &args), patience_ms()).status);
    CHECK_EQ(differs_random(files.duo.b_bytes, MIB, 5), -1);
    fill_random(files.duo.b_bytes, MIB, 6);
    CHECK_OK(submit_read(files.duo.a->endpoint, &args, &id));
    CHECK_OK(box_await(files.duo.a, id, patience_ms()).status);
    CHECK_EQ(pread(fd, bytes, MIB, 0), (ssize_t)MIB);
    CHECK_EQ(differs_random(bytes, MIB, 6), -1);
    CHECK_OK(weft_memory_deregister(own));
    close(fd);
    free(bytes);
    files_close(&files);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        {"peers_file_is_written_and_read", "tcp", peers_file_is_written_and_read},
        {"read_past_the_end_names_errno_and_entry", "tcp", read_past_the_end_names_errno_and_entry},
        {"own_file_moves_to_and_from_memory", "tcp", own_file_moves_to_and_from_memory},
        {0},
    };
    return run_tests(argc, argv, tests);
}
