/*
 * No wake-up is lost, however publishing and going to sleep overlap. Writes of 0 bytes complete within the call:
 * nothing is cheaper, so the next completion arrives while the waiter is about to sleep after the last one.
 */
#include "harness.h"

#include <sys/epoll.h>

/* The environment's WEFT_TEST_ROUNDS multiplies the rounds. */
static uint64_t rounds(uint64_t usual)
{
    const char *factor = getenv("WEFT_TEST_ROUNDS");
    long n = factor ? atol(factor) : 1;
    return usual * (uint64_t)(n > 0 ? n : 1);
}

static void pause_for(uint64_t turns)
{
    for (volatile uint64_t i = 0; i < turns; i++) {
    }
}

/* Waits until a waiter has taken it. Yields occasionally: there may be fewer cores than threads. */
static void await_taken(const _Atomic uint64_t *taken, uint64_t wanted)
{
    for (unsigned i = 1; *taken < wanted; i++)
        if (i % 256 == 0)
            sched_yield();
}

/* ---- One thread that sleeps in epoll ---- */

struct handoff {
    weft_endpoint *endpoint;
    weft_memory *memory;
    weft_remote_memory *remote;
    weft_queue *queue;
    _Atomic uint64_t rounds;
    _Atomic uint64_t taken;
    uint64_t slept;
};

/* A slow machine has fewer rounds: each waits for the one before, and threads share processors. */
#define ENOUGH_NS (100 * SECOND)

static void *publishes(void *argument)
{
    struct handoff *h = argument;
    struct range_request args = range_args(h->memory, h->remote, 0);
    uint64_t random = 1;
    args.options.queue = h->queue;
    for (uint64_t i = 1; i <= h->rounds; i++) {
        /* The delay varies, so that the completion meets each step of the waiter, including its sleep. */
        uint64_t draw = next_random(&random);
        pause_for(draw % 8 ? draw / 8 % 256 : draw / 8 % 8192);
        args.options.user_data = (void *)(uintptr_t)i;
        CHECK_OK(submit_write(h->endpoint, &args, NULL));
        await_taken(&h->taken, i);
    }
    return NULL;
}

static int32_t take(struct handoff *h, weft_completion *c, uint32_t max)
{
    int32_t n = weft_queue_poll(h->queue, c, max, 0);
    CHECK(n >= 0);
    for (int32_t i = 0; i < n; i++) {
        CHECK_OK(c[i].status);
        CHECK((uintptr_t)c[i].user_data == h->taken + 1);
        h->taken++;
    }
    return n;
}

static void sleeps(struct handoff *h, int epoll)
{
    weft_completion c[4];
    uint64_t end = now_ns() + ENOUGH_NS;
    while (h->taken < h->rounds) {
        if (h->taken % 1024 == 0 && now_ns() > end)
            h->rounds = h->taken + 1; /* it may be on its way already */
        struct epoll_event event;
        weft_status armed;
        while (take(h, c, 4) > 0) {
        }
        armed = weft_queue_arm(h->queue, NULL);
        if (armed == WEFT_ERR_AGAIN || h->taken == h->rounds)
            continue;
        CHECK_OK(armed);
        int n = epoll_wait(epoll, &event, 1, (int)patience_ms());
        h->slept += n > 0;
        if (n == 0)
            FAIL("nothing woke us after %ju completions; %s", (uintmax_t)h->taken,
                 take(h, c, 4) > 0 ? "the next was there" : "there was no next");
        CHECK(n >= 0 || errno == EINTR);
    }
}

static void hand_over(uint32_t events, uint64_t count)
{
    struct duo duo = duo_open(4096);
    struct handoff h = {.endpoint = duo.a->endpoint, .memory = duo.a_memory, .remote = duo.b_of_a,
                        .rounds = rounds(count)};
    struct epoll_event event = {.events = events};
    int32_t fd, epoll = epoll_create1(EPOLL_CLOEXEC);
    pthread_t thread;
    CHECK_OK(weft_queue_create(duo.a->endpoint, 0, &h.queue));
    CHECK_OK(weft_queue_arm(h.queue, &fd));
    CHECK(epoll >= 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0);
    uint64_t began = now_ns();
    CHECK(pthread_create(&thread, NULL, publishes, &h) == 0);
    sleeps(&h, epoll);
    CHECK(pthread_join(thread, NULL) == 0);
    printf("slept %" PRIu64 " times in %" PRIu64 " rounds, %.2f us a round\n", h.slept, h.rounds,
           (double)(now_ns() - began) / 1000 / (double)h.rounds);
    CHECK(h.slept > h.rounds / 10);
    CHECK_OK(weft_queue_destroy(h.queue));
    close(epoll);
    duo_close(&duo);
}

