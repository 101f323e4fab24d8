/* Revokes that coincide with other events: nothing arrives after one. */
#include "harness.h"

#define FABRICS "tcp,host,sim:like=tcp,sim:like=efa,sim:like=efa-direct,sim:like=verbs"
#define LEN (64 * KIB)

/* What arrived too late, over all rounds. */
struct late {
    uint64_t bytes, notifications, counts, ended;
};

enum end { NONE, OWNER_LEAVES, WRITER_LEAVES };

static void await_down(struct duo *duo)
{
    weft_completion down;
    uint64_t end = now_ns() + patience_ms() * MS;
    for (bool a = false, b = false; !a || !b; pump_both(duo, 0)) {
        CHECK(now_ns() < end);
        a |= box_try(duo->a, WEFT_COMPLETION_PEER_DOWN, &down);
        b |= box_try(duo->b, WEFT_COMPLETION_PEER_DOWN, &down);
    }
}

static void connect_again(struct duo *duo)
{
    char blob[8192];
    weft_completion up;
    uint64_t end = now_ns() + patience_ms() * MS;
    for (weft_status status; (status = weft_remote_memory_release(duo->b_of_a)) != WEFT_OK; pump_both(duo, 0)) {
        CHECK_STATUS(status, WEFT_ERR_BUSY);
        CHECK(now_ns() < end);
    }
    size_t n = address_of(duo->b->endpoint, blob, sizeof blob);
    CHECK_OK(weft_peer_connect(duo->a->endpoint, blob, n, NULL, &duo->a_to_b));
    for (bool a = false, b = false; !a || !b; pump_both(duo, 0)) {
        CHECK(now_ns() < end);
        if (!a && box_try(duo->a, WEFT_COMPLETION_PEER_UP, &up) && !(a = up.status == WEFT_OK))
            CHECK_OK(weft_peer_connect(duo->a->endpoint, blob, n, NULL, &duo->a_to_b)); /* b ended the earlier writes */
        if (!b && (b = box_try(duo->b, WEFT_COMPLETION_PEER_UP, &up)))
            duo->b_to_a = up.peer;
    }
    n = descriptor_of(duo->b_memory, blob, sizeof blob);
    CHECK_OK(weft_remote_memory_import(duo->a->endpoint, duo->a_to_b, blob, n, &duo->b_of_a));
}

/* Revokes at any time, with writes that are small or large, counted by page, canceled or too late; with a writer that
 * is `silent` (its caller drives it, and does not); or while the connection ends. */
static void revoke_at_any_moment(struct duo *duo, weft_counter counter, uint64_t *seed, bool silent, enum end how, struct late *late)
{
    enum { WRITES = 4 };
    struct range_request args = range_args(duo->a_memory, duo->b_of_a, 1 + next_random(seed) % LEN);
    weft_op writes[WRITES] = {0}, id;
    uint64_t before, after;
    weft_completion told;
    args.options.grant = grant_whole(duo);
    args.options.counter = counter;
    args.options.flags = WEFT_NOTIFY | (next_random(seed) % 2 ? WEFT_COUNT_PAGES : 0);
    args.options.timeout_ns = next_random(seed) % 4 ? 0 : 20000;
    memset(duo->a_bytes, 1 + (int)(next_random(seed) % 255), LEN);
    for (int i = 0; i < WRITES; i++)
        writes[i] = write_now(duo->a, &args);
    if (next_random(seed) % 4 == 0)
        CHECK_ONE_OF(weft_op_cancel(duo->a->endpoint, writes[1]), WEFT_OK, WEFT_ERR_HANDLE);
    for (uint64_t n = next_random(seed) % 8; n > 0; n--) {
        box_pump(duo->a, 0);
        box_pump(duo->b, 0);
    }
    if (how == OWNER_LEAVES)
        CHECK_OK(weft_peer_disconnect(duo->b->endpoint, duo->b_to_a));
    else if (how == WRITER_LEAVES)
        CHECK_OK(weft_peer_disconnect(duo->a->endpoint, duo->a_to_b));
    for (uint64_t n = how == NONE ? 0 : next_random(seed) % 8; n > 0; n--)
        box_pump(duo->b, 0);
    CHECK_OK(weft_grant_revoke(duo->b->endpoint, &args.options.grant, NULL, &id));
    CHECK_OK(silent ? box_await(duo->b, id, patience_ms()).status : await_both(duo, duo->b, id));
    while (box_try(duo->b, WEFT_COMPLETION_NOTIFICATION, &told)) {
    }
    CHECK_OK(weft_counter_read(duo->b->endpoint, counter, &before));
    memset(duo->b_bytes, 0, LEN);
    for (int i = 0; i < WRITES; i++)
        late->ended += await_both(duo, duo->a, writes[i]) != WEFT_OK;
    if (how != NONE)
        await_down(duo);
    pump_both(duo, next_random(seed) % 16 ? 0 : 5);
    for (uint64_t i = 0; i < LEN; i++)
        late->bytes += duo->b_bytes[i] != 0;
    while (box_try(duo->b, WEFT_COMPLETION_NOTIFICATION, &told))
        late->notifications++;
    CHECK_OK(weft_counter_read(duo->b->endpoint, counter, &after));
    late->counts += after - before;
    if (how != NONE)
        connect_again(duo);
}

