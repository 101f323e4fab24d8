/* The life of a host: opens, says where it is, and then polls, connects and submits. */
#include "host.h"

#include <sys/prctl.h>

#define BEAT (10 * MS)

struct self self;

uint32_t draw(uint32_t below)
{
    return (uint32_t)(next_random(&self.random) >> 16) % below;
}

/* ---- What the machine does not give us ---- */

static void *beat(void *unused)
{
    struct host *host = &book->hosts[self.me];
    (void)unused;
    for (;;) {
        uint64_t before = now_ns();
        struct timespec t = {0, BEAT};
        host->beat_ns = before;
        nanosleep(&t, NULL);
        uint64_t now = now_ns();
        if (now > before + 3 * BEAT) {
            uint32_t at = host->stalls_count % STALLS_MAX;
            host->stalls[at].from_ns = before + BEAT;
            host->stalls[at].to_ns = now;
            host->stalls_count++;
        }
    }
    return NULL;
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

static void publish(void)
{
    struct host *host = &book->hosts[self.me];
    weft_endpoint_properties own = WEFT_ENDPOINT_PROPERTIES_INIT;
    CHECK_OK(weft_endpoint_info(self.endpoint, &own));
    host->card |= 1;
    host->address_len = (uint32_t)address_of(self.endpoint, host->address, sizeof host->address);
    host->incarnation = own.incarnation;
    host->card++;
}

static void begin(int me, uint32_t life)
{
    self.me = me;
    self.life = life;
    self.random = mix(book->seed ^ mix((uint64_t)me << 32 | life));
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGPIPE, SIG_IGN);
    lab_enter((enum side)me);
    CHECK_OK(weft_log_set(getenv("WEFT_LOG") ? WEFT_LOG_DEFAULT : WEFT_LOG_ERROR, NULL, NULL));
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, beat, NULL) == 0);
    for (int other = 0; other < HOSTS; other++)
        book->ways[other][me].ready = 0;
    open_endpoint_here();
    register_all();
    publish();
}

static void poll_all(uint64_t ms)
{
    weft_completion got[64];
    int32_t n = weft_wait(self.endpoint, got, COUNT(got), ms * MS);
    if (n < 0 && n != WEFT_ERR_CLOSED)
        FAIL("polling gave %s", weft_status_name(n));
    for (int32_t i = 0; i < n; i++)
        take(&got[i]);
}

static void __attribute__((noreturn)) leave(void)
{
    CHECK_OK(weft_endpoint_shutdown(self.endpoint, 200 * MS));
    weft_completion got;
    int32_t n;
    while ((n = weft_wait(self.endpoint, &got, 1, SECOND)) > 0)
        take(&got);
    CHECK_EQ(n, WEFT_ERR_CLOSED);
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
        links_step();
        operations_step();
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
