/*
 * Unusual networks: ports that a firewall allows, translated addresses, IPv6 alone, small packets, a port that another
 * program has taken over, children that hold the sockets of a dead process.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/mount.h>

#include "harness.h"

#define LEN (4 * MIB)
#define PAGE (4 * KIB)

/* ---- Hosts in namespaces, which only root can make ---- */

/* From now on this process is on its own host. Call before any thread is started. */
static void leave_this_host(void)
{
    if (unshare(CLONE_NEWNET | CLONE_NEWNS) != 0)
        skip("no namespaces can be made here: %s", strerror(errno));
    if (system("PATH=$PATH:/usr/sbin:/sbin command -v ip >/dev/null") != 0)
        skip("iproute2 is not installed");
    /* /sys/class/net shows the namespace in which /sys was mounted. */
    if (mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) != 0 || umount2("/sys", MNT_DETACH) != 0 ||
        mount("sysfs", "/sys", "sysfs", 0, NULL) != 0)
        skip("/sys cannot be mounted here: %s", strerror(errno));
    shell("ip link set lo up");
}

/* A cable to another member's host, and our end's address. It is eth0 there. */
static void plug(struct team *team, int to, const char *name, const char *address, int mtu)
{
    shell("ip link add %s mtu %d type veth peer name eth0 mtu %d netns %d", name, mtu, mtu, (int)pid_of(team, to));
    shell("ip addr add %s dev %s%s", address, name, strchr(address, ':') ? " nodad" : "");
    shell("ip link set %s up", name);
}

static void plugged(const char *address)
{
    shell("ip addr add %s dev eth0%s", address, strchr(address, ':') ? " nodad" : "");
    shell("ip link set eth0 up");
}

/* ---- Pages, in both directions ---- */

static struct box *box_on(const char *rails, const char *ports, const char *address, uint32_t rail_count)
{
    weft_endpoint_config config = test_config();
    config.rails = rails;
    config.rail_count = rail_count;
    config.tcp_ports = ports;
    config.tcp_address = address;
    return box_of(open_with(&config));
}

static weft_status pages(struct box *box, weft_memory *local, weft_remote_memory *remote, bool read)
{
    weft_op id;
    struct pages_request args = PAGES_REQUEST_INIT;
    args.local = local;
    args.remote = remote;
    args.pages.page_len = PAGE;
    args.pages.page_count = LEN / PAGE;
    args.pages.layer_count = 1;
    CHECK_OK((read ? submit_read_pages : submit_write_pages)(box->endpoint, &args, &id));
    return box_await(box, id, patience_ms()).status;
}

/* The lower rank writes and reads. */
static void pages_move(struct team *team, int with, struct box *box)
{
    uint8_t *bytes = map_bytes(LEN);
    weft_memory *memory = register_one(box->endpoint, bytes, LEN);
    weft_peer peer = join(team, with, box);
    if (team->rank < with) {
        weft_remote_memory *remote = take_memory(team, with, box, peer);
        fill_random(bytes, LEN, 7);
        CHECK_OK(pages(box, memory, remote, false));
        memset(bytes, 0, LEN);
        CHECK_OK(pages(box, memory, remote, true));
    } else {
        give_memory(team, with, memory);
    }
    meet(team, with, box);
    CHECK_EQ(differs_random(bytes, LEN, 7), -1);
    meet(team, with, box);
    box_close(box);
}

static void duo_moves_pages(struct duo *duo)
{
    fill_random(duo->a_bytes, LEN, 9);
    CHECK_OK(pages(duo->a, duo->a_memory, duo->b_of_a, false));
    CHECK_EQ(differs_random(duo->b_bytes, LEN, 9), -1);
    memset(duo->a_bytes, 0, LEN);
    CHECK_OK(pages(duo->a, duo->a_memory, duo->b_of_a, true));
    CHECK_EQ(differs_random(duo->a_bytes, LEN, 9), -1);
}

static const char *rail_address(weft_endpoint *endpoint, uint32_t index)
{
    static weft_rail_properties rail;
    rail = (weft_rail_properties)WEFT_RAIL_PROPERTIES_INIT;
    CHECK_OK(weft_rail_info(endpoint, index, &rail, NULL));
    return rail.address;
}

static int port_of(weft_endpoint *endpoint)
{
    return atoi(strrchr(rail_address(endpoint, 0), ':') + 1);
}

/* ---- IPv6, and small packets ---- */

