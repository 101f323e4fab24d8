/*
 * A process that is no endpoint and attacks every listener of one host: with connections that send nothing, malformed
 * frames, handshakes for another endpoint, and over `host` with channels of its own and endless messages. It knows no
 * address, key or secret.
 */
#include "engine.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/un.h>

#define PLACES 64
#define HELD 128 /* connections at once */

static struct place {
    socklen_t len;
    union {
        struct sockaddr any;
        struct sockaddr_in in;
        struct sockaddr_un un;
    };
} places[PLACES];
static int places_count;

/* The listeners of this network namespace. */
static void look_around(void)
{
    char line[512], name[108];
    unsigned ip, port, state;
    places_count = 0;
    FILE *tcp = fopen("/proc/net/tcp", "r");
    while (tcp && fgets(line, sizeof line, tcp) && places_count < PLACES / 2)
        if (sscanf(line, " %*d: %8X:%4X %*8X:%*4X %2X", &ip, &port, &state) == 3 && state == 0x0a)
            places[places_count++] = (struct place){
                sizeof(struct sockaddr_in),
                {.in = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = ip}}};
    if (tcp)
        fclose(tcp);
    FILE *un = fopen("/proc/net/unix", "r");
    while (un && fgets(line, sizeof line, un) && places_count < PLACES)
        if (sscanf(line, "%*s %*s %*s 00010000 %*s %*s %*s @%100s", name) == 1 && strncmp(name, "weft-", 5) == 0) {
            struct place *place = &places[places_count++];
            *place = (struct place){(socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name)),
                                    {.un = {.sun_family = AF_UNIX}}};
            memcpy(place->un.sun_path + 1, name, strlen(name));
        }
    if (un)
        fclose(un);
}

static void attack(const struct place *place, int fd, uint64_t *random, int channel, int area)
{
    uint8_t bytes[512];
    uint32_t how = below(random, 4);
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(next_random(random) >> 24);
    if (how == 0)
        return; /* It sends nothing. */
    if (place->any.sa_family == AF_INET) {
        if (how > 1)
            memcpy(bytes, "WEFT-TCP\3\0\0\0\0\0\0\0", 16);
        (void)!send(fd, bytes, how == 3 ? 48 : 1 + below(random, sizeof bytes), MSG_NOSIGNAL | MSG_DONTWAIT);
    } else if (how == 1) {
        (void)!send(fd, bytes, 16, MSG_NOSIGNAL | MSG_DONTWAIT);
    } else {
        host_send(fd, 1, 1, 0, channel);
        for (uint32_t n = 1; n < 64; n++) {
            host_send(fd, how == 2 ? 2 : 4, n, 4096, how == 2 ? area : -1);
            host_send(fd, how == 2 ? 3 : 4, n, 0, -1);
        }
    }
}

static void floods(uint64_t random)
{
    int held[HELD], channel = sealed_file(HOST_CHANNEL_LEN), area = sealed_file(4096);
    memset(held, -1, sizeof held);
    for (uint32_t n = 0;; n++) {
        if (n % 1024 == 0)
            look_around();
        if (places_count == 0 || n % 16 == 0)
            usleep(2000); /* The hosts need some of the processors, too. */
        if (places_count == 0)
            continue;
        const struct place *place = &places[below(&random, (uint32_t)places_count)];
        int *fd = &held[n % HELD], unix_kind = place->any.sa_family == AF_UNIX;
        if (*fd >= 0)
            close(*fd);
        *fd = socket(place->any.sa_family, (unix_kind ? SOCK_SEQPACKET : SOCK_STREAM) | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (*fd >= 0 && (connect(*fd, &place->any, place->len) == 0 || errno == EINPROGRESS))
            attack(place, *fd, &random, channel, area);
    }
}

pid_t attackers_begin(int host, uint64_t random)
{
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid > 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGPIPE, SIG_IGN);
    if (book->plan.world == NAMESPACES)
        lab_enter((enum side)host);
    CHECK(setpriority(PRIO_PROCESS, 0, 10) == 0);
    floods(random);
    _exit(0);
}
