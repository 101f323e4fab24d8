/* Silent peers: which are lost, when, and which are not. */
#include "harness.h"

#define SHORT (2 * SECOND)

static struct box *box_with(uint64_t liveness_ns, uint32_t progress)
{
    weft_endpoint_config config = test_config();
    config.liveness_ns = liveness_ns;
    config.progress = progress;
    return box_of(open_with(&config));
}

static void must_be_up(struct box *box, weft_peer peer)
{
    weft_peer_properties known = WEFT_PEER_PROPERTIES_INIT;
    weft_completion down;
    if (box_try(box, WEFT_COMPLETION_PEER_DOWN, &down))
        FAIL("the peer is lost: %s", weft_status_name(down.status));
    CHECK_OK(weft_peer_info(box->endpoint, peer, &known));
    CHECK_EQ(known.up, 1);
}

/* Fails if the peer is lost within this time. */
static void must_stay_up(struct box *box, weft_peer peer, uint64_t ms)
{
    for (uint64_t until = now_ns() + ms * MS; now_ns() < until;) {
        box_pump(box, 20);
        must_be_up(box, peer);
    }
}

/*
 * The peer falls silent at `silent_ns`, and its last frame was up to 1 s earlier, or more on a loaded machine:
 * `judged_ns` says since when that is known.
 */
static void must_be_lost(struct box *box, uint64_t judged_ns, uint64_t silent_ns, uint64_t liveness_ns)
{
    weft_completion down = box_take(box, WEFT_COMPLETION_PEER_DOWN, patience_ms());
    uint64_t kept_waiting = silent_ns - judged_ns - canary_ns(judged_ns, silent_ns);
    CHECK_STATUS(down.status, WEFT_ERR_PEER_LOST);
    if (down.done_ns - silent_ns + kept_waiting < liveness_ns - 1200 * MS)
        FAIL("the peer was lost after %" PRIu64 " ms", (down.done_ns - silent_ns) / MS);
    CHECK_WITHIN(silent_ns, down.done_ns, 2 * liveness_ns);
}

/* ---- Stopped ---- */

static void until_the_end(struct team *team)
{
    struct box *box = box_with(0, WEFT_PROGRESS_THREADS);
    join(team, 0, box);
    join(team, 0, box);
    sleep_ms(60 * 1000); /* it is killed */
}

/* Nothing is in flight: one of our endpoints loses the peer, and the other, configured not to, does not. */
static void outlives_the_stopped(struct team *team)
{
    uint64_t judged = judged_from();
    struct box *strict = box_with(SHORT, WEFT_PROGRESS_THREADS);
    struct box *patient = box_with(WEFT_LIVENESS_OFF, WEFT_PROGRESS_THREADS);
    join(team, 1, strict);
    weft_peer stays = join(team, 1, patient);
    sleep_ms(300);
    uint64_t begin = now_ns();
    stop_process(pid_of(team, 1));
    must_be_lost(strict, judged, begin, SHORT);
    must_stay_up(patient, stays, 1500);
    kill_member(team, 1);
    box_close(strict);
    box_close(patient);
}

static void stopped_idle_peer_is_lost_in_time(void)
{
    run_pair(outlives_the_stopped, until_the_end);
}

/* A process that was stopped itself has received nothing, and draws no conclusion from that. */
static void is_stopped_for_a_while(struct team *team)
{
    struct box *box = box_with(SHORT, WEFT_PROGRESS_THREADS);
    weft_peer peer = join(team, 0, box);
    meet(team, 0, box);
    meet(team, 0, box); /* it is stopped in between */
    must_stay_up(box, peer, 1000);
    meet(team, 0, box);
    box_close(box);
}

static void stops_it_for_a_while(struct team *team)
{
    struct box *box = box_with(0, WEFT_PROGRESS_THREADS);
    weft_peer peer = join(team, 1, box);
    meet(team, 1, box);
    stop_process(pid_of(team, 1));
    must_stay_up(box, peer, 5000);
    CHECK(kill(pid_of(team, 1), SIGCONT) == 0);
    meet(team, 1, box);
    CHECK_OK(box_await(box, send_now(box, peer, "hello", 5), patience_ms()).status);
    must_stay_up(box, peer, 500);
    meet(team, 1, box);
    box_close(box);
}

static void endpoint_stopped_for_5_s_keeps_its_peers(void)
{
    run_pair(stops_it_for_a_while, is_stopped_for_a_while);
}

/* ---- Not polling ---- */

