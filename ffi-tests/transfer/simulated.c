/* Simulated NICs: valid names, virtual time, planned faults, replay. */
#include "harness.h"

#define PAGES 100
#define PAGE (16 * KIB)
#define WRITES 40

static weft_endpoint *open_simulated(const char *name)
{
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    config.fabric = name;
    config.progress = WEFT_PROGRESS_MANUAL;
    return open_with(&config);
}

static void invalid_simulation_names_are_refused(void)
{
    const char *names[] = {"sim:like=ib", "sim:rails=65", "sim:", "sim:nocopy=1", "sim:seed=1:seed=2",
                           "sim:clock=virtual,tcp", "sim,tcp", "sim:world=a,sim:world=b:clock=virtual"};
    for (size_t i = 0; i < COUNT(names); i++) {
        weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
        weft_endpoint *endpoint = NULL;
        config.fabric = names[i];
        REFUSED(WEFT_ERR_INVALID, weft_endpoint_create(&config, &endpoint));
    }
    setenv("WEFT_SIM_FAULTS", "soon rail1 down", 1);
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    weft_endpoint *endpoint = NULL;
    config.fabric = "sim";
    REFUSED(WEFT_ERR_INVALID, weft_endpoint_create(&config, &endpoint));
    CHECK(strstr(weft_last_error(), "soon rail1 down") != NULL);
}

static void virtual_time_needs_manual_progress(void)
{
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    weft_endpoint *endpoint = NULL;
    config.fabric = "sim:clock=virtual";
    REFUSED(WEFT_ERR_UNSUPPORTED, weft_endpoint_create(&config, &endpoint));
    CHECK(strstr(weft_last_error(), "WEFT_PROGRESS_MANUAL") != NULL);
}

/* ---- A world of two ---- */

struct world {
    struct box *box[2];
    weft_peer peer;
    weft_memory *memory;
    weft_remote_memory *theirs;
    uint8_t *bytes[2];
    uint64_t len;
    /* All completions, in order. */
    uint8_t *trace;
    size_t traced;
};

static void trace(struct world *world, int side, uint64_t ms)
{
    struct box *box = world->box[side];
    size_t before = box->count;
    box_pump(box, ms);
    for (size_t i = before; i < box->count; i++) {
        weft_completion c = box->items[i];
        memset(&c.data, 0, sizeof c.data); /* the address of a message differs */
        world->trace = realloc(world->trace, world->traced + 1 + sizeof c);
        CHECK(world->trace != NULL);
        world->trace[world->traced] = (uint8_t)side;
        memcpy(world->trace + world->traced + 1, &c, sizeof c);
        world->traced += 1 + sizeof c;
    }
}

static weft_completion await_kind(struct world *world, int side, weft_completion_kind kind)
{
    weft_completion c;
    for (int i = 0; !box_try(world->box[side], kind, &c); i++) {
        CHECK(i < 100000);
        trace(world, side, 1);
    }
    return c;
}

static struct world begin_world(const char *name, uint64_t len)
{
    char blob[8192];
    struct world world = {.len = len};
    for (int side = 0; side < 2; side++) {
        world.box[side] = box_of(open_simulated(name));
        world.bytes[side] = map_bytes(len);
    }
    size_t n = address_of(world.box[1]->endpoint, blob, sizeof blob);
    CHECK_OK(weft_peer_connect(world.box[0]->endpoint, blob, n, NULL, &world.peer));
    CHECK_OK(await_kind(&world, 0, WEFT_COMPLETION_PEER_UP).status);
    CHECK_OK(await_kind(&world, 1, WEFT_COMPLETION_PEER_UP).status);
    world.memory = register_one(world.box[0]->endpoint, world.bytes[0], len);
    n = descriptor_of(register_one(world.box[1]->endpoint, world.bytes[1], len), blob, sizeof blob);
    CHECK_OK(weft_remote_memory_import(world.box[0]->endpoint, world.peer, blob, n, &world.theirs));
    return world;
}

static void end_world(struct world *world)
{
    for (int side = 0; side < 2; side++) {
        box_close(world->box[side]);
        munmap(world->bytes[side], world->len);
    }
    free(world->trace);
}

