/* A process is killed while its data arrives, or while others wait for its answer. */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>

#include "harness.h"

#define PAGE (16 * MIB)
#define PAGES 4
#define TIMES 4

/* Writes counted pages until it is killed: each is in flight for long. */
static void counts(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    weft_memory *memory = register_one(box->endpoint, map_bytes(PAGES * PAGE), PAGES * PAGE);
    weft_peer peer = join(team, 0, box);
    weft_remote_memory *remote = take_memory(team, 0, box, peer);
    struct pages_request args = PAGES_REQUEST_INIT;
    hear(team, 0, box, &args.options.counter, sizeof args.options.counter);
    args.local = memory;
    args.remote = remote;
    args.pages.page_count = PAGES;
    args.pages.layer_count = 1;
    args.pages.page_len = PAGE;
    args.options.flags = WEFT_COUNT_PAGES;
    for (weft_op id;;) {
        while (submit_write_pages(box->endpoint, &args, &id) == WEFT_OK) {
        }
        box_pump(box, 1);
    }
}

/* Its reader stops in the middle of a page, and continues when the writer is gone. */
static void goes_on(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    weft_memory *memory = register_one(box->endpoint, map_bytes(PAGES * PAGE), PAGES * PAGE);
    weft_counter counter;
    CHECK_OK(weft_counter_create(box->endpoint, &counter));
    join(team, 1, box);
    give_memory(team, 1, memory);
    tell(team, 1, &counter, sizeof counter);
    for (uint64_t until = now_ns() + 200 * MS; now_ns() < until;)
        box_pump(box, 1);
    kill_member(team, 1);
    CHECK_STATUS(box_take(box, WEFT_COMPLETION_PEER_DOWN, patience_ms()).status, WEFT_ERR_PEER_LOST);
    CHECK_OK(weft_counter_destroy(box->endpoint, counter));
    CHECK_OK(weft_memory_deregister(memory));
    box_close(box);
}

static void writer_killed_inside_a_counted_page(void)
{
    const role roles[] = {goes_on, counts};
    for (int i = 0; i < TIMES; i++)
        run_team(2, roles);
}

#define SMALL (16 * KIB)
#define SMALLS 64
#define AT_ONCE 8

/* It is written to until it is killed. */
static void takes(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    weft_memory *memory = register_one(box->endpoint, map_bytes(SMALLS * SMALL), SMALLS * SMALL);
    join(team, 0, box);
    give_memory(team, 0, memory);
    for (;;)
        box_pump(box, 1);
}

static bool write_smalls(struct box *box, weft_memory *memory, weft_remote_memory *remote)
{
    struct pages_request args = PAGES_REQUEST_INIT;
    uint32_t pages[SMALLS];
    weft_op id;
    for (uint32_t i = 0; i < SMALLS; i++)
        pages[i] = i * 5 % SMALLS; /* None of them is merged with its neighbour. */
    args.local = memory;
    args.remote = remote;
    args.pages.local.pages = args.pages.remote.pages = pages;
    args.pages.page_count = SMALLS;
    args.pages.layer_count = 1;
    args.pages.page_len = SMALL;
    args.options.timeout_ns = patience_ms() * MS;
    return submit_write_pages(box->endpoint, &args, &id) == WEFT_OK;
}

/* Operations that the peer never acknowledged end long before their deadline. */
static void receives_nothing_more(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    weft_memory *memory = register_one(box->endpoint, map_bytes(SMALLS * SMALL), SMALLS * SMALL);
    weft_peer peer = join(team, 1, box);
    weft_remote_memory *remote = take_memory(team, 1, box, peer);
    int open = 0, killed = 0;
    uint64_t begun = judged_from();
    while (!killed || open > 0) {
        weft_completion done;
        if (!killed && now_ns() - begun > 30 * MS) {
            kill_member(team, 1);
            killed = 1;
            begun = now_ns();
        }
        while (open < AT_ONCE && !killed && write_smalls(box, memory, remote))
            open++;
        while (weft_queue_poll(weft_endpoint_queue(box->endpoint), &done, 1, 0) == 1) {
            if (done.kind == WEFT_COMPLETION_PEER_DOWN)
                continue;
            CHECK_EQ(done.kind, WEFT_COMPLETION_WRITE);
            CHECK(done.status == WEFT_OK || (killed && done.status == WEFT_ERR_PEER_LOST));
            open--;
        }
        if (killed)
            CHECK_WITHIN(begun, now_ns(), 2 * SECOND);
    }
    printf("the last of %d transfers ended %" PRIu64 " ms after the kill\n", AT_ONCE, (now_ns() - begun) / MS);
    CHECK_OK(weft_endpoint_shutdown(box->endpoint, 0));
    exit(0);
}

static void writes_to_a_killed_peer_end_within_two_seconds(void)
{
    const role roles[] = {receives_nothing_more, takes};
    for (int i = 0; i < 2 * TIMES; i++)
        run_team(2, roles);
}

/* ---- A peer that has a forked child ---- */

/* Refuses pidfd_open to this process, as some containers do, and as a kernel without it does. */
static void refuse_pidfds(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {COUNT(filter), filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        skip("no seccomp here: %s", strerror(errno));
}

/* Lives until the board says that it is not needed, whatever becomes of its parent. */
static void has_a_child(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    weft_memory *memory = register_one(box->endpoint, map_bytes(SMALL), SMALL);
    join(team, 0, box);
    give_memory(team, 0, memory);
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0);
    for (uint64_t until = now_ns() + patience_ms() * MS; child == 0; sleep_ms(1))
        if (team->board->word[0] || now_ns() > until)
            _exit(0);
    team->board->word[1] = 1;
    for (;;)
        box_pump(box, 1);
}

static void sees_it_die(struct team *team)
{
    refuse_pidfds();
    weft_endpoint_config config = test_config();
    config.liveness_ns = 20 * SECOND;
    struct box *box = box_of(open_with(&config));
    weft_memory *memory = register_one(box->endpoint, map_bytes(SMALL), SMALL);
    weft_peer peer = join(team, 1, box);
    weft_remote_memory *remote = take_memory(team, 1, box, peer);
    struct range_request args = range_args(memory, remote, SMALL);
    CHECK_OK(box_await(box, write_now(box, &args), patience_ms()).status);
    while (team->board->word[1] == 0)
        box_pump(box, 1);
    uint64_t begun = judged_from();
    kill_member(team, 1);
    CHECK_STATUS(box_take(box, WEFT_COMPLETION_PEER_DOWN, patience_ms()).status, WEFT_ERR_PEER_LOST);
    CHECK_WITHIN(begun, now_ns(), SECOND);
    team->board->word[0] = 1;
    box_close(box);
}

static void death_is_seen_though_a_forked_child_lives(void)
{
    run_pair(sees_it_die, has_a_child);
}

static const struct test tests[] = {
    {"writer_killed_inside_a_counted_page", "tcp,host", writer_killed_inside_a_counted_page},
    {"writes_to_a_killed_peer_end_within_two_seconds", "tcp,host timed", writes_to_a_killed_peer_end_within_two_seconds},
    {"death_is_seen_though_a_forked_child_lives", "tcp,host timed", death_is_seen_though_a_forked_child_lives},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
