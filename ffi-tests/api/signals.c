/* A good guest: what belongs to the host program is unchanged. */
#include "harness.h"

extern char **environ;

#define SIGNALS 64

/* As the kernel reports it: glibc hides two of its signals. */
struct disposition {
    uintptr_t handler;
    unsigned long flags;
    uintptr_t restorer;
    uint64_t mask;
};

struct state {
    struct disposition signals[SIGNALS + 1];
    sigset_t mask;
    cpu_set_t affinity;
    char **environment;
    size_t variables;
    char *text; /* all variables, in sequence */
    size_t text_len;
    char directory[4096];
};

static struct state state_now(void)
{
    struct state s;
    memset(&s, 0, sizeof s);
    for (int n = 1; n <= SIGNALS; n++) {
        if (n == 32 || n == 33) /* reserved by the C library for its threads */
            continue;
        CHECK(syscall(SYS_rt_sigaction, n, NULL, &s.signals[n], sizeof(uint64_t)) == 0);
    }
    CHECK(pthread_sigmask(SIG_SETMASK, NULL, &s.mask) == 0);
    CHECK(sched_getaffinity(0, sizeof s.affinity, &s.affinity) == 0);
    CHECK(getcwd(s.directory, sizeof s.directory) != NULL);
    s.environment = environ;
    for (char **v = environ; *v; v++) {
        size_t len = strlen(*v) + 1;
        s.text = realloc(s.text, s.text_len + len);
        CHECK(s.text != NULL);
        memcpy(s.text + s.text_len, *v, len);
        s.text_len += len;
        s.variables++;
    }
    return s;
}

static void check_same(const struct state *before, const char *when)
{
    struct state now = state_now();
    for (int n = 1; n <= SIGNALS; n++)
        if (memcmp(&before->signals[n], &now.signals[n], sizeof now.signals[n]) != 0)
            FAIL("%s, the handler of signal %d (%s) is another", when, n, strsignal(n));
    for (int n = 1; n <= SIGNALS; n++)
        if (sigismember(&before->mask, n) != sigismember(&now.mask, n))
            FAIL("%s, signal %d is masked otherwise", when, n);
    if (!CPU_EQUAL(&before->affinity, &now.affinity))
        FAIL("%s, the thread's affinity is another", when);
    if (before->variables != now.variables || before->text_len != now.text_len ||
        memcmp(before->text, now.text, now.text_len) != 0)
        FAIL("%s, the environment is another", when);
    if (strcmp(before->directory, now.directory) != 0)
        FAIL("%s, the working directory is another", when);
    free(now.text);
}

static volatile sig_atomic_t handled;
static volatile pid_t handled_in;

static void on_signal(int signal)
{
    handled_in = (pid_t)syscall(SYS_gettid);
    handled = handled + signal;
}

static void host_program_prepares(void)
{
    const int taken[] = {SIGTERM, SIGINT, SIGSEGV, SIGBUS, SIGABRT, SIGILL, SIGUSR1, SIGRTMIN + 3};
    for (size_t i = 0; i < COUNT(taken); i++) {
        struct sigaction action;
        memset(&action, 0, sizeof action);
        action.sa_handler = on_signal;
        action.sa_flags = SA_RESTART;
        sigaddset(&action.sa_mask, SIGUSR2);
        CHECK(sigaction(taken[i], &action, NULL) == 0);
    }
    CHECK(signal(SIGHUP, SIG_IGN) != SIG_ERR);
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGALRM);
    CHECK(pthread_sigmask(SIG_BLOCK, &mask, NULL) == 0);
    cpu_set_t all, one;
    CHECK(sched_getaffinity(0, sizeof all, &all) == 0);
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &all)) {
            CPU_SET(cpu, &one);
            break;
        }
    CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
    setenv("WEFT_TEST_SOMETHING", "kept", 1);
}

static void states_are_kept_as(struct team *team)
{
    host_program_prepares();
    struct state before = state_now();
    struct box *box = box_of(open_endpoint());
    check_same(&before, "after open");
    weft_peer peer = join(team, 1 - team->rank, box);
    check_same(&before, "after connecting");
    uint8_t *bytes = map_bytes(MIB);
    weft_memory *memory = register_one(box->endpoint, bytes, MIB);
    give_memory(team, 1 - team->rank, memory);
    weft_remote_memory *theirs = take_memory(team, 1 - team->rank, box, peer);
    if (team->rank == 0) {
        struct range_request args = range_args(memory, theirs, MIB);
        CHECK_OK(box_await(box, write_now(box, &args), patience_ms()).status);
    }
    meet(team, 1 - team->rank, box);
    check_same(&before, "after a transfer");
    meet(team, 1 - team->rank, box);
    box_close(box);
    check_same(&before, "after close");
    weft_endpoint_config config = test_config();
    config.rail_count = 3;
    config.workers = 3;
    weft_endpoint *again = open_with(&config);
    check_same(&before, "after a second open");
    CHECK_OK(weft_endpoint_destroy(again));
    check_same(&before, "after a second close");
}

static void signal_dispositions_are_unchanged(void)
{
    run_pair(states_are_kept_as, states_are_kept_as);
}