static void nothing_was_late(const struct late *late)
{
    printf("revoked_bytes %" PRIu64 "\nrevoked_notifications %" PRIu64 "\nrevoked_counts %" PRIu64 "\n", late->bytes,
           late->notifications, late->counts);
    CHECK_EQ(late->bytes + late->notifications + late->counts, 0);
    CHECK(late->ended > 0);
}

static void revokes_of_every_kind(void)
{
    const char *wanted = getenv("WEFT_GRANT_REVOKES");
    uint64_t rounds = wanted ? strtoull(wanted, NULL, 10) : 200, seed = 11;
    uint64_t seldom = on_fabric("host") || on_fabric("tcp") ? 4 : 32; /* others wait until it is silent */
    weft_endpoint_config config = test_config(), manual = config;
    struct late late = {0};
    manual.progress = WEFT_PROGRESS_MANUAL;
    for (int half = 0; half < 2; half++) {
        struct duo duo = duo_granted_between(LEN, half ? &manual : &config, &config);
        weft_counter counter;
        CHECK_OK(weft_counter_create(duo.b->endpoint, &counter));
        for (uint64_t round = 0; round < rounds / 2; round++) {
            enum end how = next_random(&seed) % 32 ? NONE : next_random(&seed) % 2 ? OWNER_LEAVES : WRITER_LEAVES;
            bool silent = half && next_random(&seed) % seldom == 0;
            revoke_at_any_moment(&duo, counter, &seed, silent, how, &late);
        }
        duo_close(&duo);
    }
    nothing_was_late(&late);
}

/* Both lanes are reset, on one side or the other, and return; not so often that the peer is lost. */
static void revokes_meet_resets(const char *like)
{
    enum { RESETS = 3 };
    char faults[64 * RESETS + 1];
    weft_endpoint_config config = test_config();
    char name[128];
    struct late late = {0};
    uint64_t seed = 13;
    weft_counter counter;
    size_t len = 0;
    for (unsigned i = 0, us = 100000; i < RESETS; i++, us += 1100000)
        len += (size_t)snprintf(faults + len, sizeof faults - len, "port4+%u port%u error=1; port4+%u port%u error=1; ", us,
                                i % 2 * 2, us + 3000, i % 2 * 2 + 1);
    CHECK(len < sizeof faults);
    setenv("WEFT_SIM_FAULTS", faults, 1);
    CHECK_OK(weft_log_set(WEFT_LOG_ERROR, NULL, NULL));
    snprintf(name, sizeof name, "sim:like=%s:rails=2:gbps=10:delay_us=20:world=%s", like, like);
    config.fabric = name;
    config.rails = NULL;
    struct duo duo = duo_granted_between(LEN, &config, &config);
    CHECK_OK(weft_counter_create(duo.b->endpoint, &counter));
    CHECK_OK(weft_endpoint_destroy(open_with(&config))); /* opening it begins the faults */
    for (uint64_t end = now_ns() + RESETS * 1100 * MS; now_ns() < end;)
        revoke_at_any_moment(&duo, counter, &seed, false, NONE, &late);
    nothing_was_late(&late);
    duo_close(&duo);
}

static void revokes_meet_resets_of_streams(void) { revokes_meet_resets("tcp"); }
static void revokes_meet_resets_of_connections(void) { revokes_meet_resets("verbs"); }

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        {"revokes_of_every_kind", FABRICS, revokes_of_every_kind},
        {"revokes_meet_resets_of_streams", "once", revokes_meet_resets_of_streams},
        {"revokes_meet_resets_of_connections", "once", revokes_meet_resets_of_connections},
        {0},
    };
    return run_tests(argc, argv, tests);
}
