/*
 * One NIC of four dies under load, where NICs can only be reset as a whole (EFA): no peer is lost, and no byte comes
 * wrong, late or twice. A hub and three peers write to each other, read and notify; each slot is written again as soon as
 * it is done, so a byte that lands late is older than what is there.
 *
 * Over simulated NICs, or emulated ones (tools/test-efa.sh --deaths): there NICs die again and again, in the middle of
 * transfers, of a revoke, and of the handshake of another endpoint.
 */
#include "harness.h"
#include <stdlib.h>

enum { PEERS = 3, HOSTS = 2 + PEERS, FLOWS = 2 * PEERS, NICS = 4, SLOTS = 12, READS = 4, LEN = 64 * KIB, WORDS = LEN / 8 };
static const uint64_t MARK = 0xeeeeeeeeeeeeeeee;

/* What is done to one NIC of the hub (0 to 3) or of the first peer (4 to 7), and afterwards. */
struct death {
    const char *sim; /* in the words of sim: "port1 dead" */
    uint64_t heals_ms;
    const char *heal;
};

struct slot {
    struct flow *flow;
    uint64_t index, sequence, begun_ns;
    bool busy;
};

/* Writes in one direction, and reads of what is there. */
struct flow {
    uint64_t id;
    struct box *from, *to;
    uint64_t *local, *target;
    weft_memory *local_memory, *target_memory;
    weft_remote_memory *remote;
    uint64_t begun;
    struct slot slot[SLOTS + READS];
    uint8_t *notified;
};

enum { NOTIFIED_MOST = 1 << 20 };

/* Memory of the first peer, lent to the hub. */
struct loan {
    uint64_t *bytes;
    weft_memory *memory;
    weft_remote_memory *remote;
    weft_peer hub;
    bool revoked;
};

struct star {
    struct box *hub, *leaf[PEERS], *guest;
    struct loan loan;
    bool guest_is_up;
    uint64_t lent; /* operations under way under a grant */
    struct flow flow[FLOWS];
    uint64_t lost, wrong, failed, stuck_until;
};

static uint64_t *words(uint64_t *base, uint64_t slot) { return base + slot * WORDS; }

static uint64_t stamp(const struct flow *flow, uint64_t sequence) { return flow->id << 56 | sequence; }

static void fill_words(uint64_t *to, uint64_t value)
{
    for (int i = 0; i < WORDS; i++)
        to[i] = value;
}

/* How many words are not the value, or (`least`) less than it. */
static uint64_t differ(const uint64_t *at, uint64_t value, bool least)
{
    uint64_t count = 0;
    for (int i = 0; i < WORDS; i++)
        count += least ? at[i] < value : at[i] != value;
    return count;
}

static struct box *open_four(int host)
{
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    char rails[128] = "";
    config.fabric = "sim:like=efa-direct:rails=4:gbps=20:delay_us=20:world=deaths";
    config.workers = 2;
    if (on_fabric("efa")) {
        for (int i = 0; i < NICS; i++)
            snprintf(rails + strlen(rails), 32, "%srdmap%ds0-rdm", i ? "," : "", 79 + NICS * host + i);
        setenv("WEFT_RAILS", rails, 1);
        config.fabric = "efa";
    }
    return box_of(open_with(&config));
}

static void connect_two(struct box *a, struct box *b, weft_peer *a_to_b, weft_peer *b_to_a)
{
    char blob[8192];
    weft_completion up_a, up_b;
    bool a_is_up = false, b_is_up = false;
    size_t n = address_of(b->endpoint, blob, sizeof blob);
    CHECK_OK(weft_peer_connect(a->endpoint, blob, n, NULL, a_to_b));
    for (uint64_t end = now_ns() + patience_ms() * MS; !a_is_up || !b_is_up;) {
        CHECK(now_ns() < end);
        box_pump(a, 0);
        box_pump(b, 1);
        a_is_up = a_is_up || box_try(a, WEFT_COMPLETION_PEER_UP, &up_a);
        b_is_up = b_is_up || box_try(b, WEFT_COMPLETION_PEER_UP, &up_b);
    }
    CHECK_OK(up_a.status);
    CHECK_OK(up_b.status);
    *b_to_a = up_b.peer;
}

