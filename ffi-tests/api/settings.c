/*
 * What libfabric reads as its settings: connections can be closed one by one, unless something keeps libfabric
 * from it, which is said then; its buffers are short, but meet any others; over verbs, a setting that is unsafe or does
 * not fit the NIC is refused.
 */
#include <dlfcn.h>

#include "harness.h"

static struct {
    pthread_mutex_t lock;
    char text[16 * KIB];
} warnings = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void keep(weft_log_level level, const char *component, const char *message, void *user_data)
{
    (void)level, (void)component, (void)user_data;
    pthread_mutex_lock(&warnings.lock);
    strncat(warnings.text, message, sizeof warnings.text - strlen(warnings.text) - 1);
    pthread_mutex_unlock(&warnings.lock);
}

/* Whether an endpoint that opens says that its connections cannot be closed. */
static bool keeps_connections(void)
{
    CHECK_OK(weft_log_set(WEFT_LOG_WARN, keep, NULL));
    weft_endpoint *endpoint = open_endpoint();
    weft_rail_properties rail = WEFT_RAIL_PROPERTIES_INIT;
    CHECK_OK(weft_rail_info(endpoint, 0, &rail));
    if (strcmp(rail.fabric, "tcp") == 0)
        skip("this libfabric has no ofi_rxm");
    CHECK(strstr(rail.fabric, ";ofi_rxm") != NULL);
    CHECK_OK(weft_endpoint_close(endpoint));
    CHECK_OK(weft_log_set(WEFT_LOG_DEFAULT, NULL, NULL));
    bool keeps = strstr(warnings.text, "a rail that fails takes its peers down") != NULL;
    warnings.text[0] = 0;
    return keeps;
}

static void connections_are_closed(void)
{
    unsetenv("FI_AV_REMOVE_CLEANUP");
    CHECK(!keeps_connections() && !keeps_connections());
    CHECK(getenv("FI_AV_REMOVE_CLEANUP") == NULL);
}

static void a_setting_of_the_user_stays(void)
{
    setenv("FI_AV_REMOVE_CLEANUP", "0", 1);
    CHECK(keeps_connections() && strcmp(getenv("FI_AV_REMOVE_CLEANUP"), "0") == 0);
}

/* It has read its settings then. */
static void use_libfabric(void)
{
    const char *named = getenv("WEFT_LIBFABRIC");
    void *library = dlopen(named && *named ? named : "libfabric.so.1", RTLD_NOW | RTLD_LOCAL);
    CHECK(library != NULL);
    int (*getinfo)(uint32_t, const char *, const char *, uint64_t, const void *, void **);
    *(void **)&getinfo = dlvsym(library, "fi_getinfo", "FABRIC_1.3");
    CHECK(getinfo != NULL);
    void *infos = NULL;
    CHECK_EQ(getinfo(1 << 16 | 17, NULL, NULL, 0, NULL, &infos), 0);
}

static void libfabric_was_in_use_before(void)
{
    unsetenv("FI_AV_REMOVE_CLEANUP");
    use_libfabric();
    CHECK(keeps_connections());
}

/* ---- Buffers ---- */

#define MESSAGES 64

/* Bytes of each: of one frame that fits into a buffer, of one that does not, and of many. */
static const uint64_t lengths[] = {100, 5 * KIB, 100 * KIB};

static void endpoints_are_small(void)
{
    struct duo first = duo_open(64 * KIB); /* what the process needs once */
    long before_kb = resident_kb();
    struct duo second = duo_open(64 * KIB);
    send_now(second.a, second.a_to_b, "", 1);
    box_take(second.b, WEFT_COMPLETION_MESSAGE, patience_ms());
    long each_kb = (resident_kb() - before_kb) / 2;
    /* On tcp most of it is ofi_rxm's buffers: those stay as libfabric has them, for who else uses it. */
    if (each_kb > (on_fabric("tcp") ? 48 : 12) * 1024)
        FAIL("an endpoint takes %ld KiB", each_kb);
    CHECK(getenv("FI_OFI_RXM_BUFFER_SIZE") == NULL && getenv("FI_OFI_RXM_EAGER_LIMIT") == NULL);
    duo_close(&second);
    duo_close(&first);
}

static void send_all(struct box *box, weft_peer peer)
{
    static uint8_t bytes[100 * KIB];
    for (size_t i = 0; i < MESSAGES; i++) {
        uint64_t len = lengths[i % COUNT(lengths)];
        fill_random(bytes, len, i);
        send_now(box, peer, bytes, len);
    }
}

static void take_all(struct box *box)
{
    for (size_t i = 0; i < MESSAGES; i++) {
        weft_completion c = box_take(box, WEFT_COMPLETION_MESSAGE, patience_ms());
        CHECK_EQ(c.bytes, lengths[i % COUNT(lengths)]);
        CHECK_EQ(differs_random(c.data, c.bytes, i), -1);
        CHECK_OK(weft_message_release(box->endpoint, c.transfer));
    }
}

static void talk(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    weft_peer peer = join(team, !team->rank, box);
    send_all(box, peer);
    take_all(box);
    meet(team, !team->rank, box);
    box_close(box);
}

static void talk_with_long_buffers(struct team *team)
{
    use_libfabric();
    talk(team);
}

static void buffers_of_two_may_differ(void)
{
    run_pair(talk, talk_with_long_buffers);
    run_pair(talk_with_long_buffers, talk);
    run_pair(talk, talk);
}

/* ---- Over verbs ---- */

static void cannot_open_verbs(const char *why)
{
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    config.fabric = "verbs";
    weft_endpoint *endpoint = NULL;
    CHECK_STATUS(weft_endpoint_open(&config, &endpoint), WEFT_ERR_NO_RAILS);
    if (strstr(weft_last_error(), why) == NULL)
        FAIL("%s", weft_last_error());
}

static void receives_must_be_shared(void)
{
    setenv("FI_OFI_RXM_USE_SRX", "0", 1);
    cannot_open_verbs("unset FI_OFI_RXM_USE_SRX");
    CHECK(strcmp(getenv("FI_OFI_RXM_USE_SRX"), "0") == 0);
    unsetenv("FI_OFI_RXM_USE_SRX");
    CHECK_OK(weft_endpoint_close(open_endpoint()));
    CHECK(getenv("FI_OFI_RXM_USE_SRX") == NULL);
}

/* More entries than any NIC's queue has. */
static void a_completion_queue_may_be_too_large(void)
{
    setenv("FI_UNIVERSE_SIZE", "1000000", 1);
    cannot_open_verbs("FI_UNIVERSE_SIZE=200");
}

static const struct test tests[] = {
    {"connections_are_closed", "tcp,verbs", connections_are_closed},
    {"a_setting_of_the_user_stays", "tcp,verbs", a_setting_of_the_user_stays},
    {"libfabric_was_in_use_before", "tcp,verbs", libfabric_was_in_use_before},
    {"receives_must_be_shared", "verbs", receives_must_be_shared},
    {"a_completion_queue_may_be_too_large", "verbs", a_completion_queue_may_be_too_large},
    {"endpoints_are_small", "tcp", endpoints_are_small},
    {"buffers_of_two_may_differ", "tcp", buffers_of_two_may_differ},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
