/* Where the caller chooses how much memory a call takes, a lack of memory is a status, and nothing is left half
   made. */
#include "harness.h"

#include <malloc.h>
#include <sys/resource.h>

static struct duo duo;
static weft_counter counter;
static void *input;         /* of the call under test, made before memory is short */
static void *made;          /* the result */
static size_t input_len;

static long address_space(void)
{
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file != NULL && fscanf(file, "%ld", &pages) == 1);
    fclose(file);
    return pages * sysconf(_SC_PAGESIZE);
}

static void set_limit(rlim_t bytes)
{
    struct rlimit now;
    CHECK(getrlimit(RLIMIT_AS, &now) == 0);
    now.rlim_cur = bytes < now.rlim_max ? bytes : now.rlim_max;
    CHECK(setrlimit(RLIMIT_AS, &now) == 0);
}

/* A list of the heap's remaining blocks, which must not serve the call under test. */
static void **ballast;

/* Small allocations must succeed: every other block is freed. (Without any, a process ends.) */
static void room_for_what_is_small(void)
{
    void **piece = ballast;
    for (int i = 0; piece && *piece && i < 100; i++) {
        void **next = *piece;
        *piece = *next;
        free(next);
        piece = *piece;
    }
}

/* From here on the process gets `slack` more bytes. */
static void limit(size_t slack)
{
    weft_endpoint_properties properties = WEFT_ENDPOINT_PROPERTIES_INIT;
    /* Later calls free closed objects: they must not do so in the call under test. */
    for (int i = 0; i < 2000; i++)
        CHECK_OK(weft_endpoint_info(duo.a->endpoint, &properties, NULL));
    set_limit((rlim_t)address_space() + 4 * MIB);
    for (void **piece; (piece = malloc(16 * 1024)) != NULL; ballast = piece)
        *piece = ballast;
    room_for_what_is_small();
    set_limit((rlim_t)address_space() + slack);
}

static void no_limit(void)
{
    set_limit(RLIM_INFINITY);
    while (ballast) {
        void **piece = ballast;
        ballast = *piece;
        free(piece);
    }
}

/* ---- Calls, each with its largest arguments; `back` releases the results ---- */

static weft_status queue_create(void)
{
    return weft_queue_create(duo.a->endpoint, 1 << 20, (weft_queue **)&made);
}

static void queue_back(void)
{
    CHECK_OK(weft_queue_destroy(made));
}

static weft_status endpoint_open(void)
{
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    config.fabric = "host";
    config.progress = WEFT_PROGRESS_MANUAL; /* threads would need memory, too */
    config.queue_depth = 1 << 20;
    return weft_endpoint_create(&config, (weft_endpoint **)&made);
}

static void endpoint_back(void)
{
    CHECK_OK(weft_endpoint_destroy(made));
}

enum { RANGES = 65536 };

static void ranges(void)
{
    input_len = RANGES;
    weft_memory_range *all = input = calloc(RANGES, sizeof *all);
    CHECK(all != NULL);
    for (size_t i = 0; i < RANGES; i++)
        all[i] = (weft_memory_range){duo.a_bytes + i, 1};
}

static weft_status memory_register(void)
{
    return weft_memory_register(duo.a->endpoint, input, input_len, NULL, (weft_memory **)&made);
}

static void memory_back(void)
{
    CHECK_OK(weft_memory_deregister(made));
}

static void descriptor(void)
{
    ranges();
    weft_memory *memory;
    for (size_t i = 0; i < RANGES; i++)
        ((weft_memory_range *)input)[i].address = duo.b_bytes + i;
    CHECK_OK(weft_memory_register(duo.b->endpoint, input, RANGES, NULL, &memory));
    CHECK_OK(weft_memory_export(memory, NULL, 0, &input_len));
    input = realloc(input, input_len);
    CHECK(input != NULL);
    CHECK_OK(weft_memory_export(memory, input, input_len, &input_len));
}

static weft_status import(void)
{
    return weft_remote_memory_import(duo.a->endpoint, duo.a_to_b, input, input_len, (weft_remote_memory **)&made);
}

static void import_back(void)
{
    CHECK_OK(weft_remote_memory_release(made));
}

enum { PAGES = 1 << 20 };

static void indexes(void)
{
    uint32_t *pages = input = calloc(PAGES, sizeof *pages);
    CHECK(pages != NULL);
    for (size_t i = 0; i < PAGES; i++)
        pages[i] = (uint32_t)(i % 3);
}

static struct pages_request pages_args(void)
{
    struct pages_request args = PAGES_REQUEST_INIT;
    args.local = duo.a_memory;
    args.remote = duo.b_of_a;
    args.pages.page_len = 1;
    args.pages.page_count = PAGES;
    args.pages.local.pages = args.pages.remote.pages = input;
    return args;
}

static weft_op transfer;

static weft_status write_pages(void)
{
    struct pages_request args = pages_args();
    args.pages.page_count = PAGES;
    weft_status status = submit_write_pages(duo.a->endpoint, &args, &transfer);
    if (status == WEFT_OK) /* it would take long, but may have ended */
        (void)!weft_op_cancel(duo.a->endpoint, transfer);
    return status;
}

static void transfer_back(void)
{
    (void)box_await(duo.a, transfer, patience_ms());
}

static weft_status pages_keep(void)
{
    struct pages_request args = pages_args();
    return prepare_pages(duo.a->endpoint, &args, (weft_prepared **)&made);
}

static void kept_back(void)
{
    CHECK_OK(weft_prepared_destroy(made));
}

