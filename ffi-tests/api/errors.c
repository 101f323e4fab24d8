/* Any input is answered with the right status, and a message that explains it. */
#include "harness.h"

#include <limits.h>

#define HOURS_25 (UINT64_C(25) * 3600 * SECOND)

/* ---- Statuses and messages ---- */

static const struct {
    weft_status status;
    const char *name;
    weft_category category; /* -1: any */
} statuses[] = {
    {WEFT_OK, "WEFT_OK", WEFT_CATEGORY_OK},
    {WEFT_ERR_AGAIN, "WEFT_ERR_AGAIN", WEFT_CATEGORY_RETRY},
    {WEFT_ERR_BUSY, "WEFT_ERR_BUSY", WEFT_CATEGORY_RETRY},
    {WEFT_ERR_TIMED_OUT, "WEFT_ERR_TIMED_OUT", -1},
    {WEFT_ERR_CANCELED, "WEFT_ERR_CANCELED", -1},
    {WEFT_ERR_PEER_LOST, "WEFT_ERR_PEER_LOST", WEFT_CATEGORY_PEER},
    {WEFT_ERR_PEER_GONE, "WEFT_ERR_PEER_GONE", WEFT_CATEGORY_PEER},
    {WEFT_ERR_PEER_CLOSED, "WEFT_ERR_PEER_CLOSED", WEFT_CATEGORY_PEER},
    {WEFT_ERR_UNREACHABLE, "WEFT_ERR_UNREACHABLE", WEFT_CATEGORY_PEER},
    {WEFT_ERR_VERSION, "WEFT_ERR_VERSION", WEFT_CATEGORY_PEER},
    {WEFT_ERR_NO_COMMON_FABRIC, "WEFT_ERR_NO_COMMON_FABRIC", WEFT_CATEGORY_PEER},
    {WEFT_ERR_MEMORY_GONE, "WEFT_ERR_MEMORY_GONE", WEFT_CATEGORY_PEER},
    {WEFT_ERR_REMOTE_ACCESS, "WEFT_ERR_REMOTE_ACCESS", -1},
    {WEFT_ERR_DENIED, "WEFT_ERR_DENIED", WEFT_CATEGORY_PEER},
    {WEFT_ERR_PROTOCOL, "WEFT_ERR_PROTOCOL", WEFT_CATEGORY_PEER},
    {WEFT_ERR_RAIL_LOST, "WEFT_ERR_RAIL_LOST", WEFT_CATEGORY_PEER},
    {WEFT_ERR_INVALID, "WEFT_ERR_INVALID", WEFT_CATEGORY_USAGE},
    {WEFT_ERR_HANDLE, "WEFT_ERR_HANDLE", WEFT_CATEGORY_USAGE},
    {WEFT_ERR_RANGE, "WEFT_ERR_RANGE", WEFT_CATEGORY_USAGE},
    {WEFT_ERR_UNSUPPORTED, "WEFT_ERR_UNSUPPORTED", -1},
    {WEFT_ERR_LIMIT, "WEFT_ERR_LIMIT", WEFT_CATEGORY_USAGE},
    {WEFT_ERR_FORMAT, "WEFT_ERR_FORMAT", -1},
    {WEFT_ERR_TOO_SMALL, "WEFT_ERR_TOO_SMALL", WEFT_CATEGORY_USAGE},
    {WEFT_ERR_CLOSED, "WEFT_ERR_CLOSED", WEFT_CATEGORY_USAGE},
    {WEFT_ERR_FORKED, "WEFT_ERR_FORKED", WEFT_CATEGORY_USAGE},
    {WEFT_ERR_NO_LIBFABRIC, "WEFT_ERR_NO_LIBFABRIC", WEFT_CATEGORY_SYSTEM},
    {WEFT_ERR_NO_RAILS, "WEFT_ERR_NO_RAILS", WEFT_CATEGORY_SYSTEM},
    {WEFT_ERR_FABRIC, "WEFT_ERR_FABRIC", WEFT_CATEGORY_SYSTEM},
    {WEFT_ERR_NO_MEMORY, "WEFT_ERR_NO_MEMORY", WEFT_CATEGORY_SYSTEM},
    {WEFT_ERR_SYSTEM, "WEFT_ERR_SYSTEM", WEFT_CATEGORY_SYSTEM},
    {WEFT_ERR_INTERNAL, "WEFT_ERR_INTERNAL", WEFT_CATEGORY_INTERNAL},
};

static void statuses_have_names(void)
{
    for (size_t i = 0; i < COUNT(statuses); i++) {
        weft_status s = statuses[i].status;
        weft_category category = weft_status_category(s);
        if (strcmp(weft_status_name(s), statuses[i].name) != 0)
            FAIL("%s is called %s", statuses[i].name, weft_status_name(s));
        if (!weft_status_text(s) || strlen(weft_status_text(s)) < 5)
            FAIL("%s has no text", statuses[i].name);
        if (statuses[i].category >= 0 && category != statuses[i].category)
            FAIL("%s is of category %d", statuses[i].name, category);
        CHECK(category >= WEFT_CATEGORY_OK && category <= WEFT_CATEGORY_INTERNAL);
        CHECK((category == WEFT_CATEGORY_OK) == (s == WEFT_OK));
    }
}

static void unknown_statuses_have_a_name_and_category(void)
{
    const weft_status unknown[] = {-3, -19, -35, -39, -49, -75, -91, -1000, INT32_MIN};
    for (size_t i = 0; i < COUNT(unknown); i++) {
        CHECK(strcmp(weft_status_name(unknown[i]), "WEFT_ERR_UNKNOWN") == 0);
        CHECK(weft_status_text(unknown[i]) && *weft_status_text(unknown[i]));
        CHECK_EQ(weft_status_category(unknown[i]), WEFT_CATEGORY_INTERNAL);
    }
}

static void counts_have_category_ok(void)
{
    const weft_status counts[] = {1, 2, 20, INT32_MAX};
    for (size_t i = 0; i < COUNT(counts); i++) {
        CHECK(strcmp(weft_status_name(counts[i]), "WEFT_OK") == 0);
        CHECK(strstr(weft_status_text(counts[i]), "count") != NULL);
        CHECK_EQ(weft_status_category(counts[i]), WEFT_CATEGORY_OK);
    }
}

static void loaded_version_equals_the_header(void)
{
    CHECK_EQ(weft_version(),
             WEFT_VERSION_MAJOR << 16 | WEFT_VERSION_MINOR << 8 | WEFT_VERSION_PATCH);
}

static void *fails_in_a_thread(void *arg)
{
    (void)arg;
    CHECK(strcmp(weft_last_error(), "") == 0);
    CHECK_STATUS(weft_endpoint_destroy((weft_endpoint *)(uintptr_t)0x1234), WEFT_ERR_HANDLE);
    CHECK(strlen(weft_last_error()) > 0);
    return NULL;
}

