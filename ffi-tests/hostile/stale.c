/* Stale handles, and what remains of an endpoint that was destroyed, or never opened. */
#include "harness.h"

#include <sys/resource.h>

/* ---- A stale handle stays stale, however many are made after it ---- */

static void stale_handles_stay_stale(void)
{
    weft_endpoint *endpoint = open_endpoint();
    weft_queue *first, *queue;
    weft_completion completion;
    CHECK_OK(weft_queue_create(endpoint, 16, &first));
    CHECK_OK(weft_queue_destroy(first));
    for (int i = 0; i < 600000; i++) {
        CHECK_OK(weft_queue_create(endpoint, 16, &queue));
        CHECK(queue != first);
        if (i % 1000 == 0) {
            CHECK_STATUS(weft_queue_poll(first, &completion, 1, 0), WEFT_ERR_HANDLE);
            CHECK_STATUS(weft_queue_destroy(first), WEFT_ERR_HANDLE);
        }
        CHECK_OK(weft_queue_destroy(queue));
    }
    REFUSED(WEFT_ERR_HANDLE, weft_queue_destroy(first));
    CHECK_OK(weft_endpoint_destroy(endpoint));
}

/* Nothing that a program can have an address of is taken for a handle, nor a handle for an address. */
static void addresses_are_not_handles(void)
{
    weft_endpoint *endpoint = open_endpoint();
    weft_queue *queue;
    weft_completion completion;
    CHECK_OK(weft_queue_create(endpoint, 0, &queue));
    uint64_t handle = (uint64_t)(uintptr_t)queue;
    CHECK(handle >> 63 == 1 && (handle >> 55 & 1) == 1);
    const void *addresses[] = {&queue, endpoint, &completion, (void *)environ, (void *)1, (void *)UINT64_MAX};
    for (size_t i = 0; i < COUNT(addresses); i++)
        REFUSED(WEFT_ERR_HANDLE, weft_queue_destroy((weft_queue *)addresses[i]));
    /* Each bit makes it another one's, or nobody's. */
    for (int bit = 0; bit < 64; bit++)
        REFUSED(WEFT_ERR_HANDLE, weft_queue_destroy((weft_queue *)(uintptr_t)(handle ^ UINT64_C(1) << bit)));
    CHECK_OK(weft_queue_destroy(queue));
    CHECK_OK(weft_endpoint_destroy(endpoint));
}

/* Operations that take turns in one slot: a day of one each microsecond has 2^36.3 of them. */
static void operation_ids_last_for_a_day(void)
{
    struct duo duo = duo_open(4096);
    uint64_t first = 0, differ = 0;
    for (int i = 0; i < 64; i++) {
        struct range_request args = range_args(duo.a_memory, duo.b_of_a, 8);
        weft_op id = write_now(duo.a, &args);
        CHECK_OK(box_await(duo.a, id, patience_ms()).status);
        CHECK(id >> 63 == 0);
        if (i == 0)
            first = id;
        differ |= id ^ first;
    }
    /* They differ from bit 20 on, which leaves 43 bits. */
    CHECK(differ != 0 && (differ & ((UINT64_C(1) << 20) - 1)) < 64 && differ >> 20 != 0 && differ >> 20 < 4096);
    duo_close(&duo);
}

/* ---- The last message stays in place ---- */

static void last_error_has_one_slot_per_thread(void)
{
    const char *said = weft_last_error();
    CHECK(strcmp(said, "") == 0);
    for (int i = 0; i < 100; i++) {
        weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
        char *fabric = malloc(4000 + 1);
        CHECK(fabric != NULL);
        memset(fabric, i % 2 ? 'x' : 'y', 4000);
        fabric[4000] = 0;
        config.fabric = fabric;
        weft_endpoint *endpoint;
        /* Evaluation order of printf's arguments: the message may be read first. */
        CHECK(weft_endpoint_create(&config, &endpoint) < 0);
        CHECK(weft_last_error() == said);
        CHECK(strlen(said) > 0 && strlen(said) < 1024);
        CHECK(strchr(said, i % 2 ? 'x' : 'y') != NULL);
        free(fabric);
    }
}

