/*
 * After PEER_DOWN nothing of that peer lands: no byte, no message, no count. Writers with full
 * channels are killed, stopped and lost for their silence, disconnected or shut out by a
 * deregistration and then go on, or leave in the middle of it; all at once, beside one that stays.
 *
 *     WEFT_GHOST_ROUNDS=500 WEFT_TEST_FABRIC=host target/ffi-tests/ghosts threads
 *
 * prints `ghost_bytes_after_peer_down N`.
 */
#include <sys/prctl.h>

#include "harness.h"

#define SLOTS 6
#define STAYS 0 /* This writer lives as long as the test. */
#define LEN MIB
#define PATTERNS 3
#define UNDER_WAY 4

enum fate { KILLED, SILENT, DISCONNECTED, SHUT_OUT, LEAVES };
enum order { NOTHING, START, DOOM, GO_ON, END, QUIT };

/* The memory that target, nursery and writers share. */
struct shared {
    _Atomic int order, round, done;
    _Atomic pid_t pid[SLOTS];
    _Atomic int fate[SLOTS], writing[SLOTS], leaves[SLOTS];
    _Atomic uint64_t writes[SLOTS];
    size_t address_len, descriptor_len, other_len;
    weft_counter counter[SLOTS];
    char address[8192], descriptor[8192], other[8192];
};

static struct shared *shared;
static uint32_t progress;

/* ---- A writer: writes to its part of the target's memory, as fast as it can ---- */

static void writer(int slot)
{
    weft_endpoint_config config = test_config();
    struct box *box = box_of(open_with(&config));
    weft_peer peer;
    CHECK_OK(weft_peer_connect(box->endpoint, shared->address, shared->address_len, NULL, &peer));
    if (box_take(box, WEFT_COMPLETION_PEER_UP, patience_ms()).status != WEFT_OK)
        _exit(1);
    weft_remote_memory *remote, *other;
    CHECK_OK(weft_remote_memory_import(box->endpoint, peer, shared->descriptor, shared->descriptor_len, &remote));
    if (shared->fate[slot] == SHUT_OUT)
        CHECK_OK(weft_remote_memory_import(box->endpoint, peer, shared->other, shared->other_len, &other));
    uint8_t *bytes = map_bytes(PATTERNS * LEN);
    fill_random(bytes, PATTERNS * LEN, (uint64_t)getpid());
    weft_memory *memory = register_one(box->endpoint, bytes, PATTERNS * LEN);
    send_now(box, peer, &slot, sizeof slot);
    int under_way = 0;
    for (uint64_t n = 0;; n++) {
        struct range_request args = range_args(memory, remote, LEN);
        args.local_offset = n % PATTERNS * LEN;
        args.remote_offset = (uint64_t)slot * LEN;
        args.options.counter = shared->counter[slot];
        args.options.flags = WEFT_NOTIFY;
        args.options.notify = (uint64_t)slot;
        weft_status status = submit_write(box->endpoint, &args, NULL);
        if (status != WEFT_OK && status != WEFT_ERR_AGAIN)
            break;
        under_way += status == WEFT_OK;
        if (shared->leaves[slot])
            CHECK_ONE_OF(weft_peer_disconnect(box->endpoint, peer), WEFT_OK, WEFT_ERR_HANDLE, WEFT_ERR_PEER_CLOSED, WEFT_ERR_PEER_LOST);
        weft_completion c;
        do {
            box_pump(box, 1);
            while (box_try(box, WEFT_COMPLETION_WRITE, &c)) {
                under_way--;
                shared->writes[slot]++;
                shared->writing[slot] |= c.status == WEFT_OK;
            }
        } while (under_way >= UNDER_WAY && !box_try(box, WEFT_COMPLETION_PEER_DOWN, &c));
    }
    for (;;)
        box_pump(box, 100);
}

/* ---- The nursery: it never calls Weft, so that its forks may ---- */

static bool is_stopped(int fate) { return fate == SILENT || fate == DISCONNECTED || fate == SHUT_OUT; }

