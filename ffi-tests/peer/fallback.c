/* Peers that share two fabrics, of which the better one may not work. */
#include "harness.h"

#define NOBODY 65534
#define LEN (256 * KIB)

/* How a team connects, set before it is forked. */
static struct way {
    bool connects[2]; /* by rank */
    bool manual;
    uint32_t workers;
    bool foreign; /* rank 1 is another user's process */
    bool closes;  /* at the end, without a disconnect */
} way;

static struct box *open_both(void)
{
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    config.fabric = "host,tcp";
    config.rails = "lo";
    config.workers = way.workers;
    config.progress = way.manual ? WEFT_PROGRESS_MANUAL : WEFT_PROGRESS_THREADS;
    weft_endpoint *endpoint = open_with(&config);
    weft_rail_properties rail = WEFT_RAIL_PROPERTIES_INIT;
    CHECK_OK(weft_rail_info(endpoint, 1, &rail, NULL));
    CHECK_EQ(rail.worker, way.workers > 1);
    return box_of(endpoint);
}

/* Exchanges addresses; connects, or is connected to, or both. */
static weft_peer meets(struct team *team, struct box *box)
{
    char mine[8192], theirs[8192];
    int other = 1 - team->rank;
    weft_peer peer = 0;
    tell(team, other, mine, address_of(box->endpoint, mine, sizeof mine));
    size_t len = hear(team, other, box, theirs, sizeof theirs);
    if (way.connects[team->rank])
        CHECK_OK(weft_peer_connect(box->endpoint, theirs, len, NULL, &peer));
    weft_completion up = box_take(box, WEFT_COMPLETION_PEER_UP, patience_ms());
    CHECK_OK(up.status);
    CHECK(peer == 0 || peer == up.peer);
    meet(team, other, box);
    return up.peer;
}

static void is_served_by(struct box *box, weft_peer peer, const char *fabric, const char *why)
{
    weft_peer_properties properties = WEFT_PEER_PROPERTIES_INIT;
    CHECK_OK(weft_peer_info(box->endpoint, peer, &properties));
    CHECK_EQ(properties.up, 1);
    if (!strstr(properties.fabric, fabric) || !strstr(properties.reason, why))
        FAIL("it is %s (%s), not %s (%s)", properties.fabric, properties.reason, fabric, why);
    CHECK_EQ(properties.lanes, 1);
    CHECK_EQ(properties.local_rails, 1);
    CHECK_EQ(properties.remote_rails, 1);
}

/* Each side writes to the other, with a notification, and sends messages. */
static void exchange(struct team *team, struct box *box, weft_peer peer)
{
    int other = 1 - team->rank;
    uint8_t *out = map_bytes(LEN), *in = map_bytes(LEN);
    fill_random(out, LEN, (uint64_t)team->rank);
    weft_memory *from = register_one(box->endpoint, out, LEN);
    weft_memory *to = register_one(box->endpoint, in, LEN);
    give_memory(team, other, to);
    weft_remote_memory *theirs = take_memory(team, other, box, peer);
    struct range_request args = range_args(from, theirs, LEN);
    args.options.flags = WEFT_NOTIFY;
    args.options.notify = 77;
    weft_op written = write_now(box, &args);
    for (uint64_t i = 0; i < 100; i++)
        send_now(box, peer, &i, sizeof i);
    CHECK_OK(box_await(box, written, patience_ms()).status);
    CHECK_EQ(box_take(box, WEFT_COMPLETION_NOTIFICATION, patience_ms()).notify, 77);
    CHECK_EQ(differs_random(in, LEN, (uint64_t)other), -1);
    for (uint64_t i = 0; i < 100; i++) {
        weft_completion got = box_take(box, WEFT_COMPLETION_MESSAGE, patience_ms());
        CHECK(got.bytes == sizeof i && memcmp(got.data, &i, sizeof i) == 0);
        CHECK_OK(weft_message_release(box->endpoint, got.op));
        CHECK_OK(box_take(box, WEFT_COMPLETION_SEND, patience_ms()).status);
    }
    meet(team, other, box);
    CHECK_OK(weft_remote_memory_release(theirs));
}