static void polls_now_and_then(struct team *team)
{
    struct box *box = box_with(SHORT, WEFT_PROGRESS_MANUAL);
    weft_peer peer = join(team, 0, box);
    meet(team, 0, box);
    sleep_ms(2500);
    must_stay_up(box, peer, 500); /* time without polling does not count */
    meet(team, 0, box);
    meet(team, 0, NULL); /* without polling, until it is lost */
    box_close(box);
}

static void receives_now_and_then(struct team *team)
{
    const uint64_t liveness = 5 * SECOND;
    uint64_t judged = judged_from();
    struct box *box = box_with(liveness, WEFT_PROGRESS_THREADS);
    weft_peer peer = join(team, 1, box);
    meet(team, 1, box);
    meet(team, 1, box);
    must_be_up(box, peer);
    must_be_lost(box, judged, now_ns(), liveness);
    meet(team, 1, NULL);
    box_close(box);
}

static void peer_that_does_not_poll_is_lost_in_time(void)
{
    run_pair(receives_now_and_then, polls_now_and_then);
}

/* ---- Alive ---- */

static uint64_t frames_of(weft_endpoint *endpoint)
{
    weft_endpoint_properties own = WEFT_ENDPOINT_PROPERTIES_INIT;
    uint64_t sum = 0;
    CHECK_OK(weft_endpoint_info(endpoint, &own, NULL));
    for (uint32_t i = 0; i < own.rails; i++) {
        weft_rail_statistics rail = WEFT_RAIL_STATISTICS_INIT;
        CHECK_OK(weft_rail_info(endpoint, i, NULL, &rail));
        sum += rail.frames_sent;
    }
    return sum;
}

/* With the shortest limit, an idle peer costs a few frames per second. */
static void idle_peers_stay_connected(void)
{
    weft_endpoint_config config = test_config();
    config.liveness_ns = SECOND;
    struct duo duo = duo_open_with(4096, &config);
    sleep_ms(500);
    uint64_t before = frames_of(duo.a->endpoint);
    must_stay_up(duo.a, duo.a_to_b, 3500);
    must_be_up(duo.b, duo.b_to_a);
    uint64_t frames = frames_of(duo.a->endpoint) - before;
    printf("%" PRIu64 " frames in 3.5 s\n", frames);
    CHECK(frames <= 40);
    duo_close(&duo);
}

/* ---- Cut off, in virtual time ---- */

static struct box *simulated(const char *name)
{
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    config.fabric = name;
    config.progress = WEFT_PROGRESS_MANUAL;
    return box_of(open_with(&config));
}

/* All links go silent after 1 s: by default the two lose each other after 2 minutes. */
static void cut_off_idle_peer_is_lost_after_two_minutes(void)
{
    char blob[8192];
    weft_peer peer;
    weft_completion c, down[2];
    setenv("WEFT_SIM_FAULTS", "1000000 * down", 1);
    struct box *box[2];
    for (int i = 0; i < 2; i++)
        box[i] = simulated("sim:like=tcp:rails=2:clock=virtual:world=cut");
    size_t n = address_of(box[1]->endpoint, blob, sizeof blob);
    CHECK_OK(weft_peer_connect(box[0]->endpoint, blob, n, NULL, &peer));
    while (!box_try(box[0], WEFT_COMPLETION_PEER_UP, &c)) {
        box_pump(box[0], 1);
        box_pump(box[1], 1);
    }
    CHECK_OK(c.status);
    uint64_t begin = c.done_ns, lost = 0;
    for (uint64_t i = 0; lost != 3; i++) {
        CHECK(i < 400000);
        for (int side = 0; side < 2; side++) {
            box_pump(box[side], 1);
            if (!(lost >> side & 1) && box_try(box[side], WEFT_COMPLETION_PEER_DOWN, &down[side]))
                lost |= UINT64_C(1) << side;
        }
    }
    CHECK_STATUS(down[0].status, WEFT_ERR_PEER_LOST);
    CHECK(down[0].done_ns > begin + 115 * SECOND && down[0].done_ns < begin + 135 * SECOND);
    box_close(box[0]);
    box_close(box[1]);
}

static const struct test tests[] = {
    {"stopped_idle_peer_is_lost_in_time", "tcp,host timed", stopped_idle_peer_is_lost_in_time},
    {"endpoint_stopped_for_5_s_keeps_its_peers", "tcp,host", endpoint_stopped_for_5_s_keeps_its_peers},
    {"peer_that_does_not_poll_is_lost_in_time", "tcp,host,sim:like=efa timed", peer_that_does_not_poll_is_lost_in_time},
    {"idle_peers_stay_connected", "tcp,host,sim:like=efa,sim:like=verbs", idle_peers_stay_connected},
    {"cut_off_idle_peer_is_lost_after_two_minutes", "once",
     cut_off_idle_peer_is_lost_after_two_minutes},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
