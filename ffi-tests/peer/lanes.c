/*
 * What weft_lane_info says of the lanes to a peer: two rails of tcp on loopback, in one process; one of the connections
 * ends and comes back.
 */
#include <arpa/inet.h>
#include <netinet/in.h>

#include "harness.h"

#define LEN MIB
#define WRITES 16
/* A rail's address, or the text of a metric. */
#define TEXT 1024

static struct duo duo_of_two_lanes(void)
{
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    config.fabric = "tcp";
    config.rails = "lo";
    config.tcp_streams = 2;
    return duo_open_with(LEN, &config);
}

static weft_lane_statistics lane_of(struct box *box, weft_peer peer, uint32_t index)
{
    weft_lane_statistics lane = WEFT_LANE_STATISTICS_INIT;
    CHECK_OK(weft_lane_info(box->endpoint, peer, index, &lane));
    return lane;
}

static void write_all(struct duo *duo, int count)
{
    struct range_request args = range_args(duo->a_memory, duo->b_of_a, LEN);
    for (int i = 0; i < count; i++)
        CHECK_OK(box_await(duo->a, write_now(duo->a, &args), patience_ms()).status);
}

static uint64_t number_in(const char *text, const char *name)
{
    const char *at = strstr(text, name);
    if (at == NULL)
        FAIL("%s is not in:\n%s", name, text);
    return (uint64_t)strtod(at + strlen(name), NULL);
}

/* A connection of this process has the ends that a lane says it has. */
static bool has_connection(const weft_lane_statistics *lane)
{
    for (int fd = 3; fd < 4096; fd++) {
        struct sockaddr_in ends[2];
        socklen_t len = sizeof ends[0], other = sizeof ends[1];
        if (getsockname(fd, (struct sockaddr *)&ends[0], &len) != 0 || getpeername(fd, (struct sockaddr *)&ends[1], &other) != 0 ||
            ends[0].sin_family != AF_INET)
            continue;
        char texts[2][64];
        for (int i = 0; i < 2; i++)
            snprintf(texts[i], sizeof texts[i], "%s:%u", inet_ntoa(ends[i].sin_addr), ntohs(ends[i].sin_port));
        if (strcmp(texts[0], lane->connection_local) == 0 && strcmp(texts[1], lane->connection_remote) == 0)
            return true;
    }
    return false;
}

/* The metrics of a lane are labelled by the peer's address. */
static void metrics_say(struct duo *duo, const weft_lane_statistics *lane)
{
    static char text[1 << 20];
    char name[TEXT];
    size_t len = 0;
    weft_peer_properties peer = WEFT_PEER_PROPERTIES_INIT;
    weft_rail_properties rail = WEFT_RAIL_PROPERTIES_INIT;
    CHECK_OK(weft_peer_info(duo->a->endpoint, duo->a_to_b, &peer));
    CHECK_OK(weft_rail_info(duo->b->endpoint, 0, &rail, NULL));
    CHECK(strcmp(peer.address, rail.address) == 0);
    CHECK_OK(weft_endpoint_metrics(duo->a->endpoint, text, sizeof text - 1, &len));
    snprintf(name, sizeof name,
             "\nweft_lane_bytes_total{peer=\"0x%llx\",address=\"%s\",fabric=\"tcp\",rail=\"%u\",name=\"lo\",remote=\"%s\","
             "direction=\"write\"} ",
             (unsigned long long)duo->a_to_b, peer.address, lane->rail, lane->remote_address);
    CHECK_EQ(number_in(text, name), lane->bytes_written);
    snprintf(name, sizeof name, "\nweft_peer_up{peer=\"0x%llx\",address=\"%s\",fabric=\"tcp\"} ",
             (unsigned long long)duo->a_to_b, peer.address);
    CHECK_EQ(number_in(text, name), 1);
    snprintf(name, sizeof name, "remote=\"%s\",local=\"%s\",far=\"%s\"} ", lane->remote_address, lane->connection_local,
             lane->connection_remote);
    CHECK_EQ(number_in(text, name), 1);
}

