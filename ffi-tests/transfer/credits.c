/* Many counted pages to a target that seldom polls: no count is lost, and nothing else is delayed. */
#include "harness.h"

#define PAGE 64
#define PAGES 60000
#define ARENA (8 * MIB)

/* Words of the board. */
enum { ASLEEP, AWAKE };

static uint32_t rails; /* of this test */

static void set(struct team *team, int word, uint64_t value)
{
    atomic_store(&team->board->word[word], value);
}

static bool is_set(struct team *team, int word)
{
    return atomic_load(&team->board->word[word]) != 0;
}

static void await_word(struct team *team, int word)
{
    uint64_t until = now_ns() + patience_ms() * MS;
    while (!is_set(team, word)) {
        CHECK(now_ns() < until);
        sleep_ms(1);
    }
}

/* ---- The target: polls manually ---- */

struct target {
    struct box *box;
    weft_memory *memory;
    weft_counter counters[2];
};

static struct target open_target(struct team *team)
{
    weft_endpoint_config config = test_config();
    config.rail_count = rails;
    config.progress = WEFT_PROGRESS_MANUAL;
    struct target target = {.box = box_of(open_with(&config))};
    target.memory = register_one(target.box->endpoint, map_bytes(ARENA), ARENA);
    for (int i = 0; i < 2; i++)
        CHECK_OK(weft_counter_create(target.box->endpoint, &target.counters[i]));
    for (int with = 1; with < team->size; with++) {
        join(team, with, target.box);
        give_memory(team, with, target.memory);
        tell(team, with, target.counters, sizeof target.counters);
    }
    for (int with = 1; with < team->size; with++)
        meet(team, with, target.box);
    set(team, ASLEEP, 1);
    return target;
}

static uint64_t value_of(struct target *target, int counter)
{
    uint64_t value = 0;
    CHECK_OK(weft_counter_read(target->box->endpoint, target->counters[counter], &value));
    return value;
}

/* The first polls are far apart. */
static void await_count(struct target *target, int counter, uint64_t value)
{
    uint64_t until = now_ns() + patience_ms() * MS;
    for (int looks = 0; value_of(target, counter) < value; looks++) {
        if (now_ns() >= until)
            FAIL("%" PRIu64 " of %" PRIu64 " were counted", value_of(target, counter), value);
        if (looks < 100)
            sleep_ms(5);
        box_pump(target->box, 0);
    }
    CHECK_EQ(value_of(target, counter), value);
}

static void end_target(struct team *team, struct target *target)
{
    for (int with = 1; with < team->size; with++)
        meet(team, with, target->box);
    box_close(target->box);
}

/* ---- A sender: with workers ---- */

struct sender {
    struct box *box;
    weft_peer peer;
    weft_memory *memory;
    struct pages_request args;
    weft_counter counters[2];
};

static weft_op submit(struct sender *sender)
{
    weft_op id = 0;
    CHECK_OK(submit_write_pages(sender->box->endpoint, &sender->args, &id));
    return id;
}

static struct sender open_sender(struct team *team)
{
    weft_endpoint_config config = test_config();
    config.rail_count = rails;
    struct sender sender = {.box = box_of(open_with(&config)), .args = PAGES_REQUEST_INIT};
    sender.peer = join(team, 0, sender.box);
    sender.args.local = sender.memory = register_one(sender.box->endpoint, map_bytes(ARENA), ARENA);
    sender.args.remote = take_memory(team, 0, sender.box, sender.peer);
    hear(team, 0, sender.box, sender.counters, sizeof sender.counters);
    sender.args.pages.page_len = PAGE;
    sender.args.pages.page_count = 1;
    /* A sleeping target would not confirm the memory either. */
    CHECK_OK(box_await(sender.box, submit(&sender), patience_ms()).status);
    sender.args.options.flags = WEFT_COUNT_PAGES;
    sender.args.options.counter = sender.counters[0];
    sender.args.pages.page_count = PAGES;
    meet(team, 0, sender.box);
    await_word(team, ASLEEP);
    return sender;
}

/* The fabric may keep ended operations until the target polls again. */
static void give_back(struct sender *sender)
{
    uint64_t until = now_ns() + patience_ms() * MS;
    while (weft_memory_deregister(sender->memory) == WEFT_ERR_BUSY) {
        CHECK(now_ns() < until);
        box_pump(sender->box, 1);
    }
}

static void end_sender(struct team *team, struct sender *sender)
{
    meet(team, 0, sender->box);
    box_close(sender->box);
}

/* ---- Nothing is lost ---- */

static void sleeps_and_counts(struct team *team)
{
    struct target target = open_target(team);
    sleep_ms(200);
    await_count(&target, 0, (uint64_t)PAGES / (team->size > 2 ? 10 : 1) * (team->size - 1));
    end_target(team, &target);
}

static void counts_one(struct team *team)
{
    struct sender sender = open_sender(team);
    if (team->size > 2)
        sender.args.pages.page_count = PAGES / 10;
    CHECK_OK(box_await(sender.box, submit(&sender), 2 * patience_ms()).status);
    end_sender(team, &sender);
}

static void one_sender_loses_no_count(void)
{
    run_pair(sleeps_and_counts, counts_one);
}

static void credits_work_over_rails(void)
{
    rails = 4;
    run_pair(sleeps_and_counts, counts_one);
}

static void eight_senders_share_credits(void)
{
    const role roles[] = {sleeps_and_counts, counts_one, counts_one, counts_one, counts_one,
                          counts_one,        counts_one, counts_one, counts_one};
    run_team(COUNT(roles), roles);
}

/* Entries of lists take credits, too; entries that raise nothing are mixed in. */
#define ENTRIES 5000

