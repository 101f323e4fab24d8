/* Device memory: registration, transfers, and what happens when it goes. */
#include "gpu.h"

#define LEN (6 * MIB)

/* ---- Two endpoints, and memory of any kind ---- */

#define HOST (-1)

/* Memory, and its expected contents. */
struct bytes {
    int device; /* or HOST */
    uint64_t len;
    uint8_t *at;
    uint8_t *model;
    weft_memory *memory;
};

static void put(struct bytes *bytes, uint64_t seed)
{
    fill_random(bytes->model, bytes->len, seed);
    if (bytes->device == HOST)
        memcpy(bytes->at, bytes->model, bytes->len);
    else
        device_put(bytes->at, bytes->model, bytes->len);
}

static void check_bytes(const struct bytes *bytes)
{
    uint8_t *got = malloc(bytes->len);
    CHECK(got != NULL);
    if (bytes->device == HOST)
        memcpy(got, bytes->at, bytes->len);
    else
        device_get(got, bytes->at, bytes->len);
    for (uint64_t i = 0; i < bytes->len; i++)
        if (got[i] != bytes->model[i])
            FAIL("byte %" PRIu64 " is %d and should be %d", i, got[i], bytes->model[i]);
    free(got);
}

/* Registers it in `parts` ranges of the same length. */
static struct bytes make(struct box *box, int device, uint64_t len, size_t parts, uint64_t seed)
{
    struct bytes bytes = {device, len, NULL, malloc(len), NULL};
    weft_memory_range ranges[16];
    CHECK(bytes.model != NULL && parts <= COUNT(ranges));
    bytes.at = device == HOST ? map_bytes(len) : device_alloc(device, len);
    put(&bytes, seed);
    for (size_t i = 0; i < parts; i++)
        ranges[i] = (weft_memory_range){bytes.at + i * (len / parts), len / parts};
    CHECK_OK(weft_memory_register(box->endpoint, ranges, parts, NULL, &bytes.memory));
    return bytes;
}

static weft_remote_memory *give(struct duo *duo, const struct bytes *bytes)
{
    char blob[16384];
    weft_remote_memory *remote;
    size_t n = descriptor_of(bytes->memory, blob, sizeof blob);
    CHECK_OK(weft_remote_memory_import(duo->a->endpoint, duo->a_to_b, blob, n, &remote));
    return remote;
}

static void drop(struct bytes *bytes)
{
    CHECK_OK(weft_memory_deregister(bytes->memory));
    if (bytes->device == HOST)
        munmap(bytes->at, bytes->len);
    else
        device_free(bytes->at, bytes->len);
    free(bytes->model);
}

/* Polls both ends until an operation has ended. */
static weft_completion await(struct duo *duo, weft_op id)
{
    (void)duo;
    return box_await(duo->a, id, 4 * patience_ms());
}

/* ---- Grants ---- */

static weft_grant_token grant_on(struct duo *duo, const struct bytes *bytes)
{
    weft_grant_token token;
    CHECK_OK(weft_grant_create(bytes->memory, duo->b_to_a, NULL, &token));
    return token;
}

/* Operations in flight when a grant on device memory ends, and later ones. */
static void revoke_between(int near, int far)
{
    enum { WRITES = 4, ROUNDS = 12 };
    devices_begin(on_cuda() || strncmp(fabric(), "sim", 3) == 0 ? "" : ":late=3"); /* copies take long */
    far %= device_count();
    struct duo duo = duo_open(4096);
    struct bytes a = make(duo.a, near, LEN, 1, 1), b = make(duo.b, far, LEN, 2, 2);
    weft_memory_args args = WEFT_MEMORY_ARGS_INIT;
    weft_memory_range ranges[2] = {{b.at, LEN / 2}, {b.at + LEN / 2, LEN / 2}};
    uint64_t seed = 3;
    int revoked = 0;
    args.access = WEFT_ACCESS_GRANTED;
    CHECK_OK(weft_memory_deregister(b.memory));
    CHECK_OK(weft_memory_register(duo.b->endpoint, ranges, 2, &args, &b.memory));
    struct range_request move = range_args(a.memory, give(&duo, &b), LEN / 2);
    for (int round = 0; round < ROUNDS; round++) {
        weft_op writes[WRITES], id;
        move.remote_offset = round % 2 * (LEN / 2);
        move.options.grant = grant_on(&duo, &b);
        for (int read = 0; read < 2; read++) {
            CHECK_OK((read ? submit_read : submit_write)(duo.a->endpoint, &move, &id));
            CHECK_OK(await(&duo, id).status);
        }
        memcpy(b.model + move.remote_offset, a.model, LEN / 2);
        check_bytes(&b);
        check_bytes(&a);
        for (int i = 0; i < WRITES; i++)
            writes[i] = write_now(duo.a, &move);
        uint64_t until = now_ns() + next_random(&seed) % (4 * MS);
        while (now_ns() < until)
            box_pump(duo.a, 0);
        CHECK_OK(weft_grant_revoke(duo.b->endpoint, &move.options.grant, NULL, &id));
        CHECK_OK(box_await(duo.b, id, patience_ms()).status);
        put(&b, 100 + round);
        for (int i = 0; i < WRITES; i++) {
            weft_status status = await(&duo, writes[i]).status;
            CHECK_ONE_OF(status, WEFT_OK, WEFT_ERR_REVOKED);
            revoked += status == WEFT_ERR_REVOKED;
        }
        sleep_ms(20);
        check_bytes(&b);
        CHECK_ONE_OF(submit_write(duo.a->endpoint, &move, &id), WEFT_ERR_REVOKED, WEFT_OK);
    }
    CHECK(on_cuda() || revoked > 0); /* a GPU may be done before */
    duo_close(&duo);
}