static void write_pages(struct world *world, uint64_t seed, uint64_t timeout_ns)
{
    uint32_t mine[PAGES], yours[PAGES];
    uint64_t pages = world->len / PAGE;
    for (size_t i = 0; i < PAGES; i++) {
        mine[i] = (uint32_t)(next_random(&seed) % pages);
        yours[i] = mine[i]; /* each page has one content, whatever the order */
    }
    struct pages_request args = PAGES_REQUEST_INIT;
    args.local = world->memory;
    args.remote = world->theirs;
    args.pages.local.pages = mine;
    args.pages.remote.pages = yours;
    args.pages.page_len = args.pages.local.page_stride = args.pages.remote.page_stride = PAGE;
    args.pages.page_count = PAGES;
    args.options.timeout_ns = timeout_ns;
    args.options.flags = seed % 2 ? WEFT_NOTIFY : 0;
    CHECK_OK(submit_write_pages(world->box[0]->endpoint, &args, NULL));
}

/* ---- Replay ---- */

/* Runs the same operations in a world of that name; returns what completed, byte for byte. */
static struct world played(const char *name, const char *faults)
{
    setenv("WEFT_SIM_FAULTS", faults, 1);
    struct world world = begin_world(name, 4 * MIB);
    fill_random(world.bytes[0], world.len, 7);
    struct send_request message = SEND_REQUEST_INIT;
    message.peer = world.peer;
    message.data = "again";
    message.len = 5;
    for (uint64_t i = 0; i < WRITES; i++) {
        write_pages(&world, i, 0);
        CHECK_OK(submit_send(world.box[0]->endpoint, &message, NULL));
    }
    for (int i = 0; i < WRITES; i++)
        CHECK_OK(await_kind(&world, 0, WEFT_COMPLETION_WRITE).status);
    for (int i = 0; i < WRITES; i++) {
        CHECK_OK(await_kind(&world, 0, WEFT_COMPLETION_SEND).status);
        weft_completion got = await_kind(&world, 1, WEFT_COMPLETION_MESSAGE);
        CHECK(memcmp(got.data, "again", 5) == 0);
    }
    return world;
}

static void virtual_time_replays_byte_for_byte(void)
{
    const char *modes[] = {"tcp", "efa", "efa-direct", "verbs"};
    const char *faults = "300 rail1 down:tx; 900 rail1 up; 1000 rail0 slow=0.3; 1200 port2 again=300";
    for (size_t i = 0; i < COUNT(modes); i++) {
        char name[2][128];
        struct world world[3];
        for (int seed = 0; seed < 2; seed++)
            snprintf(name[seed], sizeof name[seed],
                     "sim:like=%s:rails=3:gbps=10:delay_us=20:clock=virtual:seed=%d", modes[i], seed);
        for (int run = 0; run < 3; run++) {
            world[run] = played(name[run / 2], faults);
            weft_endpoint *endpoints[] = {world[run].box[0]->endpoint, world[run].box[1]->endpoint};
            for (int side = 0; side < 2; side++)
                CHECK_OK(weft_endpoint_shutdown(endpoints[side], 0));
            for (int side = 0; side < 2; side++)
                CHECK_OK(weft_endpoint_destroy(endpoints[side]));
        }
        CHECK(world[0].traced > 3 * WRITES * sizeof(weft_completion));
        CHECK_EQ(world[0].traced, world[1].traced);
        if (memcmp(world[0].trace, world[1].trace, world[0].traced) != 0)
            FAIL("%s: two runs of one seed differ", modes[i]);
        if (world[0].traced == world[2].traced &&
            memcmp(world[0].trace, world[2].trace, world[0].traced) == 0)
            FAIL("%s: two seeds give the same run", modes[i]);
    }
}

/* ---- Time and faults ---- */

static void wait_advances_virtual_time(void)
{
    struct world world = begin_world("sim:clock=virtual:delay_us=1000", MIB);
    uint64_t begin = judged_from();
    weft_completion c;
    CHECK_EQ(weft_queue_poll(weft_endpoint_queue(world.box[0]->endpoint), &c, 1, 20 * SECOND), 0);
    CHECK_WITHIN(begin, now_ns(), 5 * SECOND);
    struct range_request args = range_args(world.memory, world.theirs, 64);
    CHECK_OK(submit_write(world.box[0]->endpoint, &args, NULL));
    c = await_kind(&world, 0, WEFT_COMPLETION_WRITE);
    CHECK_OK(c.status);
    CHECK(c.done_ns - c.first_post_ns >= 2 * MS && c.done_ns - c.first_post_ns < 4 * MS);
    end_world(&world);
}

