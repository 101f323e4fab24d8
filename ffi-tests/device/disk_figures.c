/*
 * What a peer's disk costs the other traffic, with a fake device that hangs: prints names and numbers. Its tests are the
 * measurements (tools/disk-figures.sh runs them on tcp, and those of random reads on host).
 *
 * hung_file_share       writes to memory of the same peer beside a hung disk, over without; medians of 5, in turns
 * hung_file_overrun_ms  the longest time from the deadline of a write to the hung disk to its completion
 * file_staging_mib      what the owner's memory grows by while 100 peers write to its slow disk
 * file_write_share, file_read_share  pages of 64 KiB, three neighbours to a run, to and from a peer's file: over the lesser
 *                       of fio (direct, 192 KiB, depth 20) and the same pages of its memory; medians of 5, in turns
 * file_random_64k_of_fio, file_4k_of_fio  random reads of 64 KiB and of 4 KiB over host, 32 at once, over fio's
 * file_one_4k_ms        one read of 4 KiB beyond fio at depth 1 and a read of memory
 * file_over_nvmeof_tcp  runs of 192 KiB to and from the disk WEFT_DISK, over fio's by the kernel's NVMe over tcp, WEFT_DISK_OF_KERNEL:
 *                       the lesser one (tools/test-files-vm.sh runs it); medians of 5, in turns
 */
#include "gpu.h"

#define LEN (4 * MIB)
#define PEERS 100
#define TURNS 5

static int by_value(const void *a, const void *b)
{
    double one = *(const double *)a, two = *(const double *)b;
    return (one > two) - (one < two);
}

static double median(double *values, size_t count)
{
    qsort(values, count, sizeof *values, by_value);
    return values[count / 2];
}

static weft_memory *register_disk(weft_endpoint *endpoint, uint8_t **at)
{
    weft_memory *memory;
    uint8_t *zeros = calloc(1, LEN);
    *at = device_alloc(0, LEN);
    device_put(*at, zeros, LEN);
    free(zeros);
    weft_memory_range range = {*at, LEN};
    CHECK_OK(weft_memory_register(endpoint, &range, 1, NULL, &memory));
    return memory;
}

static weft_remote_memory *disk_of(struct duo *duo)
{
    char blob[4096];
    uint8_t *at;
    weft_remote_memory *remote;
    size_t n = descriptor_of(register_disk(duo->b->endpoint, &at), blob, sizeof blob);
    CHECK_OK(weft_remote_memory_import(duo->a->endpoint, duo->a_to_b, blob, n, &remote));
    return remote;
}

/* Writes of 64 KiB to memory for 0.5 s, eight at once: GB/s. */
static double memory_rate(struct duo *duo)
{
    struct range_request args = range_args(duo->a_memory, duo->b_of_a, 64 * KIB);
    weft_op ids[8];
    uint64_t began = now_ns(), bytes = 0;
    for (size_t i = 0; i < COUNT(ids); i++)
        ids[i] = write_now(duo->a, &args);
    for (size_t i = 0; now_ns() < began + 500 * MS; i = (i + 1) % COUNT(ids)) {
        CHECK_OK(box_await(duo->a, ids[i], patience_ms()).status);
        bytes += args.len;
        ids[i] = write_now(duo->a, &args);
    }
    double rate = (double)bytes / (double)(now_ns() - began);
    for (size_t i = 0; i < COUNT(ids); i++)
        CHECK_OK(box_await(duo->a, ids[i], patience_ms()).status);
    return rate;
}

/* In a process of its own, since what hangs does so for good: the rate of memory, and how late a write to the disk ends. */
static void measure(bool hangs, double *rate, double *late_ms)
{
    int status;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child > 0) {
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        return;
    }
    devices_begin(":slow:hang=1:all:ever:patience=600000000");
    struct duo duo = duo_open(LEN);
    struct range_request args = range_args(duo.a_memory, disk_of(&duo), 64 * KIB);
    args.options.timeout_ns = 60000 * MS;
    for (int i = 0; hangs && i < 8; i++)
        write_now(duo.a, &args);
    box_pump(duo.a, 50);
    *rate = memory_rate(&duo);
    args.options.timeout_ns = 100 * MS;
    for (int i = 0; hangs && i < 4; i++) {
        uint64_t due = now_ns() + args.options.timeout_ns;
        CHECK_STATUS(box_await(duo.a, write_now(duo.a, &args), patience_ms()).status, WEFT_ERR_TIMED_OUT);
        double late = (double)(int64_t)(now_ns() - due) / 1e6;
        *late_ms = late > *late_ms ? late : *late_ms;
    }
    _exit(0);
}

