/* The life of a host: it opens, publishes its address, then polls, connects and submits, until it leaves. */
#include "engine.h"

_Thread_local struct self *self;
void (*play_others)(void);

uint32_t draw(uint32_t limit)
{
    return below(&self->random, limit);
}

/* ---- Begin and end ---- */

static void open_endpoint_here(void)
{
    const struct plan *plan = &book->plan;
    bool processes = plan->world & (PROCESSES | NAMESPACES);
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    config.fabric = plan->fabric;
    config.rails = plan->nics;
    config.idle = plan->idle;
    config.progress = (processes ? draw(4) == 0 : plan->manual) ? WEFT_PROGRESS_MANUAL : WEFT_PROGRESS_THREADS;
    config.workers = processes ? 1 + draw((uint32_t)plan->rails) : self->me ? plan->workers : plan->workers > 0;
    if (processes)
        config.connect_timeout_ns = 3 * SECOND;
    else
        config.message_bytes = MESSAGES;
    weft_status status;
    /* A link may be down at this time. */
    while ((status = weft_endpoint_create(&config, &self->endpoint)) != WEFT_OK && processes)
        sleep_ms(50);
    if (status != WEFT_OK)
        FAIL("opening %s gave %s", plan->fabric, weft_status_name(status));
    CHECK_OK(weft_queue_create(self->endpoint, QUEUE_DEPTH, &self->second));
}

static void publish(void)
{
    struct host *host = &book->hosts[self->me];
    weft_endpoint_properties own = WEFT_ENDPOINT_PROPERTIES_INIT;
    CHECK_OK(weft_endpoint_info(self->endpoint, &own, NULL));
    host->card |= 1;
    host->address_len = (uint32_t)address_of(self->endpoint, host->address, sizeof host->address);
    host->incarnation = own.incarnation;
    host->card++;
}

/* With the time and the host, to be compared with the findings. */
static void print_line(weft_log_level level, const char *component, const char *message, void *unused)
{
    static const char *const levels[] = {"", "error", "warn", "info", "debug", "trace"};
    (void)unused;
    fprintf(stderr, "%6" PRIu64 " ms: host %d: %s %s: %s\n", book_ms(), self ? self->me : -1, levels[level], component, message);
}

void log_lines(void)
{
    const char *wanted = getenv("WEFT_CHAOS_LOG");
    weft_log_level level = wanted ? (weft_log_level)atoi(wanted) : WEFT_LOG_ERROR;
    CHECK_OK(weft_log_set(level, print_line, NULL));
}

void host_begin(struct self *party, int me, uint32_t life)
{
    self = party;
    memset(self, 0, sizeof *self);
    self->me = me;
    self->life = life;
    self->random = mix(book->plan.seed ^ mix((uint64_t)me << 32 | life));
    for (int other = 0; other < HOSTS; other++) {
        book->ways[other][me].ready = 0;
        memset(book->ways[other][me].grants, 0, sizeof book->ways[other][me].grants); /* from an earlier endpoint */
    }
    open_endpoint_here();
    register_all();
    publish();
}

/* ---- Polling ---- */

/* No call blocks for long; it is logged, since a provider's call may. */
static void should_be_quick(const char *what, uint64_t begin_ns)
{
    uint64_t now = now_ns(), took = now - begin_ns;
    if (took > GRACE && took > GRACE + stalled(begin_ns, now))
        finding(&book->slow, "host %d, life %u: %s took %" PRIu64 " ms", self->me, self->life, what, took / MS);
}

/* Periodically, and at the end: a killed process has reported by then. */
static void note_passes(bool now)
{
    weft_endpoint_statistics statistics = {.size = sizeof statistics};
    static _Thread_local unsigned turn;
    if ((!now && ++turn % 64 != 0) || weft_endpoint_info(self->endpoint, NULL, &statistics) != WEFT_OK)
        return;
    if (statistics.pass_longest_ns > book->pass_ns)
        book->pass_ns = statistics.pass_longest_ns;
    if (statistics.driver_call_longest_ns > book->driver_ns)
        book->driver_ns = statistics.driver_call_longest_ns;
}

