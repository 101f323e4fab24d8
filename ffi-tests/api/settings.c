/*
 * The settings that libfabric reads from the environment, which does not change: over verbs, Weft needs none and none
 * harm it; and the memory of endpoints.
 */
#include "harness.h"

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
    {"ofi_rxm_settings_have_no_effect", "verbs", ofi_rxm_settings_have_no_effect},
    {"ofi_rxm_over_verbs_is_refused", "verbs", ofi_rxm_over_verbs_is_refused},
    {"endpoint_memory_is_limited", "tcp,host", endpoint_memory_is_limited},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
