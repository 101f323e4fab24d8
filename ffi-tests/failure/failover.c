/* Rails that fail and come back: others take over, and no operation fails. (In virtual time: engine/scenarios.c.) */
#include "harness.h"

/* Triggers the plan for the world's next NICs, which are opened briefly. */
static void strike(const char *fabric)
{
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    config.fabric = fabric;
    CHECK_OK(weft_endpoint_destroy(open_with(&config)));
}

/* A worker whose rails are all down still gets transfers: it passes them on. */
static void worker_without_lanes_fails_nothing(void)
{
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    config.fabric = "sim:like=tcp:rails=2:delay_us=10:world=passes";
    config.workers = 2;
    setenv("WEFT_SIM_FAULTS", "port4+0 rail1 down", 1);
    struct duo duo = duo_open_with(MIB, &config);
    struct range_request args = range_args(duo.a_memory, duo.b_of_a, 4096);
    weft_completion c;
    strike(config.fabric);
    uint64_t end = now_ns() + patience_ms() * MS;
    while (!box_try(duo.a, WEFT_COMPLETION_RAIL_DOWN, &c)) {
        CHECK(now_ns() < end);
        CHECK_OK(box_await(duo.a, write_now(duo.a, &args), patience_ms()).status);
    }
    for (int i = 0; i < 300; i++)
        CHECK_OK(box_await(duo.a, write_now(duo.a, &args), patience_ms()).status);
    duo_close(&duo);
}

/* A fence waits for operations that are stuck on a lane that may be dead; the other lane continues meanwhile. */
static void dead_lane_delays_no_other(void)
{
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    config.fabric = "sim:like=tcp:rails=2:gbps=1:delay_us=20:world=held";
    setenv("WEFT_SIM_FAULTS", "port4+0 rail1 down", 1);
    struct duo duo = duo_open_with(MIB, &config);
    struct range_request args = range_args(duo.a_memory, duo.b_of_a, 256 * KIB);
    struct fence_request fence = FENCE_REQUEST_INIT;
    weft_completion c;
    int open = 0, small = 0;
    for (int written = 0; written < 100;) { /* both carry operations */
        for (; open < 16; open++)
            write_now(duo.a, &args);
        box_pump(duo.a, 5);
        for (; box_try(duo.a, WEFT_COMPLETION_WRITE, &c); open--, written++)
            CHECK_OK(c.status);
    }
    for (; open < 16; open++)
        write_now(duo.a, &args);
    strike(config.fabric);
    fence.peer = duo.b_to_a;
    CHECK_OK(submit_fence(duo.b->endpoint, &fence, NULL));
    sleep_ms(20);
    args.len = 4096;
    for (int i = 0; i < 20; i++, open++)
        write_now(duo.a, &args);
    for (uint64_t from = judged_from(); small < 5 && canary_ns(from, now_ns()) < patiently(150 * MS);) {
        box_pump(duo.a, 5);
        for (; box_try(duo.a, WEFT_COMPLETION_WRITE, &c); open--)
            small += c.status == WEFT_OK && c.bytes == 4096;
    }
    CHECK(small >= 5); /* the others may be on the dead one */
    for (; open > 0; open--)
        CHECK_OK(box_take(duo.a, WEFT_COMPLETION_WRITE, patience_ms()).status);
    CHECK_OK(box_take(duo.b, WEFT_COMPLETION_FENCE, patience_ms()).status);
    duo_close(&duo);
}

/* Two endpoints with two rails and two workers, under the plan. */
#define OF_TWO "sim:like=tcp:rails=2:gbps=10:delay_us=20:world=two"

static struct duo duo_of_two(const char *faults)
{
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    config.fabric = OF_TWO;
    config.workers = 2;
    setenv("WEFT_SIM_FAULTS", faults, 1);
    CHECK_OK(weft_log_set(WEFT_LOG_ERROR, NULL, NULL));
    return duo_open_with(MIB, &config);
}

/* Writes until an event arrives. */
static void write_until(struct duo *duo, const struct range_request *args, weft_completion_kind event)
{
    weft_completion c;
    for (uint64_t until = now_ns() + patience_ms() * MS; !box_try(duo->a, event, &c);) {
        CHECK(now_ns() < until);
        CHECK_OK(box_await(duo->a, write_now(duo->a, args), patience_ms()).status);
    }
}