static void million_level_triggered_wake_ups(void)
{
    hand_over(EPOLLIN, 1000000);
}

static void million_edge_triggered_wake_ups(void)
{
    hand_over(EPOLLIN | EPOLLET, 1000000);
}

/* ---- Threads that wait, on one queue or on a queue each ---- */

#define WAITERS 4
#define STREAK 20 /* completions in a row for one of several queues */
#define LAST NULL /* the user_data that ends a waiter */

struct crowd {
    struct duo *duo;
    weft_queue *queue[WAITERS]; /* all the same, or one each */
    uint64_t rounds;
    _Atomic uint64_t taken;
};

struct waiter {
    pthread_t thread;
    struct crowd *crowd;
    int number;
    uint64_t woken;
};

static void *waits(void *argument)
{
    struct waiter *w = argument;
    struct crowd *crowd = w->crowd;
    weft_completion c;
    judged_from();
    for (;;) {
        int32_t n = weft_queue_poll(crowd->queue[w->number], &c, 1, 3 * SECOND);
        CHECK(n >= 0);
        if (n == 0)
            continue;
        if (c.user_data == LAST)
            return NULL;
        CHECK_WITHIN(c.done_ns, now_ns(), 900 * MS); /* a waiter was woken for it */
        CHECK((uintptr_t)c.user_data <= crowd->rounds);
        w->woken++;
        crowd->taken++;
    }
}

/* One after the other to the same waiter, or a few at once for any waiter. */
static void publish_to(struct crowd *crowd, bool shared)
{
    struct range_request args = range_args(crowd->duo->a_memory, crowd->duo->b_of_a, 0);
    uint64_t random = 1;
    for (uint64_t i = 1; i <= crowd->rounds; i++) {
        uint64_t draw = next_random(&random);
        args.options.user_data = (void *)(uintptr_t)i;
        args.options.queue = crowd->queue[(i - 1) / STREAK % WAITERS];
        CHECK_OK(submit_write(crowd->duo->a->endpoint, &args, NULL));
        if (shared && draw % 2)
            continue;
        await_taken(&crowd->taken, i);
        pause_for(draw / 2 % 256);
    }
    await_taken(&crowd->taken, crowd->rounds);
    for (int i = 0; i < WAITERS; i++) {
        args.options.user_data = LAST;
        args.options.queue = crowd->queue[i];
        CHECK_OK(submit_write(crowd->duo->a->endpoint, &args, NULL));
    }
}

static void wait_in_a_crowd(bool shared)
{
    struct duo duo = duo_open(4096);
    struct crowd crowd = {.duo = &duo, .rounds = rounds(1000) * STREAK * WAITERS};
    struct waiter waiters[WAITERS];
    judged_from();
    for (int i = 0; i < WAITERS; i++) {
        if (i == 0 || !shared)
            CHECK_OK(weft_queue_create(duo.a->endpoint, 0, &crowd.queue[i]));
        else
            crowd.queue[i] = crowd.queue[0];
    }
    for (int i = 0; i < WAITERS; i++) {
        waiters[i] = (struct waiter){.crowd = &crowd, .number = i};
        CHECK(pthread_create(&waiters[i].thread, NULL, waits, &waiters[i]) == 0);
    }
    publish_to(&crowd, shared);
    for (int i = 0; i < WAITERS; i++)
        CHECK(pthread_join(waiters[i].thread, NULL) == 0);
    for (int i = 0; i < WAITERS; i++) {
        CHECK(shared || waiters[i].woken == crowd.rounds / WAITERS);
        if (i == 0 || !shared)
            CHECK_OK(weft_queue_destroy(crowd.queue[i]));
    }
    duo_close(&duo);
}

static void threads_waiting_on_one_queue_are_woken(void)
{
    wait_in_a_crowd(true);
}

static void threads_waiting_on_own_queues_are_woken(void)
{
    wait_in_a_crowd(false);
}

/* ---- Many submit at once, to several queues ---- */

#define SUBMITTERS 4
#define EACH 6000

struct exchange {
    struct duo *duo;
    weft_queue *queue[WAITERS];
    _Atomic uint64_t left;
    _Atomic uint8_t seen[SUBMITTERS * EACH];
};

