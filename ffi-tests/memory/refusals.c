/* What the owner of a grant refuses: its peer's operation does not succeed, and others do not wait for it. */
#include "harness.h"

#define FABRICS "tcp,host,sim:like=tcp,sim:like=efa,sim:like=efa-direct,sim:like=verbs"
#define PAGE (4 * KIB)
#define LEN (1 * MIB)

static weft_status written(struct duo *duo, const struct range_request *args)
{
    weft_op id;
    weft_status status = submit_write(duo->a->endpoint, args, &id);
    return status != WEFT_OK ? status : await_both(duo, duo->a, id);
}

/* A notification or a count is thrown away, or its operation succeeds: of bytes, and of none. */
static void what_is_thrown_away_has_not_succeeded(void)
{
    enum { OWN, OTHERS, FORGED, REVOKED, TOKENS };
    struct duo duo = duo_granted(LEN), other = duo_granted(LEN);
    weft_grant_token tokens[TOKENS] = {grant_whole(&duo), grant_whole(&other)};
    weft_counter counter;
    weft_completion told;
    uint64_t counted = 0, expected = 0, notified = 0;
    weft_op id;
    CHECK_OK(weft_counter_create(duo.b->endpoint, &counter));
    tokens[FORGED] = tokens[OWN];
    tokens[FORGED].bytes[2] ^= 0x40;
    tokens[REVOKED] = grant_whole(&duo);
    CHECK_OK(weft_grant_revoke(duo.b->endpoint, &tokens[REVOKED], NULL, &id));
    CHECK_OK(await_both(&duo, duo.b, id));
    for (int i = 0; i < 6 * TOKENS; i++) {
        int which = i % TOKENS;
        struct range_request args = range_args(duo.a_memory, duo.b_of_a, i / TOKENS % 2 ? PAGE : 0);
        args.options.grant = tokens[which];
        int what = i / TOKENS / 2; /* a notification, a count, neither */
        args.options.flags = what == 0 ? WEFT_NOTIFY : 0;
        args.options.counter = what == 1 ? counter : 0;
        CHECK_STATUS(written(&duo, &args), which == OWN ? WEFT_OK : WEFT_ERR_REVOKED);
        notified += which == OWN && args.options.flags;
        expected += which == OWN && args.options.counter;
    }
    pump_both(&duo, 20);
    for (; notified > 0; notified--)
        CHECK(box_try(duo.b, WEFT_COMPLETION_NOTIFICATION, &told));
    CHECK(!box_try(duo.b, WEFT_COMPLETION_NOTIFICATION, &told));
    CHECK_OK(weft_counter_read(duo.b->endpoint, counter, &counted));
    CHECK_EQ(counted, expected);
    duo_close(&duo);
    duo_close(&other);
}

/* Refused notifications among others, several windows of them, in both directions of the acknowledgements. */
static void refusals_among_others_name_the_right_ones(void)
{
    enum { WRITES = 400 };
    static weft_op writes[WRITES];
    static int heard[WRITES];
    struct duo duo = duo_granted(LEN);
    weft_grant_token live = grant_whole(&duo), forged = live;
    weft_completion told;
    uint64_t seed = 11, notified = 0;
    forged.bytes[1] ^= 4;
    memset(heard, 0, sizeof heard);
    for (int i = 0; i < WRITES; i++) {
        struct range_request args = range_args(duo.a_memory, duo.b_of_a, 0);
        args.options.grant = i % 5 == 0 ? forged : live;
        args.options.flags = WEFT_NOTIFY;
        args.options.notify = (uint64_t)i;
        writes[i] = write_now(duo.a, &args);
        if (next_random(&seed) % 4 == 0)
            send_now(duo.b, duo.b_to_a, "x", 1); /* carries an acknowledgement */
    }
    for (int i = 0; i < WRITES; i++) {
        CHECK_STATUS(await_both(&duo, duo.a, writes[i]), i % 5 == 0 ? WEFT_ERR_REVOKED : WEFT_OK);
        notified += i % 5 != 0;
    }
    for (; notified > 0; notified--) {
        told = box_take(duo.b, WEFT_COMPLETION_NOTIFICATION, patience_ms());
        CHECK(told.notify < WRITES && told.notify % 5 != 0);
        CHECK_EQ(heard[told.notify]++, 0);
    }
    CHECK(!box_try(duo.b, WEFT_COMPLETION_NOTIFICATION, &told));
    duo_close(&duo);
}

