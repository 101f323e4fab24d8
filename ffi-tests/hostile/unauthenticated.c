/*
 * Programs that are not Weft connect to an endpoint's listeners, and send malformed data or nothing: they delay no
 * operation, and leave nothing behind.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stddef.h>
#include <sys/resource.h>
#include <sys/un.h>

#include "harness.h"

#define CROWD 300

/* Connects to the first rail, whatever its kind of listener. */
static int knock(const char *address)
{
    const char *name = strrchr(address, '/');
    int fd, rc;
    if (name != NULL) { /* of host: an abstract socket, "network/name" */
        struct sockaddr_un to = {.sun_family = AF_UNIX};
        size_t len = strlen(name + 1);
        CHECK(len < sizeof to.sun_path);
        memcpy(to.sun_path + 1, name + 1, len);
        fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        rc = connect(fd, (struct sockaddr *)&to, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + len));
    } else {
        struct sockaddr_in to = {.sin_family = AF_INET};
        const char *colon = strrchr(address, ':');
        char host[64] = {0};
        CHECK(colon != NULL && (size_t)(colon - address) < sizeof host);
        memcpy(host, address, (size_t)(colon - address));
        to.sin_port = htons((uint16_t)atoi(colon + 1));
        CHECK_EQ(inet_pton(AF_INET, host, &to.sin_addr), 1);
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        rc = connect(fd, (struct sockaddr *)&to, sizeof to);
    }
    if (rc != 0)
        FAIL("connecting to %s: %s", address, strerror(errno));
    return fd;
}

static void first_address(weft_endpoint *endpoint, weft_rail_properties *rail)
{
    memset(rail, 0, sizeof *rail);
    rail->size = sizeof *rail;
    CHECK_OK(weft_rail_info(endpoint, 0, rail, NULL));
}

/* The attackers are a separate process, so that their cost here is visible. */
struct crowd {
    pid_t pid;
    int words;
};

static struct crowd send_in(const char *address, bool rubbish)
{
    int words[2];
    CHECK(pipe(words) == 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        uint8_t bytes[1024];
        for (int i = 0; i < CROWD; i++) {
            int fd = knock(address);
            fill_random(bytes, sizeof bytes, (uint64_t)i);
            if (rubbish)
                (void)!send(fd, bytes, 1 + (size_t)i * 3, MSG_NOSIGNAL | MSG_DONTWAIT);
        }
        (void)!write(words[1], "x", 1);
        pause();
        _exit(0);
    }
    close(words[1]);
    return (struct crowd){pid, words[0]};
}

static void see_off(struct crowd *crowd)
{
    CHECK(kill(crowd->pid, SIGKILL) == 0);
    CHECK(waitpid(crowd->pid, NULL, 0) == crowd->pid);
    close(crowd->words);
}

/* The slowest of some writes, in ns; none is delayed. */
static uint64_t slowest_write(struct duo *duo, int count)
{
    uint64_t slowest = 0;
    for (int i = 0; i < count; i++) {
        uint64_t began = judged_from();
        fill_random(duo->a_bytes, duo->len, (uint64_t)i);
        struct range_request args = range_args(duo->a_memory, duo->b_of_a, duo->len);
        CHECK_OK(box_await(duo->a, write_now(duo->a, &args), patience_ms()).status);
        CHECK_EQ(differs_random(duo->b_bytes, duo->len, (uint64_t)i), -1);
        CHECK_WITHIN(began, now_ns(), 500 * MS);
        uint64_t took = now_ns() - began;
        slowest = took > slowest ? took : slowest;
    }
    return slowest;
}

