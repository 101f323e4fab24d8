/* A program that has closed its standard descriptors, as daemons do: none of them becomes one of Weft's. */
#include "harness.h"

#define LEN UINT64_C(65536)
#define ABOVE 100

/* Fails, with standard error as it was, if one of the three is open. */
static void check_closed(int line, int saved)
{
    for (int fd = 0; fd < 3; fd++) {
        char path[40], what[200] = "?";
        if (fcntl(fd, F_GETFD) < 0)
            continue;
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        if (readlink(path, what, sizeof what - 1) < 0)
            what[0] = 0;
        dup2(saved, 1);
        dup2(saved, 2);
        fail(__FILE__, line, "descriptor %d is %s", fd, what);
    }
}

static void standard_descriptors_stay_the_programs(void)
{
    int saved = fcntl(2, F_DUPFD_CLOEXEC, ABOVE);
    CHECK(saved >= 0);
    fflush(NULL);
    for (int fd = 0; fd < 3; fd++)
        close(fd);
#define STILL_CLOSED() check_closed(__LINE__, saved)
    struct duo duo = duo_open(LEN);
    STILL_CLOSED();
    int32_t wakes = -1;
    void *shared = NULL;
    CHECK_OK(weft_queue_arm(weft_endpoint_queue(duo.a->endpoint), &wakes));
    CHECK(wakes > 2);
    CHECK_OK(weft_memory_alloc(duo.a->endpoint, LEN, WEFT_NUMA_ANY, &shared));
    weft_memory *memory = register_one(duo.a->endpoint, shared, LEN);
    STILL_CLOSED();
    /* The target takes the file of this memory. */
    fill_random(shared, LEN, 7);
    struct range_request args = range_args(memory, duo.b_of_a, LEN);
    CHECK_OK(box_await(duo.a, write_now(duo.a, &args), patience_ms()).status);
    CHECK_EQ(differs_random(duo.b_bytes, LEN, 7), -1);
    STILL_CLOSED();
    CHECK_OK(weft_memory_deregister(memory));
    CHECK_OK(weft_memory_free(duo.a->endpoint, shared));
    duo_close(&duo);
    STILL_CLOSED();
    dup2(saved, 1);
    dup2(saved, 2);
}

static const struct test tests[] = {
    {"standard_descriptors_stay_the_programs", "tcp,tcp-encrypted,host", standard_descriptors_stay_the_programs},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
