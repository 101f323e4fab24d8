/* Grants: the part of a memory that a peer reaches, until its owner revokes it. */
#include "harness.h"

#define FABRICS "tcp,host,sim:like=tcp,sim:like=efa,sim:like=efa-direct,sim:like=verbs"
/* Their NICs check the peers' requests; others have a key for all of a memory. */
#define CHECKS "tcp,host checks"
#define PAGE (4 * KIB)
#define LEN (8 * MIB)

static const weft_grant_token NONE;

static weft_grant_token grant_pages(struct duo *duo, uint32_t access, const uint32_t *pages, uint64_t count)
{
    weft_grant_args args = WEFT_GRANT_ARGS_INIT;
    weft_page_side side = {.pages = pages};
    weft_grant_token token;
    args.access = access;
    args.pages = &side;
    args.page_len = PAGE;
    args.page_count = count;
    CHECK_OK(weft_grant_create(duo->b_memory, duo->b_to_a, &args, &token));
    return token;
}

static weft_status revoke_now(struct duo *duo, weft_grant_token token)
{
    weft_op id;
    CHECK_OK(weft_grant_revoke(duo->b->endpoint, &token, NULL, &id));
    return await_both(duo, duo->b, id);
}

static weft_status moved(struct duo *duo, const struct range_request *args, bool read)
{
    weft_op id;
    weft_status status = (read ? submit_read : submit_write)(duo->a->endpoint, args, &id);
    return status != WEFT_OK ? status : await_both(duo, duo->a, id);
}

static void a_grant_reaches_what_it_covers(void)
{
    struct duo duo = duo_granted(LEN);
    struct range_request args = range_args(duo.a_memory, duo.b_of_a, LEN);
    fill_random(duo.a_bytes, LEN, 1);
    REFUSED(WEFT_ERR_INVALID, submit_write(duo.a->endpoint, &args, NULL));
    weft_grant_token whole = args.options.grant = grant_whole(&duo);
    CHECK_OK(moved(&duo, &args, false));
    CHECK_EQ(differs_random(duo.b_bytes, LEN, 1), -1);
    memset(duo.a_bytes, 0, LEN);
    CHECK_OK(moved(&duo, &args, true));
    CHECK_EQ(differs_random(duo.a_bytes, LEN, 1), -1);
    CHECK_OK(revoke_now(&duo, whole));
    CHECK_STATUS(moved(&duo, &args, false), WEFT_ERR_REVOKED);
    REFUSED(WEFT_ERR_HANDLE, weft_grant_revoke(duo.b->endpoint, &whole, NULL, NULL));
    duo_close(&duo);
}

/* Pages, the direction, and the grant's peer: the target checks each request, or the sender what its grant covers. */
static void nothing_is_reached_beside_a_grant(void)
{
    static const uint32_t pages[] = {3, 4, 9};
    struct duo duo = duo_granted(LEN), other = duo_granted(LEN);
    struct range_request args = range_args(duo.a_memory, duo.b_of_a, PAGE);
    args.options.grant = grant_pages(&duo, WEFT_ACCESS_REMOTE_WRITE, pages, COUNT(pages));
    for (uint32_t page = 0; page < 12; page++) {
        bool covered = page == 3 || page == 4 || page == 9;
        memset(duo.a_bytes, 0x50 + (int)page, PAGE);
        args.remote_offset = page * PAGE;
        CHECK_STATUS(moved(&duo, &args, false), covered ? WEFT_OK : WEFT_ERR_REVOKED);
        CHECK_EQ(duo.b_bytes[page * PAGE], covered ? 0x50 + page : 0);
        CHECK_EQ(duo.b_bytes[page * PAGE + PAGE - 1], covered ? 0x50 + page : 0);
        CHECK_STATUS(moved(&duo, &args, true), WEFT_ERR_REVOKED);
    }
    args.remote_offset = 3 * PAGE;
    args.len = 2 * PAGE;
    CHECK_OK(moved(&duo, &args, false));
    args.len = 2 * PAGE + 1;
    CHECK_STATUS(moved(&duo, &args, false), WEFT_ERR_REVOKED);
    /* Another peer's grant, and a guessed one. */
    args.len = PAGE;
    weft_grant_token own = args.options.grant, guessed = own;
    args.options.grant = grant_whole(&other);
    CHECK_STATUS(moved(&duo, &args, false), WEFT_ERR_REVOKED);
    guessed.bytes[0] ^= 1;
    args.options.grant = guessed;
    CHECK_STATUS(moved(&duo, &args, false), WEFT_ERR_REVOKED);
    args.options.grant = own;
    CHECK_OK(moved(&duo, &args, false));
    duo_close(&duo);
    duo_close(&other);
}

