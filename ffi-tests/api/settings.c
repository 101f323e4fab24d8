/*
 * What libfabric reads as its settings: connections can be closed one by one, unless something keeps libfabric
 * from it, which is said then; over verbs, a setting that is unsafe or does not fit the NIC is refused.
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
    CHECK_OK(weft_rail_info(endpoint, 0, &rail, NULL));
    CHECK(strstr(rail.fabric, ";ofi_rxm") != NULL);
    CHECK_OK(weft_endpoint_destroy(endpoint));
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

static void settings_of_the_user_stay(void)
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

static void libfabric_may_be_in_use_before(void)
{
    unsetenv("FI_AV_REMOVE_CLEANUP");
    use_libfabric();
    CHECK(keeps_connections());
}

/* ---- Memory ---- */

static void endpoints_are_small(void)
{
    struct duo first = duo_open(64 * KIB); /* what the process needs once */
    long before_kb = resident_kb();
    struct duo second = duo_open(64 * KIB);
    send_now(second.a, second.a_to_b, "", 1);
    box_take(second.b, WEFT_COMPLETION_MESSAGE, patience_ms());
    long each_kb = (resident_kb() - before_kb) / 2;
    if (each_kb > 12 * 1024)
        FAIL("an endpoint takes %ld KiB", each_kb);
    duo_close(&second);
    duo_close(&first);
}

/* ---- Over verbs ---- */

static void cannot_open_verbs(const char *why)
{
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    config.fabric = "verbs";
    weft_endpoint *endpoint = NULL;
    CHECK_STATUS(weft_endpoint_create(&config, &endpoint), WEFT_ERR_NO_RAILS);
    if (strstr(weft_last_error(), why) == NULL)
        FAIL("%s", weft_last_error());
}

static void receives_must_be_shared(void)
{
    setenv("FI_OFI_RXM_USE_SRX", "0", 1);
    cannot_open_verbs("unset FI_OFI_RXM_USE_SRX");
    CHECK(strcmp(getenv("FI_OFI_RXM_USE_SRX"), "0") == 0);
    unsetenv("FI_OFI_RXM_USE_SRX");
    CHECK_OK(weft_endpoint_destroy(open_endpoint()));
    CHECK(getenv("FI_OFI_RXM_USE_SRX") == NULL);
}

/* More entries than any NIC's queue has. */
static void a_completion_queue_may_be_too_large(void)
{
    setenv("FI_UNIVERSE_SIZE", "1000000", 1);
    cannot_open_verbs("FI_UNIVERSE_SIZE=200");
}

static const struct test tests[] = {
    {"connections_are_closed", "verbs", connections_are_closed},
    {"settings_of_the_user_stay", "verbs", settings_of_the_user_stay},
    {"libfabric_may_be_in_use_before", "verbs", libfabric_may_be_in_use_before},
    {"receives_must_be_shared", "verbs", receives_must_be_shared},
    {"a_completion_queue_may_be_too_large", "verbs", a_completion_queue_may_be_too_large},
    {"endpoints_are_small", "tcp,host", endpoints_are_small},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