/* A peer is killed during a transfer: each operation ends with a reason, in time. */
static void killed_peer_ends_every_operation(void)
{
    const char *modes[] = {"tcp", "efa", "efa-direct", "verbs"};
    for (size_t i = 0; i < COUNT(modes); i++) {
        char name[128];
        snprintf(name, sizeof name, "sim:like=%s:gbps=1:clock=virtual:world=k%zu", modes[i], i);
        setenv("WEFT_SIM_FAULTS", "20000 port1 kill", 1);
        struct world world = begin_world(name, 4 * MIB);
        for (uint64_t k = 0; k < WRITES; k++)
            write_pages(&world, k, 2 * SECOND);
        int lost = 0;
        for (uint64_t k = 0; k < WRITES; k++) {
            weft_completion c = await_kind(&world, 0, WEFT_COMPLETION_WRITE);
            CHECK(c.done_ns - c.submit_ns < 2 * SECOND + 200 * MS);
            lost += CHECK_ONE_OF(c.status, WEFT_OK, WEFT_ERR_PEER_LOST, WEFT_ERR_TIMED_OUT) != WEFT_OK;
        }
        CHECK(lost > 0);
    }
}

/* Whenever a rail fails, with or without others: bytes reported as written are there, to the last. */
static void success_is_reported_correctly_when_a_rail_fails(void)
{
    enum { TIMES = 60, AT_ONCE = 4, AFTERWARDS = 600 };
    const uint64_t each = 16 * KIB;
    const uint32_t backwards[] = {3, 2, 1, 0}; /* neighbours that are not merged */
    const char *modes[] = {"tcp", "efa", "efa-direct", "verbs"};
    for (int k = 0; k < TIMES; k++) {
        char name[128], fault[64];
        snprintf(name, sizeof name, "sim:like=%s:rails=2:gbps=1:delay_us=500:clock=virtual:world=b%d",
                 modes[k % 4], k);
        snprintf(fault, sizeof fault, "%d port%d kill", 60000 + k * 97, k % 8 < 4 ? 2 : 3);
        setenv("WEFT_SIM_FAULTS", fault, 1);
        struct world world = begin_world(name, AT_ONCE * each);
        uint64_t written = 0, submitted = 0, begin = 0, now = 0;
        for (weft_status status = WEFT_OK; status == WEFT_OK && now - begin < AFTERWARDS * MS;) {
            uint64_t at = submitted * each;
            if (submitted >= AT_ONCE) {
                weft_completion c = await_kind(&world, 0, WEFT_COMPLETION_WRITE);
                at = (uint64_t)(uintptr_t)c.user_data;
                status = c.status;
                (now = c.done_ns, begin = begin ? begin : now);
                if (status == WEFT_OK && memcmp(world.bytes[0] + at, world.bytes[1] + at, each) != 0)
                    FAIL("%s, %s: a write is not there", name, fault);
                written += status == WEFT_OK;
            }
            struct pages_request args = PAGES_REQUEST_INIT;
            args.local = world.memory;
            args.remote = world.theirs;
            args.pages.local.pages = args.pages.remote.pages = backwards;
            args.pages.page_count = COUNT(backwards);
            args.pages.page_len = args.pages.local.page_stride = args.pages.remote.page_stride = 4 * KIB;
            args.pages.local.offset = args.pages.remote.offset = at;
            args.options.user_data = (void *)(uintptr_t)at;
            fill_random(world.bytes[0] + at, each, submitted++);
            if (status == WEFT_OK)
                status = submit_write_pages(world.box[0]->endpoint, &args, NULL);
        }
        CHECK(written > AT_ONCE);
        end_world(&world);
    }
}

