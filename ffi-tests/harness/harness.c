#include "harness.h"

#include <dirent.h>
#include <sys/prctl.h>

#define EXIT_SKIPPED 77
#define MARK "987654321"

static _Thread_local char role_name[16] = "";

/* ---- Checks ---- */

static void print_failure(const char *file, int line, const char *format, va_list args)
{
    const char *name = strrchr(file, '/');
    char text[2048];
    vsnprintf(text, sizeof text, format, args);
    fprintf(stderr, "%s:%d: %s%s\n    weft_last_error: \"%s\"\n", name ? name + 1 : file, line,
            role_name, text, weft_last_error());
    fflush(NULL);
}

void fail(const char *file, int line, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    print_failure(file, line, format, args);
    va_end(args);
    _exit(1);
}

void check_eq(const char *file, int line, const char *a, const char *b, long long va, long long vb)
{
    if (va != vb)
        fail(file, line, "failed: %s == %s (%lld and %lld)", a, b, va, vb);
}

void check_status(const char *file, int line, const char *call, weft_status got, weft_status want)
{
    if (got != want)
        fail(file, line, "%s\n    gave %s (%d), not %s", call, weft_status_name(got), got,
             weft_status_name(want));
}

weft_status check_one_of(const char *file, int line, const char *call, weft_status got,
                         const weft_status *allowed, size_t count)
{
    char list[512] = "";
    for (size_t i = 0; i < count; i++) {
        if (got == allowed[i])
            return got;
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, " %s", weft_status_name(allowed[i]));
    }
    fail(file, line, "%s\n    gave %s (%d), not one of%s", call, weft_status_name(got), got, list);
}

/* Leaves a message in weft_last_error() that no other call would. */
void mark_last_error(void)
{
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    weft_endpoint *endpoint;
    config.rail_count = 987654321;
    if (weft_endpoint_create(&config, &endpoint) == WEFT_OK)
        FAIL("an endpoint of " MARK " rails opened");
    if (!strstr(weft_last_error(), MARK))
        FAIL("the message about a rail_count of " MARK " does not name the value");
}

void check_own_message(const char *file, int line, const char *call)
{
    const char *message = weft_last_error();
    if (strlen(message) < 8 || strstr(message, MARK))
        fail(file, line, "%s\n    failed without a message of its own", call);
}

void skip(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    printf("SKIPPED: ");
    vprintf(format, args);
    printf("\n");
    va_end(args);
    fflush(NULL);
    _exit(EXIT_SKIPPED);
}

void shell(const char *format, ...)
{
    char command[1024] = "PATH=$PATH:/usr/sbin:/sbin; ";
    size_t len = strlen(command);
    va_list args;
    va_start(args, format);
    vsnprintf(command + len, sizeof command - len, format, args);
    va_end(args);
    if (system(command) != 0)
        FAIL("failed: %s", command);
}

/* ---- A program of tests ---- */

int run_tests(int argc, char **argv, const struct test *tests)
{
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        for (const struct test *t = tests; t->name; t++)
            printf("%s %s\n", t->name, t->where);
        return 0;
    }
    for (const struct test *t = tests; argc == 2 && t->name; t++) {
        if (strcmp(argv[1], t->name) == 0) {
            signal(SIGPIPE, SIG_IGN);
            setvbuf(stdout, NULL, _IOLBF, 0);
            t->run();
            return 0;
        }
    }
    fprintf(stderr, "usage: %s --list | TEST\n", argv[0]);
    return 2;
}

/* ---- Time, random numbers, the process ---- */

long resident_kb(void)
{
    long pages = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file != NULL && fscanf(file, "%ld %ld", &pages, &resident) == 2);
    fclose(file);
    return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * SECOND + (uint64_t)t.tv_nsec;
}

void sleep_ms(uint64_t ms)
{
    struct timespec t = {(time_t)(ms / 1000), (long)(ms % 1000 * MS)};
    while (nanosleep(&t, &t) != 0 && errno == EINTR) {
    }
}

uint64_t patiently(uint64_t limit)
{
    const char *factor = getenv("WEFT_TEST_PATIENCE");
    long n = factor ? atol(factor) : 1;
    return limit * (uint64_t)(n > 0 ? n : 1);
}

uint64_t patience_ms(void) { return patiently(30000); }

/* ---- Judging durations ---- */

#define TICK MS
#define TICKS (1u << 17) /* two minutes of a quiet machine */

