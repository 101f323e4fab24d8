/* The device model alone: its world is memory of this process, rings are arrays, and time is what a test says. */
#include "abi.h"
#include "model.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(what)                                                              \
    do {                                                                         \
        if (!(what)) {                                                           \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what);   \
            exit(1);                                                             \
        }                                                                        \
    } while (0)

enum { BYTES = 1 << 20, QUEUE = 64, QKEY = 7, PD = 3 };

struct owner {
    uint8_t bytes[BYTES]; /* addresses are offsets */
    enum event last_event;
    int events;
};
struct send_ring {
    struct work work[QUEUE];
    int head, tail;
};
struct receive_ring {
    struct receive receives[QUEUE];
    int head, tail;
};
struct completion_ring {
    struct completion got[QUEUE];
    int count;
};

static enum access load(struct owner *owner, uint64_t at, void *to, size_t len) {
    if (at > BYTES || len > BYTES - at) return ACCESS_FAULT;
    memcpy(to, owner->bytes + at, len);
    return ACCESS_OK;
}

static enum access store(struct owner *owner, uint64_t at, const void *from, size_t len) {
    if (at > BYTES || len > BYTES - at) return ACCESS_FAULT;
    memcpy(owner->bytes + at, from, len);
    return ACCESS_OK;
}

static bool next_work(struct send_ring *ring, struct work *work) {
    if (ring->head == ring->tail) return false;
    *work = ring->work[ring->head++];
    return true;
}

static bool has_receive(struct receive_ring *ring) { return ring->head != ring->tail; }

static bool next_receive(struct receive_ring *ring, struct receive *receive) {
    if (!has_receive(ring)) return false;
    *receive = ring->receives[ring->head++];
    return true;
}

static void complete(struct completion_ring *ring, const struct completion *completion) {
    CHECK(ring->count < QUEUE);
    ring->got[ring->count++] = *completion;
}

static void event(struct owner *owner, enum event what, uint64_t element) {
    (void)element;
    owner->last_event = what;
    owner->events++;
}

static int resets;
static void reset(struct nic *nic) {
    (void)nic;
    resets++;
}

static const struct host host = {load, store, next_work, has_receive, next_receive, complete, event, reset};

/* ---- Two programs, each on a NIC of its own ---- */

static struct fabric fabric;
static struct owner programs[2];
static struct send_ring sends[2];
static struct receive_ring receives[2];
static struct completion_ring completions[2];
static struct cq cqs[2];
static struct qp *qps[2];
static struct mr *mrs[2];
static struct ah *ahs[2];
static uint64_t now;

static void world(uint32_t caps) {
    for (int i = 0; i < fabric.nics; i++) free(fabric.nic[i].mrs);
    fabric_make(&fabric, 2, caps, &host, 5);
    memset(sends, 0, sizeof sends);
    memset(receives, 0, sizeof receives);
    memset(completions, 0, sizeof completions);
    now = 1000;
    for (int i = 0; i < 2; i++) {
        struct mr whole = {.owner = &programs[i], .iova = 0, .len = BYTES, .access = 7, .pd = PD};
        struct qp as = {.owner = &programs[i], .sends = &sends[i], .receives = &receives[i], .pd = PD, .element = 40 + (uint64_t)i};
        memset(programs[i].bytes, 'a' + i, BYTES);
        programs[i].events = 0;
        cqs[i] = (struct cq){.owner = &programs[i], .ring = &completions[i]};
        as.send_cq = as.receive_cq = &cqs[i];
        qps[i] = qp_create(&fabric.nic[i], &as);
        CHECK(qps[i]);
        qps[i]->qkey = QKEY;
        qp_set_state(qps[i], QP_RTS);
        CHECK(mr_register(&fabric.nic[i], &whole, &mrs[i]) == 0);
        ahs[i] = ah_create(&fabric.nic[i], &programs[i], fabric.nic[!i].gid);
        CHECK(ahs[i]);
    }
}

enum { ALL_CAPS = CAP_READ | CAP_WRITE | CAP_NOT_READY_RETRY | CAP_SGID };

/* The first program's requests go to the second. */
static struct work rdma(int op, uint64_t local, uint64_t remote, uint32_t len) {
    return (struct work){.id = 9, .ah = ahs[0]->number, .qpn = qps[1]->number, .op = (uint8_t)op, .qkey = QKEY,
                         .local = {local, len, mrs[0]->key}, .remote = {remote, len, mrs[1]->key}};
}

