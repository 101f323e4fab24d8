/* Files as memory: what is written is there, what cannot be says why, and a disk that hangs holds up nothing else. */
#include "files.h"

#include <linux/filter.h>
#include <linux/loop.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>

#define LEN (3 * MIB)

/* ---- What is written is there ---- */

/* Two ranges of a file, of which the second begins and ends at odd places. */
static const struct { uint64_t offset, len; } PARTS[2] = {{4096, 2 * MIB}, {3 * MIB + 777, MIB - 999}};

/* The file has the ranges' bytes, and nothing else of it has changed. */
static void check_file(int fd, const uint8_t *model)
{
    uint8_t *bytes = malloc(5 * MIB), *expected = malloc(5 * MIB);
    CHECK(bytes != NULL && expected != NULL);
    memset(expected, 0xee, 5 * MIB);
    memcpy(expected + PARTS[0].offset, model, PARTS[0].len);
    memcpy(expected + PARTS[1].offset, model + PARTS[0].len, PARTS[1].len);
    CHECK_EQ(pread(fd, bytes, 5 * MIB, 0), 5 * MIB);
    check_bytes(bytes, expected, 5 * MIB);
    free(bytes);
    free(expected);
}

static void play(const char *disk, int ops)
{
    disk_begin(disk);
    struct duo duo = duo_open(LEN);
    int fd = new_file();
    uint64_t whole = PARTS[0].len + PARTS[1].len, seed = 7;
    uint8_t *model = malloc(5 * MIB);
    CHECK(model != NULL);
    memset(model, 0xee, 5 * MIB);
    CHECK_EQ(pwrite(fd, model, 5 * MIB, 0), 5 * MIB);
    weft_memory_range ranges[2];
    for (int i = 0; i < 2; i++)
        ranges[i] = (weft_memory_range){(void *)PARTS[i].offset, PARTS[i].len};
    weft_memory *memory;
    CHECK_OK(try_file(duo.b, fd, ranges, 2, 0, &memory));
    weft_memory_properties properties = {.size = sizeof properties};
    CHECK_OK(weft_memory_info(memory, &properties));
    CHECK_EQ(properties.kind, WEFT_MEMORY_FILE);
    CHECK_EQ(properties.device, -1);
    CHECK(properties.ways & WEFT_WAY_FILE);
    struct range_request args = range_args(duo.a_memory, import_of(&duo, memory), 0);
    for (int i = 0; i < ops; i++) {
        static const uint64_t LENGTHS[] = {1, 600, 4096, 65536, 300000, 1000000};
        int part = next_random(&seed) % 2;
        bool read = next_random(&seed) % 2, even = next_random(&seed) % 2;
        args.len = LENGTHS[next_random(&seed) % COUNT(LENGTHS)];
        args.len = args.len > 1 && !even ? args.len - next_random(&seed) % (args.len / 2) : args.len;
        args.remote_offset = next_random(&seed) % (PARTS[part].len - args.len + 1);
        args.remote_offset -= even ? args.remote_offset % 4096 : 0;
        args.remote_offset += part ? PARTS[0].len : 0;
        args.local_offset = next_random(&seed) % (LEN - args.len + 1);
        uint8_t *mine = duo.a_bytes + args.local_offset;
        fill_random(mine, args.len, i);
        args.options.flags = !read && i % 3 == 0 ? WEFT_DURABLE : 0;
        if (!read)
            memcpy(model + args.remote_offset, mine, args.len);
        CHECK_OK(ended(&duo, &args, read).status);
        check_bytes(mine, model + args.remote_offset, args.len);
    }
    CHECK(args.remote_offset < whole);
    check_file(fd, model);
    CHECK_OK(weft_memory_deregister(memory));
    check_file(fd, model);
    free(model);
    close(fd);
    duo_close(&duo);
}

static void bytes_of_a_file_are_written_and_read(void) { play(NULL, 120); }
static void bytes_move_by_threads(void) { play("threads", 60); }