static struct {
    pthread_mutex_t lock;
    pid_t pid; /* its thread: a fork has none */
    _Atomic pid_t tid;
    _Atomic uint64_t count;
    _Atomic uint64_t at[TICKS]; /* when the canary woke, the last TICKS times */
} canary = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* How long this process's threads have waited for processors, if the kernel reports it. */
static uint64_t waited_ns(void)
{
    uint64_t sum = 0, waited;
    struct dirent *entry;
    DIR *dir = opendir("/proc/self/task");
    CHECK(dir != NULL);
    while ((entry = readdir(dir)) != NULL) {
        char path[320];
        snprintf(path, sizeof path, "/proc/self/task/%s/schedstat", entry->d_name);
        FILE *file = atoi(entry->d_name) == canary.tid ? NULL : fopen(path, "r");
        if (file == NULL)
            continue;
        if (fscanf(file, "%*u %" SCNu64, &waited) == 1)
            sum += waited;
        fclose(file);
    }
    closedir(dir);
    return sum;
}

static _Thread_local uint64_t waited_before = UINT64_MAX; /* at the last judged_from() */

static void *ticks(void *unused)
{
    (void)unused;
    canary.tid = (pid_t)syscall(SYS_gettid);
    for (;;) {
        struct timespec t = {0, TICK};
        nanosleep(&t, NULL);
        uint64_t n = atomic_load(&canary.count);
        atomic_store(&canary.at[n % TICKS], now_ns());
        atomic_store(&canary.count, n + 1);
    }
    return NULL;
}