/* At rest, what one side's system has sent is what the other's has received, to the byte. */
static void both_sides_agree(struct duo *duo)
{
    bool agree = false;
    for (uint64_t until = now_ns() + patience_ms() * MS; !agree; sleep_ms(1)) {
        uint64_t sent[2] = {0}, received[2] = {0};
        CHECK(now_ns() < until);
        for (uint32_t i = 0; i < 4; i++) {
            weft_lane_statistics lane = i < 2 ? lane_of(duo->a, duo->a_to_b, i) : lane_of(duo->b, duo->b_to_a, i - 2);
            sent[i / 2] += lane.bytes_sent;
            received[i / 2] += lane.bytes_received;
        }
        agree = sent[0] == received[1] && sent[1] == received[0];
    }
}

static void each_lane_says_what_it_carried(void)
{
    struct duo duo = duo_of_two_lanes();
    uint64_t written = 0, read = 0, arrived = 0;
    write_all(&duo, WRITES);
    struct range_request args = range_args(duo.a_memory, duo.b_of_a, LEN);
    weft_op id;
    CHECK_OK(submit_read(duo.a->endpoint, &args, &id));
    CHECK_OK(box_await(duo.a, id, patience_ms()).status);
    both_sides_agree(&duo);
    for (uint32_t i = 0; i < 2; i++) {
        weft_lane_statistics lane = lane_of(duo.a, duo.a_to_b, i), back = lane_of(duo.b, duo.b_to_a, i);
        weft_rail_properties theirs = WEFT_RAIL_PROPERTIES_INIT;
        CHECK_OK(weft_rail_info(duo.b->endpoint, lane.remote_rail, &theirs, NULL));
        CHECK(strcmp(lane.remote_address, theirs.address) == 0);
        CHECK(lane.rail < 2 && lane.up == 1 && strcmp(lane.state, "up") == 0);
        CHECK(lane.bytes_written > 0 && lane.round_trip_ns > 0);
        CHECK(lane.bytes_sent > lane.bytes_written && lane.bytes_received > lane.bytes_read);
        CHECK(lane.resets == 0 && lane.reconnects == 0);
        CHECK(has_connection(&lane));
        /* b has written and read nothing, and the system knows what has come there. */
        CHECK(back.bytes_written == 0 && back.bytes_read == 0);
        written += lane.bytes_written;
        read += lane.bytes_read;
        arrived += back.bytes_received;
        metrics_say(&duo, &lane);
    }
    CHECK_EQ(written, WRITES * LEN);
    CHECK_EQ(read, LEN);
    CHECK(arrived > written);
    duo_close(&duo);
}

static uint16_t port_of(weft_endpoint *endpoint, uint32_t rail)
{
    weft_rail_properties properties = WEFT_RAIL_PROPERTIES_INIT;
    CHECK_OK(weft_rail_info(endpoint, rail, &properties, NULL));
    return (uint16_t)atoi(strrchr(properties.address, ':') + 1);
}

/* Shuts down the connections to or from a port; returns how many. */
static int end_connections(uint16_t port)
{
    int ended = 0;
    for (int fd = 3; fd < 4096; fd++) {
        struct sockaddr_in here, there;
        socklen_t len = sizeof here, other = sizeof there;
        if (getsockname(fd, (struct sockaddr *)&here, &len) == 0 && getpeername(fd, (struct sockaddr *)&there, &other) == 0 &&
            here.sin_family == AF_INET && (ntohs(here.sin_port) == port || ntohs(there.sin_port) == port))
            ended += shutdown(fd, SHUT_RDWR) == 0;
    }
    return ended;
}

static atomic_int lost, back;

static void keep(weft_log_level level, const char *component, const char *line, void *to)
{
    (void)component;
    (void)to;
    lost += level == WEFT_LOG_WARN && strstr(line, "its other lanes (1) carry on") != NULL;
    back += level == WEFT_LOG_WARN && strstr(line, "is up again after") != NULL;
}

