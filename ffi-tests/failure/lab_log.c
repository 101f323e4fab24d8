/* What the log says of lanes between two hosts: small frames pass and others do not, or our own NIC has no link. */
#include "lab.h"

#define HOLE 1

/* Indexes of the board. */
enum { DONE };

static char all[65536];

static void keep(weft_log_level level, const char *component, const char *message, void *user_data)
{
    (void)level, (void)component, (void)user_data;
    size_t len = strlen(all);
    snprintf(all + len, sizeof all - len, "%s\n", message);
}

static bool says(const char *text)
{
    return strstr(all, text) != NULL;
}

static size_t lines(void)
{
    size_t count = 0;
    for (const char *at = all; (at = strchr(at, '\n')) != NULL; at++)
        count++;
    return count;
}

static struct box *box_on(enum side side, const char *rails, uint64_t timeout_ns)
{
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    lab_enter(side);
    config.fabric = "tcp";
    config.rails = rails;
    if (timeout_ns != 0)
        config.timeout_ns = timeout_ns;
    CHECK_OK(weft_log_set(WEFT_LOG_WARN, keep, NULL));
    return box_of(open_with(&config));
}

static void serves(struct team *team, const char *rails)
{
    struct box *box = box_on(RIGHT, rails, 0);
    join(team, 0, box);
    give_memory(team, 0, register_one(box->endpoint, map_bytes(16 * MIB), 16 * MIB));
    while (team->board->word[DONE] == 0)
        box_pump(box, 20);
    CHECK_OK(weft_log_set(WEFT_LOG_DEFAULT, NULL, NULL));
}

static void serves_all(struct team *team)
{
    serves(team, NULL);
}

static void serves_one(struct team *team)
{
    serves(team, "rail1");
}

static void ends(struct team *team, struct box *box)
{
    CHECK_OK(weft_log_set(WEFT_LOG_DEFAULT, NULL, NULL));
    printf("%s", all);
    team->board->word[DONE] = 1;
    box_close(box);
}

/* Others carry everything; the cause is named, and the lane is then tried more and more seldom. */
static void writes_by_all(struct team *team)
{
    struct box *box = box_on(LEFT, NULL, 0);
    rail_carries(HOLE, LEFT, 1400);
    weft_peer peer = join(team, 1, box);
    weft_memory *mine = register_one(box->endpoint, map_bytes(16 * MIB), 16 * MIB);
    struct range_request args = range_args(mine, take_memory(team, 1, box, peer), 16 * MIB);
    uint64_t since = now_ns(), named = 0;
    while (named == 0 || now_ns() - named < 8 * SECOND) {
        CHECK_OK(box_await(box, write_now(box, &args), patience_ms()).status);
        if (named == 0 && says("small frames pass, and nothing larger"))
            named = now_ns();
        CHECK(now_ns() - since < 60 * SECOND);
    }
    ends(team, box);
    CHECK(says("ping -M do -s 8972 10.77.1.2"));
    CHECK(lines() <= 6);
}

static void writes_by_one(struct team *team)
{
    struct box *box = box_on(LEFT, "rail1", 4 * SECOND);
    weft_peer peer = join(team, 1, box);
    weft_memory *mine = register_one(box->endpoint, map_bytes(16 * MIB), 16 * MIB);
    struct range_request args = range_args(mine, take_memory(team, 1, box, peer), 16 * MIB);
    rail_carries(HOLE, LEFT, 1400);
    weft_op op = write_now(box, &args);
    CHECK_STATUS(box_await(box, op, patience_ms()).status, WEFT_ERR_TIMED_OUT);
    for (uint64_t since = now_ns(); !says("after") || !says("ping -M do -s 8972 10.77.1.2"); box_pump(box, 10))
        CHECK(now_ns() - since < (uint64_t)patience_ms() * MS);
    ends(team, box);
}

static void loses_its_link(struct team *team)
{
    struct box *box = box_on(LEFT, NULL, 0);
    join(team, 1, box);
    rail_is(HOLE, LEFT, false);
    uint64_t since = now_ns();
    while (!says("no lane so far to")) {
        box_pump(box, 20);
        CHECK(now_ns() - since < (uint64_t)patience_ms() * MS);
    }
    rail_is(HOLE, LEFT, true);
    ends(team, box);
    CHECK(says("from rail1: rail1 has no link"));
}

static void lane_that_only_small_frames_pass_is_named(void)
{
    run_pair(writes_by_all, serves_all);
}

static void only_lane_that_only_small_frames_pass_is_named(void)
{
    run_pair(writes_by_one, serves_one);
}

static void own_link_that_is_down_is_named(void)
{
    run_pair(loses_its_link, serves_all);
}

static const struct test tests[] = {
    {"lane_that_only_small_frames_pass_is_named", "lab", lane_that_only_small_frames_pass_is_named},
    {"only_lane_that_only_small_frames_pass_is_named", "lab", only_lane_that_only_small_frames_pass_is_named},
    {"own_link_that_is_down_is_named", "lab", own_link_that_is_down_is_named},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