/* As containers do, and without the fake's help. */
static void bytes_move_where_io_uring_is_refused(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {COUNT(filter), filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        skip("no seccomp here: %s", strerror(errno));
    play(NULL, 60);
}
static void bytes_of_a_disk_that_ends_short(void) { play("fake:short:late=100", 60); }
static void bytes_go_through_the_page_cache(void) { play("fake:cached", 60); }

/* Pages of a file, many at once, and a file as the local side. */
static void pages_move_between_files(void)
{
    enum { PAGES = 96, PAGE = 20000 };
    struct duo duo = duo_open(LEN);
    int from = new_file(), to = new_file();
    uint8_t *bytes = malloc(PAGES * PAGE), *got = malloc(PAGES * PAGE);
    uint32_t mine[PAGES], theirs[PAGES];
    CHECK(bytes != NULL && got != NULL);
    fill_random(bytes, PAGES * PAGE, 5);
    CHECK_EQ(pwrite(from, bytes, PAGES * PAGE, 0), PAGES * PAGE);
    CHECK_EQ(ftruncate(to, PAGES * PAGE), 0);
    weft_memory *source = register_file(duo.a, from, 0, PAGES * PAGE);
    weft_memory *target = register_file(duo.b, to, 0, PAGES * PAGE);
    struct pages_request args = PAGES_REQUEST_INIT;
    for (uint32_t i = 0; i < PAGES; i++) {
        mine[i] = i;
        theirs[i] = i * 5 % PAGES;
    }
    args.local = source;
    args.remote = import_of(&duo, target);
    args.pages.local.pages = mine;
    args.pages.remote.pages = theirs;
    args.pages.page_count = PAGES;
    args.pages.layer_count = 1;
    args.pages.page_len = PAGE;
    weft_op id;
    CHECK_OK(submit_write_pages(duo.a->endpoint, &args, &id));
    CHECK_OK(box_await(duo.a, id, 4 * patience_ms()).status);
    CHECK_EQ(pread(to, got, PAGES * PAGE, 0), PAGES * PAGE);
    for (uint32_t i = 0; i < PAGES; i++)
        check_bytes(got + theirs[i] * PAGE, bytes + i * PAGE, PAGE);
    /* And back, in order. */
    args.pages.remote.pages = mine;
    CHECK_OK(submit_read_pages(duo.a->endpoint, &args, &id));
    CHECK_OK(box_await(duo.a, id, 4 * patience_ms()).status);
    CHECK_EQ(pread(from, bytes, PAGES * PAGE, 0), PAGES * PAGE);
    check_bytes(bytes, got, PAGES * PAGE);
    CHECK_OK(weft_memory_deregister(source));
    CHECK_OK(weft_memory_deregister(target));
    free(bytes);
    free(got);
    close(from);
    close(to);
    duo_close(&duo);
}

/* Our own file is written to a peer's memory, and read from it. */
static void own_file_moves_to_and_from_memory(void)
{
    struct duo duo = duo_open(LEN);
    uint8_t *bytes = malloc(MIB);
    int fd = new_file();
    fill_random(bytes, MIB, 5);
    CHECK_EQ(pwrite(fd, bytes, MIB, 0), (ssize_t)MIB);
    weft_memory *own = register_file(duo.a, fd, 0, MIB);
    struct range_request args = range_args(own, duo.b_of_a, MIB);
    CHECK_OK(ended(&duo, &args, false).status);
    CHECK_EQ(differs_random(duo.b_bytes, MIB, 5), -1);
    fill_random(duo.b_bytes, MIB, 6);
    CHECK_OK(ended(&duo, &args, true).status);
    CHECK_EQ(pread(fd, bytes, MIB, 0), (ssize_t)MIB);
    CHECK_EQ(differs_random(bytes, MIB, 6), -1);
    CHECK_OK(weft_memory_deregister(own));
    close(fd);
    free(bytes);
    duo_close(&duo);
}

/* An endpoint that is its own peer copies between a file and its memory. */
static void endpoint_copies_between_its_file_and_memory(void)
{
    struct box *box = box_of(open_endpoint());
    char address[4096], blob[4096];
    size_t len = address_of(box->endpoint, address, sizeof address);
    uint8_t *bytes = map_bytes(LEN), *got = malloc(LEN);
    weft_memory *mine = register_one(box->endpoint, bytes, LEN);
    int fd = new_file();
    weft_memory *memory = register_file(box, fd, 0, LEN);
    weft_remote_memory *remote;
    weft_peer self;
    CHECK(got != NULL);
    CHECK_OK(weft_peer_connect(box->endpoint, address, len, NULL, &self));
    box_take(box, WEFT_COMPLETION_PEER_UP, patience_ms());
    len = descriptor_of(memory, blob, sizeof blob);
    CHECK_OK(weft_remote_memory_import(box->endpoint, self, blob, len, &remote));
    struct range_request args = range_args(mine, remote, LEN);
    fill_random(bytes, LEN, 3);
    weft_op id;
    CHECK_OK(submit_write(box->endpoint, &args, &id));
    CHECK_OK(box_await(box, id, 4 * patience_ms()).status);
    CHECK_EQ(pread(fd, got, LEN, 0), LEN);
    check_bytes(got, bytes, LEN);
    memset(bytes, 0, LEN);
    CHECK_OK(submit_read(box->endpoint, &args, &id));
    CHECK_OK(box_await(box, id, 4 * patience_ms()).status);
    check_bytes(bytes, got, LEN);
    CHECK_OK(weft_memory_deregister(memory));
    CHECK_OK(weft_memory_deregister(mine));
    free(got);
    close(fd);
    box_close(box);
}

/* A loop device over a file; skips where there is none. */
static int new_disk(uint64_t len)
{
    char name[32];
    int file = new_file(), control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
    CHECK_EQ(ftruncate(file, len), 0);
    int number = control < 0 ? -1 : ioctl(control, LOOP_CTL_GET_FREE);
    snprintf(name, sizeof name, "/dev/loop%d", number);
    int fd = number < 0 ? -1 : open(name, O_RDWR | O_CLOEXEC);
    struct loop_info64 info = {.lo_flags = LO_FLAGS_AUTOCLEAR};
    if (fd < 0 || ioctl(fd, LOOP_SET_FD, file) != 0 || ioctl(fd, LOOP_SET_STATUS64, &info) != 0)
        skip("no block device can be made here: %s", strerror(errno));
    close(control);
    close(file);
    return fd;
}

static void block_device_is_memory_unless_it_is_in_use(void)
{
    struct duo duo = duo_open(LEN);
    int fd = new_disk(LEN);
    char name[64];
    weft_memory_range range = {NULL, 2 * LEN};
    weft_memory *memory;
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    int owner = open(name, O_RDWR | O_EXCL); /* as a mount does */
    CHECK(owner >= 0);
    REFUSED(WEFT_ERR_INVALID, try_file(duo.b, fd, &range, 1, 0, &memory));
    close(owner);
    CHECK_OK(try_file(duo.b, fd, &range, 1, 0, &memory));
    struct range_request args = range_args(duo.a_memory, import_of(&duo, memory), 100000);
    uint8_t *got = malloc(LEN);
    CHECK(got != NULL);
    for (int i = 0; i < 8; i++) {
        args.remote_offset = i * 65536 + i % 2 * 1234;
        fill_random(duo.a_bytes, args.len, i);
        CHECK_OK(ended(&duo, &args, false).status);
        CHECK_EQ(pread(fd, got, args.len, args.remote_offset), (ssize_t)args.len);
        check_bytes(got, duo.a_bytes, args.len);
        memset(duo.a_bytes, 0, args.len);
        CHECK_OK(ended(&duo, &args, true).status);
        check_bytes(duo.a_bytes, got, args.len);
    }
    args.remote_offset = LEN - 50000;
    check_file_error(ended(&duo, &args, true), ENODATA);
    check_file_error(ended(&duo, &args, false), ENOSPC);
    CHECK_OK(weft_memory_deregister(memory));
    free(got);
    close(fd);
    duo_close(&duo);
}

/* ---- What cannot be says why ---- */

static void end_of_a_file_is_an_error_for_reads(void)
{
    struct duo duo = duo_open(LEN);
    int fd = new_file();
    CHECK_EQ(ftruncate(fd, 10000), 0);
    weft_memory *memory = register_file(duo.b, fd, 0, 4 * MIB);
    struct range_request args = range_args(duo.a_memory, import_of(&duo, memory), 10000);
    memset(duo.a_bytes, 1, 10000);
    CHECK_OK(ended(&duo, &args, true).status);
    CHECK(duo.a_bytes[0] == 0 && duo.a_bytes[9999] == 0); /* a hole */
    args.len = 10001;
    check_file_error(ended(&duo, &args, true), ENODATA);
    /* A write makes it longer. */
    args.remote_offset = MIB + 5;
    args.len = 4096;
    fill_random(duo.a_bytes, 4096, 2);
    CHECK_OK(ended(&duo, &args, false).status);
    CHECK_EQ(lseek(fd, 0, SEEK_END), MIB + 5 + 4096);
    memset(duo.a_bytes, 0, 4096);
    CHECK_OK(ended(&duo, &args, true).status);
    CHECK_EQ(differs_random(duo.a_bytes, 4096, 2), -1);
    /* Others make it shorter. */
    CHECK_EQ(ftruncate(fd, MIB), 0);
    check_file_error(ended(&duo, &args, true), ENODATA);
    /* Wherever the end is among the answers that go together. */
    args.remote_offset = 0;
    args.len = LEN;
    for (uint64_t runs = 3; runs < 9; runs++) {
        CHECK_EQ(ftruncate(fd, runs * 192 * KIB + 1), 0);
        check_file_error(ended(&duo, &args, true), ENODATA);
    }
    CHECK_OK(weft_memory_deregister(memory));
    close(fd);
    duo_close(&duo);
}

/* The second entry of a list is not there: the operation names it, and the lane goes on. */
static void read_past_the_end_names_errno_and_entry(void)
{
    struct duo duo = duo_open(LEN);
    int fd = new_file();
    CHECK_EQ(ftruncate(fd, LEN - MIB), 0);
    weft_memory *memory = register_file(duo.b, fd, 0, LEN);
    weft_remote_memory *remote = import_of(&duo, memory);
    weft_list_entry entries[3];
    struct list_request list = LIST_REQUEST_INIT;
    weft_op id;
    for (uint64_t i = 0; i < COUNT(entries); i++)
        entries[i] = (weft_list_entry){.local = duo.a_memory, .remote = remote, .local_offset = i * 192 * KIB,
                                       .remote_offset = i == 1 ? LEN - MIB : i * 192 * KIB, .len = 192 * KIB};
    list.entries = entries;
    list.count = COUNT(entries);
    CHECK_OK(submit_read_list(duo.a->endpoint, &list, &id));
    weft_completion done = box_await(duo.a, id, 4 * patience_ms());
    check_file_error(done, ENODATA);
    CHECK_EQ(done.entry, 1);
    list.count = 1;
    CHECK_OK(submit_read_list(duo.a->endpoint, &list, &id));
    CHECK_OK(box_await(duo.a, id, 4 * patience_ms()).status);
    CHECK_OK(weft_remote_memory_release(remote));
    CHECK_OK(weft_memory_deregister(memory));
    close(fd);
    duo_close(&duo);
}

static void disk_that_is_full_says_so(void)
{
    disk_begin("fake:errno=28:at=1000000");
    struct duo duo = duo_open(LEN);
    int fd = new_file();
    weft_memory *memory = register_file(duo.b, fd, 0, LEN);
    struct range_request args = range_args(duo.a_memory, import_of(&duo, memory), 900000);
    CHECK_OK(ended(&duo, &args, false).status);
    args.remote_offset = 900000;
    check_file_error(ended(&duo, &args, false), ENOSPC);
    args.remote_offset = 0;
    CHECK_OK(ended(&duo, &args, false).status); /* and nothing else fails by it */
    struct range_request beside = range_args(duo.a_memory, duo.b_of_a, LEN);
    CHECK_OK(ended(&duo, &beside, false).status);
    CHECK_OK(weft_memory_deregister(memory));
    close(fd);
    duo_close(&duo);
}

static void file_system_that_is_full_says_so(void)
{
    char folder[] = "/var/tmp/weft-files-XXXXXX", name[64];
    CHECK(mkdtemp(folder) != NULL);
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("weft-test", folder, "tmpfs", 0, "size=1m") != 0) {
        rmdir(folder);
        skip("no file system can be mounted here: %s", strerror(errno));
    }
    snprintf(name, sizeof name, "%s/file", folder);
    int fd = open(name, O_RDWR | O_CREAT, 0600);
    CHECK(fd >= 0);
    struct duo duo = duo_open(LEN);
    weft_memory *memory = register_file(duo.b, fd, 0, LEN);
    struct range_request args = range_args(duo.a_memory, import_of(&duo, memory), LEN);
    check_file_error(ended(&duo, &args, false), ENOSPC);
    weft_op fence; /* the rest of the write, which failed, may still come; and what did fit may be anywhere */
    CHECK_OK(weft_peer_fence(duo.b->endpoint, duo.b_to_a, NULL, &fence));
    CHECK_OK(box_await(duo.b, fence, patience_ms()).status);
    CHECK(ftruncate(fd, 0) == 0);
    args.len = MIB / 2;
    fill_random(duo.a_bytes, args.len, 4);
    CHECK_OK(ended(&duo, &args, false).status);
    memset(duo.a_bytes, 0, args.len);
    CHECK_OK(ended(&duo, &args, true).status);
    CHECK_EQ(differs_random(duo.a_bytes, args.len, 4), -1);
    CHECK_OK(weft_memory_deregister(memory));
    close(fd);
    duo_close(&duo);
    umount2(folder, MNT_DETACH);
    rmdir(folder);
}

