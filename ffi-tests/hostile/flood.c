/*
 * Programs that flood the listener of `host` delay an endpoint no more than the same number of programs that merely
 * compute. They connect in a loop, as the same user and as another; pass channels, and endless messages over them; and
 * take all descriptors. Prints `hostile_lateness_ms`: how late deadlines of 100 ms were on average, beside each of
 * them.
 */
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/un.h>

#include "harness.h"

#define CROWD 48
#define PROBES 8
#define DEADLINE (100 * MS)
#define NOBODY 65534

enum kind { REST, COMPUTE, CONNECT, AREAS, WAKES, CHANNELS, KINDS };
static const char *const names[KINDS] = {"", "programs that compute", "connections", "areas", "wake-ups", "channels"};

struct shared {
    _Atomic int kind, ended;
    _Atomic uint64_t said;
    char name[108];
};
static struct shared *shared;

/* ---- The crowd: it never calls Weft ---- */

static int dial(void)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    size_t len = strlen(shared->name);
    memcpy(to.sun_path + 1, shared->name, len);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&to, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + len)) != 0) {
        close(fd);
        sched_yield();
        return -1;
    }
    return fd;
}

/* Sends one kind of message over one channel after the other, as long as requested. */
static void talk(enum kind kind, int channel, int area)
{
    int fd = dial();
    if (fd < 0)
        return;
    bool goes_on = host_send(fd, 1, 1, 0, channel);
    for (uint32_t n = 1; goes_on && kind != CHANNELS && shared->kind == (int)kind; n++) {
        goes_on = kind == AREAS ? host_send(fd, 2, n, 4096, area) && host_send(fd, 3, n, 0, -1) : host_send(fd, 4, 0, 0, -1);
        shared->said++;
    }
    if (kind == CHANNELS)
        usleep(1000);
    close(fd);
}

static void crowd_member(void)
{
    int channel = sealed_file(HOST_CHANNEL_LEN), area = sealed_file(4096);
    CHECK(setpriority(PRIO_PROCESS, 0, 10) == 0 || errno == EACCES);
    while (!shared->ended) {
        switch (shared->kind) {
        case REST: usleep(1000); break;
        case COMPUTE: break;
        case CONNECT: {
            int fd = dial();
            if (fd >= 0)
                close(fd);
            shared->said++;
            break;
        }
        default: talk((enum kind)shared->kind, channel, area); break;
        }
    }
}

static pid_t crowd[CROWD];

static void gather(int uid)
{
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    for (int i = 0; i < CROWD; i++) {
        crowd[i] = fork();
        CHECK(crowd[i] >= 0);
        if (crowd[i] == 0) {
            if (uid != 0 && (setgid((gid_t)uid) != 0 || setuid((uid_t)uid) != 0))
                _exit(2);
            prctl(PR_SET_PDEATHSIG, SIGKILL); /* (Becoming another user undoes that.) */
            crowd_member();
            _exit(0);
        }
    }
}

static void dismiss(void)
{
    shared->ended = 1;
    for (int i = 0; i < CROWD; i++) {
        int status = 0;
        CHECK(waitpid(crowd[i], &status, 0) == crowd[i]);
        CHECK_EQ(status, 0);
    }
}

/* ---- The endpoint ---- */

static struct box *opened(void)
{
    struct box *box = box_of(open_endpoint());
    weft_rail_properties rail = {.size = sizeof rail};
    CHECK_OK(weft_rail_info(box->endpoint, 0, &rail, NULL));
    const char *name = strrchr(rail.address, '/');
    CHECK(name != NULL && strlen(name) < sizeof shared->name);
    strcpy(shared->name, name + 1);
    return box;
}

/* How late a deadline is beside a crowd that does this, in ms. */
static double lateness(struct box *box, weft_counter counter, enum kind kind)
{
    shared->kind = kind;
    sleep_ms(20);
    uint64_t due = now_ns() + DEADLINE;
    weft_op id = expect_one(box->endpoint, counter, DEADLINE, NULL);
    CHECK_STATUS(box_await(box, id, 60000).status, WEFT_ERR_TIMED_OUT);
    uint64_t now = now_ns();
    shared->kind = REST;
    return now > due ? (double)(now - due) / 1e6 : 0;
}