static void signal_handlers_of_the_program_still_run(void)
{
    host_program_prepares();
    weft_endpoint *endpoint = open_endpoint();
    const int sent[] = {SIGTERM, SIGINT, SIGUSR1};
    for (size_t i = 0; i < COUNT(sent); i++) {
        handled = 0;
        CHECK(raise(sent[i]) == 0);
        CHECK_EQ(handled, sent[i]);
    }
    CHECK_OK(weft_endpoint_destroy(endpoint));
    handled = 0;
    CHECK(raise(SIGTERM) == 0);
    CHECK_EQ(handled, SIGTERM);
}

/* A signal to the process never runs the host's handler on a thread of Weft. */
static void worker_threads_block_signals(void)
{
    host_program_prepares();
    weft_endpoint_config config = test_config();
    config.rail_count = 2;
    config.workers = 2;
    weft_endpoint *endpoint = open_with(&config);
    sigset_t usr1;
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    for (int i = 0; i < 20; i++) {
        handled = 0;
        CHECK(pthread_sigmask(SIG_BLOCK, &usr1, NULL) == 0);
        CHECK(kill(getpid(), SIGUSR1) == 0);
        sleep_ms(10);
        CHECK_EQ(handled, 0); /* no other thread took it */
        CHECK(pthread_sigmask(SIG_UNBLOCK, &usr1, NULL) == 0);
        CHECK_EQ(handled, SIGUSR1);
        CHECK_EQ(handled_in, getpid());
    }
    CHECK_OK(weft_endpoint_destroy(endpoint));
}

/* Workers stay on the CPUs that the process may use, and have names. */
static void workers_stay_within_the_affinity_mask(void)
{
    host_program_prepares(); /* one CPU */
    weft_endpoint_config config = test_config();
    config.rail_count = 2;
    config.workers = 2;
    int before = running_threads();
    weft_endpoint *endpoint = open_with(&config);
    CHECK(running_threads() >= before + 2);
    cpu_set_t ours, theirs;
    CHECK(sched_getaffinity(0, sizeof ours, &ours) == 0);
    for (pid_t tid = getpid(); tid < getpid() + 1000; tid++) {
        char path[64], name[64] = "";
        snprintf(path, sizeof path, "/proc/self/task/%d/comm", (int)tid);
        FILE *comm = fopen(path, "r");
        if (!comm)
            continue;
        CHECK(fgets(name, sizeof name, comm) != NULL);
        fclose(comm);
        CHECK(sched_getaffinity(tid, sizeof theirs, &theirs) == 0);
        CPU_AND(&theirs, &theirs, &ours);
        CHECK(CPU_COUNT(&theirs) > 0);
        CHECK(sched_getaffinity(tid, sizeof theirs, &theirs) == 0);
        cpu_set_t within;
        CPU_AND(&within, &theirs, &ours);
        if (!CPU_EQUAL(&within, &theirs))
            FAIL("thread %s may run on CPUs that were not given to the process", name);
    }
    CHECK_OK(weft_endpoint_destroy(endpoint));
}

/* ---- Without libfabric ---- */

static uint32_t rail_count_of(weft_endpoint *endpoint)
{
    weft_endpoint_properties p = WEFT_ENDPOINT_PROPERTIES_INIT;
    CHECK_OK(weft_endpoint_info(endpoint, &p, NULL));
    return p.rails;
}

static void missing_libfabric_is_named(void)
{
    if (strncmp(fabric(), "sim", 3) == 0)
        skip("simulated NICs need no libfabric");
    const char *paths[] = {"/nonexistent/libfabric.so", "/etc/passwd", "/"};
    for (size_t i = 0; i < COUNT(paths); i++) {
        weft_endpoint *endpoint = NULL;
        weft_endpoint_config config = test_config();
        setenv("WEFT_LIBFABRIC", paths[i], 1);
        config.rails = "lo";
        config.fabric = "tcp;ofi_rxm";
        REFUSED(WEFT_ERR_NO_LIBFABRIC, weft_endpoint_create(&config, &endpoint));
        if (!strstr(weft_last_error(), paths[i]))
            FAIL("the message does not name %s", paths[i]);
        /* Peers can be reached without it. */
        const char *without[] = {NULL, "host", "tcp"};
        for (size_t k = 0; k < COUNT(without); k++) {
            config.fabric = without[k];
            CHECK_OK(weft_endpoint_create(&config, &endpoint));
            CHECK_EQ(rail_count_of(endpoint), without[k] ? 1 : 2);
            CHECK_OK(weft_endpoint_destroy(endpoint));
        }
        config.fabric = "host";
        config.rails = "!host";
        REFUSED(WEFT_ERR_NO_RAILS, weft_endpoint_create(&config, &endpoint));
    }
}

static const struct test tests[] = {
    {"signal_dispositions_are_unchanged", "any", signal_dispositions_are_unchanged},
    {"signal_handlers_of_the_program_still_run", "any", signal_handlers_of_the_program_still_run},
    {"worker_threads_block_signals", "any", worker_threads_block_signals},
    {"workers_stay_within_the_affinity_mask", "any", workers_stay_within_the_affinity_mask},
    {"missing_libfabric_is_named", "once", missing_libfabric_is_named},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