/* The number of completions in both queues; -1 once the queues have ended. */
static int32_t poll_all(uint64_t wait_ns)
{
    weft_completion got[64];
    uint64_t begin_ns = now_ns();
    int32_t n = weft_queue_poll(weft_endpoint_queue(self->endpoint), got, COUNT(got), wait_ns);
    should_be_quick("polling", begin_ns);
    if (n < 0 && n != WEFT_ERR_CLOSED)
        FAIL("polling gave %s", weft_status_name(n));
    for (int32_t i = 0; i < n; i++)
        take(&got[i], false);
    int32_t m = weft_queue_poll(self->second, got, COUNT(got), 0);
    if (m < 0 && m != WEFT_ERR_CLOSED)
        FAIL("polling the second queue gave %s", weft_status_name(m));
    for (int32_t i = 0; i < m; i++)
        take(&got[i], true);
    return n < 0 && m < 0 ? -1 : (n > 0 ? n : 0) + (m > 0 ? m : 0);
}

static void release_held(bool all)
{
    for (size_t i = 0; i < COUNT(self->held); i++)
        if (self->held[i].message && (all || world_ns() >= self->held[i].at_ns)) {
            release_message(self->held[i].message);
            self->held[i].message = 0;
        }
}

bool host_wants_to_leave(void)
{
    return book->hosts[self->me].leave || book->over;
}

int32_t host_poll(uint64_t wait_ns)
{
    int32_t came = poll_all(wait_ns);
    note_passes(false);
    release_held(false);
    return came;
}

int32_t host_step(uint64_t wait_ns)
{
    int32_t came = host_poll(wait_ns);
    uint64_t begin_ns = now_ns();
    links_step();
    play_step();
    should_be_quick("what does not block", begin_ns);
    return came;
}

/* ---- Calls that wait ---- */

struct waiting {
    void (*call)(void);
    struct self *self;
    _Atomic bool done;
};

static _Thread_local struct waiting *waiting_here;

static void *call_here(void *waiting)
{
    waiting_here = waiting;
    self = waiting_here->self;
    waiting_here->call();
    waiting_here->done = true;
    return NULL;
}

void call_blocking(void (*call)(void))
{
    struct waiting waiting = {.call = call, .self = self};
    pthread_t thread;
    /* In virtual time the call itself advances the time for all hosts. */
    if (book->plan.world != THREADS || !play_others) {
        call();
        return;
    }
    CHECK(pthread_create(&thread, NULL, call_here, &waiting) == 0);
    while (!waiting.done)
        play_others();
    CHECK(pthread_join(thread, NULL) == 0);
}

static void shut_down(void)
{
    CHECK_OK(weft_endpoint_shutdown(self->endpoint, book->plan.world & (PROCESSES | NAMESPACES) ? 200 * MS : 0));
}

static void *shut_down_here(void *party)
{
    self = party;
    shut_down();
    return NULL;
}

/* At the end, while all hosts are still connected. */
void host_check(void)
{
    check_guards();
    for (int other = 0; other < book->plan.hosts; other++)
        if (self->to[other] && self->to[other]->prepared)
            check_counts(other, !book->plan.abrupt);
}

/* The others exist and answer, so no host waits for a last frame in vain. */
static void look_at_leaving(uint64_t begin_ns)
{
    uint64_t end = world_ns(), stalls = book->plan.world == VIRTUAL ? 0 : stalled(begin_ns, end);
    if (!*book->plan.sim_faults && end - begin_ns > 2 * GRACE + stalls)
        finding(&book->odd, "host %d left within %" PRIu64 " ms (stalls %" PRIu64 " ms)", self->me, (end - begin_ns) / MS, stalls / MS);
}

/* Every operation in flight completes, whatever its kind. */
void host_leave(void)
{
    life_ends(self->me, RUNNING);
    note_passes(true);
    if (book->plan.world & (PROCESSES | NAMESPACES)) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, shut_down_here, self) == 0);
        while (poll_all(10 * MS) >= 0) {
        }
        CHECK(pthread_join(thread, NULL) == 0);
    } else {
        uint64_t begin = world_ns();
        call_blocking(shut_down);
        look_at_leaving(begin);
        while (poll_all(0) >= 0) {
        }
    }
    release_held(true);
    CHECK_OK(weft_endpoint_destroy(self->endpoint));
    self->endpoint = NULL;
}
