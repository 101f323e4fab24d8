/*
 * Rails fail and come back under a stream of transfers between two hosts, of which
 * every byte is looked at. Both sides use their memory again as soon as they may:
 *
 *   - The sender refills the source at the completion of a write; the target must
 *     have the content of before.
 *   - The target refills its pages at the notification, and looks later whether they
 *     are as it left them. So does the sender with the destinations of its reads.
 *
 * Then the target says so in a message, and the place is used again. Notifications
 * must arrive once, and messages of both sides in their order.
 */
#include "lab.h"

#define RAILS 4
#define PAGE (64 * KIB)
#define PLACE MIB
#define PLACES 160 /* for writes */
#define SHELF 8   /* for reads */
#define ROUNDS 4096

/* Indexes of the board. */
enum { GO, NOW, OVER, USED_FROM, HELD_MS, TRACED };

/* ---- Addresses ---- */

/* The contents that a write brings to a slot, that the target leaves there, and that reads find. */
static uint64_t brought(uint64_t place, uint64_t round)
{
    return mix(place << 32 | round) ^ 1;
}

static uint64_t left(uint64_t place, uint64_t round)
{
    return ~brought(place, round);
}

static uint64_t shelved(uint64_t place)
{
    return mix(~place);
}

static void must_be(const uint8_t *bytes, uint64_t seed, const char *what, uint64_t place, uint64_t round)
{
    int64_t at = differs_random(bytes, PLACE, seed);
    if (at >= 0)
        FAIL("place %" PRIu64 ", round %" PRIu64 ": byte %" PRId64 " is not %s", place, round, at, what);
}

/* Slots that stay unused for a while, oldest first. */
struct held {
    struct item {
        uint64_t place, round, since_ns;
    } items[PLACES + SHELF];
    size_t first, count;
};

static void hold(struct held *held, uint64_t place, uint64_t round)
{
    CHECK(held->count < COUNT(held->items));
    held->items[(held->first + held->count++) % COUNT(held->items)] = (struct item){place, round, now_ns()};
}

static bool release(struct held *held, uint64_t ms, struct item *out)
{
    *out = held->items[held->first];
    if (held->count == 0 || now_ns() < out->since_ns + ms * MS)
        return false;
    held->first = (held->first + 1) % COUNT(held->items);
    held->count--;
    return true;
}

/* ---- What happens to rails ---- */

struct seen {
    uint64_t downs, ups;
};

static bool is_of_rail(const weft_completion *c, struct seen *seen)
{
    if (c->kind == WEFT_COMPLETION_RAIL_DOWN) {
        CHECK_STATUS(c->status, WEFT_ERR_RAIL_LOST);
        CHECK(c->rail < RAILS && c->notify == 0);
        seen->downs++;
    } else if (c->kind == WEFT_COMPLETION_RAIL_UP) {
        CHECK_OK(c->status);
        seen->ups++;
    }
    return c->kind == WEFT_COMPLETION_RAIL_DOWN || c->kind == WEFT_COMPLETION_RAIL_UP;
}

static uint64_t carried(weft_endpoint *endpoint, uint32_t rail)
{
    weft_rail_statistics done = WEFT_RAIL_STATISTICS_INIT;
    CHECK_OK(weft_rail_info(endpoint, rail, NULL, &done));
    return done.bytes_written + done.bytes_read;
}

/* The index of a host's rail: rails may have been found in any order. */
static uint32_t index_of(weft_endpoint *endpoint, int rail)
{
    char name[16];
    snprintf(name, sizeof name, "rail%d", rail);
    for (uint32_t i = 0; i < RAILS; i++) {
        weft_rail_properties properties = WEFT_RAIL_PROPERTIES_INIT;
        CHECK_OK(weft_rail_info(endpoint, i, &properties, NULL));
        if (strcmp(properties.name, name) == 0)
            return i;
    }
    FAIL("no %s here", name);
}

/* The values that must not grow. */
struct held_by_process {
    int fds, threads;
    long rss_kb;
};