static void begin_flow(struct flow *flow, uint64_t id, struct box *from, struct box *to, weft_peer peer)
{
    char blob[8192];
    uint64_t len = (SLOTS + READS) * LEN;
    *flow = (struct flow){.id = id, .from = from, .to = to};
    flow->local = map_bytes(len);
    flow->target = map_bytes(len);
    flow->notified = map_bytes(NOTIFIED_MOST);
    flow->local_memory = register_one(from->endpoint, flow->local, len);
    flow->target_memory = register_one(to->endpoint, flow->target, len);
    size_t n = descriptor_of(flow->target_memory, blob, sizeof blob);
    CHECK_OK(weft_remote_memory_import(from->endpoint, peer, blob, n, &flow->remote));
    for (uint64_t i = 0; i < SLOTS + READS; i++) {
        flow->slot[i] = (struct slot){.flow = flow, .index = i};
        fill_words(words(flow->target, i), i < SLOTS ? 0 : stamp(flow, i));
        fill_words(words(flow->local, i), MARK);
    }
}

static void lend(struct star *star, weft_peer there, weft_peer back)
{
    struct loan *loan = &star->loan;
    char blob[8192];
    loan->hub = back;
    loan->bytes = map_bytes(SLOTS * LEN);
    loan->memory = register_granted(star->leaf[0]->endpoint, loan->bytes, SLOTS * LEN);
    size_t n = descriptor_of(loan->memory, blob, sizeof blob);
    CHECK_OK(weft_remote_memory_import(star->hub->endpoint, there, blob, n, &loan->remote));
}

static struct star *open_star(void)
{
    struct star *star = calloc(1, sizeof *star);
    CHECK(star);
    star->hub = open_four(0);
    for (int i = 0; i < PEERS; i++)
        star->leaf[i] = open_four(1 + i);
    for (int i = 0; i < PEERS; i++) {
        weft_peer there, back;
        connect_two(star->hub, star->leaf[i], &there, &back);
        begin_flow(&star->flow[2 * i], 2 * (uint64_t)i + 1, star->hub, star->leaf[i], there);
        begin_flow(&star->flow[2 * i + 1], 2 * (uint64_t)i + 2, star->leaf[i], star->hub, back);
        if (i == 0)
            lend(star, there, back);
    }
    star->guest = open_four(1 + PEERS);
    return star;
}

static void submit(struct star *star, struct slot *slot)
{
    struct flow *flow = slot->flow;
    struct range_request args = range_args(flow->local_memory, flow->remote, LEN);
    uint64_t *local = words(flow->local, slot->index);
    weft_op op;
    bool read = slot->index >= SLOTS;
    args.local_offset = args.remote_offset = slot->index * LEN;
    args.options.user_data = slot;
    args.options.timeout_ns = 60000 * MS;
    if (read) {
        star->wrong += differ(local, MARK, false); /* a read that lands late */
    } else {
        slot->sequence = ++flow->begun;
        CHECK(slot->sequence < NOTIFIED_MOST);
        fill_words(local, stamp(flow, slot->sequence));
        args.options.flags = WEFT_NOTIFY;
        args.options.notify = stamp(flow, slot->sequence);
    }
    weft_status status = read ? submit_read(flow->from->endpoint, &args, &op)
                              : submit_write(flow->from->endpoint, &args, &op);
    slot->busy = status == WEFT_OK;
    slot->begun_ns = now_ns();
    if (status != WEFT_OK)
        star->failed++;
}

/* What operations under a grant have as user data. */
static struct slot of_a_loan;

/* An operation that takes this long waits for a NIC that is dead. */
#define STUCK (300 * MS)