/* Whatever lanes come up meanwhile. */
static void operations_wait_for_lanes_that_reconnect(void)
{
    struct duo duo = duo_of_two("port4+0 rail1 down; port6+0 rail1 up");
    struct range_request args = range_args(duo.a_memory, duo.b_of_a, 64 * KIB);
    weft_watch *start;
    uint64_t *word;
    weft_op id;
    CHECK_OK(weft_watch_create(duo.a->endpoint, &start, &word));
    strike(OF_TWO);
    write_until(&duo, &args, WEFT_COMPLETION_RAIL_DOWN);
    fill_random(duo.a_bytes, MIB, 1);
    args.len = MIB / 2;
    args.local_offset = args.remote_offset = MIB / 2;
    args.options.start_watch = start;
    args.options.start_value = 1;
    CHECK_OK(submit_write(duo.a->endpoint, &args, &id));
    args = range_args(duo.a_memory, duo.b_of_a, 64 * KIB);
    strike(OF_TWO);
    write_until(&duo, &args, WEFT_COMPLETION_RAIL_UP);
    sleep_ms(50);
    for (size_t i = MIB / 2; i < MIB; i++)
        CHECK_EQ(duo.b_bytes[i], 0);
    fill_random(duo.a_bytes, MIB, 2);
    atomic_store((_Atomic uint64_t *)word, 1);
    CHECK_OK(box_await(duo.a, id, patience_ms()).status);
    CHECK(memcmp(duo.a_bytes + MIB / 2, duo.b_bytes + MIB / 2, MIB / 2) == 0);
    CHECK_OK(weft_watch_destroy(start));
    duo_close(&duo);
}

/* Also with memory that was imported before. */
static void lane_of_another_worker_is_used_when_it_returns(void)
{
    struct duo duo = duo_of_two("port3+0 rail1 down; port4+0 rail1 up");
    struct range_request args = range_args(duo.a_memory, duo.b_of_a, MIB);
    weft_rail_statistics statistics = WEFT_RAIL_STATISTICS_INIT;
    CHECK_OK(box_await(duo.a, write_now(duo.a, &args), patience_ms()).status);
    CHECK_OK(weft_rail_info(duo.a->endpoint, 1, NULL, &statistics));
    CHECK_EQ(statistics.bytes_written, 0);
    strike(OF_TWO);
    for (uint64_t until = now_ns() + patience_ms() * MS; statistics.bytes_written < MIB;) {
        CHECK(now_ns() < until);
        CHECK_OK(box_await(duo.a, write_now(duo.a, &args), patience_ms()).status);
        CHECK_OK(weft_rail_info(duo.a->endpoint, 1, NULL, &statistics));
    }
    duo_close(&duo);
}

/* The other rail serves memory that is registered afterwards, and operations from and to it. */
static void memory_is_registered_without_a_removed_device(void)
{
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    config.fabric = "sim:like=verbs:rails=2:delay_us=20:world=removed";
    setenv("WEFT_SIM_FAULTS", "port4+0 port0 removed", 1);
    struct duo duo = duo_open_with(MIB, &config);
    struct range_request args = range_args(duo.a_memory, duo.b_of_a, 64 * KIB);
    weft_rail_statistics rail = WEFT_RAIL_STATISTICS_INIT;
    weft_memory *memory;
    uint8_t *bytes = malloc(MIB);
    strike(config.fabric);
    write_until(&duo, &args, WEFT_COMPLETION_RAIL_DOWN);
    CHECK_OK(weft_rail_info(duo.a->endpoint, 0, NULL, &rail));
    CHECK(strcmp(rail.link, "removed") == 0 && !rail.up);
    fill_random(bytes, MIB, 7);
    memory = register_one(duo.a->endpoint, bytes, MIB);
    args = range_args(memory, duo.b_of_a, MIB);
    CHECK_OK(box_await(duo.a, write_now(duo.a, &args), patience_ms()).status);
    CHECK(differs_random(duo.b_bytes, MIB, 7) < 0);
    CHECK_OK(weft_memory_deregister(memory));
    free(bytes);
    duo_close(&duo);
}

