/* Lists: many memories and many peers in one operation; every byte, every completion. */
#include "harness.h"

#define TARGETS 3
#define ALL (TARGETS + 1)
#define MEMORIES 4
#define SMALL (256 * KIB)

/* ---- A source and its targets ---- */

struct source {
    struct box *box;
    weft_peer peer[ALL]; /* by rank; none for 0 */
    weft_memory *local[MEMORIES];
    uint8_t *bytes[MEMORIES];
    weft_remote_memory *remote[ALL][MEMORIES];
};

static struct setting {
    uint32_t rails, workers, progress;
} setting = {1, 1, WEFT_PROGRESS_THREADS};

static struct box *open_set(void)
{
    weft_endpoint_config config = test_config();
    config.rail_count = setting.rails;
    config.workers = setting.workers;
    config.progress = setting.progress;
    return box_of(open_with(&config));
}

/* Memory 0 has 200 ranges, the others one each. */
static weft_memory *register_nth(weft_endpoint *endpoint, uint8_t *bytes, int nth)
{
    weft_memory_range ranges[200];
    weft_memory *memory;
    size_t count = nth == 0 ? 200 : 1;
    for (size_t i = 0; i < count; i++)
        ranges[i] = (weft_memory_range){bytes + i * (SMALL / count), SMALL / count};
    CHECK_OK(weft_memory_register(endpoint, ranges, count, NULL, &memory));
    return memory;
}

static struct source open_source(struct team *team)
{
    struct source s;
    s.box = open_set();
    for (int m = 0; m < MEMORIES; m++) {
        s.bytes[m] = map_bytes(SMALL);
        s.local[m] = register_nth(s.box->endpoint, s.bytes[m], m);
    }
    for (int to = 1; to < team->size; to++) {
        s.peer[to] = join(team, to, s.box);
        for (int m = 0; m < MEMORIES; m++)
            s.remote[to][m] = take_memory(team, to, s.box, s.peer[to]);
    }
    return s;
}

struct target {
    struct box *box;
    weft_memory *memory[MEMORIES];
    uint8_t *bytes[MEMORIES];
};

static struct target open_target(struct team *team)
{
    struct target t;
    t.box = open_set();
    join(team, 0, t.box);
    for (int m = 0; m < MEMORIES; m++) {
        t.bytes[m] = map_bytes(SMALL);
        t.memory[m] = register_nth(t.box->endpoint, t.bytes[m], m);
        give_memory(team, 0, t.memory[m]);
    }
    return t;
}

static struct list_request list_args(const weft_list_entry *entries, uint64_t count)
{
    struct list_request args = LIST_REQUEST_INIT;
    args.entries = entries;
    args.count = count;
    return args;
}

static weft_list_entry entry_of(const struct source *s, int to, int m, uint64_t at, uint64_t len)
{
    weft_list_entry entry = {s->local[m], s->remote[to][m], 0, 0, 0, at, at, len, 0};
    return entry;
}

/* ---- Random entries, against a model ---- */

#define ROUNDS 8
#define PER_ROUND 1500
#define PIECE_OF 160 /* destinations are pieces of this length that do not overlap */

struct plan {
    weft_list_entry entry[PER_ROUND];
    int to[PER_ROUND];
    int memory[PER_ROUND];
    uint64_t bytes[ALL];
    uint32_t count[ALL];
};

static uint64_t place_of(int m, uint32_t range, uint64_t offset)
{
    return m == 0 ? range * (SMALL / 200) + offset : offset;
}

/* Piece `i` of one memory: its range, and its offset there. */
static void nth_piece(int m, uint64_t i, uint32_t *range, uint64_t *offset)
{
    uint64_t len = m == 0 ? SMALL / 200 : SMALL, of_range = len / PIECE_OF;
    *range = m == 0 ? (uint32_t)(i / of_range % 200) : 0;
    *offset = i % of_range * PIECE_OF;
}

/* Entries of 0, 1 and up to PIECE_OF bytes; a few larger ones in memories of their own. */
static void make_plan(struct plan *plan, const struct source *s, int size, uint64_t seed)
{
    memset(plan, 0, sizeof *plan);
    for (uint64_t i = 0; i < PER_ROUND; i++) {
        uint64_t random = mix(seed * 100000 + i);
        int to = 1 + (int)(random % (uint64_t)(size - 1)), m = (int)(random >> 8 & 1);
        weft_list_entry *e = &plan->entry[i];
        e->len = i % 5 == 0 ? 1 : i % 7 == 0 ? 0 : 1 + (random >> 16) % PIECE_OF;
        nth_piece(m, i, &e->remote_range, &e->remote_offset);
        nth_piece(m, mix(random) % 1000, &e->local_range, &e->local_offset);
        if (i % 100 == 50) { /* a larger one, cut into pieces */
            uint64_t part = SMALL / (PER_ROUND / 100);
            m = 2 + (int)(i / 100 % 2);
            *e = (weft_list_entry){0};
            e->remote_offset = i / 100 * part;
            e->local_offset = i % 128;
            e->len = part - 128;
        }
        plan->to[i] = to;
        plan->memory[i] = m;
        if (s) {
            e->local = e->len || i % 3 ? s->local[m] : NULL;
            e->remote = e->len || i % 2 ? s->remote[to][m] : NULL;
            e->peer = !e->remote || i % 11 == 0 ? s->peer[to] : 0;
        }
        plan->bytes[to] += e->len;
        plan->count[to]++;
    }
}