static void pages_move_over_ipv6_loopback(void)
{
    leave_this_host();
    shell("ip addr del 127.0.0.1/8 dev lo");
    struct duo duo = duo_open(LEN);
    CHECK(strncmp(rail_address(duo.a->endpoint, 0), "[::1]:", 6) == 0);
    duo_moves_pages(&duo);
    duo_close(&duo);
}

/* The first address of each end; then one of them has another, of the other family. */
static const struct way {
    const char *left, *right;
    int mtu;
    const char *left_also, *right_also;
} ways[] = {{"fd00:79::1/64", "fd00:79::2/64", 1500, NULL, NULL},
            {"fd00:79::1/64", "fd00:79::2/64", 1280, NULL, NULL},
            {"10.79.0.1/24", "10.79.0.2/24", 1280, NULL, NULL},
            {"10.79.0.1/24", "fd00:79::2/64", 1500, "fd00:79::1/64", NULL},
            {"fd00:79::1/64", "10.79.0.2/24", 1500, NULL, "fd00:79::2/64"}};
static const struct way *way;

static void left_of_a_cable(struct team *team)
{
    leave_this_host();
    meet(team, 1, NULL);
    plug(team, 1, "eth0", way->left, way->mtu);
    if (way->left_also)
        shell("ip addr add %s dev eth0 nodad", way->left_also);
    meet(team, 1, NULL);
    pages_move(team, 1, box_on("eth0", NULL, NULL, 0));
}

static void right_of_a_cable(struct team *team)
{
    leave_this_host();
    meet(team, 0, NULL);
    meet(team, 0, NULL);
    plugged(way->right);
    if (way->right_also)
        shell("ip addr add %s dev eth0 nodad", way->right_also);
    pages_move(team, 0, box_on("eth0", NULL, NULL, 0));
}

static void pages_move_over_cables(void)
{
    for (way = ways; way < ways + COUNT(ways); way++)
        run_pair(left_of_a_cable, right_of_a_cable);
}

/* ---- Ports and addresses ---- */