static uint64_t bytes_over(struct box *box, uint32_t rail)
{
    weft_rail_statistics info = WEFT_RAIL_STATISTICS_INIT;
    CHECK_OK(weft_rail_info(box->endpoint, rail, NULL, &info));
    return info.bytes_written;
}

/* Writes from `from` to `to`, whose bytes are `bytes`, until rail 0 has carried some of it. */
static void carries_again(struct duo *duo, weft_memory *from, uint8_t *source, weft_remote_memory *to, uint8_t *bytes)
{
    struct range_request args = range_args(from, to, MIB);
    uint64_t before = bytes_over(duo->a, 0), until = now_ns() + patience_ms() * MS;
    for (uint32_t seed = 1; bytes_over(duo->a, 0) < before + MIB; seed++) {
        CHECK(now_ns() < until);
        fill_random(source, MIB, seed);
        CHECK_OK(box_await(duo->a, write_now(duo->a, &args), patience_ms()).status);
        CHECK(differs_random(bytes, MIB, seed) < 0);
    }
}

/* The NIC of the first rail of one side is another one of its name after a while: memory of before and of meanwhile moves
 * over it, and what is deregistered meanwhile is. */
static void device_comes_back(const char *like, const char *fault)
{
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    char fabric[96], blob[8192];
    snprintf(fabric, sizeof fabric, "sim:like=%s:rails=2:delay_us=20:world=back%c", like, fault[12]);
    config.fabric = fabric;
    setenv("WEFT_SIM_FAULTS", fault, 1);
    struct duo duo = duo_open_with(MIB, &config);
    struct range_request args = range_args(duo.a_memory, duo.b_of_a, 64 * KIB);
    uint8_t *of_a = malloc(MIB), *of_b = malloc(MIB);
    weft_memory *brief = register_one(duo.a->endpoint, of_a, MIB), *late_a, *late_b;
    weft_remote_memory *late;
    strike(fabric);
    write_until(&duo, &args, WEFT_COMPLETION_RAIL_DOWN);
    CHECK_OK(weft_memory_deregister(brief));
    late_a = register_one(duo.a->endpoint, of_a, MIB);
    late_b = register_one(duo.b->endpoint, of_b, MIB);
    size_t len = descriptor_of(late_b, blob, sizeof blob);
    CHECK_OK(weft_remote_memory_import(duo.a->endpoint, duo.a_to_b, blob, len, &late));
    write_until(&duo, &args, WEFT_COMPLETION_RAIL_UP);
    carries_again(&duo, duo.a_memory, duo.a_bytes, duo.b_of_a, duo.b_bytes);
    carries_again(&duo, late_a, of_a, late, of_b);
    CHECK_OK(weft_remote_memory_release(late));
    CHECK_OK(weft_memory_deregister(late_a));
    CHECK_OK(weft_memory_deregister(late_b));
    free(of_a);
    free(of_b);
    duo_close(&duo);
}

static void removed_devices_come_back(void)
{
    device_comes_back("verbs", "port4+0 port0 removed=400000");
    device_comes_back("verbs", "port4+0 port2 removed=400000");
    device_comes_back("efa-direct", "port4+0 port0 removed=400000");
    device_comes_back("efa-direct", "port4+0 port2 removed=400000");
}

/* What of a removed device does not close is left. */
static void device_that_does_not_close_comes_back(void)
{
    device_comes_back("verbs", "port4+0 port0 stuck=9; port4+0 port0 removed=400000");
}