static void hung(void)
{
    double *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    double with[TURNS], without[TURNS];
    for (int turn = 0; turn < TURNS; turn++) {
        measure(false, &shared[0], NULL);
        measure(true, &shared[1], &shared[2]);
        without[turn] = shared[0], with[turn] = shared[1];
    }
    printf("hung_file_share %.2f\n", median(with, TURNS) / median(without, TURNS));
    printf("hung_file_overrun_ms %.0f\n", shared[2]);
}

static void owner(struct team *team)
{
    devices_begin(":slow:late=20000");
    struct box *box = box_of(open_endpoint());
    uint8_t bytes[8192], *at;
    weft_memory *memory = register_disk(box->endpoint, &at);
    tell(team, 1, bytes, address_of(box->endpoint, bytes, sizeof bytes));
    tell(team, 1, bytes, descriptor_of(memory, bytes, sizeof bytes));
    meet(team, 1, box);
    long before = resident_kb(), most = before;
    tell(team, 1, "", 1);
    while (atomic_load(&team->board->word[0]) == 0) {
        box_pump(box, 1);
        long now = resident_kb();
        most = now > most ? now : most;
    }
    printf("file_staging_mib %.1f\n", (double)(most - before) / 1024);
    fflush(stdout);
    meet(team, 1, box);
    _exit(0);
}

static void hundred_peers(struct team *team)
{
    static struct box *boxes[PEERS];
    static struct range_request args[PEERS];
    uint8_t address[8192], descriptor[8192], byte;
    static uint8_t *bytes;
    devices_begin(":slow:late=20000");
    size_t a = hear(team, 0, NULL, address, sizeof address);
    size_t d = hear(team, 0, NULL, descriptor, sizeof descriptor);
    bytes = map_bytes(MIB);
    for (int i = 0; i < PEERS; i++) {
        weft_remote_memory *remote;
        weft_peer peer;
        boxes[i] = box_of(open_endpoint());
        CHECK_OK(weft_peer_connect(boxes[i]->endpoint, address, a, NULL, &peer));
        CHECK_OK(box_take(boxes[i], WEFT_COMPLETION_PEER_UP, patience_ms()).status);
        CHECK_OK(weft_remote_memory_import(boxes[i]->endpoint, peer, descriptor, d, &remote));
        args[i] = range_args(register_one(boxes[i]->endpoint, bytes, MIB), remote, MIB);
        args[i].options.timeout_ns = 60000 * MS;
    }
    meet(team, 0, NULL);
    CHECK_EQ(hear(team, 0, NULL, &byte, 1), 1);
    for (int round = 0; round < 2; round++) {
        weft_op ids[PEERS];
        for (int i = 0; i < PEERS; i++)
            ids[i] = write_now(boxes[i], &args[i]);
        for (int i = 0; i < PEERS; i++)
            CHECK_OK(box_await(boxes[i], ids[i], 60000).status);
    }
    atomic_store(&team->board->word[0], 1);
    meet(team, 0, NULL);
    _exit(0);
}

static void staging(void) { run_pair(owner, hundred_peers); }

/* ---- Real files, beside fio ---- */

#define PAGE (64 * KIB)
#define GROUP (3 * PAGE) /* pages that are neighbours */
#define GROUPS 1024
#define FILE_LEN (GROUPS * GROUP)
#define DEEP 8 /* operations at once, of four groups */

/* A number of fio's terse output (version 3), of random I/O by io_uring without the page cache. */
static double fio(const char *path, const char *rw, uint64_t len, int depth, int field)
{
    char command[512], line[4096], *at = line;
    snprintf(command, sizeof command,
             "fio --name=weft --filename=%s --rw=%s --bs=%" PRIu64 " --direct=1 --iodepth=%d --ioengine=io_uring "
             "--runtime=1 --time_based --size=%" PRIu64 " --output-format=terse --terse-version=3 2>/dev/null",
             path, rw, len, depth, (uint64_t)FILE_LEN);
    FILE *out = popen(command, "r");
    CHECK(out != NULL && fgets(line, sizeof line, out) != NULL);
    CHECK_EQ(pclose(out), 0);
    while (--field > 0)
        CHECK((at = strchr(at, ';')) != NULL && at++ != NULL);
    return strtod(at, NULL);
}