struct part {
    pthread_t thread;
    struct exchange *exchange;
    int number;
};

/* Operations of all kinds; an operation's number determines the queue of its completion. */
static weft_status submit(struct exchange *e, uint64_t i)
{
    weft_endpoint *a = e->duo->a->endpoint;
    weft_queue *queue = e->queue[mix(i) % WAITERS];
    void *number = (void *)(uintptr_t)(i + 1);
    if (i % 4 == 3) {
        struct atomic_request args = ATOMIC_REQUEST_INIT;
        args.remote = e->duo->b_of_a;
        args.operand = 1;
        args.options.queue = queue;
        args.options.user_data = number;
        return submit_fetch_add(a, &args, NULL);
    }
    struct range_request args = range_args(e->duo->a_memory, e->duo->b_of_a, i % 4 ? 64 : 0);
    args.local_offset = args.remote_offset = 64 + i % 4 * 64;
    args.options.queue = queue;
    args.options.user_data = number;
    return submit_write(a, &args, NULL);
}

static void *submits(void *argument)
{
    struct part *part = argument;
    uint64_t until = now_ns() + 2 * patience_ms() * MS;
    for (uint64_t i = 0; i < EACH; i++) {
        weft_status status;
        while ((status = submit(part->exchange, (uint64_t)part->number * EACH + i)) == WEFT_ERR_AGAIN) {
            CHECK(now_ns() < until);
            sched_yield();
        }
        CHECK_OK(status);
    }
    return NULL;
}

static void *takes_its_own(void *argument)
{
    struct part *part = argument;
    struct exchange *e = part->exchange;
    weft_completion c[8];
    uint64_t until = now_ns() + 2 * patience_ms() * MS;
    while (e->left > 0) {
        int32_t n = weft_queue_poll(e->queue[part->number], c, 8, 20 * MS);
        CHECK(n >= 0 && now_ns() < until);
        for (int32_t i = 0; i < n; i++) {
            uint64_t number = (uintptr_t)c[i].user_data - 1;
            CHECK_OK(c[i].status);
            CHECK_EQ(c[i].kind, number % 4 == 3 ? WEFT_COMPLETION_ATOMIC : WEFT_COMPLETION_WRITE);
            CHECK(number < SUBMITTERS * EACH);
            CHECK_EQ(mix(number) % WAITERS, part->number);
            CHECK_EQ(e->seen[number]++, 0);
        }
        e->left -= (uint64_t)n;
    }
    return NULL;
}

static void many_threads_submit_to_several_queues(void)
{
    struct duo duo = duo_open(4096);
    static struct exchange exchange;
    struct part parts[SUBMITTERS + WAITERS];
    exchange.duo = &duo;
    exchange.left = SUBMITTERS * EACH;
    for (int i = 0; i < WAITERS; i++)
        CHECK_OK(weft_queue_create(duo.a->endpoint, i == 0 ? 16 : 256, &exchange.queue[i]));
    for (int i = 0; i < SUBMITTERS + WAITERS; i++) {
        parts[i] = (struct part){.exchange = &exchange, .number = i % SUBMITTERS};
        CHECK(pthread_create(&parts[i].thread, NULL, i < SUBMITTERS ? submits : takes_its_own,
                             &parts[i]) == 0);
    }
    for (int i = 0; i < SUBMITTERS + WAITERS; i++)
        CHECK(pthread_join(parts[i].thread, NULL) == 0);
    CHECK_EQ(exchange.left, 0);
    CHECK_EQ(*(_Atomic uint64_t *)(void *)duo.b_bytes, SUBMITTERS * EACH / 4);
    for (int i = 0; i < WAITERS; i++)
        CHECK_OK(weft_queue_destroy(exchange.queue[i]));
    box_quiet(duo.a, 20);
    duo_close(&duo);
}

static const struct test tests[] = {
    {"million_level_triggered_wake_ups", "host", million_level_triggered_wake_ups},
    {"million_edge_triggered_wake_ups", "host", million_edge_triggered_wake_ups},
    {"threads_waiting_on_one_queue_are_woken", "host,sim:like=verbs timed", threads_waiting_on_one_queue_are_woken},
    {"threads_waiting_on_own_queues_are_woken", "host,sim:like=verbs timed", threads_waiting_on_own_queues_are_woken},
    {"many_threads_submit_to_several_queues", "once", many_threads_submit_to_several_queues},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
