/*
 * The environment: what an operator sets there of the configuration, and what libfabric reads there, which does not
 * change (over verbs, Weft needs none and none harm it); and the memory of endpoints.
 */
#include "harness.h"

/* ---- Fields of the configuration that the program leaves at 0 or NULL ---- */

static void operators_set_what_the_program_leaves_unset(void)
{
    setenv("WEFT_FABRIC", "tcp", 1);
    setenv("WEFT_RAILS", "lo", 1);
    setenv("WEFT_RAIL_COUNT", "3", 1);
    weft_endpoint *endpoint;
    CHECK_OK(weft_endpoint_create(NULL, &endpoint));
    weft_endpoint_properties opened = WEFT_ENDPOINT_PROPERTIES_INIT;
    CHECK_OK(weft_endpoint_info(endpoint, &opened, NULL));
    CHECK_EQ(opened.rails, 3);
    weft_rail_properties rail = WEFT_RAIL_PROPERTIES_INIT;
    CHECK_OK(weft_rail_info(endpoint, 2, &rail, NULL));
    CHECK(strcmp(rail.fabric, "tcp") == 0);
    CHECK_OK(weft_endpoint_destroy(endpoint));

    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    config.rail_count = 2;
    CHECK_OK(weft_endpoint_create(&config, &endpoint));
    CHECK_OK(weft_endpoint_info(endpoint, &opened, NULL));
    CHECK_EQ(opened.rails, 2);
    CHECK_OK(weft_endpoint_destroy(endpoint));
}

static void refused_variables_are_named(void)
{
    static const struct {
        const char *name, *value;
        weft_status status;
    } refused[] = {
        {"WEFT_RAIL_COUNT", "100", WEFT_ERR_LIMIT},
        {"WEFT_RAIL_COUNT", "many", WEFT_ERR_INVALID},
        {"WEFT_TIMEOUT", "30", WEFT_ERR_INVALID},
        {"WEFT_LIVENESS", "10ms", WEFT_ERR_LIMIT},
        {"WEFT_TCP_PORTS", "0", WEFT_ERR_INVALID},
        {"WEFT_ENCRYPT", "1", WEFT_ERR_INVALID}, /* without a secret */
        {"WEFT_TRACE", "/nonexistent/trace", WEFT_ERR_INVALID},
        {"WEFT_SECRET_FILE", "/nonexistent/secret", WEFT_ERR_INVALID},
    };
    for (size_t i = 0; i < COUNT(refused); i++) {
        setenv(refused[i].name, refused[i].value, 1);
        weft_endpoint *endpoint;
        CHECK_STATUS(weft_endpoint_create(NULL, &endpoint), refused[i].status);
        if (strstr(weft_last_error(), refused[i].name) == NULL || strstr(weft_last_error(), refused[i].value) == NULL)
            FAIL("%s=%s: %s", refused[i].name, refused[i].value, weft_last_error());
        unsetenv(refused[i].name);
    }
}

/* ---- What libfabric reads ---- */

/* libfabric's layer of connections, which these settings belong to, is not used. */
static void ofi_rxm_settings_have_no_effect(void)
{
    setenv("FI_OFI_RXM_USE_SRX", "0", 1);
    setenv("FI_UNIVERSE_SIZE", "1000000", 1);
    unsetenv("FI_AV_REMOVE_CLEANUP");
    weft_endpoint *endpoint = open_endpoint();
    weft_rail_properties rail = WEFT_RAIL_PROPERTIES_INIT;
    CHECK_OK(weft_rail_info(endpoint, 0, &rail, NULL));
    CHECK(strcmp(rail.fabric, "verbs") == 0);
    CHECK_OK(weft_endpoint_destroy(endpoint));
    CHECK(getenv("FI_AV_REMOVE_CLEANUP") == NULL && strcmp(getenv("FI_OFI_RXM_USE_SRX"), "0") == 0);
}

static void ofi_rxm_over_verbs_is_refused(void)
{
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    config.fabric = "verbs;ofi_rxm";
    weft_endpoint *endpoint = NULL;
    CHECK_STATUS(weft_endpoint_create(&config, &endpoint), WEFT_ERR_NO_RAILS);
    if (strstr(weft_last_error(), "name the fabric \"verbs\"") == NULL)
        FAIL("%s", weft_last_error());
}

/* ---- Memory ---- */

static void endpoint_memory_is_limited(void)
{
    struct duo first = duo_open(64 * KIB); /* allocates what a process needs only once */
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

static const struct test tests[] = {
    {"operators_set_what_the_program_leaves_unset", "once", operators_set_what_the_program_leaves_unset},
    {"refused_variables_are_named", "once", refused_variables_are_named},
    {"ofi_rxm_settings_have_no_effect", "verbs", ofi_rxm_settings_have_no_effect},
    {"ofi_rxm_over_verbs_is_refused", "verbs", ofi_rxm_over_verbs_is_refused},
    {"endpoint_memory_is_limited", "tcp,host", endpoint_memory_is_limited},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
