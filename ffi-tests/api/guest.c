/*
 * A good guest in a process that also uses libfabric, or contains a second copy of Weft: endpoints over Weft's own
 * fabrics never touch libfabric or the environment, and opening another fabric changes only what that fabric needs.
 */
#include <dirent.h>
#include <dlfcn.h>

#include "harness.h"

extern char **environ;

/* ---- Every change of the environment calls these functions ---- */

static char changed[512]; /* names that were set, once each */
static int changes;

static void note(const char *name)
{
    __atomic_add_fetch(&changes, 1, __ATOMIC_SEQ_CST);
    if (!strstr(changed, name) && strlen(changed) + strlen(name) + 2 < sizeof changed)
        strcat(strcat(changed, " "), name);
}

int setenv(const char *name, const char *value, int overwrite)
{
    int (*real)(const char *, const char *, int);
    *(void **)&real = dlsym(RTLD_NEXT, "setenv");
    note(name);
    return real(name, value, overwrite);
}

int unsetenv(const char *name)
{
    int (*real)(const char *);
    *(void **)&real = dlsym(RTLD_NEXT, "unsetenv");
    note(name);
    return real(name);
}

int putenv(char *text)
{
    int (*real)(char *);
    *(void **)&real = dlsym(RTLD_NEXT, "putenv");
    note(text);
    return real(text);
}

static bool libfabric_is_loaded(void)
{
    return dlopen("libfabric.so.1", RTLD_LAZY | RTLD_NOLOAD) != NULL;
}

static bool has_rdma(void)
{
    DIR *class = opendir("/sys/class/infiniband");
    struct dirent *entry = NULL;
    while (class && (entry = readdir(class)) && entry->d_name[0] == '.')
        ;
    if (class)
        closedir(class);
    return entry != NULL;
}

static weft_endpoint *open_over(const char *fabric)
{
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    config.fabric = fabric;
    if (fabric && strcmp(fabric, "tcp;ofi_rxm") == 0)
        config.rails = "lo";
    return open_with(&config);
}

static void own_fabrics_leave_libfabric_alone(void)
{
    if (libfabric_is_loaded())
        skip("libfabric is loaded with the program");
    const char *fabrics[] = {"host", "tcp", "host,tcp", NULL};
    char **before = environ;
    for (size_t i = 0; i < COUNT(fabrics); i++) {
        if (!fabrics[i] && has_rdma())
            break; /* efa or verbs are searched for */
        CHECK_OK(weft_endpoint_destroy(open_over(fabrics[i])));
        if (changes != 0)
            FAIL("opening \"%s\" sets%s in the environment", fabrics[i] ? fabrics[i] : "(default)", changed);
        if (libfabric_is_loaded())
            FAIL("opening \"%s\" loads libfabric", fabrics[i] ? fabrics[i] : "(default)");
    }
    static char text[1 << 20];
    size_t len = 0;
    if (!has_rdma())
        CHECK_OK(weft_topology(text, sizeof text, &len));
    CHECK(environ == before && changes == 0 && !libfabric_is_loaded());
}

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

static void opening_efa_turns_its_cross_memory_off(void)
{
    CHECK_OK(weft_log_set(WEFT_LOG_WARN, keep, NULL));
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    weft_endpoint *endpoint = NULL;
    config.fabric = "efa";
    if (weft_endpoint_create(&config, &endpoint) == WEFT_ERR_NO_LIBFABRIC)
        skip("%s", weft_last_error());
    CHECK_OK(weft_endpoint_destroy(endpoint));
    if (strcmp(changed, " FI_SHM_DISABLE_CMA FI_EFA_FORK_SAFE") != 0)
        FAIL("opening \"efa\" sets%s in the environment", changed);
    CHECK(getenv("FI_SHM_DISABLE_CMA") == NULL);
    CHECK(strstr(warnings.text, "cross-memory") == NULL);
}

/* ---- A second copy of Weft ---- */

struct copy {
    weft_status (*open)(const weft_endpoint_config *, weft_endpoint **);
    weft_status (*close)(weft_endpoint *);
    weft_status (*address)(const weft_endpoint *, void *, size_t, size_t *);
    weft_queue *(*queue)(const weft_endpoint *);
    int32_t (*poll)(weft_queue *, weft_completion *, uint32_t, uint64_t);
};

