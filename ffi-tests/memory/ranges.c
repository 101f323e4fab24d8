/* Memories of many ranges: other operations continue while ranges are registered and deregistered, and what fails
   half-way is finished later. */
#include "harness.h"

#define RANGES 65536
#define RANGE 4096
#define PROBE (10 * MS) /* the probe's deadline */

static weft_endpoint *open_rails(uint32_t rails)
{
    weft_endpoint_config config = test_config();
    if (rails > 1) {
        config.rail_count = rails;
        config.workers = 1;
    }
    return open_with(&config);
}

static weft_status register_ranges(weft_endpoint *endpoint, size_t count, weft_memory **memory)
{
    static char *bytes;
    static weft_memory_range ranges[RANGES];
    if (bytes == NULL)
        bytes = map_bytes((size_t)RANGES * RANGE);
    for (size_t i = 0; i < count; i++)
        ranges[i] = (weft_memory_range){bytes + i * RANGE, RANGE};
    return weft_memory_register(endpoint, ranges, count, NULL, memory);
}

/* ---- Others meanwhile ---- */

/* Operations that end at their deadlines, one after the other. */
struct probe {
    weft_endpoint *endpoint;
    pthread_t thread;
    atomic_bool over;
    _Atomic uint64_t count, worst_ns;
};

static void *run_probe(void *argument)
{
    struct probe *probe = argument;
    weft_counter counter;
    CHECK_OK(weft_counter_create(probe->endpoint, &counter));
    while (!probe->over) {
        struct expect_request args = EXPECT_REQUEST_INIT;
        weft_completion completion;
        uint64_t one = 1, due = now_ns() + PROBE;
        args.counters = &counter;
        args.values = &one;
        args.count = 1;
        args.options.timeout_ns = PROBE;
        CHECK_OK(submit_expect(probe->endpoint, &args, NULL));
        while (weft_queue_poll(weft_endpoint_queue(probe->endpoint), &completion, 1, SECOND) == 0)
            ;
        CHECK_STATUS(completion.status, WEFT_ERR_TIMED_OUT);
        uint64_t now = now_ns(), late = now > due ? now - due : 0;
        probe->worst_ns = late > probe->worst_ns ? late : probe->worst_ns;
        probe->count++;
    }
    CHECK_OK(weft_counter_destroy(probe->endpoint, counter));
    return NULL;
}

static void begin(struct probe *probe, weft_endpoint *endpoint)
{
    probe->endpoint = endpoint;
    CHECK_EQ(pthread_create(&probe->thread, NULL, run_probe, probe), 0);
    while (probe->count < 3)
        sleep_ms(1);
}

static void end(struct probe *probe)
{
    probe->over = true;
    CHECK_EQ(pthread_join(probe->thread, NULL), 0);
}

/* How late a probe on the endpoint under test is, and one on an idle endpoint, during one call. */
struct meanwhile {
    uint64_t count[2], worst_ns[2], took_ns;
};

static struct meanwhile during(struct probe probes[2], weft_status (*call)(weft_memory **, weft_endpoint *),
                               weft_memory **memory)
{
    struct meanwhile seen;
    uint64_t before[2], began = now_ns();
    for (int i = 0; i < 2; i++) {
        before[i] = probes[i].count;
        probes[i].worst_ns = 0;
    }
    CHECK_OK(call(memory, probes[0].endpoint));
    seen.took_ns = now_ns() - began;
    for (int i = 0; i < 2; i++) {
        seen.count[i] = probes[i].count - before[i];
        uint64_t until = probes[i].count + 2; /* one in flight counts, too */
        while (probes[i].count < until)
            sleep_ms(1);
        seen.worst_ns[i] = probes[i].worst_ns;
    }
    return seen;
}

static weft_status come(weft_memory **memory, weft_endpoint *endpoint)
{
    return register_ranges(endpoint, RANGES, memory);
}

static weft_status go(weft_memory **memory, weft_endpoint *endpoint)
{
    (void)endpoint;
    return weft_memory_deregister(*memory);
}

static int ascending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

#define ROUNDS 3

