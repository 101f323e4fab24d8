/* Keys that are replaced, to revoke memory from a peer that does not answer. */
#include "harness.h"

/* Their NICs do not check grants. */
#define FABRICS "sim:like=tcp,sim:like=efa,sim:like=efa-direct,sim:like=verbs"
#define EVERY "tcp,host," FABRICS
#define LEN (4 * MIB)

enum { WRITES = 8, NOTIFIED = 9 };

/* a is driven by its caller: while the caller does not poll, a is silent, and its posts are in flight. */
static struct duo duo_of_silent(void)
{
    weft_endpoint_config config = test_config(), manual = config;
    manual.progress = WEFT_PROGRESS_MANUAL;
    return duo_granted_between(LEN, &manual, &config);
}

static struct range_request under(const struct duo *duo, weft_grant_token token)
{
    struct range_request args = range_args(duo->a_memory, duo->b_of_a, LEN);
    args.options.grant = token;
    args.options.flags = WEFT_NOTIFY;
    args.options.notify = NOTIFIED;
    return args;
}

static void begin_writes(struct duo *duo, const struct range_request *args, weft_op *writes)
{
    CHECK_OK(await_both(duo, duo->a, write_now(duo->a, args)));
    for (int i = 0; i < WRITES; i++)
        writes[i] = write_now(duo->a, args);
}

static void forget_notifications(struct box *box)
{
    weft_completion told;
    while (box_try(box, WEFT_COMPLETION_NOTIFICATION, &told)) {
    }
}

/* b's pages are reused; then a continues. */
static void a_goes_on(struct duo *duo, const weft_op *writes, weft_status expected, weft_status or)
{
    weft_completion told;
    forget_notifications(duo->b);
    fill_random(duo->b_bytes, LEN, 5);
    for (int i = 0; i < WRITES; i++)
        CHECK_ONE_OF(await_both(duo, duo->a, writes[i]), expected, or);
    pump_both(duo, 50);
    CHECK_EQ(differs_random(duo->b_bytes, LEN, 5), -1);
    CHECK(!box_try(duo->b, WEFT_COMPLETION_NOTIFICATION, &told));
}

static void a_silent_writer_is_locked_out(void)
{
    struct duo duo = duo_of_silent();
    char blob[8192];
    size_t n = descriptor_of(duo.b_memory, blob, sizeof blob);
    weft_op writes[WRITES], id;
    fill_random(duo.a_bytes, LEN, 1);
    for (int round = 0; round < 3; round++) {
        struct range_request args = under(&duo, grant_whole(&duo));
        begin_writes(&duo, &args, writes);
        uint64_t began = judged_from();
        CHECK_OK(weft_grant_revoke(duo.b->endpoint, &args.options.grant, NULL, &id));
        CHECK_OK(box_await(duo.b, id, patience_ms()).status);
        printf("revoke_silent_ms %.3f\n", (double)(now_ns() - began) / 1e6);
        CHECK_WITHIN(began, now_ns(), 200 * MS);
        a_goes_on(&duo, writes, WEFT_ERR_REVOKED, WEFT_ERR_REVOKED);
        /* It has the new keys, */
        args = under(&duo, grant_whole(&duo));
        CHECK_OK(await_both(&duo, duo.a, write_now(duo.a, &args)));
        CHECK_EQ(differs_random(duo.b_bytes, LEN, 1), -1);
        /* which an older descriptor does not contain. */
        CHECK_OK(weft_remote_memory_release(duo.b_of_a));
        CHECK_OK(weft_remote_memory_import(duo.a->endpoint, duo.a_to_b, blob, n, &duo.b_of_a));
        args = under(&duo, args.options.grant);
        memset(duo.b_bytes, 0, LEN);
        CHECK_OK(await_both(&duo, duo.a, write_now(duo.a, &args)));
        CHECK_EQ(differs_random(duo.b_bytes, LEN, 1), -1);
    }
    duo_close(&duo);
}

