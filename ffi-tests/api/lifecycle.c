/* Opening, shutting down, destroying and forking, at any time. */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <ucontext.h>

#include "harness.h"

/* ---- Nothing remains ---- */

static void open_and_close(void)
{
    weft_endpoint *endpoint = open_endpoint();
    uint8_t *bytes = map_bytes(65536);
    weft_memory *memory = register_one(endpoint, bytes, 65536);
    CHECK_OK(weft_memory_deregister(memory));
    CHECK_OK(weft_endpoint_destroy(endpoint));
    munmap(bytes, 65536);
}

/* A joined thread may be visible for a moment longer. */
static void await_threads(int threads)
{
    for (uint64_t until = now_ns() + patience_ms() * MS; running_threads() > threads; sleep_ms(1))
        CHECK(now_ns() < until);
}

static void repeated_opens_leak_nothing(void)
{
    for (int i = 0; i < 3; i++)
        open_and_close(); /* memory that libraries never free */
    sleep_ms(50);
    int fds = open_fds(), threads = running_threads();
    for (int i = 0; i < 50; i++)
        open_and_close();
    CHECK_EQ(open_fds(), fds);
    await_threads(threads);
}

static void failed_opens_leak_nothing(void)
{
    weft_endpoint *endpoint;
    weft_endpoint_config config = test_config();
    open_and_close();
    config.min_rails = 64;
    CHECK_STATUS(weft_endpoint_create(&config, &endpoint), WEFT_ERR_NO_RAILS);
    int fds = open_fds(), threads = running_threads();
    for (int i = 0; i < 20; i++)
        CHECK_STATUS(weft_endpoint_create(&config, &endpoint), WEFT_ERR_NO_RAILS);
    CHECK_EQ(open_fds(), fds);
    await_threads(threads);
}

static void several_endpoints_open_at_once(void)
{
    weft_endpoint *endpoints[8];
    uint64_t incarnations[8];
    for (size_t i = 0; i < 8; i++) {
        weft_endpoint_properties p = WEFT_ENDPOINT_PROPERTIES_INIT;
        endpoints[i] = open_endpoint();
        CHECK_OK(weft_endpoint_info(endpoints[i], &p, NULL));
        incarnations[i] = p.incarnation;
        for (size_t k = 0; k < i; k++)
            CHECK(incarnations[k] != incarnations[i] && endpoints[k] != endpoints[i]);
    }
    for (size_t i = 0; i < 8; i++)
        CHECK_OK(weft_endpoint_destroy(endpoints[i * 3 % 8]));
}

/* ---- Outstanding operations ---- */

#define OUTSTANDING 200

/* A peer with memory that does not poll: with manual progress nothing moves. */
static void sleeping_target(struct team *team)
{
    weft_endpoint_config config = test_config();
    config.progress = WEFT_PROGRESS_MANUAL;
    struct box *box = box_of(open_with(&config));
    join(team, 0, box);
    weft_memory *memory = register_one(box->endpoint, map_bytes(MIB), MIB);
    give_memory(team, 0, memory);
    meet(team, 0, box);
    meet(team, 0, NULL); /* sleeps until the other is done */
    weft_completion down = box_take(box, WEFT_COMPLETION_PEER_DOWN, patience_ms());
    CHECK_ONE_OF(down.status, WEFT_ERR_PEER_CLOSED, WEFT_ERR_PEER_LOST);
    box_close(box);
}