static void take(struct star *star, const weft_completion *c)
{
    struct slot *slot = c->user_data;
    if (slot == &of_a_loan) {
        star->lent -= c->kind == WEFT_COMPLETION_WRITE;
        star->loan.revoked |= c->kind == WEFT_COMPLETION_FENCE;
        star->failed += c->kind == WEFT_COMPLETION_FENCE && c->status != WEFT_OK;
        return;
    }
    switch (c->kind) {
    case WEFT_COMPLETION_WRITE:
    case WEFT_COMPLETION_READ:
        slot->busy = false;
        if (now_ns() - slot->begun_ns > STUCK)
            star->stuck_until = now_ns();
        if (c->status != WEFT_OK) {
            fprintf(stderr, "an operation ended with %d (%d)\n", c->status, c->provider_errno);
            star->failed++;
        } else if (c->kind == WEFT_COMPLETION_READ) {
            uint64_t *local = words(slot->flow->local, slot->index);
            star->wrong += differ(local, stamp(slot->flow, slot->index), false);
            fill_words(local, MARK);
        }
        break;
    case WEFT_COMPLETION_NOTIFICATION: {
        struct flow *flow = &star->flow[(c->notify >> 56) - 1];
        uint64_t sequence = c->notify & 0xffffffffffffff;
        star->wrong += flow->notified[sequence]++ > 0;
        break;
    }
    case WEFT_COMPLETION_PEER_UP:
        star->guest_is_up |= c->status == WEFT_OK && c->accepted == 0;
        star->lost += c->status != WEFT_OK;
        break;
    case WEFT_COMPLETION_PEER_DOWN:
        star->lost += c->status != WEFT_OK && c->status != WEFT_ERR_PEER_CLOSED;
        break;
    default:
        break;
    }
}

static void poll_star(struct star *star, bool goes_on)
{
    struct box *boxes[HOSTS] = {star->hub, star->guest};
    weft_completion all[64];
    memcpy(boxes + 2, star->leaf, sizeof star->leaf);
    for (int i = 0; i < HOSTS; i++) {
        int32_t n = weft_queue_poll(weft_endpoint_queue(boxes[i]->endpoint), all, 64, 0);
        for (int32_t k = 0; k < n; k++)
            take(star, &all[k]);
    }
    for (int f = 0; f < FLOWS && goes_on && star->lost == 0; f++)
        for (int i = 0; i < SLOTS + READS; i++)
            if (!star->flow[f].slot[i].busy)
                submit(star, &star->flow[f].slot[i]);
}

static bool is_busy(const struct star *star)
{
    for (int f = 0; f < FLOWS; f++)
        for (int i = 0; i < SLOTS + READS; i++)
            if (star->flow[f].slot[i].busy)
                return true;
    return false;
}

static void load_for(struct star *star, uint64_t ms)
{
    for (uint64_t end = now_ns() + ms * MS; now_ns() < end;)
        poll_star(star, true);
}

static void drain(struct star *star)
{
    for (uint64_t end = now_ns() + patience_ms() * MS; is_busy(star) && star->lost == 0; poll_star(star, false))
        CHECK(now_ns() < end);
}

static bool is_stuck(const struct star *star)
{
    for (int f = 0; f < FLOWS; f++)
        for (int i = 0; i < SLOTS + READS; i++)
            if (star->flow[f].slot[i].busy && now_ns() - star->flow[f].slot[i].begun_ns > STUCK)
                return true;
    return false;
}

/* How long it takes under load until nothing still waits for the dead NIC: the others carry all. */
static uint64_t carried_after_ms(struct star *star, uint64_t began)
{
    while (star->lost == 0 && (is_stuck(star) || now_ns() < began + 4 * STUCK)) {
        CHECK(now_ns() < began + patience_ms() * MS);
        poll_star(star, true);
    }
    return star->stuck_until > began ? (star->stuck_until - began) / MS : 0;
}

/* Nothing is under way: the last that was written is there, and was announced once. */
static void check_rest(struct star *star)
{
    uint64_t missing = 1;
    for (uint64_t end = now_ns() + patience_ms() * MS; missing > 0 && now_ns() < end;) {
        poll_star(star, false);
        missing = 0;
        for (int f = 0; f < FLOWS; f++)
            for (uint64_t n = 1; n <= star->flow[f].begun; n++)
                missing += star->flow[f].notified[n] == 0;
    }
    star->wrong += missing;
    for (int f = 0; f < FLOWS; f++)
        for (uint64_t i = 0; i < SLOTS + READS; i++) {
            struct flow *flow = &star->flow[f];
            uint64_t want = i < SLOTS ? stamp(flow, flow->slot[i].sequence) : MARK;
            star->wrong += differ(words(i < SLOTS ? flow->target : flow->local, i), want, false);
        }
}