static void local_file_that_fails_says_so(void)
{
    struct duo duo = duo_open(LEN);
    int fd = new_file();
    CHECK_EQ(ftruncate(fd, 10000), 0);
    weft_memory *memory = register_file(duo.a, fd, 0, MIB);
    struct range_request args = range_args(memory, duo.b_of_a, MIB);
    check_file_error(ended(&duo, &args, false), ENODATA);
    args.len = 10000;
    CHECK_OK(ended(&duo, &args, false).status);
    CHECK_OK(weft_memory_deregister(memory));
    close(fd);
    duo_close(&duo);
}

/* The mapped file that a write comes from has become shorter. */
static void mapped_source_that_is_gone_fails_its_write_alone(void)
{
    struct duo duo = duo_open(LEN);
    int fd = new_file(), source = memfd_create("weft-test", MFD_CLOEXEC);
    CHECK(source >= 0 && ftruncate(source, LEN) == 0 && ftruncate(fd, LEN) == 0);
    void *bytes = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, source, 0);
    CHECK(bytes != MAP_FAILED);
    weft_memory *mapped = register_one(duo.a->endpoint, bytes, LEN), *memory = register_file(duo.b, fd, 0, LEN);
    struct range_request args = range_args(mapped, import_of(&duo, memory), 100000);
    CHECK_EQ(ftruncate(source, 4096), 0);
    args.local_offset = 8192;
    CHECK_STATUS(ended(&duo, &args, false).status, WEFT_ERR_MEMORY_GONE);
    CHECK_STATUS(ended(&duo, &args, true).status, WEFT_ERR_MEMORY_GONE);
    args.local_offset = 0;
    args.len = 4096;
    CHECK_OK(ended(&duo, &args, false).status);
    CHECK_OK(weft_memory_deregister(memory));
    CHECK_OK(weft_memory_deregister(mapped));
    close(fd);
    close(source);
    duo_close(&duo);
}