static void grants_on_a_device_are_revoked(void) { revoke_between(HOST, 0); }
static void grants_between_devices_are_revoked(void) { revoke_between(0, 1); }

/* ---- Registering ---- */

static void device_registrations_are_checked(void)
{
    devices_begin("");
    weft_endpoint *endpoint = open_endpoint();
    uint8_t *host = map_bytes(8192), *gpu = device_alloc(0, 8192);
    weft_memory_range range = {gpu, 8192}, two[2] = {{gpu, 4096}, {host, 4096}};
    weft_memory_args args = WEFT_MEMORY_ARGS_INIT;
    weft_memory_properties is = {.size = sizeof is};
    weft_memory *memory;
    args.kind = 4;
    REFUSED(WEFT_ERR_UNSUPPORTED, weft_memory_register(endpoint, &range, 1, &args, &memory));
    args.kind = WEFT_MEMORY_CUDA;
    args.reserved = 1;
    REFUSED(WEFT_ERR_UNSUPPORTED, weft_memory_register(endpoint, &range, 1, &args, &memory));
    args.reserved = 0;
    range.address = host;
    REFUSED(WEFT_ERR_INVALID, weft_memory_register(endpoint, &range, 1, &args, &memory));
    REFUSED(WEFT_ERR_INVALID, weft_memory_register(endpoint, two, 2, NULL, &memory));
    CHECK(strstr(weft_last_error(), "range 1") != NULL);
    range = (weft_memory_range){gpu, UINT64_C(1) << 40};
    REFUSED(WEFT_ERR_INVALID, weft_memory_register(endpoint, &range, 1, NULL, &memory));
    if (device_count() > 1) {
        two[1].address = device_alloc(1, 4096);
        REFUSED(WEFT_ERR_INVALID, weft_memory_register(endpoint, two, 2, NULL, &memory));
    }
    range = (weft_memory_range){gpu, 8192};
    CHECK_OK(weft_memory_register(endpoint, &range, 1, &args, &memory));
    CHECK_OK(weft_memory_info(memory, &is));
    CHECK_EQ(is.kind, WEFT_MEMORY_CUDA);
    CHECK_EQ(is.device, 0);
    CHECK_EQ(is.ways & ~(uint32_t)WEFT_WAY_SHARED, WEFT_WAY_STAGED);
    CHECK_EQ(is.bytes, 8192);
    CHECK_EQ(is.ranges, 1);
    CHECK(unreached || is.rails != 0);
    REFUSED(WEFT_ERR_INVALID, weft_memory_info(memory, NULL));
    REFUSED(WEFT_ERR_HANDLE, weft_memory_info(NULL, &is));
    CHECK_OK(weft_memory_deregister(memory));
    memory = register_one(endpoint, host, 8192);
    CHECK_OK(weft_memory_info(memory, &is));
    CHECK_EQ(is.kind, WEFT_MEMORY_HOST);
    CHECK_EQ(is.device, -1);
    CHECK_EQ(is.ways, WEFT_WAY_DIRECT);
    CHECK_OK(weft_memory_deregister(memory));
    device_free(gpu, 8192);
    range = (weft_memory_range){gpu, 8192};
    REFUSED(WEFT_ERR_INVALID, weft_memory_register(endpoint, &range, 1, &args, &memory));
    box_close(box_of(endpoint));
}

/* ---- Pages ---- */

static const uint64_t page_lens[] = {1, 100, 4096, 5000, 65536, 300000, 1000000};

/* Pages of 2 layers: some pages of each, between random places. */
static void move_pages(struct duo *duo, struct bytes *a, struct bytes *b,
                       weft_remote_memory *remote, uint64_t page_len, bool read, uint64_t seed)
{
    uint64_t layer = LEN / 2, stride = page_len + seed % 3 * 16, fits = layer / stride;
    uint64_t count = fits > 40 ? 40 : fits;
    uint32_t from[40], to[40];
    struct pages_request args = PAGES_REQUEST_INIT;
    weft_op id;
    for (uint64_t i = 0; i < count; i++) {
        from[i] = (uint32_t)(next_random(&seed) % fits);
        to[i] = (uint32_t)((i * 7 + 3) % fits);
    }
    for (uint64_t i = 1; i < count; i++) /* each destination once */
        for (uint64_t k = 0; k < i; k++)
            if (to[i] == to[k]) {
                count = i;
                break;
            }
    args.local = a->memory;
    args.remote = remote;
    args.pages.local.pages = read ? to : from;
    args.pages.remote.pages = read ? from : to;
    args.pages.local.page_stride = args.pages.remote.page_stride = stride;
    args.pages.local.range_step = args.pages.remote.range_step = 1;
    args.pages.page_len = page_len;
    args.pages.page_count = count;
    args.pages.layer_count = 2;
    CHECK_OK((read ? submit_read_pages : submit_write_pages)(duo->a->endpoint, &args, &id));
    struct bytes *source = read ? b : a, *target = read ? a : b;
    for (uint64_t l = 0; l < 2; l++)
        for (uint64_t i = 0; i < count; i++)
            memcpy(target->model + l * layer + to[i] * stride,
                   source->model + l * layer + from[i] * stride, page_len);
    CHECK_OK(await(duo, id).status);
    check_bytes(target);
}