/* A target's contents after a round, with the source's bytes from `seed`. */
static void apply(uint8_t *want[MEMORIES], const struct plan *plan, int rank, uint8_t *from[MEMORIES])
{
    for (int i = 0; i < PER_ROUND; i++) {
        const weft_list_entry *e = &plan->entry[i];
        int m = plan->memory[i];
        if (plan->to[i] == rank)
            memcpy(want[m] + place_of(m, e->remote_range, e->remote_offset),
                   from[m] + place_of(m, e->local_range, e->local_offset), e->len);
    }
}

static void fill_all(uint8_t *bytes[MEMORIES], uint64_t seed)
{
    for (int m = 0; m < MEMORIES; m++)
        fill_random(bytes[m], SMALL, seed * 10 + (uint64_t)m);
}

static void check_done(const weft_completion *c, const struct plan *plan, weft_op id,
                       int size, bool read)
{
    uint64_t all = 0;
    for (int to = 1; to < size; to++)
        all += plan->bytes[to];
    CHECK_OK(c->status);
    CHECK_EQ(c->kind, read ? WEFT_COMPLETION_READ : WEFT_COMPLETION_WRITE);
    CHECK_EQ(c->op, id);
    CHECK_EQ(c->bytes, all);
    CHECK_EQ(c->entry, UINT64_MAX);
    CHECK(c->submit_ns <= c->first_post_ns && c->first_post_ns <= c->done_ns);
}

static void writes_lists(struct team *team)
{
    struct source s = open_source(team);
    struct plan *plan = malloc(sizeof *plan);
    for (uint64_t round = 0; round < ROUNDS; round++) {
        make_plan(plan, &s, team->size, round);
        fill_all(s.bytes, round);
        struct list_request args = list_args(plan->entry, PER_ROUND);
        char data[32];
        int n = snprintf(data, sizeof data, "round %d", (int)round);
        weft_op id = 0;
        args.options.flags = WEFT_NOTIFY | (round % 3 == 1 ? WEFT_CLASS_LATENCY : 0);
        args.options.notify = 1000 + round;
        args.options.notify_data = data;
        args.options.notify_data_len = (uint32_t)n;
        args.options.user_data = data;
        CHECK_OK(submit_write_list(s.box->endpoint, &args, &id));
        weft_completion c = box_await(s.box, id, patience_ms());
        check_done(&c, plan, id, team->size, false);
        CHECK(c.user_data == data);
        CHECK_EQ(c.peer, team->size == 2 ? s.peer[1] : 0);
        for (int to = 1; to < team->size; to++)
            meet(team, to, s.box);
    }
    box_quiet(s.box, 50);
    for (int to = 1; to < team->size; to++)
        meet(team, to, s.box);
    box_close(s.box);
}

static void is_written(struct team *team)
{
    struct target t = open_target(team);
    struct plan *plan = malloc(sizeof *plan);
    uint8_t *want[MEMORIES], *from[MEMORIES];
    for (int m = 0; m < MEMORIES; m++) {
        want[m] = map_bytes(SMALL);
        from[m] = map_bytes(SMALL);
    }
    for (uint64_t round = 0; round < ROUNDS; round++) {
        char data[32];
        int n = snprintf(data, sizeof data, "round %d", (int)round);
        make_plan(plan, NULL, team->size, round);
        fill_all(from, round);
        apply(want, plan, team->rank, from);
        weft_completion c = box_take(t.box, WEFT_COMPLETION_NOTIFICATION, patience_ms());
        CHECK_EQ(c.notify, 1000 + round);
        CHECK_EQ(c.bytes, n);
        CHECK(memcmp(c.data, data, (size_t)n) == 0);
        CHECK_OK(weft_message_release(t.box->endpoint, c.op));
        for (int m = 0; m < MEMORIES; m++)
            for (uint64_t i = 0; i < SMALL; i++)
                if (t.bytes[m][i] != want[m][i])
                    FAIL("round %d: byte %d of memory %d", (int)round, (int)i, m);
        meet(team, 0, t.box);
    }
    meet(team, 0, t.box);
    box_quiet(t.box, 1);
    box_close(t.box);
}

static void to_many_peers(struct setting s)
{
    const role roles[ALL] = {writes_lists, is_written, is_written, is_written};
    setting = s;
    run_team(ALL, roles);
}

static void writes_to_many_peers(void)
{
    to_many_peers((struct setting){1, 1, WEFT_PROGRESS_THREADS});
}

static void writes_to_many_peers_on_four_rails(void)
{
    to_many_peers((struct setting){4, 2, WEFT_PROGRESS_THREADS});
}

static void writes_to_many_peers_manually(void)
{
    to_many_peers((struct setting){1, 1, WEFT_PROGRESS_MANUAL});
}

static void writes_to_one_peer(void)
{
    setting = (struct setting){1, 1, WEFT_PROGRESS_THREADS};
    run_pair(writes_lists, is_written);
}