static void post(struct work work) { sends[0].work[sends[0].tail++] = work; }

static void post_receive(uint64_t at, uint32_t len) {
    receives[1].receives[receives[1].tail++] = (struct receive){.id = 77, .count = 1, .buffers = {{at, len, mrs[1]->key}}};
}

static void pass(uint64_t us) {
    now += us;
    for (int i = 0; i < fabric.nics; i++) nic_step(&fabric.nic[i], now);
}

/* Passes until there is a completion at the first program, for at most this long. */
static int status_within(uint64_t us) {
    for (uint64_t end = now + us; now < end && !completions[0].count;) pass(100);
    return completions[0].count ? completions[0].got[0].status : -1;
}

static int status_of(struct work work) {
    post(work);
    return status_within(10 * TIMEOUT_US);
}

static void fault(const char *line) {
    const char *wrong = fault_apply(&fabric, line, now);
    if (wrong) fprintf(stderr, "%s: %s\n", line, wrong);
    CHECK(!wrong);
}

static size_t landed(void) {
    size_t count = 0;
    for (size_t i = 0; i < BYTES; i++) count += programs[1].bytes[i] == 'a';
    return count;
}

/* ---- Tests ---- */

static void writes_and_reads_move_their_bytes(void) {
    world(ALL_CAPS);
    CHECK(status_of(rdma(OP_WRITE, 0, 5000, 300000)) == STATUS_OK);
    CHECK(completions[0].got[0].id == 9 && landed() == 300000 && programs[1].bytes[4999] == 'b' && programs[1].bytes[5000] == 'a');
    world(ALL_CAPS);
    CHECK(status_of(rdma(OP_READ, 100, 0, 10)) == STATUS_OK);
    CHECK(programs[0].bytes[99] == 'a' && programs[0].bytes[100] == 'b' && programs[0].bytes[110] == 'a');
}

static void an_immediate_takes_a_receive_unless_unsolicited(void) {
    struct work work;
    world(ALL_CAPS);
    work = rdma(OP_WRITE, 0, 0, 10);
    work.has_immediate = true;
    work.immediate = 1234;
    post(work);
    pass(10);
    CHECK(!completions[0].count && !completions[1].count);
    post_receive(0, 0);
    CHECK(status_within(TIMEOUT_US) == STATUS_OK);
    CHECK(completions[1].got[0].received && completions[1].got[0].id == 77 && completions[1].got[0].immediate == 1234);
    world(ALL_CAPS);
    qps[1]->unsolicited = true;
    work = rdma(OP_WRITE, 0, 0, 10);
    work.has_immediate = true;
    CHECK(status_of(work) == STATUS_OK && completions[1].got[0].unsolicited);
}

static void keys_ranges_and_rights_are_checked(void) {
    struct work work;
    world(ALL_CAPS);
    work = rdma(OP_WRITE, 0, 0, 10);
    work.remote.key ^= MAX_MRS; /* an older registration's */
    CHECK(status_of(work) == STATUS_REMOTE_BAD_ADDRESS);
    world(ALL_CAPS);
    CHECK(status_of(rdma(OP_WRITE, 0, BYTES - 5, 10)) == STATUS_REMOTE_BAD_ADDRESS);
    world(ALL_CAPS);
    mrs[1]->access = ACCESS_REMOTE_READ;
    CHECK(status_of(rdma(OP_WRITE, 0, 0, 10)) == STATUS_REMOTE_BAD_ADDRESS);
    world(ALL_CAPS);
    mr_deregister(&fabric.nic[1], mrs[1]);
    CHECK(status_of(rdma(OP_WRITE, 0, 0, 10)) == STATUS_REMOTE_BAD_ADDRESS);
    world(ALL_CAPS);
    mrs[1]->pd = PD + 1;
    CHECK(status_of(rdma(OP_READ, 0, 0, 10)) == STATUS_REMOTE_BAD_ADDRESS);
    world(ALL_CAPS);
    mrs[0]->owner = &programs[1];
    CHECK(status_of(rdma(OP_WRITE, 0, 0, 10)) == STATUS_INVALID_LKEY);
    world(CAP_READ);
    CHECK(status_of(rdma(OP_WRITE, 0, 0, 10)) == STATUS_UNSUPPORTED_OP);
    CHECK(landed() == 0);
}