/* A link that fails and returns loses and doubles nothing. */
static void link_that_returns_loses_nothing(void)
{
    const char *modes[] = {"tcp", "efa", "efa-direct", "verbs"};
    for (size_t i = 0; i < COUNT(modes); i++) {
        char name[128];
        snprintf(name, sizeof name, "sim:like=%s:rails=2:gbps=10:clock=virtual:world=l%zu", modes[i], i);
        setenv("WEFT_SIM_FAULTS", "150000 rail1 down; 2000000 rail1 up", 1);
        struct world world = begin_world(name, 4 * MIB);
        fill_random(world.bytes[0], world.len, i);
        struct range_request args = range_args(world.memory, world.theirs, world.len);
        uint64_t longest = 0;
        for (int k = 0; k < 100; k++)
            CHECK_OK(submit_write(world.box[0]->endpoint, &args, NULL));
        for (int k = 0; k < 100; k++) {
            weft_completion c = await_kind(&world, 0, WEFT_COMPLETION_WRITE);
            CHECK_OK(c.status);
            longest = c.done_ns - c.submit_ns > longest ? c.done_ns - c.submit_ns : longest;
        }
        /* The failure did hit them; where a connection or an endpoint can be closed, the other rail takes over. */
        CHECK(i != 1 ? longest > 100 * MS && longest < 1500 * MS : longest > 1500 * MS);
        CHECK(memcmp(world.bytes[0], world.bytes[1], world.len) == 0);
        end_world(&world);
    }
}

/* A line becomes so slow that the window shrinks far below the bytes in flight: all of them complete, and the window
 * opens again. */
static void slowing_line_keeps_carrying(void)
{
    enum { PAGES_60K = 100, TRANSFERS = 48, AT_ONCE = 4 };
    uint32_t backwards[PAGES_60K]; /* neighbours that nobody merges */
    for (uint32_t i = 0; i < PAGES_60K; i++)
        backwards[i] = PAGES_60K - 1 - i;
    setenv("WEFT_SIM_FAULTS", "15000 rail0 slow=0.003", 1);
    struct world world = begin_world("sim:like=tcp:gbps=100:delay_us=10:clock=virtual:nocopy", 8 * MIB);
    struct pages_request args = PAGES_REQUEST_INIT;
    args.local = world.memory;
    args.remote = world.theirs;
    args.pages.page_len = args.pages.local.page_stride = args.pages.remote.page_stride = 60 * KIB;
    args.pages.local.pages = args.pages.remote.pages = backwards;
    args.pages.page_count = PAGES_60K;
    uint64_t slow = 0;
    for (int i = 0; i < TRANSFERS + AT_ONCE; i++) {
        if (i < TRANSFERS)
            CHECK_OK(submit_write_pages(world.box[0]->endpoint, &args, NULL));
        if (i < AT_ONCE)
            continue;
        weft_completion c = await_kind(&world, 0, WEFT_COMPLETION_WRITE);
        CHECK_OK(c.status);
        slow += c.done_ns - c.submit_ns > 200 * MS;
    }
    CHECK(slow >= AT_ONCE); /* the change did hit them */
    end_world(&world);
}

/* Each write expires before the far end can have answered, so its lane is reset, again and again: neither side takes the
 * other for lost. */
static void expiring_operations_lose_no_peer(void)
{
    const char *modes[] = {"tcp", "verbs"};
    for (size_t i = 0; i < COUNT(modes); i++) {
        char name[128];
        snprintf(name, sizeof name, "sim:like=%s:delay_us=60000:clock=virtual:world=x%zu", modes[i], i);
        struct world world = begin_world(name, MIB);
        struct range_request args = range_args(world.memory, world.theirs, 64);
        weft_completion c;
        int posted = 0;
        for (int k = 0; k < 4000; k++) {
            args.options.timeout_ns = 5 * MS;
            CHECK_OK(submit_write(world.box[0]->endpoint, &args, NULL));
            posted += await_kind(&world, 0, WEFT_COMPLETION_WRITE).first_post_ns != 0;
            for (int side = 0; side < 2; side++) {
                trace(&world, side, 0);
                if (box_try(world.box[side], WEFT_COMPLETION_PEER_DOWN, &c))
                    FAIL("%s: side %d: %s after %d writes that were posted", modes[i], side, weft_status_name(c.status), posted);
            }
        }
        CHECK(posted > 10);
        args.options.timeout_ns = 10 * SECOND;
        CHECK_OK(submit_write(world.box[0]->endpoint, &args, NULL));
        CHECK_OK(await_kind(&world, 0, WEFT_COMPLETION_WRITE).status);
        end_world(&world);
    }
}