/* More pieces than one frame names: all are reached, and nothing beside them. */
static void a_grant_of_many_pieces_is_known_whole(void)
{
    enum { PIECES = 1500, EACH = 64 };
    static uint32_t places[PIECES];
    struct duo duo = duo_granted(LEN);
    weft_grant_args granted = WEFT_GRANT_ARGS_INIT;
    for (uint32_t i = 0; i < PIECES; i++)
        places[i] = 2 * i;
    weft_page_side side = {.pages = places};
    granted.pages = &side;
    granted.page_len = EACH;
    granted.page_count = PIECES;
    struct range_request args = range_args(duo.a_memory, duo.b_of_a, EACH);
    CHECK_OK(weft_grant_create(duo.b_memory, duo.b_to_a, &granted, &args.options.grant));
    fill_random(duo.a_bytes, LEN, 1);
    for (uint64_t i = 0; i < 2 * PIECES; i += i % 2 ? 100 : 101) {
        args.local_offset = args.remote_offset = i * EACH;
        CHECK_STATUS(written(&duo, &args), i % 2 ? WEFT_ERR_REVOKED : WEFT_OK);
        CHECK_EQ(memcmp(duo.b_bytes + i * EACH, duo.a_bytes + i * EACH, EACH) == 0, i % 2 == 0);
    }
    weft_pages pages = WEFT_PAGES_INIT;
    pages.local = pages.remote = side;
    pages.page_len = EACH;
    pages.page_count = PIECES;
    weft_op id;
    CHECK_OK(weft_write_pages(duo.a->endpoint, duo.a_memory, duo.b_of_a, &pages, &args.options, &id));
    CHECK_OK(await_both(&duo, duo.a, id));
    places[PIECES - 1]++;
    CHECK_OK(weft_write_pages(duo.a->endpoint, duo.a_memory, duo.b_of_a, &pages, &args.options, &id));
    CHECK_STATUS(await_both(&duo, duo.a, id), WEFT_ERR_REVOKED);
    for (uint64_t i = 0; i < 2 * PIECES; i++)
        CHECK_EQ(memcmp(duo.b_bytes + i * EACH, duo.a_bytes + i * EACH, EACH) == 0, i % 2 == 0);
    duo_close(&duo);
}

/* ---- Others go on ---- */

/* A notification behind one whose grant was revoked comes, though the peer does not answer meanwhile. */
static void what_is_refused_holds_up_nothing(void)
{
    weft_endpoint_config config = test_config();
    config.progress = WEFT_PROGRESS_MANUAL;
    struct duo duo = duo_open_between(LEN, &config, &config);
    struct range_request first = range_args(duo.a_memory, duo.b_of_a, 0), second = first;
    weft_completion told;
    weft_op refused, other, id;
    first.options.grant = grant_whole(&duo);
    second.options.grant = grant_whole(&duo);
    CHECK_STATUS(written(&duo, &first), WEFT_OK); /* memory and grants are known */
    CHECK_STATUS(written(&duo, &second), WEFT_OK);
    first.options.flags = second.options.flags = WEFT_NOTIFY;
    second.options.notify = 7;
    refused = write_now(duo.a, &first);
    other = write_now(duo.a, &second);
    for (int i = 0; i < 20; i++)
        box_pump(duo.a, 0); /* its frames leave */
    CHECK_OK(weft_grant_revoke(duo.b->endpoint, &first.options.grant, NULL, &id));
    told = box_take(duo.b, WEFT_COMPLETION_NOTIFICATION, patience_ms());
    CHECK_EQ(told.notify, 7);
    CHECK_OK(await_both(&duo, duo.b, id));
    CHECK_STATUS(await_both(&duo, duo.a, refused), WEFT_ERR_REVOKED);
    CHECK_OK(await_both(&duo, duo.a, other));
    duo_close(&duo);
}

enum { OTHERS = 64, LATE = 4, LOOPS = 4 };

static int others_under_way;

