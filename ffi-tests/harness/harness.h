/*
 * What the C tests share: checks that print their place and cause, teams of processes that are forked before any Weft
 * call, and waits with a deadline.
 */
#ifndef WEFT_TEST_HARNESS_H
#define WEFT_TEST_HARNESS_H

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "requests.h"
#include "weft.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define KIB UINT64_C(1024)
#define MIB (KIB * 1024)
#define GIB (MIB * 1024)
#define MS UINT64_C(1000000)
#define SECOND (MS * 1000)

/* ---- Checks: a failed one prints itself and ends the process ---- */

#define CHECK(what) ((what) ? (void)0 : fail(__FILE__, __LINE__, "failed: %s", #what))
#define CHECK_EQ(a, b) check_eq(__FILE__, __LINE__, #a, #b, (long long)(a), (long long)(b))
#define CHECK_STATUS(call, want) check_status(__FILE__, __LINE__, #call, (call), (want))
#define CHECK_OK(call) CHECK_STATUS(call, WEFT_OK)
/* CHECK_ONE_OF(call, status, status, ...) */
#define CHECK_ONE_OF(call, ...)                                                             \
    check_one_of(__FILE__, __LINE__, #call, (call), (const weft_status[]){__VA_ARGS__},     \
                 sizeof((const weft_status[]){__VA_ARGS__}) / sizeof(weft_status))
#define FAIL(...) fail(__FILE__, __LINE__, __VA_ARGS__)

/*
 * Like CHECK_STATUS and CHECK_ONE_OF, and the call must leave its own message in weft_last_error().
 */