/* ---- Reads ---- */

static void reads_lists(struct team *team)
{
    struct source s = open_source(team);
    struct plan *plan = malloc(sizeof *plan);
    uint8_t *held[ALL][MEMORIES]; /* what the targets have */
    for (int to = 1; to < team->size; to++)
        for (int m = 0; m < MEMORIES; m++) {
            held[to][m] = map_bytes(SMALL);
            fill_random(held[to][m], SMALL, (uint64_t)to * 10 + (uint64_t)m);
        }
    for (int to = 1; to < team->size; to++)
        meet(team, to, s.box);
    for (uint64_t round = 0; round < ROUNDS; round++) {
        uint8_t *want[MEMORIES];
        make_plan(plan, &s, team->size, round);
        for (int i = 0; i < PER_ROUND; i++) { /* the local side is the one without overlaps */
            weft_list_entry *e = &plan->entry[i];
            uint64_t offset = e->local_offset;
            uint32_t range = e->local_range;
            e->local_offset = e->remote_offset, e->local_range = e->remote_range;
            e->remote_offset = offset, e->remote_range = range;
        }
        for (int m = 0; m < MEMORIES; m++) {
            want[m] = map_bytes(SMALL);
            memset(s.bytes[m], 0, SMALL);
        }
        for (int i = 0; i < PER_ROUND; i++) {
            const weft_list_entry *e = &plan->entry[i];
            int m = plan->memory[i];
            memcpy(want[m] + place_of(m, e->local_range, e->local_offset),
                   held[plan->to[i]][m] + place_of(m, e->remote_range, e->remote_offset), e->len);
        }
        struct list_request args = list_args(plan->entry, PER_ROUND);
        weft_op id;
        args.options.flags = WEFT_NOTIFY;
        args.options.notify = round;
        CHECK_OK(submit_read_list(s.box->endpoint, &args, &id));
        weft_completion c = box_await(s.box, id, patience_ms());
        check_done(&c, plan, id, team->size, true);
        for (int m = 0; m < MEMORIES; m++) {
            for (uint64_t i = 0; i < SMALL; i++)
                if (s.bytes[m][i] != want[m][i])
                    FAIL("round %d: byte %d of memory %d", (int)round, (int)i, m);
            munmap(want[m], SMALL);
        }
    }
    for (int to = 1; to < team->size; to++)
        meet(team, to, s.box);
    box_close(s.box);
}

static void is_read(struct team *team)
{
    struct target t = open_target(team);
    fill_all(t.bytes, (uint64_t)team->rank);
    meet(team, 0, t.box);
    for (uint64_t round = 0; round < ROUNDS; round++)
        CHECK_EQ(box_take(t.box, WEFT_COMPLETION_NOTIFICATION, patience_ms()).notify, round);
    meet(team, 0, t.box);
    box_close(t.box);
}

static void reads_from_many_peers(void)
{
    const role roles[ALL] = {reads_lists, is_read, is_read, is_read};
    setting = (struct setting){1, 1, WEFT_PROGRESS_THREADS};
    run_team(ALL, roles);
}

/* ---- One completion for each peer; empty entries; refusals ---- */

static void completes_each(struct team *team)
{
    struct source s = open_source(team);
    weft_endpoint *ep = s.box->endpoint;
    weft_list_entry entries[200];
    for (uint64_t i = 0; i < 200; i++)
        entries[i] = entry_of(&s, 1 + (int)(i % TARGETS), 1, i * 100, 1 + i % TARGETS * 10);
    for (int round = 0; round < 20; round++) {
        struct list_request args = list_args(entries, 198);
        weft_op id;
        int seen[ALL] = {0};
        args.options.flags = WEFT_COMPLETE_EACH_PEER | WEFT_NOTIFY;
        args.options.user_data = seen;
        CHECK_OK(submit_write_list(ep, &args, &id));
        for (int k = 0; k < TARGETS; k++) {
            weft_completion c = box_take(s.box, WEFT_COMPLETION_WRITE, patience_ms());
            CHECK_OK(c.status);
            CHECK_EQ(c.op, id);
            CHECK(c.user_data == seen);
            for (int to = 1; to < ALL; to++)
                if (c.peer == s.peer[to]) {
                    seen[to]++;
                    CHECK_EQ(c.bytes, 66 * (1 + (to - 1) * 10));
                }
        }
        CHECK(seen[1] == 1 && seen[2] == 1 && seen[3] == 1);
        CHECK_STATUS(weft_op_cancel(ep, id), WEFT_ERR_HANDLE);
    }
    /* No bytes: only notifications. */
    for (int to = 1; to < ALL; to++)
        entries[to - 1] = (weft_list_entry){.peer = s.peer[to]};
    struct list_request empty = list_args(entries, TARGETS);
    weft_op id;
    empty.options.flags = WEFT_NOTIFY;
    empty.options.notify = 77;
    CHECK_OK(submit_write_list(ep, &empty, &id));
    weft_completion c = box_await(s.box, id, patience_ms());
    CHECK_OK(c.status);
    CHECK_EQ(c.bytes, 0);
    empty.options.flags = 0, empty.options.notify = 0;
    CHECK_OK(submit_read_list(ep, &empty, &id));
    CHECK_OK(box_await(s.box, id, patience_ms()).status);
    /* Everything has ended: an endpoint with an operation in flight cannot be destroyed. */
    box_quiet(s.box, 20);
    for (int to = 1; to < ALL; to++)
        meet(team, to, s.box);
    CHECK_OK(weft_endpoint_destroy(ep));
}

