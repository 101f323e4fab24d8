/* The emulator: NICs of one host for the programs that run with the shim. One process, one thread.
 *     efa-emulator DIR [--nics N] [--kind p5|p4d] [--caps BITS] [--seed N] [--log LEVEL]
 *     efa-emulator --tell DIR WORDS...        a fault (README.md), or "counts"
 * DIR gets a socket for each device, and `control`. */
#define _GNU_SOURCE
#include "abi.h"
#include "objects.h"
#include "uverbs.h"
#include "wire.h"
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum {
    SPIN_US = 100,        /* after work, how long doorbells are looked at without a pause */
    BUSY_US = 20000,      /* how long with short ones */
    SHORT_PAUSE_US = 30,
    LONG_PAUSE_US = 500,
    NO_QUEUES_US = 100000, /* nothing is posted where no queue is: only sockets wake it */
    PASSES_PER_POLL = 16,  /* sockets are looked at less often than doorbells */
};

int log_level;
static struct fabric fabric;
static struct owner *clients;
static int listeners[MAX_NICS], control;
static volatile sig_atomic_t stop;

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000 + (uint64_t)time.tv_nsec / 1000;
}

void say(int level, const char *format, ...) {
    va_list words;
    uint64_t at = now();
    if (level > log_level) return;
    fprintf(stderr, "[%llu.%06llu] ", (unsigned long long)at / 1000000, (unsigned long long)at % 1000000);
    va_start(words, format);
    vfprintf(stderr, format, words);
    va_end(words);
    fputc('\n', stderr);
}

/* ---- What the model asks for ---- */

static void complete(struct completion_ring *ring, const struct completion *completion) {
    if (completion->status)
        say(0, "pid %d qp %u: %s of op %u ends with status %u", ring->client->pid, completion->qpn, completion->received ? "receive" : "send",
            completion->op, completion->status);
    ring_complete(ring, completion);
}

/* Interface: programs of a device that has gone get an error from every call, and an event. */
static void reset(struct nic *nic) {
    for (struct owner *client = clients; client; client = client->next) {
        if (client->nic != nic || client->gone) continue;
        objects_drop(client);
        client->gone = true;
        objects_event(client, EVENT_DEVICE_FATAL, 0);
    }
}

static const struct host host = {
    .load = client_load,
    .store = client_store,
    .next_work = ring_next_work,
    .has_receive = ring_has_receive,
    .next_receive = ring_next_receive,
    .complete = complete,
    .event = objects_event,
    .reset = reset,
};

/* ---- Programs ---- */

static void arrive(int listener, struct nic *nic) {
    int socket = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    struct owner *client = socket < 0 ? NULL : client_open(nic, socket);
    if (!client) {
        if (socket >= 0) close(socket);
        return;
    }
    client->next = clients;
    clients = client;
    say(1, "nic %d: pid %d opens it", nic->index, client->pid);
}

static void leave(struct owner *client) {
    say(1, "nic %d: pid %d leaves", client->nic->index, client->pid);
    for (struct owner **at = &clients; *at; at = &(*at)->next) {
        if (*at != client) continue;
        *at = client->next;
        break;
    }
    objects_drop(client);
    client_close(client);
}