static void reset_lane_is_counted_and_comes_back(void)
{
    struct duo duo = duo_of_two_lanes();
    write_all(&duo, WRITES);
    weft_lane_statistics before = lane_of(duo.a, duo.a_to_b, 1), after = before, other;
    weft_rail_statistics rail = WEFT_RAIL_STATISTICS_INIT;
    CHECK_OK(weft_log_set(WEFT_LOG_INFO, keep, NULL));
    int ended = end_connections(port_of(duo.a->endpoint, before.rail));
    CHECK(ended + end_connections(port_of(duo.b->endpoint, before.remote_rail)) > 0);
    for (uint64_t until = now_ns() + patience_ms() * MS; after.reconnects == 0 || after.up == 0;) {
        CHECK(now_ns() < until);
        write_all(&duo, 1);
        after = lane_of(duo.a, duo.a_to_b, 1);
        CHECK(after.bytes_written >= before.bytes_written);
        /* (Not all of what an ended connection had sent is known to have arrived.) */
        CHECK(after.bytes_sent > before.bytes_sent / 2);
    }
    CHECK(after.resets > 0 && after.reconnects <= after.resets);
    CHECK_EQ(after.rail, before.rail);
    CHECK_OK(weft_rail_info(duo.a->endpoint, before.rail, NULL, &rail));
    CHECK(rail.lane_resets >= after.resets && rail.lane_reconnects >= after.reconnects);
    other = lane_of(duo.a, duo.a_to_b, 0);
    CHECK(other.resets == 0 && other.reconnects == 0 && other.up == 1);
    for (uint64_t until = now_ns() + patience_ms() * MS; lost == 0 || back == 0; sleep_ms(1))
        CHECK(now_ns() < until);
    CHECK_OK(weft_log_set(WEFT_LOG_DEFAULT, NULL, NULL));
    duo_close(&duo);
}

/* Nothing uses the lane: keep-alives go over the other one, at the latest once this one has been away. */
static void idle_lane_notices_that_its_connection_has_ended(void)
{
    struct duo duo = duo_of_two_lanes();
    write_all(&duo, 1);
    for (uint64_t times = 1; times <= 3; times++) {
        weft_lane_statistics lane = lane_of(duo.a, duo.a_to_b, 1);
        int ended = end_connections(port_of(duo.a->endpoint, lane.rail));
        CHECK(ended + end_connections(port_of(duo.b->endpoint, lane.remote_rail)) > 0);
        for (uint64_t until = now_ns() + patience_ms() * MS; lane.resets < times || lane.reconnects < times || lane.up == 0; sleep_ms(1)) {
            CHECK(now_ns() < until);
            lane = lane_of(duo.a, duo.a_to_b, 1);
        }
    }
    write_all(&duo, 1);
    duo_close(&duo);
}

/* Also over fabrics where the system counts nothing. */
static void every_fabric_says_what_is_known(void)
{
    struct duo duo = duo_open(LEN);
    weft_peer_properties peer = WEFT_PEER_PROPERTIES_INIT;
    weft_lane_statistics lane = WEFT_LANE_STATISTICS_INIT;
    uint64_t written = 0;
    uint32_t up = 0, index = 0;
    write_all(&duo, 1);
    CHECK_OK(weft_peer_info(duo.a->endpoint, duo.a_to_b, &peer));
    CHECK(peer.address[0] != 0);
    for (; weft_lane_info(duo.a->endpoint, duo.a_to_b, index, &lane) == WEFT_OK; index++) {
        written += lane.bytes_written;
        up += lane.up;
        CHECK(strcmp(fabric(), "tcp") == 0 || (lane.bytes_sent == 0 && lane.bytes_received == 0 && lane.retransmits == 0));
    }
    CHECK_EQ(up, peer.lanes);
    CHECK_EQ(written, LEN);
    REFUSED(WEFT_ERR_RANGE, weft_lane_info(duo.a->endpoint, duo.a_to_b, index, &lane));
    REFUSED(WEFT_ERR_INVALID, weft_lane_info(duo.a->endpoint, duo.a_to_b, 0, NULL));
    REFUSED(WEFT_ERR_HANDLE, weft_lane_info(NULL, duo.a_to_b, 0, &lane));
    REFUSED(WEFT_ERR_HANDLE, weft_lane_info(duo.a->endpoint, 0, 0, &lane));
    lane.size = 3;
    REFUSED(WEFT_ERR_INVALID, weft_lane_info(duo.a->endpoint, duo.a_to_b, 0, &lane));
    duo_close(&duo);
}