static void close_star(struct star *star)
{
    for (int i = 0; i < PEERS; i++)
        box_close(star->leaf[i]);
    box_close(star->guest);
    box_close(star->hub);
}

static void play(const struct death *death)
{
    char plan[256];
    snprintf(plan, sizeof plan, "port%d+0 %s", NICS * HOSTS, death->sim);
    if (death->heal)
        snprintf(plan + strlen(plan), 128, "; port%d+%llu %s", NICS * HOSTS,
                 (unsigned long long)death->heals_ms * 1000, death->heal);
    setenv("WEFT_SIM_FAULTS", plan, 1);
    struct star *star = open_star();
    load_for(star, 100);
    uint64_t began = now_ns();
    struct box *other = open_four(HOSTS); /* it begins now */
    uint64_t took = carried_after_ms(star, began);
    load_for(star, 300);
    drain(star);
    check_rest(star);
    if (death->heal) {
        while (now_ns() < began + (death->heals_ms + 100) * MS)
            poll_star(star, false);
        check_rest(star);
        load_for(star, 200);
        drain(star);
        check_rest(star);
    }
    fprintf(stderr, "failover %llu ms; lost %llu, wrong %llu, failed %llu\n", (unsigned long long)took,
            (unsigned long long)star->lost, (unsigned long long)star->wrong, (unsigned long long)star->failed);
    CHECK_EQ(star->lost, 0);
    CHECK_EQ(star->wrong, 0);
    CHECK_EQ(star->failed, 0);
    close_star(star);
    box_close(other);
}

/* ---- Again and again, on emulated NICs ---- */

static const struct {
    const char *words, *heal;
} ills[] = {
    {"nic %d dead", "nic %d whole"},
    {"cable %d all cut", "cable %d all whole"},
    {"nic %d hang 3", "nic %d whole"},
    {"nic %d qp-error", NULL},
};

static void tell_emulator(const char *words, int nic)
{
    char fault[64], line[256];
    snprintf(fault, sizeof fault, words, nic);
    snprintf(line, sizeof line, "LD_PRELOAD= target/efa/efa-emulator --tell \"$EFA_EMULATOR\" %s", fault);
    CHECK_EQ(system(line), 0);
}

/* Lanes over all NICs are up again. */
static void await_lanes(struct star *star)
{
    uint64_t end = now_ns() + patience_ms() * MS;
    for (int host = 0; host <= PEERS; host++)
        for (uint32_t rail = 0; rail < NICS; rail++) {
            weft_rail_statistics of_rail = WEFT_RAIL_STATISTICS_INIT;
            weft_endpoint *endpoint = host ? star->leaf[host - 1]->endpoint : star->hub->endpoint;
            do {
                CHECK(now_ns() < end);
                poll_star(star, false);
                CHECK_OK(weft_rail_info(endpoint, rail, NULL, &of_rail));
            } while (of_rail.lanes < (host ? 1 : PEERS) && star->lost == 0);
        }
}

enum step { TRANSFER, REVOKE, HANDSHAKE, STEPS };

