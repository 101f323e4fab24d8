/* A program that has closed its standard descriptors, as daemons do: none of them becomes one of Weft's. */
#include "files.h"

#define LEN UINT64_C(65536)
#define ABOVE 100
#define STILL_CLOSED() check_closed(__LINE__, saved)

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

/* The number of rings of io_uring that this process has; -1: the standard descriptors have one. */
static int rings(void)
{
    int count = 0;
    for (int fd = 0; fd < 256; fd++) {
        char path[40], what[200] = "";
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        if (readlink(path, what, sizeof what - 1) > 0 && strstr(what, "io_uring") != NULL)
            count += fd < 3 ? -1000 : 1;
    }
    return count;
}

/* The ring of files is no standard descriptor, and no forked child has it. */
static void ring_of_files_stays_weft_s(void)
{
    int saved = fcntl(2, F_DUPFD_CLOEXEC, ABOVE), file = fcntl(new_file(), F_DUPFD_CLOEXEC, ABOVE), status;
    CHECK(saved >= 0 && file >= 0);
    fflush(NULL);
    for (int fd = 0; fd < 3; fd++)
        close(fd);
    struct duo duo = duo_open(LEN);
    weft_memory *memory = register_file(duo.b, file, 0, LEN);
    STILL_CLOSED();
    struct range_request args = range_args(duo.a_memory, import_of(&duo, memory), LEN);
    CHECK_OK(ended(&duo, &args, false).status);
    int before = rings();
    pid_t child = fork();
    if (child == 0)
        _exit(rings());
    CHECK(waitpid(child, &status, 0) == child);
    CHECK_OK(ended(&duo, &args, true).status);
    CHECK_OK(weft_memory_deregister(memory));
    duo_close(&duo);
    dup2(saved, 1);
    dup2(saved, 2);
    if (before == 0)
        skip("no io_uring here");
    CHECK_EQ(before, 1);
    CHECK_EQ(status, 0);
}

static void standard_descriptors_stay_the_programs(void)
{
    int saved = fcntl(2, F_DUPFD_CLOEXEC, ABOVE);
    CHECK(saved >= 0);
    fflush(NULL);
    for (int fd = 0; fd < 3; fd++)
        close(fd);
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
    {"ring_of_files_stays_weft_s", "tcp", ring_of_files_stays_weft_s},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