#define REFUSED(want, call)                                                                 \
    (mark_last_error(), check_status(__FILE__, __LINE__, #call, (call), (want)),            \
     check_own_message(__FILE__, __LINE__, #call))
#define REFUSED_EITHER(want, other, call)                                                   \
    (mark_last_error(),                                                                     \
     check_one_of(__FILE__, __LINE__, #call, (call), (const weft_status[]){want, other}, 2),\
     check_own_message(__FILE__, __LINE__, #call))

void fail(const char *file, int line, const char *format, ...)
    __attribute__((noreturn, format(printf, 3, 4)));
void check_eq(const char *file, int line, const char *a, const char *b, long long va, long long vb);
void check_status(const char *file, int line, const char *call, weft_status got, weft_status want);
weft_status check_one_of(const char *file, int line, const char *call, weft_status got,
                         const weft_status *allowed, size_t count);
void mark_last_error(void);
void check_own_message(const char *file, int line, const char *call);
void skip(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));
/* Runs a line of the shell, which must succeed. */
void shell(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- A program of tests ---- */

/*
 * where: what the test depends on. "once": no fabric (arguments, handles, queues,
 * statistics). "any": how a fabric moves bytes or ends; `make test` runs it on the four
 * that differ most, `make test-all` on each. "tcp,host": these alone. Words may follow:
 * "timed" says that it judges a time, so that tools/test-load.sh repeats it under load;
 * "alone" keeps other tests from running beside it, "wide" has `make test` run it on every
 * fabric, "long" on the first one only; "checks" says that it is about targets that
 * check each request, as no NIC does.
 */
struct test {
    const char *name;
    const char *where;
    void (*run)(void);
};

/* `prog name` runs one test, `prog --list` lists them. The last has no name. */
int run_tests(int argc, char **argv, const struct test *tests);

/* ---- Time, random numbers, the process ---- */

uint64_t now_ns(void);
/* Memory of this process that is resident. */
long resident_kb(void);
void sleep_ms(uint64_t ms);
/* How long a test waits for an expected event, in ms. It says nothing about how fast that should be: the runner ends a
 * test that hangs. The environment's WEFT_TEST_PATIENCE multiplies it. */
uint64_t patience_ms(void);
/* Any other time limit, multiplied likewise. */
uint64_t patiently(uint64_t limit);

/*
 * ---- Judging how long something took ----
 * A busy machine makes everything late, so a time is judged by a canary: a thread of this process that sleeps for a
 * millisecond, again and again. A span of time is as long as the canary's sleeps in it. On a quiet machine that is the
 * time by the clock; where threads wait for processors, the canary waits as well, and its time passes more slowly.
 * Threads that compute wait longer than one that sleeps: the kernel says how long, and that is forgiven, too; and since
 * it says nothing of threads that have ended, limits grow as a thread that computes is slowed down in that moment.
 *
 *     uint64_t began = judged_from();
 *     ...
 *     CHECK_WITHIN(began, now_ns(), 200 * MS);
 */

/* now_ns(), from which on this thread can judge durations: the process's first call starts the canary. */
uint64_t judged_from(void);
/* The canary's time between two times of the clock, the first of them after the first judged_from(). */
uint64_t canary_ns(uint64_t from_ns, uint64_t to_ns);
/* This long by the canary: other threads do at once what they have to. */
void canary_sleep_ms(uint64_t ms);
/* How late a completion may be after its deadline. */
#define LATE_MOST (200 * MS)
/*
 * At most this long by the canary, less what the process's threads waited for processors since this thread's last
 * judged_from(). WEFT_TEST_PATIENCE multiplies the limit.
 */
#define CHECK_WITHIN(from_ns, to_ns, limit_ns) \
    check_within(__FILE__, __LINE__, #from_ns, #to_ns, (from_ns), (to_ns), (limit_ns))
void check_within(const char *file, int line, const char *from, const char *to, uint64_t from_ns, uint64_t to_ns,
                  uint64_t limit_ns);

/*
 * No pass of a worker takes 5 ms of its own time in `round`, which opens its endpoints and calls count_passes() for
 * each before destroying it. Where the machine's host takes a processor away, a kernel counts that as the thread's own
 * time; so one round's result is believed when four more confirm it.
 */
void check_passes(void (*round)(void));
void count_passes(weft_endpoint *endpoint);

uint64_t mix(uint64_t x);                      /* a good 64-bit hash */
uint64_t next_random(uint64_t *state);         /* a sequence from a seed */
void fill_random(void *bytes, size_t len, uint64_t seed);
/* Index of the first byte that differs from fill_random's, or -1. */
int64_t differs_random(const void *bytes, size_t len, uint64_t seed);

int open_fds(void);
int running_threads(void);
/* Zeroed memory in whole pages; ends the process if there is none. */
void *map_bytes(size_t len);

/*
 * ---- Teams: processes that are forked first, and joined by sockets ----
 * On a simulated fabric they are threads of one process.
 */

#define TEAM_MAX 10

/* Memory that the whole team shares. */
struct board {
    _Atomic pid_t pid[TEAM_MAX];
    _Atomic int may_die[TEAM_MAX]; /* set before a member is killed on purpose */
    _Atomic uint64_t word[16];
};

struct team {
    int rank;
    int size;
    int fd[TEAM_MAX]; /* to each other member */
    struct board *board;
};

typedef void (*role)(struct team *);

/* Its sides are threads of one process. */
bool team_is_threads(void);

/* Runs one process (or thread) for each role; all must succeed. */
void run_team(int size, const role *roles);
void run_pair(role first, role second);
pid_t pid_of(struct team *team, int rank);
/* Sends SIGSTOP, and waits until no thread of the process runs any longer: threads do not stop at once. */
void stop_process(pid_t pid);
void kill_member(struct team *team, int rank);

/* ---- An endpoint and the completions polled from it ---- */

/* Completions that a test has polled, but not consumed yet, in order. */
struct box {
    weft_endpoint *endpoint;
    weft_completion *items;
    size_t count;
    size_t capacity;
};

const char *fabric(void); /* without encryption: the difference in `encrypted` */
bool encrypted(void);
/* the fabric of this run: "tcp", "host", "sim:like=efa", ... */
bool on_fabric(const char *name);
/* Writes and reads need the target's progress; not where NICs do them. */
bool target_must_poll(void);
weft_endpoint_config test_config(void);
weft_endpoint *open_endpoint(void);
weft_endpoint *open_with(const weft_endpoint_config *config);
struct box *box_of(weft_endpoint *endpoint);
/* Polls for up to `ms`, until something arrives. */
void box_pump(struct box *box, uint64_t ms);
/* The next completion of a kind; fails after `ms` without one. */
#define box_take(box, kind, ms) box_take_at(__FILE__, __LINE__, box, kind, ms)
/* The completion of one operation. */
#define box_await(box, transfer, ms) box_await_at(__FILE__, __LINE__, box, transfer, ms)
/* Fails if anything is there, or arrives within `ms`. */
#define box_quiet(box, ms) box_quiet_at(__FILE__, __LINE__, box, ms)
weft_completion box_take_at(const char *file, int line, struct box *box,
                            weft_completion_kind kind, uint64_t ms);
weft_completion box_await_at(const char *file, int line, struct box *box,
                             weft_op transfer, uint64_t ms);
void box_quiet_at(const char *file, int line, struct box *box, uint64_t ms);
bool box_try(struct box *box, weft_completion_kind kind, weft_completion *out);
/* Shuts down if necessary, destroys, and frees the box. */
void box_close(struct box *box);

/* ---- Communication within a team; with a box, it is polled meanwhile ---- */

void tell(struct team *team, int to, const void *bytes, size_t len);
size_t hear(struct team *team, int from, struct box *box, void *bytes, size_t capacity);
/* Waits until both sides have arrived here. */
void meet(struct team *team, int with, struct box *box);

size_t address_of(weft_endpoint *endpoint, void *buffer, size_t capacity);
size_t descriptor_of(weft_memory *memory, void *buffer, size_t capacity);
/* Exchanges addresses; the lower rank connects; returns the peer, which is up. */
weft_peer join(struct team *team, int with, struct box *box);
weft_memory *register_one(weft_endpoint *endpoint, void *address, uint64_t len);
void give_memory(struct team *team, int to, weft_memory *memory);
weft_remote_memory *take_memory(struct team *team, int from, struct box *box, weft_peer peer);

/* A write or read of `len` bytes at the start of both memories. */
struct range_request range_args(weft_memory *local, weft_remote_memory *remote, uint64_t len);
/* Submits a write, again after polling while the queue is full. */
weft_op write_now(struct box *box, const struct range_request *args);
weft_op send_now(struct box *box, weft_peer peer, const void *data, uint64_t len);

/* Waits for a counter to be raised once, for at most this long. */
weft_op expect_one(weft_endpoint *endpoint, weft_counter counter, uint64_t timeout_ns, void *user_data);

/* ---- What a program that is no endpoint can send to one over `host` ---- */

#define HOST_CHANNEL_LEN 2125824 /* of src/fabric/host/channel.rs */

/* Sends one message, with a descriptor or without (-1); false if the connection has ended. It never waits. */
bool host_send(int fd, uint8_t kind, uint32_t number, uint64_t len, int passed);
/* A file in memory that can neither shrink nor grow. */
int sealed_file(off_t len);

/* ---- Two endpoints of one process, connected, with memory each ---- */

struct duo {
    struct box *a;
    struct box *b;
    weft_peer a_to_b;
    weft_peer b_to_a;
    uint8_t *a_bytes;
    uint8_t *b_bytes;
    uint64_t len;
    weft_memory *a_memory;
    weft_memory *b_memory;
    weft_remote_memory *b_of_a; /* b's memory, imported by a */
};

struct duo duo_open(uint64_t len);
struct duo duo_open_with(uint64_t len, const weft_endpoint_config *config);
struct duo duo_open_between(uint64_t len, const weft_endpoint_config *of_a, const weft_endpoint_config *of_b);
/* Memories of `len` bytes on both sides, which a may write to and read from on b. */
void duo_share(struct duo *duo);
void duo_close(struct duo *duo);

/* ---- Memory that is reached only under grants ---- */

weft_memory *register_granted(weft_endpoint *endpoint, void *address, uint64_t len);
/* b's memory is such. */
struct duo duo_granted(uint64_t len);
struct duo duo_granted_between(uint64_t len, const weft_endpoint_config *of_a, const weft_endpoint_config *of_b);
weft_grant_token grant_whole(struct duo *duo);
void pump_both(struct duo *duo, uint64_t ms);
/* The status of an operation of a or b; both are polled for it. */
weft_status await_both(struct duo *duo, struct box *box, weft_op id);

#endif
