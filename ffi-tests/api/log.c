/* The log: levels, callbacks, and that a replaced callback is no longer called. */
#include "harness.h"

struct lines {
    pthread_mutex_t lock;
    char text[64 * 1024];
    size_t used;
    int count;
    weft_log_level highest;
    atomic_bool dead;
    weft_status changing; /* the lines that a callback of weft_log_set received */
};

static void keep(weft_log_level level, const char *component, const char *message, void *user_data)
{
    struct lines *lines = user_data;
    CHECK(!lines->dead);
    CHECK(level >= WEFT_LOG_ERROR && level <= WEFT_LOG_TRACE);
    CHECK(*component && *message && strchr(message, '\n') == NULL);
    pthread_mutex_lock(&lines->lock);
    lines->count++;
    lines->highest = level > lines->highest ? level : lines->highest;
    size_t room = sizeof lines->text - lines->used;
    int written = snprintf(lines->text + lines->used, room, "%s: %s\n", component, message);
    lines->used += (size_t)written < room ? (size_t)written : 0;
    pthread_mutex_unlock(&lines->lock);
}

static struct lines *new_lines(void)
{
    struct lines *lines = calloc(1, sizeof *lines);
    CHECK(lines != NULL);
    pthread_mutex_init(&lines->lock, NULL);
    return lines;
}

static void open_and_close(void)
{
    CHECK_OK(weft_endpoint_destroy(open_endpoint()));
}

static void log_callback_receives_lines(void)
{
    struct lines *lines = new_lines();
    CHECK_OK(weft_log_set(WEFT_LOG_DEBUG, keep, lines));
    open_and_close();
    CHECK(lines->count > 0 && lines->highest <= WEFT_LOG_DEBUG);
    if (strstr(lines->text, "endpoint: rails: lo 127.0.0.1 ") == NULL)
        FAIL("no line of the endpoint that opened: %s", lines->text);
    CHECK_OK(weft_log_set(WEFT_LOG_DEFAULT, NULL, NULL));
    lines->dead = true;
    open_and_close();
    free(lines);
}

static void log_levels_are_filtered(void)
{
    struct lines *lines = new_lines();
    CHECK_OK(weft_log_set(WEFT_LOG_ERROR, keep, lines));
    open_and_close();
    CHECK_EQ(lines->count, 0);
    REFUSED(WEFT_ERR_INVALID, weft_log_set(6, keep, lines));
    setenv("WEFT_LOG", "trace", 1); /* read once, at first */
    CHECK_OK(weft_log_set(WEFT_LOG_DEFAULT, keep, lines));
    open_and_close();
    CHECK_EQ(lines->count, 0);
}

/* Lines of WEFT_LOG go to stderr; so do lines of a level without a callback. */
static void stderr_is_the_default_log(void)
{
    char text[4096] = "";
    int fds[2];
    setenv("WEFT_LOG", "debug", 1);
    CHECK_EQ(pipe2(fds, O_NONBLOCK), 0);
    int before = dup(2);
    dup2(fds[1], 2);
    open_and_close();
    bool usual = read(fds[0], text, sizeof text - 1) > 0 && strstr(text, "weft::calls") != NULL;
    int year = 0, day = 0, pid = 0; /* the time and the process */
    usual &= sscanf(text, "[%d-%*d-%dT%*d:%*d:%*fZ %d DEBUG", &year, &day, &pid) == 3 && year > 2024 && pid == getpid();
    weft_status silenced = weft_log_set(WEFT_LOG_ERROR, NULL, NULL);
    open_and_close();
    bool silent = read(fds[0], text, sizeof text - 1) < 0;
    weft_status loud = weft_log_set(WEFT_LOG_TRACE, NULL, NULL);
    open_and_close();
    bool again = read(fds[0], text, sizeof text - 1) > 0;
    dup2(before, 2);
    CHECK_OK(silenced);
    CHECK_OK(loud);
    CHECK(usual && silent && again);
}