static void slow_nobody(bool rubbish)
{
    struct duo duo = duo_open(64 * KIB);
    weft_rail_properties rail;
    first_address(duo.b->endpoint, &rail);
    uint64_t alone = slowest_write(&duo, 200);
    int fds = open_fds(), threads = running_threads();
    struct crowd crowd = send_in(rail.address, rubbish);
    uint64_t beside = slowest_write(&duo, 200);
    char word;
    CHECK_EQ(read(crowd.words, &word, 1), 1); /* all are there */
    uint64_t with_all = slowest_write(&duo, 200);
    printf("slowest write of 64 KiB: %.2f ms alone, %.2f ms while %d connect, %.2f ms beside them\n",
           (double)alone / 1e6, (double)beside / 1e6, CROWD, (double)with_all / 1e6);
    /* host keeps 256 of them, with a descriptor for each one's process. */
    CHECK(open_fds() <= fds + (on_fabric("host") ? 2 * 256 : CROWD) + 8);
    /* One more honest endpoint. */
    char address[8192];
    struct box *guest = box_of(open_endpoint());
    size_t len = address_of(duo.b->endpoint, address, sizeof address);
    weft_peer peer;
    CHECK_OK(weft_peer_connect(guest->endpoint, address, len, NULL, &peer));
    CHECK_OK(box_take(guest, WEFT_COMPLETION_PEER_UP, patience_ms()).status);
    CHECK_OK(box_take(duo.b, WEFT_COMPLETION_PEER_UP, patience_ms()).status);
    box_close(guest);
    CHECK_STATUS(box_take(duo.b, WEFT_COMPLETION_PEER_DOWN, patience_ms()).status, WEFT_ERR_PEER_CLOSED);
    see_off(&crowd);
    uint64_t until = now_ns() + patience_ms() * MS;
    while (open_fds() > fds + 2) {
        if (now_ns() > until)
            FAIL("%d descriptors were open before the attackers, %d are after them", fds, open_fds());
        sleep_ms(20);
    }
    CHECK_EQ(running_threads(), threads);
    slowest_write(&duo, 20);
    duo_close(&duo);
}

static void malformed_frames_delay_no_peer(void)
{
    slow_nobody(true);
}

static void silent_connections_delay_no_peer(void)
{
    slow_nobody(false);
}

static uint64_t cpu_ns(void)
{
    struct timespec time;
    CHECK_EQ(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time), 0);
    return (uint64_t)time.tv_sec * SECOND + (uint64_t)time.tv_nsec;
}

/* The share of a processor that this process uses, in percent. */
static unsigned busy_percent(void)
{
    uint64_t cpu = cpu_ns(), wall = now_ns();
    sleep_ms(1000);
    return (unsigned)((cpu_ns() - cpu) * 100 / (now_ns() - wall));
}

/* Without descriptors nothing can be accepted: waiting connections do not keep a worker busy. */
static void accepting_at_the_descriptor_limit_costs_little(void)
{
    int fds[512], count = 0, words[2];
    struct rlimit limit;
    weft_rail_properties rail;
    struct duo duo = duo_open(4096);
    first_address(duo.a->endpoint, &rail);
    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = (rlim_t)open_fds() + 50;
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    CHECK_EQ(pipe(words), 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        char word;
        close(words[1]);
        sleep_ms(200);
        knock(rail.address);
        _exit(read(words[0], &word, 1) != 0);
    }
    while ((fds[count] = dup(0)) >= 0)
        CHECK(++count < (int)COUNT(fds));
    sleep_ms(300);
    unsigned busy = busy_percent();
    printf("%u %% of a processor\n", busy);
    /* Others are served meanwhile, and afterwards as before. */
    struct range_request args = range_args(duo.a_memory, duo.b_of_a, 4096);
    weft_status status = box_await(duo.a, write_now(duo.a, &args), patience_ms()).status;
    while (count > 0)
        close(fds[--count]);
    close(words[1]);
    CHECK_EQ(waitpid(pid, NULL, 0), pid);
    CHECK_OK(status);
    CHECK(busy < 12);
    CHECK_OK(box_await(duo.a, write_now(duo.a, &args), patience_ms()).status);
    duo_close(&duo);
}

int main(int argc, char **argv)
{
    const struct test tests[] = {
        {"malformed_frames_delay_no_peer", "tcp,host timed", malformed_frames_delay_no_peer},
        {"silent_connections_delay_no_peer", "tcp,host timed", silent_connections_delay_no_peer},
        {"accepting_at_the_descriptor_limit_costs_little", "tcp,host", accepting_at_the_descriptor_limit_costs_little},
        {NULL, NULL, NULL},
    };
    return run_tests(argc, argv, tests);
}
