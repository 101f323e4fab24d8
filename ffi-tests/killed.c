/* A process is killed while what it sends arrives: its target goes on. */
#include "harness.h"

#define PAGE (16 * MIB)
#define PAGES 4
#define TIMES 4

/* Writes counted pages until it is killed: each is long under way. */
static void counts(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    weft_memory *memory = register_one(box->endpoint, map_bytes(PAGES * PAGE), PAGES * PAGE);
    weft_peer peer = join(team, 0, box);
    weft_remote_memory *remote = take_memory(team, 0, box, peer);
    weft_pages_args args = WEFT_PAGES_ARGS_INIT;
    hear(team, 0, box, &args.counter, sizeof args.counter);
    args.local = memory;
    args.remote = remote;
    args.page_count = PAGES;
    args.layer_count = 1;
    args.page_len = PAGE;
    args.flags = WEFT_COUNT_PAGES;
    for (weft_transfer id;;) {
        while (weft_write_pages(box->endpoint, &args, &id) == WEFT_OK) {
        }
        box_pump(box, 1);
    }
}

/* Its reader stops in the middle of a page, and goes on when the writer is no more. */
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

static void in_the_middle_of_a_counted_page(void)
{
    const role roles[] = {goes_on, counts};
    for (int i = 0; i < TIMES; i++)
        run_team(2, roles);
}

static const struct test tests[] = {
    {"in_the_middle_of_a_counted_page", "tcp,host", in_the_middle_of_a_counted_page},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