static struct held_by_process held_by_process(void)
{
    long pages = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file != NULL && fscanf(file, "%ld %ld", &pages, &resident) == 2);
    fclose(file);
    return (struct held_by_process){open_fds(), running_threads(), resident * (sysconf(_SC_PAGESIZE) / 1024)};
}

static void must_not_have_grown(const struct held_by_process *before, const char *who)
{
    struct held_by_process now = held_by_process();
    /* A new lane has 2; and where both sides reconnect at once, both connections stay. */
    int most = before->fds + 2 + RAILS;
    for (int i = 0; i < 100 && now.fds > most; i++) { /* connections that were just closed */
        sleep_ms(50);
        now = held_by_process();
    }
    printf("%s: descriptors %d -> %d, threads %d -> %d, resident %ld -> %ld KiB\n", who, before->fds, now.fds,
           before->threads, now.threads, before->rss_kb, now.rss_kb);
    CHECK(now.fds <= most);
    CHECK_EQ(now.threads, before->threads);
    CHECK(now.rss_kb < before->rss_kb + 32 * 1024); /* a lane has some 20 MiB */
}

/* ---- The target ---- */

struct target {
    struct team *team;
    struct box *box;
    weft_peer peer;
    uint8_t *bytes; /* places, then the shelf */
    uint8_t notified[PLACES][ROUNDS];
    struct held held;
    struct seen seen;
    uint64_t heard, said;
};

static void target_arrives(struct target *t, uint64_t value)
{
    uint64_t place = value >> 32, round = (uint32_t)value;
    CHECK(place < PLACES && round < ROUNDS);
    CHECK_EQ(t->notified[place][round]++, 0);
    uint8_t *bytes = t->bytes + place * PLACE;
    must_be(bytes, brought(place, round), "what was written", place, round);
    fill_random(bytes, PLACE, left(place, round));
    hold(&t->held, place, round);
}

static void target_takes(struct target *t, const weft_completion *c)
{
    if (is_of_rail(c, &t->seen))
        return;
    switch (c->kind) {
    case WEFT_COMPLETION_NOTIFICATION:
        target_arrives(t, c->notify);
        break;
    case WEFT_COMPLETION_MESSAGE:
        CHECK_EQ(c->bytes, sizeof t->heard);
        CHECK_EQ(*(const uint64_t *)c->data, t->heard++);
        CHECK_OK(weft_message_release(t->box->endpoint, c->op));
        break;
    case WEFT_COMPLETION_SEND:
        CHECK_OK(c->status);
        break;
    default:
        FAIL("a completion of kind %d, %s", c->kind, weft_status_name(c->status));
    }
}

static void take_all(struct box *box, void (*take)(void *, const weft_completion *), void *argument)
{
    box_pump(box, 5);
    for (size_t i = 0; i < box->count; i++)
        take(argument, &box->items[i]);
    box->count = 0;
}

static void target_takes_any(void *argument, const weft_completion *c)
{
    target_takes(argument, c);
}

static void target_frees(struct target *t)
{
    struct item item;
    while (release(&t->held, t->team->board->word[HELD_MS], &item)) {
        must_be(t->bytes + item.place * PLACE, left(item.place, item.round), "as the target left it", item.place,
                item.round);
        uint64_t words[2] = {t->said++, item.place << 32 | item.round};
        send_now(t->box, t->peer, words, sizeof words);
    }
}

static void target(struct team *team)
{
    static struct target t;
    uint64_t len = (PLACES + SHELF) * PLACE;
    lab_enter(RIGHT);
    t = (struct target){.team = team, .box = box_of(lab_endpoint()), .bytes = map_bytes(len)};
    memset(t.bytes, 0, len);
    for (uint64_t place = 0; place < SHELF; place++)
        fill_random(t.bytes + (PLACES + place) * PLACE, PLACE, shelved(place));
    meet(team, 0, NULL); /* all rails are open */
    t.peer = join(team, 0, t.box);
    give_memory(team, 0, register_one(t.box->endpoint, t.bytes, len));
    struct held_by_process before = {0};
    while (!team->board->word[OVER]) {
        take_all(t.box, target_takes_any, &t);
        target_frees(&t);
        if (before.fds == 0 && team->board->word[TRACED])
            before = held_by_process();
    }
    while (t.held.count > 0) {
        take_all(t.box, target_takes_any, &t);
        target_frees(&t);
    }
    must_not_have_grown(&before, "target");
    meet(team, 0, t.box);
    box_close(t.box);
}