/* ---- Nothing remains ---- */

static void close_leaks_no_descriptors(void)
{
    weft_endpoint *endpoint = open_endpoint();
    CHECK_OK(weft_endpoint_destroy(endpoint)); /* memory that libraries never free */
    int fds = open_fds(), fd;
    for (int i = 0; i < 20; i++) {
        weft_queue *queues[4];
        endpoint = open_endpoint();
        CHECK_OK(weft_queue_arm(weft_endpoint_queue(endpoint), &fd));
        for (int k = 0; k < 4; k++) {
            CHECK_OK(weft_queue_create(endpoint, 0, &queues[k]));
            CHECK_OK(weft_queue_arm(queues[k], &fd));
        }
        CHECK_OK(weft_queue_destroy(queues[0]));
        CHECK_OK(weft_endpoint_destroy(endpoint));
        CHECK_EQ(open_fds(), fds); /* at once */
    }
}

static _Atomic int stop;

static void *keep_calling(void *endpoint)
{
    weft_endpoint_properties properties = WEFT_ENDPOINT_PROPERTIES_INIT;
    while (!stop)
        CHECK_OK(weft_endpoint_info(endpoint, &properties, NULL));
    return NULL;
}

/* Also while other threads call another endpoint all the time. */
static void close_leaks_no_descriptors_beside_other_endpoints(void)
{
    weft_endpoint *busy = open_endpoint();
    pthread_t threads[3];
    for (size_t i = 0; i < COUNT(threads); i++)
        CHECK(pthread_create(&threads[i], NULL, keep_calling, busy) == 0);
    close_leaks_no_descriptors();
    stop = 1;
    for (size_t i = 0; i < COUNT(threads); i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK_OK(weft_endpoint_destroy(busy));
}

static void failed_open_ends_its_threads(void)
{
    if (geteuid() == 0 && (setgid(64242) || setuid(64242)))
        skip("this user cannot become another one");
    weft_endpoint_config config = test_config();
    config.rail_count = 8;
    config.workers = 8;
    weft_endpoint *endpoint = open_with(&config);
    CHECK_OK(weft_endpoint_destroy(endpoint));
    int fds = open_fds(), threads = running_threads();
    for (rlim_t spare = 1; spare < 8; spare++) {
        struct rlimit limit = {(rlim_t)threads + spare, (rlim_t)threads + 8};
        CHECK(setrlimit(RLIMIT_NPROC, &limit) == 0);
        weft_status status = weft_endpoint_create(&config, &endpoint);
        if (status == WEFT_OK)
            skip("threads of this user are not limited");
        CHECK(status == WEFT_ERR_SYSTEM || status == WEFT_ERR_NO_MEMORY);
        CHECK_EQ(open_fds(), fds);
        /* A joined thread may be visible for a moment longer. */
        for (int i = 0; i < 100 && running_threads() > threads; i++)
            sched_yield();
        CHECK_EQ(running_threads(), threads);
    }
}

static const struct test tests[] = {
    {"stale_handles_stay_stale", "host", stale_handles_stay_stale},
    {"addresses_are_not_handles", "host", addresses_are_not_handles},
    {"operation_ids_last_for_a_day", "host", operation_ids_last_for_a_day},
    {"last_error_has_one_slot_per_thread", "once", last_error_has_one_slot_per_thread},
    {"close_leaks_no_descriptors", "tcp,host", close_leaks_no_descriptors},
    {"close_leaks_no_descriptors_beside_other_endpoints", "host", close_leaks_no_descriptors_beside_other_endpoints},
    {"failed_open_ends_its_threads", "tcp", failed_open_ends_its_threads},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