static weft_op move_groups(struct duo *duo, weft_remote_memory *remote, bool read, uint64_t *seed)
{
    struct pages_request args = PAGES_REQUEST_INIT;
    static uint32_t local[12], theirs[12];
    weft_op id;
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t group = (uint32_t)(next_random(seed) % GROUPS);
        for (uint32_t k = 0; k < 3; k++)
            local[3 * i + k] = 3 * i + k, theirs[3 * i + k] = 3 * group + k;
    }
    args.local = duo->a_memory;
    args.remote = remote;
    args.pages.local.pages = local;
    args.pages.remote.pages = theirs;
    args.pages.local.page_stride = args.pages.remote.page_stride = args.pages.page_len = PAGE;
    args.pages.page_count = COUNT(local);
    CHECK_OK((read ? submit_read_pages : submit_write_pages)(duo->a->endpoint, &args, &id));
    return id;
}

/* GB/s of groups of pages at random places, for a second. */
static double group_rate(struct duo *duo, weft_remote_memory *remote, bool read)
{
    weft_op ids[DEEP];
    uint64_t seed = now_ns(), began = now_ns(), bytes = 0;
    for (size_t i = 0; i < DEEP; i++)
        ids[i] = move_groups(duo, remote, read, &seed);
    for (size_t i = 0; now_ns() < began + 1000 * MS; i = (i + 1) % DEEP) {
        CHECK_OK(box_await(duo->a, ids[i], patience_ms()).status);
        bytes += 4 * GROUP;
        ids[i] = move_groups(duo, remote, read, &seed);
    }
    double rate = (double)bytes / (double)(now_ns() - began);
    for (size_t i = 0; i < DEEP; i++)
        CHECK_OK(box_await(duo->a, ids[i], patience_ms()).status);
    return rate;
}

/* Random reads of one page each, so many at once: GB/s; of one at once, its time follows. */
static double read_rate(struct duo *duo, weft_remote_memory *remote, uint64_t len, size_t depth)
{
    weft_op ids[32];
    struct range_request args = range_args(duo->a_memory, remote, len);
    uint64_t seed = now_ns(), began = now_ns(), bytes = 0;
    for (size_t i = 0; now_ns() < began + 500 * MS; i++) {
        if (i >= depth) {
            CHECK_OK(box_await(duo->a, ids[i % depth], patience_ms()).status);
            bytes += len;
        }
        args.local_offset = i % depth * len;
        args.remote_offset = next_random(&seed) % (FILE_LEN / len) * len;
        CHECK_OK(submit_read(duo->a->endpoint, &args, &ids[i % depth]));
    }
    double rate = (double)bytes / (double)(now_ns() - began);
    for (size_t i = 0; i < depth; i++)
        CHECK_OK(box_await(duo->a, ids[i], patience_ms()).status);
    return rate;
}

/* A file whose blocks were written once; its name is in `path`. */
static int new_file(char *path)
{
    if (system("fio --version >/dev/null 2>&1") != 0)
        skip("fio is not installed");
    int fd = mkstemp(path);
    CHECK(fd >= 0 && posix_fallocate(fd, 0, FILE_LEN) == 0);
    fio(path, "write", MIB, 4, 48);
    return fd;
}

static weft_remote_memory *import_file(struct duo *duo, int fd)
{
    char blob[4096];
    weft_memory *memory;
    weft_remote_memory *file;
    weft_memory_args args = WEFT_MEMORY_ARGS_INIT;
    weft_memory_range range = {NULL, FILE_LEN};
    args.kind = WEFT_MEMORY_FILE;
    args.fd = fd;
    CHECK_OK(weft_memory_register(duo->b->endpoint, &range, 1, &args, &memory));
    size_t n = descriptor_of(memory, blob, sizeof blob);
    CHECK_OK(weft_remote_memory_import(duo->a->endpoint, duo->a_to_b, blob, n, &file));
    return file;
}