/* Operations in flight when a grant ends: bytes, notifications and counts; other writes continue. */
static void nothing_arrives_after_a_revoke(void)
{
    enum { WRITES = 6, ROUNDS = 24 };
    struct duo duo = duo_granted(2 * LEN);
    weft_counter counter;
    uint64_t before, after, seed = 7;
    int revoked = 0, done = 0;
    CHECK_OK(weft_counter_create(duo.b->endpoint, &counter));
    struct range_request beside = range_args(duo.a_memory, duo.b_of_a, LEN);
    beside.local_offset = beside.remote_offset = LEN;
    beside.options.grant = grant_whole(&duo);
    fill_random(duo.a_bytes, 2 * LEN, 1);
    for (int round = 0; round < ROUNDS; round++) {
        struct range_request args = range_args(duo.a_memory, duo.b_of_a, LEN);
        weft_op writes[WRITES], other = write_now(duo.a, &beside), id;
        weft_completion told;
        args.options.grant = grant_whole(&duo);
        args.options.flags = WEFT_NOTIFY;
        args.options.notify = 100 + round;
        args.options.counter = counter;
        memset(duo.a_bytes, round + 1, LEN);
        for (int i = 0; i < WRITES; i++)
            writes[i] = write_now(duo.a, &args);
        uint64_t until = now_ns() + next_random(&seed) % (8 * MS);
        while (now_ns() < until) {
            box_pump(duo.a, 0);
            box_pump(duo.b, 0);
        }
        CHECK_OK(weft_grant_revoke(duo.b->endpoint, &args.options.grant, NULL, &id));
        CHECK_OK(await_both(&duo, duo.b, id));
        while (box_try(duo.b, WEFT_COMPLETION_NOTIFICATION, &told))
            done++;
        CHECK_OK(weft_counter_read(duo.b->endpoint, counter, &before));
        fill_random(duo.b_bytes, LEN, 100 + round);
        pump_both(&duo, 20);
        CHECK_EQ(differs_random(duo.b_bytes, LEN, 100 + round), -1);
        CHECK(!box_try(duo.b, WEFT_COMPLETION_NOTIFICATION, &told));
        CHECK_OK(weft_counter_read(duo.b->endpoint, counter, &after));
        CHECK_EQ(after, before);
        for (int i = 0; i < WRITES; i++) {
            weft_status status = await_both(&duo, duo.a, writes[i]);
            CHECK_ONE_OF(status, WEFT_OK, WEFT_ERR_REVOKED);
            revoked += status == WEFT_ERR_REVOKED;
            done -= status == WEFT_OK;
        }
        CHECK_OK(await_both(&duo, duo.a, other));
    }
    CHECK(revoked > 0);
    CHECK(done >= 0); /* A write that was reported as successful has notified. */
    CHECK_EQ(differs_random(duo.b_bytes + LEN, 0, 1), -1);
    duo_close(&duo);
}

/* Notifications and counts that wait for space when their grant ends. */
static void what_waits_for_room_is_revoked(void)
{
    enum { WRITES = 100, DEPTH = 16 };
    weft_endpoint_config config = test_config();
    config.queue_depth = DEPTH;
    weft_endpoint_config of_a = test_config();
    struct duo duo = duo_open_between(LEN, &of_a, &config);
    struct range_request args = range_args(duo.a_memory, duo.b_of_a, 8);
    weft_op_options options = WEFT_OP_OPTIONS_INIT;
    weft_queue *queue;
    weft_completion c;
    weft_counter counter;
    weft_op writes[WRITES], id;
    uint64_t counted;
    int told = 0, done = 0;
    CHECK_OK(weft_counter_create(duo.b->endpoint, &counter));
    CHECK_OK(weft_queue_create(duo.b->endpoint, DEPTH, &queue));
    args.options.grant = grant_whole(&duo);
    args.options.flags = WEFT_NOTIFY;
    args.options.counter = counter;
    for (int i = 0; i < WRITES; i++)
        writes[i] = write_now(duo.a, &args);
    uint64_t end = now_ns() + 200 * MS;
    while (now_ns() < end) /* b's queue fills */
        box_pump(duo.a, 1);
    options.queue = queue;
    CHECK_OK(weft_grant_revoke(duo.b->endpoint, &args.options.grant, &options, &id));
    end = now_ns() + patience_ms() * MS;
    while (weft_queue_poll(queue, &c, 1, 1 * MS) == 0)
        CHECK(now_ns() < end);
    CHECK_OK(c.status);
    for (int i = 0; i < WRITES; i++)
        done += await_both(&duo, duo.a, writes[i]) == WEFT_OK;
    pump_both(&duo, 20);
    while (box_try(duo.b, WEFT_COMPLETION_NOTIFICATION, &c))
        told++;
    CHECK_OK(weft_counter_read(duo.b->endpoint, counter, &counted));
    CHECK(done <= told && told <= DEPTH && counted <= DEPTH + 1);
    CHECK_OK(weft_queue_destroy(queue));
    duo_close(&duo);
}

static void ten_thousand_grants_at_once(void)
{
    enum { GRANTS = 10000, EACH = 64 };
    struct duo duo = duo_granted(LEN);
    weft_grant_token *tokens = malloc(GRANTS * sizeof *tokens);
    CHECK(tokens != NULL);
    fill_random(duo.a_bytes, LEN, 1);
    for (int i = 0; i < GRANTS; i++)
        tokens[i] = grant_whole(&duo);
    for (int i = 1; i < GRANTS; i += 2) {
        CHECK_OK(revoke_now(&duo, tokens[i]));
        if (i % 512 == 1)
            pump_both(&duo, 1);
    }
    for (int i = 0; i < GRANTS; i++) {
        struct range_request args = range_args(duo.a_memory, duo.b_of_a, EACH);
        args.local_offset = args.remote_offset = (uint64_t)i * EACH;
        args.options.grant = tokens[i];
        weft_status status = moved(&duo, &args, false);
        CHECK_STATUS(status, i % 2 ? WEFT_ERR_REVOKED : WEFT_OK);
        if (i % 2) /* contents that it did not write */
            memcpy(duo.b_bytes + args.remote_offset, duo.a_bytes + args.remote_offset, EACH);
    }
    CHECK_EQ(differs_random(duo.b_bytes, GRANTS * EACH, 1), -1);
    free(tokens);
    duo_close(&duo);
}

/* ---- Atomics ---- */

static weft_status added(struct duo *duo, const weft_op_options *options, uint64_t offset)
{
    weft_op id;
    weft_status status = weft_fetch_add(duo->a->endpoint, duo->b_of_a, offset, 1, options, &id);
    return status != WEFT_OK ? status : await_both(duo, duo->a, id);
}

static uint64_t word_at(const struct duo *duo, uint64_t offset)
{
    uint64_t word;
    memcpy(&word, duo->b_bytes + offset, sizeof word);
    return word;
}

