/*
 * What completes with WEFT_DURABLE survives a power cut: a machine writes to its own disk, as its own peer's, until its power
 * fails, and looks what is there when it has started again. tools/test-files-vm.sh runs it in a virtual machine.
 *     WEFT_DISK    a block device with a volatile cache, which is overwritten
 *     WEFT_LEDGER  a file outside of the machine: what was begun, and what has ended
 *     WEFT_FLUSH   durable; owner: fdatasync after each transfer; none: what is written may be lost
 * Tests: `writes` looks, and writes until it is killed; `looks` only looks. Files: half of the disk as a block device, and
 * one on ext4 that grows.
 */
#include "files.h"

#include <sys/mount.h>
#include <sys/stat.h>

#define HALF (96 * MIB)
#define SECTOR 512
/* Places that transfers write to. Neighbours share blocks. */
#define PLACES 600
#define PLACE 150001
#define DEEP 8
#define FILES 2
#define FOLDER "/run/weft-durable"

static const char *variable(const char *name)
{
    const char *value = getenv(name);
    if (value == NULL)
        skip("tools/test-files-vm.sh sets %s", name);
    return value;
}

static bool flush_is(const char *what) { return strcmp(variable("WEFT_FLUSH"), what) == 0; }

/* ---- The disk ---- */

static int file_of[FILES];