static void move_between(int near, int far, const char *options)
{
    devices_begin(options);
    if (near >= device_count() || far >= device_count())
        skip("there is one device");
    struct duo duo = duo_open(4096);
    struct bytes a = make(duo.a, near, LEN, 2, 1), b = make(duo.b, far, LEN, 2, 2);
    weft_remote_memory *remote = give(&duo, &b);
    for (size_t i = 0; i < COUNT(page_lens); i++)
        for (uint64_t read = 0; read < 2; read++) {
            put(&a, 10 + i);
            put(&b, 20 + i);
            move_pages(&duo, &a, &b, remote, page_lens[i], read != 0, i * 2 + read);
        }
    /* Again, with the objects of the first ones. */
    move_pages(&duo, &a, &b, remote, 4096, false, 77);
    CHECK_OK(weft_remote_memory_release(remote));
    drop(&a);
    drop(&b);
    duo_close(&duo);
}

static void host_to_device(void)
{
    move_between(HOST, 0, "");
}

static void device_to_host(void)
{
    move_between(0, HOST, "");
}

static void device_to_device(void)
{
    move_between(0, 1, "");
}

static void transfer_within_a_device(void)
{
    move_between(0, 0, "");
}

static void unshareable_device_memory_is_staged(void)
{
    move_between(0, 1, ":private");
}

static _Atomic int opened_in_parts, through_the_host;

static void note_parts(weft_log_level level, const char *component, const char *message, void *user_data)
{
    const char *parts = strstr(message, "imported in ");
    (void)level, (void)component, (void)user_data;
    opened_in_parts += parts != NULL && atoi(parts + strlen("imported in ")) > 300;
    through_the_host += strstr(message, "through the host") != NULL;
}

/* Memory of more allocations than a socket takes at once: the target's device opens the initiator's
 * two ranges, and the initiator's device the target's. */
static void device_memory_in_parts_is_opened(void)
{
    CHECK_OK(weft_log_set(WEFT_LOG_DEBUG, note_parts, NULL));
    move_between(0, 1, ":parts");
    CHECK_OK(weft_log_set(WEFT_LOG_DEFAULT, NULL, NULL));
    CHECK_EQ(opened_in_parts, 4);
    CHECK_EQ(through_the_host, 0);
}

static void slow_copies_complete(void)
{
    move_between(0, 1, ":late=500");
}

static uint64_t bytes_read(struct box *box)
{
    weft_rail_statistics rail = WEFT_RAIL_STATISTICS_INIT;
    CHECK_OK(weft_rail_info(box->endpoint, 0, NULL, &rail));
    return rail.bytes_read;
}

static uint64_t bytes_written(struct box *box)
{
    weft_rail_statistics rail = WEFT_RAIL_STATISTICS_INIT;
    CHECK_OK(weft_rail_info(box->endpoint, 0, NULL, &rail));
    return rail.bytes_written;
}

/* A range that begins inside a page. */
static void within_a_page(struct duo *duo, const struct bytes *a, struct bytes *b)
{
    weft_memory *odd = register_one(duo->b->endpoint, b->at + 100, 70000);
    struct bytes part = {.memory = odd};
    weft_remote_memory *remote = give(duo, &part);
    struct range_request args = range_args(a->memory, remote, 70000);
    weft_op id;
    CHECK_OK(submit_write(duo->a->endpoint, &args, &id));
    CHECK_OK(await(duo, id).status);
    memcpy(b->model + 100, a->model, 70000);
    check_bytes(b);
    CHECK_OK(weft_remote_memory_release(remote));
    CHECK_OK(weft_memory_deregister(odd));
}

/* A NIC that has registered the range works without them. */
static void registrations_hold_no_files(struct box *box, const struct bytes *bytes)
{
    weft_memory *again[8];
    int fds = open_fds();
    for (size_t i = 0; i < COUNT(again); i++)
        again[i] = register_one(box->endpoint, bytes->at, bytes->len);
    CHECK_EQ(open_fds(), fds);
    for (size_t i = 0; i < COUNT(again); i++)
        CHECK_OK(weft_memory_deregister(again[i]));
}