/* Keeps other writes under way, and takes what has ended: how many of these; adds what else has ended to `late`. */
static uint64_t others_done(struct duo *duo, const struct range_request *other, int *late)
{
    uint64_t done = 0, wait = 1 * MS; /* the caller sleeps, as do workers that have nothing to do */
    weft_completion c;
    while (others_under_way < OTHERS && submit_write(duo->a->endpoint, other, NULL) == WEFT_OK)
        others_under_way++;
    for (; weft_queue_poll(weft_endpoint_queue(duo->a->endpoint), &c, 1, wait) > 0; wait = 0) {
        if (c.user_data == other->options.user_data) {
            CHECK_OK(c.status);
            others_under_way--;
            done++;
        } else {
            CHECK_ONE_OF(c.status, WEFT_OK, WEFT_ERR_REVOKED);
            (*late)++;
        }
    }
    while (weft_queue_poll(weft_endpoint_queue(duo->b->endpoint), &c, 1, 0) > 0)
        CHECK_OK(c.status);
    return done;
}

struct rate {
    uint64_t done, ns;
};

/* Other writes beside some whose grant is revoked: before their frames can arrive (`early`), or once they are done. */
static void others_beside_a_revoke(struct duo *duo, const struct range_request *other, bool early, struct rate *rate)
{
    struct range_request late = *other;
    uint64_t began = now_ns();
    int begun = 0, ended = 0;
    late.len = 0; /* their frames follow at once */
    late.options.grant = grant_whole(duo);
    late.options.user_data = NULL;
    while (begun < LATE && submit_write(duo->a->endpoint, &late, NULL) == WEFT_OK)
        begun++;
    if (early)
        CHECK_OK(weft_grant_revoke(duo->b->endpoint, &late.options.grant, NULL, NULL));
    while (ended < begun || now_ns() - began < 5 * MS)
        rate->done += others_done(duo, other, &ended);
    if (!early)
        CHECK_OK(weft_grant_revoke(duo->b->endpoint, &late.options.grant, NULL, NULL));
    rate->ns += now_ns() - began;
}

/* Frames of revoked grants arrive among those of other writes, while other processes want the processors. */
static void others_go_on_beside_refused_frames(void)
{
    const char *longer = getenv("WEFT_REFUSALS_MS");
    uint64_t ms = longer ? strtoull(longer, NULL, 10) : 300;
    struct rate rates[2] = {{0, 0}, {0, 0}};
    pid_t loops[LOOPS];
    for (int i = 0; i < LOOPS; i++) {
        loops[i] = fork();
        CHECK(loops[i] >= 0);
        while (loops[i] == 0)
            if (getppid() == 1)
                _exit(0);
    }
    struct duo duo = duo_granted(LEN);
    struct range_request other = range_args(duo.a_memory, duo.b_of_a, 8);
    other.options.grant = grant_whole(&duo);
    other.options.flags = WEFT_NOTIFY;
    other.options.user_data = &other;
    others_under_way = 0;
    for (uint64_t end = now_ns() + ms * MS; now_ns() < end;)
        for (int early = 0; early < 2; early++)
            others_beside_a_revoke(&duo, &other, early, &rates[early]);
    for (int i = 0; i < LOOPS; i++)
        kill(loops[i], SIGKILL);
    for (int i = 0; i < LOOPS; i++)
        waitpid(loops[i], NULL, 0);
    double without = (double)rates[0].done / (double)rates[0].ns, with = (double)rates[1].done / (double)rates[1].ns;
    printf("stalled_channel_share %.3f\n", with / without);
    printf("%.0f other writes a second beside revokes, %.0f beside those whose frames arrive late\n", without * 1e9, with * 1e9);
    duo_close(&duo);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        {"what_is_thrown_away_has_not_succeeded", FABRICS, what_is_thrown_away_has_not_succeeded},
        {"refusals_among_others_name_the_right_ones", FABRICS, refusals_among_others_name_the_right_ones},
        {"a_grant_of_many_pieces_is_known_whole", FABRICS, a_grant_of_many_pieces_is_known_whole},
        {"what_is_refused_holds_up_nothing", FABRICS, what_is_refused_holds_up_nothing},
        {"others_go_on_beside_refused_frames", "tcp,host checks", others_go_on_beside_refused_frames},
        {0},
    };
    return run_tests(argc, argv, tests);
}