static void others_go_on(uint32_t rails)
{
    weft_endpoint *endpoint = open_rails(rails), *idle = open_rails(1);
    struct probe probes[2] = {0};
    uint64_t late[2][ROUNDS], done[2] = {0};
    begin(&probes[0], endpoint);
    begin(&probes[1], idle);
    for (int round = 0; round < ROUNDS; round++) {
        weft_memory *memory = NULL;
        struct meanwhile coming = during(probes, come, &memory), going = during(probes, go, &memory);
        for (int i = 0; i < 2; i++)
            done[i] += coming.count[i] + going.count[i];
        for (int i = 0; i < 2; i++)
            late[i][round] = going.worst_ns[i];
        printf("register %" PRIu64 " ms, deregister %" PRIu64 " ms; others late %.1f ms (idle endpoint %.1f ms)\n",
               coming.took_ns / MS, going.took_ns / MS, (double)going.worst_ns[0] / MS, (double)going.worst_ns[1] / MS);
    }
    end(&probes[0]);
    end(&probes[1]);
    for (int i = 0; i < 2; i++)
        qsort(late[i], ROUNDS, sizeof late[i][0], ascending);
    printf("operations beside: %" PRIu64 " (idle endpoint %" PRIu64 ")\n", done[0], done[1]);
    /* The worst of the rounds. */
    printf("deregister_65536_ms %.2f\n", (double)late[0][ROUNDS / 2] / MS);
    printf("deregister_65536_idle_ms %.2f\n", (double)late[1][ROUNDS / 2] / MS);
    count_passes(endpoint);
    /* It took long enough to judge: nothing was blocked. */
    if (done[1] >= 20)
        CHECK(done[0] > done[1] / 3);
    CHECK_OK(weft_endpoint_destroy(endpoint));
    CHECK_OK(weft_endpoint_destroy(idle));
}

static void on_one_rail(void) { others_go_on(1); }

static void on_four_rails(void) { others_go_on(4); }

static void many_ranges_delay_no_operation(void) { check_passes(on_one_rail); }

static void many_ranges_on_four_rails_delay_no_operation(void) { check_passes(on_four_rails); }

/* ---- Half-way ---- */

#define SOME 1000

/* In the middle of its ranges a NIC keeps one, once. */
static void failed_deregistration_is_retried(void)
{
    char *bytes = map_bytes(RANGE);
    weft_memory *memory = NULL, *other;
    setenv("WEFT_SIM_FAULTS", "0 rail1 busy=500", 1);
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    config.fabric = "sim:like=verbs:rails=3";
    weft_endpoint *endpoint = open_with(&config);
    struct box *box = box_of(endpoint);
    CHECK_OK(register_ranges(endpoint, SOME, &memory));
    sleep_ms(20); /* the fault exists from the first pass on */

    REFUSED(WEFT_ERR_FABRIC, weft_memory_deregister(memory));
    /* The handle stays valid; nothing can be posted with the rest. */
    char descriptor[64 * KIB];
    size_t len;
    CHECK_OK(weft_memory_export(memory, descriptor, sizeof descriptor, &len));
    CHECK_OK(weft_memory_deregister(memory));
    REFUSED(WEFT_ERR_HANDLE, weft_memory_deregister(memory));

    other = register_one(endpoint, bytes, RANGE);
    CHECK_OK(weft_memory_deregister(other));
    box_close(box);
}