/* ---- The sender ---- */

struct sender {
    struct team *team;
    struct box *box;
    weft_peer peer;
    weft_memory *memory;
    weft_remote_memory *remote;
    uint8_t *bytes;
    struct work {
        uint64_t round;
        bool written, freed, idle;
    } places[PLACES + SHELF];
    struct held held; /* of reads */
    struct seen seen;
    uint64_t heard, said, writes, reads, slowest_ns;
    uint64_t used; /* places */
    bool stopping;
};

static void sender_submits(struct sender *s, uint64_t place)
{
    struct work *work = &s->places[place];
    uint32_t pages[PLACE / 4096];
    struct pages_request args = PAGES_REQUEST_INIT;
    args.pages.page_len = place < PLACES && place % 3 == 0 ? 4096 : PAGE;
    args.pages.page_count = PLACE / args.pages.page_len;
    for (uint32_t i = 0; i < args.pages.page_count; i++)
        pages[i] = (uint32_t)(place * args.pages.page_count + i);
    args.local = s->memory;
    args.remote = s->remote;
    args.pages.local.pages = args.pages.remote.pages = pages;
    args.options.user_data = (void *)(uintptr_t)place;
    work->idle = work->written = work->freed = false;
    if (place >= PLACES) {
        CHECK_OK(submit_read_pages(s->box->endpoint, &args, NULL));
        return;
    }
    CHECK(work->round < ROUNDS);
    args.options.flags = WEFT_NOTIFY;
    args.options.notify = place << 32 | work->round;
    CHECK_OK(submit_write_pages(s->box->endpoint, &args, NULL));
    uint64_t number = s->said++;
    send_now(s->box, s->peer, &number, sizeof number);
}

static void sender_is_done(struct sender *s, const weft_completion *c)
{
    uint64_t place = (uintptr_t)c->user_data;
    struct work *work = &s->places[place];
    uint8_t *bytes = s->bytes + place * PLACE;
    CHECK_OK(c->status);
    if (c->done_ns - c->submit_ns > s->slowest_ns)
        s->slowest_ns = c->done_ns - c->submit_ns;
    if (c->kind == WEFT_COMPLETION_READ) {
        must_be(bytes, shelved(place - PLACES), "what was read", place, work->round);
        fill_random(bytes, PLACE, left(place, work->round));
        hold(&s->held, place, work->round);
        s->reads++;
        return;
    }
    CHECK(!work->written);
    fill_random(bytes, PLACE, brought(place, work->round + 1));
    work->written = true;
    s->writes++;
}

static void sender_takes(void *argument, const weft_completion *c)
{
    struct sender *s = argument;
    if (is_of_rail(c, &s->seen))
        return;
    switch (c->kind) {
    case WEFT_COMPLETION_WRITE:
    case WEFT_COMPLETION_READ:
        sender_is_done(s, c);
        break;
    case WEFT_COMPLETION_SEND:
        CHECK_OK(c->status);
        break;
    case WEFT_COMPLETION_MESSAGE: {
        const uint64_t *words = c->data;
        CHECK_EQ(c->bytes, 16);
        CHECK_EQ(words[0], s->heard++);
        struct work *work = &s->places[words[1] >> 32];
        CHECK_EQ((uint32_t)words[1], work->round);
        CHECK(!work->freed);
        work->freed = true;
        CHECK_OK(weft_message_release(s->box->endpoint, c->op));
        break;
    }
    default:
        FAIL("a completion of kind %d, %s", c->kind, weft_status_name(c->status));
    }
}