/* The same file under another name: the loader treats it as another library. */
static void *load_copy(void)
{
    char name[] = "/tmp/weft-copy-XXXXXX", bytes[64 * KIB];
    int from = open(getenv("WEFT_TEST_LIBRARY"), O_RDONLY | O_CLOEXEC), to = mkostemp(name, O_CLOEXEC);
    CHECK(from >= 0 && to >= 0);
    for (ssize_t n; (n = read(from, bytes, sizeof bytes)) > 0;)
        CHECK(write(to, bytes, (size_t)n) == n);
    close(from);
    close(to);
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    unlink(name);
    if (!library)
        FAIL("%s", dlerror());
    return library;
}

static struct copy copy_of(void *library)
{
    struct copy copy;
    *(void **)&copy.open = dlsym(library, "weft_endpoint_create");
    *(void **)&copy.close = dlsym(library, "weft_endpoint_destroy");
    *(void **)&copy.address = dlsym(library, "weft_endpoint_address");
    *(void **)&copy.queue = dlsym(library, "weft_endpoint_queue");
    *(void **)&copy.poll = dlsym(library, "weft_queue_poll");
    CHECK(copy.open && copy.close && copy.address && copy.queue && copy.poll);
    CHECK(copy.open != weft_endpoint_create);
    return copy;
}

static const char *opened;

static void *open_often(void *copy)
{
    for (int i = 0; i < 5; i++) {
        weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
        weft_endpoint *endpoint = NULL;
        config.fabric = opened;
        CHECK_OK(((struct copy *)copy)->open(&config, &endpoint));
        CHECK_OK(((struct copy *)copy)->close(endpoint));
    }
    return NULL;
}

/* Both open and close at the same time, and then one sends to the other. */
static void two_copies_work_at_once(const char *fabric)
{
    struct copy ours = {.open = weft_endpoint_create, .close = weft_endpoint_destroy}, theirs = copy_of(load_copy());
    pthread_t threads[4];
    opened = fabric;
    for (int i = 0; i < 4; i++)
        CHECK(pthread_create(&threads[i], NULL, open_often, i % 2 ? &theirs : &ours) == 0);
    for (int i = 0; i < 4; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);

    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    weft_endpoint *other = NULL;
    config.fabric = fabric;
    CHECK_OK(theirs.open(&config, &other));
    struct box *box = box_of(open_over(fabric));
    uint8_t address[64 * KIB];
    size_t len = 0;
    CHECK_OK(theirs.address(other, address, sizeof address, &len));
    weft_peer peer = 0;
    CHECK_OK(weft_peer_connect(box->endpoint, address, len, NULL, &peer));
    CHECK_OK(box_take(box, WEFT_COMPLETION_PEER_UP, patience_ms()).status);
    send_now(box, peer, "from the other copy", 20);
    bool came = false;
    for (uint64_t end = now_ns() + patience_ms() * MS; !came && now_ns() < end; sleep_ms(1)) {
        weft_completion done;
        came = theirs.poll(theirs.queue(other), &done, 1, 0) == 1 && done.kind == WEFT_COMPLETION_MESSAGE;
    }
    CHECK(came);
    /* Handles of one copy are invalid in the other. */
    CHECK_STATUS(weft_endpoint_destroy(other), WEFT_ERR_HANDLE);
    CHECK_OK(theirs.close(other));
    box_close(box);
}

static void two_copies_share_a_process(void)
{
    char **before = environ;
    two_copies_work_at_once("host");
    two_copies_work_at_once("tcp");
    CHECK(changes == 0 && environ == before);
}

static void two_copies_share_libfabric(void)
{
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    weft_endpoint *endpoint = NULL;
    config.fabric = "tcp;ofi_rxm";
    if (weft_endpoint_create(&config, &endpoint) != WEFT_OK)
        skip("%s", weft_last_error());
    CHECK_OK(weft_endpoint_destroy(endpoint));
    two_copies_work_at_once("tcp;ofi_rxm");
    CHECK(changes == 0);
}

static const struct test tests[] = {
    {"own_fabrics_leave_libfabric_alone", "once", own_fabrics_leave_libfabric_alone},
    {"opening_efa_turns_its_cross_memory_off", "once", opening_efa_turns_its_cross_memory_off},
    {"two_copies_share_a_process", "once", two_copies_share_a_process},
    {"two_copies_share_libfabric", "once", two_copies_share_libfabric},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