/* NICs that access device memory directly: nothing is staged. */
static void reached_by_nics(uint32_t ways)
{
    const int ends[][2] = {{0, device_count() - 1}, {HOST, device_count() - 1}, {0, HOST}};
    struct duo duo = duo_open(4096);
    for (size_t i = 0; i < COUNT(ends); i++) {
        struct bytes a = make(duo.a, ends[i][0], LEN, 1, 1), b = make(duo.b, ends[i][1], LEN, 1, 2);
        weft_remote_memory *remote = give(&duo, &b);
        weft_memory_properties is = {.size = sizeof is};
        CHECK_OK(weft_memory_info(ends[i][0] == HOST ? b.memory : a.memory, &is));
        CHECK_EQ(is.kind, WEFT_MEMORY_CUDA);
        CHECK_EQ(is.ways, ways);
        for (int read = 0; read < 2; read++) {
            uint64_t wrote = bytes_written(duo.a), got = bytes_read(duo.a);
            struct range_request args = range_args(a.memory, remote, LEN);
            weft_op id;
            put(&a, 50 + i);
            put(&b, 60 + i);
            CHECK_OK((read ? submit_read : submit_write)(duo.a->endpoint, &args, &id));
            CHECK_OK(await(&duo, id).status);
            memcpy(read ? a.model : b.model, read ? b.model : a.model, LEN);
            check_bytes(read ? &a : &b);
            CHECK((read ? bytes_read(duo.a) - got : bytes_written(duo.a) - wrote) >= LEN);
        }
        within_a_page(&duo, &a, &b);
        registrations_hold_no_files(duo.b, &b);
        CHECK_OK(weft_remote_memory_release(remote));
        drop(&a);
        drop(&b);
    }
    duo_close(&duo);
}

static void nics_that_reach_it(void)
{
    devices_begin(":hmem");
    reached_by_nics(WEFT_WAY_DIRECT);
}

/* Registered by DMA-BUF; a NIC without support for it registers by address. */
static void nics_that_take_dmabufs(void)
{
    devices_begin(":hmem:dmabuf");
    reached_by_nics(WEFT_WAY_DIRECT | (on_fabric("sim:like=efa") ? 0 : WEFT_WAY_DMABUF));
}

static void pages_by_nics_that_reach_it(void)
{
    move_between(0, 1, ":hmem");
}

static _Atomic int opened;

static void note_opened(weft_log_level level, const char *component, const char *message, void *user_data)
{
    (void)level, (void)component, (void)user_data;
    opened += strstr(message, "memory of a peer is opened") != NULL;
}

/* The way is made when memory is imported, in both directions: the first transfer finds it. */
static void imported_memory_is_opened_before_a_transfer(void)
{
    devices_begin("");
    CHECK_OK(weft_log_set(WEFT_LOG_DEBUG, note_opened, NULL));
    struct duo duo = duo_open(4096);
    struct bytes a = make(duo.a, 0, LEN, 1, 1), b = make(duo.b, 1 % device_count(), LEN, 1, 2);
    weft_remote_memory *remote = give(&duo, &b);
    struct range_request args = range_args(a.memory, remote, LEN);
    weft_op id;
    for (uint64_t until = now_ns() + patience_ms() * MS; opened < 2; sleep_ms(1))
        CHECK(now_ns() < until);
    uint64_t before = bytes_read(duo.a);
    CHECK_OK(submit_read(duo.a->endpoint, &args, &id));
    CHECK_OK(await(&duo, id).status);
    memcpy(a.model, b.model, LEN);
    check_bytes(&a);
    CHECK_EQ(bytes_read(duo.a) - before, LEN);
    CHECK_OK(weft_log_set(WEFT_LOG_DEFAULT, NULL, NULL));
    CHECK_OK(weft_remote_memory_release(remote));
    drop(&a);
    drop(&b);
    duo_close(&duo);
}

/* On one host the reader's device copies: the rail counts bytes that it reads itself. */
static void device_reads_bypass_the_host(void)
{
    devices_begin("");
    struct duo duo = duo_open(4096);
    struct bytes a = make(duo.a, 0, LEN, 1, 1), b = make(duo.b, 1 % device_count(), LEN, 1, 2);
    weft_remote_memory *remote = give(&duo, &b);
    struct range_request args = range_args(a.memory, remote, LEN);
    weft_op id;
    for (uint64_t i = 0; i < 4; i++) {
        uint64_t before = bytes_read(duo.a);
        put(&b, 100 + i);
        CHECK_OK(submit_read(duo.a->endpoint, &args, &id));
        CHECK_OK(await(&duo, id).status);
        memcpy(a.model, b.model, LEN);
        check_bytes(&a);
        if (i > 0) /* the first transfer detects which device reaches what */
            CHECK_EQ(bytes_read(duo.a) - before, LEN);
    }
    /* Deregistered, and registered again: other memory may be at the address. */
    CHECK_OK(weft_remote_memory_release(remote));
    CHECK_OK(weft_memory_deregister(b.memory));
    b.memory = register_one(duo.b->endpoint, b.at, LEN);
    put(&b, 200);
    args.remote = give(&duo, &b);
    CHECK_OK(submit_read(duo.a->endpoint, &args, &id));
    CHECK_OK(await(&duo, id).status);
    memcpy(a.model, b.model, LEN);
    check_bytes(&a);
    CHECK_OK(weft_remote_memory_release((weft_remote_memory *)args.remote));
    drop(&a);
    drop(&b);
    duo_close(&duo);
}