static void unknown_level_is_reported(void)
{
    char text[4096] = "";
    int fds[2];
    setenv("WEFT_LOG", "bogus", 1);
    CHECK_EQ(pipe2(fds, O_NONBLOCK), 0);
    int before = dup(2);
    dup2(fds[1], 2);
    open_and_close();
    bool said = read(fds[0], text, sizeof text - 1) > 0 && strstr(text, "WEFT_LOG is \"bogus\", which is no level") != NULL;
    bool quiet = strstr(text, "DEBUG") == NULL && strstr(text, "TRACE") == NULL;
    dup2(before, 2);
    CHECK(said && quiet);
}

/* A warning: nothing listens at that address. False if its completion does not arrive. */
static bool connect_to_nobody(weft_endpoint *endpoint, const void *address, size_t len)
{
    weft_op_options args = WEFT_OP_OPTIONS_INIT;
    weft_completion completion = {0};
    weft_peer peer;
    args.timeout_ns = 100 * MS;
    return weft_peer_connect(endpoint, address, len, &args, &peer) == WEFT_OK &&
           weft_queue_poll(weft_endpoint_queue(endpoint), &completion, 1, patience_ms() * MS) == 1 && completion.status != WEFT_OK;
}

/* A pipe without a reader: lines are dropped and counted, and workers continue. */
static void full_stderr_blocks_no_thread(void)
{
    char blob[8192], *text = calloc(1, MIB + 1);
    weft_endpoint *endpoint = open_endpoint(), *gone = open_endpoint();
    size_t len = address_of(gone, blob, sizeof blob), room = 0;
    CHECK_OK(weft_endpoint_destroy(gone));
    int fds[2], before = dup(2);
    CHECK(text != NULL && before >= 0 && pipe(fds) == 0);
    CHECK_EQ(fcntl(fds[1], F_SETFL, O_NONBLOCK), 0);
    for (ssize_t n; (n = write(fds[1], text, 4096)) > 0;)
        room += (size_t)n;
    CHECK_EQ(fcntl(fds[1], F_SETFL, 0), 0);
    CHECK(room > 0 && room < MIB);
    dup2(fds[1], 2);
    bool went_on = connect_to_nobody(endpoint, blob, len) && connect_to_nobody(endpoint, blob, len);
    bool blocks = (fcntl(2, F_GETFL) & O_NONBLOCK) == 0;
    for (size_t n = 0; n < room; n += (size_t)read(fds[0], text, room - n))
        ;
    memset(text, 0, room);
    bool again = connect_to_nobody(endpoint, blob, len);
    CHECK_EQ(fcntl(fds[0], F_SETFL, O_NONBLOCK), 0);
    bool said = read(fds[0], text, MIB) > 0;
    dup2(before, 2);
    CHECK(went_on && blocks && again && said);
    if (strstr(text, "did not fit into stderr") == NULL)
        FAIL("no word of what was dropped: %s", text);
    CHECK_OK(weft_endpoint_destroy(endpoint));
    free(text);
}

static void change(weft_log_level level, const char *component, const char *message, void *user_data)
{
    struct lines *lines = user_data;
    (void)level, (void)component, (void)message;
    lines->count++;
    lines->changing = weft_log_set(WEFT_LOG_DEFAULT, NULL, NULL);
}

static void log_callback_cannot_change_the_log(void)
{
    struct lines *lines = new_lines();
    CHECK_OK(weft_log_set(WEFT_LOG_DEBUG, change, lines));
    open_and_close();
    CHECK(lines->count > 0);
    CHECK_STATUS(lines->changing, WEFT_ERR_BUSY);
}

/* ---- Why an operation failed ---- */

struct waiting {
    struct box *box;
    weft_endpoint *silent;
    struct range_request args;
    weft_peer peer;
};

/* Transfers to a peer that never answers. */
static struct waiting wait_for_silence(void)
{
    char blob[8192];
    struct waiting w;
    weft_endpoint_config config = test_config();
    config.progress = WEFT_PROGRESS_MANUAL;
    w.silent = open_with(&config);
    w.box = box_of(open_endpoint());
    weft_remote_memory *theirs;
    size_t len = address_of(w.silent, blob, sizeof blob);
    CHECK_OK(weft_peer_connect(w.box->endpoint, blob, len, NULL, &w.peer));
    len = descriptor_of(register_one(w.silent, map_bytes(4096), 4096), blob, sizeof blob);
    CHECK_OK(weft_remote_memory_import(w.box->endpoint, w.peer, blob, len, &theirs));
    w.args = range_args(register_one(w.box->endpoint, map_bytes(4096), 4096), theirs, 64);
    return w;
}

