/*
 * Large transfers: ranges and offsets past 4 GiB, many pages, many layers. The memory is one small file, mapped many
 * times side by side.
 */
#include "harness.h"

/* Not a divisor of 2^32: an offset that lost its upper half points elsewhere. */
#define WINDOW (3 * MIB)

/* Bytes of address space, all of them mapped to one small file. */
static uint8_t *tiled(uint64_t len)
{
    uint64_t whole = (len + WINDOW - 1) / WINDOW * WINDOW;
    int fd = memfd_create("weft-large", 0);
    CHECK(fd >= 0 && ftruncate(fd, (off_t)WINDOW) == 0);
    uint8_t *base = mmap(NULL, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(base != MAP_FAILED);
    for (uint64_t at = 0; at < whole; at += WINDOW)
        CHECK(mmap(base + at, WINDOW, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) ==
              base + at);
    close(fd);
    return base;
}

/* Two endpoints, with `tiled` memory on both sides. */
struct large {
    struct box *a, *b;
    weft_memory *local;
    weft_remote_memory *remote;
    uint8_t *mine, *theirs;
    uint64_t len;
};

static struct large open_large(uint64_t len)
{
    char blob[8192];
    weft_peer peer;
    struct large l = {.len = len};
    l.a = box_of(open_endpoint());
    l.b = box_of(open_endpoint());
    size_t n = address_of(l.b->endpoint, blob, sizeof blob);
    CHECK_OK(weft_peer_connect(l.a->endpoint, blob, n, NULL, &peer));
    CHECK_OK(box_take(l.a, WEFT_COMPLETION_PEER_UP, patience_ms()).status);
    CHECK_OK(box_take(l.b, WEFT_COMPLETION_PEER_UP, patience_ms()).status);
    l.mine = tiled(len);
    l.theirs = tiled(len);
    l.local = register_one(l.a->endpoint, l.mine, len);
    n = descriptor_of(register_one(l.b->endpoint, l.theirs, len), blob, sizeof blob);
    CHECK_OK(weft_remote_memory_import(l.a->endpoint, peer, blob, n, &l.remote));
    return l;
}

static void close_large(struct large *l)
{
    box_close(l->a);
    box_close(l->b);
    munmap(l->mine, l->len);
    munmap(l->theirs, l->len);
}

static void moved(struct large *l, weft_op transfer, uint64_t bytes)
{
    weft_completion done = box_await(l->a, transfer, 2 * patience_ms());
    CHECK_STATUS(done.status, WEFT_OK);
    CHECK_EQ(done.bytes, bytes);
}

/* A write and a read of 2^32 + 1 bytes: all windows of a side show the same bytes. */
static void range_of_4_gib_and_1_byte_moves(void)
{
    uint64_t len = 4 * GIB + 1;
    struct large l = open_large(len);
    for (int read = 0; read < 2; read++) {
        struct range_request args = range_args(l.local, l.remote, len);
        weft_op transfer;
        fill_random(read ? l.theirs : l.mine, WINDOW, 11 + read);
        args.options.timeout_ns = 120 * SECOND;
        CHECK_OK((read ? submit_read : submit_write)(l.a->endpoint, &args, &transfer));
        moved(&l, transfer, len);
        CHECK_EQ(differs_random(read ? l.mine : l.theirs, WINDOW, 11 + read), -1);
        args.len = len + 1;
        REFUSED(WEFT_ERR_RANGE, (read ? submit_read : submit_write)(l.a->endpoint, &args, NULL));
    }
    close_large(&l);
}

/* Single ranges and pages whose offsets, strides and layers do not fit into 32 bits. */
static void offsets_beyond_4_gib_work(void)
{
    uint64_t len = 9 * GIB;
    struct large l = open_large(len);
    uint64_t at = 4 * GIB + 12345, to = 8 * GIB + 54321;
    fill_random(l.mine, WINDOW, 1);
    struct range_request one = range_args(l.local, l.remote, 300 * KIB);
    weft_op transfer;
    one.local_offset = at;
    one.remote_offset = to;
    CHECK_OK(submit_write(l.a->endpoint, &one, &transfer));
    moved(&l, transfer, one.len);
    CHECK(memcmp(l.mine + at, l.theirs + to, one.len) == 0);

    uint32_t mine[] = {0, 2, 1}, yours[] = {1, 0, 2};
    struct pages_request args = PAGES_REQUEST_INIT;
    args.local = l.local;
    args.remote = l.remote;
    args.pages.local.pages = mine;
    args.pages.remote.pages = yours;
    args.pages.page_count = 3;
    args.pages.page_len = 5000;
    /* No two pages share bytes of a window. */
    args.pages.local.page_stride = 3 * GIB + 8192;
    args.pages.remote.page_stride = 3 * GIB + 16384;
    args.pages.layer_count = 2;
    args.pages.local.layer_stride = 2 * GIB + 100 * KIB;
    args.pages.remote.layer_stride = 2 * GIB + 200 * KIB;
    for (int read = 0; read < 2; read++) {
        fill_random(read ? l.theirs : l.mine, WINDOW, 21 + read);
        CHECK_OK((read ? submit_read_pages : submit_write_pages)(l.a->endpoint, &args, &transfer));
        moved(&l, transfer, 2 * 3 * 5000);
        for (uint64_t i = 0; i < 6; i++)
            CHECK(memcmp(l.mine + mine[i % 3] * args.pages.local.page_stride + i / 3 * args.pages.local.layer_stride,
                         l.theirs + yours[i % 3] * args.pages.remote.page_stride +
                             i / 3 * args.pages.remote.layer_stride,
                         5000) == 0);
    }
    args.pages.remote.offset = len - 2 * args.pages.remote.page_stride - args.pages.remote.layer_stride - 4999;
    REFUSED(WEFT_ERR_RANGE, submit_write_pages(l.a->endpoint, &args, NULL));
    close_large(&l);
}

/* 1 and 100,000 pages, in 1 and 200 layers, each a range of its own on one side. */
static void pages_and_layers(uint64_t pages, uint32_t layers, uint64_t page_len)
{
    struct duo duo = duo_open(4096); /* for the peers; the memory is another */
    uint64_t layer_len = pages * page_len, len = layer_len * layers;
    uint8_t *source = map_bytes(len), *target = map_bytes(len);
    weft_memory_range *ranges = calloc(layers, sizeof *ranges);
    uint32_t *list = malloc(pages * sizeof *list);
    CHECK(ranges && list);
    for (uint32_t l = 0; l < layers; l++)
        ranges[l] = (weft_memory_range){target + l * layer_len, layer_len};
    for (uint64_t i = 0; i < pages; i++)
        list[i] = (uint32_t)(pages - 1 - i);
    weft_memory *memory = NULL;
    char blob[65536];
    CHECK_OK(weft_memory_register(duo.b->endpoint, ranges, layers, NULL, &memory));
    size_t n = descriptor_of(memory, blob, sizeof blob);
    struct pages_request args = PAGES_REQUEST_INIT;
    weft_remote_memory *remote = NULL;
    CHECK_OK(weft_remote_memory_import(duo.a->endpoint, duo.a_to_b, blob, n, &remote));
    args.local = register_one(duo.a->endpoint, source, len);
    args.remote = remote;
    args.pages.remote.pages = list;
    args.pages.page_count = pages;
    args.pages.page_len = page_len;
    args.pages.layer_count = layers;
    args.pages.local.layer_stride = layer_len;
    args.pages.remote.range_step = 1;
    args.options.timeout_ns = patiently(50) * SECOND;
    for (int read = 0; read < 2; read++) {
        weft_op transfer;
        fill_random(read ? target : source, len, 31 + read);
        CHECK_OK((read ? submit_read_pages : submit_write_pages)(duo.a->endpoint, &args, &transfer));
        weft_completion done = box_await(duo.a, transfer, 2 * patience_ms());
        CHECK_STATUS(done.status, WEFT_OK);
        CHECK_EQ(done.bytes, len);
        for (uint32_t l = 0; l < layers; l++)
            for (uint64_t i = 0; i < pages; i++)
                CHECK(memcmp(source + l * layer_len + i * page_len,
                             target + l * layer_len + list[i] * page_len, page_len) == 0);
    }
    duo_close(&duo);
    free(ranges);
    free(list);
    munmap(source, len);
    munmap(target, len);
}

static void many_pages_move(void)
{
    pages_and_layers(100000, 1, 1);
    pages_and_layers(100000, 1, 4096);
}

static void pages_of_many_layers_move(void)
{
    pages_and_layers(1, 1, 4096);
    pages_and_layers(1, 200, 4096);
    pages_and_layers(1, 200, 200 * KIB);
}

static void many_pages_of_many_layers_move(void)
{
    pages_and_layers(5000, 200, 8);
}

static const struct test tests[] = {
    {"range_of_4_gib_and_1_byte_moves", "tcp,host,sim:like=efa long", range_of_4_gib_and_1_byte_moves},
    {"offsets_beyond_4_gib_work", "tcp,host,sim:like=efa long", offsets_beyond_4_gib_work},
    {"many_pages_move", "tcp,host,sim:like=efa long", many_pages_move},
    {"pages_of_many_layers_move", "tcp,host,sim:like=efa long", pages_of_many_layers_move},
    {"many_pages_of_many_layers_move", "tcp,host,sim:like=efa long", many_pages_of_many_layers_move},
    {0}};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