static void atomics_are_under_grants(void)
{
    static const uint32_t pages[] = {3};
    uint32_t both = WEFT_ACCESS_REMOTE_WRITE | WEFT_ACCESS_REMOTE_READ;
    struct duo duo = duo_granted(LEN), other = duo_granted(LEN);
    weft_op_options options = WEFT_OP_OPTIONS_INIT;
    REFUSED(WEFT_ERR_INVALID, weft_fetch_add(duo.a->endpoint, duo.b_of_a, 0, 1, &options, NULL));
    options.grant = grant_pages(&duo, both, pages, COUNT(pages));
    CHECK_OK(added(&duo, &options, 3 * PAGE));
    CHECK_OK(added(&duo, &options, 4 * PAGE - 8));
    CHECK_STATUS(added(&duo, &options, 4 * PAGE), WEFT_ERR_REVOKED);
    CHECK_OK(revoke_now(&duo, options.grant));
    CHECK_STATUS(added(&duo, &options, 3 * PAGE), WEFT_ERR_REVOKED);
    options.grant = grant_pages(&duo, WEFT_ACCESS_REMOTE_WRITE, pages, COUNT(pages));
    CHECK_STATUS(added(&duo, &options, 3 * PAGE), WEFT_ERR_REMOTE_ACCESS);
    options.grant.bytes[0] ^= 1;
    CHECK_STATUS(added(&duo, &options, 3 * PAGE), WEFT_ERR_REVOKED);
    options.grant = grant_whole(&other);
    CHECK_STATUS(added(&duo, &options, 3 * PAGE), WEFT_ERR_REVOKED);
    CHECK_EQ(word_at(&duo, 3 * PAGE), 1);
    CHECK_EQ(word_at(&duo, 4 * PAGE - 8), 1);
    CHECK_EQ(word_at(&duo, 4 * PAGE), 0);
    duo_close(&duo);
    duo_close(&other);
}

/* Atomics in flight when their grant ends: those not counted as done were not done. */
static void revoked_atomics_change_nothing(void)
{
    enum { ROUNDS = 50, EACH = 20 };
    struct duo duo = duo_granted(LEN);
    uint64_t seed = 3, done = 0;
    for (int round = 0; round < ROUNDS; round++) {
        weft_op_options options = WEFT_OP_OPTIONS_INIT;
        weft_op adds[EACH], id;
        options.grant = grant_whole(&duo);
        for (int i = 0; i < EACH; i++)
            CHECK_OK(weft_fetch_add(duo.a->endpoint, duo.b_of_a, 0, 1, &options, &adds[i]));
        for (uint64_t n = next_random(&seed) % 8; n > 0; n--)
            pump_both(&duo, 0);
        CHECK_OK(weft_grant_revoke(duo.b->endpoint, &options.grant, NULL, &id));
        CHECK_OK(await_both(&duo, duo.b, id));
        uint64_t then = word_at(&duo, 0);
        for (int i = 0; i < EACH; i++)
            done += await_both(&duo, duo.a, adds[i]) == WEFT_OK;
        CHECK_EQ(word_at(&duo, 0), then);
        CHECK(done <= then);
    }
    duo_close(&duo);
}

/* ---- Both sides are notified of a failure ---- */

/* Writes that succeed, are canceled or too late, under a grant or not: b is notified of each once. */
static void each_transfer_is_heard_of_once(void)
{
    enum { WRITES = 600, AT_ONCE = 4 };
    static int heard[WRITES];
    static weft_status said[WRITES];
    struct duo duo = duo_open(LEN);
    weft_op_options none = WEFT_OP_OPTIONS_INIT;
    weft_grant_token grant = grant_whole(&duo);
    uint64_t seed = 5;
    int failed = 0;
    weft_completion told;
    memset(heard, 0, sizeof heard);
    for (int at = 0; at < WRITES; at += AT_ONCE) {
        weft_op writes[AT_ONCE];
        for (int i = 0; i < AT_ONCE; i++) {
            struct range_request args = range_args(duo.a_memory, duo.b_of_a, 1 + next_random(&seed) % LEN);
            args.options.flags = WEFT_NOTIFY | WEFT_NOTIFY_FAILURE;
            args.options.notify = (uint64_t)(at + i);
            args.options.timeout_ns = next_random(&seed) % 3 ? 0 : 1 + next_random(&seed) % (1 * MS);
            args.options.grant = next_random(&seed) % 2 ? grant : none.grant;
            writes[i] = write_now(duo.a, &args);
        }
        for (uint64_t n = next_random(&seed) % 16; n > 0; n--)
            pump_both(&duo, 0);
        for (int i = 0; i < AT_ONCE; i += 2)
            CHECK_ONE_OF(weft_op_cancel(duo.a->endpoint, writes[i]), WEFT_OK, WEFT_ERR_HANDLE);
        for (int i = 0; i < AT_ONCE; i++) {
            said[at + i] = await_both(&duo, duo.a, writes[i]);
            failed += said[at + i] != WEFT_OK;
        }
        uint64_t end = now_ns() + patience_ms() * MS;
        for (int i = 0; i < AT_ONCE; i++)
            while (heard[at + i] == 0) {
                CHECK(now_ns() < end);
                pump_both(&duo, 0);
                while (box_try(duo.b, WEFT_COMPLETION_NOTIFICATION, &told)) {
                    CHECK(told.notify < (uint64_t)(at + AT_ONCE));
                    heard[told.notify]++;
                    /* The success of a failed write may have been notified just before. */
                    if (told.status != WEFT_OK)
                        CHECK_STATUS(told.status, said[told.notify]);
                }
            }
    }
    pump_both(&duo, 20);
    CHECK(!box_try(duo.b, WEFT_COMPLETION_NOTIFICATION, &told));
    for (int i = 0; i < WRITES; i++)
        CHECK_EQ(heard[i], 1);
    CHECK(failed > 0);
    duo_close(&duo);
}

static weft_grant_token grant_until(struct duo *duo, uint64_t timeout_ns, uint64_t notify)
{
    weft_grant_args args = WEFT_GRANT_ARGS_INIT;
    weft_grant_token token;
    args.flags = WEFT_NOTIFY_FAILURE;
    args.timeout_ns = timeout_ns;
    args.notify = notify;
    CHECK_OK(weft_grant_create(duo->b_memory, duo->b_to_a, &args, &token));
    return token;
}

