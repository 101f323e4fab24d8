/* The life of a host: opens, says where it is, and then polls, connects and submits. */
#include "host.h"

#include <sys/prctl.h>

struct self self;

uint32_t draw(uint32_t below)
{
    return (uint32_t)(next_random(&self.random) >> 16) % below;
}

/* ---- Begin and end ---- */

static void open_endpoint_here(void)
{
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    config.fabric = "tcp";
    config.rails = "rail*";
    config.connect_timeout_ns = 3 * SECOND;
    config.progress = draw(4) == 0 ? WEFT_PROGRESS_MANUAL : WEFT_PROGRESS_THREADS;
    config.workers = 1 + draw(RAILS);
    /* A link may be down at this moment. */
    while (weft_endpoint_open(&config, &self.endpoint) != WEFT_OK)
        sleep_ms(50);
}

static void register_all(void)
{
    static weft_memory_range ranges[WORD_RANGE + 1];
    for (uint32_t i = 0; i < WORD_RANGE; i++)
        ranges[i] = (weft_memory_range){memories[self.me] + i * LAYER, LAYER};
    ranges[WORD_RANGE] = (weft_memory_range){memories[self.me] + WORDS, 4096};
    CHECK_OK(weft_memory_register(self.endpoint, ranges, COUNT(ranges), NULL, &self.memory));
}

/* A rail that fails with reads under way takes its peers down where libfabric is older
 * than 1.18 (docs/failures.md): there, reads are left out. WEFT_CHAOS_READS=1 has them
 * all the same, 0 never. */
static void choose_reads(const char *libfabric)
{
    const char *wanted = getenv("WEFT_CHAOS_READS");
    bool old = strtol(libfabric, NULL, 10) <= 1 && strtol(libfabric + 2, NULL, 10) < 18;
    book->no_reads = wanted ? atoi(wanted) == 0 : old;
}

static void publish(void)
{
    struct host *host = &book->hosts[self.me];
    weft_endpoint_properties own = WEFT_ENDPOINT_PROPERTIES_INIT;
    CHECK_OK(weft_endpoint_info(self.endpoint, &own));
    choose_reads(own.libfabric);
    host->card |= 1;
    host->address_len = (uint32_t)address_of(self.endpoint, host->address, sizeof host->address);
    host->incarnation = own.incarnation;
    host->card++;
}

/* With the time and the host, to be read beside the findings. */
static void print_line(weft_log_level level, const char *component, const char *message, void *unused)
{
    static const char *const levels[] = {"", "error", "warn", "info", "debug", "trace"};
    (void)unused;
    fprintf(stderr, "%6" PRIu64 " ms: host %d: %s %s: %s\n", book_ms(), self.me, levels[level], component, message);
}

static void log_lines(void)
{
    const char *wanted = getenv("WEFT_CHAOS_LOG");
    weft_log_level level = wanted ? (weft_log_level)atoi(wanted) : WEFT_LOG_ERROR;
    CHECK_OK(weft_log_set(level, print_line, NULL));
}

static void begin(int me, uint32_t life)
{
    self.me = me;
    self.life = life;
    self.random = mix(book->seed ^ mix((uint64_t)me << 32 | life));
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGPIPE, SIG_IGN);
    lab_enter((enum side)me);
    log_lines();
    stalls_watch();
    for (int other = 0; other < HOSTS; other++)
        book->ways[other][me].ready = 0;
    open_endpoint_here();
    register_all();
    publish();
}

/* No call blocks for long; it is told, since a provider's may. */
static void should_be_quick(const char *what, uint64_t begin_ns)
{
    uint64_t now = now_ns(), took = now - begin_ns;
    if (took > GRACE && took > GRACE + stalled(begin_ns, now))
        finding(&book->slow, "host %d, life %u: %s took %" PRIu64 " ms", self.me, self.life, what, took / MS);
}

/* False once there is nothing more to come. */
static bool poll_all(uint64_t ms)
{
    weft_completion got[64];
    uint64_t begin_ns = now_ns();
    int32_t n = weft_wait(self.endpoint, got, COUNT(got), ms * MS);
    should_be_quick("weft_wait", begin_ns);
    if (n < 0 && n != WEFT_ERR_CLOSED)
        FAIL("polling gave %s", weft_status_name(n));
    for (int32_t i = 0; i < n; i++)
        take(&got[i]);
    return n >= 0;
}

static void *shut_down(void *unused)
{
    (void)unused;
    CHECK_OK(weft_endpoint_shutdown(self.endpoint, 200 * MS));
    return NULL;
}

static void __attribute__((noreturn)) leave(void)
{
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, shut_down, NULL) == 0);
    while (poll_all(10)) {
    }
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK_OK(weft_endpoint_close(self.endpoint));
    fflush(NULL);
    _exit(0);
}

/* What nobody uses must be as it was left. */
static void check_guards(void)
{
    for (int other = 0; other < HOSTS; other++) {
        for (uint32_t s = 0; s < SLOTS && other != self.me && is_ready(other); s++) {
            uint32_t state = book->ways[self.me][other].slots[s].state;
            if (state == 0 || state == (BUSY | DONE | TAKEN)) {
                check_guard(self.me, other, LOCAL, s);
                check_guard(self.me, other, REMOTE, s);
            }
        }
    }
}

void host_live(int me, uint32_t life)
{
    struct host *host = &book->hosts[me];
    begin(me, life);
    while (!host->leave && !book->over) {
        poll_all(1);
        uint64_t begin_ns = now_ns();
        links_step();
        operations_step();
        should_be_quick("what does not block", begin_ns);
        host->loops++;
    }
    if (book->over) {
        check_guards();
        for (int other = 0; other < HOSTS; other++)
            if (self.to[other])
                check_counts(other);
    }
    leave();
}