static void what_is_no_file_is_refused(void)
{
    struct duo duo = duo_open(LEN);
    weft_memory_range range = {NULL, 4096};
    weft_memory *memory;
    int ends[2], fd = new_file();
    char name[64];
    CHECK_EQ(pipe(ends), 0);
    REFUSED(WEFT_ERR_INVALID, try_file(duo.a, ends[1], &range, 1, 0, &memory));
    REFUSED(WEFT_ERR_INVALID, try_file(duo.a, -1, &range, 1, 0, &memory));
    int folder = open("/var/tmp", O_RDONLY);
    REFUSED(WEFT_ERR_INVALID, try_file(duo.a, folder, &range, 1, WEFT_ACCESS_REMOTE_READ, &memory));
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    int append = open(name, O_RDWR | O_APPEND), reads = open(name, O_RDONLY), writes = open(name, O_WRONLY);
    REFUSED(WEFT_ERR_INVALID, try_file(duo.a, append, &range, 1, 0, &memory));
    REFUSED(WEFT_ERR_INVALID, try_file(duo.a, reads, &range, 1, 0, &memory));
    REFUSED(WEFT_ERR_INVALID, try_file(duo.a, writes, &range, 1, 0, &memory));
    CHECK_OK(try_file(duo.b, reads, &range, 1, WEFT_ACCESS_REMOTE_READ, &memory));
    struct range_request args = range_args(duo.a_memory, import_of(&duo, memory), 4096);
    weft_op id;
    weft_status status = submit_write(duo.a->endpoint, &args, &id);
    CHECK_STATUS(status == WEFT_OK ? box_await(duo.a, id, patience_ms()).status : status, WEFT_ERR_REMOTE_ACCESS);
    CHECK_OK(weft_memory_deregister(memory));
    range.len = UINT64_C(1) << 47;
    REFUSED(WEFT_ERR_NO_MEMORY, try_file(duo.a, fd, &range, 1, 0, &memory));
    range = (weft_memory_range){(void *)INT64_MAX, 1};
    REFUSED(WEFT_ERR_LIMIT, try_file(duo.a, fd, &range, 1, 0, &memory));
    weft_memory_args host = WEFT_MEMORY_ARGS_INIT;
    host.fd = fd;
    range = (weft_memory_range){duo.a_bytes, LEN};
    REFUSED(WEFT_ERR_INVALID, weft_memory_register(duo.a->endpoint, &range, 1, &host, &memory));
    for (const int *each = (int[]){ends[0], ends[1], folder, append, reads, writes, fd, -1}; *each >= 0; each++)
        close(*each);
    duo_close(&duo);
}

