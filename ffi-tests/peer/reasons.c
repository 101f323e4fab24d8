/*
 * What weft_peer_reason says of a peer that was not reached, or has ended: the address, and what was answered there.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>

#include "harness.h"

static weft_endpoint_config on_loopback(const char *ports)
{
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    config.fabric = "tcp";
    config.rails = "lo";
    config.tcp_ports = ports;
    return config;
}

/* A listener on a free port of loopback; `ports` gets its number. */
static int listen_somewhere(int backlog, char ports[8])
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int)) == 0);
    CHECK(bind(fd, (struct sockaddr *)&at, sizeof at) == 0 && listen(fd, backlog) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&at, &len) == 0);
    snprintf(ports, 8, "%u", ntohs(at.sin_port));
    return fd;
}

static void listen_again(int fd, int backlog, const char *ports)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    at.sin_port = htons((uint16_t)atoi(ports));
    CHECK(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int)) == 0);
    CHECK(bind(fd, (struct sockaddr *)&at, sizeof at) == 0 && listen(fd, backlog) == 0);
}

/* The address of an endpoint that listened on a port of loopback, and is gone. */
static size_t gone_address(char ports[8], uint8_t *address, size_t capacity)
{
    close(listen_somewhere(1, ports));
    weft_endpoint_config config = on_loopback(ports);
    weft_endpoint *gone = open_with(&config);
    size_t len = address_of(gone, address, capacity);
    CHECK_OK(weft_endpoint_destroy(gone));
    return len;
}

static void says(weft_endpoint *endpoint, weft_peer peer, const char *const *texts)
{
    char said[4096];
    size_t len = 0;
    memset(said, 'x', sizeof said);
    CHECK_STATUS(weft_peer_reason(endpoint, peer, said, 4, &len), WEFT_ERR_TOO_SMALL);
    CHECK(len > 4);
    CHECK_OK(weft_peer_reason(endpoint, peer, said, len, &len));
    CHECK_EQ(said[len], 'x');
    CHECK_OK(weft_peer_reason(endpoint, peer, said, len + 1, &len));
    CHECK_EQ(len, strlen(said));
    for (; *texts != NULL; texts++)
        if (strstr(said, *texts) == NULL)
            FAIL("\"%s\" is not in: %s", *texts, said);
}

#define SAYS(endpoint, peer, ...) says(endpoint, peer, (const char *const[]){__VA_ARGS__, NULL})

/* Connects to an address, and returns the peer that was not reached. */
static weft_peer connect_in_vain(struct box *box, const uint8_t *address, size_t len, uint64_t timeout_ns, weft_status end)
{
    weft_op_options options = WEFT_OP_OPTIONS_INIT;
    options.timeout_ns = timeout_ns;
    weft_peer peer;
    CHECK_OK(weft_peer_connect(box->endpoint, address, len, &options, &peer));
    weft_completion up = box_take(box, WEFT_COMPLETION_PEER_UP, patience_ms());
    CHECK_STATUS(up.status, end);
    CHECK_EQ(up.peer, peer);
    return peer;
}

static void nothing_listens(void)
{
    uint8_t address[4096];
    char port[8];
    size_t len = gone_address(port, address, sizeof address);
    weft_endpoint_config config = on_loopback(NULL);
    struct box *box = box_of(open_with(&config));
    weft_peer peer = connect_in_vain(box, address, len, 0, WEFT_ERR_UNREACHABLE);
    SAYS(box->endpoint, peer, "127.0.0.1:", port, "from lo", "nothing listens there");
    REFUSED(WEFT_ERR_HANDLE, weft_peer_reason(box->endpoint, peer + 1, NULL, 0, &len));
    box_close(box);
}

static void another_endpoint_has_the_port(void)
{
    uint8_t address[4096];
    char port[8];
    size_t len = gone_address(port, address, sizeof address);
    weft_endpoint_config config = on_loopback(NULL), taken = on_loopback(port);
    weft_endpoint *other = open_with(&taken);
    struct box *box = box_of(open_with(&config));
    weft_peer peer = connect_in_vain(box, address, len, 0, WEFT_ERR_PEER_GONE);
    SAYS(box->endpoint, peer, port, "another endpoint of Weft has this address now");
    box_close(box);
    CHECK_OK(weft_endpoint_destroy(other));
}

