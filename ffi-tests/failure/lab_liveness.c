/* Idle peers on two hosts, one of which is cut off: each loses the other. */
#include "lab.h"

#define RAILS 4
#define ALLOWED (2 * SECOND)

/* Indexes of the board. */
enum { CUT_NS, LOST, HEALED };

static struct box *box_on(enum side side)
{
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    lab_enter(side);
    config.fabric = "tcp";
    config.liveness_ns = ALLOWED;
    return box_of(open_with(&config));
}

static weft_completion next_of_peer(struct box *box, weft_completion_kind kind)
{
    weft_completion rail;
    weft_completion c = box_take(box, kind, patience_ms());
    while (box_try(box, WEFT_COMPLETION_RAIL_DOWN, &rail) || box_try(box, WEFT_COMPLETION_RAIL_UP, &rail)) {
    }
    return c;
}

/* Idle for longer than allowed: no peer is lost. Then nothing gets through. */
static void is_alone(struct team *team, struct box *box)
{
    weft_completion down;
    uint64_t judged = judged_from();
    while (team->board->word[CUT_NS] == 0) {
        box_pump(box, 20);
        CHECK(!box_try(box, WEFT_COMPLETION_PEER_DOWN, &down));
    }
    down = next_of_peer(box, WEFT_COMPLETION_PEER_DOWN);
    uint64_t cut = team->board->word[CUT_NS], kept_waiting = cut - judged - canary_ns(judged, cut);
    CHECK_STATUS(down.status, WEFT_ERR_PEER_LOST);
    printf("lost after %" PRIu64 " ms\n", (down.done_ns - cut) / MS);
    CHECK(down.done_ns - cut + kept_waiting > ALLOWED - 1200 * MS);
    CHECK_WITHIN(cut, down.done_ns, 2 * ALLOWED);
    team->board->word[LOST]++;
    while (team->board->word[HEALED] == 0)
        box_pump(box, 20);
}

static void one_side(struct team *team, enum side side)
{
    struct box *box = box_on(side);
    join(team, 1 - team->rank, box);
    meet(team, 2, box);
    is_alone(team, box);
    join(team, 1 - team->rank, box);
    box_close(box);
}

static void left_side(struct team *team)
{
    one_side(team, LEFT);
}

static void right_side(struct team *team)
{
    one_side(team, RIGHT);
}

static void cuts_them_off(struct team *team)
{
    meet(team, 0, NULL);
    meet(team, 1, NULL);
    sleep_ms(2 * ALLOWED / MS);
    for (int rail = 0; rail < RAILS; rail++) {
        link_loses(rail, LEFT);
        link_loses(rail, RIGHT);
    }
    team->board->word[CUT_NS] = now_ns();
    while (team->board->word[LOST] < 2)
        sleep_ms(5);
    for (int rail = 0; rail < RAILS; rail++) {
        link_heals(rail, LEFT);
        link_heals(rail, RIGHT);
    }
    team->board->word[HEALED] = 1;
}

static void idle_host_is_lost_when_cut_off(void)
{
    const role roles[] = {left_side, right_side, cuts_them_off};
    run_team(3, roles);
}

static const struct test tests[] = {
    {"idle_host_is_lost_when_cut_off", "lab", idle_host_is_lost_when_cut_off},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