static void start_writers(void)
{
    for (int slot = 0; slot < SLOTS; slot++) {
        if (shared->pid[slot] > 0)
            continue;
        shared->writing[slot] = shared->leaves[slot] = 0;
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            writer(slot);
        }
        shared->pid[slot] = pid;
    }
}

static void end_writers(int from)
{
    for (int slot = from; slot < SLOTS; slot++)
        if (shared->pid[slot] > 0 && kill(shared->pid[slot], SIGKILL) == 0 &&
            waitpid(shared->pid[slot], NULL, 0) > 0)
            shared->pid[slot] = 0;
}

/* Their channels are full when they die: the target is stopped meanwhile. */
static void doom_writers(pid_t target)
{
    stop_process(target);
    sleep_ms(5);
    for (int slot = STAYS + 1; slot < SLOTS; slot++) {
        int fate = shared->fate[slot];
        if (fate == LEAVES)
            shared->leaves[slot] = 1;
        else
            kill(shared->pid[slot], is_stopped(fate) ? SIGSTOP : SIGKILL);
    }
    sleep_ms(2);
    kill(target, SIGCONT);
}

static void nursery(struct team *team)
{
    for (int round = 0, order = NOTHING; order != QUIT; round++) {
        while (shared->round == round)
            usleep(100);
        switch (order = shared->order) {
        case START: start_writers(); break;
        case DOOM: doom_writers(pid_of(team, 0)); break;
        case GO_ON:
            for (int slot = STAYS + 1; slot < SLOTS; slot++)
                if (is_stopped(shared->fate[slot]))
                    kill(shared->pid[slot], SIGCONT);
            break;
        default: end_writers(order == QUIT ? STAYS : STAYS + 1); break;
        }
        shared->done = round + 1;
    }
}

/* ---- The target ---- */

struct target {
    weft_endpoint *endpoint;
    uint8_t *bytes, *seen;
    weft_peer peer[SLOTS];
    bool down[SLOTS];
    uint64_t counted[SLOTS];
    uint64_t ghost_bytes, ghost_words;
    int deaths;
};

static uint64_t count_of(struct target *t, int slot)
{
    uint64_t count = 0;
    CHECK_OK(weft_counter_read(t->endpoint, shared->counter[slot], &count));
    return count;
}

/* The memory of a peer that is down must not have changed. */
static void look_for_ghosts(struct target *t)
{
    for (int slot = 0; slot < SLOTS; slot++) {
        if (!t->down[slot])
            continue;
        for (uint64_t i = slot * LEN; i < (slot + 1) * LEN; i++)
            t->ghost_bytes += t->bytes[i] != t->seen[i];
        memcpy(t->seen + slot * LEN, t->bytes + slot * LEN, LEN);
        t->ghost_words += count_of(t, slot) - t->counted[slot];
        t->counted[slot] = count_of(t, slot);
    }
}

static void polled(struct target *t, const weft_completion *c)
{
    int slot = 0;
    while (slot < SLOTS && t->peer[slot] != c->peer)
        slot++;
    t->ghost_words += slot < SLOTS && t->down[slot];
    if (c->kind == WEFT_COMPLETION_PEER_DOWN && slot < SLOTS) {
        memcpy(t->seen + slot * LEN, t->bytes + slot * LEN, LEN);
        t->counted[slot] = count_of(t, slot);
        t->down[slot] = true;
        t->deaths++;
        if (slot == STAYS)
            FAIL("the writer that stays is lost: %s", weft_status_name(c->status));
    } else if (c->kind == WEFT_COMPLETION_MESSAGE) {
        CHECK_EQ(c->bytes, sizeof slot);
        memcpy(&slot, c->data, sizeof slot);
        CHECK(slot >= 0 && slot < SLOTS);
        t->peer[slot] = c->peer;
        t->down[slot] = false;
        CHECK_OK(weft_message_release(t->endpoint, c->op));
    }
}

static void poll_for(struct target *t, uint64_t ms)
{
    uint64_t end = now_ns() + ms * MS;
    do {
        weft_completion c[32];
        int n = weft_queue_poll(weft_endpoint_queue(t->endpoint), c, 32, MS);
        CHECK(n >= 0);
        for (int i = 0; i < n; i++)
            polled(t, &c[i]);
    } while (now_ns() < end);
}