static void entries(void)
{
    weft_list_entry *all = input = calloc(WEFT_LIST_ENTRIES_MAX, sizeof *all);
    CHECK(all != NULL);
    for (size_t i = 0; i < WEFT_LIST_ENTRIES_MAX; i++) {
        all[i].local = duo.a_memory;
        all[i].remote = duo.b_of_a;
        all[i].len = 1;
    }
}

static struct list_request list_args(void)
{
    struct list_request args = LIST_REQUEST_INIT;
    args.entries = input;
    args.count = WEFT_LIST_ENTRIES_MAX;
    return args;
}

static weft_status write_list(void)
{
    struct list_request args = list_args();
    weft_status status = submit_write_list(duo.a->endpoint, &args, &transfer);
    if (status == WEFT_OK)
        (void)!weft_op_cancel(duo.a->endpoint, transfer);
    return status;
}

static weft_status list_keep(void)
{
    struct list_request args = list_args();
    return prepare_list(duo.a->endpoint, &args, (weft_prepared **)&made);
}

static void message(void)
{
    input = calloc(1, WEFT_MESSAGE_MAX);
    CHECK(input != NULL);
}

static weft_status send_message(void)
{
    struct send_request args = SEND_REQUEST_INIT;
    args.peer = duo.a_to_b;
    args.data = input;
    args.len = WEFT_MESSAGE_MAX;
    return submit_send(duo.a->endpoint, &args, &transfer);
}

static void message_back(void)
{
    weft_completion arrived = box_take(duo.b, WEFT_COMPLETION_MESSAGE, patience_ms());
    CHECK_EQ(arrived.bytes, WEFT_MESSAGE_MAX);
    CHECK_OK(weft_message_release(duo.b->endpoint, arrived.op));
    CHECK_OK(box_await(duo.a, transfer, patience_ms()).status);
}

enum { EXPECTED = 65536 };

static void values(void)
{
    uint64_t *all = input = calloc(2 * EXPECTED, sizeof *all);
    CHECK(all != NULL);
    for (size_t i = 0; i < EXPECTED; i++) {
        all[i] = counter;
        all[EXPECTED + i] = i + 1;
    }
}

static weft_status expect(void)
{
    struct expect_request args = EXPECT_REQUEST_INIT;
    args.counters = input;
    args.values = (uint64_t *)input + EXPECTED;
    args.count = EXPECTED;
    weft_status status = submit_expect(duo.a->endpoint, &args, &transfer);
    if (status == WEFT_OK)
        CHECK_OK(weft_op_cancel(duo.a->endpoint, transfer));
    return status;
}

static const struct call {
    const char *name;
    void (*prepare)(void);
    weft_status (*make)(void);
    void (*back)(void);
    size_t first; /* with so little memory it must fail */
    size_t last;  /* at this limit it must succeed */
} calls[] = {
    {"weft_queue_create", NULL, queue_create, queue_back, 256 * KIB, 256 * MIB},
    {"weft_endpoint_create", NULL, endpoint_open, endpoint_back, 128 * MIB, 512 * MIB},
    {"weft_memory_register", ranges, memory_register, memory_back, 256 * KIB, 64 * MIB},
    {"weft_remote_memory_import", descriptor, import, import_back, 256 * KIB, 64 * MIB},
    {"weft_write_pages", indexes, write_pages, transfer_back, 256 * KIB, 16 * MIB},
    {"weft_pages_prepare", indexes, pages_keep, kept_back, 256 * KIB, 16 * MIB},
    {"weft_write_list", entries, write_list, transfer_back, 256 * KIB, 512 * MIB},
    {"weft_list_prepare", entries, list_keep, kept_back, 256 * KIB, 512 * MIB},
    {"weft_send", message, send_message, message_back, 256 * KIB, 16 * MIB},
    /* With more, sorting may find no memory, a little at a time: the process ends. */
    {"weft_counter_expect", values, expect, transfer_back, 256 * KIB, 256 * KIB},
};

/* First any part of its memory, in steps; then all of it. */
static void try_call(const struct call *call)
{
    int refused = 0;
    if (call->prepare)
        call->prepare();
    for (size_t slack = call->first; slack <= call->last; slack *= 4) {
        limit(slack);
        weft_status status = call->make();
        no_limit();
        if (status == WEFT_OK) {
            call->back();
            continue;
        }
        const char *said = weft_last_error();
        if (status != WEFT_ERR_NO_MEMORY || strpbrk(said, "0123456789") == NULL)
            FAIL("%s with %zu KiB left: %s: %s", call->name, slack / 1024, weft_status_name(status), said);
        refused++;
    }
    if (refused == 0)
        FAIL("%s found memory where there was none", call->name);
    CHECK_OK(call->make());
    call->back();
    free(input);
    input = NULL;
}

static void missing_memory_is_a_status_at_every_caller_size(void)
{
    /* Large blocks are mapped and unmapped: no memory remains from earlier. */
    CHECK(mallopt(M_MMAP_THRESHOLD, 64 * 1024) == 1 && mallopt(M_TRIM_THRESHOLD, 256 * 1024) == 1);
    duo = duo_open(MIB);
    CHECK_OK(weft_counter_create(duo.a->endpoint, &counter));
    for (size_t i = 0; i < COUNT(calls); i++)
        try_call(&calls[i]);
    CHECK_OK(weft_counter_destroy(duo.a->endpoint, counter));
    /* A memory that a failed call still used would be busy. */
    duo_close(&duo);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        {"missing_memory_is_a_status_at_every_caller_size", "tcp,host", missing_memory_is_a_status_at_every_caller_size},
        {0},
    };
    return run_tests(argc, argv, tests);
}