/* However often another memory is requested: memory that is no longer read leaves nothing behind. */
static void many_device_reads_bypass_the_host(void)
{
    devices_begin("");
    struct duo duo = duo_open(4096);
    struct bytes b = make(duo.b, 1 % device_count(), LEN, 1, 2);
    weft_remote_memory *remote = give(&duo, &b);
    uint8_t *at = device_alloc(0, 4096);
    for (int i = 0; i < (on_cuda() ? 50 : 4200); i++) {
        weft_memory *memory = register_one(duo.a->endpoint, at, 4096);
        struct range_request args = range_args(memory, remote, 4096);
        weft_op id;
        CHECK_OK(submit_read(duo.a->endpoint, &args, &id));
        CHECK_OK(await(&duo, id).status);
        CHECK_OK(weft_memory_deregister(memory));
    }
    weft_memory *memory = register_one(duo.a->endpoint, at, 4096);
    struct range_request args = range_args(memory, remote, 4096);
    uint64_t before = bytes_read(duo.a), until = now_ns() + patience_ms() * MS;
    while (bytes_read(duo.a) == before) {
        weft_op id;
        CHECK(now_ns() < until);
        CHECK_OK(submit_read(duo.a->endpoint, &args, &id));
        CHECK_OK(await(&duo, id).status);
    }
    CHECK_OK(weft_memory_deregister(memory));
    CHECK_OK(weft_remote_memory_release(remote));
    device_free(at, 4096);
    drop(&b);
    duo_close(&duo);
}

/* ---- Options of transfers ---- */

static void device_pages_are_counted_and_notified(void)
{
    devices_begin("");
    struct duo duo = duo_open(4096);
    struct bytes a = make(duo.a, 0, LEN, 1, 1), b = make(duo.b, 0, LEN, 1, 2);
    weft_remote_memory *remote = give(&duo, &b);
    struct pages_request args = PAGES_REQUEST_INIT;
    weft_op id;
    uint64_t count = 0;
    CHECK_OK(weft_counter_create(duo.b->endpoint, &args.options.counter));
    args.options.flags = WEFT_COUNT_PAGES | WEFT_NOTIFY;
    args.options.notify = 99;
    args.local = a.memory;
    args.remote = remote;
    args.pages.page_len = 600000; /* several pieces */
    args.pages.page_count = 10;
    CHECK_OK(submit_write_pages(duo.a->endpoint, &args, &id));
    CHECK_EQ(box_take(duo.b, WEFT_COMPLETION_NOTIFICATION, 4 * patience_ms()).notify, 99);
    memcpy(b.model, a.model, 6000000);
    check_bytes(&b);
    CHECK_OK(await(&duo, id).status);
    CHECK_OK(weft_counter_read(duo.b->endpoint, args.options.counter, &count));
    CHECK_EQ(count, 10);
    drop(&a);
    CHECK_OK(weft_remote_memory_release(remote));
    drop(&b);
    duo_close(&duo);
}

/* Entries of host and device memory in one list. */
static void lists_of_both_kinds(void)
{
    devices_begin("");
    struct duo duo = duo_open(4096);
    struct bytes near[2] = {make(duo.a, 0, LEN, 1, 1), make(duo.a, HOST, LEN, 1, 2)};
    struct bytes far[2] = {make(duo.b, 0, LEN, 1, 3), make(duo.b, HOST, LEN, 1, 4)};
    weft_remote_memory *remote[2] = {give(&duo, &far[0]), give(&duo, &far[1])};
    weft_list_entry entries[64];
    for (int read = 0; read < 2; read++) {
        struct list_request args = LIST_REQUEST_INIT;
        weft_op id;
        memset(entries, 0, sizeof entries);
        for (uint64_t i = 0; i < COUNT(entries); i++) {
            size_t x = i & 1, y = i >> 1 & 1;
            uint64_t len = 1 + i * 1234, at = i * 90000;
            entries[i].local = near[x].memory;
            entries[i].remote = remote[y];
            entries[i].local_offset = entries[i].remote_offset = at;
            entries[i].len = len;
            uint8_t *to = read ? near[x].model : far[y].model;
            memcpy(to + at, (read ? far[y].model : near[x].model) + at, len);
        }
        args.entries = entries;
        args.count = COUNT(entries);
        CHECK_OK((read ? submit_read_list : submit_write_list)(duo.a->endpoint, &args, &id));
        CHECK_OK(await(&duo, id).status);
        for (size_t i = 0; i < 2; i++) {
            check_bytes(&near[i]);
            check_bytes(&far[i]);
        }
        for (size_t i = 0; i < 2; i++)
            put(read ? &near[i] : &far[i], 50 + i);
    }
    for (size_t i = 0; i < 2; i++) {
        CHECK_OK(weft_remote_memory_release(remote[i]));
        drop(&near[i]);
        drop(&far[i]);
    }
    duo_close(&duo);
}

static void atomics_are_refused(void)
{
    devices_begin("");
    struct duo duo = duo_open(4096);
    struct bytes b = make(duo.b, 0, 4096, 1, 1);
    weft_remote_memory *remote = give(&duo, &b);
    struct atomic_request args = ATOMIC_REQUEST_INIT;
    args.remote = remote;
    args.operand = 1;
    REFUSED(WEFT_ERR_UNSUPPORTED, submit_fetch_add(duo.a->endpoint, &args, NULL));
    check_bytes(&b);
    CHECK_OK(weft_remote_memory_release(remote));
    drop(&b);
    duo_close(&duo);
}