/* It has more operations than it ends in one step, when it hears of the revoke and of new keys at once. */
static void a_silent_writer_of_many_operations_is_locked_out(void)
{
    enum { MANY = 200, PART = LEN / 16 };
    struct duo duo = duo_of_silent();
    weft_op writes[MANY], id;
    for (int round = 0; round < 3; round++) {
        struct range_request args = under(&duo, grant_whole(&duo));
        args.len = PART;
        CHECK_OK(await_both(&duo, duo.a, write_now(duo.a, &args)));
        for (int i = 0; i < MANY; i++) {
            args.remote_offset = (uint64_t)i * PART % LEN;
            writes[i] = write_now(duo.a, &args);
        }
        CHECK_OK(weft_grant_revoke(duo.b->endpoint, &args.options.grant, NULL, &id));
        CHECK_OK(box_await(duo.b, id, patience_ms()).status);
        forget_notifications(duo.b);
        fill_random(duo.b_bytes, LEN, 5);
        for (int i = 0; i < MANY; i++)
            CHECK_STATUS(await_both(&duo, duo.a, writes[i]), WEFT_ERR_REVOKED);
        pump_both(&duo, 50);
        CHECK_EQ(differs_random(duo.b_bytes, LEN, 5), -1);
    }
    duo_close(&duo);
}

/* Revokes of several grants of one silent peer, one after the other. */
static void revokes_of_a_silent_writer_do_not_wait_for_each_other(void)
{
    enum { GRANTS = 100 };
    struct duo duo = duo_of_silent();
    weft_grant_token tokens[GRANTS];
    weft_op writes[WRITES], revokes[GRANTS];
    for (int i = 0; i < GRANTS; i++)
        tokens[i] = grant_whole(&duo);
    struct range_request args = under(&duo, tokens[0]);
    begin_writes(&duo, &args, writes);
    for (int i = 0; i < GRANTS; i++) {
        CHECK_OK(weft_grant_revoke(duo.b->endpoint, &tokens[i], NULL, &revokes[i]));
        if (i % 10 == 0)
            sleep_ms(10);
    }
    for (int i = 0; i < GRANTS; i++)
        CHECK_OK(box_await(duo.b, revokes[i], patience_ms()).status);
    a_goes_on(&duo, writes, WEFT_ERR_REVOKED, WEFT_ERR_REVOKED);
    duo_close(&duo);
}

/* A revoke that takes longer than its operation goes on; the next call learns that it is done, once. */
static void revoke_is_done_after_its_operation_timed_out(void)
{
    struct duo duo = duo_of_silent();
    weft_op_options options = WEFT_OP_OPTIONS_INIT;
    weft_op writes[WRITES], id;
    struct range_request args = under(&duo, grant_whole(&duo));
    options.timeout_ns = 1000;
    begin_writes(&duo, &args, writes);
    CHECK_OK(weft_grant_revoke(duo.b->endpoint, &args.options.grant, &options, &id));
    CHECK_STATUS(box_await(duo.b, id, patience_ms()).status, WEFT_ERR_TIMED_OUT);
    box_pump(duo.b, 300);
    CHECK_OK(weft_grant_revoke(duo.b->endpoint, &args.options.grant, NULL, &id));
    CHECK_OK(box_await(duo.b, id, patience_ms()).status);
    a_goes_on(&duo, writes, WEFT_ERR_REVOKED, WEFT_ERR_REVOKED);
    CHECK_STATUS(weft_grant_revoke(duo.b->endpoint, &args.options.grant, NULL, &id), WEFT_ERR_HANDLE);
    duo_close(&duo);
}

/* After PEER_DOWN nothing lands, notifies or counts. */
static void nothing_lands_after_the_end_of_a_silent_writer(void)
{
    struct duo duo = duo_of_silent();
    weft_op writes[WRITES];
    struct range_request args = under(&duo, grant_whole(&duo));
    memset(duo.a_bytes, 0xee, LEN);
    begin_writes(&duo, &args, writes);
    CHECK_OK(weft_peer_disconnect(duo.b->endpoint, duo.b_to_a));
    box_take(duo.b, WEFT_COMPLETION_PEER_DOWN, patience_ms());
    a_goes_on(&duo, writes, WEFT_ERR_PEER_CLOSED, WEFT_ERR_PEER_LOST);
    duo_close(&duo);
}

/* ---- Other peers, whose operations must not fail ---- */

struct other {
    struct box *box;
    weft_peer peer, of_b;
    uint8_t *bytes;
    weft_memory *memory;
    weft_remote_memory *remote;
};

