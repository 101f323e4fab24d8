/* Connections of tcp can be closed one by one, unless something keeps libfabric from it: then that is said. */
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
    CHECK(strcmp(rail.fabric, "tcp;ofi_rxm") == 0);
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
static void libfabric_was_in_use_before(void)
{
    unsetenv("FI_AV_REMOVE_CLEANUP");
    const char *named = getenv("WEFT_LIBFABRIC");
    void *library = dlopen(named && *named ? named : "libfabric.so.1", RTLD_NOW | RTLD_LOCAL);
    CHECK(library != NULL);
    int (*getinfo)(uint32_t, const char *, const char *, uint64_t, const void *, void **);
    *(void **)&getinfo = dlvsym(library, "fi_getinfo", "FABRIC_1.3");
    CHECK(getinfo != NULL);
    void *infos = NULL;
    CHECK_EQ(getinfo(1 << 16 | 17, NULL, NULL, 0, NULL, &infos), 0);
    CHECK(keeps_connections());
}

static const struct test tests[] = {
    {"connections_are_closed", "tcp", connections_are_closed},
    {"a_setting_of_the_user_stays", "tcp", a_setting_of_the_user_stays},
    {"libfabric_was_in_use_before", "tcp", libfabric_was_in_use_before},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