static void end_waiting(struct waiting *w)
{
    CHECK_OK(weft_endpoint_destroy(w->silent));
    box_close(w->box);
}

/* A line may follow the completion that it explains. */
static void await_line(struct lines *lines, const char *wanted)
{
    uint64_t end = now_ns() + patience_ms() * MS;
    for (bool found = false; !found; sleep_ms(1)) {
        pthread_mutex_lock(&lines->lock);
        found = strstr(lines->text, wanted) != NULL;
        pthread_mutex_unlock(&lines->lock);
        if (!found && now_ns() > end)
            FAIL("\"%s\" is not in: %s", wanted, lines->text);
    }
}

static void last_error_names_the_cause(void)
{
    struct lines *lines = new_lines();
    struct waiting w = wait_for_silence();
    char wanted[128];
    weft_op id;
    CHECK_OK(weft_log_set(WEFT_LOG_DEBUG, keep, lines));
    w.args.options.timeout_ns = 10 * MS;
    w.args.options.user_data = (void *)0x2a;
    CHECK_OK(submit_write(w.box->endpoint, &w.args, &id));
    CHECK_STATUS(box_await(w.box, id, patience_ms()).status, WEFT_ERR_TIMED_OUT);
    snprintf(wanted, sizeof wanted, "write 0x%" PRIx64 " (user_data 0x2a) with peer 0x%" PRIx64
             ": the deadline passed, 10 ms after the submission; ", id, w.peer);
    await_line(lines, wanted);
    CHECK_OK(weft_log_set(WEFT_LOG_DEFAULT, NULL, NULL));
    end_waiting(&w);
}

/* A NIC's own error goes into the log at the info level, with its text. */
static void libfabric_error_text_is_logged(void)
{
    char blob[8192], wanted[128];
    struct lines *lines = new_lines();
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    config.fabric = "sim:like=tcp:delay_us=100:clock=virtual:world=told";
    config.progress = WEFT_PROGRESS_MANUAL;
    setenv("WEFT_SIM_FAULTS", "20000 port1 kill", 1);
    struct box *a = box_of(open_with(&config)), *b = box_of(open_with(&config));
    weft_peer peer;
    weft_completion c;
    weft_remote_memory *theirs;
    size_t len = address_of(b->endpoint, blob, sizeof blob);
    CHECK_OK(weft_peer_connect(a->endpoint, blob, len, NULL, &peer));
    do {
        box_pump(b, 0);
        box_pump(a, 1);
    } while (!box_try(a, WEFT_COMPLETION_PEER_UP, &c));
    weft_memory *mine = register_one(a->endpoint, map_bytes(4096), 4096);
    len = descriptor_of(register_one(b->endpoint, map_bytes(4096), 4096), blob, sizeof blob);
    CHECK_OK(weft_remote_memory_import(a->endpoint, peer, blob, len, &theirs));
    CHECK_OK(weft_log_set(WEFT_LOG_INFO, keep, lines));
    struct range_request args = range_args(mine, theirs, 64);
    do {
        CHECK_OK(submit_write(a->endpoint, &args, NULL));
        c = box_take(a, WEFT_COMPLETION_WRITE, patience_ms());
    } while (c.status == WEFT_OK);
    CHECK(c.provider_errno != 0);
    snprintf(wanted, sizeof wanted, "write 0x%" PRIx64 " (user_data 0x%" PRIx64 ") with peer 0x%" PRIx64,
             c.op, (uint64_t)(uintptr_t)c.user_data, peer);
    const char *line = strstr(lines->text, wanted);
    if (line == NULL || strstr(line, "rail 0") == NULL)
        FAIL("\"%s\" and its rail are not in: %s", wanted, lines->text);
    CHECK_EQ(lines->highest, WEFT_LOG_INFO);
    box_close(a);
    box_close(b);
}