static weft_completion hear_one(struct duo *duo, struct box *box, uint32_t kind)
{
    uint64_t end = now_ns() + patience_ms() * MS;
    weft_completion told;
    while (!box_try(box, kind, &told)) {
        CHECK(now_ns() < end);
        pump_both(duo, 1);
    }
    return told;
}

static weft_completion hear_notification(struct duo *duo)
{
    return hear_one(duo, duo->b, WEFT_COMPLETION_NOTIFICATION);
}

static void a_grant_ends_by_itself(void)
{
    struct duo duo = duo_granted(LEN);
    struct range_request args = range_args(duo.a_memory, duo.b_of_a, PAGE);
    weft_completion told;
    weft_grant_token later = grant_until(&duo, 3600 * UINT64_C(1000000000), 8);
    weft_status first = WEFT_ERR_REVOKED;
    /* On a loaded machine the grant may end before the first write is done: then repeat with a longer one. */
    for (uint64_t lasts = 50 * MS; first == WEFT_ERR_REVOKED; lasts *= 2) {
        CHECK(lasts < patience_ms() * MS);
        args.options.grant = grant_until(&duo, lasts, 7);
        first = moved(&duo, &args, false);
        CHECK_ONE_OF(first, WEFT_OK, WEFT_ERR_REVOKED);
        told = hear_notification(&duo);
        CHECK_STATUS(told.status, WEFT_ERR_TIMED_OUT);
        CHECK_EQ(told.notify, 7);
        CHECK_EQ(told.peer, duo.b_to_a);
        CHECK_STATUS(moved(&duo, &args, false), WEFT_ERR_REVOKED);
        CHECK_OK(revoke_now(&duo, args.options.grant));
        REFUSED(WEFT_ERR_HANDLE, weft_grant_revoke(duo.b->endpoint, &args.options.grant, NULL, NULL));
    }
    args.options.grant = later;
    CHECK_OK(moved(&duo, &args, false));
    CHECK_OK(revoke_now(&duo, later));
    pump_both(&duo, 5);
    CHECK(!box_try(duo.b, WEFT_COMPLETION_NOTIFICATION, &told));
    duo_close(&duo);
}

/* The peer ends: each remaining grant notifies once, before PEER_DOWN. */
static void a_peers_end_raises_what_its_grants_promise(void)
{
    enum { GRANTS = 5 };
    struct duo duo = duo_granted(LEN);
    weft_grant_token tokens[GRANTS];
    weft_completion told;
    bool heard[GRANTS] = {false};
    for (int i = 0; i < GRANTS; i++)
        tokens[i] = grant_until(&duo, 0, (uint64_t)i);
    CHECK_OK(revoke_now(&duo, tokens[0]));
    /* The peer was notified of its own failure: its end adds nothing. */
    struct range_request args = range_args(duo.a_memory, duo.b_of_a, PAGE);
    args.options.flags = WEFT_NOTIFY | WEFT_NOTIFY_FAILURE;
    args.options.notify = 1000;
    args.options.grant = tokens[1];
    args.options.timeout_ns = 1;
    weft_op late = write_now(duo.a, &args);
    weft_status status = await_both(&duo, duo.a, late);
    told = hear_notification(&duo);
    CHECK_EQ(told.notify, 1000);
    bool failed = told.status != WEFT_OK;
    CHECK(failed || status != WEFT_OK || told.status == WEFT_OK);
    CHECK_OK(weft_peer_disconnect(duo.a->endpoint, duo.a_to_b));
    hear_one(&duo, duo.b, WEFT_COMPLETION_PEER_DOWN);
    while (box_try(duo.b, WEFT_COMPLETION_NOTIFICATION, &told)) {
        CHECK(told.notify < GRANTS && !heard[told.notify]);
        CHECK(told.status != WEFT_OK);
        heard[told.notify] = true;
    }
    for (int i = 0; i < GRANTS; i++)
        CHECK_EQ(heard[i], i >= 2 || (i == 1 && !failed));
    for (int i = 1; i < GRANTS; i++)
        CHECK_OK(revoke_now(&duo, tokens[i]));
    CHECK(!box_try(duo.b, WEFT_COMPLETION_NOTIFICATION, &told));
    duo_close(&duo);
}

/* The tokens of a peer that has ended open nothing for the same endpoint when it is back. */
static void a_grant_ends_with_its_session(void)
{
    char address[8192], descriptor[8192];
    struct duo duo = duo_granted(PAGE);
    struct range_request args = range_args(duo.a_memory, duo.b_of_a, PAGE);
    size_t of_address = address_of(duo.b->endpoint, address, sizeof address);
    size_t of_descriptor = descriptor_of(duo.b_memory, descriptor, sizeof descriptor);
    weft_completion told;
    args.options.flags = WEFT_NOTIFY;
    for (int round = 1; round <= 8; round++) {
        bool at_once = round % 2; /* The write does not wait for PEER_UP. */
        weft_op id;
        args.options.grant = grant_whole(&duo);
        memset(duo.a_bytes, round, PAGE);
        CHECK_OK(moved(&duo, &args, false));
        CHECK_EQ(duo.b_bytes[PAGE - 1], round);
        hear_notification(&duo);
        CHECK_OK(weft_peer_disconnect(duo.a->endpoint, duo.a_to_b));
        hear_one(&duo, duo.a, WEFT_COMPLETION_PEER_DOWN);
        hear_one(&duo, duo.b, WEFT_COMPLETION_PEER_DOWN);
        CHECK_OK(weft_remote_memory_release(duo.b_of_a));
        CHECK_OK(weft_peer_connect(duo.a->endpoint, address, of_address, NULL, &duo.a_to_b));
        if (!at_once)
            CHECK_OK(hear_one(&duo, duo.a, WEFT_COMPLETION_PEER_UP).status);
        CHECK_OK(weft_remote_memory_import(duo.a->endpoint, duo.a_to_b, descriptor, of_descriptor, &duo.b_of_a));
        args.remote = duo.b_of_a;
        memset(duo.a_bytes, 0xee, PAGE);
        weft_status status = submit_write(duo.a->endpoint, &args, &id);
        CHECK_STATUS(status == WEFT_OK ? await_both(&duo, duo.a, id) : status, WEFT_ERR_REVOKED);
        if (at_once)
            CHECK_OK(hear_one(&duo, duo.a, WEFT_COMPLETION_PEER_UP).status);
        duo.b_to_a = hear_one(&duo, duo.b, WEFT_COMPLETION_PEER_UP).peer;
        pump_both(&duo, 2);
        CHECK_EQ(duo.b_bytes[PAGE - 1], round);
        CHECK(!box_try(duo.b, WEFT_COMPLETION_NOTIFICATION, &told));
    }
    duo_close(&duo);
}