static int listen_at(const char *address, int port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    CHECK_EQ(inet_pton(AF_INET, address, &at.sin_addr), 1);
    CHECK(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
    for (uint64_t until = now_ns() + patience_ms() * MS; bind(fd, (struct sockaddr *)&at, sizeof at) != 0; sleep_ms(1))
        CHECK(errno == EADDRINUSE && now_ns() < until);
    CHECK(listen(fd, 100) == 0);
    return fd;
}

static void ports_of_the_range_are_used_in_turn(void)
{
    leave_this_host();
    weft_endpoint *refused;
    weft_endpoint_config config = test_config();
    int others = listen_at("127.0.0.1", 7001);
    config.tcp_ports = "7000-7002";
    weft_endpoint *first = open_with(&config), *second = open_with(&config);
    CHECK_EQ(port_of(first), 7000);
    CHECK_EQ(port_of(second), 7002);
    REFUSED(WEFT_ERR_NO_RAILS, weft_endpoint_create(&config, &refused));
    if (!strstr(weft_last_error(), "no port of tcp_ports 7000-7002 is free at 127.0.0.1"))
        FAIL("%s", weft_last_error());
    CHECK_OK(weft_endpoint_destroy(first));
    CHECK_OK(weft_endpoint_destroy(second));
    close(others);
    /* No two rails of an endpoint share a port, and rails without one do not come up. */
    config.rail_count = 4;
    config.min_rails = 4;
    REFUSED(WEFT_ERR_NO_RAILS, weft_endpoint_create(&config, &refused));
    config.min_rails = 3;
    CHECK_OK(weft_endpoint_destroy(open_with(&config)));
    /* A port is available again at once, though earlier connections are still closing. */
    config.rail_count = 0;
    config.min_rails = 0;
    config.tcp_ports = "7001-7002";
    for (int i = 0; i < 5; i++) {
        struct duo duo = duo_open_with(LEN, &config);
        CHECK_EQ(port_of(duo.a->endpoint) + port_of(duo.b->endpoint), 7001 + 7002);
        duo_moves_pages(&duo);
        duo_close(&duo);
    }
}

static void wrong_ports_and_addresses_are_refused(void)
{
    static const struct {
        const char *ports, *address, *says;
    } wrong[] = {
        {"7000-6999", NULL, "tcp_ports \"7000-6999\": the first is above the last"},
        {"0", NULL, "tcp_ports \"0\": write ports as \"7000\" or \"7000-7099\", of 1 to 65535"},
        {"7000-", NULL, "write ports as"},
        {"70000", NULL, "write ports as"},
        {"7000,7001", NULL, "write ports as"},
        {NULL, "localhost", "tcp_address \"localhost\": write an IP address"},
        {NULL, "0.0.0.0", "no peer can connect to that address"},
        {NULL, "192.0.2.1:80", "set tcp_ports"},
        {"7000-7099", "192.0.2.1:65500", "ports end at 65535"},
    };
    weft_endpoint *endpoint;
    for (size_t i = 0; i < COUNT(wrong); i++) {
        weft_endpoint_config config = test_config();
        config.tcp_ports = wrong[i].ports;
        config.tcp_address = wrong[i].address;
        REFUSED(WEFT_ERR_INVALID, weft_endpoint_create(&config, &endpoint));
        if (!strstr(weft_last_error(), wrong[i].says))
            FAIL("\"%s\" does not say \"%s\"", weft_last_error(), wrong[i].says);
    }
    weft_endpoint_config config = test_config();
    config.tcp_dscp = 64;
    REFUSED(WEFT_ERR_LIMIT, weft_endpoint_create(&config, &endpoint));
    CHECK(strstr(weft_last_error(), "tcp_dscp is 64: it must be 1 to 63") != NULL);
}

static uint32_t rails_of(weft_endpoint *endpoint)
{
    weft_endpoint_properties properties = WEFT_ENDPOINT_PROPERTIES_INIT;
    CHECK_OK(weft_endpoint_info(endpoint, &properties, NULL));
    return properties.rails;
}

/* A NIC becomes this many rails, all of which carry pages, whatever the peer has. */
static void streams_are_rails(void)
{
    static const uint32_t streams[][2] = {{1, 1}, {4, 4}, {4, 1}, {1, 3}, {2, 4}};
    for (size_t i = 0; i < COUNT(streams); i++) {
        weft_endpoint_config a = test_config(), b = test_config();
        a.tcp_streams = streams[i][0];
        b.tcp_streams = streams[i][1];
        struct duo duo = duo_open_between(LEN, &a, &b);
        CHECK_EQ(rails_of(duo.a->endpoint), streams[i][0]);
        CHECK_EQ(rails_of(duo.b->endpoint), streams[i][1]);
        for (int times = 0; times < 8; times++)
            duo_moves_pages(&duo);
        for (uint32_t rail = 0; rail < streams[i][0]; rail++) {
            weft_rail_statistics statistics = WEFT_RAIL_STATISTICS_INIT;
            CHECK_OK(weft_rail_info(duo.a->endpoint, rail, NULL, &statistics));
            CHECK(statistics.bytes_written + statistics.bytes_read > 0);
        }
        duo_close(&duo);
    }
    /* Loopback is one rail by default, and a number of rails is not multiplied. */
    weft_endpoint_config config = test_config();
    config.tcp_streams = 0;
    for (uint32_t rails = 0; rails < 3; rails += 2) {
        config.rail_count = rails;
        weft_endpoint *endpoint = open_with(&config);
        CHECK_EQ(rails_of(endpoint), rails ? rails : 1);
        CHECK_OK(weft_endpoint_destroy(endpoint));
        config.tcp_streams = 4;
    }
}

/* Packets to one address and port go to another, as a translating router sends them. */
struct translated {
    const char *from, *to;
    int from_port, to_port;
};

struct flow {
    int from, to;
    _Atomic uint64_t *bytes;
};

static _Atomic uint64_t *moved;

static void *copies(void *arg)
{
    struct flow flow = *(struct flow *)arg;
    static _Thread_local char buffer[64 * KIB];
    free(arg);
    for (ssize_t len; (len = recv(flow.from, buffer, sizeof buffer, 0)) > 0;) {
        *flow.bytes += (uint64_t)len;
        for (ssize_t at = 0, sent; at < len; at += sent)
            if ((sent = send(flow.to, buffer + at, (size_t)(len - at), MSG_NOSIGNAL)) <= 0)
                return NULL;
    }
    shutdown(flow.to, SHUT_RDWR);
    return NULL;
}

static void begin(void *(*what)(void *), void *arg)
{
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, what, arg) == 0);
    CHECK(pthread_detach(thread) == 0);
}

static void *translates(void *arg)
{
    const struct translated *translation = arg;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)translation->to_port)};
    int listener = listen_at(translation->from, translation->from_port);
    CHECK_EQ(inet_pton(AF_INET, translation->to, &to.sin_addr), 1);
    for (;;) {
        int near = accept(listener, NULL, NULL), far = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(far, (struct sockaddr *)&to, sizeof to) != 0) {
            close(near);
            close(far);
            continue;
        }
        for (int back = 0; back < 2; back++) {
            struct flow *flow = malloc(sizeof *flow);
            *flow = (struct flow){back ? far : near, back ? near : far, moved};
            begin(copies, flow);
        }
    }
    return NULL;
}