static void closes_when_busy(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    weft_peer peer = join(team, 1, box);
    weft_memory *memory = register_one(box->endpoint, map_bytes(MIB), MIB);
    weft_remote_memory *theirs = take_memory(team, 1, box, peer);
    weft_queue *queue;
    CHECK_OK(weft_queue_create(box->endpoint, 0, &queue));
    sleep_ms(100);
    meet(team, 1, box);
    sleep_ms(50);

    weft_op ids[OUTSTANDING];
    int seen[OUTSTANDING] = {0};
    for (size_t i = 0; i < OUTSTANDING; i++) {
        struct range_request args = range_args(memory, theirs, MIB);
        args.options.user_data = (void *)(uintptr_t)(i + 1);
        args.options.queue = i % 2 ? queue : NULL;
        CHECK_OK(submit_write(box->endpoint, &args, &ids[i]));
    }
    REFUSED(WEFT_ERR_BUSY, weft_endpoint_destroy(box->endpoint));
    REFUSED(WEFT_ERR_BUSY, weft_memory_deregister(memory));
    REFUSED(WEFT_ERR_BUSY, weft_remote_memory_release(theirs));
    REFUSED(WEFT_ERR_BUSY, weft_queue_destroy(queue));

    uint64_t began = judged_from();
    CHECK_OK(weft_endpoint_shutdown(box->endpoint, 100 * MS));
    CHECK(now_ns() - began >= 100 * MS);
    CHECK_WITHIN(began + 100 * MS, now_ns(), 2 * SECOND);
    CHECK_OK(weft_endpoint_shutdown(box->endpoint, 0)); /* again is harmless */

    /* Every completion is available already. */
    weft_completion c[64];
    int32_t n;
    size_t total = 0;
    for (int which = 0; which < 2; which++)
        while ((n = which ? weft_queue_poll(queue, c, 64, 0) : weft_queue_poll(weft_endpoint_queue(box->endpoint), c, 64, 0)) > 0)
            for (int32_t k = 0; k < n; k++) {
                if (c[k].kind != WEFT_COMPLETION_WRITE)
                    continue;
                size_t i = (size_t)(uintptr_t)c[k].user_data - 1;
                CHECK(i < OUTSTANDING && c[k].op == ids[i]);
                CHECK_EQ((int)(i % 2), which);
                CHECK_ONE_OF(c[k].status, WEFT_ERR_CANCELED, WEFT_OK);
                seen[i]++;
                total++;
            }
    CHECK_EQ(total, OUTSTANDING);
    for (size_t i = 0; i < OUTSTANDING; i++)
        CHECK_EQ(seen[i], 1);
    CHECK_OK(weft_queue_destroy(queue));
    CHECK_OK(weft_remote_memory_release(theirs));
    CHECK_OK(weft_memory_deregister(memory));
    CHECK_OK(weft_endpoint_destroy(box->endpoint));
    meet(team, 1, NULL);
}

static void destroy_while_in_use_is_refused(void)
{
    run_pair(closes_when_busy, sleeping_target);
}

/* A shutdown with time to drain lets running transfers complete. */
static void drains(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    weft_peer peer = join(team, 1, box);
    uint8_t *bytes = map_bytes(MIB);
    fill_random(bytes, MIB, 1);
    weft_memory *memory = register_one(box->endpoint, bytes, MIB);
    weft_remote_memory *theirs = take_memory(team, 1, box, peer);
    for (int i = 0; i < 50; i++) {
        struct range_request args = range_args(memory, theirs, MIB);
        CHECK_OK(submit_write(box->endpoint, &args, NULL));
    }
    CHECK_OK(weft_endpoint_shutdown(box->endpoint, patience_ms() * MS));
    for (int i = 0; i < 50; i++) {
        weft_completion c = box_take(box, WEFT_COMPLETION_WRITE, 0);
        CHECK_OK(c.status);
        CHECK_EQ(c.bytes, MIB);
    }
    box_close(box);
    meet(team, 1, NULL);
}

static void drained_into(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    join(team, 0, box);
    uint8_t *bytes = map_bytes(MIB);
    weft_memory *memory = register_one(box->endpoint, bytes, MIB);
    give_memory(team, 0, memory);
    meet(team, 0, box);
    CHECK_EQ(differs_random(bytes, MIB, 1), -1);
    weft_completion down = box_take(box, WEFT_COMPLETION_PEER_DOWN, patience_ms());
    CHECK_STATUS(down.status, WEFT_ERR_PEER_CLOSED);
    box_close(box);
}