/* As when the owner was restarted. */
static void a_token_of_another_endpoint_opens_nothing(void)
{
    struct duo duo = duo_granted(PAGE), other = duo_granted(PAGE);
    struct range_request args = range_args(duo.a_memory, duo.b_of_a, PAGE);
    args.options.grant = grant_whole(&other);
    memset(duo.a_bytes, 0xee, PAGE);
    CHECK_STATUS(moved(&duo, &args, false), WEFT_ERR_REVOKED);
    pump_both(&duo, 2);
    CHECK_EQ(duo.b_bytes[0], 0);
    duo_close(&duo);
    duo_close(&other);
}

/* ---- The figures in docs/performance.md ---- */

static int by_number(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static uint64_t from_environment(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text != NULL ? strtoull(text, NULL, 10) : otherwise;
}

/* How long a revoke of an idle peer takes, compared with the round trip of an 8-byte write. */
static void a_revoke_takes_no_round_trip(void)
{
    enum { ROUNDS = 401 };
    static uint64_t revokes[ROUNDS], writes[ROUNDS];
    struct duo duo = duo_granted(LEN);
    for (int i = 0; i < ROUNDS; i++) {
        struct range_request args = range_args(duo.a_memory, duo.b_of_a, 8);
        weft_completion c;
        weft_op id;
        args.options.grant = grant_whole(&duo);
        uint64_t began = now_ns();
        CHECK_OK(submit_write(duo.a->endpoint, &args, &id));
        while (weft_queue_poll(weft_endpoint_queue(duo.a->endpoint), &c, 1, 0) == 0) {
        }
        CHECK_OK(c.status);
        writes[i] = now_ns() - began;
        while (weft_queue_poll(weft_endpoint_queue(duo.b->endpoint), &c, 1, 0) > 0) {
        }
        began = now_ns();
        CHECK_OK(weft_grant_revoke(duo.b->endpoint, &args.options.grant, NULL, &id));
        while (weft_queue_poll(weft_endpoint_queue(duo.b->endpoint), &c, 1, 0) == 0) {
        }
        CHECK_EQ(c.op, id);
        revokes[i] = now_ns() - began;
    }
    qsort(revokes, ROUNDS, sizeof *revokes, by_number);
    qsort(writes, ROUNDS, sizeof *writes, by_number);
    double us = (double)revokes[ROUNDS / 2] / 1e3, trip = (double)writes[ROUNDS / 2] / 1e3;
    printf("revoke_us %.2f\nrevoke_round_trips %.3f\n", us, us / trip);
    duo_close(&duo);
}

static uint64_t written_in(struct duo *duo, const struct range_request *args, uint64_t ms, uint64_t every_ns)
{
    uint64_t done = 0, end = now_ns() + ms * MS, next = now_ns();
    static int under_way;
    while (now_ns() < end) {
        weft_completion c;
        while (under_way < 32 && submit_write(duo->a->endpoint, args, NULL) == WEFT_OK)
            under_way++;
        while (weft_queue_poll(weft_endpoint_queue(duo->a->endpoint), &c, 1, 0) > 0) {
            CHECK_OK(c.status);
            done++;
            under_way--;
        }
        if (every_ns > 0 && now_ns() >= next) {
            weft_grant_token token = grant_whole(duo);
            CHECK_OK(weft_grant_revoke(duo->b->endpoint, &token, NULL, NULL));
            next += every_ns;
        }
        while (weft_queue_poll(weft_endpoint_queue(duo->b->endpoint), &c, 1, 0) > 0)
            CHECK_OK(c.status);
    }
    return done;
}

/* A thousand grants per second are made and revoked beside 256 KiB writes by the same peer. */
static void others_go_on_beside_revokes(void)
{
    enum { ROUNDS = 9 };
    double shares[ROUNDS];
    struct duo duo = duo_granted(LEN);
    struct range_request args = range_args(duo.a_memory, duo.b_of_a, 256 * KIB);
    args.options.grant = grant_whole(&duo);
    written_in(&duo, &args, 100, 0);
    for (int i = 0; i < ROUNDS; i++) {
        double with = (double)written_in(&duo, &args, 100, 1 * MS);
        shares[i] = with / (double)(written_in(&duo, &args, 100, 0) + 1);
    }
    for (int i = 0; i < ROUNDS; i++)
        for (int k = i + 1; k < ROUNDS; k++)
            if (shares[k] < shares[i]) {
                double share = shares[i];
                shares[i] = shares[k];
                shares[k] = share;
            }
    printf("others_during_revoke %.3f\n", shares[ROUNDS / 2]);
    duo_close(&duo);
}

static struct duo duo_manual(uint64_t len)
{
    weft_endpoint_config config = test_config();
    config.progress = WEFT_PROGRESS_MANUAL;
    struct duo duo = {.len = len, .a = box_of(open_with(&config)), .b = box_of(open_with(&config))};
    char blob[8192];
    size_t n = address_of(duo.b->endpoint, blob, sizeof blob);
    weft_completion up;
    CHECK_OK(weft_peer_connect(duo.a->endpoint, blob, n, NULL, &duo.a_to_b));
    while (!box_try(duo.a, WEFT_COMPLETION_PEER_UP, &up))
        pump_both(&duo, 0);
    while (!box_try(duo.b, WEFT_COMPLETION_PEER_UP, &up))
        pump_both(&duo, 0);
    duo.b_to_a = up.peer;
    duo_share(&duo);
    return duo;
}

/* What callgrind counts each time, by this name: both sides of a transfer, of one thread. Their clock-driven work falls
 * into some of the calls; the least of them has none. */
__attribute__((noinline)) void one_transfer_of_64_pages(struct duo *duo, const struct pages_request *args)
{
    weft_op id;
    weft_completion c;
    CHECK_OK(submit_write_pages(duo->a->endpoint, args, &id));
    while (weft_queue_poll(weft_endpoint_queue(duo->a->endpoint), &c, 1, 0) == 0)
        CHECK_EQ(weft_queue_poll(weft_endpoint_queue(duo->b->endpoint), &c, 1, 0), 0);
    CHECK_OK(c.status);
}

static void transfers_of_64_pages(void)
{
    bool granted = from_environment("WEFT_GRANT_UNDER", 1) != 0;
    struct duo duo = duo_manual(LEN);
    uint32_t pages[64];
    for (uint32_t i = 0; i < 64; i++)
        pages[i] = i * 7 % 64;
    struct pages_request args = PAGES_REQUEST_INIT;
    args.local = duo.a_memory;
    args.remote = duo.b_of_a;
    args.pages.page_len = 256; /* Copying is not counted. */
    args.pages.page_count = 64;
    args.pages.local.pages = args.pages.remote.pages = pages;
    if (granted)
        args.options.grant = grant_whole(&duo);
    for (int i = 0; i < 100; i++)
        one_transfer_of_64_pages(&duo, &args);
    duo_close(&duo);
}

/* Grants with notifications last long: they must not use up the places for arrivals. */
static void grants_leave_places_for_arrivals(void)
{
    enum { DEPTH = 16 };
    weft_endpoint_config of_a = test_config(), of_b = of_a;
    of_b.queue_depth = DEPTH;
    struct duo duo = duo_open_between(LEN, &of_a, &of_b);
    struct range_request args = range_args(duo.a_memory, duo.b_of_a, 8);
    weft_grant_token tokens[DEPTH / 2], one_more;
    weft_grant_args grant = WEFT_GRANT_ARGS_INIT;
    grant.flags = WEFT_NOTIFY_FAILURE;
    for (int i = 0; i < DEPTH / 2; i++)
        CHECK_OK(weft_grant_create(duo.b_memory, duo.b_to_a, &grant, &tokens[i]));
    REFUSED(WEFT_ERR_LIMIT, weft_grant_create(duo.b_memory, duo.b_to_a, &grant, &one_more));
    CHECK_OK(weft_grant_create(duo.b_memory, duo.b_to_a, NULL, &one_more));
    args.options.flags = WEFT_NOTIFY;
    args.options.notify = 7;
    CHECK_OK(moved(&duo, &args, false));
    CHECK_EQ(hear_notification(&duo).notify, 7);
    for (int i = 0; i < DEPTH / 2; i++)
        CHECK_OK(revoke_now(&duo, tokens[i]));
    CHECK_OK(weft_grant_create(duo.b_memory, duo.b_to_a, &grant, &tokens[0]));
    CHECK_OK(revoke_now(&duo, tokens[0]));
    CHECK_OK(revoke_now(&duo, one_more));
    duo_close(&duo);
}

static struct {
    pthread_mutex_t lock;
    char text[256 * 1024];
    size_t used;
} lines = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void keep_line(weft_log_level level, const char *component, const char *message, void *user_data)
{
    (void)level, (void)component, (void)user_data;
    pthread_mutex_lock(&lines.lock);
    size_t room = sizeof lines.text - lines.used;
    int written = snprintf(lines.text + lines.used, room, "%s\n", message);
    lines.used += (size_t)written < room ? (size_t)written : 0;
    pthread_mutex_unlock(&lines.lock);
}

static void await_line(struct duo *duo, const char *wanted)
{
    uint64_t end = now_ns() + patience_ms() * MS;
    for (bool found = false; !found; pump_both(duo, 1)) {
        pthread_mutex_lock(&lines.lock);
        found = strstr(lines.text, wanted) != NULL;
        pthread_mutex_unlock(&lines.lock);
        if (!found && now_ns() > end)
            FAIL("\"%s\" is not in: %s", wanted, lines.text);
    }
}

/* One status has several causes: the log of both sides, and the message of the call, distinguish them. */
static void a_refusal_says_why(void)
{
    static const uint32_t pages[] = {1};
    struct duo duo = duo_granted(LEN);
    struct range_request args = range_args(duo.a_memory, duo.b_of_a, PAGE);
    weft_grant_token token = args.options.grant = grant_pages(&duo, WEFT_ACCESS_REMOTE_WRITE, pages, 1);
    const uint8_t *bytes = token.bytes;
    char shown[16], wanted[128];
    weft_op id;
    snprintf(shown, sizeof shown, "%02x%02x%02x%02x...", bytes[0], bytes[1], bytes[2], bytes[3]);
    CHECK_OK(weft_log_set(WEFT_LOG_DEBUG, keep_line, NULL));
    args.remote_offset = 5 * PAGE;
    CHECK_STATUS(moved(&duo, &args, false), WEFT_ERR_REVOKED);
    snprintf(wanted, sizeof wanted, "outside of the pages of grant %s", shown);
    await_line(&duo, wanted);
    await_line(&duo, "the target refused an access under its grant");
    CHECK_STATUS(moved(&duo, &args, true), WEFT_ERR_REVOKED);
    snprintf(wanted, sizeof wanted, "a read was refused: grant %s does not allow one", shown);
    await_line(&duo, wanted);
    CHECK_OK(revoke_now(&duo, token));
    snprintf(wanted, sizeof wanted, "has revoked grant %s", shown);
    await_line(&duo, wanted);
    CHECK_OK(weft_log_set(WEFT_LOG_DEFAULT, NULL, NULL));
    uint64_t end = now_ns() + patience_ms() * MS;
    while (submit_write(duo.a->endpoint, &args, &id) == WEFT_OK) {
        CHECK(now_ns() < end);
        CHECK_STATUS(await_both(&duo, duo.a, id), WEFT_ERR_REVOKED);
    }
    snprintf(wanted, sizeof wanted, "grant %s of peer 0x%" PRIx64, shown, duo.a_to_b);
    if (strncmp(weft_last_error(), wanted, strlen(wanted)) != 0)
        FAIL("no \"%s\": %s", wanted, weft_last_error());
    duo_close(&duo);
}

static void wrong_arguments_are_refused(void)
{
    struct duo duo = duo_granted(LEN);
    weft_grant_args args = WEFT_GRANT_ARGS_INIT;
    weft_page_side side = {.offset = LEN - PAGE};
    weft_grant_token token;
    REFUSED(WEFT_ERR_INVALID, weft_grant_create(duo.b_memory, duo.b_to_a, NULL, NULL));
    REFUSED(WEFT_ERR_HANDLE, weft_grant_create(duo.b_memory, duo.b_to_a + 1, NULL, &token));
    REFUSED(WEFT_ERR_HANDLE, weft_grant_create(NULL, duo.b_to_a, NULL, &token));
    args.access = 64;
    REFUSED(WEFT_ERR_INVALID, weft_grant_create(duo.b_memory, duo.b_to_a, &args, &token));
    args.access = 0;
    args.page_len = PAGE;
    REFUSED(WEFT_ERR_INVALID, weft_grant_create(duo.b_memory, duo.b_to_a, &args, &token));
    args.pages = &side;
    REFUSED(WEFT_ERR_INVALID, weft_grant_create(duo.b_memory, duo.b_to_a, &args, &token));
    args.page_count = 2;
    REFUSED(WEFT_ERR_RANGE, weft_grant_create(duo.b_memory, duo.b_to_a, &args, &token));
    args.page_count = UINT64_C(1) << 21;
    REFUSED(WEFT_ERR_LIMIT, weft_grant_create(duo.b_memory, duo.b_to_a, &args, &token));
    REFUSED(WEFT_ERR_HANDLE, weft_grant_revoke(duo.b->endpoint, &NONE, NULL, NULL));
    REFUSED(WEFT_ERR_INVALID, weft_grant_revoke(duo.b->endpoint, NULL, NULL, NULL));
    token = grant_whole(&duo);
    REFUSED(WEFT_ERR_HANDLE, weft_grant_revoke(duo.a->endpoint, &token, NULL, NULL));
    REFUSED(WEFT_ERR_BUSY, weft_memory_deregister(duo.b_memory));
    CHECK_OK(revoke_now(&duo, token));
    CHECK_OK(weft_remote_memory_release(duo.b_of_a));
    pump_both(&duo, 5);
    CHECK_OK(weft_memory_deregister(duo.b_memory));
    duo_close(&duo);
}

/* ---- Writers that do not answer ---- */

enum { STOPPED, RESUMED, KILLED, FATES };

static void writer(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    weft_peer peer = join(team, 0, box);
    uint8_t *bytes = map_bytes(LEN);
    memset(bytes, 0xee, LEN);
    weft_memory *memory = register_one(box->endpoint, bytes, LEN);
    weft_remote_memory *remote = take_memory(team, 0, box, peer);
    struct range_request args = range_args(memory, remote, LEN);
    weft_grant_token token;
    weft_counter counter;
    CHECK_EQ(hear(team, 0, box, &token, sizeof token), sizeof token);
    CHECK_EQ(hear(team, 0, box, &counter, sizeof counter), sizeof counter);
    args.options.grant = token;
    args.options.counter = counter;
    args.options.flags = WEFT_NOTIFY;
    for (int under_way = 0;;) {
        weft_completion c;
        weft_status status = WEFT_OK;
        while (under_way < 32 && status == WEFT_OK) {
            status = submit_write(box->endpoint, &args, NULL);
            under_way += status == WEFT_OK;
        }
        if (status == WEFT_ERR_REVOKED || status == WEFT_ERR_PEER_LOST || status == WEFT_ERR_PEER_CLOSED)
            break;
        box_pump(box, 0);
        for (; box_try(box, WEFT_COMPLETION_WRITE, &c); under_way--)
            CHECK_ONE_OF(c.status, WEFT_OK, WEFT_ERR_REVOKED, WEFT_ERR_PEER_CLOSED, WEFT_ERR_PEER_LOST);
    }
    _exit(0);
}

static void take_back_from(struct team *team, int fate)
{
    struct box *box = box_of(open_endpoint());
    weft_completion told;
    weft_counter counter;
    weft_grant_token token;
    weft_op id;
    uint64_t before, after;
    int notified = 0;
    weft_peer peer = join(team, 1, box);
    uint8_t *bytes = map_bytes(LEN);
    weft_memory *memory = register_granted(box->endpoint, bytes, LEN);
    give_memory(team, 1, memory);
    CHECK_OK(weft_grant_create(memory, peer, NULL, &token));
    CHECK_OK(weft_counter_create(box->endpoint, &counter));
    tell(team, 1, &token, sizeof token);
    tell(team, 1, &counter, sizeof counter);
    pid_t pid = pid_of(team, 1);
    while (notified < 20) {
        box_pump(box, 1);
        while (box_try(box, WEFT_COMPLETION_NOTIFICATION, &told))
            notified++;
    }
    stop_process(pid);
    uint64_t began = judged_from();
    CHECK_OK(weft_grant_revoke(box->endpoint, &token, NULL, &id));
    CHECK_OK(box_await(box, id, patience_ms()).status);
    printf("revoke_silent_ms %.3f\n", (double)(now_ns() - began) / 1e6);
    CHECK_WITHIN(began, now_ns(), 50 * MS);
    while (box_try(box, WEFT_COMPLETION_NOTIFICATION, &told)) {
    }
    CHECK_OK(weft_counter_read(box->endpoint, counter, &before));
    fill_random(bytes, LEN, 5);
    if (fate == KILLED)
        kill_member(team, 1);
    else if (fate == RESUMED)
        kill(pid, SIGCONT);
    uint64_t end = now_ns() + 300 * MS;
    while (now_ns() < end)
        box_pump(box, 1);
    CHECK_EQ(differs_random(bytes, LEN, 5), -1);
    CHECK(!box_try(box, WEFT_COMPLETION_NOTIFICATION, &told));
    CHECK_OK(weft_counter_read(box->endpoint, counter, &after));
    CHECK_EQ(after, before);
    if (fate == STOPPED)
        kill_member(team, 1);
    box_close(box);
}

static void target_of_stopped(struct team *team) { take_back_from(team, STOPPED); }
static void target_of_resumed(struct team *team) { take_back_from(team, RESUMED); }
static void target_of_killed(struct team *team) { take_back_from(team, KILLED); }

static void a_stopped_writer_is_revoked_at_once(void) { run_pair(target_of_stopped, writer); }
static void a_writer_that_goes_on_reaches_nothing(void) { run_pair(target_of_resumed, writer); }
static void a_writer_that_dies_reaches_nothing(void) { run_pair(target_of_killed, writer); }

/* ---- A revoke at once after a notification ---- */

enum { WRITES_OF_BURST = 100, BURSTS = 10 };

static void writes_bursts(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    weft_peer peer = join(team, 0, box);
    weft_memory *memory = register_one(box->endpoint, map_bytes(LEN), LEN);
    weft_remote_memory *remote = take_memory(team, 0, box, peer);
    weft_grant_token tokens[WRITES_OF_BURST];
    for (int burst = 0; burst < BURSTS; burst++) {
        CHECK_EQ(hear(team, 0, box, tokens, sizeof tokens), sizeof tokens);
        for (int i = 0; i < WRITES_OF_BURST; i++) {
            struct range_request args = range_args(memory, remote, 16 * KIB);
            args.options.grant = tokens[i];
            args.options.flags = WEFT_NOTIFY;
            args.options.notify = (uint64_t)i;
            write_now(box, &args);
        }
        for (int i = 0; i < WRITES_OF_BURST; i++)
            CHECK_OK(box_take(box, WEFT_COMPLETION_WRITE, patience_ms()).status);
    }
    meet(team, 0, box);
    box_close(box);
}

static void revokes_bursts(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    weft_peer peer = join(team, 1, box);
    weft_memory *memory = register_granted(box->endpoint, map_bytes(LEN), LEN);
    weft_grant_token tokens[WRITES_OF_BURST];
    give_memory(team, 1, memory);
    for (int burst = 0; burst < BURSTS; burst++) {
        for (int i = 0; i < WRITES_OF_BURST; i++)
            CHECK_OK(weft_grant_create(memory, peer, NULL, &tokens[i]));
        tell(team, 1, tokens, sizeof tokens);
        for (int i = 0; i < WRITES_OF_BURST; i++) {
            weft_completion told = box_take(box, WEFT_COMPLETION_NOTIFICATION, patience_ms());
            CHECK_OK(told.status);
            CHECK_OK(weft_grant_revoke(box->endpoint, &tokens[told.notify], NULL, NULL));
        }
        for (int i = 0; i < WRITES_OF_BURST; i++)
            CHECK_OK(box_take(box, WEFT_COMPLETION_FENCE, patience_ms()).status);
    }
    meet(team, 1, box);
    box_close(box);
}

static void a_write_that_notified_succeeds_beside_a_revoke(void) { run_pair(revokes_bursts, writes_bursts); }

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        {"a_grant_reaches_what_it_covers", FABRICS, a_grant_reaches_what_it_covers},
        {"nothing_is_reached_beside_a_grant", FABRICS, nothing_is_reached_beside_a_grant},
        {"nothing_arrives_after_a_revoke", FABRICS, nothing_arrives_after_a_revoke},
        {"what_waits_for_room_is_revoked", FABRICS, what_waits_for_room_is_revoked},
        {"ten_thousand_grants_at_once", FABRICS, ten_thousand_grants_at_once},
        {"atomics_are_under_grants", FABRICS, atomics_are_under_grants},
        {"revoked_atomics_change_nothing", FABRICS, revoked_atomics_change_nothing},
        {"each_transfer_is_heard_of_once", FABRICS, each_transfer_is_heard_of_once},
        {"a_grant_ends_by_itself", FABRICS, a_grant_ends_by_itself},
        {"a_peers_end_raises_what_its_grants_promise", FABRICS, a_peers_end_raises_what_its_grants_promise},
        {"a_grant_ends_with_its_session", FABRICS, a_grant_ends_with_its_session},
        {"a_token_of_another_endpoint_opens_nothing", FABRICS, a_token_of_another_endpoint_opens_nothing},
        {"a_revoke_takes_no_round_trip", CHECKS, a_revoke_takes_no_round_trip},
        {"others_go_on_beside_revokes", CHECKS, others_go_on_beside_revokes},
        {"transfers_of_64_pages", CHECKS, transfers_of_64_pages},
        {"grants_leave_places_for_arrivals", FABRICS, grants_leave_places_for_arrivals},
        {"a_write_that_notified_succeeds_beside_a_revoke", CHECKS, a_write_that_notified_succeeds_beside_a_revoke},
        {"a_refusal_says_why", CHECKS, a_refusal_says_why},
        {"wrong_arguments_are_refused", "once", wrong_arguments_are_refused},
        {"a_stopped_writer_is_revoked_at_once", CHECKS " timed", a_stopped_writer_is_revoked_at_once},
        {"a_writer_that_goes_on_reaches_nothing", CHECKS " timed", a_writer_that_goes_on_reaches_nothing},
        {"a_writer_that_dies_reaches_nothing", CHECKS " timed", a_writer_that_dies_reaches_nothing},
        {0},
    };
    return run_tests(argc, argv, tests);
}