/* Two networks that do not know each other, and between them a router that knows both. */
static void router(struct team *team)
{
    static struct translated all[] = {
        {"10.79.2.254", "10.79.1.1", 30000, 7000}, {"10.79.2.254", "10.79.1.1", 30001, 7001},
        {"10.79.1.254", "10.79.2.1", 7000, 7000},  {"10.79.1.254", "10.79.2.1", 7001, 7001},
    };
    leave_this_host();
    meet(team, 0, NULL);
    meet(team, 1, NULL);
    plug(team, 0, "left", "10.79.1.254/24", 1500);
    plug(team, 1, "right", "10.79.2.254/24", 1500);
    moved = &team->board->word[0];
    for (size_t i = 0; i < COUNT(all); i++)
        begin(translates, &all[i]);
    meet(team, 0, NULL);
    meet(team, 1, NULL);
    pause(); /* until it is killed */
}

static void behind_the_router(struct team *team, const char *own, const char *ports, const char *advertised,
                              const char *first)
{
    leave_this_host();
    meet(team, 2, NULL);
    meet(team, 2, NULL);
    plugged(own);
    struct box *box = box_on("eth0", ports, advertised, 2);
    if (strncmp(rail_address(box->endpoint, 0), first, strlen(first)) != 0)
        FAIL("%s, not %s", rail_address(box->endpoint, 0), first);
    pages_move(team, 1 - team->rank, box);
    CHECK(team->board->word[0] >= 2 * LEN);
    if (team->rank == 0)
        kill_member(team, 2);
}

static void left_of_the_router(struct team *team)
{
    behind_the_router(team, "10.79.1.1/24", "7000-7001", "10.79.2.254:30000", "10.79.2.254:3000");
}

static void right_of_the_router(struct team *team)
{
    behind_the_router(team, "10.79.2.1/24", "7000-7009", "10.79.1.254", "10.79.1.254:700");
}

static void advertised_addresses_are_those_that_peers_dial(void)
{
    const role roles[] = {left_of_the_router, right_of_the_router, router};
    run_team(3, roles);
}

/* ---- A port that another program has taken over ---- */

/* What the program sends to each connection. One that sends nothing is like a stopped peer: lost for its silence. */
enum { NOTHING, MALFORMED, ECHO, CLOSES, TAKEOVERS };
static int takeover;

static void *answers(void *arg)
{
    int fd = *(int *)arg;
    uint8_t bytes[1024];
    free(arg);
    for (uint64_t seed = 0; takeover != CLOSES; seed++) {
        ssize_t len = recv(fd, bytes, sizeof bytes, 0);
        if (len <= 0)
            break;
        if (takeover == MALFORMED)
            fill_random(bytes, sizeof bytes, seed), len = sizeof bytes;
        if (takeover != NOTHING && send(fd, bytes, (size_t)len, MSG_NOSIGNAL) < 0)
            break;
    }
    close(fd);
    return NULL;
}

static void takes_the_port_over(struct team *team)
{
    int port;
    hear(team, 0, NULL, &port, sizeof port);
    int listener = listen_at("127.0.0.1", port);
    meet(team, 0, NULL);
    for (;;) {
        int *fd = malloc(sizeof *fd);
        *fd = accept(listener, NULL, NULL);
        team->board->word[0]++;
        begin(answers, fd);
    }
}

static void had_the_port(struct team *team)
{
    weft_endpoint_config config = test_config();
    config.tcp_ports = "20000-29999";
    struct box *box = box_of(open_with(&config));
    int port = port_of(box->endpoint);
    tell(team, 0, &port, sizeof port);
    join(team, 0, box);
    for (;;)
        box_pump(box, 100);
}