/* One NIC dies; returns how long it took until the others carried all. */
static uint64_t die_once(struct star *star, enum step step, uint64_t *random)
{
    uint64_t which = next_random(random) % (sizeof ills / sizeof *ills);
    int nic = (int)(next_random(random) % (NICS * (1 + PEERS)));
    struct loan *loan = &star->loan;
    weft_grant_token token;
    weft_peer of_guest = 0;
    char blob[8192];
    load_for(star, 20 + next_random(random) % 60);
    star->guest_is_up = loan->revoked = false;
    if (step == REVOKE) {
        CHECK_OK(weft_grant_create(loan->memory, loan->hub, NULL, &token));
        for (uint64_t i = 0; i < SLOTS; i++) {
            struct range_request args = range_args(star->flow[0].local_memory, loan->remote, LEN);
            args.remote_offset = i * LEN;
            args.options.user_data = &of_a_loan;
            args.options.grant = token;
            CHECK_OK(submit_write(star->hub->endpoint, &args, NULL));
            star->lent++;
        }
    }
    if (step == HANDSHAKE) {
        size_t n = address_of(star->hub->endpoint, blob, sizeof blob);
        CHECK_OK(weft_peer_connect(star->guest->endpoint, blob, n, NULL, &of_guest));
    }
    load_for(star, next_random(random) % 5);
    uint64_t began = now_ns();
    tell_emulator(ills[which].words, nic);
    if (step == REVOKE) {
        weft_op_options options = WEFT_OP_OPTIONS_INIT;
        options.user_data = &of_a_loan;
        CHECK_OK(weft_grant_revoke(star->leaf[0]->endpoint, &token, &options, NULL));
    }
    uint64_t took = carried_after_ms(star, began);
    while (step == REVOKE && (!loan->revoked || star->lent > 0) && star->lost == 0)
        poll_star(star, true);
    for (uint64_t i = 0; i < SLOTS && step == REVOKE; i++)
        fill_words(words(loan->bytes, i), MARK);
    while (step == HANDSHAKE && !star->guest_is_up && star->lost == 0)
        poll_star(star, true);
    drain(star);
    check_rest(star);
    if (ills[which].heal)
        tell_emulator(ills[which].heal, nic);
    await_lanes(star);
    load_for(star, 50);
    drain(star);
    check_rest(star);
    for (uint64_t i = 0; i < SLOTS && step == REVOKE; i++)
        star->wrong += differ(words(loan->bytes, i), MARK, false);
    if (step == HANDSHAKE)
        CHECK_OK(weft_peer_disconnect(star->guest->endpoint, of_guest));
    static const char *const names[] = {"a transfer", "a revoke", "a handshake"};
    char fault[64];
    snprintf(fault, sizeof fault, ills[which].words, nic);
    fprintf(stderr, "%s in %s: %llu ms; lost %llu, wrong %llu, failed %llu\n", fault, names[step],
            (unsigned long long)took, (unsigned long long)star->lost, (unsigned long long)star->wrong,
            (unsigned long long)star->failed);
    return took;
}

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void nics_die_at_every_step(void)
{
    const char *count = getenv("WEFT_DEATHS"), *seed = getenv("WEFT_SEED");
    uint64_t deaths = count ? strtoull(count, NULL, 10) : 6, random = seed ? strtoull(seed, NULL, 10) : 1;
    uint64_t *took = calloc(deaths + 1, sizeof *took), done = 0, waited = 0;
    struct star *star = open_star();
    for (; done < deaths && star->lost == 0; done++) {
        took[waited] = die_once(star, (enum step)(done % STEPS), &random);
        waited += took[waited] > 0; /* else nothing was on that NIC for long */
    }
    qsort(took, waited, sizeof *took, compare);
    printf("deaths %llu, the slowest after %llu ms\nefa_failover_ms %llu\nefa_failover_peers_lost %llu\nefa_failover_wrong %llu\n",
           (unsigned long long)done, (unsigned long long)took[waited ? waited - 1 : 0],
           (unsigned long long)took[waited / 2], (unsigned long long)star->lost,
           (unsigned long long)(star->wrong + star->failed));
    CHECK_EQ(star->lost, 0);
    CHECK_EQ(star->wrong, 0);
    CHECK_EQ(star->failed, 0);
    close_star(star);
}

static void own_nic_dies(void) { play(&(struct death){.sim = "port1 dead"}); }
static void nic_of_a_peer_dies(void) { play(&(struct death){.sim = "port5 dead"}); }
static void own_nic_vanishes(void) { play(&(struct death){.sim = "port1 kill"}); }

static void link_that_returns_brings_nothing_late(void)
{
    play(&(struct death){.sim = "port1 down", .heals_ms = 2500, .heal = "port1 up"});
}

static const struct test tests[] = {
    {"own_nic_dies", "once", own_nic_dies},
    {"nic_of_a_peer_dies", "once", nic_of_a_peer_dies},
    {"own_nic_vanishes", "once", own_nic_vanishes},
    {"link_that_returns_brings_nothing_late", "once", link_that_returns_brings_nothing_late},
    {"nics_die_at_every_step", "efa", nics_die_at_every_step},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