static void queues_that_are_not_there_are_named(void) {
    struct work work;
    world(ALL_CAPS);
    work = rdma(OP_WRITE, 0, 0, 10);
    work.qkey++;
    CHECK(status_of(work) == STATUS_REMOTE_BAD_QPN);
    world(ALL_CAPS);
    qp_destroy(qps[1]);
    work.qkey = QKEY;
    CHECK(status_of(work) == STATUS_REMOTE_BAD_QPN);
    world(ALL_CAPS);
    ah_destroy(ahs[1]);
    CHECK(status_of(rdma(OP_WRITE, 0, 0, 10)) == STATUS_UNKNOWN_PEER);
}

static void sends_wait_for_a_receive_as_often_as_asked(void) {
    struct work work;
    world(ALL_CAPS);
    work = rdma(OP_SEND, 0, 0, 0);
    work.count = 1;
    work.buffers[0] = (struct buffer){0, 50, mrs[0]->key};
    qps[0]->not_ready_retries = 2;
    CHECK(status_of(work) == STATUS_REMOTE_NOT_READY && now < 1000 + 10 * NOT_READY_WAIT);
    world(ALL_CAPS);
    post_receive(10, 20);
    CHECK(status_of(work) == STATUS_REMOTE_BAD_LENGTH);
    CHECK(completions[1].got[0].status == STATUS_BAD_LENGTH);
    world(ALL_CAPS);
    fault("nic 1 not-ready 0.5");
    post_receive(10, 80);
    CHECK(status_of(work) == STATUS_OK && now >= 1000 + 500000);
    CHECK(completions[1].got[0].len == 50 && landed() == 50);
}

static void pieces_land_in_any_order_and_all(void) {
    bool out_of_order = false;
    world(ALL_CAPS);
    fault("nic 0 pieces on");
    fault("nic 0 reorder 300");
    for (int i = 0; i < 20; i++) {
        completions[0].count = 0;
        memset(programs[1].bytes, 'b', BYTES);
        post(rdma(OP_WRITE, 0, 0, BYTES));
        while (!completions[0].count) {
            pass(50);
            out_of_order |= programs[1].bytes[0] == 'b' && landed() > 0;
        }
        CHECK(completions[0].got[0].status == STATUS_OK && landed() == BYTES);
    }
    CHECK(out_of_order);
    /* A key that goes in between stops what is left. */
    world(ALL_CAPS);
    fault("nic 0 pieces on");
    fault("nic 0 reorder 100000");
    post(rdma(OP_WRITE, 0, 0, BYTES));
    while (!landed()) pass(50);
    mr_deregister(&fabric.nic[1], mrs[1]);
    size_t before = landed();
    CHECK(before < BYTES && status_within(10 * TIMEOUT_US) == STATUS_REMOTE_BAD_ADDRESS && landed() == before);
}

static void what_nobody_answers_ends_after_the_timeout(void) {
    world(ALL_CAPS);
    fault("cable 0 1 cut");
    CHECK(status_of(rdma(OP_WRITE, 0, 0, 10)) == STATUS_UNREACHABLE && now > 1000 + TIMEOUT_US);
    world(ALL_CAPS);
    CHECK(status_of(rdma(OP_WRITE, 0, 0, 10)) == STATUS_OK);
    completions[0].count = 0;
    fault("nic 1 dead");
    CHECK(status_of(rdma(OP_WRITE, 0, 0, 10)) == STATUS_UNRESPONSIVE);
    world(ALL_CAPS);
    fault("nic 0 hang 3");
    CHECK(status_of(rdma(OP_WRITE, 0, 0, 10)) == STATUS_OK && now >= 1000 + 3000000);
    world(ALL_CAPS);
    fault("nic 0 dead");
    CHECK(status_of(rdma(OP_WRITE, 0, 0, 10)) == -1);
    fault("nic 0 whole");
    CHECK(status_within(TIMEOUT_US) == STATUS_OK);
}

static void a_rate_and_a_delay_hold_bytes_back(void) {
    world(ALL_CAPS);
    fault("nic 0 rate 1000");
    fault("nic 0 delay 5000");
    CHECK(status_of(rdma(OP_WRITE, 0, 0, 1000000)) == STATUS_OK);
    CHECK(now >= 1000 + 8000 + 5000 && now < 1000 + 14000);
}