/* ---- A disk that hangs ---- */

static void disk_that_hangs_holds_up_nothing_else(void)
{
    char choice[64];
    snprintf(choice, sizeof choice, "fake:hang=0:for=%" PRIu64, patiently(4000) * 1000);
    disk_begin(choice);
    weft_endpoint_config patient = test_config(), owner = test_config();
    owner.timeout_ns = patiently(500) * MS;
    struct duo duo = duo_open_between(LEN, &patient, &owner);
    int fd = new_file();
    CHECK_EQ(ftruncate(fd, LEN), 0);
    weft_memory *memory = register_file(duo.b, fd, 0, LEN);
    struct range_request hung = range_args(duo.a_memory, import_of(&duo, memory), 4096), beside = hung;
    struct range_request bytes = range_args(duo.a_memory, duo.b_of_a, LEN);
    weft_op late, early;
    beside.remote_offset = 2 * MIB + 4096; /* farther than its direct and cached writes wait for each other */
    beside.len = 300000;
    hung.options.timeout_ns = 60 * SECOND;
    CHECK_OK(submit_write(duo.a->endpoint, &hung, &late));
    hung.options.timeout_ns = 100 * MS;
    CHECK_OK(submit_read(duo.a->endpoint, &hung, &early));
    for (int i = 0; i < 5; i++) {
        CHECK_OK(ended(&duo, &bytes, i % 2).status);
        CHECK_OK(ended(&duo, &beside, i % 2).status);
    }
    CHECK_STATUS(box_await(duo.a, early, patience_ms()).status, WEFT_ERR_TIMED_OUT);
    check_file_error(box_await(duo.a, late, patience_ms()), ETIMEDOUT);
    weft_status status = weft_memory_deregister(memory);
    CHECK_STATUS(status, WEFT_ERR_TIMED_OUT);
    for (uint64_t until = now_ns() + patience_ms() * MS; status == WEFT_ERR_TIMED_OUT && now_ns() < until;)
        status = weft_memory_deregister(memory);
    CHECK_OK(status);
    close(fd);
    duo_close(&duo);
}