static void random_reads(void)
{
    char path[] = "weft-disk-figures-XXXXXX";
    int fd = new_file(path);
    struct duo duo = duo_open(FILE_LEN);
    weft_remote_memory *file = import_file(&duo, fd);
    double large[TURNS], small[TURNS];
    for (int i = 0; i < TURNS; i++) {
        double disk = fio(path, "randread", PAGE, 32, 7) / 1e6, ours = read_rate(&duo, file, PAGE, 32);
        large[i] = ours / disk;
        fprintf(stderr, "64 KiB: fio %.2f, file %.2f GB/s\n", disk, ours);
        disk = fio(path, "randread", 4096, 32, 7) / 1e6, ours = read_rate(&duo, file, 4096, 32);
        small[i] = ours / disk;
        fprintf(stderr, "4 KiB: fio %.3f, file %.3f GB/s\n", disk, ours);
    }
    printf("file_random_64k_of_fio %.2f\nfile_4k_of_fio %.2f\n", median(large, TURNS), median(small, TURNS));
    unlink(path);
    duo_close(&duo);
}

static void files(void)
{
    char path[] = "weft-disk-figures-XXXXXX";
    int fd = new_file(path);
    struct duo duo = duo_open(FILE_LEN);
    weft_remote_memory *file = import_file(&duo, fd);
    double write[TURNS], read[TURNS], one[TURNS];
    for (int i = 0; i < TURNS; i++) {
        double disk = fio(path, "randwrite", GROUP, 20, 48) / 1e6, tcp = group_rate(&duo, duo.b_of_a, false);
        double ours = group_rate(&duo, file, false);
        write[i] = ours / (disk < tcp ? disk : tcp);
        fprintf(stderr, "write: fio %.2f, tcp %.2f, file %.2f GB/s\n", disk, tcp, ours);
        CHECK_EQ(fsync(fd), 0);
        CHECK_EQ(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
        disk = fio(path, "randread", GROUP, 20, 7) / 1e6, tcp = group_rate(&duo, duo.b_of_a, true);
        ours = group_rate(&duo, file, true);
        read[i] = ours / (disk < tcp ? disk : tcp);
        fprintf(stderr, "read: fio %.2f, tcp %.2f, file %.2f GB/s\n", disk, tcp, ours);
        double of_disk = 1e3 / fio(path, "randread", 4096, 1, 8);
        one[i] = 4096 / read_rate(&duo, file, 4096, 1) / 1e6 - 4096 / read_rate(&duo, duo.b_of_a, 4096, 1) / 1e6;
        one[i] -= of_disk;
    }
    printf("file_write_share %.2f\nfile_read_share %.2f\nfile_one_4k_ms %.3f\n", median(write, TURNS),
           median(read, TURNS), median(one, TURNS));
    unlink(path);
    duo_close(&duo);
}

/* One disk, to which the kernel's NVMe over tcp and files over tcp lead. */
static void kernel(void)
{
    const char *disk = getenv("WEFT_DISK"), *other = getenv("WEFT_DISK_OF_KERNEL");
    double share[2][TURNS];
    if (disk == NULL || other == NULL)
        skip("tools/test-files-vm.sh runs it");
    int fd = open(disk, O_RDWR | O_CLOEXEC);
    CHECK(fd >= 0);
    struct duo duo = duo_open(12 * PAGE);
    weft_remote_memory *file = import_file(&duo, fd);
    for (int turn = 0; turn < TURNS; turn++)
        for (int read = 0; read < 2; read++) {
            /* Each word before what may hang. */
            fprintf(stderr, "%s: kernel's ", read ? "read" : "write");
            double theirs = fio(other, read ? "randread" : "randwrite", GROUP, 20, read ? 7 : 48) / 1e6;
            fprintf(stderr, "%.3f, file ", theirs);
            double ours = group_rate(&duo, file, read);
            share[read][turn] = ours / theirs;
            fprintf(stderr, "%.3f GB/s\n", ours);
        }
    double writes = median(share[0], TURNS), reads = median(share[1], TURNS);
    printf("file_over_nvmeof_tcp_write %.2f\nfile_over_nvmeof_tcp_read %.2f\nfile_over_nvmeof_tcp %.2f\n", writes, reads,
           writes < reads ? writes : reads);
    duo_close(&duo);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        {"hung", "tcp,host", hung},
        {"staging", "tcp", staging},
        {"files", "tcp", files},
        {"kernel", "tcp", kernel},
        {"random_reads", "host", random_reads},
        {0},
    };
    return argc > 1 && strcmp(argv[1], "--list") == 0 ? 0 : run_tests(argc, argv, tests);
}