/* A transfer that starts when a watch reaches a value, and sets a watch when it has ended. */
static void watches_order_transfers_of_device_memory(void)
{
    devices_begin("");
    struct duo duo = duo_open(4096);
    struct bytes a = make(duo.a, 0, LEN, 1, 1), b = make(duo.b, 0, LEN, 1, 2);
    weft_remote_memory *remote = give(&duo, &b);
    struct range_request args = range_args(a.memory, remote, LEN);
    weft_watch *watch, *other;
    uint64_t *word, *done;
    weft_op id, never;
    CHECK_OK(weft_watch_create(duo.a->endpoint, &watch, &word));
    CHECK_OK(weft_watch_create(duo.a->endpoint, &other, &done));
    CHECK_EQ(*word, 0);
    REFUSED(WEFT_ERR_INVALID, weft_watch_create(duo.a->endpoint, &watch, NULL));
    args.options.start_value = 5;
    REFUSED(WEFT_ERR_INVALID, submit_write(duo.a->endpoint, &args, &id));
    args.options.start_watch = (weft_watch *)a.memory;
    REFUSED(WEFT_ERR_HANDLE, submit_write(duo.a->endpoint, &args, &id));
    args.options.start_watch = watch;
    args.options.done_watch = other;
    args.options.done_value = 77;
    CHECK_OK(submit_write(duo.a->endpoint, &args, &id));
    args.options.timeout_ns = 5 * MS;
    args.options.start_value = 1000;
    args.options.done_watch = NULL;
    args.options.done_value = 0;
    CHECK_OK(submit_write(duo.a->endpoint, &args, &never));
    CHECK_STATUS(await(&duo, never).status, WEFT_ERR_TIMED_OUT);
    REFUSED(WEFT_ERR_BUSY, weft_watch_destroy(watch));
    atomic_store((_Atomic uint64_t *)word, 4);
    box_quiet(duo.a, 20);
    check_bytes(&b);
    CHECK_EQ(atomic_load((_Atomic uint64_t *)done), 0);
    /* The contents at the start are moved. */
    put(&a, 33);
    if (on_cuda()) {
        use_device(0);
        CU(cuStreamWriteValue64_v2, NULL, (unsigned long long)(uintptr_t)word, 6ull, 0);
        CU(cuStreamWaitValue64_v2, NULL, (unsigned long long)(uintptr_t)done, 77ull, 0);
    } else {
        atomic_store((_Atomic uint64_t *)word, 6);
    }
    CHECK_OK(await(&duo, id).status);
    if (on_cuda())
        CU(cuCtxSynchronize, 0);
    CHECK_EQ(atomic_load((_Atomic uint64_t *)done), 77);
    memcpy(b.model, a.model, LEN);
    check_bytes(&b);
    /* A canceled transfer, and one that waits when the endpoint ends. */
    args.options.timeout_ns = 0;
    CHECK_OK(submit_write(duo.a->endpoint, &args, &never));
    CHECK_OK(weft_op_cancel(duo.a->endpoint, never));
    CHECK_STATUS(await(&duo, never).status, WEFT_ERR_CANCELED);
    CHECK_OK(weft_watch_destroy(other));
    REFUSED(WEFT_ERR_HANDLE, weft_watch_destroy(other));
    CHECK_OK(weft_watch_destroy(NULL));
    CHECK_OK(submit_write(duo.a->endpoint, &args, &never));
    duo_close(&duo);
}

/* ---- Failures ---- */

static weft_status write_all(struct duo *duo, struct bytes *a, weft_remote_memory *remote, bool read,
                             uint64_t timeout_ns)
{
    struct range_request args = range_args(a->memory, remote, a->len);
    weft_op id;
    args.options.timeout_ns = timeout_ns;
    CHECK_OK((read ? submit_read : submit_write)(duo->a->endpoint, &args, &id));
    return await(duo, id).status;
}

/* Freed while it is registered: its transfers end with a status, others continue. */
static void freed_device_memory_fails_its_transfers(void)
{
    devices_begin("");
    struct duo duo = duo_open(4096);
    struct bytes a = make(duo.a, 0, LEN, 1, 1), b = make(duo.b, 0, LEN, 1, 2);
    struct bytes lost = make(duo.b, 0, LEN, 1, 3);
    weft_remote_memory *remote = give(&duo, &b), *gone = give(&duo, &lost);
    CHECK_OK(write_all(&duo, &a, gone, false, 0));
    device_free(lost.at, LEN);
    for (int read = 0; read < 2; read++)
        CHECK_ONE_OF(write_all(&duo, &a, gone, read, 0), WEFT_ERR_MEMORY_GONE, WEFT_ERR_REMOTE_ACCESS);
    memcpy(b.model, a.model, LEN);
    CHECK_OK(write_all(&duo, &a, remote, false, 0));
    check_bytes(&b);
    device_free(a.at, LEN);
    for (int read = 0; read < 2; read++)
        CHECK_STATUS(write_all(&duo, &a, remote, read, 0), WEFT_ERR_MEMORY_GONE);
    check_bytes(&b);
    box_close(duo.a);
    box_close(duo.b);
}

