/* Many peers of one endpoint: a hundred that connect at once, a thousand connected. */
#include "harness.h"

#define CROWD 100
#define GROUPS 4
#define LEN (256 * KIB)
#define WINDOW (2 * SECOND)

/* Indexes of the board. */
enum { READY, GO, BEFORE, DURING, ALL_UP };

/* ---- A hundred at once ---- */

/* One process's part of the crowd, each an endpoint of its own. */
static void a_group(struct team *team)
{
    static struct box *boxes[CROWD / GROUPS];
    char address[8192];
    weft_endpoint_config config = test_config();
    config.progress = WEFT_PROGRESS_MANUAL;
    config.connect_timeout_ns = 3 * patience_ms() * MS;
    size_t len = hear(team, 0, NULL, address, sizeof address);
    for (size_t i = 0; i < COUNT(boxes); i++)
        boxes[i] = box_of(open_with(&config));
    team->board->word[READY]++;
    while (!team->board->word[GO])
        sleep_ms(1);
    for (size_t i = 0; i < COUNT(boxes); i++) {
        weft_peer peer;
        CHECK_OK(weft_peer_connect(boxes[i]->endpoint, address, len, NULL, &peer));
    }
    bool up[COUNT(boxes)] = {false};
    for (size_t left = COUNT(boxes); left > 0; sleep_ms(1)) { /* hogging the processors slows everyone */
        for (size_t i = 0; i < COUNT(boxes); i++) {
            weft_completion c;
            box_pump(boxes[i], 0);
            if (!up[i] && box_try(boxes[i], WEFT_COMPLETION_PEER_UP, &c)) {
                CHECK_OK(c.status);
                up[i] = true;
                left--;
            }
        }
    }
    team->board->word[READY]++;
    while (!team->board->word[ALL_UP]) {
        for (size_t i = 0; i < COUNT(boxes); i++)
            box_pump(boxes[i], 0);
        sleep_ms(2);
    }
    meet(team, 0, NULL);
    for (size_t i = 0; i < COUNT(boxes); i++)
        box_close(boxes[i]);
}

/* Writes 256 KiB every 2 ms, until the end. */
static void a_steady_writer(struct team *team)
{
    weft_completion down;
    struct box *box = box_of(open_endpoint());
    weft_peer peer = join(team, 0, box);
    weft_memory *memory = register_one(box->endpoint, map_bytes(LEN), LEN);
    weft_remote_memory *theirs = take_memory(team, 0, box, peer);
    struct range_request args = range_args(memory, theirs, LEN);
    meet(team, 0, box);
    while (!team->board->word[ALL_UP]) {
        uint64_t next = now_ns() + 2 * MS;
        CHECK_OK(box_await(box, write_now(box, &args), patience_ms()).status);
        CHECK(!box_try(box, WEFT_COMPLETION_PEER_DOWN, &down));
        team->board->word[team->board->word[GO] ? DURING : BEFORE]++;
        while (now_ns() < next)
            box_pump(box, 1);
    }
    meet(team, 0, box);
    box_close(box);
}

static void the_one_they_come_to(struct team *team)
{
    char address[8192];
    struct box *box = box_of(open_endpoint());
    weft_completion c;
    weft_memory *memory = register_one(box->endpoint, map_bytes(LEN), LEN);
    join(team, 1, box);
    give_memory(team, 1, memory);
    size_t len = address_of(box->endpoint, address, sizeof address);
    for (int group = 0; group < GROUPS; group++)
        tell(team, 2 + group, address, len);
    while (team->board->word[READY] < GROUPS)
        box_pump(box, 5);
    meet(team, 1, box);
    team->board->word[BEFORE] = 0;
    for (uint64_t until = now_ns() + WINDOW; now_ns() < until;)
        box_pump(box, 5);
    long before_kb = resident_kb();
    uint64_t begin = judged_from();
    team->board->word[GO] = 1;
    for (int up = 0; up < CROWD; up++)
        CHECK_OK(box_take(box, WEFT_COMPLETION_PEER_UP, patience_ms()).status);
    uint64_t all_up = now_ns(), took = all_up - begin;
    while (now_ns() < begin + WINDOW)
        box_pump(box, 5);
    uint64_t before = team->board->word[BEFORE], during = team->board->word[DURING];
    team->board->word[ALL_UP] = 1;
    while (team->board->word[READY] < 2 * GROUPS)
        box_pump(box, 5);
    printf("%d peers connected in %" PRIu64 " ms; %.3f of the writes went on; %ld bytes for each\n", CROWD, took / MS,
           (double)during / (double)before, (resident_kb() - before_kb) * 1024 / CROWD);
    CHECK_WITHIN(begin, all_up, 5 * SECOND); /* 2 s on a quiet machine: weft-bench's crowd_100_ms */
    for (int member = 1; member < team->size; member++)
        meet(team, member, box);
    while (box_try(box, WEFT_COMPLETION_PEER_DOWN, &c)) {
    }
    box_close(box);
}