/* Machines have other load, too: the result is compared with that of computing, in turns, three times. */
static void delays_nobody(struct box *box, weft_counter counter, enum kind kind, const char *whose)
{
    for (int attempt = 0;; attempt++) {
        double computing = 0, hostile = 0;
        for (int i = 0; i < PROBES; i++) {
            computing += lateness(box, counter, COMPUTE) / PROBES;
            hostile += lateness(box, counter, kind) / PROBES;
        }
        if (hostile < 1.5 * computing + 30 || attempt == 2) {
            printf("hostile_lateness_ms %.2f: %d programs of %s, %s; %.2f beside as many that compute\n", hostile,
                   CROWD, whose, names[kind], computing);
            CHECK(hostile < 1.5 * computing + 30);
            break;
        }
    }
}

static void unauthenticated_connections_of_our_user(void)
{
    gather(0);
    struct box *box = opened();
    weft_counter counter;
    CHECK_OK(weft_counter_create(box->endpoint, &counter));
    int fds = open_fds();
    for (enum kind kind = CONNECT; kind < KINDS; kind++) {
        delays_nobody(box, counter, kind, "our user");
        /* 64 connections, with a descriptor for each one's process, and some that come and go. */
        CHECK(open_fds() <= fds + 2 * 64 + 16);
    }
    CHECK(shared->said > 0);
    dismiss();
    /* Nothing of them remains. */
    for (uint64_t end = now_ns() + patience_ms() * MS; open_fds() > fds; box_pump(box, 50))
        CHECK(now_ns() < end);
    box_close(box);
}

static void unauthenticated_connections_of_another_user(void)
{
    if (geteuid() != 0)
        skip("becoming another user takes root");
    gather(NOBODY);
    struct box *box = opened();
    weft_counter counter;
    CHECK_OK(weft_counter_create(box->endpoint, &counter));
    int fds = open_fds();
    delays_nobody(box, counter, CONNECT, "another user");
    CHECK(open_fds() <= fds + 2);
    /* Destroying is not delayed either. */
    shared->kind = CONNECT;
    uint64_t began = judged_from();
    box_close(box);
    CHECK_WITHIN(began, now_ns(), 20 * SECOND);
    CHECK(shared->said > 0);
    dismiss();
}

static double processor_seconds(void)
{
    struct rusage usage;
    CHECK(getrusage(RUSAGE_SELF, &usage) == 0);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

/* Without descriptors, connections wait to be accepted; the worker sleeps. */
static void flood_leaks_no_descriptors(void)
{
    gather(0);
    struct box *box = opened();
    /* First without attackers. */
    sleep_ms(300);
    double before = processor_seconds();
    sleep_ms(1000);
    double idle = processor_seconds() - before;
    struct rlimit limit, few;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    few = limit;
    few.rlim_cur = 256;
    CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
    while (dup(0) >= 0) {
    }
    CHECK_EQ(errno, EMFILE);
    shared->kind = CHANNELS;
    sleep_ms(200);
    shared->kind = REST;
    sleep_ms(100);
    before = processor_seconds();
    sleep_ms(1000);
    double full = processor_seconds() - before;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    printf("%.3f s of processor time in a second, %.3f without descriptors\n", idle, full);
    CHECK(full < idle + 0.1);
    dismiss();
    box_close(box);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        {"unauthenticated_connections_of_our_user", "host alone", unauthenticated_connections_of_our_user},
        {"unauthenticated_connections_of_another_user", "host alone", unauthenticated_connections_of_another_user},
        {"flood_leaks_no_descriptors", "host alone", flood_leaks_no_descriptors},
        {NULL, NULL, NULL},
    };
    return run_tests(argc, argv, tests);
}