static void shutdown_drains(void)
{
    run_pair(drains, drained_into);
}

/* ---- Shutdown while other threads are at work ---- */

struct crowd {
    weft_endpoint *endpoint;
    weft_memory *memory;
    weft_remote_memory *theirs;
    _Atomic uint64_t accepted, completed, failed;
};

static void *submits_until_closed(void *arg)
{
    struct crowd *crowd = arg;
    struct range_request args = range_args(crowd->memory, crowd->theirs, 4096);
    for (;;) {
        weft_status status = submit_write(crowd->endpoint, &args, NULL);
        if (status == WEFT_OK)
            crowd->accepted++;
        else if (status == WEFT_ERR_AGAIN)
            sched_yield();
        else {
            CHECK_STATUS(status, WEFT_ERR_CLOSED);
            return NULL;
        }
    }
}

static void *waits_until_closed(void *arg)
{
    struct crowd *crowd = arg;
    weft_completion c[32];
    int32_t n;
    while ((n = weft_queue_poll(weft_endpoint_queue(crowd->endpoint), c, 32, 60 * SECOND)) >= 0)
        for (int32_t i = 0; i < n; i++) {
            if (c[i].kind == WEFT_COMPLETION_PEER_DOWN)
                continue;
            CHECK_EQ(c[i].kind, WEFT_COMPLETION_WRITE);
            CHECK_ONE_OF(c[i].status, WEFT_OK, WEFT_ERR_CANCELED);
            crowd->completed++;
            if (c[i].status != WEFT_OK)
                crowd->failed++;
        }
    CHECK_STATUS(n, WEFT_ERR_CLOSED);
    return NULL;
}

