/* The cost of a long life: ended operations leave nothing behind, and nothing is done without work. */
#include "harness.h"

#include <sys/resource.h>

#define LEN 4096
#define BATCH 32

static uint64_t processor_ms(void)
{
    struct rusage used;
    CHECK_EQ(getrusage(RUSAGE_SELF, &used), 0);
    return (uint64_t)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000 +
           (uint64_t)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1000;
}

static void write_batches(struct duo *duo, uint64_t batches)
{
    struct range_request args = range_args(duo->a_memory, duo->b_of_a, 64);
    weft_op ids[BATCH];
    for (uint64_t i = 0; i < batches; i++) {
        for (size_t k = 0; k < BATCH; k++)
            ids[k] = write_now(duo->a, &args);
        for (size_t k = 0; k < BATCH; k++)
            CHECK_OK(box_await(duo->a, ids[k], patience_ms()).status);
    }
}

/* Each of 64 slots is used many times. */
static void notified_writes_return_their_slots(void)
{
    weft_endpoint_config config = test_config();
    config.max_transfers = 64;
    struct duo duo = duo_open_with(LEN, &config);
    struct range_request args = range_args(duo.a_memory, duo.b_of_a, LEN);
    args.options.flags = WEFT_NOTIFY;
    for (args.options.notify = 0; args.options.notify < 500; args.options.notify++) {
        weft_completion c = box_await(duo.a, write_now(duo.a, &args), patience_ms());
        CHECK_OK(c.status);
        CHECK_EQ(box_take(duo.b, WEFT_COMPLETION_NOTIFICATION, patience_ms()).notify, args.options.notify);
    }
    duo_close(&duo);
}

static void writes_leave_no_memory_behind(void)
{
    struct duo duo = duo_open(LEN);
    write_batches(&duo, 1000);
    long before = resident_kb();
    write_batches(&duo, 4000);
    long grown = resident_kb() - before;
    if (grown > 8 * 1024)
        FAIL("%d writes left %ld KiB behind", 4000 * BATCH, grown);
    duo_close(&duo);
}

/* Workers sleep, also after they were woken. */
static void idle_workers_use_no_processor(void)
{
    const uint64_t window = 200;
    struct duo duo = duo_open(LEN);
    uint64_t until = now_ns() + patience_ms() * MS, used = window;
    for (int i = 0; i < 20; i++) {
        write_batches(&duo, 1);
        sleep_ms(10);
    }
    while (used > window / 4) {
        if (now_ns() > until)
            FAIL("two endpoints without work used %" PRIu64 " of %" PRIu64 " ms", used, window);
        used = processor_ms();
        sleep_ms(window);
        used = processor_ms() - used;
    }
    duo_close(&duo);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        {"notified_writes_return_their_slots", "any", notified_writes_return_their_slots},
        {"writes_leave_no_memory_behind", "host,sim:like=efa-direct", writes_leave_no_memory_behind},
        {"idle_workers_use_no_processor", "tcp,host,sim:like=efa-direct", idle_workers_use_no_processor},
        {NULL, NULL, NULL},
    };
    return run_tests(argc, argv, tests);
}