/* Gives free slots their next transfer; returns how many are in use. */
static size_t sender_goes_on(struct sender *s)
{
    struct item item;
    size_t busy = 0;
    take_all(s->box, sender_takes, s);
    while (release(&s->held, s->team->board->word[HELD_MS], &item)) {
        must_be(s->bytes + item.place * PLACE, left(item.place, item.round), "as the sender left it", item.place,
                item.round);
        s->places[item.place].written = s->places[item.place].freed = true;
    }
    for (uint64_t place = 0; place < s->used; place++) {
        struct work *work = &s->places[place];
        if (work->written && work->freed) {
            work->round++;
            work->written = work->freed = false;
            work->idle = true;
        }
        if (work->idle && !s->stopping)
            sender_submits(s, place);
        busy += !work->idle;
    }
    return busy;
}

static void sender_opens(struct sender *s)
{
    uint64_t len = (PLACES + SHELF) * PLACE;
    weft_endpoint_properties own = WEFT_ENDPOINT_PROPERTIES_INIT;
    lab_enter(LEFT);
    s->box = box_of(lab_endpoint());
    CHECK_OK(weft_endpoint_info(s->box->endpoint, &own, NULL));
    CHECK_EQ(own.rails, RAILS);
    s->used = PLACES + SHELF;
    s->bytes = map_bytes(len);
    for (uint64_t place = 0; place < PLACES + SHELF; place++) {
        fill_random(s->bytes + place * PLACE, PLACE, brought(place, 0));
        s->places[place].idle = true;
    }
    s->memory = register_one(s->box->endpoint, s->bytes, len);
    meet(s->team, 1, NULL);
    meet(s->team, 2, NULL); /* the hand may take links down now */
    meet(s->team, 2, NULL);
    s->peer = join(s->team, 1, s->box);
    s->remote = take_memory(s->team, 1, s->box, s->peer);
}

static void sender(struct team *team)
{
    static struct sender s;
    s = (struct sender){.team = team};
    sender_opens(&s);
    /* It starts with the maximum number, so that its memory does not grow. */
    uint64_t warm_ns = now_ns() + SECOND;
    struct held_by_process before = {0};
    while (!team->board->word[NOW]) {
        sender_goes_on(&s);
        if (!team->board->word[GO] && now_ns() > warm_ns && s.writes > PLACES) {
            (void)judged_from(); /* its thread counts, too */
            before = held_by_process();
            team->board->word[TRACED] = 1;
            team->board->word[GO] = 1;
        }
    }
    /* All links are up: the rail must be used. */
    uint32_t rail = index_of(s.box->endpoint, (int)team->board->word[USED_FROM]);
    uint64_t bytes = carried(s.box->endpoint, rail), begin = judged_from();
    while (carried(s.box->endpoint, rail) < bytes + 2 * MIB) {
        sender_goes_on(&s);
        CHECK_WITHIN(begin, now_ns(), 10 * SECOND);
    }
    uint64_t again_ms = (now_ns() - begin) / MS;
    for (uint64_t more = now_ns() + SECOND; now_ns() < more;)
        sender_goes_on(&s);
    s.stopping = true;
    while (sender_goes_on(&s) > 0)
        if (now_ns() > begin + 2 * patience_ms() * MS)
            FAIL("not all transfers have ended");
    team->board->word[OVER] = 1;
    must_not_have_grown(&before, "sender");
    meet(team, 1, s.box);
    box_close(s.box);
    printf("%" PRIu64 " writes, %" PRIu64 " reads, slowest %" PRIu64 " ms; RAIL_DOWN %" PRIu64 ", RAIL_UP %" PRIu64
           "; used again after %" PRIu64 " ms\n",
           s.writes, s.reads, s.slowest_ns / MS, s.seen.downs, s.seen.ups, again_ms);
}

/* ---- The process that moves the links ---- */