static void is_completed(struct team *team)
{
    struct target t = open_target(team);
    for (int round = 0; round < 20; round++)
        box_take(t.box, WEFT_COMPLETION_NOTIFICATION, patience_ms());
    CHECK_EQ(box_take(t.box, WEFT_COMPLETION_NOTIFICATION, patience_ms()).notify, 77);
    meet(team, 0, t.box);
    box_close(t.box);
}

static void one_completion_for_each_peer(void)
{
    const role roles[ALL] = {completes_each, is_completed, is_completed, is_completed};
    setting = (struct setting){1, 1, WEFT_PROGRESS_THREADS};
    run_team(ALL, roles);
}

/* ---- A peer that dies, deadlines, cancels ---- */

/* Peer 2 sleeps and is killed; the others get everything. */
static void loses_a_peer(struct team *team)
{
    struct source s = open_source(team);
    weft_list_entry entries[300];
    for (uint64_t i = 0; i < 300; i++)
        entries[i] = entry_of(&s, 1 + (int)((i + 2) % TARGETS), 1, i * 800, 800);
    /* 0 goes to 3, 1 to 1, 2 to 2. */
    fill_all(s.bytes, 5);
    meet(team, 2, s.box);
    kill_member(team, 2);
    struct list_request args = list_args(entries, 300);
    weft_op id, each;
    args.options.flags = WEFT_NOTIFY;
    args.options.timeout_ns = 3 * SECOND;
    judged_from();
    CHECK_OK(submit_write_list(s.box->endpoint, &args, &id));
    weft_completion c = box_await(s.box, id, patience_ms());
    CHECK_ONE_OF(c.status, WEFT_ERR_PEER_LOST, WEFT_ERR_TIMED_OUT);
    CHECK_EQ(c.peer, s.peer[2]);
    CHECK_EQ(c.entry, 2);
    CHECK_EQ(c.bytes, 0);
    CHECK_WITHIN(c.submit_ns + 3 * SECOND, c.done_ns, LATE_MOST);
    args.options.flags |= WEFT_COMPLETE_EACH_PEER;
    args.options.timeout_ns = 0; /* operations to the others have time */
    weft_status status = submit_write_list(s.box->endpoint, &args, &each);
    if (status == WEFT_OK) {
        for (int k = 0; k < TARGETS; k++) {
            c = box_take(s.box, WEFT_COMPLETION_WRITE, patience_ms());
            CHECK_EQ(c.op, each);
            if (c.peer == s.peer[2]) {
                CHECK_ONE_OF(c.status, WEFT_ERR_PEER_LOST, WEFT_ERR_TIMED_OUT);
                CHECK_EQ(c.entry, 2);
            } else {
                CHECK_OK(c.status);
                CHECK_EQ(c.bytes, 80000);
            }
        }
    } else {
        /* Already lost: refused, and nothing was moved. */
        CHECK_STATUS(status, WEFT_ERR_PEER_LOST);
        CHECK(strstr(weft_last_error(), "entry 2:"));
        weft_list_entry left[200];
        int n = 0;
        for (int i = 0; i < 300; i++)
            if (i % 3 != 2)
                left[n++] = entries[i];
        args.entries = left;
        args.count = 200;
        args.options.flags = WEFT_NOTIFY;
        CHECK_OK(submit_write_list(s.box->endpoint, &args, &each));
        CHECK_OK(box_await(s.box, each, patience_ms()).status);
    }
    meet(team, 1, s.box);
    meet(team, 3, s.box);
    box_close(s.box);
}

static void survives(struct team *team)
{
    struct target t = open_target(team);
    for (int k = 0; k < 2; k++) {
        box_take(t.box, WEFT_COMPLETION_NOTIFICATION, patience_ms());
        uint8_t *want = map_bytes(SMALL);
        fill_random(want, SMALL, 51);
        for (uint64_t i = 0; i < 300; i++)
            if (1 + (int)((i + 2) % TARGETS) == team->rank)
                CHECK(memcmp(t.bytes[1] + i * 800, want + i * 800, 800) == 0);
        munmap(want, SMALL);
    }
    meet(team, 0, t.box);
    box_close(t.box);
}

static void dies(struct team *team)
{
    struct target t = open_target(team);
    meet(team, 0, t.box);
    for (;;)
        sleep_ms(1000);
}

static void list_to_a_peer_that_is_killed(void)
{
    const role roles[ALL] = {loses_a_peer, survives, dies, survives};
    setting = (struct setting){1, 1, WEFT_PROGRESS_THREADS};
    run_team(ALL, roles);
}

