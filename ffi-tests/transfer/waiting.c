/* Waiting: neither too short nor too long, and no wake-up is lost. */
#include "harness.h"

#include <sys/epoll.h>

/* ---- Timeouts ---- */

static bool manual;

static void wait_keeps_its_timeout(void)
{
    weft_endpoint_config config = test_config();
    config.progress = manual ? WEFT_PROGRESS_MANUAL : WEFT_PROGRESS_THREADS;
    weft_endpoint *endpoint = open_with(&config);
    weft_queue *queue;
    weft_completion c[4];
    const uint64_t limits[] = {0, 1, 10, 50, 200, 30, 3};
    CHECK_OK(weft_queue_create(endpoint, 0, &queue));
    for (size_t i = 0; i < 2 * COUNT(limits); i++) {
        uint64_t limit = limits[i / 2] * MS, began = judged_from();
        CHECK_EQ(weft_queue_poll(i % 2 ? queue : weft_endpoint_queue(endpoint), c, 4, limit), 0);
        uint64_t end = now_ns();
        if (end - began < limit)
            FAIL("a wait of %" PRIu64 " ms took %" PRIu64 " us", limit / MS, (end - began) / 1000);
        CHECK_WITHIN(began + limit, end, 50 * MS);
    }
    CHECK_OK(weft_queue_destroy(queue));
    CHECK_OK(weft_endpoint_destroy(endpoint));
}

static void manual_wait_keeps_its_timeout(void)
{
    manual = true;
    wait_keeps_its_timeout();
}

/* The longest timeout does not overflow: the wait ends with a completion. */
static void endless_wait_ends_with_a_completion(void)
{
    struct duo duo = duo_open(4096);
    weft_completion c;
    const uint64_t limits[] = {UINT64_MAX, UINT64_MAX / 2, (uint64_t)INT64_MAX + 1};
    for (size_t i = 0; i < COUNT(limits); i++) {
        send_now(duo.a, duo.a_to_b, "x", 1);
        CHECK_EQ(weft_queue_poll(weft_endpoint_queue(duo.b->endpoint), &c, 1, limits[i]), 1);
        CHECK_EQ(c.kind, WEFT_COMPLETION_MESSAGE);
        CHECK_OK(weft_message_release(duo.b->endpoint, c.op));
    }
    duo_close(&duo);
}

/* ---- The event fd ---- */

static bool readable(int fd, int ms)
{
    struct pollfd p = {fd, POLLIN, 0};
    int n = poll(&p, 1, ms);
    CHECK(n >= 0 && (n == 0 || p.revents == POLLIN));
    return n == 1;
}