static void last_error_is_per_thread(void)
{
    pthread_t thread;
    char before[4096];
    CHECK(strcmp(weft_last_error(), "") == 0);
    mark_last_error(); /* Also checks that the message names the value. */
    snprintf(before, sizeof before, "%s", weft_last_error());
    CHECK(pthread_create(&thread, NULL, fails_in_a_thread, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(strcmp(weft_last_error(), before) == 0);
    CHECK_OK(weft_endpoint_destroy(NULL));
    CHECK(weft_version() != 0);
    CHECK(strcmp(weft_last_error(), before) == 0); /* a successful call keeps the message */
}

/* ---- Configs ---- */

static weft_status opens(const weft_endpoint_config *config)
{
    weft_endpoint *endpoint = NULL;
    weft_status status = weft_endpoint_create(config, &endpoint);
    if (status == WEFT_OK)
        CHECK_OK(weft_endpoint_destroy(endpoint));
    return status;
}

static void open_refuses_null(void)
{
    weft_endpoint_config config = test_config();
    REFUSED(WEFT_ERR_INVALID, weft_endpoint_create(&config, NULL));
    REFUSED(WEFT_ERR_INVALID, weft_endpoint_create(NULL, NULL));
}

static void config_struct_sizes_are_checked(void)
{
    union {
        weft_endpoint_config config;
        uint8_t bytes[sizeof(weft_endpoint_config) + 64];
    } longer;
    memset(&longer, 0, sizeof longer);
    longer.config = test_config();
    longer.config.size = sizeof longer;
    CHECK_OK(opens(&longer.config)); /* newer, but without new fields in use */
    for (size_t at = sizeof(weft_endpoint_config); at < sizeof longer; at += 63) {
        longer.bytes[at] = 1;
        REFUSED(WEFT_ERR_UNSUPPORTED, opens(&longer.config));
        longer.bytes[at] = 0;
    }

    /* No version had a struct that ends earlier: the caller's fields behind that end would be ignored silently. */
    const uint32_t absurd[] = {0, 1, 3, offsetof(weft_endpoint_config, rail_count), sizeof(weft_endpoint_config) - 1};
    for (size_t i = 0; i < COUNT(absurd); i++) {
        weft_endpoint_config config = test_config();
        config.size = absurd[i];
        REFUSED(WEFT_ERR_INVALID, opens(&config));
    }
    const uint32_t huge[] = {0x10000000, 0x7fffffff, 0xffffffff};
    for (size_t i = 0; i < COUNT(huge); i++) {
        weft_endpoint_config config = test_config();
        config.size = huge[i];
        REFUSED_EITHER(WEFT_ERR_INVALID, WEFT_ERR_UNSUPPORTED, opens(&config));
    }
}

/* Nothing beyond a struct is read: it ends where the mapped memory does. */
static void structs_are_not_read_beyond_their_size(void)
{
    uint8_t *pages = map_bytes(8192);
    CHECK(mprotect(pages + 4096, 4096, PROT_NONE) == 0);
    weft_endpoint_config config = test_config();
    const size_t sizes[] = {sizeof config};
    for (size_t i = 0; i < COUNT(sizes); i++) {
        config.size = (uint32_t)sizes[i];
        uint8_t *at = pages + 4096 - sizes[i];
        memcpy(at, &config, sizes[i]);
        CHECK_OK(opens((const weft_endpoint_config *)(void *)at));
    }
    /* A huge size is refused without reading its tail. */
    config.size = 0xffffffff;
    memcpy(pages + 4096 - sizeof config, &config, sizeof config);
    REFUSED_EITHER(WEFT_ERR_INVALID, WEFT_ERR_UNSUPPORTED,
                   opens((const weft_endpoint_config *)(void *)(pages + 4096 - sizeof config)));
}

static void config_values_beyond_limits_are_refused(void)
{
    /* Beyond a limit: LIMIT or INVALID; the message names the limit. */
#define OUTSIDE(field, value)                                                               \
    do {                                                                                    \
        weft_endpoint_config config = test_config();                                        \
        config.field = (value);                                                             \
        REFUSED_EITHER(WEFT_ERR_LIMIT, WEFT_ERR_INVALID, opens(&config));                   \
        CHECK(strstr(weft_last_error(), #field) != NULL);                                   \
    } while (0)
    OUTSIDE(rail_count, 65);
    OUTSIDE(rail_count, UINT32_MAX);
    OUTSIDE(min_rails, 65);
    OUTSIDE(tcp_streams, 17);
    OUTSIDE(workers, 65);
    OUTSIDE(max_transfers, 1048577);
    OUTSIDE(queue_depth, 15);
    OUTSIDE(queue_depth, 1048577);
    OUTSIDE(max_peers, 65537);
    OUTSIDE(max_counters, 1048577);
    OUTSIDE(timeout_ns, HOURS_25);
    OUTSIDE(timeout_ns, UINT64_MAX);
    OUTSIDE(connect_timeout_ns, HOURS_25);
    OUTSIDE(message_bytes, MIB - 1);
    OUTSIDE(message_bytes, GIB + 1);
    OUTSIDE(liveness_ns, SECOND - 1);
    OUTSIDE(liveness_ns, HOURS_25);
    OUTSIDE(progress, 2);
#undef OUTSIDE
}

static void extreme_valid_configs_open(void)
{
    weft_endpoint_config config = test_config();
    config.rail_count = 1;
    config.min_rails = 1;
    config.workers = 64; /* never more than rails */
    config.max_transfers = 1;
    config.queue_depth = 16;
    config.max_peers = 1;
    config.max_counters = 1;
    config.timeout_ns = 24 * 3600 * SECOND;
    config.connect_timeout_ns = 24 * 3600 * SECOND;
    config.message_bytes = MIB;
    weft_endpoint *endpoint = open_with(&config);
    weft_endpoint_properties p = WEFT_ENDPOINT_PROPERTIES_INIT;
    CHECK_OK(weft_endpoint_info(endpoint, &p, NULL));
    CHECK_EQ(p.rails, 1);
    CHECK_EQ(p.workers, 1);
    CHECK_EQ(p.peers, 0);
    CHECK(p.incarnation != 0);
    CHECK_EQ(strstr(p.libfabric, "libfabric") != NULL, !on_fabric("host") && !on_fabric("tcp"));
    CHECK_OK(weft_endpoint_destroy(endpoint));
}

static void unknown_flags_are_refused(void)
{
    weft_endpoint_config config = test_config();
    config.flags = 1;
    REFUSED_EITHER(WEFT_ERR_INVALID, WEFT_ERR_UNSUPPORTED, opens(&config));
    config = test_config();
    config.flags = 0x80000000;
    REFUSED_EITHER(WEFT_ERR_INVALID, WEFT_ERR_UNSUPPORTED, opens(&config));
}

/* It cannot keep Weft's promises: a process that is killed inside it hangs the survivors. */
static void libfabric_shm_is_refused(void)
{
    weft_endpoint_config config = test_config();
    config.fabric = "shm";
    config.rails = NULL;
    weft_status status = opens(&config);
    if (status == WEFT_ERR_NO_LIBFABRIC || strstr(weft_last_error(), "is no fabric"))
        skip("%s", weft_last_error());
    CHECK_EQ(status, WEFT_ERR_NO_RAILS);
    CHECK(strstr(weft_last_error(), "name the fabric \"host\"") != NULL);
}

static void unknown_fabric_is_named(void)
{
    weft_endpoint_config config = test_config();
    config.fabric = "nosuchfabric";
    config.rails = NULL;
    REFUSED(WEFT_ERR_UNSUPPORTED, opens(&config));
    CHECK(strstr(weft_last_error(), "nosuchfabric") != NULL);
    CHECK(strstr(weft_last_error(), "host, efa, verbs, tcp") != NULL);
    CHECK(strstr(weft_last_error(), "tcp") != NULL); /* the rails that exist */
    const char *odd[] = {",", "tcp,nosuchfabric", ";", "\xff\xfe", "%s%s%s%n"};
    for (size_t i = 0; i < COUNT(odd); i++) {
        config.fabric = odd[i];
        mark_last_error();
        CHECK_ONE_OF(opens(&config), WEFT_ERR_UNSUPPORTED, WEFT_ERR_INVALID, WEFT_ERR_NO_RAILS);
        check_own_message(__FILE__, __LINE__, odd[i]);
    }
    config.fabric = "TCP";
    REFUSED(WEFT_ERR_UNSUPPORTED, opens(&config));
    CHECK(strstr(weft_last_error(), "lower case, \"tcp\"") != NULL);
    config.fabric = "tcp,tcp";
    REFUSED(WEFT_ERR_INVALID, opens(&config));
    CHECK(strstr(weft_last_error(), "names tcp twice") != NULL);
}

/* This machine has no such hardware: a named fabric is not replaced by tcp. */
static void shipped_library_has_no_simulated_nics(void)
{
    static const char *const names[] = {"sim", "sim:like=efa", "host,sim:like=tcp"};
    const char *library = getenv("WEFT_TEST_LIBRARY");
    if (library != NULL && strstr(library, "libweft_simulated") != NULL)
        skip("this is the library for tests");
    for (size_t i = 0; i < 3; i++) {
        weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
        config.fabric = names[i];
        REFUSED(WEFT_ERR_UNSUPPORTED, opens(&config));
        CHECK(strstr(weft_last_error(), "built without simulated NICs") != NULL);
    }
}

static void named_fabric_is_never_replaced(void)
{
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    config.fabric = "efa";
    if (opens(&config) == WEFT_OK)
        skip("there is EFA hardware here");
    REFUSED_EITHER(WEFT_ERR_NO_RAILS, WEFT_ERR_NO_LIBFABRIC, opens(&config));
    CHECK(strstr(weft_last_error(), "efa") != NULL);
    config.fabric = "infiniband"; /* no fabric at all */
    REFUSED_EITHER(WEFT_ERR_UNSUPPORTED, WEFT_ERR_NO_LIBFABRIC, opens(&config));
    CHECK(strstr(weft_last_error(), "\"infiniband\" is no fabric: name host, efa") != NULL ||
          strstr(weft_last_error(), "libfabric") != NULL);
}

static void unmatched_rail_patterns_are_refused(void)
{
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    config.fabric = "tcp";
    config.rails = "nosuchnic*";
    REFUSED(WEFT_ERR_NO_RAILS, opens(&config));
    CHECK(strstr(weft_last_error(), "nosuchnic*") != NULL);
    CHECK(strstr(weft_last_error(), "lo") != NULL); /* the NICs that were found */
    config.rails = "lo,!lo";
    REFUSED(WEFT_ERR_NO_RAILS, opens(&config));
    config.rails = "host";
    REFUSED(WEFT_ERR_NO_RAILS, opens(&config));
    CHECK(strstr(weft_last_error(), "fabric \"host\"") != NULL);
    config.rails = "l?,[,**,!";
    mark_last_error();
    weft_status status = opens(&config);
    CHECK_ONE_OF(status, WEFT_OK, WEFT_ERR_NO_RAILS, WEFT_ERR_INVALID);
}

static void too_few_rails_fail_the_open(void)
{
    weft_endpoint_config config = test_config();
    config.min_rails = 64;
    REFUSED(WEFT_ERR_NO_RAILS, opens(&config));
    CHECK(strstr(weft_last_error(), "64") != NULL);
}

/* ---- Handles ---- */

/* Calls every function that takes an endpoint, with otherwise valid arguments. */
static void endpoint_is_refused(weft_endpoint *bad, const struct duo *duo)
{
    char blob[64];
    size_t len;
    weft_endpoint_properties ep = WEFT_ENDPOINT_PROPERTIES_INIT;
    weft_rail_properties rail = WEFT_RAIL_PROPERTIES_INIT;
    weft_peer_properties pp = WEFT_PEER_PROPERTIES_INIT;
    weft_memory_range range = {duo->a_bytes, duo->len};
    weft_memory *memory;
    weft_remote_memory *remote;
    weft_queue *queue;
    weft_peer peer;
    weft_op id;
    weft_completion c[4];
    int32_t fd;
    struct range_request range_of = range_args(duo->a_memory, duo->b_of_a, 8);
    struct pages_request pages = PAGES_REQUEST_INIT;
    struct send_request message = SEND_REQUEST_INIT;
    pages.local = duo->a_memory;
    pages.remote = duo->b_of_a;
    pages.pages.page_len = 8;
    pages.pages.page_count = 1;
    message.peer = duo->a_to_b;

    REFUSED(WEFT_ERR_HANDLE, weft_endpoint_address(bad, blob, sizeof blob, &len));
    REFUSED(WEFT_ERR_HANDLE, weft_endpoint_info(bad, &ep, NULL));
    REFUSED(WEFT_ERR_HANDLE, weft_rail_info(bad, 0, &rail, NULL));
    REFUSED(WEFT_ERR_HANDLE, weft_endpoint_shutdown(bad, 0));
    REFUSED(WEFT_ERR_HANDLE, weft_peer_connect(bad, blob, sizeof blob, NULL, &peer));
    REFUSED(WEFT_ERR_HANDLE, weft_peer_disconnect(bad, duo->a_to_b));
    REFUSED(WEFT_ERR_HANDLE, weft_peer_info(bad, duo->a_to_b, &pp));
    REFUSED(WEFT_ERR_HANDLE, weft_peer_reason(bad, duo->a_to_b, NULL, 0, &(size_t){0}));
    REFUSED(WEFT_ERR_HANDLE, weft_memory_register(bad, &range, 1, NULL, &memory));
    REFUSED(WEFT_ERR_HANDLE,
            weft_remote_memory_import(bad, duo->a_to_b, blob, sizeof blob, &remote));
    CHECK(weft_endpoint_queue(bad) == NULL);
    REFUSED(WEFT_ERR_HANDLE, weft_queue_poll(weft_endpoint_queue(bad), c, 4, 0));
    REFUSED(WEFT_ERR_HANDLE, weft_queue_poll(weft_endpoint_queue(bad), c, 4, SECOND));
    REFUSED(WEFT_ERR_HANDLE, weft_queue_arm(weft_endpoint_queue(bad), NULL));
    REFUSED(WEFT_ERR_HANDLE, weft_queue_arm(weft_endpoint_queue(bad), &fd));
    REFUSED(WEFT_ERR_HANDLE, weft_queue_create(bad, 0, &queue));
    REFUSED(WEFT_ERR_HANDLE, submit_write(bad, &range_of, &id));
    REFUSED(WEFT_ERR_HANDLE, submit_read(bad, &range_of, &id));
    REFUSED(WEFT_ERR_HANDLE, submit_write_pages(bad, &pages, &id));
    REFUSED(WEFT_ERR_HANDLE, submit_read_pages(bad, &pages, &id));
    REFUSED(WEFT_ERR_HANDLE, submit_send(bad, &message, &id));
    REFUSED(WEFT_ERR_HANDLE, weft_op_cancel(bad, 1));
    REFUSED(WEFT_ERR_HANDLE, weft_message_release(bad, 1));
    if (bad != NULL)
        REFUSED(WEFT_ERR_HANDLE, weft_endpoint_destroy(bad));
}

/* Passes it as local memory and as the memory of a call. */
static void memory_is_refused(weft_memory *bad, const struct duo *duo)
{
    char blob[64];
    size_t len;
    struct range_request args = range_args(bad, duo->b_of_a, 8);
    struct pages_request pages = PAGES_REQUEST_INIT;
    pages.local = bad;
    pages.remote = duo->b_of_a;
    pages.pages.page_len = 8;
    pages.pages.page_count = 1;
    REFUSED(WEFT_ERR_HANDLE, weft_memory_export(bad, blob, sizeof blob, &len));
    REFUSED(WEFT_ERR_HANDLE, submit_write(duo->a->endpoint, &args, NULL));
    REFUSED(WEFT_ERR_HANDLE, submit_read(duo->a->endpoint, &args, NULL));
    REFUSED(WEFT_ERR_HANDLE, submit_write_pages(duo->a->endpoint, &pages, NULL));
    REFUSED(WEFT_ERR_HANDLE, submit_read_pages(duo->a->endpoint, &pages, NULL));
    if (bad != NULL)
        REFUSED(WEFT_ERR_HANDLE, weft_memory_deregister(bad));
}

static void remote_is_refused(weft_remote_memory *bad, const struct duo *duo)
{
    struct range_request args = range_args(duo->a_memory, bad, 8);
    struct pages_request pages = PAGES_REQUEST_INIT;
    pages.local = duo->a_memory;
    pages.remote = bad;
    pages.pages.page_len = 8;
    pages.pages.page_count = 1;
    REFUSED(WEFT_ERR_HANDLE, submit_write(duo->a->endpoint, &args, NULL));
    REFUSED(WEFT_ERR_HANDLE, submit_read(duo->a->endpoint, &args, NULL));
    REFUSED(WEFT_ERR_HANDLE, submit_write_pages(duo->a->endpoint, &pages, NULL));
    REFUSED(WEFT_ERR_HANDLE, submit_read_pages(duo->a->endpoint, &pages, NULL));
    if (bad != NULL)
        REFUSED(WEFT_ERR_HANDLE, weft_remote_memory_release(bad));
}

static void queue_is_refused(weft_queue *bad, const struct duo *duo)
{
    weft_completion c[4];
    int32_t fd;
    REFUSED(WEFT_ERR_HANDLE, weft_queue_poll(bad, c, 4, 0));
    REFUSED(WEFT_ERR_HANDLE, weft_queue_poll(bad, c, 4, SECOND));
    REFUSED(WEFT_ERR_HANDLE, weft_queue_arm(bad, NULL));
    REFUSED(WEFT_ERR_HANDLE, weft_queue_arm(bad, &fd));
    if (bad == NULL)
        return;
    struct range_request args = range_args(duo->a_memory, duo->b_of_a, 8);
    struct send_request message = SEND_REQUEST_INIT;
    args.options.queue = bad;
    message.peer = duo->a_to_b;
    message.options.queue = bad;
    REFUSED(WEFT_ERR_HANDLE, submit_write(duo->a->endpoint, &args, NULL));
    REFUSED(WEFT_ERR_HANDLE, submit_send(duo->a->endpoint, &message, NULL));
    REFUSED(WEFT_ERR_HANDLE, weft_queue_destroy(bad));
}

static void every_handle_is_refused(void *bad, const struct duo *duo)
{
    endpoint_is_refused(bad, duo);
    memory_is_refused(bad, duo);
    remote_is_refused(bad, duo);
    queue_is_refused(bad, duo);
}

/* The invalid calls had no effect, and a write still works. */
static void still_works(const struct duo *duo)
{
    box_quiet(duo->a, 20);
    box_quiet(duo->b, 1);
    fill_random(duo->a_bytes, duo->len, now_ns());
    memset(duo->b_bytes, 0, duo->len);
    struct range_request args = range_args(duo->a_memory, duo->b_of_a, duo->len);
    weft_completion c = box_await(duo->a, write_now(duo->a, &args), patience_ms());
    CHECK_OK(c.status);
    CHECK_EQ(c.bytes, duo->len);
    CHECK(memcmp(duo->a_bytes, duo->b_bytes, duo->len) == 0);
}

static void null_handles_are_refused(void)
{
    struct duo duo = duo_open(65536);
    every_handle_is_refused(NULL, &duo);
    CHECK_OK(weft_endpoint_destroy(NULL));
    CHECK_OK(weft_memory_deregister(NULL));
    CHECK_OK(weft_remote_memory_release(NULL));
    CHECK_OK(weft_queue_destroy(NULL));
    CHECK_OK(weft_message_release(duo.a->endpoint, 0));
    still_works(&duo);
    duo_close(&duo);
}

static void invented_handles_are_refused(void)
{
    struct duo duo = duo_open(65536);
    uint64_t on_stack[64] = {0};
    void *on_heap = calloc(1, 4096);
    static uint64_t in_data[64];
    void *invented[] = {
        (void *)(uintptr_t)1,
        (void *)(uintptr_t)0x1234,
        (void *)(uintptr_t)0x123456789abc,
        (void *)UINTPTR_MAX,
        (void *)(UINTPTR_MAX - 4095),
        on_stack,
        on_heap,
        in_data,
        duo.a_bytes,
        (uint8_t *)(void *)duo.a->endpoint + 1, /* another generation */
        (uint8_t *)(void *)duo.a->endpoint + 4,
        (uint8_t *)(void *)duo.a->endpoint - 1,
        (uint8_t *)(void *)duo.a_memory + 8,
    };
    for (size_t i = 0; i < COUNT(invented); i++)
        every_handle_is_refused(invented[i], &duo);
    free(on_heap);
    still_works(&duo);
    duo_close(&duo);
}

static void handles_of_another_kind_are_refused(void)
{
    struct duo duo = duo_open(65536);
    weft_queue *queue;
    CHECK_OK(weft_queue_create(duo.a->endpoint, 0, &queue));
    endpoint_is_refused((weft_endpoint *)(void *)duo.a_memory, &duo);
    endpoint_is_refused((weft_endpoint *)(void *)duo.b_of_a, &duo);
    endpoint_is_refused((weft_endpoint *)(void *)queue, &duo);
    memory_is_refused((weft_memory *)(void *)duo.a->endpoint, &duo);
    memory_is_refused((weft_memory *)(void *)duo.b_of_a, &duo);
    memory_is_refused((weft_memory *)(void *)queue, &duo);
    remote_is_refused((weft_remote_memory *)(void *)duo.a->endpoint, &duo);
    remote_is_refused((weft_remote_memory *)(void *)duo.a_memory, &duo);
    remote_is_refused((weft_remote_memory *)(void *)queue, &duo);
    queue_is_refused((weft_queue *)(void *)duo.a->endpoint, &duo);
    queue_is_refused((weft_queue *)(void *)duo.a_memory, &duo);
    queue_is_refused((weft_queue *)(void *)duo.b_of_a, &duo);
    CHECK_OK(weft_queue_destroy(queue));
    still_works(&duo);
    duo_close(&duo);
}

/* Destroyed once and again, also after many new handles were made. */
static void stale_handles_are_refused(void)
{
    struct duo duo = duo_open(65536);
    weft_memory *memory = register_one(duo.a->endpoint, duo.a_bytes, 64);
    weft_queue *queue;
    weft_remote_memory *remote;
    char blob[4096];
    size_t len = descriptor_of(duo.b_memory, blob, sizeof blob);
    CHECK_OK(weft_queue_create(duo.a->endpoint, 0, &queue));
    CHECK_OK(weft_remote_memory_import(duo.a->endpoint, duo.a_to_b, blob, len, &remote));
    CHECK_OK(weft_memory_deregister(memory));
    CHECK_OK(weft_queue_destroy(queue));
    CHECK_OK(weft_remote_memory_release(remote));
    for (int i = 0; i < 2; i++) {
        memory_is_refused(memory, &duo);
        queue_is_refused(queue, &duo);
        remote_is_refused(remote, &duo);
        for (int k = 0; k < 200; k++) {
            weft_queue *again;
            weft_memory *mine = register_one(duo.a->endpoint, duo.a_bytes, 64);
            CHECK_OK(weft_queue_create(duo.a->endpoint, 16, &again));
            CHECK(mine != memory && again != queue);
            CHECK_OK(weft_memory_deregister(mine));
            CHECK_OK(weft_queue_destroy(again));
        }
    }
    still_works(&duo);
    duo_close(&duo);
}

/* The objects of an endpoint are destroyed with it. */
static void handles_of_a_destroyed_endpoint_are_refused(void)
{
    struct duo duo = duo_open(65536), other;
    weft_queue *queue;
    CHECK_OK(weft_queue_create(duo.a->endpoint, 0, &queue));
    CHECK_OK(weft_endpoint_destroy(duo.a->endpoint));
    other = duo_open(4096);
    endpoint_is_refused(duo.a->endpoint, &other);
    memory_is_refused(duo.a_memory, &other);
    remote_is_refused(duo.b_of_a, &other);
    queue_is_refused(queue, &other);
    still_works(&other);
    duo_close(&other);
    box_close(duo.b);
}

static void handles_of_another_endpoint_are_refused(void)
{
    struct duo duo = duo_open(65536);
    weft_endpoint *a = duo.a->endpoint, *b = duo.b->endpoint;
    weft_peer_properties pp = WEFT_PEER_PROPERTIES_INIT;
    weft_remote_memory *remote;
    weft_queue *b_queue;
    char blob[4096];
    CHECK_OK(weft_queue_create(b, 0, &b_queue));

    struct range_request args = range_args(duo.b_memory, duo.b_of_a, 8);
    REFUSED(WEFT_ERR_HANDLE, submit_write(a, &args, NULL)); /* b's memory as local */
    args = range_args(duo.b_memory, duo.b_of_a, 8);
    REFUSED(WEFT_ERR_HANDLE, submit_write(b, &args, NULL)); /* a's remote memory */
    args = range_args(duo.a_memory, duo.b_of_a, 8);
    args.options.queue = b_queue;
    REFUSED(WEFT_ERR_HANDLE, submit_write(a, &args, NULL)); /* b's queue */
    args.options.queue = NULL;
    REFUSED(WEFT_ERR_HANDLE, submit_write(b, &args, NULL)); /* all of a */

    struct send_request message = SEND_REQUEST_INIT;
    message.peer = duo.a_to_b;
    REFUSED(WEFT_ERR_HANDLE, submit_send(b, &message, NULL)); /* a's peer */
    REFUSED(WEFT_ERR_HANDLE, weft_peer_info(b, duo.a_to_b, &pp));
    REFUSED(WEFT_ERR_HANDLE, weft_peer_disconnect(b, duo.a_to_b));
    size_t len = descriptor_of(duo.b_memory, blob, sizeof blob);
    REFUSED(WEFT_ERR_HANDLE, weft_remote_memory_import(b, duo.a_to_b, blob, len, &remote));

    send_now(duo.a, duo.a_to_b, "hello", 5);
    CHECK_OK(box_take(duo.a, WEFT_COMPLETION_SEND, patience_ms()).status);
    weft_completion got = box_take(duo.b, WEFT_COMPLETION_MESSAGE, patience_ms());
    CHECK(got.op != 0);
    REFUSED(WEFT_ERR_HANDLE, weft_message_release(a, got.op)); /* b's message */
    CHECK(got.bytes == 5 && memcmp(got.data, "hello", 5) == 0);
    CHECK_OK(weft_message_release(b, got.op));

    CHECK_OK(weft_queue_destroy(b_queue));
    still_works(&duo);
    duo_close(&duo);
}

static void stale_and_invented_ids_are_refused(void)
{
    struct duo duo = duo_open(65536);
    weft_endpoint *a = duo.a->endpoint, *b = duo.b->endpoint;
    weft_peer_properties pp = WEFT_PEER_PROPERTIES_INIT;
    weft_remote_memory *remote;
    char blob[4096];
    size_t len = descriptor_of(duo.b_memory, blob, sizeof blob);
    const uint64_t invented[] = {0, 1, 0xffffffff, UINT64_C(1) << 32, UINT64_C(1) << 63,
                                 UINT64_MAX, UINT64_C(0x123456789abcdef0)};
    for (size_t i = 0; i < COUNT(invented); i++) {
        struct send_request message = SEND_REQUEST_INIT;
        message.peer = invented[i];
        if (invented[i] != duo.a_to_b) {
            REFUSED(WEFT_ERR_HANDLE, submit_send(a, &message, NULL));
            REFUSED(WEFT_ERR_HANDLE, weft_peer_info(a, invented[i], &pp));
            REFUSED(WEFT_ERR_HANDLE, weft_peer_reason(a, invented[i], NULL, 0, &(size_t){0}));
            REFUSED(WEFT_ERR_HANDLE, weft_peer_disconnect(a, invented[i]));
            REFUSED(WEFT_ERR_HANDLE,
                    weft_remote_memory_import(a, invented[i], blob, len, &remote));
        }
        REFUSED(WEFT_ERR_HANDLE, weft_op_cancel(a, invented[i]));
        if (invented[i] != 0)
            REFUSED(WEFT_ERR_HANDLE, weft_message_release(a, invented[i]));
    }

    struct range_request args = range_args(duo.a_memory, duo.b_of_a, 8);
    weft_op id = write_now(duo.a, &args);
    CHECK_OK(box_await(duo.a, id, patience_ms()).status);
    REFUSED(WEFT_ERR_HANDLE, weft_op_cancel(a, id)); /* completed */
    REFUSED(WEFT_ERR_HANDLE, weft_message_release(a, id)); /* not a message */

    send_now(duo.a, duo.a_to_b, "x", 1);
    weft_completion got = box_take(duo.b, WEFT_COMPLETION_MESSAGE, patience_ms());
    REFUSED(WEFT_ERR_HANDLE, weft_op_cancel(b, got.op)); /* not an operation */
    CHECK_OK(weft_message_release(b, got.op));
    REFUSED(WEFT_ERR_HANDLE, weft_message_release(b, got.op)); /* again */
    CHECK_OK(box_take(duo.a, WEFT_COMPLETION_SEND, patience_ms()).status);
    still_works(&duo);
    duo_close(&duo);
}

/* ---- Arguments ---- */

static void null_arguments_are_refused(void)
{
    struct duo duo = duo_open(65536);
    weft_endpoint *a = duo.a->endpoint;
    char blob[4096];
    size_t len = 0;
    weft_peer peer;
    weft_remote_memory *remote;
    weft_memory *memory;
    weft_memory_range range = {duo.a_bytes, 64};
    weft_completion c[2];

    REFUSED(WEFT_ERR_INVALID, weft_endpoint_address(a, blob, sizeof blob, NULL));
    REFUSED(WEFT_ERR_INVALID, weft_endpoint_address(a, NULL, 100, &len));
    REFUSED(WEFT_ERR_INVALID, weft_endpoint_info(a, NULL, NULL));
    REFUSED(WEFT_ERR_INVALID, weft_rail_info(a, 0, NULL, NULL));
    REFUSED(WEFT_ERR_INVALID, weft_peer_connect(a, NULL, 100, NULL, &peer));
    REFUSED_EITHER(WEFT_ERR_INVALID, WEFT_ERR_FORMAT, weft_peer_connect(a, NULL, 0, NULL, &peer));
    REFUSED(WEFT_ERR_INVALID, weft_peer_connect(a, blob, SIZE_MAX, NULL, &peer));
    CHECK(strstr(weft_last_error(), "at most") != NULL);
    size_t n = address_of(duo.b->endpoint, blob, sizeof blob);
    weft_op_options counts = WEFT_OP_OPTIONS_INIT;
    counts.counter = 1;
    REFUSED(WEFT_ERR_INVALID, weft_peer_connect(a, blob, n, &counts, &peer));
    CHECK(strstr(weft_last_error(), "the options timeout_ns and user_data alone") != NULL);
    void *address;
    REFUSED(WEFT_ERR_INVALID, weft_memory_alloc(a, 4096, 64, &address));
    CHECK(strstr(weft_last_error(), "WEFT_NUMA_ANY") != NULL);
    REFUSED(WEFT_ERR_INVALID, weft_peer_connect(a, blob, n, NULL, NULL));
    REFUSED(WEFT_ERR_INVALID, weft_peer_info(a, duo.a_to_b, NULL));
    REFUSED(WEFT_ERR_INVALID, weft_peer_reason(a, duo.a_to_b, NULL, 0, NULL));
    REFUSED(WEFT_ERR_INVALID, weft_memory_register(a, NULL, 1, NULL, &memory));
    REFUSED(WEFT_ERR_INVALID, weft_memory_register(a, &range, 1, NULL, NULL));
    REFUSED(WEFT_ERR_INVALID, weft_memory_export(duo.a_memory, blob, sizeof blob, NULL));
    REFUSED(WEFT_ERR_INVALID, weft_memory_export(duo.a_memory, NULL, 100, &len));
    REFUSED(WEFT_ERR_INVALID, weft_remote_memory_import(a, duo.a_to_b, NULL, 100, &remote));
    n = descriptor_of(duo.b_memory, blob, sizeof blob);
    REFUSED(WEFT_ERR_INVALID, weft_remote_memory_import(a, duo.a_to_b, blob, n, NULL));
    REFUSED(WEFT_ERR_INVALID, weft_queue_poll(weft_endpoint_queue(a), NULL, 2, 0));
    REFUSED(WEFT_ERR_INVALID, weft_queue_poll(weft_endpoint_queue(a), NULL, 2, SECOND));
    REFUSED(WEFT_ERR_INVALID, weft_queue_arm(weft_endpoint_queue(a), (int32_t *)(void *)(blob + 1)));
    REFUSED(WEFT_ERR_INVALID, weft_queue_destroy(weft_endpoint_queue(a)));
    REFUSED(WEFT_ERR_INVALID, weft_queue_create(a, 0, NULL));
    REFUSED(WEFT_ERR_HANDLE, weft_write(a, NULL, 0, NULL, 0, 0, NULL, NULL));
    REFUSED(WEFT_ERR_HANDLE, weft_read(a, NULL, 0, NULL, 0, 0, NULL, NULL));
    REFUSED(WEFT_ERR_INVALID, weft_write_pages(a, duo.a_memory, duo.b_of_a, NULL, NULL, NULL));
    REFUSED(WEFT_ERR_INVALID, weft_read_pages(a, duo.a_memory, duo.b_of_a, NULL, NULL, NULL));
    REFUSED(WEFT_ERR_INVALID, weft_send(a, duo.a_to_b, NULL, 1, NULL, NULL));
    struct send_request message = SEND_REQUEST_INIT;
    message.peer = duo.a_to_b;
    message.len = 10;
    REFUSED(WEFT_ERR_INVALID, submit_send(a, &message, NULL)); /* no data */
    CHECK_EQ(weft_queue_poll(weft_endpoint_queue(a), c, 0, 0), 0);
    CHECK_EQ(weft_queue_poll(weft_endpoint_queue(a), c, 2, 0), 0);
    still_works(&duo);
    duo_close(&duo);
}

static void too_small_buffers_are_refused(void)
{
    struct duo duo = duo_open(65536);
    uint8_t blob[4096];
    size_t want, len;
    for (int which = 0; which < 2; which++) {
#define GET(buffer, capacity)                                                               \
    (which == 0 ? weft_endpoint_address(duo.a->endpoint, buffer, capacity, &len)            \
                : weft_memory_export(duo.a_memory, buffer, capacity, &len))
        len = 0;
        CHECK_OK(GET(NULL, 0)); /* asks for the length only */
        want = len;
        CHECK(want > 8 && want < sizeof blob);
        for (size_t capacity = 0; capacity < want; capacity++) {
            memset(blob, 0x5a, sizeof blob);
            len = 0;
            REFUSED(WEFT_ERR_TOO_SMALL, GET(blob, capacity));
            CHECK_EQ(len, want);
            for (size_t i = 0; i < sizeof blob; i++)
                CHECK(blob[i] == 0x5a);
        }
        memset(blob, 0x5a, sizeof blob);
        CHECK_OK(GET(blob, want));
        CHECK_EQ(len, want);
        CHECK(blob[want] == 0x5a);
#undef GET
    }
    duo_close(&duo);
}

/* The properties struct of an older program is filled to its end and no further. */
static void properties_structs_are_filled_to_their_size(void)
{
    struct duo duo = duo_open(4096);
    weft_endpoint *a = duo.a->endpoint;
    union {
        weft_endpoint_properties endpoint;
        weft_rail_properties rail;
        weft_peer_properties peer;
        uint8_t bytes[1024];
    } p;
    const uint32_t sizes[] = {sizeof p.endpoint, sizeof p.rail, sizeof p.peer};
    for (size_t which = 0; which < 3; which++) {
        for (uint32_t size = 0; size <= 1024; size += size < 16 ? 1 : 4) {
            memset(&p, 0x5a, sizeof p);
            memcpy(p.bytes, &size, sizeof size);
            if (size > sizes[which])
                memset(p.bytes + sizes[which], 0, size - sizes[which]);
            weft_status status = which == 0   ? weft_endpoint_info(a, &p.endpoint, NULL)
                                 : which == 1 ? weft_rail_info(a, 0, &p.rail, NULL)
                                              : weft_peer_info(a, duo.a_to_b, &p.peer);
            if (size < 4)
                CHECK_STATUS(status, WEFT_ERR_INVALID);
            else if (size >= 8) {
                CHECK_OK(status);
                CHECK(memcmp(p.bytes, &size, sizeof size) == 0); /* the caller's size stays */
            }
            for (size_t i = size < 4 ? 4 : size; i < sizeof p.bytes; i++)
                if (p.bytes[i] != 0x5a)
                    FAIL("struct %zu of size %u: byte %zu was written", which, size, i);
        }
    }
    REFUSED(WEFT_ERR_RANGE,
            (p.rail = (weft_rail_properties)WEFT_RAIL_PROPERTIES_INIT, weft_rail_info(a, 1, &p.rail, NULL)));
    p.rail = (weft_rail_properties)WEFT_RAIL_PROPERTIES_INIT;
    REFUSED(WEFT_ERR_RANGE, weft_rail_info(a, UINT32_MAX, &p.rail, NULL));
    duo_close(&duo);
}

/* Bytes written and posts, of all rails together. */
static weft_rail_statistics all_rails_of(const weft_endpoint *endpoint)
{
    weft_endpoint_properties properties = WEFT_ENDPOINT_PROPERTIES_INIT;
    weft_rail_statistics sum = WEFT_RAIL_STATISTICS_INIT;
    CHECK_OK(weft_endpoint_info(endpoint, &properties, NULL));
    for (uint32_t i = 0; i < properties.rails; i++) {
        weft_rail_statistics one = WEFT_RAIL_STATISTICS_INIT;
        CHECK_OK(weft_rail_info(endpoint, i, NULL, &one));
        sum.bytes_written += one.bytes_written;
        sum.posts += one.posts;
    }
    return sum;
}

static void rail_and_peer_properties_are_filled_in(void)
{
    struct duo duo = duo_open(4096);
    weft_rail_properties rail = WEFT_RAIL_PROPERTIES_INIT;
    weft_peer_properties peer = WEFT_PEER_PROPERTIES_INIT;
    weft_endpoint_properties of_b = WEFT_ENDPOINT_PROPERTIES_INIT;
    weft_rail_statistics done = all_rails_of(duo.a->endpoint);
    CHECK_OK(weft_rail_info(duo.a->endpoint, 0, &rail, NULL));
    CHECK(strstr(rail.fabric, fabric()) != NULL);
    CHECK(rail.name[0] != 0);
    if (on_fabric("tcp")) {
        CHECK(strcmp(rail.name, "lo") == 0);
        CHECK(strncmp(rail.address, "127.0.0.1:", 10) == 0);
    }
    CHECK_EQ(rail.worker, 0);
    CHECK_OK(weft_endpoint_info(duo.b->endpoint, &of_b, NULL));
    CHECK_OK(weft_peer_info(duo.a->endpoint, duo.a_to_b, &peer));
    CHECK_EQ(peer.up, 1);
    CHECK(peer.lanes >= 1);
    /* Of several, those whose lanes are up by now. */
    CHECK(peer.local_rails >= 1 && peer.local_rails <= of_b.rails);
    CHECK(peer.remote_rails >= 1 && peer.remote_rails <= of_b.rails);
    CHECK(peer.incarnation == of_b.incarnation);
    CHECK(strstr(peer.fabric, fabric()) != NULL);
    CHECK(peer.reason[0] != 0);
    CHECK_EQ(of_b.peers, 1);
    CHECK_EQ(done.bytes_written, 0);
    CHECK_EQ(done.posts, 0);
    still_works(&duo); /* writes duo.len bytes */
    done = all_rails_of(duo.a->endpoint);
    CHECK_EQ(done.bytes_written, duo.len);
    CHECK(done.posts >= 1 && done.posts <= duo.len);
    duo_close(&duo);
}

static void invalid_registrations_are_refused(void)
{
    struct duo duo = duo_open(65536);
    weft_endpoint *a = duo.a->endpoint;
    weft_memory *memory;
    weft_memory_args args = WEFT_MEMORY_ARGS_INIT;
    size_t many = 65537;
    weft_memory_range *ranges = calloc(many, sizeof *ranges);
    CHECK(ranges != NULL);
    for (size_t i = 0; i < many; i++)
        ranges[i] = (weft_memory_range){duo.a_bytes + i % 60000, 8};
    REFUSED(WEFT_ERR_INVALID, weft_memory_register(a, ranges, 0, NULL, &memory));
    REFUSED_EITHER(WEFT_ERR_LIMIT, WEFT_ERR_INVALID,
                   weft_memory_register(a, ranges, many, NULL, &memory));
    REFUSED_EITHER(WEFT_ERR_LIMIT, WEFT_ERR_INVALID,
                   weft_memory_register(a, ranges, SIZE_MAX, NULL, &memory));
    const weft_memory_range bad[] = {
        {NULL, 64},
        {duo.a_bytes, 0},
        {duo.a_bytes, (UINT64_C(1) << 47) + 1},
        {duo.a_bytes, UINT64_MAX},
        {(void *)(UINTPTR_MAX - 4095), 8192}, /* wraps around */
    };
    for (size_t i = 0; i < COUNT(bad); i++) {
        weft_memory_range two[2] = {{duo.a_bytes, 64}, bad[i]};
        mark_last_error();
        CHECK_ONE_OF(weft_memory_register(a, &bad[i], 1, NULL, &memory), WEFT_ERR_INVALID,
                     WEFT_ERR_LIMIT, WEFT_ERR_RANGE);
        check_own_message(__FILE__, __LINE__, "weft_memory_register");
        CHECK_ONE_OF(weft_memory_register(a, two, 2, NULL, &memory), WEFT_ERR_INVALID,
                     WEFT_ERR_LIMIT, WEFT_ERR_RANGE);
    }
    args.access = 16;
    REFUSED_EITHER(WEFT_ERR_INVALID, WEFT_ERR_UNSUPPORTED,
                   weft_memory_register(a, ranges, 1, &args, &memory));
    args.access = 0;
    args.size = 0;
    REFUSED(WEFT_ERR_INVALID, weft_memory_register(a, ranges, 1, &args, &memory));
    free(ranges);
    still_works(&duo);
    duo_close(&duo);
}

static void maximum_number_of_ranges_registers(void)
{
    struct duo duo = duo_open(MIB);
    weft_memory *memory;
    weft_memory_range *ranges = calloc(4096, sizeof *ranges);
    CHECK(ranges != NULL);
    for (size_t i = 0; i < 4096; i++)
        ranges[i] = (weft_memory_range){duo.a_bytes + i * 256, 256};
    CHECK_OK(weft_memory_register(duo.a->endpoint, ranges, 4096, NULL, &memory));
    free(ranges);
    fill_random(duo.a_bytes, MIB, 5);
    struct range_request args = range_args(memory, duo.b_of_a, 256);
    args.local_offset = 4095 * 256;
    CHECK_OK(box_await(duo.a, write_now(duo.a, &args), patience_ms()).status);
    CHECK(memcmp(duo.b_bytes, duo.a_bytes + 4095 * 256, 256) == 0);
    args.local_offset = 4094 * 256 + 1; /* of two ranges */
    REFUSED(WEFT_ERR_RANGE, submit_write(duo.a->endpoint, &args, NULL));
    args.local_offset = 4096 * 256;
    REFUSED(WEFT_ERR_RANGE, submit_write(duo.a->endpoint, &args, NULL));
    CHECK_OK(weft_memory_deregister(memory));
    duo_close(&duo);
}

static void local_memory_has_no_descriptor(void)
{
    struct duo duo = duo_open(4096);
    weft_memory_args args = WEFT_MEMORY_ARGS_INIT;
    weft_memory_range range = {duo.a_bytes, 4096};
    weft_memory *memory;
    char blob[4096];
    size_t len;
    args.access = WEFT_ACCESS_LOCAL;
    CHECK_OK(weft_memory_register(duo.a->endpoint, &range, 1, &args, &memory));
    REFUSED(WEFT_ERR_INVALID, weft_memory_export(memory, blob, sizeof blob, &len));
    fill_random(duo.a_bytes, 4096, 9);
    struct range_request write = range_args(memory, duo.b_of_a, 4096);
    CHECK_OK(box_await(duo.a, write_now(duo.a, &write), patience_ms()).status);
    CHECK(memcmp(duo.a_bytes, duo.b_bytes, 4096) == 0);
    CHECK_OK(weft_memory_deregister(memory));
    duo_close(&duo);
}

/* Read-only memory is not written, and write-only memory is not read. */
static void registered_access_is_enforced(void)
{
    struct duo duo = duo_open(4096);
    const uint32_t allowed[] = {WEFT_ACCESS_REMOTE_READ, WEFT_ACCESS_REMOTE_WRITE};
    for (size_t i = 0; i < 2; i++) {
        weft_memory_args args = WEFT_MEMORY_ARGS_INIT;
        weft_memory_range range = {duo.b_bytes, 4096};
        weft_memory *memory;
        weft_remote_memory *remote;
        char blob[4096];
        args.access = allowed[i];
        CHECK_OK(weft_memory_register(duo.b->endpoint, &range, 1, &args, &memory));
        size_t len = descriptor_of(memory, blob, sizeof blob);
        CHECK_OK(weft_remote_memory_import(duo.a->endpoint, duo.a_to_b, blob, len, &remote));
        memset(duo.a_bytes, 1, 4096);
        memset(duo.b_bytes, 2, 4096);
        struct range_request to = range_args(duo.a_memory, remote, 4096);
        weft_op id;
        weft_status status = i == 0 ? submit_write(duo.a->endpoint, &to, &id)
                                    : submit_read(duo.a->endpoint, &to, &id);
        if (status == WEFT_OK)
            status = box_await(duo.a, id, patience_ms()).status;
        CHECK_STATUS(status, WEFT_ERR_REMOTE_ACCESS);
        CHECK(duo.a_bytes[0] == 1 && memcmp(duo.a_bytes, duo.a_bytes + 1, 4095) == 0);
        CHECK(duo.b_bytes[0] == 2 && memcmp(duo.b_bytes, duo.b_bytes + 1, 4095) == 0);
        /* The allowed direction works. */
        status = i == 1 ? submit_write(duo.a->endpoint, &to, &id)
                        : submit_read(duo.a->endpoint, &to, &id);
        CHECK_OK(status);
        CHECK_OK(box_await(duo.a, id, patience_ms()).status);
        CHECK(memcmp(duo.a_bytes, duo.b_bytes, 4096) == 0);
        CHECK_OK(weft_remote_memory_release(remote));
        CHECK_OK(weft_memory_deregister(memory));
    }
    duo_close(&duo);
}

/* Pages without read permission are refused; pages without write permission can only be sources. */
static void protected_pages_are_refused(void)
{
    struct duo duo = duo_open(8192);
    uint8_t *pages = map_bytes(8192);
    weft_memory_range range = {pages, 8192};
    weft_memory *memory;
    fill_random(pages, 8192, 3);
    CHECK(mprotect(pages + 4096, 4096, PROT_NONE) == 0);
    REFUSED(WEFT_ERR_INVALID, weft_memory_register(duo.a->endpoint, &range, 1, NULL, &memory));
    CHECK(mprotect(pages, 8192, PROT_READ) == 0);
    REFUSED(WEFT_ERR_INVALID, weft_memory_register(duo.a->endpoint, &range, 1, NULL, &memory));
    CHECK(strstr(weft_last_error(), "WEFT_ACCESS_REMOTE_READ") != NULL);
    const uint32_t allowed[] = {WEFT_ACCESS_REMOTE_READ, WEFT_ACCESS_LOCAL};
    for (size_t i = 0; i < COUNT(allowed); i++) {
        weft_memory_args args = WEFT_MEMORY_ARGS_INIT;
        weft_op id;
        args.access = allowed[i];
        CHECK_OK(weft_memory_register(duo.a->endpoint, &range, 1, &args, &memory));
        struct range_request write = range_args(memory, duo.b_of_a, 8192);
        CHECK_OK(box_await(duo.a, write_now(duo.a, &write), patience_ms()).status);
        CHECK(memcmp(duo.b_bytes, pages, 8192) == 0);
        REFUSED(WEFT_ERR_INVALID, submit_read(duo.a->endpoint, &write, &id));
        CHECK_OK(weft_memory_deregister(memory));
    }
    still_works(&duo);
    duo_close(&duo);
    munmap(pages, 8192);
}

/* ---- What transfers ask for ---- */

static void ranges_outside_the_memory_are_refused(void)
{
    struct duo duo = duo_open(65536);
    weft_endpoint *a = duo.a->endpoint;
    const uint64_t n = 65536;
    const struct {
        uint64_t local_offset, remote_offset, len;
    } bad[] = {
        {0, 0, n + 1},
        {0, 0, UINT64_MAX},
        {1, 0, n},
        {0, 1, n},
        {n, 0, 1},
        {0, n, 1},
        {n + 1, 0, 1},
        {0, n + 1, 1},
        {UINT64_MAX, 0, 2},
        {0, UINT64_MAX, 2},
        {UINT64_MAX - 7, 0, 16},
        {0, UINT64_MAX - 7, 16},
        {8, 8, UINT64_MAX - 7},
    };
    for (size_t i = 0; i < COUNT(bad); i++) {
        struct range_request args = range_args(duo.a_memory, duo.b_of_a, bad[i].len);
        args.local_offset = bad[i].local_offset;
        args.remote_offset = bad[i].remote_offset;
        REFUSED(WEFT_ERR_RANGE, submit_write(a, &args, NULL));
        REFUSED(WEFT_ERR_RANGE, submit_read(a, &args, NULL));
    }
    still_works(&duo);
    duo_close(&duo);
}

static struct pages_request good_pages(const struct duo *duo)
{
    struct pages_request args = PAGES_REQUEST_INIT;
    args.local = duo->a_memory;
    args.remote = duo->b_of_a;
    args.pages.page_len = 256;
    args.pages.page_count = 4;
    return args;
}

static void pages_outside_the_memory_are_refused(void)
{
    struct duo duo = duo_open(65536); /* 256 pages of 256 bytes */
    weft_endpoint *a = duo.a->endpoint;
    const uint32_t past[4] = {0, 1, 256, 2}, far[4] = {UINT32_MAX, 0, 1, 2}, last[4] = {255, 0, 1, 2};
#define OUTSIDE(...)                                                                        \
    do {                                                                                    \
        struct pages_request p = good_pages(&duo);                                               \
        __VA_ARGS__;                                                                        \
        REFUSED(WEFT_ERR_RANGE, submit_write_pages(a, &p, NULL));                             \
        REFUSED(WEFT_ERR_RANGE, submit_read_pages(a, &p, NULL));                              \
    } while (0)
    OUTSIDE(p.pages.local.pages = past);
    OUTSIDE(p.pages.remote.pages = past);
    OUTSIDE(p.pages.local.pages = far);
    OUTSIDE(p.pages.remote.pages = far);
    OUTSIDE(p.pages.page_count = 257);
    OUTSIDE(p.pages.page_count = UINT32_MAX); /* no lists: 0, 1, 2, ... */
    OUTSIDE(p.pages.local.pages = last; p.pages.local.offset = 1);
    OUTSIDE(p.pages.remote.pages = last; p.pages.remote.offset = 1);
    OUTSIDE(p.pages.local.offset = UINT64_MAX);
    OUTSIDE(p.pages.remote.offset = UINT64_MAX - 255);
    OUTSIDE(p.pages.local.page_stride = UINT64_MAX);
    OUTSIDE(p.pages.remote.page_stride = UINT64_C(1) << 63; p.pages.remote.pages = past);
    OUTSIDE(p.pages.local.page_stride = UINT64_C(1) << 62; p.pages.page_count = 5); /* 4 * 2^62 wraps to 0 */
    OUTSIDE(p.pages.remote.page_stride = UINT64_C(1) << 62; p.pages.page_count = 5);
    OUTSIDE(p.pages.page_len = 65537; p.pages.page_count = 1);
    OUTSIDE(p.pages.page_len = UINT64_C(1) << 47; p.pages.page_count = 1);
    OUTSIDE(p.pages.local.first_range = 1);
    OUTSIDE(p.pages.remote.first_range = UINT32_MAX);
    OUTSIDE(p.pages.layer_count = 2; p.pages.local.range_step = 1);
    OUTSIDE(p.pages.layer_count = 2; p.pages.remote.range_step = 1);
    OUTSIDE(p.pages.layer_count = 2; p.pages.local.range_step = UINT32_MAX);
    OUTSIDE(p.pages.layer_count = 65536; p.pages.remote.range_step = 65536); /* wraps in 32 bits */
    OUTSIDE(p.pages.layer_count = 2; p.pages.local.layer_stride = 65536);
    OUTSIDE(p.pages.layer_count = 2; p.pages.remote.layer_stride = UINT64_MAX);
    OUTSIDE(p.pages.layer_count = 5; p.pages.local.layer_stride = UINT64_C(1) << 62);
    OUTSIDE(p.pages.layer_count = 3; p.pages.remote.layer_stride = UINT64_C(1) << 63);
#undef OUTSIDE
    still_works(&duo);
    duo_close(&duo);
}

/* Layers may share their source, but not their destination. */
static void layers_with_one_destination_are_refused(void)
{
    struct duo duo = duo_open(65536);
    weft_endpoint *a = duo.a->endpoint;
    weft_op id;
    struct pages_request p = good_pages(&duo);
    p.pages.page_count = 1;
    p.pages.layer_count = 3;
    REFUSED(WEFT_ERR_INVALID, submit_write_pages(a, &p, NULL));
    CHECK(strstr(weft_last_error(), "remote.range_step") != NULL);
    CHECK(strstr(weft_last_error(), "remote.layer_stride") != NULL);
    REFUSED(WEFT_ERR_INVALID, submit_read_pages(a, &p, NULL));
    CHECK(strstr(weft_last_error(), "local.range_step") != NULL);
    p.pages.remote.layer_stride = p.pages.page_len;
    fill_random(duo.a_bytes, p.pages.page_len, 1);
    CHECK_OK(submit_write_pages(a, &p, &id));
    CHECK_OK(box_await(duo.a, id, patience_ms()).status);
    for (uint64_t layer = 0; layer < 3; layer++)
        CHECK_EQ(differs_random(duo.b_bytes + layer * p.pages.page_len, p.pages.page_len, 1), -1);
    REFUSED(WEFT_ERR_INVALID, submit_read_pages(a, &p, NULL));
    p.pages.page_count = 0; /* nothing is written at all */
    p.pages.remote.layer_stride = 0;
    CHECK_OK(submit_write_pages(a, &p, &id));
    CHECK_OK(box_await(duo.a, id, patience_ms()).status);
    duo_close(&duo);
}

static void invalid_transfer_arguments_are_refused(void)
{
    struct duo duo = duo_open(65536);
    weft_endpoint *a = duo.a->endpoint;
    uint8_t data[300] = {0};
    /* Refused with INVALID, or with a more specific status. */
#define BAD_PAGES(also, ...)                                                                \
    do {                                                                                    \
        struct pages_request p = good_pages(&duo);                                               \
        __VA_ARGS__;                                                                        \
        REFUSED_EITHER(WEFT_ERR_INVALID, also, submit_write_pages(a, &p, NULL)); \
        REFUSED_EITHER(WEFT_ERR_INVALID, also, submit_read_pages(a, &p, NULL)); \
    } while (0)
#define BAD_RANGE(also, ...)                                                                \
    do {                                                                                    \
        struct range_request p = range_args(duo.a_memory, duo.b_of_a, 64);                       \
        __VA_ARGS__;                                                                        \
        REFUSED_EITHER(WEFT_ERR_INVALID, also, submit_write(a, &p, NULL)); \
        REFUSED_EITHER(WEFT_ERR_INVALID, also, submit_read(a, &p, NULL)); \
    } while (0)
#define BAD_SEND(also, ...)                                                                 \
    do {                                                                                    \
        struct send_request p = SEND_REQUEST_INIT;                                             \
        p.peer = duo.a_to_b;                                                                \
        __VA_ARGS__;                                                                        \
        REFUSED_EITHER(WEFT_ERR_INVALID, also, submit_send(a, &p, NULL)); \
    } while (0)
    BAD_PAGES(WEFT_ERR_INVALID, p.pages.page_len = 0);
    BAD_PAGES(WEFT_ERR_LIMIT, p.pages.page_len = (UINT64_C(1) << 47) + 1);
    BAD_PAGES(WEFT_ERR_LIMIT, p.pages.page_count = UINT64_C(1) << 32);
    BAD_PAGES(WEFT_ERR_LIMIT, p.pages.page_count = UINT64_MAX);
    BAD_PAGES(WEFT_ERR_LIMIT, p.pages.layer_count = 65537);
    BAD_PAGES(WEFT_ERR_LIMIT, p.pages.layer_count = UINT32_MAX);
    BAD_PAGES(WEFT_ERR_LIMIT, p.options.flags = WEFT_NOTIFY; p.options.notify_data = data; p.options.notify_data_len = 257);
    BAD_PAGES(WEFT_ERR_INVALID, p.options.flags = WEFT_NOTIFY; p.options.notify_data_len = 1);
    BAD_PAGES(WEFT_ERR_INVALID, p.options.notify = 1); /* without WEFT_NOTIFY */
    CHECK(strstr(weft_last_error(), "WEFT_NOTIFY") != NULL);
    BAD_PAGES(WEFT_ERR_LIMIT, p.options.timeout_ns = HOURS_25);
    BAD_PAGES(WEFT_ERR_UNSUPPORTED, p.options.flags = 8);
    CHECK(strstr(weft_last_error(), "WEFT_COMPLETE_EACH_PEER is set in flags: it is for lists") != NULL);
    BAD_PAGES(WEFT_ERR_UNSUPPORTED, p.options.flags = 0x80000001);
    BAD_PAGES(WEFT_ERR_INVALID, p.options.size = 0);
    BAD_PAGES(WEFT_ERR_INVALID, p.pages.size = 0);
    BAD_RANGE(WEFT_ERR_LIMIT, p.options.flags = WEFT_NOTIFY; p.options.notify_data = data; p.options.notify_data_len = 257);
    BAD_RANGE(WEFT_ERR_LIMIT, p.options.flags = WEFT_NOTIFY; p.options.notify_data = data;
              p.options.notify_data_len = UINT32_MAX);
    BAD_RANGE(WEFT_ERR_INVALID, p.options.flags = WEFT_NOTIFY; p.options.notify_data_len = 1);
    BAD_RANGE(WEFT_ERR_INVALID, p.options.notify = UINT64_MAX);
    BAD_RANGE(WEFT_ERR_LIMIT, p.options.timeout_ns = UINT64_MAX);
    BAD_RANGE(WEFT_ERR_UNSUPPORTED, p.options.flags = 8);
    BAD_RANGE(WEFT_ERR_UNSUPPORTED, p.options.reserved = 1);
    BAD_RANGE(WEFT_ERR_INVALID, p.options.size = 0);
    BAD_SEND(WEFT_ERR_LIMIT, p.data = duo.a_bytes; p.len = WEFT_MESSAGE_MAX + 1);
    BAD_SEND(WEFT_ERR_LIMIT, p.data = duo.a_bytes; p.len = UINT64_MAX);
    BAD_SEND(WEFT_ERR_LIMIT, p.options.timeout_ns = HOURS_25);
    BAD_SEND(WEFT_ERR_UNSUPPORTED, p.options.flags = 1);
    BAD_SEND(WEFT_ERR_INVALID, p.options.size = 3);
    weft_queue *queue;
    REFUSED_EITHER(WEFT_ERR_INVALID, WEFT_ERR_LIMIT, weft_queue_create(a, 15, &queue));
    REFUSED_EITHER(WEFT_ERR_INVALID, WEFT_ERR_LIMIT, weft_queue_create(a, 1048577, &queue));
    still_works(&duo);
    duo_close(&duo);
}

/* Argument structs follow the rule of sizes, too. */
static void argument_struct_sizes_are_checked(void)
{
    struct duo duo = duo_open(65536);
    weft_endpoint *a = duo.a->endpoint;
    union {
        weft_op_options options;
        weft_pages pages;
        weft_memory_args memory;
        uint8_t bytes[sizeof(weft_pages) + 64];
    } u;
    const size_t sizes[] = {sizeof u.options, sizeof u.pages, sizeof u.options, sizeof u.options, sizeof u.memory};
    char address[4096];
    size_t address_len = address_of(duo.b->endpoint, address, sizeof address);
    for (size_t which = 0; which < 5; which++) {
        for (int kind = 0; kind < 3; kind++) { /* 0: zero tail, 1: non-zero tail, 2: short */
            weft_status status;
            memset(&u, 0, sizeof u);
            switch (which) {
            case 1:
                u.pages = good_pages(&duo).pages;
                break;
            default:
                break;
            }
            uint32_t size = (uint32_t)sizes[which] + 32;
            if (kind == 1)
                u.bytes[size - 1] = 1;
            if (kind == 2) {
                const size_t cut[] = {offsetof(weft_op_options, notify), offsetof(weft_pages, remote),
                                      offsetof(weft_op_options, queue), offsetof(weft_op_options, timeout_ns),
                                      offsetof(weft_memory_args, access)};
                size = (uint32_t)cut[which];
                memset(u.bytes + size, 0xff, sizeof u.bytes - size);
            }
            memcpy(u.bytes, &size, sizeof size);
            weft_op id = 0;
            weft_peer peer = 0;
            weft_memory *memory = NULL;
            weft_memory_range range = {duo.a_bytes, 64};
            mark_last_error();
            switch (which) {
            case 0:
                status = weft_write(a, duo.a_memory, 0, duo.b_of_a, 0, 64, &u.options, &id);
                break;
            case 1:
                status = weft_write_pages(a, duo.a_memory, duo.b_of_a, &u.pages, NULL, &id);
                break;
            case 2:
                status = weft_send(a, duo.a_to_b, NULL, 0, &u.options, &id);
                break;
            case 3:
                status = weft_peer_connect(a, address, address_len, &u.options, &peer);
                break;
            default:
                status = weft_memory_register(a, &range, 1, &u.memory, &memory);
            }
            if (status != (kind == 1 ? WEFT_ERR_UNSUPPORTED : kind == 2 ? WEFT_ERR_INVALID : WEFT_OK))
                FAIL("struct %zu, case %d gave %s", which, kind, weft_status_name(status));
            if (kind != 0) {
                check_own_message(__FILE__, __LINE__, "a newer struct, or one cut short");
                continue;
            }
            if (id)
                CHECK_OK(box_await(duo.a, id, patience_ms()).status);
            if (which == 2) {
                weft_completion got = box_take(duo.b, WEFT_COMPLETION_MESSAGE, patience_ms());
                CHECK_EQ(got.bytes, 0);
                CHECK_OK(weft_message_release(duo.b->endpoint, got.op));
            }
            if (which == 3) {
                CHECK(peer == duo.a_to_b);
                CHECK_OK(box_take(duo.a, WEFT_COMPLETION_PEER_UP, patience_ms()).status);
                while (box_try(duo.b, WEFT_COMPLETION_PEER_UP, &(weft_completion){0})) {
                }
            }
            if (memory)
                CHECK_OK(weft_memory_deregister(memory));
        }
    }
    duo_close(&duo);
}

/* ---- Damaged blobs ---- */

#define TRIED_MAX 4096

/* Connects with an invalid address: a status, or one PEER_UP. */
static weft_status try_address(struct box *box, const void *blob, size_t len, size_t *accepted)
{
    weft_op_options args = WEFT_OP_OPTIONS_INIT;
    weft_peer peer = 0;
    args.timeout_ns = 200 * MS;
    args.user_data = (void *)(uintptr_t)(*accepted + 1);
    mark_last_error();
    weft_status status = weft_peer_connect(box->endpoint, blob, len, &args, &peer);
    if (status == WEFT_OK)
        ++*accepted;
    else
        check_own_message(__FILE__, __LINE__, "weft_peer_connect");
    return status;
}

static void damaged_addresses_are_refused(void)
{
    struct duo duo = duo_open(65536);
    struct box *c = box_of(open_endpoint()); /* not connected yet */
    uint8_t good[4096], bad[4097];
    size_t len = address_of(duo.b->endpoint, good, sizeof good), accepted = 0;
    CHECK(len > 16 && len <= 2048);
    for (size_t n = 0; n < len; n++) {
        /* A copy that ends with its allocation, for memory checkers. */
        uint8_t *cut = malloc(n ? n : 1);
        CHECK(cut != NULL);
        memcpy(cut, good, n);
        CHECK_STATUS(try_address(c, cut, n, &accepted), WEFT_ERR_FORMAT);
        free(cut);
    }
    memcpy(bad, good, len);
    bad[len] = 0;
    CHECK_STATUS(try_address(c, bad, len + 1, &accepted), WEFT_ERR_FORMAT);
    for (size_t i = 0; i < len; i++)
        for (int bit = 0; bit < 9; bit++) {
            memcpy(bad, good, len);
            bad[i] ^= bit < 8 ? (uint8_t)(1 << bit) : 0xff;
            CHECK_ONE_OF(try_address(c, bad, len, &accepted), WEFT_OK, WEFT_ERR_FORMAT,
                         WEFT_ERR_VERSION, WEFT_ERR_NO_COMMON_FABRIC, WEFT_ERR_INVALID,
                         WEFT_ERR_LIMIT, WEFT_ERR_PEER_GONE, WEFT_ERR_AGAIN);
        }
    for (uint64_t seed = 1; seed < 500; seed++) {
        fill_random(bad, sizeof bad, seed);
        if (seed % 2) /* a good beginning */
            memcpy(bad, good, seed % len);
        if (memcmp(bad, good, len) == 0)
            continue; /* the remaining byte arrived correctly */
        CHECK(try_address(c, bad, seed % 3 ? len : mix(seed) % sizeof bad, &accepted) != WEFT_OK);
    }
    printf("%zu damaged addresses were tried over the fabric\n", accepted);
    for (size_t i = 0; i < accepted; i++)
        (void)box_take(c, WEFT_COMPLETION_PEER_UP, patience_ms());
    weft_completion down;
    while (box_try(c, WEFT_COMPLETION_PEER_DOWN, &down)) {
    }
    box_quiet(c, 300);
    /* The undamaged one still works. */
    weft_peer peer;
    CHECK_OK(weft_peer_connect(c->endpoint, good, len, NULL, &peer));
    CHECK_OK(box_take(c, WEFT_COMPLETION_PEER_UP, patience_ms()).status);
    box_close(c);
    duo_close(&duo);
}

static weft_status try_descriptor(const struct duo *duo, const void *blob, size_t len,
                                  weft_remote_memory **remote)
{
    *remote = NULL;
    mark_last_error();
    weft_status status =
        weft_remote_memory_import(duo->a->endpoint, duo->a_to_b, blob, len, remote);
    if (status != WEFT_OK)
        check_own_message(__FILE__, __LINE__, "weft_remote_memory_import");
    return status;
}

static void damaged_descriptors_are_refused(void)
{
    struct duo duo = duo_open(65536);
    uint8_t good[4096], bad[4097];
    size_t len = descriptor_of(duo.b_memory, good, sizeof good), accepted = 0;
    weft_remote_memory *remote;
    for (size_t n = 0; n < len; n++) {
        uint8_t *cut = malloc(n ? n : 1);
        CHECK(cut != NULL);
        memcpy(cut, good, n);
        CHECK_STATUS(try_descriptor(&duo, cut, n, &remote), WEFT_ERR_FORMAT);
        free(cut);
    }
    memcpy(bad, good, len);
    bad[len] = 0;
    CHECK_STATUS(try_descriptor(&duo, bad, len + 1, &remote), WEFT_ERR_FORMAT);
    memset(duo.b_bytes, 0x77, duo.len);
    for (size_t i = 0; i < len; i++)
        for (int bit = 0; bit < 9; bit++) {
            memcpy(bad, good, len);
            bad[i] ^= bit < 8 ? (uint8_t)(1 << bit) : 0xff;
            if (CHECK_ONE_OF(try_descriptor(&duo, bad, len, &remote), WEFT_OK, WEFT_ERR_FORMAT,
                             WEFT_ERR_VERSION, WEFT_ERR_PEER_GONE, WEFT_ERR_MEMORY_GONE,
                             WEFT_ERR_INVALID, WEFT_ERR_LIMIT) != WEFT_OK)
                continue;
            accepted++;
            if (accepted <= 8) {
                /* If it is accepted, a write must be answered, too. */
                struct range_request args = range_args(duo.a_memory, remote, 8);
                weft_op id;
                args.options.timeout_ns = SECOND;
                if (submit_write(duo.a->endpoint, &args, &id) == WEFT_OK)
                    CHECK(box_await(duo.a, id, patience_ms()).status != WEFT_OK);
            }
            CHECK_OK(weft_remote_memory_release(remote));
        }
    for (uint64_t seed = 1; seed < 500; seed++) {
        fill_random(bad, sizeof bad, seed);
        if (seed % 2)
            memcpy(bad, good, seed % len);
        if (memcmp(bad, good, len) == 0)
            bad[len - 1] ^= 1; /* a last byte that was right by chance */
        CHECK(try_descriptor(&duo, bad, seed % 3 ? len : mix(seed) % sizeof bad, &remote) !=
              WEFT_OK);
    }
    printf("%zu damaged descriptors were accepted\n", accepted);
    for (size_t i = 0; i < duo.len; i++)
        CHECK(duo.b_bytes[i] == 0x77);
    duo_close(&duo);
}

/* An address is not a descriptor, and a descriptor is not an address. */
static void address_and_descriptor_are_not_interchangeable(void)
{
    struct duo duo = duo_open(4096);
    uint8_t blob[4096];
    weft_remote_memory *remote;
    weft_peer peer;
    size_t len = address_of(duo.b->endpoint, blob, sizeof blob);
    CHECK_STATUS(try_descriptor(&duo, blob, len, &remote), WEFT_ERR_FORMAT);
    len = descriptor_of(duo.b_memory, blob, sizeof blob);
    REFUSED(WEFT_ERR_FORMAT, weft_peer_connect(duo.a->endpoint, blob, len, NULL, &peer));
    /* The descriptor of our own memory does not belong to that peer. */
    len = descriptor_of(duo.a_memory, blob, sizeof blob);
    CHECK_STATUS(try_descriptor(&duo, blob, len, &remote), WEFT_ERR_PEER_GONE);
    duo_close(&duo);
}

/* ---- Very long lists ---- */

static void transfer_of_ten_million_pages_completes(void)
{
    struct duo duo = duo_open(8192); /* 1024 pages of 8 bytes */
    const uint64_t count = 10000000;
    uint32_t *pages = map_bytes(count * sizeof *pages);
    struct pages_request args = good_pages(&duo);
    weft_op id;
    for (uint64_t i = 0; i < count; i++)
        pages[i] = (uint32_t)(i * 7 % 1024); /* never adjacent */
    fill_random(duo.a_bytes, duo.len, 3);
    args.pages.page_len = 8;
    args.pages.page_count = count;
    args.pages.local.pages = pages;
    args.pages.remote.pages = pages;
    args.options.timeout_ns = 30 * SECOND;
    uint64_t began = now_ns();
    CHECK_OK(submit_write_pages(duo.a->endpoint, &args, &id));
    munmap(pages, count * sizeof *pages); /* copied by the call */
    weft_completion c = box_await(duo.a, id, 2 * patience_ms());
    printf("%s after %" PRIu64 " ms\n", weft_status_name(c.status), (now_ns() - began) / MS);
    CHECK_ONE_OF(c.status, WEFT_OK, WEFT_ERR_TIMED_OUT);
    if (c.status == WEFT_OK) {
        CHECK_EQ(c.bytes, count * 8);
        CHECK(memcmp(duo.a_bytes, duo.b_bytes, duo.len) == 0);
    } else {
        CHECK_EQ(c.bytes, 0);
    }
    duo_close(&duo);
}

static void topology_buffer_sizes_are_checked(void)
{
    char text[1] = {'x'};
    size_t len = 0;
    REFUSED(WEFT_ERR_INVALID, weft_topology(NULL, 0, NULL));
    REFUSED(WEFT_ERR_INVALID, weft_topology(NULL, 1, &len));
    REFUSED(WEFT_ERR_TOO_SMALL, weft_topology(text, sizeof text, &len));
    CHECK(len > sizeof text && text[0] == 'x');
}

static const struct test tests[] = {
    {"statuses_have_names", "once", statuses_have_names},
    {"unknown_statuses_have_a_name_and_category", "once", unknown_statuses_have_a_name_and_category},
    {"counts_have_category_ok", "once", counts_have_category_ok},
    {"loaded_version_equals_the_header", "once", loaded_version_equals_the_header},
    {"last_error_is_per_thread", "once", last_error_is_per_thread},
    {"topology_buffer_sizes_are_checked", "once", topology_buffer_sizes_are_checked},
    {"open_refuses_null", "once", open_refuses_null},
    {"config_struct_sizes_are_checked", "once", config_struct_sizes_are_checked},
    {"structs_are_not_read_beyond_their_size", "once", structs_are_not_read_beyond_their_size},
    {"config_values_beyond_limits_are_refused", "once", config_values_beyond_limits_are_refused},
    {"extreme_valid_configs_open", "once", extreme_valid_configs_open},
    {"unknown_flags_are_refused", "once", unknown_flags_are_refused},
    {"libfabric_shm_is_refused", "once", libfabric_shm_is_refused},
    {"unknown_fabric_is_named", "once", unknown_fabric_is_named},
    {"shipped_library_has_no_simulated_nics", "once", shipped_library_has_no_simulated_nics},
    {"named_fabric_is_never_replaced", "once", named_fabric_is_never_replaced},
    {"unmatched_rail_patterns_are_refused", "once", unmatched_rail_patterns_are_refused},
    {"too_few_rails_fail_the_open", "tcp,host", too_few_rails_fail_the_open},
    {"null_handles_are_refused", "once", null_handles_are_refused},
    {"invented_handles_are_refused", "once", invented_handles_are_refused},
    {"handles_of_another_kind_are_refused", "once", handles_of_another_kind_are_refused},
    {"stale_handles_are_refused", "once", stale_handles_are_refused},
    {"handles_of_a_destroyed_endpoint_are_refused", "once", handles_of_a_destroyed_endpoint_are_refused},
    {"handles_of_another_endpoint_are_refused", "once", handles_of_another_endpoint_are_refused},
    {"stale_and_invented_ids_are_refused", "once", stale_and_invented_ids_are_refused},
    {"null_arguments_are_refused", "once", null_arguments_are_refused},
    {"too_small_buffers_are_refused", "once", too_small_buffers_are_refused},
    {"properties_structs_are_filled_to_their_size", "once", properties_structs_are_filled_to_their_size},
    {"rail_and_peer_properties_are_filled_in", "any", rail_and_peer_properties_are_filled_in},
    {"invalid_registrations_are_refused", "any", invalid_registrations_are_refused},
    {"maximum_number_of_ranges_registers", "any", maximum_number_of_ranges_registers},
    {"local_memory_has_no_descriptor", "once", local_memory_has_no_descriptor},
    {"registered_access_is_enforced", "tcp,host", registered_access_is_enforced},
    {"protected_pages_are_refused", "any", protected_pages_are_refused},
    {"ranges_outside_the_memory_are_refused", "once", ranges_outside_the_memory_are_refused},
    {"pages_outside_the_memory_are_refused", "once", pages_outside_the_memory_are_refused},
    {"invalid_transfer_arguments_are_refused", "once", invalid_transfer_arguments_are_refused},
    {"layers_with_one_destination_are_refused", "once", layers_with_one_destination_are_refused},
    {"argument_struct_sizes_are_checked", "once", argument_struct_sizes_are_checked},
    {"damaged_addresses_are_refused", "any", damaged_addresses_are_refused},
    {"damaged_descriptors_are_refused", "once", damaged_descriptors_are_refused},
    {"address_and_descriptor_are_not_interchangeable", "once", address_and_descriptor_are_not_interchangeable},
    {"transfer_of_ten_million_pages_completes", "tcp,host", transfer_of_ten_million_pages_completes},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