/* An outdated address: the line names the missing endpoint, the reason, and what to check. */
static void refused_connect_names_its_cause(void)
{
    char blob[8192];
    struct lines *lines = new_lines();
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    config.fabric = "tcp";
    config.rails = "lo";
    struct box *a = box_of(open_with(&config));
    weft_endpoint *gone = open_with(&config);
    size_t len = address_of(gone, blob, sizeof blob);
    CHECK_OK(weft_endpoint_destroy(gone));
    CHECK_OK(weft_log_set(WEFT_LOG_WARN, keep, lines));
    weft_peer peer;
    CHECK_OK(weft_peer_connect(a->endpoint, blob, len, NULL, &peer));
    CHECK_STATUS(box_take(a, WEFT_COMPLETION_PEER_UP, patience_ms()).status, WEFT_ERR_UNREACHABLE);
    await_line(lines, " from lo: Connection refused (nothing listens there, or a firewall there rejects it: is the address out of date?)");
    CHECK_OK(weft_log_set(WEFT_LOG_DEFAULT, NULL, NULL));
    box_close(a);
}

/* ---- Replacing a callback while others log ---- */

static atomic_bool over;
static pthread_mutex_t current_lock = PTHREAD_MUTEX_INITIALIZER;
static struct lines *current;
static atomic_int heard;

static void note(weft_log_level level, const char *component, const char *message, void *user_data)
{
    struct lines *lines = user_data;
    (void)level, (void)component, (void)message;
    CHECK(!lines->dead);
    sched_yield();
    CHECK(!lines->dead);
    heard++;
}

static void *say(void *argument)
{
    struct waiting *w = argument;
    while (!over) {
        weft_op id;
        weft_status status = submit_write(w->box->endpoint, &w->args, &id);
        if (status == WEFT_OK)
            CHECK_OK(weft_op_cancel(w->box->endpoint, id)); /* logs a line */
        weft_completion c;
        CHECK(weft_queue_poll(weft_endpoint_queue(w->box->endpoint), &c, 1, 0) >= 0);
    }
    return NULL;
}

static void *replace(void *argument)
{
    (void)argument;
    uint64_t until = now_ns() + patience_ms() * MS;
    for (int i = 0; i < 2000 || heard == 0; i++) {
        CHECK(now_ns() < until);
        pthread_mutex_lock(&current_lock);
        struct lines *old = current;
        current = i % 5 == 4 ? NULL : new_lines();
        /* No output where lines go to stderr. */
        CHECK_OK(current ? weft_log_set(WEFT_LOG_DEBUG, note, current)
                         : weft_log_set(WEFT_LOG_ERROR, NULL, NULL));
        if (old) {
            old->dead = true;
            free(old); /* nothing uses it any longer */
        }
        pthread_mutex_unlock(&current_lock);
        if (i % 16 == 0)
            sleep_ms(1);
    }
    return NULL;
}

static void replaced_log_callback_is_not_called(void)
{
    struct waiting w = wait_for_silence();
    pthread_t sayers[2], replacers[2];
    w.args.options.timeout_ns = 20 * SECOND;
    for (int i = 0; i < 2; i++)
        CHECK_EQ(pthread_create(&sayers[i], NULL, say, &w), 0);
    for (int i = 0; i < 2; i++)
        CHECK_EQ(pthread_create(&replacers[i], NULL, replace, NULL), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(replacers[i], NULL);
    over = true;
    for (int i = 0; i < 2; i++)
        pthread_join(sayers[i], NULL);
    CHECK_OK(weft_log_set(WEFT_LOG_DEFAULT, NULL, NULL));
    CHECK(heard > 0);
    end_waiting(&w);
}

static const struct test tests[] = {
    {"log_callback_receives_lines", "once", log_callback_receives_lines},
    {"refused_connect_names_its_cause", "once", refused_connect_names_its_cause},
    {"log_levels_are_filtered", "once", log_levels_are_filtered},
    {"stderr_is_the_default_log", "once", stderr_is_the_default_log},
    {"unknown_level_is_reported", "once", unknown_level_is_reported},
    {"full_stderr_blocks_no_thread", "tcp,host", full_stderr_blocks_no_thread},
    {"log_callback_cannot_change_the_log", "once", log_callback_cannot_change_the_log},
    {"last_error_names_the_cause", "any", last_error_names_the_cause},
    {"libfabric_error_text_is_logged", "once", libfabric_error_text_is_logged},
    {"replaced_log_callback_is_not_called", "any", replaced_log_callback_is_not_called},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
