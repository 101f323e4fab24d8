/* A process is killed while its data arrives, or while others wait for its answer. */
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

static const struct test tests[] = {
    {"writer_killed_inside_a_counted_page", "tcp,host", writer_killed_inside_a_counted_page},
    {"writes_to_a_killed_peer_end_within_two_seconds", "tcp,host timed", writes_to_a_killed_peer_end_within_two_seconds},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