static void hand_begins(struct team *team, uint64_t held_ms)
{
    team->board->word[HELD_MS] = held_ms;
    meet(team, 0, NULL);
}

static void hand_waits(struct team *team)
{
    meet(team, 0, NULL);
    while (!team->board->word[GO])
        sleep_ms(5);
}

/* All links are up; `rail` must be used from now on. */
static void hand_ends(struct team *team, int rail)
{
    team->board->word[USED_FROM] = (uint64_t)rail;
    team->board->word[NOW] = 1;
}

static void stream(role hand)
{
    const role roles[] = {sender, target, hand};
    run_team(3, roles);
}

static void once(struct team *team)
{
    hand_begins(team, 1000);
    hand_waits(team);
    link_down(1);
    sleep_ms(2000);
    link_up(1);
    hand_ends(team, 1);
}

static void flaps(struct team *team)
{
    const char *seconds = getenv("WEFT_LAB_SECONDS");
    hand_begins(team, 1000);
    hand_waits(team);
    for (uint64_t end = now_ns() + (seconds ? (uint64_t)atoi(seconds) : 5) * SECOND; now_ns() < end;) {
        link_down(2);
        sleep_ms(300);
        link_up(2);
        sleep_ms(300);
    }
    hand_ends(team, 2);
}

static void most(struct team *team)
{
    hand_begins(team, 1000);
    hand_waits(team);
    for (int rail = 1; rail < RAILS; rail++)
        link_down(rail);
    sleep_ms(2000);
    for (int rail = 1; rail < RAILS; rail++)
        link_up(rail);
    hand_ends(team, 3);
}

static void from_the_start(struct team *team)
{
    hand_begins(team, 1000);
    link_down(3);
    hand_waits(team);
    sleep_ms(500);
    link_up(3);
    hand_ends(team, 3);
}

/* In one direction only; the only sign is that nothing comes back. */
static void silent(struct team *team, enum side from)
{
    hand_begins(team, 1000);
    hand_waits(team);
    link_loses(1, from);
    sleep_ms(2000);
    link_heals(1, from);
    hand_ends(team, 1);
}

static void data_lost(struct team *team)
{
    silent(team, LEFT);
}

static void answers_lost(struct team *team)
{
    silent(team, RIGHT);
}

/* Bytes in the kernel's buffers arrive when the link is back. The last ones are checked 5 s later. */
static void ghosts(struct team *team)
{
    hand_begins(team, 2500);
    hand_waits(team);
    for (int rail = 0; rail < RAILS; rail++) {
        link_down(rail);
        sleep_ms(800);
        link_up(rail);
        sleep_ms(1000);
    }
    team->board->word[HELD_MS] = 5000;
    hand_ends(team, 0);
}

static void failed_rail_comes_back(void)
{
    stream(once);
}

static void lab_flapping_rail_loses_nothing(void)
{
    stream(flaps);
}

static void three_of_four_rails_fail(void)
{
    stream(most);
}

static void late_rail_is_used(void)
{
    stream(from_the_start);
}

static void silent_loss_of_data_fails_the_rail(void)
{
    stream(data_lost);
}

static void silent_loss_of_acknowledgements_fails_the_rail(void)
{
    stream(answers_lost);
}

static void no_write_lands_after_its_completion(void)
{
    stream(ghosts);
}

static const struct test tests[] = {
    {"failed_rail_comes_back", "lab", failed_rail_comes_back},
    {"lab_flapping_rail_loses_nothing", "lab", lab_flapping_rail_loses_nothing},
    {"three_of_four_rails_fail", "lab", three_of_four_rails_fail},
    {"late_rail_is_used", "lab", late_rail_is_used},
    {"silent_loss_of_data_fails_the_rail", "lab", silent_loss_of_data_fails_the_rail},
    {"silent_loss_of_acknowledgements_fails_the_rail", "lab", silent_loss_of_acknowledgements_fails_the_rail},
    {"no_write_lands_after_its_completion", "lab", no_write_lands_after_its_completion},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