/* A copy that the device fails: one completion, with an error, and no promise about the bytes. */
static void failed_copy_fails_its_transfer(void)
{
    static char options[32];
    snprintf(options, sizeof options, ":fail=%d", 3 + getpid() % 20);
    devices_begin(options);
    struct duo duo = duo_open(4096);
    struct bytes a = make(duo.a, 0, LEN, 1, 1), b = make(duo.b, 1, LEN, 1, 2);
    weft_remote_memory *remote = give(&duo, &b);
    for (int read = 0; read < 2; read++)
        CHECK_ONE_OF(write_all(&duo, &a, remote, read, 0), WEFT_ERR_MEMORY_GONE, WEFT_ERR_REMOTE_ACCESS,
                     WEFT_OK);
    box_quiet(duo.a, 20);
    duo_close(&duo);
}

/* A device that fails in the middle of a read: reads of other memory of that peer get the right bytes. */
static void failed_read_leaves_others_right(void)
{
    devices_begin(":private:fail=3");
    struct duo duo = duo_open(4096);
    struct bytes a = make(duo.a, HOST, LEN, 1, 1), b = make(duo.b, 0, LEN, 1, 2), c = make(duo.b, HOST, LEN, 1, 3);
    weft_remote_memory *on_device = give(&duo, &b), *other = give(&duo, &c);
    weft_status status = WEFT_OK;
    for (int i = 0; i < 100 && status == WEFT_OK; i++)
        status = write_all(&duo, &a, on_device, true, 0);
    CHECK_ONE_OF(status, WEFT_ERR_MEMORY_GONE, WEFT_ERR_REMOTE_ACCESS);
    memcpy(a.model, c.model, LEN);
    for (int i = 0; i < 3; i++) {
        memset(a.at, 0, LEN);
        CHECK_OK(write_all(&duo, &a, other, true, 0));
        check_bytes(&a);
    }
    box_quiet(duo.a, 20);
    duo_close(&duo);
}

/* Once an operation has ended, nothing touches its local memory, however late copies are. */
static void deadlines_hold_during_slow_copies(void)
{
    devices_begin(":late=4000");
    struct duo duo = duo_open(4096);
    struct bytes a = make(duo.a, 0, LEN, 1, 1), b = make(duo.b, 1, LEN, 1, 2);
    weft_remote_memory *remote = give(&duo, &b);
    for (uint64_t i = 0; i < 6; i++) {
        bool read = i % 2 == 0;
        weft_status status = write_all(&duo, &a, remote, read, (1 + i / 2) * MS);
        CHECK_ONE_OF(status, WEFT_ERR_TIMED_OUT, WEFT_OK);
        if (read) {
            put(&a, 90 + i);
            sleep_ms(30);
            check_bytes(&a);
        }
    }
    duo_close(&duo);
}

/* After a deregistration no copy lands: later contents do not change. */
static void deregistration_stops_device_copies(void)
{
    devices_begin(on_cuda() ? "" : ":late=200");
    struct duo duo = duo_open(4096);
    struct bytes a = make(duo.a, 0, LEN, 1, 1);
    for (uint64_t i = 0; i < 8; i++) {
        struct bytes b = make(duo.b, 1 % device_count(), LEN, 1, 2);
        weft_remote_memory *remote = give(&duo, &b);
        struct range_request args = range_args(a.memory, remote, LEN);
        weft_op id;
        CHECK_OK(submit_write(duo.a->endpoint, &args, &id));
        sleep_ms(i);
        CHECK_OK(weft_memory_deregister(b.memory));
        put(&b, 7);
        CHECK_ONE_OF(await(&duo, id).status, WEFT_OK, WEFT_ERR_MEMORY_GONE);
        sleep_ms(10);
        check_bytes(&b);
        device_free(b.at, LEN);
        free(b.model);
        CHECK_OK(weft_remote_memory_release(remote));
    }
    drop(&a);
    duo_close(&duo);
}

/* ---- Two processes ---- */

static void writes_much(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    weft_peer peer = join(team, 1, box);
    struct bytes a = make(box, 0, LEN, 1, 1);
    weft_remote_memory *remote = take_memory(team, 1, box, peer);
    weft_op ids[40];
    for (size_t i = 0; i < COUNT(ids); i++) {
        struct range_request args = range_args(a.memory, remote, LEN);
        args.options.notify = i;
        args.options.flags = WEFT_NOTIFY;
        ids[i] = write_now(box, &args);
    }
    for (size_t i = 0; i < COUNT(ids); i++)
        CHECK_OK(box_await(box, ids[i], 4 * patience_ms()).status);
    meet(team, 1, box);
    CHECK_OK(weft_remote_memory_release(remote));
    drop(&a);
    box_close(box);
}

static void is_written_much(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    join(team, 0, box);
    struct bytes b = make(box, device_count() - 1, LEN, 1, 2);
    give_memory(team, 0, b.memory);
    for (size_t i = 0; i < 40; i++)
        CHECK_OK(box_take(box, WEFT_COMPLETION_NOTIFICATION, 4 * patience_ms()).status);
    fill_random(b.model, LEN, 1);
    check_bytes(&b);
    meet(team, 0, box);
    drop(&b);
    box_close(box);
}

static void begins_and_writes(struct team *team)
{
    devices_begin("");
    writes_much(team);
}

static void begins_and_is_written(struct team *team)
{
    devices_begin("");
    is_written_much(team);
}

static void many_device_transfers_between_processes_complete(void)
{
    run_pair(begins_and_writes, begins_and_is_written);
}