/* The last counts of a peer that has ended can be read until its PEER_DOWN was polled. */
static void last_counts_stay_until_the_end_is_polled(void)
{
    struct duo duo = duo_open(LEN);
    weft_lane_statistics lane = WEFT_LANE_STATISTICS_INIT;
    weft_peer_properties peer = WEFT_PEER_PROPERTIES_INIT;
    write_all(&duo, 1);
    CHECK_OK(weft_endpoint_shutdown(duo.b->endpoint, 0));
    for (uint64_t until = now_ns() + patience_ms() * MS; weft_peer_info(duo.a->endpoint, duo.a_to_b, &peer) == WEFT_OK; sleep_ms(1))
        CHECK(now_ns() < until);
    for (int i = 0; i < 50; i++) { /* (While it ends, and after that.) */
        uint64_t written = 0;
        weft_status status = WEFT_OK;
        for (uint32_t index = 0; (status = weft_lane_info(duo.a->endpoint, duo.a_to_b, index, &lane)) == WEFT_OK; index++)
            written += lane.bytes_written;
        CHECK_STATUS(status, WEFT_ERR_RANGE);
        CHECK_EQ(written, LEN);
        sleep_ms(1);
    }
    for (uint64_t until = now_ns() + patience_ms() * MS; lane_of(duo.a, duo.a_to_b, 0).up != 0; sleep_ms(1))
        CHECK(now_ns() < until);
    lane = lane_of(duo.a, duo.a_to_b, 0);
    CHECK(strcmp(lane.state, "down") == 0 && lane.bytes_per_s == 0 && lane.round_trip_ns == 0 && lane.inflight_bytes == 0);
    CHECK_EQ(lane.connection_local[0], 0);
    box_take(duo.a, WEFT_COMPLETION_PEER_DOWN, patience_ms());
    REFUSED(WEFT_ERR_HANDLE, weft_lane_info(duo.a->endpoint, duo.a_to_b, 0, &lane));
    box_close(duo.a);
    box_close(duo.b);
}

static uint64_t grants_of(weft_endpoint *endpoint)
{
    weft_endpoint_statistics statistics = WEFT_ENDPOINT_STATISTICS_INIT;
    CHECK_OK(weft_endpoint_info(endpoint, NULL, &statistics));
    return statistics.grants;
}

static void live_grants_are_counted(void)
{
    struct duo duo = duo_granted(LEN);
    CHECK_EQ(grants_of(duo.b->endpoint), 0);
    grant_whole(&duo);
    weft_grant_token second = grant_whole(&duo);
    CHECK_EQ(grants_of(duo.b->endpoint), 2);
    weft_op id;
    CHECK_OK(weft_grant_revoke(duo.b->endpoint, &second, NULL, &id));
    CHECK_OK(await_both(&duo, duo.b, id));
    CHECK_EQ(grants_of(duo.b->endpoint), 1);
    duo_close(&duo);
}

static const struct test tests[] = {
    {"each_lane_says_what_it_carried", "once", each_lane_says_what_it_carried},
    {"reset_lane_is_counted_and_comes_back", "once", reset_lane_is_counted_and_comes_back},
    {"idle_lane_notices_that_its_connection_has_ended", "once", idle_lane_notices_that_its_connection_has_ended},
    {"every_fabric_says_what_is_known", "any", every_fabric_says_what_is_known},
    {"last_counts_stay_until_the_end_is_polled", "tcp,host", last_counts_stay_until_the_end_is_polled},
    {"live_grants_are_counted", "host", live_grants_are_counted},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
