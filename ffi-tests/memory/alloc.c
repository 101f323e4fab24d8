/* Memory that Weft allocates: it moves like any other, and is freed once. */
#include "harness.h"

#include <sys/resource.h>

#define LEN (5 * MIB)

static void *alloc(weft_endpoint *endpoint, uint64_t len)
{
    void *address = NULL;
    CHECK_OK(weft_memory_alloc(endpoint, len, WEFT_NUMA_ANY, &address));
    CHECK(address != NULL);
    return address;
}

static void arguments_are_checked(void)
{
    weft_endpoint *endpoint = open_endpoint();
    void *address = NULL;
    REFUSED(WEFT_ERR_INVALID, weft_memory_alloc(endpoint, 4096, WEFT_NUMA_ANY, NULL));
    REFUSED(WEFT_ERR_HANDLE, weft_memory_alloc(NULL, 4096, WEFT_NUMA_ANY, &address));
    REFUSED(WEFT_ERR_LIMIT, weft_memory_alloc(endpoint, 0, WEFT_NUMA_ANY, &address));
    REFUSED(WEFT_ERR_LIMIT, weft_memory_alloc(endpoint, UINT64_MAX, WEFT_NUMA_ANY, &address));
    REFUSED(WEFT_ERR_INVALID, weft_memory_alloc(endpoint, 4096, 64, &address));
    REFUSED(WEFT_ERR_INVALID, weft_memory_alloc(endpoint, 4096, -2, &address));
    CHECK(address == NULL);
    CHECK_OK(weft_memory_alloc(endpoint, 1, 0, &address));
    REFUSED(WEFT_ERR_INVALID, weft_memory_free(endpoint, (char *)address + 1));
    REFUSED(WEFT_ERR_HANDLE, weft_memory_free(NULL, address));
    CHECK_OK(weft_memory_free(endpoint, NULL));
    CHECK_OK(weft_memory_free(endpoint, address));
    REFUSED(WEFT_ERR_INVALID, weft_memory_free(endpoint, address));
    CHECK_OK(weft_endpoint_destroy(endpoint));
}

/* Pages that cannot exist are not touched; nothing here takes more than 32 MiB. */
static void alloc_of_an_unsupported_kind_is_refused(void)
{
    weft_endpoint *endpoint = open_endpoint();
    void *address = NULL;
    uint64_t began = judged_from();
    REFUSED(WEFT_ERR_NO_MEMORY, weft_memory_alloc(endpoint, UINT64_C(1) << 46, WEFT_NUMA_ANY, &address));
    CHECK_WITHIN(began, now_ns(), SECOND);
    CHECK(strstr(weft_last_error(), "70368744177664") != NULL);
    CHECK(strstr(weft_last_error(), " bytes left") != NULL);
    struct rlimit before, tight;
    CHECK_EQ(getrlimit(RLIMIT_AS, &before), 0);
    tight = before;
    tight.rlim_cur = 32 * MIB; /* less than the process has: it gets no more */
    CHECK_EQ(setrlimit(RLIMIT_AS, &tight), 0);
    weft_status status = weft_memory_alloc(endpoint, 32 * MIB, WEFT_NUMA_ANY, &address);
    CHECK_EQ(setrlimit(RLIMIT_AS, &before), 0);
    CHECK_STATUS(status, WEFT_ERR_NO_MEMORY);
    CHECK(address == NULL);
    CHECK_OK(weft_endpoint_destroy(endpoint));
}

static void allocated_memory_is_zeroed_and_busy_while_registered(void)
{
    weft_endpoint *endpoint = open_endpoint();
    uint8_t *bytes = alloc(endpoint, LEN);
    for (size_t i = 0; i < LEN; i++)
        CHECK(bytes[i] == 0);
    weft_memory *part = register_one(endpoint, bytes + LEN / 2, 100);
    REFUSED(WEFT_ERR_BUSY, weft_memory_free(endpoint, bytes));
    CHECK_OK(weft_memory_deregister(part));
    register_one(endpoint, bytes, LEN);
    REFUSED(WEFT_ERR_BUSY, weft_memory_free(endpoint, bytes));
    /* It outlives an endpoint, whose registrations do not. */
    weft_endpoint *other = open_endpoint();
    CHECK_OK(weft_endpoint_shutdown(endpoint, 0));
    bytes[0] = 1;
    CHECK_OK(weft_endpoint_destroy(endpoint));
    bytes[LEN - 1] = 1;
    CHECK_OK(weft_memory_free(other, bytes));
    CHECK_OK(weft_endpoint_destroy(other));
}

static void alloc_leaks_nothing(void)
{
    weft_endpoint *endpoint = open_endpoint();
    CHECK_OK(weft_memory_free(endpoint, alloc(endpoint, LEN)));
    int before = open_fds();
    for (int i = 0; i < 100; i++)
        CHECK_OK(weft_memory_free(endpoint, alloc(endpoint, LEN)));
    CHECK_EQ(open_fds(), before);
    CHECK_OK(weft_endpoint_destroy(endpoint));
}

static weft_op read_now(struct box *box, const struct range_request *args)
{
    weft_op id = 0;
    CHECK_OK(submit_read(box->endpoint, args, &id));
    return id;
}

/* Writes contents that change from round to round, each time from new memory. */
static void gives(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    weft_peer peer = join(team, 1, box);
    weft_remote_memory *theirs = take_memory(team, 1, box, peer);
    for (uint64_t round = 0; round < 20; round++) {
        uint8_t *bytes = alloc(box->endpoint, LEN);
        weft_memory *memory = register_one(box->endpoint, bytes, LEN);
        struct range_request args = range_args(memory, theirs, LEN);
        fill_random(bytes, LEN, round);
        CHECK_OK(box_await(box, write_now(box, &args), patience_ms()).status);
        memset(bytes, 0, LEN);
        meet(team, 1, box);
        CHECK_OK(box_await(box, read_now(box, &args), patience_ms()).status);
        CHECK_EQ(differs_random(bytes, LEN, round), -1);
        CHECK_OK(weft_memory_deregister(memory));
        CHECK_OK(weft_memory_free(box->endpoint, bytes));
        meet(team, 1, box);
    }
    CHECK_OK(weft_remote_memory_release(theirs));
    box_close(box);
}

static void takes(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    uint8_t *bytes = alloc(box->endpoint, LEN);
    join(team, 0, box);
    weft_memory *memory = register_one(box->endpoint, bytes, LEN);
    give_memory(team, 0, memory);
    for (uint64_t round = 0; round < 20; round++) {
        meet(team, 0, box);
        CHECK_EQ(differs_random(bytes, LEN, round), -1);
        meet(team, 0, box);
    }
    CHECK_OK(weft_memory_deregister(memory));
    CHECK_OK(weft_memory_free(box->endpoint, bytes));
    box_close(box);
}

static void allocated_memory_moves_in_both_directions(void)
{
    run_pair(gives, takes);
}

static const struct test tests[] = {
    {"arguments_are_checked", "once", arguments_are_checked},
    {"alloc_of_an_unsupported_kind_is_refused", "once timed", alloc_of_an_unsupported_kind_is_refused},
    {"allocated_memory_is_zeroed_and_busy_while_registered", "once", allocated_memory_is_zeroed_and_busy_while_registered},
    {"alloc_leaks_nothing", "any", alloc_leaks_nothing},
    {"allocated_memory_moves_in_both_directions", "any", allocated_memory_moves_in_both_directions},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
