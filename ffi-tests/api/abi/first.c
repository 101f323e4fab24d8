/*
 * A program of the first release. It is compiled with the header of that release, which is kept beside it, and runs
 * with every later library. Two processes: the target says on stdout where it is, and the writer reads it from stdin.
 *
 *     first target | first writer
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <weft.h>

enum { PAGE = 4096, PAGES = 16, LAYERS = 3, BYTES = PAGE * PAGES };
#define SECONDS UINT64_C(1000000000)

#define CHECK(condition)                                                                                \
    do {                                                                                                \
        if (!(condition)) {                                                                             \
            fprintf(stderr, "%s:%d: failed: %s: %s\n", __FILE__, __LINE__, #condition, weft_last_error()); \
            exit(1);                                                                                    \
        }                                                                                               \
    } while (0)

static weft_endpoint *endpoint;
static unsigned char layers[LAYERS][BYTES] __attribute__((aligned(8)));
static weft_memory *memory;

/* The next completion of a kind, which must be successful; completions may arrive in any order. */
static weft_completion next(weft_completion_kind kind)
{
    static weft_completion early[16];
    static int count;
    for (int i = 0; i < count; i++)
        if (early[i].kind == kind) {
            weft_completion found = early[i];
            memmove(&early[i], &early[i + 1], (size_t)(--count - i) * sizeof *early);
            return found;
        }
    for (;;) {
        weft_completion done;
        CHECK(weft_queue_poll(weft_endpoint_queue(endpoint), &done, 1, 20 * SECONDS) == 1);
        if (done.status != WEFT_OK)
            fprintf(stderr, "a completion of kind %d, awaiting kind %d: %s\n", done.kind, kind, weft_status_name(done.status));
        CHECK(done.status == WEFT_OK);
        if (done.kind == kind)
            return done;
        CHECK(count < 16);
        early[count++] = done;
    }
}

static void open_and_register(void)
{
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    config.fabric = getenv("WEFT_TEST_FABRIC");
    config.rails = config.fabric && !strcmp(config.fabric, "tcp") ? "lo" : NULL;
    config.timeout_ns = 20 * SECONDS;
    CHECK(weft_endpoint_create(&config, &endpoint) == WEFT_OK);
    weft_memory_range ranges[LAYERS];
    for (int i = 0; i < LAYERS; i++)
        ranges[i] = (weft_memory_range){layers[i], BYTES};
    weft_memory_args args = WEFT_MEMORY_ARGS_INIT;
    CHECK(weft_memory_register(endpoint, ranges, LAYERS, &args, &memory) == WEFT_OK);
}

static void tell(const unsigned char *bytes, size_t len)
{
    printf("%zu ", len);
    for (size_t i = 0; i < len; i++)
        printf("%02x", bytes[i]);
    printf("\n");
    fflush(stdout);
}

static size_t hear(unsigned char *bytes, size_t capacity)
{
    size_t len = 0;
    CHECK(scanf("%zu ", &len) == 1 && len <= capacity);
    for (size_t i = 0; i < len; i++)
        CHECK(scanf("%2hhx", &bytes[i]) == 1);
    return len;
}

static void send_text(weft_peer peer, const char *text)
{
    CHECK(weft_send(endpoint, peer, text, strlen(text), NULL, NULL) == WEFT_OK);
}

static int target(void)
{
    unsigned char blob[8192];
    size_t len;
    weft_counter counter;
    open_and_register();
    CHECK(weft_endpoint_address(endpoint, blob, sizeof blob, &len) == WEFT_OK);
    tell(blob, len);
    CHECK(weft_memory_export(memory, blob, sizeof blob, &len) == WEFT_OK);
    tell(blob, len);
    CHECK(weft_counter_create(endpoint, &counter) == WEFT_OK);
    tell((unsigned char *)&counter, sizeof counter);

    uint64_t pages = PAGES * LAYERS;
    CHECK(weft_counter_expect(endpoint, &counter, &pages, 1, NULL, NULL) == WEFT_OK);
    next(WEFT_COMPLETION_COUNTER);
    weft_completion done = next(WEFT_COMPLETION_NOTIFICATION);
    CHECK(done.notify == 4711 && done.bytes == 3 && !memcmp(done.data, "abc", 3));
    CHECK(weft_message_release(endpoint, done.op) == WEFT_OK);
    for (int l = 0; l < LAYERS; l++)
        for (int i = 0; i < BYTES; i++)
            CHECK(layers[l][i] == (unsigned char)(l + 5 * (PAGES - 1 - i / PAGE) + i));

    /* Export now, while the target waits for the message: later it may be gone. */
    CHECK(weft_peer_fence(endpoint, done.peer, NULL, NULL) == WEFT_OK);
    next(WEFT_COMPLETION_FENCE);
    send_text(done.peer, "all there");
    next(WEFT_COMPLETION_SEND);
    done = next(WEFT_COMPLETION_MESSAGE);
    CHECK(done.bytes == 4 && !memcmp(done.data, "done", 4));
    CHECK(weft_message_release(endpoint, done.op) == WEFT_OK);
    CHECK(*(uint64_t *)layers[1] == 12);
    return 0;
}