/* This side lacks something: nothing is said of the other one. */
static void no_local_port_is_free(void)
{
    uint8_t address[4096];
    size_t len;
    if (unshare(CLONE_NEWNET) != 0)
        skip("no namespaces can be made here: %s", strerror(errno));
    if (system("PATH=$PATH:/usr/sbin:/sbin; ip link set lo up && echo 40000 40000 >/proc/sys/net/ipv4/ip_local_port_range") != 0)
        skip("iproute2 is not installed");
    weft_endpoint_config config = on_loopback("41000-41001");
    weft_endpoint *there = open_with(&config);
    struct box *box = box_of(open_with(&config));
    len = address_of(there, address, sizeof address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    listen_again(fd, 1, "40000");
    weft_op_options options = WEFT_OP_OPTIONS_INIT;
    options.timeout_ns = patiently(500 * MS);
    weft_peer peer;
    CHECK_OK(weft_peer_connect(box->endpoint, address, len, &options, &peer));
    weft_completion up = box_take(box, WEFT_COMPLETION_PEER_UP, patience_ms());
    CHECK_STATUS(up.status, WEFT_ERR_SYSTEM);
    CHECK_EQ(up.provider_errno, EADDRNOTAVAIL);
    SAYS(box->endpoint, peer, "127.0.0.1:41000", "no local port or address is free");
    box_close(box);
    CHECK_OK(weft_endpoint_destroy(there));
    close(fd);
}

static void *answers_as_a_web_server(void *arg)
{
    static const char answer[] = "HTTP/1.1 400 Bad Request\r\n\r\n";
    char request[256];
    for (int fd; (fd = accept(*(int *)arg, NULL, NULL)) >= 0; close(fd)) {
        if (recv(fd, request, sizeof request, 0) > 0)
            CHECK(send(fd, answer, sizeof answer - 1, MSG_NOSIGNAL) > 0);
        shutdown(fd, SHUT_WR);
        while (recv(fd, request, sizeof request, 0) > 0)
            ;
    }
    return NULL;
}

static void another_program_answers(void)
{
    uint8_t address[4096];
    char port[8];
    size_t len = gone_address(port, address, sizeof address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    listen_again(fd, 16, port);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, answers_as_a_web_server, &fd) == 0);
    weft_endpoint_config config = on_loopback(NULL);
    struct box *box = box_of(open_with(&config));
    weft_peer peer = connect_in_vain(box, address, len, 0, WEFT_ERR_UNREACHABLE);
    SAYS(box->endpoint, peer, port, "is not an endpoint of Weft");
    box_close(box);
    CHECK(shutdown(fd, SHUT_RDWR) == 0 && pthread_join(thread, NULL) == 0);
    close(fd);
}

/* A listener that accepts nothing: the system connects, until its queue is full. */
static void nothing_answers(void)
{
    uint8_t address[4096];
    char port[8];
    size_t len = gone_address(port, address, sizeof address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    listen_again(fd, 0, port);
    weft_endpoint_config config = on_loopback(NULL);
    struct box *box = box_of(open_with(&config));
    weft_peer peer = connect_in_vain(box, address, len, patiently(500 * MS), WEFT_ERR_UNREACHABLE);
    SAYS(box->endpoint, peer, "within the connect timeout", port, "connected, and nothing answers");
    /* The queue is full now. */
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    at.sin_port = htons((uint16_t)atoi(port));
    for (int i = 0; i < 4; i++) {
        int fills = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        CHECK(connect(fills, (struct sockaddr *)&at, sizeof at) == 0 || errno == EINPROGRESS);
    }
    peer = connect_in_vain(box, address, len, patiently(500 * MS), WEFT_ERR_UNREACHABLE);
    SAYS(box->endpoint, peer, port, "no answer to the attempt to connect");
    box_close(box);
    close(fd);
}

/* A peer has metrics of its own once its fabric is known: they would have other labels before. */
static void connecting_peers_are_counted_alone(void)
{
    static char text[1 << 20];
    uint8_t address[4096];
    char port[8];
    weft_peer peer;
    size_t len = gone_address(port, address, sizeof address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    listen_again(fd, 0, port);
    weft_endpoint_config config = on_loopback(NULL);
    struct box *box = box_of(open_with(&config));
    CHECK_OK(weft_peer_connect(box->endpoint, address, len, NULL, &peer));
    CHECK_OK(weft_endpoint_metrics(box->endpoint, text, sizeof text, &len));
    CHECK(strstr(text, "\nweft_peers_connecting 1\n") != NULL && strstr(text, "peer=\"0x") == NULL);
    box_close(box);
    close(fd);
}

static void ends_are_explained(void)
{
    struct duo duo = duo_open(64 * KIB);
    SAYS(duo.a->endpoint, duo.a_to_b, on_fabric("host") ? "host" : "tcp");
    CHECK_OK(weft_peer_disconnect(duo.a->endpoint, duo.a_to_b));
    CHECK_OK(box_take(duo.a, WEFT_COMPLETION_PEER_DOWN, patience_ms()).status);
    CHECK_STATUS(box_take(duo.b, WEFT_COMPLETION_PEER_DOWN, patience_ms()).status, WEFT_ERR_PEER_CLOSED);
    SAYS(duo.a->endpoint, duo.a_to_b, "this endpoint has disconnected it");
    SAYS(duo.b->endpoint, duo.b_to_a, "peer 0x", weft_status_text(WEFT_ERR_PEER_CLOSED));
    box_close(duo.a);
    box_close(duo.b);
}

static const struct test tests[] = {
    {"nothing_listens", "once", nothing_listens},
    {"another_endpoint_has_the_port", "once", another_endpoint_has_the_port},
    {"no_local_port_is_free", "once", no_local_port_is_free},
    {"another_program_answers", "once", another_program_answers},
    {"nothing_answers", "once", nothing_answers},
    {"connecting_peers_are_counted_alone", "once", connecting_peers_are_counted_alone},
    {"ends_are_explained", "tcp,host", ends_are_explained},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