static struct other other_of(struct duo *duo, const weft_endpoint_config *config)
{
    char blob[8192];
    struct other other = {.box = box_of(open_with(config)), .bytes = map_bytes(LEN)};
    size_t n = address_of(duo->b->endpoint, blob, sizeof blob);
    CHECK_OK(weft_peer_connect(other.box->endpoint, blob, n, NULL, &other.peer));
    CHECK_OK(box_take(other.box, WEFT_COMPLETION_PEER_UP, patience_ms()).status);
    /* Its caller may have to drive it: b is up once the last frame of its handshake is sent. */
    weft_completion up;
    for (uint64_t until = now_ns() + patience_ms() * MS; !box_try(duo->b, WEFT_COMPLETION_PEER_UP, &up);) {
        CHECK(now_ns() < until);
        box_pump(other.box, 1);
        box_pump(duo->b, 1);
    }
    other.of_b = up.peer;
    other.memory = register_one(other.box->endpoint, other.bytes, LEN);
    n = descriptor_of(duo->b_memory, blob, sizeof blob);
    CHECK_OK(weft_remote_memory_import(other.box->endpoint, other.peer, blob, n, &other.remote));
    return other;
}

/* The other peer is silent, too, while keys are replaced, or active all the time. */
static void others_follow(bool silent)
{
    enum { LOWER = LEN / 2, ROUNDS = 6, EACH = 6 };
    weft_endpoint_config config = test_config();
    struct duo duo = duo_of_silent();
    if (silent)
        config.progress = WEFT_PROGRESS_MANUAL;
    struct other other = other_of(&duo, &config);
    struct duo both = duo;
    weft_grant_token theirs;
    weft_op writes[WRITES], others[EACH], id;
    both.a = other.box;
    CHECK_OK(weft_grant_create(duo.b_memory, other.of_b, NULL, &theirs));
    for (int round = 0; round < ROUNDS; round++) {
        struct range_request args = under(&duo, grant_whole(&duo));
        struct range_request beside = range_args(other.memory, other.remote, LOWER);
        beside.local_offset = beside.remote_offset = LOWER;
        beside.options.grant = theirs;
        args.len = LOWER;
        fill_random(other.bytes + LOWER, LOWER, round);
        memset(duo.b_bytes + LOWER, 0, LOWER);
        begin_writes(&duo, &args, writes);
        for (int i = 0; i < EACH; i++)
            others[i] = write_now(other.box, &beside);
        CHECK_OK(weft_grant_revoke(duo.b->endpoint, &args.options.grant, NULL, &id));
        CHECK_OK(silent ? box_await(duo.b, id, patience_ms()).status : await_both(&both, duo.b, id));
        fill_random(duo.b_bytes, LOWER, 5);
        for (int i = 0; i < EACH; i++)
            CHECK_OK(await_both(&both, other.box, others[i]));
        for (int i = 0; i < WRITES; i++)
            CHECK_STATUS(await_both(&duo, duo.a, writes[i]), WEFT_ERR_REVOKED);
        CHECK_EQ(differs_random(duo.b_bytes, LOWER, 5), -1);
        CHECK_EQ(differs_random(duo.b_bytes + LOWER, LOWER, round), -1);
    }
    box_close(other.box);
    duo_close(&duo);
}

static void others_that_answer_follow(void) { others_follow(false); }
static void others_that_are_late_follow(void) { others_follow(true); }

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        {"a_silent_writer_is_locked_out", FABRICS " timed", a_silent_writer_is_locked_out},
        {"a_silent_writer_of_many_operations_is_locked_out", FABRICS, a_silent_writer_of_many_operations_is_locked_out},
        {"revokes_of_a_silent_writer_do_not_wait_for_each_other", FABRICS,
         revokes_of_a_silent_writer_do_not_wait_for_each_other},
        {"revoke_is_done_after_its_operation_timed_out", FABRICS, revoke_is_done_after_its_operation_timed_out},
        {"nothing_lands_after_the_end_of_a_silent_writer", EVERY, nothing_lands_after_the_end_of_a_silent_writer},
        {"others_that_answer_follow", FABRICS, others_that_answer_follow},
        {"others_that_are_late_follow", FABRICS, others_that_are_late_follow},
        {0},
    };
    return run_tests(argc, argv, tests);
}