uint64_t judged_from(void)
{
    pthread_mutex_lock(&canary.lock);
    if (canary.pid != getpid()) {
        sigset_t all, before;
        pthread_t thread;
        canary.pid = getpid();
        sigfillset(&all); /* signals are for the test's own threads */
        CHECK(pthread_sigmask(SIG_SETMASK, &all, &before) == 0);
        CHECK(pthread_create(&thread, NULL, ticks, NULL) == 0);
        CHECK(pthread_detach(thread) == 0);
        CHECK(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
    }
    pthread_mutex_unlock(&canary.lock);
    waited_before = waited_ns();
    return now_ns();
}

uint64_t canary_ns(uint64_t from_ns, uint64_t to_ns)
{
    uint64_t count = atomic_load(&canary.count), within = 0;
    CHECK(canary.pid == getpid());
    for (uint64_t i = 1; i <= count && i < TICKS; i++) {
        uint64_t at = atomic_load(&canary.at[(count - i) % TICKS]);
        if (at < from_ns)
            break;
        within += at <= to_ns;
    }
    return within * TICK;
}

void canary_sleep_ms(uint64_t ms)
{
    for (uint64_t from = now_ns(); canary_ns(from, now_ns()) < ms * MS;)
        sleep_ms(1);
}

/* How much longer a computing thread takes now than alone, in per cent. */
static uint64_t slowness(void)
{
    struct timespec t;
    uint64_t began = now_ns(), cpu_began, cpu;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    cpu_began = cpu = (uint64_t)t.tv_sec * SECOND + (uint64_t)t.tv_nsec;
    while (cpu < cpu_began + 30 * MS) {
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
        cpu = (uint64_t)t.tv_sec * SECOND + (uint64_t)t.tv_nsec;
    }
    uint64_t percent = (now_ns() - began) * 100 / (cpu - cpu_began);
    return percent > 100 ? percent : 100;
}

void check_within(const char *file, int line, const char *from, const char *to, uint64_t from_ns, uint64_t to_ns,
                  uint64_t limit_ns)
{
    uint64_t wall = to_ns > from_ns ? to_ns - from_ns : 0, limit = patiently(limit_ns);
    uint64_t took = wall > limit ? canary_ns(from_ns, to_ns) : wall;
    if (took <= limit)
        return;
    uint64_t waited = waited_ns();
    waited = waited > waited_before ? waited - waited_before : 0; /* ended threads report nothing */
    uint64_t percent = slowness();
    if (took > (limit + waited) * percent / 100)
        fail(file, line, "failed: from %s to %s it took %" PRIu64 " us by the clock and %" PRIu64
             " us by the canary, with %" PRIu64 " us of waiting for processors, not at most %" PRIu64
             " us (a thread that computes takes %" PRIu64 " %% of its time alone)",
             from, to, wall / 1000, took / 1000, waited / 1000, limit / 1000, percent);
}

/* The longest pass of the round; the members of a team share it. */
static _Atomic uint64_t *longest_pass_ns;

void count_passes(weft_endpoint *endpoint)
{
    weft_endpoint_statistics statistics = {.size = sizeof statistics};
    CHECK_OK(weft_endpoint_info(endpoint, NULL, &statistics));
    printf("worker_pass_ms %.2f\ndriver_call_ms %.2f\n", (double)statistics.pass_longest_ns / MS,
           (double)statistics.driver_call_longest_ns / MS);
    if (statistics.pass_longest_ns > *longest_pass_ns)
        *longest_pass_ns = statistics.pass_longest_ns;
}

void check_passes(void (*round)(void))
{
    longest_pass_ns = mmap(NULL, sizeof *longest_pass_ns, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(longest_pass_ns != MAP_FAILED);
    for (int i = 0; i < 5; i++) {
        *longest_pass_ns = 0;
        round();
        if (*longest_pass_ns < patiently(5 * MS))
            return;
    }
    CHECK(*longest_pass_ns < patiently(5 * MS));
}

uint64_t mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

uint64_t next_random(uint64_t *state)
{
    *state += UINT64_C(0x9e3779b97f4a7c15);
    return mix(*state);
}

void fill_random(void *bytes, size_t len, uint64_t seed)
{
    uint8_t *p = bytes;
    for (size_t i = 0; i < len; i += 8) {
        uint64_t word = mix(seed ^ mix(i));
        memcpy(p + i, &word, len - i < 8 ? len - i : 8);
    }
}

int64_t differs_random(const void *bytes, size_t len, uint64_t seed)
{
    const uint8_t *p = bytes;
    for (size_t i = 0; i < len; i += 8) {
        uint64_t word = mix(seed ^ mix(i));
        uint8_t want[8];
        memcpy(want, &word, 8);
        for (size_t k = 0; k < 8 && i + k < len; k++)
            if (p[i + k] != want[k])
                return (int64_t)(i + k);
    }
    return -1;
}

static int entries_of(const char *path)
{
    DIR *dir = opendir(path);
    int count = 0;
    CHECK(dir != NULL);
    while (readdir(dir))
        count++;
    closedir(dir);
    return count;
}

int open_fds(void)
{
    return entries_of("/proc/self/fd") - 3; /* ".", "..", and the directory itself */
}

int running_threads(void)
{
    return entries_of("/proc/self/task") - 2;
}

void *map_bytes(size_t len)
{
    void *p = mmap(NULL, len ? len : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        FAIL("cannot map %zu bytes: %s", len, strerror(errno));
    return p;
}

/* ---- Teams ---- */

static void describe_end(int rank, int status)
{
    if (WIFSIGNALED(status))
        fprintf(stderr, "[%d] was killed by signal %d (%s)\n", rank, WTERMSIG(status),
                strsignal(WTERMSIG(status)));
    else
        fprintf(stderr, "[%d] exited with %d\n", rank, WEXITSTATUS(status));
}

/* Waits for all; the first that fails also ends the others. */
static void wait_for_team(const struct team *team)
{
    bool bad = false, skipped = false;
    for (int left = team->size; left > 0; left--) {
        int status;
        pid_t pid = wait(&status);
        CHECK(pid > 0);
        for (int r = 0; r < team->size; r++) {
            if (team->board->pid[r] != pid)
                continue;
            if (WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SKIPPED)
                skipped = true;
            else if (status != 0 && !(WIFSIGNALED(status) && team->board->may_die[r]) && !bad) {
                describe_end(r, status);
                bad = true;
            }
            team->board->pid[r] = -1;
        }
        if (bad || skipped) {
            sleep_ms(bad ? 200 : 0); /* the others may report the reason */
            for (int r = 0; r < team->size; r++)
                if (team->board->pid[r] > 0) {
                    team->board->may_die[r] = true;
                    kill(team->board->pid[r], SIGKILL);
                }
        }
    }
    if (bad || skipped) {
        fflush(NULL);
        _exit(bad ? 1 : EXIT_SKIPPED);
    }
}

struct member {
    struct team team;
    role run;
};

static void *run_member(void *argument)
{
    struct member *member = argument;
    snprintf(role_name, sizeof role_name, "[%d] ", member->team.rank);
    member->run(&member->team);
    return NULL;
}

/* Simulated NICs reach only those of their own process. */
bool team_is_threads(void)
{
    return strncmp(fabric(), "sim", 3) == 0;
}

static void run_threads(const struct team *team, int ends[TEAM_MAX][TEAM_MAX], const role *roles)
{
    struct member members[TEAM_MAX];
    pthread_t threads[TEAM_MAX];
    for (int r = 0; r < team->size; r++) {
        members[r] = (struct member){.team = *team, .run = roles[r]};
        members[r].team.rank = r;
        memcpy(members[r].team.fd, ends[r], sizeof members[r].team.fd);
        CHECK(pthread_create(&threads[r], NULL, run_member, &members[r]) == 0);
    }
    for (int r = 0; r < team->size; r++)
        CHECK(pthread_join(threads[r], NULL) == 0);
}

void run_team(int size, const role *roles)
{
    int ends[TEAM_MAX][TEAM_MAX];
    struct team team = {.size = size};
    CHECK(size <= TEAM_MAX);
    team.board = mmap(NULL, sizeof *team.board, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(team.board != MAP_FAILED);
    for (int a = 0; a < size; a++) {
        ends[a][a] = -1;
        for (int b = a + 1; b < size; b++) {
            int fds[2];
            CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
            ends[a][b] = fds[0];
            ends[b][a] = fds[1];
        }
    }
    if (team_is_threads()) {
        run_threads(&team, ends, roles);
        return;
    }
    for (int r = 0; r < size; r++) {
        fflush(NULL);
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            snprintf(role_name, sizeof role_name, "[%d] ", r);
            team.rank = r;
            for (int a = 0; a < size; a++)
                for (int b = 0; b < size; b++)
                    if (a == r)
                        team.fd[b] = ends[a][b];
                    else if (ends[a][b] >= 0)
                        close(ends[a][b]);
            roles[r](&team);
            fflush(NULL);
            exit(0); /* with destructors: they must not hang either */
        }
        team.board->pid[r] = pid;
    }
    for (int a = 0; a < size; a++)
        for (int b = 0; b < size; b++)
            if (ends[a][b] >= 0)
                close(ends[a][b]);
    wait_for_team(&team);
}

void run_pair(role first, role second)
{
    const role roles[] = {first, second};
    run_team(2, roles);
}

pid_t pid_of(struct team *team, int rank)
{
    pid_t pid;
    if (team_is_threads())
        skip("the sides are threads of one process here");
    while ((pid = team->board->pid[rank]) == 0)
        sched_yield();
    if (pid < 0) /* kill() would signal every process */
        FAIL("member %d has ended", rank);
    return pid;
}

/* Whether the thread with this folder in /proc is stopped or gone. */
static bool is_stopped(const char *folder, const char *thread)
{
    char path[320], state = 'T';
    snprintf(path, sizeof path, "%s/%s/stat", folder, thread);
    FILE *file = fopen(path, "r");
    if (file) {
        if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1)
            state = 'T'; /* it ended between the two calls */
        fclose(file);
    }
    return state == 'T';
}

static bool all_are_stopped(pid_t pid)
{
    char folder[40];
    bool all = true;
    struct dirent *entry;
    snprintf(folder, sizeof folder, "/proc/%d/task", (int)pid);
    DIR *dir = opendir(folder);
    CHECK(dir != NULL);
    while (all && (entry = readdir(dir)) != NULL)
        all = entry->d_name[0] == '.' || is_stopped(folder, entry->d_name);
    closedir(dir);
    return all;
}

void stop_process(pid_t pid)
{
    uint64_t until = now_ns() + patience_ms() * MS;
    CHECK(kill(pid, SIGSTOP) == 0);
    while (!all_are_stopped(pid)) {
        CHECK(now_ns() < until);
        sleep_ms(1);
    }
}

void kill_member(struct team *team, int rank)
{
    pid_t pid = pid_of(team, rank);
    CHECK(pid > 0);
    team->board->may_die[rank] = 1;
    CHECK(kill(pid, SIGKILL) == 0);
}

/* ---- An endpoint and its box ---- */

bool encrypted(void)
{
    const char *name = getenv("WEFT_TEST_FABRIC");
    return name && strcmp(name, "tcp-encrypted") == 0;
}

const char *fabric(void)
{
    const char *name = getenv("WEFT_TEST_FABRIC");
    return encrypted() ? "tcp" : name && *name ? name : "tcp";
}

bool on_fabric(const char *name)
{
    return strcmp(fabric(), name) == 0;
}

bool target_must_poll(void)
{
    return strncmp(fabric(), "sim", 3) != 0 || strstr(fabric(), "like=tcp");
}

weft_endpoint_config test_config(void)
{
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    config.fabric = fabric();
    config.rails = strncmp(fabric(), "tcp", 3) == 0 ? "lo" : NULL;
    config.timeout_ns = 2 * patience_ms() * MS;
    config.connect_timeout_ns = patiently(10) * SECOND; /* the default, on a machine that is not slow */
    const char *streams = getenv("WEFT_TEST_STREAMS");
    config.tcp_streams = streams ? (uint32_t)atoi(streams) : 0;
    if (encrypted()) {
        config.encrypt = 1;
        config.secret = "what all tests know";
        config.secret_len = 19;
    }
    return config;
}

weft_endpoint *open_with(const weft_endpoint_config *config)
{
    weft_endpoint *endpoint = NULL;
    CHECK_OK(weft_endpoint_create(config, &endpoint));
    CHECK(endpoint != NULL);
    return endpoint;
}

weft_endpoint *open_endpoint(void)
{
    weft_endpoint_config config = test_config();
    return open_with(&config);
}

struct box *box_of(weft_endpoint *endpoint)
{
    struct box *box = calloc(1, sizeof *box);
    CHECK(box != NULL);
    box->endpoint = endpoint;
    return box;
}

void box_pump(struct box *box, uint64_t ms)
{
    weft_completion got[64];
    int32_t n = weft_queue_poll(weft_endpoint_queue(box->endpoint), got, COUNT(got), ms * MS);
    if (n == WEFT_ERR_CLOSED) {
        sleep_ms(ms ? 1 : 0);
        return;
    }
    if (n < 0 || n > (int32_t)COUNT(got))
        FAIL("polling gave %d (%s)", n, n < 0 ? weft_status_name(n) : "too many");
    if (box->count + (size_t)n > box->capacity) {
        box->capacity = box->capacity * 2 + 64;
        box->items = realloc(box->items, box->capacity * sizeof *box->items);
        CHECK(box->items != NULL);
    }
    if (n > 0)
        memcpy(box->items + box->count, got, (size_t)n * sizeof got[0]);
    box->count += (size_t)n;
}

static void remove_item(struct box *box, size_t i, weft_completion *out)
{
    *out = box->items[i];
    memmove(box->items + i, box->items + i + 1, (box->count - i - 1) * sizeof *box->items);
    box->count--;
}

static void print_box(const struct box *box)
{
    for (size_t i = 0; i < box->count && i < 20; i++) {
        const weft_completion *c = &box->items[i];
        fprintf(stderr, "    there is: kind %d, %s, transfer %" PRIx64 ", peer %" PRIx64
                ", notify %" PRIu64 ", bytes %" PRIu64 ", provider_errno %d\n",
                c->kind, weft_status_name(c->status), c->op, c->peer, c->notify, c->bytes,
                c->provider_errno);
    }
}

bool box_try(struct box *box, weft_completion_kind kind, weft_completion *out)
{
    for (size_t i = 0; i < box->count; i++)
        if (box->items[i].kind == kind) {
            remove_item(box, i, out);
            return true;
        }
    return false;
}

weft_completion box_take_at(const char *file, int line, struct box *box,
                            weft_completion_kind kind, uint64_t ms)
{
    uint64_t until = now_ns() + ms * MS;
    weft_completion c;
    while (!box_try(box, kind, &c)) {
        bool late = now_ns() > until;
        box_pump(box, late ? 0 : 10);
        if (late && !box_try(box, kind, &c)) {
            print_box(box);
            fail(file, line, "no completion of kind %d within %" PRIu64 " ms", kind, ms);
        }
        if (late)
            break;
    }
    return c;
}

weft_completion box_await_at(const char *file, int line, struct box *box,
                             weft_op transfer, uint64_t ms)
{
    uint64_t until = now_ns() + ms * MS;
    size_t seen = 0;
    for (;;) {
        for (; seen < box->count; seen++) {
            const weft_completion *c = &box->items[seen];
            bool operation = c->kind == WEFT_COMPLETION_WRITE || c->kind == WEFT_COMPLETION_READ ||
                             c->kind == WEFT_COMPLETION_SEND || c->kind == WEFT_COMPLETION_ATOMIC ||
                             c->kind == WEFT_COMPLETION_FENCE ||
                             c->kind == WEFT_COMPLETION_COUNTER;
            if (operation && c->op == transfer) {
                weft_completion out;
                remove_item(box, seen, &out);
                return out;
            }
        }
        if (now_ns() > until) {
            print_box(box);
            fail(file, line, "transfer %" PRIx64 " did not complete within %" PRIu64 " ms",
                 transfer, ms);
        }
        box_pump(box, 10);
    }
}

void box_quiet_at(const char *file, int line, struct box *box, uint64_t ms)
{
    uint64_t until = now_ns() + ms * MS;
    do {
        box_pump(box, 1);
        weft_completion down;
        while (box_try(box, WEFT_COMPLETION_PEER_DOWN, &down))
            CHECK_STATUS(down.status, WEFT_ERR_PEER_CLOSED); /* the other side may have finished already */
        if (box->count) {
            print_box(box);
            fail(file, line, "a completion that nobody expects");
        }
    } while (now_ns() < until);
}

void box_close(struct box *box)
{
    CHECK_OK(weft_endpoint_shutdown(box->endpoint, 0));
    CHECK_OK(weft_endpoint_destroy(box->endpoint));
    free(box->items);
    free(box);
}

/* ---- Communication within a team ---- */

static void write_all(int fd, const void *bytes, size_t len)
{
    const char *p = bytes;
    while (len > 0) {
        ssize_t n = send(fd, p, len, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            FAIL("the other process has gone");
        p += n;
        len -= (size_t)n;
    }
}

static void read_all(int fd, struct box *box, void *bytes, size_t len)
{
    uint64_t until = now_ns() + 2 * patience_ms() * MS;
    char *p = bytes;
    while (len > 0) {
        struct pollfd ready = {fd, POLLIN, 0};
        int n = poll(&ready, 1, box ? 0 : 100);
        if (n > 0) {
            ssize_t got = recv(fd, p, len, 0);
            if (got <= 0)
                FAIL("the other process has gone");
            p += got;
            len -= (size_t)got;
            continue;
        }
        if (box)
            box_pump(box, 1);
        if (now_ns() > until)
            FAIL("the other process said nothing in time");
    }
}

void tell(struct team *team, int to, const void *bytes, size_t len)
{
    uint64_t header = len;
    write_all(team->fd[to], &header, sizeof header);
    write_all(team->fd[to], bytes, len);
}

size_t hear(struct team *team, int from, struct box *box, void *bytes, size_t capacity)
{
    uint64_t header;
    read_all(team->fd[from], box, &header, sizeof header);
    CHECK(header <= capacity);
    read_all(team->fd[from], box, bytes, (size_t)header);
    return (size_t)header;
}

void meet(struct team *team, int with, struct box *box)
{
    char byte = 'm';
    tell(team, with, &byte, 1);
    CHECK_EQ(hear(team, with, box, &byte, 1), 1);
    CHECK_EQ(byte, 'm');
}

size_t address_of(weft_endpoint *endpoint, void *buffer, size_t capacity)
{
    size_t len = 0;
    CHECK_OK(weft_endpoint_address(endpoint, buffer, capacity, &len));
    CHECK(len > 0 && len <= capacity);
    return len;
}

size_t descriptor_of(weft_memory *memory, void *buffer, size_t capacity)
{
    size_t len = 0;
    CHECK_OK(weft_memory_export(memory, buffer, capacity, &len));
    CHECK(len > 0 && len <= capacity);
    return len;
}

weft_peer join(struct team *team, int with, struct box *box)
{
    char mine[8192], theirs[8192];
    static const char asked = 0;
    weft_peer peer = 0;
    tell(team, with, mine, address_of(box->endpoint, mine, sizeof mine));
    size_t len = hear(team, with, box, theirs, sizeof theirs);
    if (team->rank < with) {
        weft_op_options args = WEFT_OP_OPTIONS_INIT;
        args.user_data = (void *)(uintptr_t)&asked;
        CHECK_OK(weft_peer_connect(box->endpoint, theirs, len, &args, &peer));
        CHECK(peer != 0);
    }
    weft_completion up = box_take(box, WEFT_COMPLETION_PEER_UP, patience_ms());
    CHECK_STATUS(up.status, WEFT_OK);
    CHECK_EQ(up.accepted, team->rank < with ? 0 : 1);
    if (team->rank < with) {
        CHECK(up.peer == peer);
        CHECK(up.user_data == &asked);
    }
    CHECK(up.peer != 0);
    meet(team, with, box);
    return up.peer;
}

weft_memory *register_one(weft_endpoint *endpoint, void *address, uint64_t len)
{
    weft_memory_range range = {address, len};
    weft_memory *memory = NULL;
    CHECK_OK(weft_memory_register(endpoint, &range, 1, NULL, &memory));
    CHECK(memory != NULL);
    return memory;
}

#define DESCRIPTOR_MAX ((size_t)1 << 20)

void give_memory(struct team *team, int to, weft_memory *memory)
{
    char *descriptor = malloc(DESCRIPTOR_MAX);
    CHECK(descriptor != NULL);
    tell(team, to, descriptor, descriptor_of(memory, descriptor, DESCRIPTOR_MAX));
    free(descriptor);
}

weft_remote_memory *take_memory(struct team *team, int from, struct box *box, weft_peer peer)
{
    char *descriptor = malloc(DESCRIPTOR_MAX);
    weft_remote_memory *remote = NULL;
    CHECK(descriptor != NULL);
    size_t len = hear(team, from, box, descriptor, DESCRIPTOR_MAX);
    CHECK_OK(weft_remote_memory_import(box->endpoint, peer, descriptor, len, &remote));
    CHECK(remote != NULL);
    free(descriptor);
    return remote;
}

struct range_request range_args(weft_memory *local, weft_remote_memory *remote, uint64_t len)
{
    struct range_request args = RANGE_REQUEST_INIT;
    args.local = local;
    args.remote = remote;
    args.len = len;
    return args;
}

weft_op write_now(struct box *box, const struct range_request *args)
{
    uint64_t until = now_ns() + patience_ms() * MS;
    weft_op transfer = 0;
    weft_status status;
    while ((status = submit_write(box->endpoint, args, &transfer)) == WEFT_ERR_AGAIN) {
        CHECK(now_ns() < until);
        box_pump(box, 1);
    }
    CHECK_OK(status);
    CHECK(transfer != 0);
    return transfer;
}

weft_op send_now(struct box *box, weft_peer peer, const void *data, uint64_t len)
{
    uint64_t until = now_ns() + patience_ms() * MS;
    struct send_request args = SEND_REQUEST_INIT;
    weft_op transfer = 0;
    weft_status status;
    args.peer = peer;
    args.data = data;
    args.len = len;
    while ((status = submit_send(box->endpoint, &args, &transfer)) == WEFT_ERR_AGAIN) {
        CHECK(now_ns() < until);
        box_pump(box, 1);
    }
    CHECK_OK(status);
    CHECK(transfer != 0);
    return transfer;
}

/* ---- Two endpoints of one process ---- */

struct duo duo_open(uint64_t len)
{
    weft_endpoint_config config = test_config();
    return duo_open_with(len, &config);
}

struct duo duo_open_with(uint64_t len, const weft_endpoint_config *config)
{
    return duo_open_between(len, config, config);
}

void duo_share(struct duo *duo)
{
    char blob[8192];
    duo->a_bytes = map_bytes(duo->len);
    duo->b_bytes = map_bytes(duo->len);
    duo->a_memory = register_one(duo->a->endpoint, duo->a_bytes, duo->len);
    duo->b_memory = register_one(duo->b->endpoint, duo->b_bytes, duo->len);
    size_t n = descriptor_of(duo->b_memory, blob, sizeof blob);
    CHECK_OK(weft_remote_memory_import(duo->a->endpoint, duo->a_to_b, blob, n, &duo->b_of_a));
}

struct duo duo_open_between(uint64_t len, const weft_endpoint_config *of_a, const weft_endpoint_config *of_b)
{
    char blob[8192];
    struct duo duo = {.len = len};
    duo.a = box_of(open_with(of_a));
    duo.b = box_of(open_with(of_b));
    size_t n = address_of(duo.b->endpoint, blob, sizeof blob);
    CHECK_OK(weft_peer_connect(duo.a->endpoint, blob, n, NULL, &duo.a_to_b));
    weft_completion connected, up;
    bool a_is_up = false, b_is_up = false;
    for (uint64_t end = now_ns() + patience_ms() * MS; !a_is_up || !b_is_up;) {
        CHECK(now_ns() < end);
        box_pump(duo.a, 0); /* Their caller may have to drive both. */
        box_pump(duo.b, 1);
        a_is_up = a_is_up || box_try(duo.a, WEFT_COMPLETION_PEER_UP, &connected);
        b_is_up = b_is_up || box_try(duo.b, WEFT_COMPLETION_PEER_UP, &up);
    }
    CHECK_OK(connected.status);
    CHECK_OK(up.status);
    duo.b_to_a = up.peer;
    duo_share(&duo);
    return duo;
}

void duo_close(struct duo *duo)
{
    box_close(duo->a);
    box_close(duo->b);
    munmap(duo->a_bytes, duo->len);
    munmap(duo->b_bytes, duo->len);
}

weft_memory *register_granted(weft_endpoint *endpoint, void *address, uint64_t len)
{
    weft_memory_args args = WEFT_MEMORY_ARGS_INIT;
    weft_memory_range range = {address, len};
    weft_memory *memory = NULL;
    args.access = WEFT_ACCESS_GRANTED;
    CHECK_OK(weft_memory_register(endpoint, &range, 1, &args, &memory));
    return memory;
}

struct duo duo_granted_between(uint64_t len, const weft_endpoint_config *of_a, const weft_endpoint_config *of_b)
{
    struct duo duo = duo_open_between(len, of_a, of_b);
    char blob[8192];
    CHECK_OK(weft_remote_memory_release(duo.b_of_a));
    CHECK_OK(weft_memory_deregister(duo.b_memory));
    duo.b_memory = register_granted(duo.b->endpoint, duo.b_bytes, len);
    size_t n = descriptor_of(duo.b_memory, blob, sizeof blob);
    CHECK_OK(weft_remote_memory_import(duo.a->endpoint, duo.a_to_b, blob, n, &duo.b_of_a));
    return duo;
}

struct duo duo_granted(uint64_t len)
{
    weft_endpoint_config config = test_config();
    return duo_granted_between(len, &config, &config);
}

weft_grant_token grant_whole(struct duo *duo)
{
    static const weft_grant_token none;
    weft_grant_token token;
    CHECK_OK(weft_grant_create(duo->b_memory, duo->b_to_a, NULL, &token));
    CHECK(memcmp(&token, &none, sizeof token) != 0);
    return token;
}

void pump_both(struct duo *duo, uint64_t ms)
{
    uint64_t end = now_ns() + ms * MS;
    do {
        box_pump(duo->a, 0);
        box_pump(duo->b, 0);
    } while (now_ns() < end);
}

weft_status await_both(struct duo *duo, struct box *box, weft_op id)
{
    uint64_t end = now_ns() + patience_ms() * MS;
    for (;;) {
        CHECK(now_ns() < end);
        box_pump(duo->a, 0);
        box_pump(duo->b, 0);
        for (size_t i = 0; i < box->count; i++)
            if (box->items[i].op == id)
                return box_await(box, id, patience_ms()).status;
    }
}

weft_op expect_one(weft_endpoint *endpoint, weft_counter counter, uint64_t timeout_ns, void *user_data)
{
    struct expect_request args = EXPECT_REQUEST_INIT;
    uint64_t value = 1;
    weft_op id;
    args.counters = &counter;
    args.values = &value;
    args.count = 1;
    args.options.timeout_ns = timeout_ns;
    args.options.user_data = user_data;
    CHECK_OK(submit_expect(endpoint, &args, &id));
    return id;
}

/* ---- What a program that is no endpoint can send to one over `host` ---- */

bool host_send(int fd, uint8_t kind, uint32_t number, uint64_t len, int passed)
{
    uint8_t frame[16] = {kind};
    char beside[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec part = {frame, sizeof frame};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    memcpy(frame + 4, &number, sizeof number);
    memcpy(frame + 8, &len, sizeof len);
    if (passed >= 0) {
        message.msg_control = beside;
        message.msg_controllen = sizeof beside;
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &passed, sizeof passed);
    }
    return sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof frame || errno == EAGAIN;
}

int sealed_file(off_t len)
{
    int fd = memfd_create("not-weft", MFD_ALLOW_SEALING | MFD_CLOEXEC);
    CHECK(fd >= 0 && ftruncate(fd, len) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
    return fd;
}