static void lives(struct team *team)
{
    if (way.foreign && team->rank == 1)
        CHECK(setgid(NOBODY) == 0 && setuid(NOBODY) == 0);
    struct box *box = open_both();
    weft_peer peer = meets(team, box);
    /* Where both connect, tcp may be up before a slow process has learned why host failed. */
    if (way.foreign)
        is_served_by(box, peer, "tcp", way.connects[0] && way.connects[1] ? "host " : "host could not be reached: ");
    else
        is_served_by(box, peer, "host", "host is the best of the fabrics that both have");
    exchange(team, box, peer);
    meet(team, 1 - team->rank, box);
    /* A side that was up before it connected itself gets both events. */
    weft_completion again;
    if (way.connects[0] && way.connects[1] && box_try(box, WEFT_COMPLETION_PEER_UP, &again))
        CHECK(again.status == WEFT_OK && again.peer == peer);
    if (team->rank == 0 && way.closes) {
        box_close(box);
        return;
    }
    if (team->rank == 0)
        CHECK_OK(weft_peer_disconnect(box->endpoint, peer));
    CHECK_STATUS(box_take(box, WEFT_COMPLETION_PEER_DOWN, patience_ms()).status,
                 team->rank == 0 ? WEFT_OK : WEFT_ERR_PEER_CLOSED);
    box_quiet(box, 20);
    box_close(box);
}

/* With threads and without, with all rails on one worker and each on its own. */
static void in_every_way(bool first_connects, bool second_connects, bool foreign)
{
    for (int round = 0; round < 6; round++) {
        way = (struct way){.connects = {first_connects, second_connects}, .foreign = foreign};
        way.manual = round % 3 == 1;
        way.workers = round % 3 == 2 ? 2 : 0;
        way.closes = round >= 3;
        run_pair(lives, lives);
    }
}

static void with_another_user(bool first_connects, bool second_connects)
{
    if (geteuid() != 0)
        skip("only root can become another user");
    in_every_way(first_connects, second_connects, true);
}

static void host_falls_back_to_tcp_towards_another_user(void)
{
    with_another_user(true, false);
}

static void host_falls_back_to_tcp_from_another_user(void)
{
    with_another_user(false, true);
}

static void both_users_connect_at_once(void)
{
    with_another_user(true, true);
}

static void peers_of_one_user_stay_on_host(void)
{
    in_every_way(true, false, false);
    in_every_way(true, true, false);
}

/* ---- A peer that is only busy ---- */

static void connects_to_the_stopped(struct team *team)
{
    struct box *box = open_both();
    char theirs[8192];
    weft_peer peer;
    size_t len = hear(team, 1, box, theirs, sizeof theirs);
    pid_t pid = pid_of(team, 1);
    stop_process(pid);
    CHECK_OK(weft_peer_connect(box->endpoint, theirs, len, NULL, &peer));
    box_quiet(box, 1500); /* tcp is tried meanwhile */
    CHECK(kill(pid, SIGCONT) == 0);
    CHECK_OK(box_take(box, WEFT_COMPLETION_PEER_UP, patience_ms()).status);
    meet(team, 1, box);
    is_served_by(box, peer, "host", "host is the best");
    exchange(team, box, peer);
    meet(team, 1, box);
    box_close(box);
}

static void is_stopped(struct team *team)
{
    struct box *box = open_both();
    char mine[8192];
    tell(team, 0, mine, address_of(box->endpoint, mine, sizeof mine));
    weft_completion up = box_take(box, WEFT_COMPLETION_PEER_UP, patience_ms());
    CHECK_OK(up.status);
    meet(team, 0, box);
    is_served_by(box, up.peer, "host", "host is the best");
    exchange(team, box, up.peer);
    meet(team, 0, box);
    box_close(box);
}

static void busy_peer_stays_on_host(void)
{
    for (uint32_t workers = 1; workers <= 2; workers++) {
        way = (struct way){.workers = workers};
        run_pair(connects_to_the_stopped, is_stopped);
    }
}

/* ---- No endpoint at the address ---- */

static void leaves(struct team *team)
{
    struct box *box = open_both();
    char mine[8192];
    tell(team, 0, mine, address_of(box->endpoint, mine, sizeof mine));
    box_close(box);
    meet(team, 0, NULL);
}

static void calls_the_peer_that_left(struct team *team)
{
    struct box *box = open_both();
    char theirs[8192];
    weft_peer peer;
    weft_op_options args = WEFT_OP_OPTIONS_INIT;
    args.timeout_ns = 2 * SECOND;
    size_t len = hear(team, 1, box, theirs, sizeof theirs);
    meet(team, 1, box);
    uint64_t began = judged_from();
    CHECK_OK(weft_peer_connect(box->endpoint, theirs, len, &args, &peer));
    weft_completion up = box_take(box, WEFT_COMPLETION_PEER_UP, patience_ms());
    CHECK_STATUS(up.status, WEFT_ERR_UNREACHABLE);
    CHECK_WITHIN(began + args.timeout_ns, up.done_ns, LATE_MOST);
    box_quiet(box, 100);
    box_close(box);
}