/* The peer is lost, connecting to it fails, and other peers are not affected. */
static void knew_the_port(struct team *team)
{
    char blob[8192];
    int port;
    weft_endpoint_config config = test_config();
    config.liveness_ns = 3 * SECOND;
    struct duo duo = duo_open_with(LEN, &config);
    hear(team, 1, NULL, &port, sizeof port);
    tell(team, 1, blob, address_of(duo.a->endpoint, blob, sizeof blob));
    size_t len = hear(team, 1, duo.a, blob, sizeof blob);
    weft_op_options args = WEFT_OP_OPTIONS_INIT;
    weft_peer peer;
    args.timeout_ns = 2 * SECOND;
    CHECK_OK(weft_peer_connect(duo.a->endpoint, blob, len, &args, &peer));
    CHECK_OK(box_take(duo.a, WEFT_COMPLETION_PEER_UP, patience_ms()).status);
    meet(team, 1, duo.a);
    kill_member(team, 1);
    tell(team, 2, &port, sizeof port);
    CHECK_STATUS(box_take(duo.a, WEFT_COMPLETION_PEER_DOWN, patience_ms()).status, WEFT_ERR_PEER_LOST);
    meet(team, 2, duo.a);
    for (int i = 0; i < 3; i++) {
        CHECK_OK(weft_peer_connect(duo.a->endpoint, blob, len, &args, &peer));
        duo_moves_pages(&duo);
        CHECK_ONE_OF(box_take(duo.a, WEFT_COMPLETION_PEER_UP, patience_ms()).status, WEFT_ERR_UNREACHABLE,
                     WEFT_ERR_TIMED_OUT);
        duo_moves_pages(&duo);
    }
    CHECK(team->board->word[0] >= 2);
    duo_close(&duo);
    kill_member(team, 2);
}

static void reused_port_of_a_dead_peer_is_unreachable(void)
{
    const role roles[] = {knew_the_port, had_the_port, takes_the_port_over};
    for (takeover = NOTHING; takeover < TAKEOVERS; takeover++)
        run_team(3, roles);
}

/* ---- Children ---- */

/* Two children, one of which has a child of its own: they share every descriptor of the parent. */
static void has_children(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    join(team, 0, box);
    for (int i = 0; i < 2; i++) {
        fflush(NULL);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            if (i == 1)
                (void)fork();
            alarm((unsigned)(2 * patience_ms() / 1000));
            team->board->word[1]++;
            while (team->board->word[0] == 0)
                sleep_ms(5);
            _exit(0);
        }
    }
    while (team->board->word[1] < 3)
        box_pump(box, 5);
    meet(team, 0, box);
    for (;;)
        box_pump(box, 100);
}

static void outlives_the_parent(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    join(team, 1, box);
    meet(team, 1, box);
    uint64_t began = judged_from();
    kill_member(team, 1);
    weft_completion down = box_take(box, WEFT_COMPLETION_PEER_DOWN, patience_ms());
    team->board->word[0] = 1;
    CHECK_STATUS(down.status, WEFT_ERR_PEER_LOST);
    CHECK_WITHIN(began, down.done_ns, 2 * SECOND);
    box_close(box);
}

static void dead_peer_is_lost_although_its_children_live(void)
{
    run_pair(outlives_the_parent, has_children);
}

/* The error speaks of the interfaces that are here, and of no driver. */
static void interfaces_that_are_down_are_named(void)
{
    leave_this_host();
    shell("ip link set lo down");
    shell("ip link add eth7 type veth peer name eth8");
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    weft_endpoint *endpoint = NULL;
    config.fabric = "tcp";
    REFUSED(WEFT_ERR_NO_RAILS, weft_endpoint_create(&config, &endpoint));
    const char *said = weft_last_error();
    if (strstr(said, "eth7") == NULL || strstr(said, "down") == NULL || strstr(said, "fi_info") != NULL)
        FAIL("%s", said);
}

static const struct test tests[] = {
    {"interfaces_that_are_down_are_named", "once", interfaces_that_are_down_are_named},
    {"pages_move_over_ipv6_loopback", "tcp,tcp-encrypted", pages_move_over_ipv6_loopback},
    {"pages_move_over_cables", "tcp,tcp-encrypted", pages_move_over_cables},
    {"ports_of_the_range_are_used_in_turn", "tcp", ports_of_the_range_are_used_in_turn},
    {"streams_are_rails", "tcp,tcp-encrypted", streams_are_rails},
    {"wrong_ports_and_addresses_are_refused", "tcp", wrong_ports_and_addresses_are_refused},
    {"advertised_addresses_are_those_that_peers_dial", "tcp,tcp-encrypted",
     advertised_addresses_are_those_that_peers_dial},
    {"reused_port_of_a_dead_peer_is_unreachable", "tcp,tcp-encrypted", reused_port_of_a_dead_peer_is_unreachable},
    {"dead_peer_is_lost_although_its_children_live", "tcp,tcp-encrypted,host timed", dead_peer_is_lost_although_its_children_live},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