/* ---- NICs that do not reach the memory ---- */

#define BY_FRAMES(test)                                                                                                \
    static void test##_by_frames(void)                                                                                 \
    {                                                                                                                  \
        unreached = true;                                                                                              \
        test();                                                                                                        \
    }

BY_FRAMES(device_registrations_are_checked)
BY_FRAMES(grants_on_a_device_are_revoked)
BY_FRAMES(grants_between_devices_are_revoked)
BY_FRAMES(host_to_device)
BY_FRAMES(device_to_host)
BY_FRAMES(device_to_device)
BY_FRAMES(transfer_within_a_device)
BY_FRAMES(slow_copies_complete)
BY_FRAMES(device_pages_are_counted_and_notified)
BY_FRAMES(lists_of_both_kinds)
BY_FRAMES(watches_order_transfers_of_device_memory)
BY_FRAMES(freed_device_memory_fails_its_transfers)
BY_FRAMES(failed_copy_fails_its_transfer)
BY_FRAMES(deadlines_hold_during_slow_copies)
BY_FRAMES(deregistration_stops_device_copies)

#define NICS "sim:like=efa,sim:like=efa-direct,sim:like=verbs"

#define MOVES "tcp,host," NICS

#define STAGES "verbs,efa,sim:like=efa-direct"

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        {"device_registrations_are_checked", "tcp,host", device_registrations_are_checked},
        {"grants_on_a_device_are_revoked", MOVES, grants_on_a_device_are_revoked},
        {"grants_between_devices_are_revoked", MOVES, grants_between_devices_are_revoked},
        {"host_to_device", MOVES, host_to_device},
        {"device_to_host", MOVES, device_to_host},
        {"device_to_device", MOVES, device_to_device},
        {"transfer_within_a_device", "tcp,host", transfer_within_a_device},
        {"unshareable_device_memory_is_staged", "host", unshareable_device_memory_is_staged},
        {"device_memory_in_parts_is_opened", "host", device_memory_in_parts_is_opened},
        {"slow_copies_complete", "tcp,host", slow_copies_complete},
        {"nics_that_reach_it", NICS, nics_that_reach_it},
        {"nics_that_take_dmabufs", NICS, nics_that_take_dmabufs},
        {"pages_by_nics_that_reach_it", NICS, pages_by_nics_that_reach_it},
        {"imported_memory_is_opened_before_a_transfer", "host", imported_memory_is_opened_before_a_transfer},
        {"device_reads_bypass_the_host", "host", device_reads_bypass_the_host},
        {"many_device_reads_bypass_the_host", "host", many_device_reads_bypass_the_host},
        {"device_pages_are_counted_and_notified", MOVES, device_pages_are_counted_and_notified},
        {"lists_of_both_kinds", MOVES, lists_of_both_kinds},
        {"watches_order_transfers_of_device_memory", MOVES, watches_order_transfers_of_device_memory},
        {"atomics_are_refused", "tcp", atomics_are_refused},
        {"freed_device_memory_fails_its_transfers", "tcp,host", freed_device_memory_fails_its_transfers},
        {"failed_copy_fails_its_transfer", "tcp,host", failed_copy_fails_its_transfer},
        {"failed_read_leaves_others_right", "tcp,host", failed_read_leaves_others_right},
        {"deadlines_hold_during_slow_copies", "tcp,host", deadlines_hold_during_slow_copies},
        {"deregistration_stops_device_copies", "tcp,host", deregistration_stops_device_copies},
        {"many_device_transfers_between_processes_complete", MOVES, many_device_transfers_between_processes_complete},
        {"device_registrations_are_checked_by_frames", STAGES, device_registrations_are_checked_by_frames},
        {"grants_on_a_device_are_revoked_by_frames", STAGES, grants_on_a_device_are_revoked_by_frames},
        {"grants_between_devices_are_revoked_by_frames", STAGES, grants_between_devices_are_revoked_by_frames},
        {"host_to_device_by_frames", STAGES, host_to_device_by_frames},
        {"device_to_host_by_frames", STAGES, device_to_host_by_frames},
        {"device_to_device_by_frames", STAGES, device_to_device_by_frames},
        {"transfer_within_a_device_by_frames", STAGES, transfer_within_a_device_by_frames},
        {"slow_copies_complete_by_frames", STAGES, slow_copies_complete_by_frames},
        {"device_pages_are_counted_and_notified_by_frames", STAGES, device_pages_are_counted_and_notified_by_frames},
        {"lists_of_both_kinds_by_frames", STAGES, lists_of_both_kinds_by_frames},
        {"watches_order_transfers_of_device_memory_by_frames", STAGES, watches_order_transfers_of_device_memory_by_frames},
        {"freed_device_memory_fails_its_transfers_by_frames", STAGES, freed_device_memory_fails_its_transfers_by_frames},
        {"failed_copy_fails_its_transfer_by_frames", STAGES, failed_copy_fails_its_transfer_by_frames},
        {"deadlines_hold_during_slow_copies_by_frames", STAGES, deadlines_hold_during_slow_copies_by_frames},
        {"deregistration_stops_device_copies_by_frames", STAGES, deregistration_stops_device_copies_by_frames},
        {0},
    };
    return run_tests(argc, argv, tests);
}