static void closed_peer_is_unreachable(void)
{
    way = (struct way){0};
    run_pair(calls_the_peer_that_left, leaves);
}

/* ---- Simulated NICs, whose better fabrics fail differently from host ---- */

#define BETTER "sim:like=efa:world=better"
#define WORSE "sim:like=tcp:rails=2:world=worse"
#define CONNECT patiently(4 * SECOND)

static struct box *open_simulated(const char *name, uint32_t workers)
{
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    config.fabric = name;
    config.workers = workers;
    return box_of(open_with(&config));
}

static weft_peer connect_now(struct box *from, struct box *to)
{
    char address[8192];
    weft_peer peer;
    weft_op_options args = WEFT_OP_OPTIONS_INIT;
    args.timeout_ns = CONNECT;
    size_t len = address_of(to->endpoint, address, sizeof address);
    CHECK_OK(weft_peer_connect(from->endpoint, address, len, &args, &peer));
    return peer;
}

static weft_peer arrives(struct box *box, uint32_t lanes, const char *fabric, const char *why)
{
    weft_peer_properties properties = WEFT_PEER_PROPERTIES_INIT;
    weft_completion up = box_take(box, WEFT_COMPLETION_PEER_UP, patience_ms());
    CHECK_OK(up.status);
    CHECK_OK(weft_peer_info(box->endpoint, up.peer, &properties));
    if (!strstr(properties.fabric, fabric) || !strstr(properties.reason, why))
        FAIL("it is %s (%s), not %s (%s)", properties.fabric, properties.reason, fabric, why);
    CHECK_EQ(properties.lanes, lanes);
    return up.peer;
}

/* A better fabric that fails before any connect, beside a working one: the working one serves, whichever side
   connects. */
static void falls_back(const char *fault, const char *why, uint32_t workers)
{
    char faults[64];
    snprintf(faults, sizeof faults, "port2+0 %s", fault);
    for (int who = 1; who <= 3; who++) {
        /* The working world begins first, without faults. */
        unsetenv("WEFT_SIM_FAULTS");
        struct box *keeper = open_simulated(WORSE, 0);
        setenv("WEFT_SIM_FAULTS", faults, 1);
        struct box *box[2];
        for (int side = 0; side < 2; side++)
            box[side] = open_simulated(BETTER "," WORSE, workers);
        CHECK_OK(weft_endpoint_destroy(open_with(&(weft_endpoint_config){.size = sizeof(weft_endpoint_config), .fabric = BETTER})));
        uint64_t began = judged_from();
        for (int side = 0; side < 2; side++)
            if (who & 1 << side)
                connect_now(box[side], box[1 - side]);
        for (int side = 0; side < 2; side++) {
            weft_peer peer = arrives(box[side], 2, "world=worse", why);
            CHECK_OK(box_await(box[side], send_now(box[side], peer, "hello", 5), patience_ms()).status);
        }
        /* The head start is a quarter of the connect's time; the accepting side follows at once. */
        CHECK_WITHIN(began + CONNECT / 4, now_ns(), 800 * MS);
        for (int side = 0; side < 2; side++)
            box_close(box[side]);
        box_close(keeper);
    }
}

static void silent_fabric_is_abandoned(void)
{
    const char *faults[] = {"* down", "port0 down:tx", "port1 kill"};
    for (size_t i = 0; i < COUNT(faults); i++)
        falls_back(faults[i], "; using sim:like=tcp:world=worse", i);
}

static const struct test tests[] = {
    {"host_falls_back_to_tcp_towards_another_user", "once", host_falls_back_to_tcp_towards_another_user},
    {"host_falls_back_to_tcp_from_another_user", "once", host_falls_back_to_tcp_from_another_user},
    {"both_users_connect_at_once", "once", both_users_connect_at_once},
    {"peers_of_one_user_stay_on_host", "once", peers_of_one_user_stay_on_host},
    {"busy_peer_stays_on_host", "once", busy_peer_stays_on_host},
    {"closed_peer_is_unreachable", "once timed", closed_peer_is_unreachable},
    {"silent_fabric_is_abandoned", "once timed", silent_fabric_is_abandoned},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