static void open_disk(bool is_new)
{
    const char *disk = variable("WEFT_DISK");
    for (int half = 0; half < 2; half++)
        shell("dmsetup create weft%d --table '0 %d linear %s %d'", half, (int)(HALF / SECTOR), disk,
              (int)(half * (HALF / SECTOR)));
    if (is_new)
        shell("mkfs.ext4 -q -F -E lazy_itable_init=0 /dev/mapper/weft1");
    shell("mkdir -p " FOLDER " && mount /dev/mapper/weft1 " FOLDER);
    file_of[0] = open("/dev/mapper/weft0", O_RDWR | O_CLOEXEC);
    file_of[1] = open(FOLDER "/file", O_RDWR | O_CLOEXEC | (is_new ? O_CREAT : 0), 0600);
    CHECK(file_of[0] >= 0 && file_of[1] >= 0);
    int folder = open(FOLDER, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    CHECK_EQ(fsync(file_of[1]), 0);
    CHECK_EQ(fsync(folder), 0);
    close(folder);
    CHECK_EQ(fsync(file_of[0]), 0);
}

/* ---- The ledger: lines "begun FILE PLACE", "ended FILE PLACE OFFSET LEN SEED" ---- */

struct ended { uint64_t offset, len, seed; /* 0: nothing is known */ };
static struct ended known[FILES][PLACES];
static uint64_t seeds; /* the last one */
static int ledger;

static void note(const char *format, ...)
{
    char line[256];
    va_list words;
    va_start(words, format);
    int len = vsnprintf(line, sizeof line, format, words);
    va_end(words);
    CHECK_EQ(write(ledger, line, len), len);
}

/* False: it is new. */
static bool read_ledger(void)
{
    char line[256], what[16];
    FILE *in = fopen(variable("WEFT_LEDGER"), "r");
    ledger = open(variable("WEFT_LEDGER"), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    CHECK(ledger >= 0);
    bool found = false;
    while (in != NULL && fgets(line, sizeof line, in) != NULL) {
        unsigned file, place;
        struct ended ended = {0};
        int count = sscanf(line, "%15s %u %u %" SCNu64 " %" SCNu64 " %" SCNu64, what, &file, &place, &ended.offset,
                           &ended.len, &ended.seed);
        if (count < 3 || strchr(line, '\n') == NULL)
            continue;
        CHECK(file < FILES && place < PLACES && (count == 3 || count == 6));
        known[file][place] = ended;
        seeds = ended.seed > seeds ? ended.seed : seeds;
        found = true;
    }
    if (in != NULL)
        fclose(in);
    return found;
}

/* Compares what has ended with the disk. */
static int look(void)
{
    uint8_t *got = malloc(PLACE);
    int there = 0, lost = 0;
    CHECK(got != NULL);
    for (int file = 0; file < FILES; file++)
        for (int place = 0; place < PLACES; place++) {
            struct ended *want = &known[file][place];
            if (want->seed == 0)
                continue;
            ssize_t n = pread(file_of[file], got, want->len, (uint64_t)place * PLACE + want->offset);
            int64_t differs = n == (ssize_t)want->len ? differs_random(got, want->len, want->seed) : n;
            there += differs < 0;
            lost += differs >= 0;
            if (differs >= 0)
                printf("lost: file %d, place %d: %" PRIu64 " bytes at %" PRIu64 " differ from byte %" PRId64 " on\n", file,
                       place, want->len, want->offset, differs);
            if (differs >= 0)
                want->seed = 0;
        }
    free(got);
    printf("there %d lost %d\n", there, lost);
    fflush(stdout);
    return lost;
}

/* ---- Transfers ---- */

struct transfer {
    weft_op id;
    uint64_t number; /* of its notification */
    int file, count, place[2];
    struct ended part[2];
    bool is_plain; /* not durable */
    bool noted;
};
static struct transfer all[DEEP];
static uint64_t rounds; /* transfers that have begun */
static bool is_busy[FILES][PLACES];
/* Plain writes that have completed, when this many transfers had begun: the next durable one of the file is for them, too. */
static struct { struct ended part; uint64_t rounds; } plain[FILES][PLACES];

static void note_ended(int file, int place, const struct ended *part)
{
    note("ended %d %d %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", file, place, part->offset, part->len, part->seed);
}

/* It has ended: from here on, it must be there, and so must what was written before it began. */
static void has_ended(struct transfer *transfer)
{
    if (transfer->noted || transfer->is_plain)
        return;
    if (flush_is("owner"))
        CHECK_EQ(fdatasync(file_of[transfer->file]), 0);
    for (int i = 0; i < transfer->count; i++)
        note_ended(transfer->file, transfer->place[i], &transfer->part[i]);
    for (int place = 0; place < PLACES; place++) {
        struct ended *part = &plain[transfer->file][place].part;
        if (part->seed == 0 || plain[transfer->file][place].rounds >= transfer->number / DEEP)
            continue;
        note_ended(transfer->file, place, part);
        part->seed = 0;
        is_busy[transfer->file][place] = false;
    }
    transfer->noted = true;
}

/* A list of one or two entries; the owner is notified. */
static void begin(struct duo *duo, weft_remote_memory **remote, size_t number, uint64_t *random)
{
    struct transfer *transfer = &all[number];
    weft_list_entry entries[2];
    struct list_request list = LIST_REQUEST_INIT;
    *transfer = (struct transfer){.number = ++rounds * DEEP + number, .file = (int)(next_random(random) % FILES)};
    transfer->count = 1 + (int)(next_random(random) % 2);
    transfer->is_plain = flush_is("durable") && next_random(random) % 4 == 0;
    for (int i = 0; i < transfer->count; i++) {
        uint64_t place, whole = next_random(random) % 2, at = (number * 2 + i) * PLACE;
        do
            place = next_random(random) % PLACES;
        while (is_busy[transfer->file][place]);
        is_busy[transfer->file][place] = true;
        struct ended *part = &transfer->part[i];
        part->seed = ++seeds;
        part->offset = whole ? 0 : next_random(random) % (PLACE - 1);
        part->len = whole ? PLACE : 1 + next_random(random) % (PLACE - part->offset);
        transfer->place[i] = (int)place;
        fill_random(duo->a_bytes + at, part->len, part->seed);
        entries[i] = (weft_list_entry){.local = duo->a_memory, .remote = remote[transfer->file], .local_offset = at,
                                       .remote_offset = place * PLACE + part->offset, .len = part->len};
        note("begun %d %d\n", transfer->file, transfer->place[i]);
    }
    list.entries = entries;
    list.count = (uint64_t)transfer->count;
    list.options.flags = WEFT_NOTIFY | (flush_is("durable") && !transfer->is_plain ? WEFT_DURABLE : 0);
    list.options.notify = transfer->number;
    CHECK_OK(submit_write_list(duo->a->endpoint, &list, &transfer->id));
}

static void end(struct duo *duo, size_t number)
{
    weft_completion done = box_await(duo->a, all[number].id, 8 * patience_ms());
    CHECK_OK(done.status);
    struct transfer *transfer = &all[number];
    has_ended(transfer);
    for (int i = 0; i < transfer->count; i++) {
        int file = transfer->file, place = transfer->place[i];
        if (transfer->is_plain) {
            plain[file][place].part = transfer->part[i];
            plain[file][place].rounds = rounds;
        }
        is_busy[file][place] = transfer->is_plain;
    }
}

static void write_until_the_end(void)
{
    struct duo duo = duo_open(2 * DEEP * PLACE);
    weft_remote_memory *remote[FILES];
    uint64_t random = now_ns();
    for (int file = 0; file < FILES; file++) {
        remote[file] = import_of(&duo, register_file(duo.b, file_of[file], 0, (uint64_t)PLACES * PLACE));
    }
    puts("writing");
    fflush(stdout);
    for (size_t i = 0; i < DEEP; i++)
        begin(&duo, remote, i, &random);
    for (size_t i = 0;; i = (i + 1) % DEEP) {
        weft_completion told;
        box_pump(duo.b, 1);
        while (box_try(duo.b, WEFT_COMPLETION_NOTIFICATION, &told))
            if (all[told.notify % DEEP].number == told.notify)
                has_ended(&all[told.notify % DEEP]);
        end(&duo, i);
        begin(&duo, remote, i, &random);
    }
}

static void writes(void)
{
    bool found = read_ledger();
    open_disk(!found);
    look();
    write_until_the_end();
}

static void looks(void)
{
    CHECK(read_ledger());
    open_disk(false);
    look();
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        {"writes", "tcp", writes},
        {"looks", "tcp", looks},
        {0},
    };
    return run_tests(argc, argv, tests);
}