static void shuts_down_under_load(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    weft_peer peer = join(team, 1, box);
    struct crowd crowd = {.endpoint = box->endpoint};
    crowd.memory = register_one(box->endpoint, map_bytes(4096), 4096);
    crowd.theirs = take_memory(team, 1, box, peer);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        CHECK(pthread_create(&threads[i], NULL, i % 2 ? submits_until_closed : waits_until_closed,
                             &crowd) == 0);
    sleep_ms(300);
    uint64_t began = judged_from();
    CHECK_OK(weft_endpoint_shutdown(box->endpoint, 0));
    for (int i = 0; i < 4; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK_WITHIN(began, now_ns(), 2 * SECOND);
    printf("%" PRIu64 " writes, %" PRIu64 " canceled\n", crowd.accepted, crowd.failed);
    CHECK(crowd.accepted > 0);
    CHECK_EQ(crowd.accepted, crowd.completed);
    CHECK_OK(weft_endpoint_destroy(box->endpoint));
    meet(team, 1, NULL);
}

static void target_until_notified(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    join(team, 0, box);
    weft_memory *memory = register_one(box->endpoint, map_bytes(4096), 4096);
    give_memory(team, 0, memory);
    meet(team, 0, box);
    CHECK_STATUS(box_take(box, WEFT_COMPLETION_PEER_DOWN, patience_ms()).status,
                 WEFT_ERR_PEER_CLOSED);
    box_close(box);
}

static void shutdown_under_load(void)
{
    run_pair(shuts_down_under_load, target_until_notified);
}

static void *waits_for_a_minute(void *arg)
{
    weft_completion c;
    CHECK_STATUS(weft_queue_poll(weft_endpoint_queue(arg), &c, 1, 60 * SECOND), WEFT_ERR_CLOSED);
    return NULL;
}

static void shutdown_wakes_waiters(void)
{
    weft_endpoint *endpoint = open_endpoint();
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        CHECK(pthread_create(&threads[i], NULL, waits_for_a_minute, endpoint) == 0);
    sleep_ms(100);
    uint64_t began = judged_from();
    CHECK_OK(weft_endpoint_shutdown(endpoint, 0));
    for (int i = 0; i < 3; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK_WITHIN(began, now_ns(), 2 * SECOND);
    CHECK_OK(weft_endpoint_destroy(endpoint));
}

static void calls_after_shutdown_fail_with_closed(void)
{
    struct duo duo = duo_open(4096);
    weft_endpoint *a = duo.a->endpoint;
    weft_memory_range range = {duo.a_bytes, 64};
    weft_memory *memory;
    weft_remote_memory *remote;
    weft_queue *queue, *made;
    weft_peer peer;
    weft_completion c;
    char address[4096], descriptor[4096];
    size_t address_len = address_of(duo.b->endpoint, address, sizeof address);
    size_t descriptor_len = descriptor_of(duo.b_memory, descriptor, sizeof descriptor);
    CHECK_OK(weft_queue_create(a, 0, &queue));
    CHECK_OK(weft_endpoint_shutdown(a, 0));

    struct range_request args = range_args(duo.a_memory, duo.b_of_a, 8);
    struct pages_request pages = PAGES_REQUEST_INIT;
    struct send_request message = SEND_REQUEST_INIT;
    pages.local = duo.a_memory;
    pages.remote = duo.b_of_a;
    pages.pages.page_len = 8;
    pages.pages.page_count = 1;
    message.peer = duo.a_to_b;
    REFUSED(WEFT_ERR_CLOSED, submit_write(a, &args, NULL));
    REFUSED(WEFT_ERR_CLOSED, submit_read(a, &args, NULL));
    REFUSED(WEFT_ERR_CLOSED, submit_write_pages(a, &pages, NULL));
    REFUSED(WEFT_ERR_CLOSED, submit_read_pages(a, &pages, NULL));
    REFUSED(WEFT_ERR_CLOSED, submit_send(a, &message, NULL));
    REFUSED(WEFT_ERR_CLOSED, weft_memory_register(a, &range, 1, NULL, &memory));
    REFUSED(WEFT_ERR_CLOSED, weft_queue_create(a, 0, &made));
    REFUSED(WEFT_ERR_CLOSED, weft_peer_connect(a, address, address_len, NULL, &peer));
    REFUSED(WEFT_ERR_CLOSED,
            weft_remote_memory_import(a, duo.a_to_b, descriptor, descriptor_len, &remote));
    while (weft_queue_poll(weft_endpoint_queue(a), &c, 1, 0) > 0)
        CHECK_EQ(c.kind, WEFT_COMPLETION_PEER_DOWN);
    REFUSED(WEFT_ERR_CLOSED, weft_queue_poll(weft_endpoint_queue(a), &c, 1, SECOND));
    REFUSED(WEFT_ERR_CLOSED, weft_queue_poll(queue, &c, 1, SECOND));
    CHECK_OK(weft_queue_destroy(queue));
    CHECK_OK(weft_memory_deregister(duo.a_memory));
    CHECK_OK(weft_remote_memory_release(duo.b_of_a));
    CHECK_STATUS(box_take(duo.b, WEFT_COMPLETION_PEER_DOWN, patience_ms()).status,
                 WEFT_ERR_PEER_CLOSED);
    duo_close(&duo);
}

/* ---- Another endpoint's call that takes long ---- */

static _Atomic int inside, may_leave;

/* Stands for a system that provides memory slowly: the allocation's first system call waits, and fails. */
static void wait_inside(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)info;
    ucontext_t *state = context;
    inside = 1;
    for (uint64_t until = now_ns() + patience_ms() * MS; !may_leave && now_ns() < until;)
        sched_yield();
#if defined(__x86_64__)
    state->uc_mcontext.gregs[REG_RAX] = -ENOMEM;
#elif defined(__aarch64__)
    state->uc_mcontext.regs[0] = (unsigned long long)-ENOMEM;
#endif
}

static void *allocates_slowly(void *endpoint)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_memfd_create, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {COUNT(filter), filter};
    struct sigaction action = {.sa_sigaction = wait_inside, .sa_flags = SA_SIGINFO};
    void *address;
    CHECK(sigaction(SIGSYS, &action, NULL) == 0);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        skip("no seccomp here: %s", strerror(errno));
    CHECK(weft_memory_alloc(endpoint, 4096, WEFT_NUMA_ANY, &address) < 0);
    return NULL;
}