static void order(struct target *t, enum order what)
{
    shared->order = what;
    int round = ++shared->round;
    while (shared->done < round && what != QUIT)
        poll_for(t, 0);
}

#define UNTIL(t, what)                                                                      \
    for (uint64_t end_ = now_ns() + patience_ms() * MS; !(what); poll_for(t, 0))            \
    CHECK(now_ns() < end_)

static void doom(struct target *t, bool of_all_kinds, weft_memory *other)
{
    for (int slot = STAYS + 1; slot < SLOTS; slot++) {
        shared->fate[slot] = of_all_kinds ? slot - 1 : KILLED;
        t->peer[slot] = 0;
        t->down[slot] = false;
    }
    order(t, START);
    for (int slot = 0; slot < SLOTS; slot++)
        UNTIL(t, t->peer[slot] != 0 && shared->writing[slot]);
    order(t, DOOM);
    if (of_all_kinds) {
        CHECK_ONE_OF(weft_peer_disconnect(t->endpoint, t->peer[1 + DISCONNECTED]), WEFT_OK, WEFT_ERR_HANDLE, WEFT_ERR_PEER_CLOSED,
                     WEFT_ERR_PEER_LOST);
        CHECK_OK(weft_memory_deregister(other));
    }
    for (int slot = STAYS + 1; slot < SLOTS; slot++)
        UNTIL(t, t->down[slot]);
    order(t, GO_ON);
    poll_for(t, of_all_kinds ? 300 : 20);
    look_for_ghosts(t);
    order(t, END);
    poll_for(t, 5);
    look_for_ghosts(t);
}

static void target(struct team *team)
{
    (void)team;
    const char *wanted = getenv("WEFT_GHOST_ROUNDS");
    int rounds = wanted ? atoi(wanted) : 6;
    weft_endpoint_config config = test_config();
    config.progress = progress;
    config.liveness_ns = patiently(1) * SECOND;
    struct target t = {.endpoint = open_with(&config), .bytes = map_bytes(SLOTS * LEN), .seen = map_bytes(SLOTS * LEN)};
    weft_memory *memory = register_one(t.endpoint, t.bytes, SLOTS * LEN);
    for (int slot = 0; slot < SLOTS; slot++)
        CHECK_OK(weft_counter_create(t.endpoint, &shared->counter[slot]));
    shared->address_len = address_of(t.endpoint, shared->address, sizeof shared->address);
    shared->descriptor_len = descriptor_of(memory, shared->descriptor, sizeof shared->descriptor);
    void *more = map_bytes(LEN);
    for (int round = 0; round < rounds; round++) {
        weft_memory *other = register_one(t.endpoint, more, LEN);
        shared->other_len = descriptor_of(other, shared->other, sizeof shared->other);
        bool of_all_kinds = round % 10 == 1;
        doom(&t, of_all_kinds, other);
        if (!of_all_kinds)
            CHECK_OK(weft_memory_deregister(other));
    }
    uint64_t before = shared->writes[STAYS];
    UNTIL(&t, shared->writes[STAYS] > before);
    order(&t, QUIT);
    printf("%d peers ended\nghost_words_after_peer_down %" PRIu64 "\nghost_bytes_after_peer_down %" PRIu64 "\n",
           t.deaths, t.ghost_words, t.ghost_bytes);
    CHECK_EQ(t.ghost_bytes, 0);
    CHECK_EQ(t.ghost_words, 0);
    CHECK_OK(weft_endpoint_destroy(t.endpoint));
}

static void run(uint32_t how)
{
    progress = how;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    run_pair(target, nursery);
}

static void threads(void) { run(WEFT_PROGRESS_THREADS); }
static void manual(void) { run(WEFT_PROGRESS_MANUAL); }

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        {"threads", "tcp,host", threads},
        {"manual", "host", manual},
        {NULL, NULL, NULL},
    };
    return run_tests(argc, argv, tests);
}