static void serve(struct owner *client) {
    static struct call call;
    struct request request;
    struct reply reply = {0};
    ssize_t len = recv(client->socket, &request, sizeof request, MSG_DONTWAIT);
    if (len < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (len != sizeof request) {
        leave(client);
        return;
    }
    reply.error = call_read(&call, client, request.argument);
    if (!reply.error) reply.error = uverbs_do(&call);
    if (reply.error)
        say(1, "pid %d: object %u method %x: %s", client->pid, call.object, call.method, strerror(reply.error));
    reply.patch = call.patch;
    reply.patch_len = call.patch_len;
    client_send(client, &reply, sizeof reply, call.descriptor);
    if (call.descriptor >= 0) close(call.descriptor);
}

/* ---- The control socket ---- */

static size_t counts(char *to, size_t room) {
    size_t at = 0;
    for (int i = 0; i < fabric.nics && at < room; i++) {
        struct nic *nic = &fabric.nic[i];
        at += (size_t)snprintf(to + at, room - at, "nic %d: sends %llu reads %llu writes %llu bytes %llu errors %llu pages %llu\n", i,
                               (unsigned long long)nic->done[OP_SEND], (unsigned long long)nic->done[OP_READ],
                               (unsigned long long)nic->done[OP_WRITE], (unsigned long long)nic->bytes, (unsigned long long)nic->errors,
                               (unsigned long long)nic->pages);
    }
    return at < room ? at : room;
}

static void obey(void) {
    static char line[256], answer[8192];
    struct sockaddr_un from;
    socklen_t from_len = sizeof from;
    ssize_t len = recvfrom(control, line, sizeof line - 1, MSG_DONTWAIT, (struct sockaddr *)&from, &from_len);
    if (len < 0) return;
    line[len] = 0;
    size_t said;
    if (!strcmp(line, "counts")) {
        said = counts(answer, sizeof answer);
    } else {
        const char *wrong = fault_apply(&fabric, line, now());
        said = (size_t)snprintf(answer, sizeof answer, "%s", wrong ? wrong : "");
        say(0, "%s%s%s", line, wrong ? ": " : "", wrong ? wrong : "");
    }
    sendto(control, answer, said, MSG_DONTWAIT, (struct sockaddr *)&from, from_len);
}

static int bind_to(const char *dir, const char *name, int type) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int made = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
    if ((size_t)snprintf(address.sun_path, sizeof address.sun_path, "%s/%s", dir, name) >= sizeof address.sun_path) {
        fprintf(stderr, "%s: its name is too long for a socket\n", dir);
        exit(1);
    }
    unlink(address.sun_path);
    if (made < 0 || bind(made, (struct sockaddr *)&address, sizeof address) || (type == SOCK_SEQPACKET && listen(made, 64))) {
        perror(address.sun_path);
        exit(1);
    }
    return made;
}