/* Also where a handshake takes longer than a returning lane is given at first. */
static void lane_returns_where_connecting_takes_seconds(void)
{
    setenv("WEFT_SIM_FAULTS", "30000000 rail1 down; 60000000 rail1 up", 1);
    struct world world = begin_world("sim:like=verbs:rails=2:delay_us=300000:clock=virtual:world=far", MIB);
    struct range_request args = range_args(world.memory, world.theirs, MIB);
    weft_completion c;
    for (int writes = 0; !box_try(world.box[0], WEFT_COMPLETION_RAIL_DOWN, &c); writes++) {
        CHECK(writes < 1000);
        CHECK_OK(submit_write(world.box[0]->endpoint, &args, NULL));
        CHECK_OK(await_kind(&world, 0, WEFT_COMPLETION_WRITE).status);
    }
    CHECK_OK(await_kind(&world, 0, WEFT_COMPLETION_RAIL_UP).status);
    end_world(&world);
}

/* The NIC has lost what it sent, repeats it after a minute, and reports nothing; there is no other lane to compare it to. */
static void only_lane_that_carries_nothing_is_connected_anew(void)
{
    setenv("WEFT_SIM_FAULTS", "30000000 rail0 down; 32000000 rail0 up", 1);
    struct world world = begin_world("sim:like=verbs:delay_us=1000:clock=virtual:world=mute", MIB);
    struct range_request args = range_args(world.memory, world.theirs, MIB);
    weft_completion c = {0};
    while (c.done_ns < 40 * SECOND) {
        CHECK_OK(submit_write(world.box[0]->endpoint, &args, NULL));
        c = await_kind(&world, 0, WEFT_COMPLETION_WRITE);
        CHECK_OK(c.status);
        CHECK(!box_try(world.box[0], WEFT_COMPLETION_PEER_DOWN, &c));
    }
    end_world(&world);
}

/* What a silent peer has begun to write could land after a revoke. */
static void emulated_writes_are_refused_or_without_grants(void)
{
    const char *emulated = "sim:like=efa:emulated:clock=virtual:world=emulated";
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    weft_endpoint *endpoint = NULL;
    config.fabric = emulated;
    config.progress = WEFT_PROGRESS_MANUAL;
    REFUSED(WEFT_ERR_NO_RAILS, weft_endpoint_create(&config, &endpoint));
    CHECK(strstr(weft_last_error(), "WEFT_EFA_EMULATED=1") != NULL);
    setenv("WEFT_EFA_EMULATED", "1", 1);
    struct world world = begin_world(emulated, MIB);
    weft_grant_token token;
    REFUSED(WEFT_ERR_UNSUPPORTED, weft_grant_create(world.memory, world.peer, NULL, &token));
    /* Nor while the peer connects. */
    struct box *late = box_of(open_simulated(emulated));
    char blob[8192];
    weft_peer connecting;
    size_t n = address_of(late->endpoint, blob, sizeof blob);
    CHECK_OK(weft_peer_connect(world.box[0]->endpoint, blob, n, NULL, &connecting));
    REFUSED(WEFT_ERR_UNSUPPORTED, weft_grant_create(world.memory, connecting, NULL, &token));
    end_world(&world);
    box_close(late);
    world = begin_world("sim:like=efa:clock=virtual:world=native", MIB);
    CHECK_OK(weft_grant_create(world.memory, world.peer, NULL, &token));
    end_world(&world);
}

static const struct test tests[] = {
    {"emulated_writes_are_refused_or_without_grants", "once", emulated_writes_are_refused_or_without_grants},
    {"invalid_simulation_names_are_refused", "once", invalid_simulation_names_are_refused},
    {"virtual_time_needs_manual_progress", "once", virtual_time_needs_manual_progress},
    {"virtual_time_replays_byte_for_byte", "once", virtual_time_replays_byte_for_byte},
    {"wait_advances_virtual_time", "once timed", wait_advances_virtual_time},
    {"killed_peer_ends_every_operation", "once", killed_peer_ends_every_operation},
    {"success_is_reported_correctly_when_a_rail_fails", "once", success_is_reported_correctly_when_a_rail_fails},
    {"link_that_returns_loses_nothing", "once", link_that_returns_loses_nothing},
    {"lane_returns_where_connecting_takes_seconds", "once", lane_returns_where_connecting_takes_seconds},
    {"only_lane_that_carries_nothing_is_connected_anew", "once", only_lane_that_carries_nothing_is_connected_anew},
    {"slowing_line_keeps_carrying", "once", slowing_line_keeps_carrying},
    {"expiring_operations_lose_no_peer", "once", expiring_operations_lose_no_peer},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