static weft_remote_memory *remote;

static void move_pages(uint64_t counter)
{
    static uint32_t backwards[PAGES];
    for (int l = 0; l < LAYERS; l++)
        for (int i = 0; i < BYTES; i++)
            layers[l][i] = (unsigned char)(l + 5 * (i / PAGE) + i);
    for (uint32_t i = 0; i < PAGES; i++)
        backwards[i] = PAGES - 1 - i;
    weft_pages pages = WEFT_PAGES_INIT;
    pages.local.range_step = pages.remote.range_step = 1, pages.remote.pages = backwards;
    pages.page_count = PAGES, pages.page_len = PAGE, pages.layer_count = LAYERS;
    weft_op_options options = WEFT_OP_OPTIONS_INIT;
    options.flags = WEFT_NOTIFY | WEFT_COUNT_PAGES, options.counter = counter;
    options.notify = 4711, options.notify_data = "abc", options.notify_data_len = 3;
    options.user_data = &pages;
    weft_op id;
    CHECK(weft_write_pages(endpoint, memory, remote, &pages, &options, &id) == WEFT_OK);
    weft_completion done = next(WEFT_COMPLETION_WRITE);
    CHECK(done.op == id && done.user_data == &pages && done.bytes == LAYERS * BYTES);
}

/* A list, the same list prepared, a read, and a watch. */
static void move_the_rest(void)
{
    weft_list_entry entries[LAYERS];
    memset(entries, 0, sizeof entries);
    for (uint32_t l = 0; l < LAYERS; l++)
        entries[l].local = memory, entries[l].remote = remote, entries[l].len = PAGE,
        entries[l].local_range = entries[l].remote_range = l;
    CHECK(weft_write_list(endpoint, entries, LAYERS, NULL, NULL) == WEFT_OK);
    CHECK(next(WEFT_COMPLETION_WRITE).bytes == LAYERS * PAGE);
    weft_prepared *prepared;
    CHECK(weft_list_prepare(endpoint, entries, LAYERS, 0, &prepared) == WEFT_OK);
    memset(layers[2], 0, PAGE);
    CHECK(weft_read_prepared(endpoint, prepared, NULL, NULL) == WEFT_OK);
    next(WEFT_COMPLETION_READ);
    CHECK(layers[2][7] == 9);
    CHECK(weft_prepared_destroy(prepared) == WEFT_OK);

    const uint64_t second = BYTES; /* where the second range begins */
    memset(layers[1], 0, 8);
    CHECK(weft_write(endpoint, memory, second, remote, second, 8, NULL, NULL) == WEFT_OK);
    next(WEFT_COMPLETION_WRITE);
    CHECK(weft_fetch_add(endpoint, remote, second, 5, NULL, NULL) == WEFT_OK);
    CHECK(next(WEFT_COMPLETION_ATOMIC).previous == 0);
    CHECK(weft_compare_swap(endpoint, remote, second, 5, 12, NULL, NULL) == WEFT_OK);
    CHECK(next(WEFT_COMPLETION_ATOMIC).previous == 5);
}

static int writer(void)
{
    unsigned char address[8192], descriptor[8192], counter[8];
    size_t address_len = hear(address, sizeof address), descriptor_len = hear(descriptor, sizeof descriptor);
    CHECK(hear(counter, sizeof counter) == 8);
    open_and_register();
    weft_peer peer;
    weft_op_options connect = WEFT_OP_OPTIONS_INIT;
    CHECK(weft_peer_connect(endpoint, address, address_len, &connect, &peer) == WEFT_OK);
    CHECK(weft_remote_memory_import(endpoint, peer, descriptor, descriptor_len, &remote) == WEFT_OK);
    next(WEFT_COMPLETION_PEER_UP);
    weft_peer_properties properties = WEFT_PEER_PROPERTIES_INIT;
    CHECK(weft_peer_info(endpoint, peer, &properties) == WEFT_OK && properties.up == 1);

    uint64_t id;
    memcpy(&id, counter, 8);
    move_pages(id);
    weft_completion done = next(WEFT_COMPLETION_MESSAGE);
    CHECK(done.bytes == 9 && !memcmp(done.data, "all there", 9));
    CHECK(weft_message_release(endpoint, done.op) == WEFT_OK);
    move_the_rest();
    weft_endpoint_statistics counts = WEFT_ENDPOINT_STATISTICS_INIT;
    CHECK(weft_endpoint_info(endpoint, NULL, &counts) == WEFT_OK);
    CHECK(counts.writes == 3 && counts.reads == 1 && counts.atomics == 2 && counts.completions[0] == 6);
    send_text(peer, "done");
    next(WEFT_COMPLETION_SEND);
    fprintf(stderr, "writer: library %#x, over %s\n", (unsigned)weft_version(), properties.fabric);
    return 0;
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    int status = strcmp(argv[1], "target") ? writer() : target();
    CHECK(weft_endpoint_shutdown(endpoint, SECONDS) == WEFT_OK);
    CHECK(weft_endpoint_destroy(endpoint) == WEFT_OK);
    return status;
}