/* The only rail of a peer, which is lost on both sides. */
static void only_device_stays_away(void)
{
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    weft_completion c;
    config.fabric = "sim:like=verbs:rails=1:delay_us=20:world=none";
    config.liveness_ns = patiently(1) * SECOND;
    setenv("WEFT_SIM_FAULTS", "port2+0 port0 removed", 1);
    struct duo duo = duo_open_with(MIB, &config);
    struct range_request args = range_args(duo.a_memory, duo.b_of_a, 64 * KIB);
    strike(config.fabric);
    do
        c = box_await(duo.a, write_now(duo.a, &args), patience_ms());
    while (c.status == WEFT_OK);
    CHECK_STATUS(c.status, WEFT_ERR_PEER_LOST);
    CHECK_STATUS(box_take(duo.a, WEFT_COMPLETION_PEER_DOWN, patience_ms()).status, WEFT_ERR_PEER_LOST);
    CHECK_STATUS(box_take(duo.b, WEFT_COMPLETION_PEER_DOWN, patience_ms()).status, WEFT_ERR_PEER_LOST);
    CHECK_OK(weft_remote_memory_release(duo.b_of_a));
    duo_close(&duo);
}

/* Where single lanes cannot be closed, a failing NIC ends its peers, which the other NICs reach again at once. */
static void peers_of_a_dead_nic_connect_over_the_others(void)
{
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    config.fabric = "sim:like=efa:rails=4:delay_us=20:world=efa";
    setenv("WEFT_SIM_FAULTS", "port8+0 port5 kill", 1);
    struct duo duo = duo_open_with(MIB, &config);
    struct range_request args = range_args(duo.a_memory, duo.b_of_a, MIB);
    weft_rail_statistics before = WEFT_RAIL_STATISTICS_INIT, after = WEFT_RAIL_STATISTICS_INIT;
    char blob[8192];
    weft_completion c;
    CHECK_OK(box_await(duo.a, write_now(duo.a, &args), patience_ms()).status);
    CHECK_OK(weft_rail_info(duo.a->endpoint, 1, NULL, &before));
    CHECK(before.bytes_written > 0);
    strike(config.fabric);
    do
        c = box_await(duo.a, write_now(duo.a, &args), patience_ms());
    while (c.status == WEFT_OK);
    CHECK_STATUS(c.status, WEFT_ERR_PEER_LOST);
    CHECK_STATUS(box_take(duo.a, WEFT_COMPLETION_PEER_DOWN, patience_ms()).status, WEFT_ERR_PEER_LOST);
    CHECK_OK(weft_rail_info(duo.a->endpoint, 1, NULL, &before));
    CHECK_OK(weft_remote_memory_release(duo.b_of_a));
    size_t len = address_of(duo.b->endpoint, blob, sizeof blob);
    CHECK_OK(weft_peer_connect(duo.a->endpoint, blob, len, NULL, &duo.a_to_b));
    CHECK_OK(box_take(duo.a, WEFT_COMPLETION_PEER_UP, patience_ms()).status);
    len = descriptor_of(duo.b_memory, blob, sizeof blob);
    CHECK_OK(weft_remote_memory_import(duo.a->endpoint, duo.a_to_b, blob, len, &duo.b_of_a));
    args = range_args(duo.a_memory, duo.b_of_a, MIB);
    fill_random(duo.a_bytes, MIB, 1);
    CHECK_OK(box_await(duo.a, write_now(duo.a, &args), patience_ms()).status);
    CHECK(differs_random(duo.b_bytes, MIB, 1) < 0);
    CHECK_OK(weft_rail_info(duo.a->endpoint, 1, NULL, &after));
    CHECK_EQ(after.bytes_written, before.bytes_written);
    duo_close(&duo);
}

static const struct test tests[] = {
    {"operations_wait_for_lanes_that_reconnect", "once", operations_wait_for_lanes_that_reconnect},
    {"lane_of_another_worker_is_used_when_it_returns", "once", lane_of_another_worker_is_used_when_it_returns},
    {"dead_lane_delays_no_other", "once timed", dead_lane_delays_no_other},
    {"worker_without_lanes_fails_nothing", "once", worker_without_lanes_fails_nothing},
    {"memory_is_registered_without_a_removed_device", "once", memory_is_registered_without_a_removed_device},
    {"removed_devices_come_back", "once", removed_devices_come_back},
    {"device_that_does_not_close_comes_back", "once", device_that_does_not_close_comes_back},
    {"only_device_stays_away", "once", only_device_stays_away},
    {"peers_of_a_dead_nic_connect_over_the_others", "once", peers_of_a_dead_nic_connect_over_the_others},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