static void counts_entries(struct team *team)
{
    struct target target = open_target(team);
    sleep_ms(50);
    await_count(&target, 0, ENTRIES / 2);
    await_count(&target, 1, PAGES / 10);
    end_target(team, &target);
}

static void lists_entries(struct team *team)
{
    struct sender sender = open_sender(team);
    static weft_list_entry entries[ENTRIES];
    struct list_request list = LIST_REQUEST_INIT;
    for (uint64_t i = 0; i < ENTRIES; i++) {
        entries[i].local = sender.args.local;
        entries[i].remote = sender.args.remote;
        entries[i].local_offset = entries[i].remote_offset = i * 200;
        entries[i].len = 1 + i % 200;
        entries[i].counter = i % 2 ? sender.counters[0] : 0;
    }
    list.entries = entries;
    list.count = ENTRIES;
    weft_op of_list = 0;
    CHECK_OK(submit_write_list(sender.box->endpoint, &list, &of_list));
    sender.args.options.flags |= WEFT_CLASS_LATENCY;
    sender.args.options.counter = sender.counters[1];
    sender.args.pages.page_count = PAGES / 10;
    weft_op of_pages = submit(&sender);
    CHECK_OK(box_await(sender.box, of_list, 2 * patience_ms()).status);
    CHECK_OK(box_await(sender.box, of_pages, 2 * patience_ms()).status);
    end_sender(team, &sender);
}

static void credits_serve_lists_and_both_classes(void)
{
    rails = 2;
    run_pair(counts_entries, lists_entries);
}

/* ---- A sender that waits ---- */

static void wakes_when_notified(struct team *team)
{
    struct target target = open_target(team);
    await_word(team, AWAKE);
    await_count(&target, 1, 3000);
    end_target(team, &target);
}

/* Transfers of either class that raise nothing arrive while others wait for credits. */
static void goes_past(struct team *team)
{
    struct sender sender = open_sender(team);
    weft_op stuck[40], id;
    sender.args.pages.page_count = 3000 / COUNT(stuck);
    sender.args.options.counter = sender.counters[1];
    for (size_t i = 0; i < COUNT(stuck); i++) {
        sender.args.options.flags = WEFT_COUNT_PAGES | (i % 2 ? WEFT_CLASS_LATENCY : 0);
        stuck[i] = submit(&sender);
    }
    sender.args.options.counter = 0;
    for (int i = 0; i < 20; i++) {
        sender.args.options.flags = i % 2 ? WEFT_CLASS_LATENCY : 0;
        sender.args.pages.page_len = i % 3 ? 50000 : PAGE;
        id = submit(&sender);
        if (!target_must_poll())
            CHECK_OK(box_await(sender.box, id, patience_ms()).status);
    }
    set(team, AWAKE, 1);
    for (size_t i = 0; i < COUNT(stuck); i++)
        CHECK_OK(box_await(sender.box, stuck[i], patience_ms()).status);
    end_sender(team, &sender);
}

static void peer_without_credits_delays_no_other(void)
{
    run_pair(wakes_when_notified, goes_past);
}

/* Operations that ended while waiting hold nothing, and later ones are counted. */
static void gives_up(struct team *team)
{
    struct sender sender = open_sender(team);
    sender.args.pages.page_len = 4096;
    sender.args.pages.page_count = 2000;
    sender.args.options.timeout_ns = 200 * MS;
    weft_op late = submit(&sender);
    sender.args.options.timeout_ns = 0;
    weft_op canceled = submit(&sender);
    sleep_ms(20);
    CHECK_OK(weft_op_cancel(sender.box->endpoint, canceled));
    CHECK_STATUS(box_await(sender.box, canceled, patience_ms()).status, WEFT_ERR_CANCELED);
    CHECK_STATUS(box_await(sender.box, late, patience_ms()).status, WEFT_ERR_TIMED_OUT);
    set(team, AWAKE, 1);
    sender.args.pages.page_count = 3000;
    sender.args.pages.page_len = PAGE;
    sender.args.options.counter = sender.counters[1];
    weft_op next = submit(&sender);
    CHECK_OK(box_await(sender.box, next, 2 * patience_ms()).status);
    give_back(&sender);
    end_sender(team, &sender);
}

static void credits_survive_deadlines_and_cancels(void)
{
    run_pair(wakes_when_notified, gives_up);
}

static void loses_its_peer(struct team *team)
{
    struct target target = open_target(team);
    await_word(team, AWAKE);
    box_take(target.box, WEFT_COMPLETION_PEER_DOWN, patience_ms());
    end_target(team, &target);
}

static void leaves(struct team *team)
{
    struct sender sender = open_sender(team);
    weft_op id = submit(&sender);
    sleep_ms(50);
    CHECK_OK(weft_peer_disconnect(sender.box->endpoint, sender.peer));
    CHECK_STATUS(box_await(sender.box, id, patience_ms()).status, WEFT_ERR_CANCELED);
    box_take(sender.box, WEFT_COMPLETION_PEER_DOWN, patience_ms());
    set(team, AWAKE, 1);
    give_back(&sender);
    end_sender(team, &sender);
}

static void disconnect(void)
{
    run_pair(loses_its_peer, leaves);
}

static const struct test tests[] = {
    {"one_sender_loses_no_count", "any", one_sender_loses_no_count},
    {"credits_work_over_rails", "any", credits_work_over_rails},
    {"eight_senders_share_credits", "any", eight_senders_share_credits},
    {"credits_serve_lists_and_both_classes", "any", credits_serve_lists_and_both_classes},
    {"peer_without_credits_delays_no_other", "any", peer_without_credits_delays_no_other},
    {"credits_survive_deadlines_and_cancels", "any", credits_survive_deadlines_and_cancels},
    {"disconnect", "any", disconnect},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