static void destroy_waits_for_no_allocation_of_another_endpoint(void)
{
    pthread_t thread;
    weft_endpoint *other = open_endpoint();
    open_and_close();
    int fds = open_fds();
    weft_endpoint *endpoint = open_endpoint();
    CHECK(pthread_create(&thread, NULL, allocates_slowly, other) == 0);
    while (!inside)
        sleep_ms(1);
    CHECK_OK(weft_endpoint_destroy(endpoint));
    /* Where the other call holds it up, destroy gives up at last, and leaves its descriptors open. */
    CHECK_EQ(open_fds(), fds);
    may_leave = 1;
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK_OK(weft_endpoint_destroy(other));
}

/* ---- Fork ---- */

static void forked_child(const struct duo *duo, weft_queue *queue, bool cleanly)
{
    weft_endpoint *a = duo->a->endpoint, *opened = NULL;
    char blob[4096];
    size_t len;
    weft_endpoint_properties ep = WEFT_ENDPOINT_PROPERTIES_INIT;
    weft_rail_properties rail = WEFT_RAIL_PROPERTIES_INIT;
    weft_peer_properties pp = WEFT_PEER_PROPERTIES_INIT;
    weft_memory_range range = {duo->a_bytes, 64};
    weft_memory *memory;
    weft_remote_memory *remote;
    weft_queue *made;
    weft_peer peer;
    weft_completion c;
    int32_t fd;
    struct range_request args = range_args(duo->a_memory, duo->b_of_a, 8);
    struct pages_request pages = PAGES_REQUEST_INIT;
    struct send_request message = SEND_REQUEST_INIT;
    pages.local = duo->a_memory;
    pages.remote = duo->b_of_a;
    pages.pages.page_len = 8;
    pages.pages.page_count = 1;
    message.peer = duo->a_to_b;
    memset(blob, 0, sizeof blob);
    alarm((unsigned)(patience_ms() / 1000));
#define FORKED(call) CHECK_STATUS(call, WEFT_ERR_FORKED)
    FORKED(weft_endpoint_address(a, blob, sizeof blob, &len));
    FORKED(weft_endpoint_info(a, &ep, NULL));
    FORKED(weft_rail_info(a, 0, &rail, NULL));
    FORKED(weft_peer_connect(a, blob, 100, NULL, &peer));
    FORKED(weft_peer_disconnect(a, duo->a_to_b));
    FORKED(weft_peer_info(a, duo->a_to_b, &pp));
    FORKED(weft_peer_reason(a, duo->a_to_b, NULL, 0, &(size_t){0}));
    FORKED(weft_memory_register(a, &range, 1, NULL, &memory));
    FORKED(weft_memory_export(duo->a_memory, blob, sizeof blob, &len));
    FORKED(weft_memory_deregister(duo->a_memory));
    FORKED(weft_remote_memory_import(a, duo->a_to_b, blob, 100, &remote));
    FORKED(weft_remote_memory_release(duo->b_of_a));
    FORKED(weft_queue_poll(weft_endpoint_queue(a), &c, 1, 0));
    FORKED(weft_queue_poll(weft_endpoint_queue(a), &c, 1, SECOND));
    FORKED(weft_queue_arm(weft_endpoint_queue(a), NULL));
    FORKED(weft_queue_arm(weft_endpoint_queue(a), &fd));
    FORKED(weft_queue_create(a, 0, &made));
    FORKED(weft_queue_poll(queue, &c, 1, 0));
    FORKED(weft_queue_poll(queue, &c, 1, SECOND));
    FORKED(weft_queue_arm(queue, NULL));
    FORKED(weft_queue_arm(queue, &fd));
    FORKED(weft_queue_destroy(queue));
    FORKED(submit_write(a, &args, NULL));
    FORKED(submit_read(a, &args, NULL));
    FORKED(submit_write_pages(a, &pages, NULL));
    FORKED(submit_read_pages(a, &pages, NULL));
    FORKED(submit_send(a, &message, NULL));
    FORKED(weft_op_cancel(a, 1));
    FORKED(weft_message_release(a, 1));
    FORKED(weft_endpoint_shutdown(a, 0));
    FORKED(weft_endpoint_destroy(a));
#undef FORKED
    CHECK(strlen(weft_last_error()) > 0);
    CHECK(strcmp(weft_status_name(WEFT_ERR_FORKED), "WEFT_ERR_FORKED") == 0);
    /* libfabric does not support forked children: refused, or it works, but it never hangs. */
    weft_endpoint_config config = test_config();
    if (CHECK_ONE_OF(weft_endpoint_create(&config, &opened), WEFT_ERR_FORKED, WEFT_OK) == WEFT_OK)
        CHECK_OK(weft_endpoint_destroy(opened));
    if (cleanly)
        exit(0); /* with destructors */
    _exit(0);
}