/* What the other form of the command does: one line to a running emulator; its answer on the output. */
static int tell(const char *dir, char **words) {
    struct sockaddr_un to = {.sun_family = AF_UNIX}, own = {.sun_family = AF_UNIX};
    char line[256] = "", answer[8192];
    struct timeval patience = {.tv_sec = 30};
    int made = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    for (; *words; words++) {
        if (strlen(line) + strlen(*words) + 2 > sizeof line) return 2;
        strcat(strcat(line, *line ? " " : ""), *words);
    }
    snprintf(to.sun_path, sizeof to.sun_path, "%s/control", dir);
    setsockopt(made, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    /* A name that the kernel chooses, for the answer. */
    if (bind(made, (struct sockaddr *)&own, sizeof own.sun_family) || sendto(made, line, strlen(line), 0, (struct sockaddr *)&to, sizeof to) < 0) {
        perror(to.sun_path);
        return 1;
    }
    ssize_t len = recv(made, answer, sizeof answer, 0);
    if (len < 0) {
        perror("no answer");
        return 1;
    }
    bool counted = !strcmp(line, "counts");
    if (len) fprintf(counted ? stdout : stderr, "%.*s%s", (int)len, answer, counted ? "" : "\n");
    return len && !counted;
}

/* ---- The loop ---- */

/* Looks at the sockets, and waits for them that long if nothing else is to do. */
static void look_around(uint64_t pause_us) {
    static struct pollfd fds[MAX_NICS + 1 + 1024];
    static struct owner *owners[1024];
    struct timespec pause = {.tv_sec = (time_t)(pause_us / 1000000), .tv_nsec = (long)(pause_us % 1000000) * 1000};
    nfds_t count = 0, programs = 0;
    for (int i = 0; i < fabric.nics; i++) fds[count++] = (struct pollfd){.fd = listeners[i], .events = POLLIN};
    fds[count++] = (struct pollfd){.fd = control, .events = POLLIN};
    for (struct owner *client = clients; client && programs < 1024; client = client->next) {
        owners[programs++] = client;
        fds[count++] = (struct pollfd){.fd = client->socket, .events = POLLIN};
    }
    if (ppoll(fds, count, &pause, NULL) <= 0) return;
    fabric.work++;
    for (int i = 0; i < fabric.nics; i++)
        if (fds[i].revents) arrive(listeners[i], &fabric.nic[i]);
    if (fds[fabric.nics].revents) obey();
    for (nfds_t i = 0; i < programs; i++)
        if (fds[(nfds_t)fabric.nics + 1 + i].revents) serve(owners[i]);
}

static void run(void) {
    uint64_t work = 0, busy_at = now();
    for (unsigned pass = 0; !stop; pass++) {
        uint64_t next = NEVER, at = now();
        unsigned queues = 0;
        for (int i = 0; i < fabric.nics; i++) {
            uint64_t due = nic_step(&fabric.nic[i], at);
            next = due < next ? due : next;
            queues += fabric.nic[i].live_qps;
        }
        armed_notify();
        if (fabric.work != work) {
            work = fabric.work;
            busy_at = at;
        }
        uint64_t idle = at - busy_at, pause = idle < SPIN_US ? 0 : !queues ? NO_QUEUES_US : idle < BUSY_US ? SHORT_PAUSE_US : LONG_PAUSE_US;
        if (next != NEVER && next < at + pause) pause = next > at ? next - at : 0;
        if (pause || pass % PASSES_PER_POLL == 0) look_around(pause);
    }
}

static void on_signal(int signal) {
    (void)signal;
    stop = 1;
}

static uint64_t number(const char *option, const char *word, uint64_t most) {
    char *end;
    uint64_t value = word && *word ? strtoull(word, &end, 0) : 0;
    if (!word || !*word || *end || value > most) {
        fprintf(stderr, "%s: a number up to %llu\n", option, (unsigned long long)most);
        exit(2);
    }
    return value;
}

static bool kind(const char *name) {
    /* Documentation: which kind of instance has which device; what these can do. Interface: the bits. */
    static const struct {
        const char *name;
        struct traits traits;
    } kinds[] = {
        {"p5", {0xefa2, CAP_READ | CAP_NOT_READY_RETRY | CAP_SGID | CAP_WRITE | CAP_UNSOLICITED}},
        {"p4d", {0xefa1, CAP_READ | CAP_NOT_READY_RETRY | CAP_SGID}},
    };
    for (size_t i = 0; name && i < sizeof kinds / sizeof *kinds; i++) {
        if (strcmp(kinds[i].name, name)) continue;
        traits = kinds[i].traits;
        return true;
    }
    return false;
}

int main(int argc, char **argv) {
    int nics = 1;
    uint64_t seed = 1;
    const char *dir = argv[1];
    if (argc > 3 && !strcmp(argv[1], "--tell")) return tell(argv[2], argv + 3);
    kind("p5");
    if (!dir || dir[0] == '-') {
        fprintf(stderr, "usage: efa-emulator DIR [--nics N] [--kind p5|p4d] [--caps BITS] [--seed N] [--log LEVEL], or --tell DIR WORDS...\n");
        return 2;
    }
    for (char **at = argv + 2; *at; at += 2) {
        if (!strcmp(*at, "--nics")) nics = (int)number(*at, at[1], MAX_NICS);
        else if (!strcmp(*at, "--caps")) traits.caps = (uint32_t)number(*at, at[1], UINT32_MAX);
        else if (!strcmp(*at, "--seed")) seed = number(*at, at[1], UINT64_MAX);
        else if (!strcmp(*at, "--log")) log_level = (int)number(*at, at[1], 9);
        else if (strcmp(*at, "--kind") || !kind(at[1])) {
            fprintf(stderr, "%s: no such option, or no such kind (p5, p4d)\n", *at);
            return 2;
        }
    }
    /* A descriptor or two for each queue of each program. */
    struct rlimit files;
    if (!getrlimit(RLIMIT_NOFILE, &files)) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    signal(SIGPIPE, SIG_IGN);
    signal(SIGTERM, on_signal);
    signal(SIGINT, on_signal);
    fabric_make(&fabric, nics, traits.caps, &host, seed);
    for (int i = 0; i < nics; i++) {
        char name[32];
        snprintf(name, sizeof name, "uverbs%d", i);
        listeners[i] = bind_to(dir, name, SOCK_SEQPACKET);
    }
    control = bind_to(dir, "control", SOCK_DGRAM);
    run();
    static char answer[8192];
    size_t len = counts(answer, sizeof answer);
    fprintf(stderr, "%.*s", (int)len, answer);
    return 0;
}
