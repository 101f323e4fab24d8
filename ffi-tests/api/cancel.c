/* Threads that are cancelled (pthread_cancel) in the middle of calls: the call finishes first. */
#include "harness.h"

#define LEN UINT64_C(65536)
#define TIMES 12

static struct duo duo;

/* Most of these calls make system calls, in which a thread can be cancelled. */
static void *polls(void *unused)
{
    for (weft_completion done; unused == NULL; pthread_testcancel())
        CHECK(weft_queue_poll(weft_endpoint_queue(duo.a->endpoint), &done, 1, 1 * MS) >= 0);
    return NULL;
}

static void *writes(void *unused)
{
    struct range_request args = range_args(duo.a_memory, duo.b_of_a, 4096);
    weft_op id;
    weft_completion done;
    for (; unused == NULL; pthread_testcancel()) {
        CHECK_OK(submit_write(duo.a->endpoint, &args, &id));
        while (weft_queue_poll(weft_endpoint_queue(duo.a->endpoint), &done, 1, 100 * MS) == 0)
            ;
        CHECK_OK(done.status);
    }
    return NULL;
}

static void *registers(void *unused)
{
    static uint8_t bytes[4096];
    weft_memory_range range = {bytes, sizeof bytes};
    for (; unused == NULL; pthread_testcancel()) {
        weft_memory *memory;
        CHECK_OK(weft_memory_register(duo.b->endpoint, &range, 1, NULL, &memory));
        CHECK_OK(weft_memory_deregister(memory));
    }
    return NULL;
}

static void *opens(void *unused)
{
    for (; unused == NULL; pthread_testcancel())
        CHECK_OK(weft_endpoint_destroy(open_endpoint()));
    return NULL;
}

static void *allocates(void *unused)
{
    for (; unused == NULL; pthread_testcancel()) {
        void *address;
        CHECK_OK(weft_memory_alloc(duo.a->endpoint, MIB, WEFT_NUMA_ANY, &address));
        CHECK_OK(weft_memory_free(duo.a->endpoint, address));
    }
    return NULL;
}

static void cancel_in(void *(*run)(void *))
{
    for (int i = 0; i < TIMES; i++) {
        pthread_t thread;
        void *result;
        CHECK(pthread_create(&thread, NULL, run, NULL) == 0);
        usleep(2000 + i * 377);
        CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
        CHECK(result == PTHREAD_CANCELED);
        /* Nothing is locked or lost. */
        struct range_request args = range_args(duo.a_memory, duo.b_of_a, duo.len);
        fill_random(duo.a_bytes, duo.len, (uint64_t)i);
        CHECK_OK(box_await(duo.a, write_now(duo.a, &args), patience_ms()).status);
        CHECK_EQ(differs_random(duo.b_bytes, duo.len, (uint64_t)i), -1);
    }
}

static void cancelled_threads_finish_their_calls(void)
{
    void *(*const all[])(void *) = {polls, writes, registers, opens, allocates};
    duo = duo_open(LEN);
    for (size_t i = 0; i < COUNT(all); i++)
        cancel_in(all[i]);
    duo_close(&duo);
}

static void cancelled_threads_leave_manual_progress_to_others(void)
{
    weft_endpoint_config ours = test_config(), theirs = test_config();
    ours.progress = WEFT_PROGRESS_MANUAL;
    duo = duo_open_between(LEN, &ours, &theirs);
    cancel_in(polls);
    cancel_in(writes);
    duo_close(&duo);
}

static const struct test tests[] = {
    {"cancelled_threads_finish_their_calls", "tcp,host", cancelled_threads_finish_their_calls},
    {"cancelled_threads_leave_manual_progress_to_others", "tcp,host", cancelled_threads_leave_manual_progress_to_others},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
