/*
 * The worlds, and the program that plays them:
 *
 *     engine threads|virtual|processes             a test, on WEFT_TEST_FABRIC; seeds for WEFT_SEED_SECONDS
 *     engine namespaces [MINUTES [SEED [JSON]]]    three hosts of tools/lab.sh
 *
 * WEFT_SEED=N plays one seed (again), WEFT_SEEDS=FIRST:COUNT this many; else as many as there is time for. Virtual time
 * goes the same way each time; over the wall clock, and with processes, the operations and faults are the same, but not
 * how they meet. WEFT_SEED_OPERATIONS=N stops after N operations.
 */
#include "engine.h"

struct book *book;
uint8_t *memories[HOSTS];
int files[HOSTS];
struct self parties[HOSTS];
static uint64_t turns; /* draws who waits */

/* ---- The book ---- */

#define MEMORY_MAX (2 * HOSTS * SLOTS_MAX * LAYERS * 64 * KIB + 4096)

static void *shared(void *was, size_t len)
{
    if (was && madvise(was, len, MADV_REMOVE) == 0) /* zeros again */
        return was;
    void *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        FAIL("cannot map %zu bytes: %s", len, strerror(errno));
    return p;
}

/* What others reach lies in a file without a name, on a disk if /var/tmp is on one. */
static void put_into_file(int host)
{
    uint64_t len = reached_len();
    if (files[host] == 0)
        files[host] = open("/var/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    CHECK(files[host] > 0 && ftruncate(files[host], 0) == 0 && ftruncate(files[host], (off_t)len) == 0);
    CHECK(mmap(memories[host] + len, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, files[host], 0) != MAP_FAILED);
}

void book_make(const struct plan *plan)
{
    uint32_t were = book ? book->plan.files : 0;
    book = shared(book, sizeof *book);
    book->plan = *plan;
    book->begin_ns = world_ns();
    CHECK(memory_len() <= MEMORY_MAX);
    for (int h = 0; h < HOSTS; h++) {
        if (were >> h & 1) {
            munmap(memories[h], MEMORY_MAX);
            memories[h] = NULL;
        }
        memories[h] = shared(memories[h], MEMORY_MAX);
        if (plan->files >> h & 1)
            put_into_file(h);
    }
}

uint32_t book_operations(void)
{
    return book->operations_count < OPERATIONS_MAX ? book->operations_count : OPERATIONS_MAX;
}

uint64_t world_ns(void)
{
    return book->plan.world == VIRTUAL ? book->clock_ns : now_ns();
}

uint64_t book_ms(void)
{
    return (world_ns() - book->begin_ns) / MS;
}

void finding(_Atomic uint64_t *count, const char *format, ...)
{
    uint32_t at = atomic_fetch_add(&book->notes_count, 1);
    atomic_fetch_add(count, 1);
    if (at >= NOTES_MAX)
        return;
    char *note = book->notes[at];
    int used = snprintf(note, sizeof book->notes[at], "%" PRIu64 " ms: ", book_ms());
    va_list args;
    va_start(args, format);
    vsnprintf(note + used, sizeof book->notes[at] - (size_t)used, format, args);
    va_end(args);
}

struct span *span_begin(int host, int rail)
{
    uint32_t at = atomic_fetch_add(&book->spans_count, 1);
    CHECK(at < SPANS_MAX);
    struct span *span = &book->spans[at];
    span->host = host;
    span->rail = rail;
    span->from_ns = world_ns();
    return span;
}

/* ---- Two hosts of one thread ---- */

static void poll_others(void)
{
    struct self *here = self;
    int32_t came = 0;
    for (int h = 0; h < book->plan.hosts; h++)
        if (&parties[h] != here && parties[h].endpoint) {
            self = &parties[h];
            came += host_poll(0);
        }
    self = here;
    if (!came)
        sched_yield();
}

static void live_again(int host)
{
    self = &parties[host];
    host_leave();
    life_ends(host, LEFT_WELL);
    life_begins(host);
    host_begin(&parties[host], host, book->hosts[host].lives_count - 1);
}

/* Each polls once; if nothing arrives, up to `ns` pass. */
static void turn(uint64_t ns)
{
    int32_t came = 0;
    if (book->plan.fault_ms)
        faults_step();
    for (int h = 0; h < book->plan.hosts; h++) {
        self = &parties[h];
        came += host_step(0);
        if (book->hosts[h].leave)
            live_again(h);
    }
    if (came > 0)
        return;
    self = &parties[below(&turns, (uint32_t)book->plan.hosts)];
    if (host_poll(ns) == 0 && book->plan.world == VIRTUAL)
        book->clock_ns += ns;
}

static bool all_ready(void)
{
    bool ready = true;
    for (int a = 0; a < book->plan.hosts; a++)
        for (int b = 0; b < book->plan.hosts; b++) {
            self = &parties[a];
            ready &= a == b || is_ready(b);
        }
    return ready;
}

static uint32_t outstanding(void)
{
    uint32_t sum = 0;
    for (int h = 0; h < book->plan.hosts; h++)
        sum += parties[h].open;
    return sum;
}

static bool turn_until(bool (*done)(void), uint64_t limit_ns)
{
    for (uint64_t until = world_ns() + limit_ns; !done() && world_ns() < until;)
        turn(book->plan.world != VIRTUAL ? 50 * 1000 : book->quiet ? MS : 500 * 1000);
    return done();
}

static bool nothing_is_open(void) { return outstanding() == 0; }

static bool never(void) { return false; }

static bool has_played_all(void) { return book->operations_count >= book->plan.operations; }

void world_open(const struct plan *plan)
{
    book_make(plan);
    setenv("WEFT_SIM_FAULTS", plan->sim_faults, 1);
    play_others = poll_others;
    turns = plan->seed;
    for (int h = 0; h < plan->hosts; h++) {
        life_begins(h);
        host_begin(&parties[h], h, 0);
    }
    book->plan.fault_ms = 0; /* not before all are connected */
    if (!turn_until(all_ready, patiently(10) * SECOND))
        finding(&book->odd, "the hosts are not connected after 10 s");
    book->plan.fault_ms = plan->fault_ms;
    book->begin_ns = world_ns();
}

void world_play(uint64_t ns) { turn_until(has_played_all, ns); }

bool world_close(void)
{
    const struct plan *plan = &book->plan;
    if (!plan->abrupt) {
        book->quiet = true;
        faults_end();
        if (!turn_until(nothing_is_open, 3 * AMPLE))
            finding(&book->odd, "after %" PRIu64 " s %u and %u operations are open", 3 * AMPLE / SECOND, parties[0].open, parties[1].open);
        turn_until(never, plan->world == VIRTUAL ? (*plan->sim_faults ? 4 * SECOND : SECOND) : 5 * MS);
    }
    faults_end();
    book->over = true;
    for (int h = 0; h < plan->hosts; h++) {
        self = &parties[h];
        host_check();
    }
    for (int h = 0; h < plan->hosts; h++) {
        self = &parties[h];
        host_leave();
        life_ends(h, LEFT_WELL);
    }
    return report(false, NULL);
}

static bool play_here(const struct plan *plan)
{
    world_open(plan);
    world_play(plan->length_ns);
    return world_close();
}

/* ---- Three processes ---- */

static bool is_outstanding(const struct operation *op)
{
    const struct host *host = &book->hosts[op->host];
    if (!op->accepted || op->life != host->lives_count - 1)
        return false;
    for (int target = 0; target < HOSTS; target++)
        if (op->targets >> target & 1 && !op->part[target].done)
            return true;
    return false;
}

static uint32_t outstanding_of_late(void)
{
    uint32_t count = book_operations(), sum = 0;
    for (uint32_t i = count > 20000 ? count - 20000 : 0; i < count; i++)
        sum += is_outstanding(&book->operations[i]);
    return sum;
}

static void rest(uint64_t ns)
{
    for (uint64_t until = now_ns() + ns; now_ns() < until; sleep_ms(5))
        hosts_watch();
}

/* The part of the given time for ending the run. */
#define CALM (8 * SECOND)
#define SETTLE (30 * SECOND)

/* All operations end by their deadlines; then nothing may change any longer. */
static bool play_processes(const struct plan *plan, bool print, const char *json)
{
    uint64_t ns = plan->length_ns;
    book_make(plan);
    hosts_begin();
    for (uint64_t until = now_ns() + (ns > 2 * CALM ? ns - CALM : ns / 2); now_ns() < until; sleep_ms(1)) {
        hosts_watch();
        faults_step();
    }
    book->quiet = true;
    faults_end();
    for (uint64_t until = now_ns() + SETTLE; outstanding_of_late() > 0 && now_ns() < until;)
        rest(50 * MS);
    rest(2 * SECOND);
    book->over = true;
    for (uint64_t until = now_ns() + SETTLE; !hosts_watch() && now_ns() < until;)
        sleep_ms(5);
    if (!hosts_watch())
        finding(&book->odd, "a host does not end");
    return report(print, json);
}

/* ---- Seeds ---- */

static uint64_t number_of(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : otherwise;
}

static bool play(const struct plan *plan)
{
    return plan->world == PROCESSES ? play_processes(plan, false, NULL) : play_here(plan);
}

/* The fewest operations after which it still fails; only in virtual time, where runs repeat exactly. */
static uint32_t shrink(struct plan plan)
{
    uint32_t good = 0, bad = plan.operations;
    int out = dup(1), none = open("/dev/null", O_WRONLY);
    fflush(stdout);
    dup2(none, 1);
    while (good + 1 < bad) {
        plan.operations = good + (bad - good) / 2;
        if (play(&plan))
            good = plan.operations;
        else
            bad = plan.operations;
    }
    fflush(stdout);
    dup2(out, 1);
    return bad;
}

static void play_seeds(enum world world, const char *name, uint64_t seconds)
{
    const char *range = getenv("WEFT_SEEDS"), *count = range ? strchr(range, ':') : NULL;
    uint64_t first = number_of("WEFT_SEED", number_of("WEFT_SEEDS", world == VIRTUAL ? 1 : now_ns() % 1000000));
    uint64_t last = getenv("WEFT_SEED") ? first : count ? first + strtoull(count + 1, NULL, 10) - 1 : UINT64_MAX;
    uint64_t until = now_ns() + number_of("WEFT_SEED_SECONDS", seconds) * SECOND, passed = 0;
    const char *fabric_here = world == VIRTUAL ? NULL : fabric();
    if (world != PROCESSES) /* whose parent must not use Weft before it forks */
        log_lines();
    for (uint64_t seed = first; seed <= last && (last != UINT64_MAX || passed == 0 || now_ns() < until); seed++, passed++) {
        struct plan plan = plan_of(world, fabric_here, seed);
        plan.operations = (uint32_t)number_of("WEFT_SEED_OPERATIONS", plan.operations);
        fprintf(stderr, "WEFT_SEED=%" PRIu64 "\r", seed);
        if (play(&plan))
            continue;
        printf("%s%s%s, %s%s%s\n", plan.fabric, *plan.sim_faults ? ", faults " : "", plan.sim_faults, plan.manual ? "manual" : "threads",
               plan.abrupt ? ", ends abruptly" : "", plan.files ? ", files" : "");
        printf("To play it again: WEFT_SEED=%" PRIu64 " WEFT_TEST_FABRIC=%s target/ffi-tests/engine %s\n", seed, fabric(), name);
        if (world == VIRTUAL && !getenv("WEFT_SEED_OPERATIONS"))
            printf("It fails with WEFT_SEED_OPERATIONS=%u, too.\n", shrink(plan));
        fflush(NULL);
        _exit(1);
    }
    printf("%s %" PRIu64 "\n", world == VIRTUAL ? "sim_seeds_passed" : "seeds_passed", passed);
}

static void threads(void)
{
    static struct self watcher;
    book_make(&(struct plan){.world = THREADS});
    self = &watcher;
    stalls_watch();
    play_seeds(THREADS, "threads", 3);
}

static void in_virtual_time(void)
{
    play_seeds(VIRTUAL, "virtual", 10);
}

static void processes(void)
{
    play_seeds(PROCESSES, "processes", 1);
}

static int namespaces(int argc, char **argv)
{
    double minutes = argc > 2 ? atof(argv[2]) : 10;
    uint64_t seed = argc > 3 && *argv[3] ? strtoull(argv[3], NULL, 10) : now_ns() % 1000000;
    struct plan plan = plan_of(NAMESPACES, fabric(), seed);
    plan.length_ns = (uint64_t)(minutes * 60 * (double)SECOND);
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("chaos: %g minutes, SEED=%" PRIu64, minutes, seed);
    for (int h = 0; h < HOSTS; h++)
        if (plan.files >> h & 1)
            printf(", host %d has files", h);
    printf("\n");
    bool well = play_processes(&plan, true, argc > 4 ? argv[4] : NULL);
    printf("chaos: SEED=%" PRIu64 ": %s\n", seed, well ? "all is well" : "NOT well");
    return well ? 0 : 1;
}

static const struct test worlds[] = {
    {"threads", "tcp,host,sim:like=tcp,sim:like=efa,sim:like=efa-direct,sim:like=verbs", threads},
    {"virtual", "once", in_virtual_time},
    {"processes", "tcp,host", processes},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    struct test tests[32];
    size_t count = COUNT(worlds) - 1;
    memcpy(tests, worlds, sizeof worlds);
    for (const struct test *t = scenarios; t == scenarios || t[-1].name; t++)
        tests[count++] = *t;
    return argc > 1 && strcmp(argv[1], "namespaces") == 0 ? namespaces(argc, argv) : run_tests(argc, argv, tests);
}