static void hundred_peers_connect_at_once(void)
{
    const role roles[] = {the_one_they_come_to, a_steady_writer, a_group, a_group, a_group, a_group};
    run_team(COUNT(roles), roles);
}

/* ---- A thousand ---- */

#define THOUSAND 1000

struct one {
    weft_endpoint *endpoint;
    weft_peer of_hub; /* the hub's view of it */
    bool up, heard;
};

static void others_poll(struct one *all)
{
    for (int i = 0; i < THOUSAND; i++) {
        weft_completion got[4];
        int32_t n = weft_queue_poll(weft_endpoint_queue(all[i].endpoint), got, COUNT(got), 0);
        CHECK(n >= 0);
        for (int32_t k = 0; k < n; k++) {
            all[i].up |= got[k].kind == WEFT_COMPLETION_PEER_UP && got[k].status == WEFT_OK;
            if (got[k].kind != WEFT_COMPLETION_MESSAGE)
                continue;
            CHECK_EQ(*(const uint64_t *)got[k].data, (uint64_t)i);
            CHECK(!all[i].heard);
            all[i].heard = true;
            CHECK_OK(weft_message_release(all[i].endpoint, got[k].op));
        }
    }
}

static void connect_all(struct box *hub, struct one *all)
{
    for (int i = 0; i < THOUSAND; i++) {
        char address[8192];
        size_t len = address_of(all[i].endpoint, address, sizeof address);
        CHECK_OK(weft_peer_connect(hub->endpoint, address, len, NULL, &all[i].of_hub));
    }
    for (int left = THOUSAND; left > 0;) {
        weft_completion c;
        box_pump(hub, 0);
        others_poll(all);
        while (box_try(hub, WEFT_COMPLETION_PEER_UP, &c)) {
            CHECK_OK(c.status);
            left--;
        }
    }
}

static void *closes(void *box)
{
    box_close(box);
    return NULL;
}

/* All are endpoints of this process, without threads. */
static void endpoint_serves_a_thousand_peers(void)
{
    struct one *all = calloc(THOUSAND, sizeof *all);
    weft_endpoint_config config = test_config();
    CHECK(all != NULL);
    config.progress = WEFT_PROGRESS_MANUAL;
    config.connect_timeout_ns = 3 * patience_ms() * MS;
    struct box *hub = box_of(open_with(&config));
    config.max_transfers = config.queue_depth = 64;
    config.max_peers = 4;
    config.max_counters = 16;
    for (int i = 0; i < THOUSAND; i++)
        all[i].endpoint = open_with(&config);
    long before_kb = resident_kb();
    uint64_t begin = now_ns();
    connect_all(hub, all);
    printf("%d peers connected in %" PRIu64 " ms; %ld bytes for each, both ends\n", THOUSAND, (now_ns() - begin) / MS,
           (resident_kb() - before_kb) * 1024 / THOUSAND);
    for (uint64_t i = 0; i < THOUSAND; i++)
        send_now(hub, all[i].of_hub, &i, sizeof i);
    for (int left = THOUSAND; left > 0;) {
        weft_completion c;
        box_pump(hub, 0);
        others_poll(all);
        while (box_try(hub, WEFT_COMPLETION_SEND, &c)) {
            CHECK_OK(c.status);
            left--;
        }
    }
    pthread_t closer;
    CHECK(pthread_create(&closer, NULL, closes, hub) == 0);
    while (pthread_tryjoin_np(closer, NULL) != 0)
        others_poll(all); /* they answer its Close */
    for (int i = 0; i < THOUSAND; i++) {
        CHECK(all[i].heard);
        CHECK_OK(weft_endpoint_destroy(all[i].endpoint));
    }
    free(all);
}

static const struct test tests[] = {
    {"hundred_peers_connect_at_once", "tcp timed", hundred_peers_connect_at_once},
    {"endpoint_serves_a_thousand_peers", "sim:like=tcp,sim:like=efa long", endpoint_serves_a_thousand_peers},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