/* ---- Access that ends ---- */

static void file_is_not_changed_after_a_revoke(void)
{
    enum { WRITES = 16 };
    disk_begin("fake:late=3000");
    struct duo duo = duo_open(LEN);
    int fd = new_file();
    CHECK_EQ(ftruncate(fd, LEN), 0);
    weft_memory_range range = {NULL, LEN};
    weft_memory *memory;
    uint8_t *zero = calloc(1, LEN), *got = malloc(LEN);
    CHECK(zero != NULL && got != NULL);
    memset(duo.a_bytes, 0x55, LEN);
    CHECK_OK(try_file(duo.b, fd, &range, 1, WEFT_ACCESS_GRANTED, &memory));
    struct range_request args = range_args(duo.a_memory, import_of(&duo, memory), LEN / WRITES);
    for (int round = 0; round < 4; round++) {
        weft_op writes[WRITES], id;
        CHECK_OK(weft_grant_create(memory, duo.b_to_a, NULL, &args.options.grant));
        for (int i = 0; i < WRITES; i++) {
            args.remote_offset = i * args.len;
            writes[i] = write_now(duo.a, &args);
        }
        box_pump(duo.a, round);
        CHECK_OK(weft_grant_revoke(duo.b->endpoint, &args.options.grant, NULL, &id));
        CHECK_OK(box_await(duo.b, id, patience_ms()).status);
        CHECK_EQ(pwrite(fd, zero, LEN, 0), LEN);
        for (int i = 0; i < WRITES; i++)
            CHECK_ONE_OF(box_await(duo.a, writes[i], 4 * patience_ms()).status, WEFT_OK, WEFT_ERR_REVOKED);
        sleep_ms(20);
        CHECK_EQ(pread(fd, got, LEN, 0), LEN);
        check_bytes(got, zero, LEN);
    }
    CHECK_OK(weft_memory_deregister(memory));
    free(zero);
    free(got);
    close(fd);
    duo_close(&duo);
}

