/* A machine without libfabric: the messages, and what works without it. Skipped where libfabric exists. */
#include "harness.h"

#include <dlfcn.h>

static void needs_its_absence(void)
{
    if (dlopen("libfabric.so.1", RTLD_LAZY) || access("/opt/amazon/efa", F_OK) == 0)
        skip("there is a libfabric here");
}

/* A named fabric is not replaced, and the message says what to install. */
static void libfabric_fabrics_fail_without_libfabric(void)
{
    const char *fabrics[] = {"tcp;ofi_rxm", "efa", "verbs"};
    needs_its_absence();
    for (size_t i = 0; i < COUNT(fabrics); i++) {
        weft_endpoint *endpoint = NULL;
        weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
        config.fabric = fabrics[i];
        REFUSED(WEFT_ERR_NO_LIBFABRIC, weft_endpoint_create(&config, &endpoint));
        CHECK(endpoint == NULL);
        if (!strstr(weft_last_error(), "libfabric.so.1 was not found: install libfabric1"))
            FAIL("fabric %s: the message does not say what to install", fabrics[i]);
    }
}

/* `name`: NULL, or the only fabric; the first rail is of fabric `first`. */
static void is_reached(const char *name, const char *first)
{
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    config.fabric = name;
    config.rails = name ? "lo" : NULL;
    struct duo duo = duo_open_with(MIB, &config);
    weft_rail_properties rail = WEFT_RAIL_PROPERTIES_INIT;
    CHECK_OK(weft_rail_info(duo.a->endpoint, 0, &rail, NULL));
    CHECK(strcmp(rail.fabric, first) == 0);
    fill_random(duo.a_bytes, MIB, 5);
    struct range_request args = range_args(duo.a_memory, duo.b_of_a, MIB);
    CHECK_OK(box_await(duo.a, write_now(duo.a, &args), patience_ms()).status);
    CHECK_EQ(differs_random(duo.b_bytes, MIB, 5), -1);
    duo_close(&duo);
}

/* A libfabric that cannot be loaded counts as none. */
static void own_fabrics_work_without_libfabric(void)
{
    CHECK(setenv("WEFT_LIBFABRIC", "/nonexistent/libfabric.so.1", 1) == 0);
    is_reached(NULL, "host");
    is_reached("tcp", "tcp");
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT; /* nothing is asked for */
    weft_endpoint *endpoint = open_with(&config);
    weft_endpoint_properties own = WEFT_ENDPOINT_PROPERTIES_INIT;
    weft_rail_properties last = WEFT_RAIL_PROPERTIES_INIT;
    CHECK_OK(weft_endpoint_info(endpoint, &own, NULL));
    CHECK(own.rails > 1 && own.libfabric[0] == 0);
    CHECK_OK(weft_rail_info(endpoint, own.rails - 1, &last, NULL));
    CHECK(strcmp(last.fabric, "tcp") == 0);
    CHECK_OK(weft_endpoint_destroy(endpoint));
}

/* The topology is reported all the same. */
static void topology_is_read_without_libfabric(void)
{
    static char text[1 << 20];
    size_t len = 0;
    needs_its_absence();
    CHECK_OK(weft_topology(text, sizeof text - 1, &len));
    text[len] = 0;
    CHECK(strstr(text, "\"sysfs\"") != NULL); /* the source of its rails */
}

static const struct test tests[] = {
    {"libfabric_fabrics_fail_without_libfabric", "once", libfabric_fabrics_fail_without_libfabric},
    {"own_fabrics_work_without_libfabric", "once", own_fabrics_work_without_libfabric},
    {"topology_is_read_without_libfabric", "once", topology_is_read_without_libfabric},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