static void a_queue_pair_in_error_flushes(void) {
    world(ALL_CAPS);
    post_receive(0, 10);
    receives[0].receives[receives[0].tail++] = (struct receive){.id = 5, .count = 1};
    fault("nic 0 delay 1000000");
    post(rdma(OP_WRITE, 0, 0, 10));
    pass(10);
    fault("nic 0 qp-error");
    CHECK(completions[0].count == 2 && completions[0].got[0].status == STATUS_FLUSHED && completions[0].got[1].received);
    CHECK(programs[0].events == 1 && programs[0].last_event == EVENT_QP_FATAL && programs[1].events == 0);
    post(rdma(OP_WRITE, 0, 0, 10));
    pass(10);
    CHECK(completions[0].count == 3 && completions[0].got[2].status == STATUS_FLUSHED && landed() == 0);
}

static void a_queue_that_ran_over_takes_no_more(void) {
    world(ALL_CAPS);
    fault("nic 0 overrun");
    CHECK(programs[0].last_event == EVENT_CQ_ERROR && programs[0].events == 1);
    CHECK(status_of(rdma(OP_WRITE, 0, 0, 10)) == -1 && landed() == 10);
}

static void lost_handles_are_invalid_and_made_anew(void) {
    uint16_t before;
    world(ALL_CAPS);
    before = ahs[0]->number;
    fault("nic 0 lose-handles");
    CHECK(status_of(rdma(OP_WRITE, 0, 0, 10)) == STATUS_INVALID_AH);
    ahs[0] = ah_create(&fabric.nic[0], &programs[0], fabric.nic[1].gid);
    completions[0].count = 0;
    CHECK(ahs[0]->number != before && status_of(rdma(OP_WRITE, 0, 0, 10)) == STATUS_OK);
}

static void pages_are_bounded_and_given_back(void) {
    struct mr as = {.owner = &programs[0], .start = 100, .iova = 100, .len = 8192, .access = 7, .pd = PD}, *made;
    world(ALL_CAPS);
    fault("nic 0 max-pages 259"); /* 256 are registered; this takes 3 */
    CHECK(mr_register(&fabric.nic[0], &as, &made) == 0);
    CHECK(mr_register(&fabric.nic[0], &as, &made) == ENOMEM);
    mr_deregister(&fabric.nic[0], made);
    uint32_t old = made->key;
    CHECK(mr_register(&fabric.nic[0], &as, &made) == 0 && made->key != old && !mr_find(&fabric.nic[0], old));
}

static void lines_that_are_no_fault_change_nothing(void) {
    static const char *const wrong[] = {"",           "nic",         "nic 0",         "nic 2 dead",  "nic -1 dead",  "nic 0 dead now",
                                        "nic 0 rate", "nic 0 rate x", "nic 0 rate -1", "cable 0 cut", "cable 0 1 open", "nic 0 event flood",
                                        "fan 0 off",  "nic 0 dead a b c d e f"};
    world(ALL_CAPS);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) CHECK(fault_apply(&fabric, wrong[i], now));
    CHECK(status_of(rdma(OP_WRITE, 0, 0, 10)) == STATUS_OK);
    fault("nic all event port-down");
    CHECK(fabric.nic[1].port_down && programs[1].last_event == EVENT_PORT_ERROR);
    fault("nic 1 reset");
    CHECK(resets == 1);
}

int main(void) {
    static const struct {
        const char *name;
        void (*run)(void);
    } tests[] = {
#define TEST(name) {#name, name}
        TEST(writes_and_reads_move_their_bytes),
        TEST(an_immediate_takes_a_receive_unless_unsolicited),
        TEST(keys_ranges_and_rights_are_checked),
        TEST(queues_that_are_not_there_are_named),
        TEST(sends_wait_for_a_receive_as_often_as_asked),
        TEST(pieces_land_in_any_order_and_all),
        TEST(what_nobody_answers_ends_after_the_timeout),
        TEST(a_rate_and_a_delay_hold_bytes_back),
        TEST(a_queue_pair_in_error_flushes),
        TEST(a_queue_that_ran_over_takes_no_more),
        TEST(lost_handles_are_invalid_and_made_anew),
        TEST(pages_are_bounded_and_given_back),
        TEST(lines_that_are_no_fault_change_nothing),
    };
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        tests[i].run();
        printf("model.%s: ok\n", tests[i].name);
    }
    return 0;
}