/* ---- The owner dies ---- */

static void writes_are_there_when_the_owner_was_killed(void)
{
    kill_an_owner(0);
}

/* Over NICs, bytes of files go in frames. */
#define FABRICS "tcp,host,verbs,efa,sim:like=verbs"

static const struct test tests[] = {
    {"bytes_of_a_file_are_written_and_read", FABRICS, bytes_of_a_file_are_written_and_read},
    {"bytes_move_by_threads", FABRICS, bytes_move_by_threads},
    {"bytes_move_where_io_uring_is_refused", FABRICS, bytes_move_where_io_uring_is_refused},
    {"bytes_of_a_disk_that_ends_short", FABRICS, bytes_of_a_disk_that_ends_short},
    {"bytes_go_through_the_page_cache", FABRICS, bytes_go_through_the_page_cache},
    {"pages_move_between_files", FABRICS, pages_move_between_files},
    {"own_file_moves_to_and_from_memory", FABRICS, own_file_moves_to_and_from_memory},
    {"endpoint_copies_between_its_file_and_memory", FABRICS, endpoint_copies_between_its_file_and_memory},
    {"block_device_is_memory_unless_it_is_in_use", FABRICS, block_device_is_memory_unless_it_is_in_use},
    {"end_of_a_file_is_an_error_for_reads", FABRICS, end_of_a_file_is_an_error_for_reads},
    {"read_past_the_end_names_errno_and_entry", FABRICS, read_past_the_end_names_errno_and_entry},
    {"disk_that_is_full_says_so", FABRICS, disk_that_is_full_says_so},
    {"file_system_that_is_full_says_so", FABRICS, file_system_that_is_full_says_so},
    {"local_file_that_fails_says_so", FABRICS, local_file_that_fails_says_so},
    {"mapped_source_that_is_gone_fails_its_write_alone", "tcp,host", mapped_source_that_is_gone_fails_its_write_alone},
    {"what_is_no_file_is_refused", FABRICS, what_is_no_file_is_refused},
    {"disk_that_hangs_holds_up_nothing_else", FABRICS, disk_that_hangs_holds_up_nothing_else},
    {"file_is_not_changed_after_a_revoke", FABRICS, file_is_not_changed_after_a_revoke},
    {"writes_are_there_when_the_owner_was_killed", FABRICS, writes_are_there_when_the_owner_was_killed},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