static void armed_fd_becomes_readable(void)
{
    struct duo duo = duo_open(4096);
    weft_endpoint *b = duo.b->endpoint;
    int32_t fd = -1, again = -1;
    weft_completion c[4];
    CHECK_OK(weft_queue_arm(weft_endpoint_queue(b), &fd));
    CHECK_OK(weft_queue_arm(weft_endpoint_queue(b), &again));
    CHECK(fd >= 0 && fd == again);
    CHECK((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
    for (int round = 0; round < 20; round++) {
        CHECK_EQ(weft_queue_poll(weft_endpoint_queue(b), c, 4, 0), 0);
        send_now(duo.a, duo.a_to_b, "1", 1);
        CHECK_OK(box_take(duo.a, WEFT_COMPLETION_SEND, patience_ms()).status);
        CHECK_STATUS(weft_queue_arm(weft_endpoint_queue(b), NULL), WEFT_ERR_AGAIN); /* there is one already */
        CHECK_EQ(weft_queue_poll(weft_endpoint_queue(b), c, 4, 0), 1);
        CHECK_OK(weft_message_release(b, c[0].op));
        CHECK_OK(weft_queue_arm(weft_endpoint_queue(b), NULL)); /* also clears it */
        CHECK(!readable(fd, 5));
        CHECK_OK(weft_queue_arm(weft_endpoint_queue(b), NULL)); /* again is harmless */
        send_now(duo.a, duo.a_to_b, "2", 1);
        CHECK(readable(fd, (int)patience_ms()));
        CHECK(readable(fd, 0)); /* until it is armed again */
        CHECK_OK(box_take(duo.a, WEFT_COMPLETION_SEND, patience_ms()).status);
        CHECK_EQ(weft_queue_poll(weft_endpoint_queue(b), c, 4, 0), 1);
        CHECK_OK(weft_message_release(b, c[0].op));
        CHECK_OK(weft_queue_arm(weft_endpoint_queue(b), NULL));
        CHECK(!readable(fd, 5));
    }
    duo_close(&duo);
}

static void endpoint_queue_behaves_as_any_queue(void)
{
    struct duo duo = duo_open(4096);
    weft_queue *own = weft_endpoint_queue(duo.a->endpoint), *other = weft_endpoint_queue(duo.b->endpoint);
    CHECK(own != NULL && own == weft_endpoint_queue(duo.a->endpoint) && own != other);
    struct range_request args = range_args(duo.a_memory, duo.b_of_a, 4096);
    args.options.queue = own;
    (void)write_now(duo.a, &args);
    CHECK_OK(box_take(duo.a, WEFT_COMPLETION_WRITE, patience_ms()).status);
    args.options.queue = other;
    REFUSED(WEFT_ERR_HANDLE, submit_write(duo.a->endpoint, &args, NULL));
    REFUSED(WEFT_ERR_INVALID, weft_queue_destroy(own));
    REFUSED(WEFT_ERR_HANDLE, weft_memory_deregister((weft_memory *)(void *)own));
    CHECK(strstr(weft_last_error(), "is a weft_queue") != NULL);
    duo_close(&duo);
    weft_completion c;
    REFUSED(WEFT_ERR_HANDLE, weft_queue_poll(own, &c, 1, 0));
    CHECK(strstr(weft_last_error(), "the weft_queue") != NULL);
}

static void queue_has_its_own_fd(void)
{
    struct duo duo = duo_open(4096);
    weft_queue *queue;
    int32_t fd, own;
    weft_completion c[4];
    CHECK_OK(weft_queue_create(duo.a->endpoint, 0, &queue));
    CHECK_OK(weft_queue_arm(queue, &fd));
    CHECK_OK(weft_queue_arm(weft_endpoint_queue(duo.a->endpoint), &own));
    CHECK(fd != own);
    CHECK_OK(weft_queue_arm(queue, NULL));
    CHECK_OK(weft_queue_arm(weft_endpoint_queue(duo.a->endpoint), NULL));
    struct range_request args = range_args(duo.a_memory, duo.b_of_a, 4096);
    args.options.queue = queue;
    (void)write_now(duo.a, &args);
    CHECK(readable(fd, (int)patience_ms()));
    CHECK(!readable(own, 20));
    CHECK_EQ(weft_queue_poll(queue, c, 4, 0), 1);
    CHECK_OK(c[0].status);
    CHECK_OK(weft_queue_destroy(queue));
    duo_close(&duo);
}

static void manual_progress_has_no_fd(void)
{
    weft_endpoint_config config = test_config();
    config.progress = WEFT_PROGRESS_MANUAL;
    int threads = running_threads();
    weft_endpoint *endpoint = open_with(&config);
    int32_t fd;
    weft_queue *queue;
    REFUSED(WEFT_ERR_UNSUPPORTED, weft_queue_arm(weft_endpoint_queue(endpoint), &fd));
    REFUSED(WEFT_ERR_UNSUPPORTED, weft_queue_arm(weft_endpoint_queue(endpoint), NULL));
    CHECK_OK(weft_queue_create(endpoint, 0, &queue));
    REFUSED(WEFT_ERR_UNSUPPORTED, weft_queue_arm(queue, &fd));
    REFUSED(WEFT_ERR_UNSUPPORTED, weft_queue_arm(queue, NULL));
    CHECK_EQ(running_threads(), threads);
    CHECK_OK(weft_queue_destroy(queue));
    CHECK_OK(weft_endpoint_destroy(endpoint));
}

/* ---- Ping-pong that sleeps in epoll ---- */

#define ROUNDS 8000
#define LAST (-1)

struct sleeper {
    struct box *box;
    int epoll;
    uint64_t slept;
};

/* Poll until the queue is empty, arm, and sleep only if arming returned WEFT_OK. */
static weft_completion next_message(struct sleeper *s, int round)
{
    weft_completion c;
    for (;;) {
        do {
            box_pump(s->box, 0);
            weft_completion sent;
            while (box_try(s->box, WEFT_COMPLETION_SEND, &sent))
                CHECK_OK(sent.status);
            if (box_try(s->box, WEFT_COMPLETION_MESSAGE, &c))
                return c;
            if (s->box->count)
                FAIL("a completion that nobody expects: kind %d", s->box->items[0].kind);
        } while (weft_queue_arm(weft_endpoint_queue(s->box->endpoint), NULL) == WEFT_ERR_AGAIN);
        struct epoll_event event;
        int n = epoll_wait(s->epoll, &event, 1, (int)patience_ms());
        if (n == 0) {
            box_pump(s->box, 0);
            FAIL("round %d: nothing woke us for %" PRIu64 " ms; %zu completions were there", round,
                 patience_ms(), s->box->count);
        }
        CHECK(n == 1 || errno == EINTR);
        s->slept++;
    }
}

static void plays_ping_pong(struct team *team)
{
    struct sleeper s = {.box = box_of(open_endpoint())};
    weft_peer peer = join(team, 1 - team->rank, s.box);
    struct epoll_event event = {.events = EPOLLIN};
    int32_t fd;
    CHECK_OK(weft_queue_arm(weft_endpoint_queue(s.box->endpoint), &fd));
    s.epoll = epoll_create1(EPOLL_CLOEXEC);
    CHECK(s.epoll >= 0 && epoll_ctl(s.epoll, EPOLL_CTL_ADD, fd, &event) == 0);
    uint64_t began = now_ns();
    int rounds = 0;
    /* A lost wake-up never comes: a busy machine plays fewer rounds. The last round has this number. */
    for (int round = 0; round != LAST; rounds++) {
        if (team->rank == 0) {
            round = rounds + 1 < ROUNDS && now_ns() - began < 20 * SECOND ? rounds : LAST;
            send_now(s.box, peer, &round, sizeof round);
        }
        weft_completion c = next_message(&s, rounds);
        CHECK_EQ(c.bytes, sizeof round);
        if (team->rank == 1)
            memcpy(&round, c.data, sizeof round);
        CHECK(memcmp(c.data, &round, sizeof round) == 0 && (round == LAST || round == rounds));
        CHECK_OK(weft_message_release(s.box->endpoint, c.op));
        if (team->rank == 1)
            send_now(s.box, peer, &round, sizeof round);
    }
    printf("[%d] slept %" PRIu64 " times in %d rounds, %.1f us a round\n", team->rank, s.slept, rounds,
           (double)(now_ns() - began) / 1000 / rounds);
    CHECK(s.slept > 0);
    meet(team, 1 - team->rank, s.box);
    box_close(s.box);
}

static void wake_ups_are_not_lost(void)
{
    run_pair(plays_ping_pong, plays_ping_pong);
}

/* ---- Threads ---- */

static void is_target(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    join(team, 0, box);
    give_memory(team, 0, register_one(box->endpoint, map_bytes(MIB), MIB));
    meet(team, 0, box);
    box_close(box);
}

#define THREADS 4
#define WRITES 5000

struct worker {
    pthread_t thread;
    weft_endpoint *endpoint;
    weft_memory *memory;
    weft_remote_memory *theirs;
    weft_queue *queue;
    int number;
    uint8_t *seen;         /* THREADS x WRITES, by user_data */
    _Atomic int *remaining; /* of a shared queue */
};

static struct worker worker_of(struct team *team, struct box *box)
{
    struct worker w = {.endpoint = box->endpoint};
    weft_peer peer = join(team, 1, box);
    w.memory = register_one(box->endpoint, map_bytes(MIB), MIB);
    w.theirs = take_memory(team, 1, box, peer);
    w.seen = calloc(THREADS, WRITES);
    CHECK(w.seen != NULL);
    return w;
}

static weft_status submit(const struct worker *w, int i)
{
    struct range_request args = range_args(w->memory, w->theirs, 256);
    args.local_offset = args.remote_offset = (uint64_t)(i % 4096) * 256;
    args.options.user_data = (void *)(uintptr_t)(w->number * WRITES + i + 1);
    args.options.queue = w->queue;
    return submit_write(w->endpoint, &args, NULL);
}

static size_t enter(const struct worker *w, const weft_completion *c)
{
    size_t i = (size_t)(uintptr_t)c->user_data - 1;
    CHECK_EQ(c->kind, WEFT_COMPLETION_WRITE);
    CHECK_OK(c->status);
    CHECK(i < THREADS * WRITES);
    CHECK_EQ(w->seen[i], 0);
    w->seen[i] = 1;
    return i;
}

/* Each thread submits to its own queue, and waits on it. */
static void *works_alone(void *arg)
{
    struct worker *w = arg;
    weft_completion c[32];
    int submitted = 0, completed = 0;
    uint64_t until = now_ns() + 2 * patience_ms() * MS;
    while (completed < WRITES) {
        while (submitted < WRITES && submitted - completed < 200) {
            weft_status status = submit(w, submitted);
            if (status == WEFT_ERR_AGAIN)
                break;
            CHECK_OK(status);
            submitted++;
        }
        int32_t n = weft_queue_poll(w->queue, c, 32, SECOND);
        CHECK(n >= 0 && now_ns() < until);
        for (int32_t i = 0; i < n; i++)
            CHECK_EQ(enter(w, &c[i]) / WRITES, w->number); /* only our own */
        completed += n;
    }
    CHECK_EQ(weft_queue_poll(w->queue, c, 32, 0), 0);
    return NULL;
}

static void has_queues(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    struct worker all = worker_of(team, box), workers[THREADS];
    for (int i = 0; i < THREADS; i++) {
        workers[i] = all;
        workers[i].number = i;
        CHECK_OK(weft_queue_create(box->endpoint, i == 0 ? 16 : 0, &workers[i].queue));
        CHECK(pthread_create(&workers[i].thread, NULL, works_alone, &workers[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_join(workers[i].thread, NULL) == 0);
        CHECK_OK(weft_queue_destroy(workers[i].queue));
    }
    box_quiet(box, 20);
    meet(team, 1, box);
    box_close(box);
}

static void each_thread_waits_on_its_own_queue(void)
{
    run_pair(has_queues, is_target);
}

/* All submit at once, and as many others wait on the one queue. */
static void *submits(void *arg)
{
    struct worker *w = arg;
    uint64_t until = now_ns() + 2 * patience_ms() * MS;
    for (int i = 0; i < WRITES;) {
        weft_status status = submit(w, i);
        if (status == WEFT_ERR_AGAIN) {
            CHECK(now_ns() < until);
            sched_yield();
            continue;
        }
        CHECK_OK(status);
        i++;
    }
    return NULL;
}

static void *takes(void *arg)
{
    struct worker *w = arg;
    weft_completion c[32];
    uint64_t until = now_ns() + 2 * patience_ms() * MS;
    while (*w->remaining > 0) {
        int32_t n = weft_queue_poll(weft_endpoint_queue(w->endpoint), c, 32, 100 * MS);
        CHECK(n >= 0 && now_ns() < until);
        for (int32_t i = 0; i < n; i++)
            enter(w, &c[i]);
        *w->remaining -= n;
    }
    return NULL;
}

static void has_one_queue(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    struct worker all = worker_of(team, box), workers[2 * THREADS];
    _Atomic int remaining = THREADS * WRITES;
    all.remaining = &remaining;
    for (int i = 0; i < 2 * THREADS; i++) {
        workers[i] = all;
        workers[i].number = i % THREADS;
        CHECK(pthread_create(&workers[i].thread, NULL, i < THREADS ? takes : submits,
                             &workers[i]) == 0);
    }
    for (int i = 0; i < 2 * THREADS; i++)
        CHECK(pthread_join(workers[i].thread, NULL) == 0);
    CHECK_EQ(remaining, 0);
    for (size_t i = 0; i < THREADS * WRITES; i++)
        CHECK_EQ(all.seen[i], 1);
    box_quiet(box, 50);
    meet(team, 1, box);
    box_close(box);
}

static void many_threads_share_one_queue(void)
{
    run_pair(has_one_queue, is_target);
}

static const struct test tests[] = {
    {"wait_keeps_its_timeout", "once timed", wait_keeps_its_timeout},
    {"manual_wait_keeps_its_timeout", "any timed", manual_wait_keeps_its_timeout},
    {"endless_wait_ends_with_a_completion", "once", endless_wait_ends_with_a_completion},
    {"armed_fd_becomes_readable", "any", armed_fd_becomes_readable},
    {"endpoint_queue_behaves_as_any_queue", "once", endpoint_queue_behaves_as_any_queue},
    {"queue_has_its_own_fd", "once", queue_has_its_own_fd},
    {"manual_progress_has_no_fd", "any", manual_progress_has_no_fd},
    {"wake_ups_are_not_lost", "any", wake_ups_are_not_lost},
    {"each_thread_waits_on_its_own_queue", "once", each_thread_waits_on_its_own_queue},
    {"many_threads_share_one_queue", "once", many_threads_share_one_queue},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