static void calls_in_a_forked_child_are_refused(void)
{
    struct duo duo = duo_open(65536);
    weft_queue *queue;
    CHECK_OK(weft_queue_create(duo.a->endpoint, 0, &queue));
    for (int i = 0; i < 4; i++) {
        int status;
        fflush(NULL);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0)
            forked_child(&duo, queue, i % 2);
        CHECK(waitpid(child, &status, 0) == child);
        if (status != 0)
            FAIL("the child ended with %#x", (unsigned)status);
        /* The parent continues. */
        fill_random(duo.a_bytes, duo.len, (uint64_t)i);
        struct range_request args = range_args(duo.a_memory, duo.b_of_a, duo.len);
        CHECK_OK(box_await(duo.a, write_now(duo.a, &args), patience_ms()).status);
        CHECK_EQ(differs_random(duo.b_bytes, duo.len, (uint64_t)i), -1);
    }
    CHECK_OK(weft_queue_destroy(queue));
    duo_close(&duo);
}

/* exit() with everything open neither hangs nor crashes, and the peer gets PEER_DOWN. */
static void exits_without_close(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    join(team, 1, box);
    meet(team, 1, box);
}

static void sees_the_exit(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    join(team, 0, box);
    meet(team, 0, box);
    CHECK_ONE_OF(box_take(box, WEFT_COMPLETION_PEER_DOWN, patience_ms()).status,
                 WEFT_ERR_PEER_LOST, WEFT_ERR_PEER_CLOSED);
    box_close(box);
}

static void exit_with_open_endpoints_does_not_hang(void)
{
    run_pair(exits_without_close, sees_the_exit);
}

static const struct test tests[] = {
    {"repeated_opens_leak_nothing", "any", repeated_opens_leak_nothing},
    {"failed_opens_leak_nothing", "tcp,host", failed_opens_leak_nothing},
    {"several_endpoints_open_at_once", "any", several_endpoints_open_at_once},
    {"destroy_while_in_use_is_refused", "once timed", destroy_while_in_use_is_refused},
    {"shutdown_drains", "any wide", shutdown_drains},
    {"shutdown_under_load", "any timed", shutdown_under_load},
    {"shutdown_wakes_waiters", "any timed", shutdown_wakes_waiters},
    {"calls_after_shutdown_fail_with_closed", "once", calls_after_shutdown_fail_with_closed},
    {"destroy_waits_for_no_allocation_of_another_endpoint", "host", destroy_waits_for_no_allocation_of_another_endpoint},
    {"calls_in_a_forked_child_are_refused", "any", calls_in_a_forked_child_are_refused},
    {"exit_with_open_endpoints_does_not_hang", "tcp,host", exit_with_open_endpoints_does_not_hang},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