/* Rank 2 makes no progress: operations to it wait. */
static void waits_in_vain(struct team *team)
{
    struct source s = open_source(team);
    weft_list_entry entries[200];
    for (uint64_t i = 0; i < 200; i++)
        entries[i] = entry_of(&s, 1 + (int)(i % 2), 1, i * 1000, 1000);
    struct list_request args = list_args(entries, 200);
    weft_op id;
    CHECK_OK(submit_write_list(s.box->endpoint, &args, &id));
    for (int k = 0; k < 2; k++) {
        uint64_t one = 1;
        tell(team, 2, &one, sizeof one);
        if (k == 0)
            CHECK_OK(box_await(s.box, id, patience_ms()).status);
    }
    uint64_t slept;
    hear(team, 2, s.box, &slept, sizeof slept);
    args.options.flags = WEFT_NOTIFY;
    args.options.timeout_ns = 1500 * MS;
    judged_from();
    CHECK_OK(submit_write_list(s.box->endpoint, &args, &id));
    weft_completion c = box_await(s.box, id, patience_ms());
    CHECK_STATUS(c.status, WEFT_ERR_TIMED_OUT);
    CHECK_EQ(c.peer, s.peer[2]);
    CHECK_EQ(c.entry, 1);
    CHECK(c.done_ns - c.submit_ns >= 1500 * MS);
    CHECK_WITHIN(c.submit_ns + 1500 * MS, c.done_ns, LATE_MOST);
    args.options.timeout_ns = 0;
    for (int each = 0; each < 2; each++) {
        args.options.flags = WEFT_NOTIFY | (each ? WEFT_COMPLETE_EACH_PEER : 0);
        CHECK_OK(submit_write_list(s.box->endpoint, &args, &id));
        if (each) {
            c = box_await(s.box, id, patience_ms());
            CHECK_OK(c.status);
            CHECK_EQ(c.peer, s.peer[1]);
        } else {
            canary_sleep_ms(200); /* operations to the other arrive */
        }
        uint64_t began = now_ns();
        CHECK_OK(weft_op_cancel(s.box->endpoint, id));
        c = box_await(s.box, id, patience_ms());
        CHECK_WITHIN(began, c.done_ns, LATE_MOST);
        CHECK_STATUS(c.status, WEFT_ERR_CANCELED);
        CHECK_EQ(c.peer, s.peer[2]);
        CHECK_EQ(c.entry, 1);
        CHECK_STATUS(weft_op_cancel(s.box->endpoint, id), WEFT_ERR_HANDLE);
    }
    box_quiet(s.box, 20);
    tell(team, 2, &slept, sizeof slept);
    meet(team, 1, s.box);
    meet(team, 2, s.box);
    box_close(s.box);
}

static void stays_awake(struct team *team)
{
    struct target t = open_target(team);
    meet(team, 0, t.box);
    box_close(t.box);
}

static void falls_asleep(struct team *team)
{
    uint64_t word;
    weft_endpoint_config config = test_config();
    struct target t;
    config.progress = WEFT_PROGRESS_MANUAL;
    t.box = box_of(open_with(&config));
    join(team, 0, t.box);
    for (int m = 0; m < MEMORIES; m++) {
        t.bytes[m] = map_bytes(SMALL);
        give_memory(team, 0, register_nth(t.box->endpoint, t.bytes[m], m));
    }
    hear(team, 0, t.box, &word, sizeof word);
    hear(team, 0, t.box, &word, sizeof word);
    tell(team, 0, &word, sizeof word);
    hear(team, 0, NULL, &word, sizeof word); /* the endpoint is not polled meanwhile */
    meet(team, 0, t.box);
    box_close(t.box);
}

static void deadlines_and_cancels(void)
{
    const role roles[3] = {waits_in_vain, stays_awake, falls_asleep};
    setting = (struct setting){1, 1, WEFT_PROGRESS_THREADS};
    run_team(3, roles);
}

/* ---- Large offsets ---- */

#define SPARSE (UINT64_C(6) * GIB)