/* A half-deregistered memory is unusable, here and at peers. */
static void partial_registration_is_not_used(void)
{
    setenv("WEFT_SIM_FAULTS", "0 * busy=5", 1);
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    config.fabric = "sim:like=efa";
    struct duo duo = duo_open_with(RANGE, &config);
    weft_memory *memory = NULL;
    weft_remote_memory *remote = NULL;
    char descriptor[64 * KIB];
    CHECK_OK(register_ranges(duo.a->endpoint, 10, &memory));
    size_t len = descriptor_of(memory, descriptor, sizeof descriptor);
    CHECK_OK(weft_remote_memory_import(duo.b->endpoint, duo.b_to_a, descriptor, len, &remote));
    struct range_request args = range_args(duo.b_memory, remote, RANGE);
    CHECK_STATUS(box_await(duo.b, write_now(duo.b, &args), patience_ms()).status, WEFT_OK);

    REFUSED(WEFT_ERR_FABRIC, weft_memory_deregister(memory));
    weft_op transfer;
    args = range_args(memory, duo.b_of_a, RANGE);
    REFUSED(WEFT_ERR_HANDLE, submit_write(duo.a->endpoint, &args, &transfer));
    args = range_args(duo.b_memory, remote, RANGE);
    weft_status status = submit_write(duo.b->endpoint, &args, &transfer);
    if (status == WEFT_OK)
        status = box_await(duo.b, transfer, patience_ms()).status;
    CHECK_STATUS(status, WEFT_ERR_MEMORY_GONE);
    CHECK_OK(weft_remote_memory_release(remote));
    status = weft_remote_memory_import(duo.b->endpoint, duo.b_to_a, descriptor, len, &remote);
    CHECK_STATUS(status, WEFT_ERR_MEMORY_GONE);

    CHECK_OK(weft_memory_deregister(memory));
    duo_close(&duo);
}

/* Destroying the endpoint releases what could not be deregistered. */
static void shutdown_undoes_partial_registrations(void)
{
    setenv("WEFT_SIM_FAULTS", "0 * busy=5", 1);
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    config.fabric = "sim:like=efa";
    weft_endpoint *endpoint = open_with(&config);
    void *address = NULL;
    CHECK_OK(weft_memory_alloc(endpoint, 16 * RANGE, WEFT_NUMA_ANY, &address));
    weft_memory_range ranges[16];
    for (size_t i = 0; i < COUNT(ranges); i++)
        ranges[i] = (weft_memory_range){(char *)address + i * RANGE, RANGE};
    weft_memory *memory = NULL;
    CHECK_OK(weft_memory_register(endpoint, ranges, COUNT(ranges), NULL, &memory));
    sleep_ms(20);
    REFUSED(WEFT_ERR_FABRIC, weft_memory_deregister(memory));
    REFUSED(WEFT_ERR_BUSY, weft_memory_free(endpoint, address));
    CHECK_OK(weft_endpoint_shutdown(endpoint, 0));
    CHECK_OK(weft_memory_deregister(memory));
    CHECK_OK(weft_memory_free(endpoint, address));
    CHECK_OK(weft_endpoint_destroy(endpoint));
}

/* Two workers' NICs do not close, twice each: once by their threads, once by the first shutdown. */
static void shutdown_closes_every_nic_that_closes(void)
{
    setenv("WEFT_SIM_FAULTS", "0 * stuck=2", 1);
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    config.fabric = "sim:like=tcp:rails=2";
    config.workers = 2;
    weft_endpoint *endpoint = open_with(&config);
    weft_memory *memory = register_one(endpoint, map_bytes(RANGE), RANGE);
    sleep_ms(20);
    REFUSED(WEFT_ERR_TIMED_OUT, weft_endpoint_shutdown(endpoint, 0));
    REFUSED(WEFT_ERR_TIMED_OUT, weft_memory_deregister(memory));
    CHECK_OK(weft_endpoint_shutdown(endpoint, 0));
    CHECK_OK(weft_memory_deregister(memory));
    CHECK_OK(weft_endpoint_destroy(endpoint));
}

int main(int argc, char **argv)
{
    const struct test tests[] = {
        {"many_ranges_delay_no_operation", "any alone", many_ranges_delay_no_operation},
        {"many_ranges_on_four_rails_delay_no_operation", "tcp,sim:like=efa alone", many_ranges_on_four_rails_delay_no_operation},
        {"failed_deregistration_is_retried", "once", failed_deregistration_is_retried},
        {"partial_registration_is_not_used", "once", partial_registration_is_not_used},
        {"shutdown_undoes_partial_registrations", "once", shutdown_undoes_partial_registrations},
        {"shutdown_closes_every_nic_that_closes", "once", shutdown_closes_every_nic_that_closes},
        {NULL, NULL, NULL},
    };
    return run_tests(argc, argv, tests);
}