static uint8_t *map_sparse(void)
{
    void *bytes = mmap(NULL, SPARSE, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (bytes == MAP_FAILED)
        skip("no 6 GiB of address space");
    return bytes;
}

static void writes_far(struct team *team)
{
    struct box *box = open_set();
    weft_peer peer = join(team, 1, box);
    uint8_t *bytes = map_sparse();
    weft_memory *memory = register_one(box->endpoint, bytes, SPARSE);
    weft_remote_memory *theirs = take_memory(team, 1, box, peer);
    const uint64_t at[] = {0, 4 * GIB - 3, 4 * GIB + 5000, SPARSE - 3 * MIB};
    weft_list_entry entries[COUNT(at)];
    for (size_t i = 0; i < COUNT(at); i++) {
        uint64_t len = i == 3 ? 3 * MIB : 4000;
        fill_random(bytes + at[i], len, i);
        entries[i] = (weft_list_entry){memory, theirs, peer, 0, 0, at[i], SPARSE - at[i] - len, len, 0};
    }
    struct list_request args = list_args(entries, COUNT(at));
    weft_op id;
    args.options.flags = WEFT_NOTIFY;
    CHECK_OK(submit_write_list(box->endpoint, &args, &id));
    CHECK_OK(box_await(box, id, patience_ms()).status);
    meet(team, 1, box);
    box_close(box);
}

static void is_far(struct team *team)
{
    struct box *box = open_set();
    join(team, 0, box);
    uint8_t *bytes = map_sparse();
    give_memory(team, 0, register_one(box->endpoint, bytes, SPARSE));
    box_take(box, WEFT_COMPLETION_NOTIFICATION, patience_ms());
    const uint64_t at[] = {0, 4 * GIB - 3, 4 * GIB + 5000, SPARSE - 3 * MIB};
    for (size_t i = 0; i < COUNT(at); i++) {
        uint64_t len = i == 3 ? 3 * MIB : 4000;
        CHECK_EQ(differs_random(bytes + SPARSE - at[i] - len, len, i), -1);
    }
    meet(team, 0, box);
    box_close(box);
}

static void list_offsets_beyond_4_gib_work(void)
{
    setting = (struct setting){1, 1, WEFT_PROGRESS_THREADS};
    run_pair(writes_far, is_far);
}

/* ---- Limits and bad input ---- */

static struct duo duo;

static void refused(weft_status want, const char *text, weft_list_entry bad)
{
    weft_list_entry entries[3] = {{duo.a_memory, duo.b_of_a, 0, 0, 0, 0, 0, 100, 0}, bad, bad};
    struct list_request args = list_args(entries, 2);
    weft_op id = 4711;
    weft_prepared *kept = (weft_prepared *)1;
    REFUSED(want, submit_write_list(duo.a->endpoint, &args, &id));
    if (!strstr(weft_last_error(), "entry 1:") || !strstr(weft_last_error(), text))
        FAIL("it does not name entry 1 and \"%s\"", text);
    REFUSED(want, submit_read_list(duo.a->endpoint, &args, &id));
    CHECK_EQ(id, 4711);
    REFUSED(want, prepare_list(duo.a->endpoint, &args, &kept));
    CHECK(kept == (weft_prepared *)1);
}

static void invalid_list_entries_are_named(void)
{
    duo = duo_open(MIB);
    weft_list_entry good = {duo.a_memory, duo.b_of_a, 0, 0, 0, 0, 0, 100, 0}, e;
    e = good, e.local = NULL, refused(WEFT_ERR_HANDLE, "NULL", e);
    e = good, e.remote = NULL, refused(WEFT_ERR_HANDLE, "neither", e);
    e = good, e.remote = NULL, e.peer = duo.a_to_b, refused(WEFT_ERR_HANDLE, "NULL", e);
    e = good, e.local = (weft_memory *)duo.b_of_a, refused(WEFT_ERR_HANDLE, "weft_remote_memory", e);
    e = good, e.remote = (weft_remote_memory *)&duo, refused(WEFT_ERR_HANDLE, "never returned", e);
    e = good, e.local = duo.b_memory, refused(WEFT_ERR_HANDLE, "another endpoint", e);
    e = good, e.peer = duo.a_to_b + 1, refused(WEFT_ERR_INVALID, "peer", e);
    e = good, e.local_range = 1, refused(WEFT_ERR_RANGE, "local_range 1", e);
    e = good, e.remote_range = UINT32_MAX, refused(WEFT_ERR_RANGE, "remote_range 4294967295", e);
    e = good, e.local_offset = MIB - 99, refused(WEFT_ERR_RANGE, "local_offset 1048477", e);
    e = good, e.remote_offset = UINT64_MAX, refused(WEFT_ERR_RANGE, "remote_offset", e);
    e = good, e.len = MIB + 1, refused(WEFT_ERR_RANGE, "1048577 bytes", e);
    e = good, e.len = UINT64_MAX, refused(WEFT_ERR_RANGE, "bytes", e);
    e = good, e.counter = 5, refused(WEFT_ERR_HANDLE, "counter", e);
    memset(&e, 0, sizeof e), refused(WEFT_ERR_HANDLE, "neither", e);
    e.peer = UINT64_C(0x1234567800000001), refused(WEFT_ERR_HANDLE, "not a peer", e);
    weft_memory *local;
    weft_memory_range range = {map_bytes(4096), 4096};
    CHECK_OK(weft_memory_register(duo.a->endpoint, &range, 1, NULL, &local));
    CHECK_OK(weft_memory_deregister(local));
    e = good, e.local = local, refused(WEFT_ERR_HANDLE, "given back before", e);
    box_quiet(duo.a, 20);
    duo_close(&duo);
}

static void bad_arguments(void)
{
    duo = duo_open(MIB);
    weft_endpoint *ep = duo.a->endpoint;
    weft_list_entry *entries = calloc(WEFT_LIST_ENTRIES_MAX + 1, sizeof *entries);
    const struct list_request good = list_args(entries, 2);
    struct list_request args;
    for (uint64_t i = 0; i <= WEFT_LIST_ENTRIES_MAX; i++)
        entries[i] = (weft_list_entry){duo.a_memory, duo.b_of_a, 0, 0, 0, i % 1000, i, i % 1000 == 0, 0};
    REFUSED(WEFT_ERR_INVALID, weft_write_list(ep, NULL, 1, NULL, NULL));
    REFUSED(WEFT_ERR_HANDLE, submit_write_list(NULL, &good, NULL));
    args = good, args.options.size = 3;
    REFUSED(WEFT_ERR_INVALID, submit_write_list(ep, &args, NULL));
    args = good, args.options.flags = 1u << 31;
    REFUSED(WEFT_ERR_UNSUPPORTED, submit_write_list(ep, &args, NULL));
    args = good, args.entries = NULL;
    REFUSED(WEFT_ERR_INVALID, submit_write_list(ep, &args, NULL));
    args = good, args.entries = (const void *)((const char *)entries + 1);
    REFUSED(WEFT_ERR_INVALID, submit_write_list(ep, &args, NULL));
    args = good, args.count = 0;
    REFUSED(WEFT_ERR_INVALID, submit_write_list(ep, &args, NULL));
    args = good, args.count = WEFT_LIST_ENTRIES_MAX + 1;
    REFUSED(WEFT_ERR_LIMIT, submit_write_list(ep, &args, NULL));
    args = good, args.count = UINT64_MAX;
    REFUSED(WEFT_ERR_LIMIT, submit_write_list(ep, &args, NULL));
    args = good, args.options.notify_data_len = 1;
    REFUSED(WEFT_ERR_INVALID, submit_write_list(ep, &args, NULL));
    args = good, args.options.flags = WEFT_NOTIFY, args.options.notify_data_len = 1;
    REFUSED(WEFT_ERR_INVALID, submit_write_list(ep, &args, NULL));
    args = good, args.options.flags = WEFT_NOTIFY, args.options.notify_data = entries, args.options.notify_data_len = 257;
    REFUSED(WEFT_ERR_LIMIT, submit_write_list(ep, &args, NULL));
    args = good, args.options.reserved = 1;
    REFUSED(WEFT_ERR_UNSUPPORTED, submit_write_list(ep, &args, NULL));
    args = good, args.options.timeout_ns = UINT64_MAX;
    REFUSED(WEFT_ERR_LIMIT, submit_write_list(ep, &args, NULL));
    args = good, args.options.queue = (const weft_queue *)duo.a_memory;
    REFUSED(WEFT_ERR_HANDLE, submit_write_list(ep, &args, NULL));
    /* The most entries allowed, most of them empty. */
    weft_op id;
    args = good, args.count = WEFT_LIST_ENTRIES_MAX;
    fill_random(duo.a_bytes, MIB, 3);
    CHECK_OK(submit_write_list(ep, &args, &id));
    weft_completion c = box_await(duo.a, id, patience_ms());
    CHECK_OK(c.status);
    CHECK_EQ(c.bytes, 1049);
    for (uint64_t i = 0; i < MIB; i++)
        CHECK_EQ(duo.b_bytes[i], i % 1000 ? 0 : duo.a_bytes[0]);
    /* The ranges and offsets of an empty entry are ignored. */
    entries[0] = (weft_list_entry){NULL, duo.b_of_a, duo.a_to_b, 9, 9, UINT64_MAX, UINT64_MAX, 0, 0};
    args = list_args(entries, 1);
    CHECK_OK(submit_write_list(ep, &args, &id));
    CHECK_OK(box_await(duo.a, id, patience_ms()).status);
    free(entries);
    duo_close(&duo);
}

/* A list for which the table or the queue is too full starts nothing. */
static void list_without_room_is_refused(void)
{
    weft_endpoint_config config = test_config();
    struct box *hub, *leaf[4];
    weft_list_entry entries[4];
    char blob[4096];
    config.max_transfers = 4;
    hub = box_of(open_with(&config));
    for (int i = 0; i < 4; i++) {
        weft_peer peer;
        leaf[i] = box_of(open_endpoint());
        size_t n = address_of(leaf[i]->endpoint, blob, sizeof blob);
        CHECK_OK(weft_peer_connect(hub->endpoint, blob, n, NULL, &peer));
        CHECK_OK(box_take(hub, WEFT_COMPLETION_PEER_UP, patience_ms()).status);
        entries[i] = (weft_list_entry){.peer = peer};
    }
    struct list_request args = list_args(entries, 4);
    weft_op id;
    weft_queue *queue;
    args.options.flags = WEFT_NOTIFY;
    REFUSED(WEFT_ERR_LIMIT, submit_write_list(hub->endpoint, &args, &id)); /* 5 of max_transfers */
    for (int k = 0; k < 50; k++) {
        args.count = 1 + (uint64_t)k % 3;
        CHECK_OK(submit_write_list(hub->endpoint, &args, &id));
        CHECK_OK(box_await(hub, id, patience_ms()).status);
    }
    /* A queue full of completions that are not polled. */
    CHECK_OK(weft_queue_create(hub->endpoint, 16, &queue));
    args.count = 3;
    args.options.queue = queue;
    args.options.flags = WEFT_NOTIFY | WEFT_COMPLETE_EACH_PEER;
    weft_completion done[16];
    int lists = 0;
    uint64_t until = now_ns() + patience_ms() * MS;
    while (lists < 5 && now_ns() < until) {
        weft_status status = submit_write_list(hub->endpoint, &args, &id);
        CHECK(status == WEFT_OK || status == WEFT_ERR_AGAIN);
        lists += status == WEFT_OK;
        sleep_ms(1);
    }
    CHECK_EQ(lists, 5); /* 15 of 16 places */
    sleep_ms(300);
    REFUSED(WEFT_ERR_AGAIN, submit_write_list(hub->endpoint, &args, &id));
    CHECK_EQ(weft_queue_poll(queue, done, 16, 0), 15);
    CHECK_OK(weft_queue_destroy(queue));
    for (int i = 0; i < 4; i++)
        box_close(leaf[i]);
    box_close(hub);
}

/* More peers than a queue has places: polling would not help. */
static void list_with_more_completions_than_the_queue_is_refused(void)
{
    enum { LEAVES = 17 };
    struct box *hub = box_of(open_endpoint()), *leaf[LEAVES];
    weft_list_entry entries[LEAVES];
    char blob[4096];
    weft_queue *queue;
    weft_completion done[LEAVES];
    for (int i = 0; i < LEAVES; i++) {
        weft_peer peer;
        leaf[i] = box_of(open_endpoint());
        size_t n = address_of(leaf[i]->endpoint, blob, sizeof blob);
        CHECK_OK(weft_peer_connect(hub->endpoint, blob, n, NULL, &peer));
        entries[i] = (weft_list_entry){.peer = peer};
    }
    for (int i = 0; i < LEAVES; i++)
        CHECK_OK(box_take(hub, WEFT_COMPLETION_PEER_UP, patience_ms()).status);
    CHECK_OK(weft_queue_create(hub->endpoint, LEAVES - 1, &queue));
    struct list_request args = list_args(entries, LEAVES);
    args.options.queue = queue;
    CHECK_OK(submit_write_list(hub->endpoint, &args, NULL)); /* one for all */
    CHECK_EQ(weft_queue_poll(queue, done, LEAVES, patience_ms() * MS), 1);
    args.options.flags = WEFT_COMPLETE_EACH_PEER;
    REFUSED(WEFT_ERR_LIMIT, submit_write_list(hub->endpoint, &args, NULL));
    args.count = LEAVES - 1;
    CHECK_OK(submit_write_list(hub->endpoint, &args, NULL));
    CHECK_EQ(weft_queue_poll(queue, done, LEAVES, patience_ms() * MS), LEAVES - 1);
    CHECK_OK(weft_queue_destroy(queue));
    for (int i = 0; i < LEAVES; i++)
        box_close(leaf[i]);
    box_close(hub);
}

/* Each of two memories is registered with one rail, and no rail has both. */
static void list_memories_without_a_common_rail_fail(void)
{
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    config.fabric = "sim:like=verbs:rails=2:world=apart";
    struct duo duo = duo_open_with(2 * MIB, &config);
    weft_list_entry entries[2];
    for (uint64_t i = 0; i < COUNT(entries); i++) {
        weft_memory_args args = WEFT_MEMORY_ARGS_INIT;
        weft_memory_range range = {duo.a_bytes + i * MIB, MIB};
        weft_memory *memory;
        args.rails = 1u << i;
        CHECK_OK(weft_memory_register(duo.a->endpoint, &range, 1, &args, &memory));
        entries[i] = (weft_list_entry){.local = memory, .remote = duo.b_of_a, .remote_offset = i * MIB, .len = 100};
    }
    struct list_request list = list_args(entries, COUNT(entries));
    CHECK_OK(submit_write_list(duo.a->endpoint, &list, NULL));
    CHECK_STATUS(box_take(duo.a, WEFT_COMPLETION_WRITE, patience_ms()).status, WEFT_ERR_NO_RAILS);
    list.count = 1;
    CHECK_OK(submit_write_list(duo.a->endpoint, &list, NULL));
    CHECK_OK(box_take(duo.a, WEFT_COMPLETION_WRITE, patience_ms()).status);
    duo_close(&duo);
}

static const struct test tests[] = {
    {"writes_to_many_peers", "any", writes_to_many_peers},
    {"writes_to_many_peers_on_four_rails", "tcp,sim:like=tcp,sim:like=efa,sim:like=verbs",
     writes_to_many_peers_on_four_rails},
    {"writes_to_many_peers_manually", "any", writes_to_many_peers_manually},
    {"writes_to_one_peer", "any", writes_to_one_peer},
    {"reads_from_many_peers", "any wide", reads_from_many_peers},
    {"one_completion_for_each_peer", "any", one_completion_for_each_peer},
    {"list_to_a_peer_that_is_killed", "tcp,host timed", list_to_a_peer_that_is_killed},
    {"deadlines_and_cancels", "any timed", deadlines_and_cancels},
    {"list_offsets_beyond_4_gib_work", "any", list_offsets_beyond_4_gib_work},
    {"invalid_list_entries_are_named", "once", invalid_list_entries_are_named},
    {"bad_arguments", "tcp,host,sim:like=efa", bad_arguments},
    {"list_without_room_is_refused", "once", list_without_room_is_refused},
    {"list_memories_without_a_common_rail_fail", "once", list_memories_without_a_common_rail_fail},
    {"list_with_more_completions_than_the_queue_is_refused", "tcp,host,sim:like=efa", list_with_more_completions_than_the_queue_is_refused},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
