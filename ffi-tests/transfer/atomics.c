/* Atomics: many at once lose and double nothing, and each ends once, whatever happens. */
#include "harness.h"

static struct atomic_request atomic_args(weft_remote_memory *remote, uint64_t offset, uint64_t operand)
{
    struct atomic_request args = ATOMIC_REQUEST_INIT;
    args.remote = remote;
    args.remote_offset = offset;
    args.operand = operand;
    return args;
}

/* Performs one, and returns the word's previous value. */
static uint64_t add(struct box *box, weft_remote_memory *remote, uint64_t offset, uint64_t operand)
{
    struct atomic_request args = atomic_args(remote, offset, operand);
    weft_op id = 0;
    CHECK_OK(submit_fetch_add(box->endpoint, &args, &id));
    weft_completion c = box_await(box, id, patience_ms());
    CHECK_EQ(c.kind, WEFT_COMPLETION_ATOMIC);
    CHECK_OK(c.status);
    return c.previous;
}

static uint64_t swap_if(struct box *box, weft_remote_memory *remote, uint64_t offset, uint64_t compare,
                        uint64_t operand)
{
    struct atomic_request args = atomic_args(remote, offset, operand);
    weft_op id = 0;
    args.compare = compare;
    CHECK_OK(submit_compare_swap(box->endpoint, &args, &id));
    weft_completion c = box_await(box, id, patience_ms());
    CHECK_OK(c.status);
    return c.previous;
}

/* ---- One at a time ---- */

/* The atomic is submitted before the owner has confirmed the memory. */
static void memory_in_use_is_not_released(void)
{
    struct duo duo = duo_open(4096);
    char blob[4096];
    size_t n = descriptor_of(duo.b_memory, blob, sizeof blob);
    for (int i = 0; i < 200; i++) {
        weft_remote_memory *again;
        weft_op id = 0;
        weft_status status;
        CHECK_OK(weft_remote_memory_import(duo.a->endpoint, duo.a_to_b, blob, n, &again));
        struct atomic_request args = atomic_args(again, 8, 1);
        CHECK_OK(submit_fetch_add(duo.a->endpoint, &args, &id));
        while ((status = weft_remote_memory_release(again)) == WEFT_ERR_BUSY)
            box_pump(duo.a, 0);
        CHECK_OK(status);
        weft_completion c = box_await(duo.a, id, patience_ms());
        CHECK_OK(c.status);
        CHECK_EQ(c.previous, i);
    }
    duo_close(&duo);
}

static void atomics_return_the_previous_value(void)
{
    struct duo duo = duo_open(4096);
    _Atomic uint64_t *words = (_Atomic uint64_t *)(void *)duo.b_bytes;
    weft_peer_properties peer = WEFT_PEER_PROPERTIES_INIT;
    weft_queue *queue;
    weft_completion c;
    weft_op id = 0;
    CHECK_OK(weft_peer_info(duo.a->endpoint, duo.a_to_b, &peer));
    CHECK_EQ(peer.capabilities & WEFT_CAPABILITY_ATOMICS, WEFT_CAPABILITY_ATOMICS);
    words[1] = UINT64_MAX - 1;
    CHECK(add(duo.a, duo.b_of_a, 8, 3) == UINT64_MAX - 1);
    CHECK_EQ(words[1], 1); /* around 2^64 */
    CHECK_EQ(add(duo.a, duo.b_of_a, 8, 0), 1);
    CHECK_EQ(swap_if(duo.a, duo.b_of_a, 4088, 7, 9), 0);
    CHECK_EQ(words[511], 0);
    CHECK_EQ(swap_if(duo.a, duo.b_of_a, 4088, 0, 9), 0);
    CHECK_EQ(words[511], 9);
    CHECK(words[0] == 0 && words[2] == 0 && words[510] == 0);

    CHECK_OK(weft_queue_create(duo.a->endpoint, 0, &queue));
    struct atomic_request args = atomic_args(duo.b_of_a, 16, 5);
    args.options.flags = WEFT_CLASS_LATENCY;
    args.options.user_data = &args;
    args.options.queue = queue;
    words[2] = 37;
    CHECK_OK(submit_fetch_add(duo.a->endpoint, &args, &id));
    CHECK_EQ(weft_queue_poll(queue, &c, 1, patience_ms() * MS), 1);
    CHECK(c.kind == WEFT_COMPLETION_ATOMIC && c.op == id && c.peer == duo.a_to_b);
    CHECK(c.user_data == &args && c.previous == 37 && c.bytes == 0 && c.data == NULL);
    CHECK(c.rail == UINT32_MAX && c.entry == UINT64_MAX && c.submit_ns > 0 && c.done_ns >= c.submit_ns);
    CHECK_OK(weft_queue_destroy(queue));
    /* After polling the completion, the remote memory may be released at once. */
    for (int i = 0; i < 200; i++) {
        char blob[4096];
        weft_remote_memory *again;
        size_t n = descriptor_of(duo.b_memory, blob, sizeof blob);
        CHECK_OK(weft_remote_memory_import(duo.a->endpoint, duo.a_to_b, blob, n, &again));
        CHECK_EQ(add(duo.a, again, 24, 1), i);
        CHECK_OK(weft_remote_memory_release(again));
    }
    box_quiet(duo.a, 20);
    duo_close(&duo);
}

/* The calls are accepted at once, and done when the peer is up. */
static void atomics_wait_until_the_peer_is_up(void)
{
    char blob[8192];
    struct box *a = box_of(open_endpoint()), *b = box_of(open_endpoint());
    _Atomic uint64_t *word = map_bytes(4096);
    weft_peer peer;
    weft_remote_memory *remote;
    weft_peer_properties properties = WEFT_PEER_PROPERTIES_INIT;
    size_t n = address_of(b->endpoint, blob, sizeof blob);
    CHECK_OK(weft_peer_connect(a->endpoint, blob, n, NULL, &peer));
    CHECK_OK(weft_peer_info(a->endpoint, peer, &properties));
    CHECK(properties.up || properties.capabilities == 0);
    n = descriptor_of(register_one(b->endpoint, (void *)word, 4096), blob, sizeof blob);
    CHECK_OK(weft_remote_memory_import(a->endpoint, peer, blob, n, &remote));
    struct atomic_request args = atomic_args(remote, 0, 1);
    for (int i = 0; i < 100; i++)
        CHECK_OK(submit_fetch_add(a->endpoint, &args, NULL));
    for (int i = 0; i < 100; i++)
        CHECK_OK(box_take(a, WEFT_COMPLETION_ATOMIC, patience_ms()).status);
    CHECK_EQ(*word, 100);
    box_close(a);
    box_close(b);
}

/* ---- Many at once ---- */

#define PEERS 3
#define EACH 4000
#define AT_ONCE 300
#define TOTAL ((PEERS + 1) * EACH)

static void adds(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    weft_peer peer = join(team, 0, box);
    weft_remote_memory *remote = take_memory(team, 0, box, peer);
    uint64_t *seen = calloc(EACH, sizeof *seen);
    struct atomic_request args = atomic_args(remote, 64, 1);
    int submitted = 0, done = 0;
    uint64_t until = now_ns() + 2 * patience_ms() * MS;
    meet(team, 0, box);
    while (done < EACH) {
        while (submitted < EACH && submitted - done < AT_ONCE) {
            CHECK_OK(submit_fetch_add(box->endpoint, &args, NULL));
            submitted++;
        }
        weft_completion c;
        CHECK(now_ns() < until);
        box_pump(box, 10);
        while (box_try(box, WEFT_COMPLETION_ATOMIC, &c)) {
            CHECK_OK(c.status);
            seen[done++] = c.previous;
        }
    }
    tell(team, 0, seen, EACH * sizeof *seen);
    free(seen);
    meet(team, 0, box);
    box_close(box);
}

static void enter(uint8_t *seen, uint64_t value)
{
    CHECK(value < TOTAL);
    CHECK_EQ(seen[value], 0);
    seen[value] = 1;
}

/* The owner's program changes the word, too. */
static void owns_the_sum(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    _Atomic uint64_t *words = map_bytes(4096);
    weft_memory *memory = register_one(box->endpoint, (void *)words, 4096);
    uint8_t *seen = calloc(TOTAL, 1);
    uint64_t *theirs = calloc(EACH, sizeof *theirs);
    for (int r = 1; r <= PEERS; r++) {
        join(team, r, box);
        give_memory(team, r, memory);
    }
    for (int r = 1; r <= PEERS; r++)
        meet(team, r, box);
    for (int i = 0; i < EACH; i++) {
        enter(seen, atomic_fetch_add(&words[8], 1));
        if (i % 64 == 0)
            sched_yield();
    }
    for (int r = 1; r <= PEERS; r++) {
        CHECK_EQ(hear(team, r, box, theirs, EACH * sizeof *theirs), EACH * sizeof *theirs);
        for (int i = 0; i < EACH; i++)
            enter(seen, theirs[i]);
    }
    CHECK_EQ(words[8], TOTAL);
    CHECK(words[7] == 0 && words[9] == 0);
    for (int r = 1; r <= PEERS; r++)
        meet(team, r, box);
    free(seen);
    free(theirs);
    box_close(box);
}

static void sums_of_many_peers_add_up(void)
{
    const role roles[] = {owns_the_sum, adds, adds, adds};
    run_team(1 + PEERS, roles);
}

/* ---- A lock ---- */

#define ROUNDS 40

static void takes_the_lock(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    weft_peer peer = join(team, 0, box);
    weft_remote_memory *remote = take_memory(team, 0, box, peer);
    uint64_t *mine = map_bytes(4096);
    weft_memory *memory = register_one(box->endpoint, mine, 4096);
    uint64_t me = (uint64_t)team->rank, until = now_ns() + 2 * patience_ms() * MS;
    meet(team, 0, box);
    for (int i = 0; i < ROUNDS; i++) {
        while (swap_if(box, remote, 0, 0, me) != 0)
            CHECK(now_ns() < until);
        /* The guarded counter is no atomic: it would lose counts without the lock. */
        struct range_request args = range_args(memory, remote, 8);
        args.remote_offset = 128;
        weft_op id;
        CHECK_OK(submit_read(box->endpoint, &args, &id));
        CHECK_OK(box_await(box, id, patience_ms()).status);
        mine[0]++;
        CHECK_OK(submit_write(box->endpoint, &args, &id));
        CHECK_OK(box_await(box, id, patience_ms()).status);
        CHECK(swap_if(box, remote, 0, me, 0) == me);
    }
    meet(team, 0, box);
    box_close(box);
}

static void owns_the_lock(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    _Atomic uint64_t *words = map_bytes(4096);
    weft_memory *memory = register_one(box->endpoint, (void *)words, 4096);
    for (int r = 1; r <= PEERS; r++) {
        join(team, r, box);
        give_memory(team, r, memory);
    }
    for (int r = 1; r <= PEERS; r++)
        meet(team, r, box);
    for (int r = 1; r <= PEERS; r++)
        meet(team, r, box);
    CHECK_EQ(words[0], 0);
    CHECK_EQ(words[16], PEERS * ROUNDS);
    box_close(box);
}

static void compare_swap_makes_a_lock(void)
{
    const role roles[] = {owns_the_lock, takes_the_lock, takes_the_lock, takes_the_lock};
    run_team(1 + PEERS, roles);
}

/* ---- Both sides at once, more than either accepts ---- */

static void both_ask(bool manual)
{
    enum { MANY = 6000 };
    char blob[8192];
    weft_endpoint_config config = test_config();
    config.progress = manual ? WEFT_PROGRESS_MANUAL : WEFT_PROGRESS_THREADS;
    struct box *box[2] = {box_of(open_with(&config)), box_of(open_with(&config))};
    weft_remote_memory *remote[2];
    weft_peer peer[2];
    _Atomic uint64_t *word[2];
    size_t n = address_of(box[1]->endpoint, blob, sizeof blob);
    CHECK_OK(weft_peer_connect(box[0]->endpoint, blob, n, NULL, &peer[0]));
    for (uint64_t until = now_ns() + patience_ms() * MS, up = 0; up != 3;) {
        CHECK(now_ns() < until);
        for (int s = 0; s < 2; s++) {
            weft_completion c;
            box_pump(box[s], 0);
            if (box_try(box[s], WEFT_COMPLETION_PEER_UP, &c)) {
                CHECK_OK(c.status);
                peer[s] = c.peer;
                up |= UINT64_C(1) << s;
            }
        }
    }
    for (int s = 0; s < 2; s++) {
        word[s] = map_bytes(4096);
        n = descriptor_of(register_one(box[s]->endpoint, (void *)word[s], 4096), blob, sizeof blob);
        CHECK_OK(weft_remote_memory_import(box[1 - s]->endpoint, peer[1 - s], blob, n, &remote[1 - s]));
    }
    for (int i = 0; i < MANY; i++)
        for (int s = 0; s < 2; s++) {
            struct atomic_request args = atomic_args(remote[s], 0, 1);
            CHECK_OK(submit_fetch_add(box[s]->endpoint, &args, NULL));
        }
    int done[2] = {0, 0};
    uint64_t until = now_ns() + 2 * patience_ms() * MS;
    while (done[0] < MANY || done[1] < MANY) {
        if (now_ns() > until)
            FAIL("only %d and %d of %d were answered", done[0], done[1], MANY);
        for (int s = 0; s < 2; s++) {
            weft_completion c;
            box_pump(box[s], 0);
            while (box_try(box[s], WEFT_COMPLETION_ATOMIC, &c)) {
                CHECK_OK(c.status);
                done[s]++;
            }
        }
    }
    CHECK(*word[0] == MANY && *word[1] == MANY);
    /* Neither peer drives the other with manual progress: closing takes a while. */
    for (int s = 0; s < 2; s++)
        box_close(box[s]);
}

static void atomics_from_both_sides_at_once(void)
{
    both_ask(false);
}

static void atomics_from_both_sides_at_once_manually(void)
{
    both_ask(true);
}

/* ---- What is refused ---- */

static weft_remote_memory *half_open(struct duo *duo, void *address, uint64_t len, uint32_t access)
{
    char blob[4096];
    weft_memory_args args = WEFT_MEMORY_ARGS_INIT;
    weft_memory_range range = {address, len};
    weft_memory *memory;
    weft_remote_memory *remote;
    args.access = access;
    CHECK_OK(weft_memory_register(duo->b->endpoint, &range, 1, &args, &memory));
    size_t n = descriptor_of(memory, blob, sizeof blob);
    CHECK_OK(weft_remote_memory_import(duo->a->endpoint, duo->a_to_b, blob, n, &remote));
    return remote;
}

static void bad_input_is_refused(void)
{
    struct duo duo = duo_open(4096);
    weft_endpoint *a = duo.a->endpoint;
    struct atomic_request good = atomic_args(duo.b_of_a, 0, 1), args;
    REFUSED(WEFT_ERR_HANDLE, weft_fetch_add(a, NULL, 0, 0, NULL, NULL));
    REFUSED(WEFT_ERR_HANDLE, submit_fetch_add(NULL, &good, NULL));
#define BAD(status, field, value)                                                           \
    (args = good, args.field = (value), REFUSED(status, submit_fetch_add(a, &args, NULL)),     \
     REFUSED(status, submit_compare_swap(a, &args, NULL)))
    BAD(WEFT_ERR_INVALID, options.size, 0);
    BAD(WEFT_ERR_INVALID, options.size, 100000);
    BAD(WEFT_ERR_UNSUPPORTED, options.flags, WEFT_NOTIFY);
    BAD(WEFT_ERR_UNSUPPORTED, options.flags, 1u << 31);
    BAD(WEFT_ERR_UNSUPPORTED, options.reserved, 1);
    BAD(WEFT_ERR_HANDLE, remote, NULL);
    BAD(WEFT_ERR_HANDLE, remote, (weft_remote_memory *)duo.a_memory);
    BAD(WEFT_ERR_HANDLE, options.queue, (weft_queue *)duo.a_memory);
    const uint64_t outside[] = {4089, 4096, 1 << 20, UINT64_MAX - 7, UINT64_MAX};
    for (size_t i = 0; i < COUNT(outside); i++)
        BAD(WEFT_ERR_RANGE, remote_offset, outside[i]);
    for (uint64_t offset = 1; offset < 8; offset++)
        BAD(WEFT_ERR_INVALID, remote_offset, 1000 + offset);
    CHECK(strstr(weft_last_error(), "1007") != NULL);
    BAD(WEFT_ERR_LIMIT, options.timeout_ns, UINT64_C(25) * 3600 * SECOND);
    BAD(WEFT_ERR_INVALID, options.counter, 1);
    BAD(WEFT_ERR_INVALID, options.notify, 1);
    BAD(WEFT_ERR_INVALID, options.start_value, 1);
    BAD(WEFT_ERR_INVALID, options.done_value, 1);
    REFUSED(WEFT_ERR_HANDLE, submit_fetch_add(duo.b->endpoint, &good, NULL)); /* another's remote */

    /* The address must be aligned, not the offset. */
    weft_remote_memory *odd = half_open(&duo, duo.b_bytes + 4, 20, 0);
    args = atomic_args(odd, 0, 1);
    REFUSED(WEFT_ERR_INVALID, submit_fetch_add(a, &args, NULL));
    CHECK_EQ(add(duo.a, odd, 4, 1), 0);
    CHECK_EQ(duo.b_bytes[8], 1);
    args.remote_offset = 16; /* only 4 bytes are left there */
    REFUSED(WEFT_ERR_RANGE, submit_fetch_add(a, &args, NULL));
    const uint32_t halves[] = {WEFT_ACCESS_REMOTE_READ, WEFT_ACCESS_REMOTE_WRITE};
    for (size_t i = 0; i < COUNT(halves); i++) {
        weft_remote_memory *half = half_open(&duo, duo.b_bytes, 4096, halves[i]);
        args = atomic_args(half, 0, 1);
        REFUSED(WEFT_ERR_REMOTE_ACCESS, submit_fetch_add(a, &args, NULL));
        CHECK_OK(weft_remote_memory_release(half));
        REFUSED(WEFT_ERR_HANDLE, submit_fetch_add(a, &args, NULL)); /* stale */
    }
    CHECK_EQ(duo.b_bytes[0], 0);
    box_quiet(duo.a, 20);
    duo_close(&duo);
}

static uint32_t crc32_of(const uint8_t *bytes, size_t len)
{
    uint32_t sum = UINT32_MAX;
    for (size_t i = 0; i < len; i++) {
        sum ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            sum = sum >> 1 ^ (sum & 1 ? UINT32_C(0xedb88320) : 0);
    }
    return ~sum;
}

/* An address without capabilities, as another library's might be. */
static void atomics_to_a_peer_without_support_are_refused(void)
{
    enum { CAPABILITIES = 18 }; /* behind magic, format, versions and incarnation */
    uint8_t blob[8192];
    struct box *a = box_of(open_endpoint()), *b = box_of(open_endpoint());
    weft_peer_properties properties = WEFT_PEER_PROPERTIES_INIT;
    weft_peer peer;
    weft_remote_memory *remote;
    size_t n = address_of(b->endpoint, blob, sizeof blob);
    CHECK(blob[CAPABILITIES] & WEFT_CAPABILITY_ATOMICS);
    blob[CAPABILITIES] = 0;
    uint32_t sum = crc32_of(blob, n - 4);
    for (int i = 0; i < 4; i++)
        blob[n - 4 + (size_t)i] = (uint8_t)(sum >> 8 * i);
    CHECK_OK(weft_peer_connect(a->endpoint, blob, n, NULL, &peer));
    n = descriptor_of(register_one(b->endpoint, map_bytes(4096), 4096), blob, sizeof blob);
    CHECK_OK(weft_remote_memory_import(a->endpoint, peer, blob, n, &remote));
    struct atomic_request args = atomic_args(remote, 0, 1);
    REFUSED(WEFT_ERR_UNSUPPORTED, submit_fetch_add(a->endpoint, &args, NULL)); /* at once */
    CHECK_OK(box_take(a, WEFT_COMPLETION_PEER_UP, patience_ms()).status);
    CHECK_OK(weft_peer_info(a->endpoint, peer, &properties));
    CHECK_EQ(properties.capabilities, 0);
    REFUSED(WEFT_ERR_UNSUPPORTED, submit_compare_swap(a->endpoint, &args, NULL));
    box_close(a);
    box_close(b);
}

/* ---- Memory that goes away meanwhile ---- */

struct asker {
    struct box *box;
    weft_remote_memory *remote;
    weft_memory *local;
    _Atomic bool begun;
    uint64_t accepted, done, gone;
};

/* Submits until the memory is gone. */
static void *asks(void *argument)
{
    struct asker *asker = argument;
    struct atomic_request args = atomic_args(asker->remote, 0, 1);
    weft_status status = WEFT_OK;
    uint64_t until = now_ns() + patience_ms() * MS;
    while (status == WEFT_OK || asker->done + asker->gone < asker->accepted) {
        CHECK(now_ns() < until);
        bool room = status == WEFT_OK && asker->accepted - asker->done - asker->gone < AT_ONCE;
        if (room) {
            status = submit_fetch_add(asker->box->endpoint, &args, NULL);
            asker->accepted += status == WEFT_OK;
        }
        weft_completion c;
        box_pump(asker->box, room ? 0 : 1); /* a worker that shares this processor has two seconds to answer */
        while (box_try(asker->box, WEFT_COMPLETION_ATOMIC, &c)) {
            *(CHECK_ONE_OF(c.status, WEFT_OK, WEFT_ERR_MEMORY_GONE) == WEFT_OK ? &asker->done
                                                                              : &asker->gone) += 1;
        }
        asker->begun = asker->done > 100;
    }
    CHECK_STATUS(status, WEFT_ERR_MEMORY_GONE);
    return NULL;
}

static void atomics_on_memory_that_is_deregistered(void)
{
    struct duo duo = duo_open(4096);
    _Atomic uint64_t *word = (_Atomic uint64_t *)(void *)duo.b_bytes;
    struct asker asker = {.box = duo.a, .remote = duo.b_of_a};
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, asks, &asker) == 0);
    while (!asker.begun)
        sched_yield();
    CHECK_OK(weft_memory_deregister(duo.b_memory));
    uint64_t last = *word; /* nothing changes it from here on */
    CHECK(pthread_join(thread, NULL) == 0);
    sleep_ms(20);
    CHECK_EQ(*word, last);
    CHECK(asker.done <= last && last <= asker.accepted);
    CHECK_EQ(asker.done + asker.gone, asker.accepted);
    CHECK_OK(weft_remote_memory_release(duo.b_of_a));
    box_quiet(duo.a, 20);
    duo_close(&duo);
}

/* Where all threads take turns there are always requests to answer: the owner's frames get through all the same. */
static void atomics_on_memory_that_is_deregistered_on_one_processor(void)
{
    cpu_set_t all, one;
    CHECK_EQ(sched_getaffinity(0, sizeof all, &all), 0);
    CPU_ZERO(&one);
    for (int cpu = 0; CPU_COUNT(&one) == 0; cpu++)
        if (CPU_ISSET(cpu, &all))
            CPU_SET(cpu, &one);
    CHECK_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    atomics_on_memory_that_is_deregistered();
}

/* ---- Remote memory that another thread releases ---- */

/* Submits until the remote memory is stale; returns how many were accepted. */
static void *uses(void *argument)
{
    struct asker *asker = argument;
    struct atomic_request atomic = atomic_args(asker->remote, 0, 1);
    struct range_request range = {.options.size = sizeof(weft_op_options), .remote = asker->remote, .len = 8};
    weft_status status = WEFT_OK;
    range.local = asker->local;
    asker->begun = true;
    for (int i = 0; status == WEFT_OK && i < 50; i++) {
        status = i % 2 ? submit_fetch_add(asker->box->endpoint, &atomic, NULL)
                       : submit_write(asker->box->endpoint, &range, NULL);
        asker->accepted += status == WEFT_OK;
    }
    if (status != WEFT_OK)
        CHECK_STATUS(status, WEFT_ERR_HANDLE);
    return NULL;
}

/* In either order: accepted operations are done, and memory in use is not released. */
static void remote_memory_is_released_while_others_submit(void)
{
    struct duo duo = duo_open(4096);
    char blob[4096];
    size_t n = descriptor_of(duo.b_memory, blob, sizeof blob);
    for (int round = 0; round < 500; round++) {
        struct asker asker = {.box = duo.a, .local = duo.a_memory};
        pthread_t thread;
        weft_status status;
        uint64_t until = now_ns() + patience_ms() * MS, ended = 0;
        CHECK_OK(weft_remote_memory_import(duo.a->endpoint, duo.a_to_b, blob, n, &asker.remote));
        CHECK(pthread_create(&thread, NULL, uses, &asker) == 0);
        while (!asker.begun)
            ;
        for (volatile int i = 0; i < round * 8 % 1000; i++)
            ;
        while ((status = weft_remote_memory_release(asker.remote)) != WEFT_OK) {
            CHECK_STATUS(status, WEFT_ERR_BUSY);
            CHECK(now_ns() < until);
            sched_yield();
        }
        CHECK(pthread_join(thread, NULL) == 0);
        while (ended < asker.accepted) {
            CHECK(now_ns() < until);
            box_pump(duo.a, 10);
            for (weft_completion c; box_try(duo.a, WEFT_COMPLETION_ATOMIC, &c) ||
                                    box_try(duo.a, WEFT_COMPLETION_WRITE, &c); ended++)
                CHECK_OK(c.status);
        }
    }
    box_quiet(duo.a, 20);
    duo_close(&duo);
}

/* ---- A peer that does not answer ---- */

/* Connected to an endpoint that makes progress only while it is polled. */
static struct duo duo_with_idle_peer(weft_endpoint_config *config)
{
    char blob[8192];
    struct duo duo = {.len = 4096};
    weft_endpoint_config idle = test_config();
    idle.progress = WEFT_PROGRESS_MANUAL;
    duo.a = box_of(open_with(config));
    duo.b = box_of(open_with(&idle));
    size_t n = address_of(duo.b->endpoint, blob, sizeof blob);
    CHECK_OK(weft_peer_connect(duo.a->endpoint, blob, n, NULL, &duo.a_to_b));
    duo.b_to_a = box_take(duo.b, WEFT_COMPLETION_PEER_UP, patience_ms()).peer;
    for (weft_completion c; !box_try(duo.a, WEFT_COMPLETION_PEER_UP, &c); box_pump(duo.a, 1))
        box_pump(duo.b, 1);
    duo.b_bytes = map_bytes(duo.len);
    duo.b_memory = register_one(duo.b->endpoint, duo.b_bytes, duo.len);
    n = descriptor_of(duo.b_memory, blob, sizeof blob);
    CHECK_OK(weft_remote_memory_import(duo.a->endpoint, duo.a_to_b, blob, n, &duo.b_of_a));
    struct atomic_request args = atomic_args(duo.b_of_a, 8, 1);
    CHECK_OK(submit_fetch_add(duo.a->endpoint, &args, NULL));
    for (weft_completion c; !box_try(duo.a, WEFT_COMPLETION_ATOMIC, &c); box_pump(duo.a, 1))
        box_pump(duo.b, 1);
    return duo;
}

static void deadlines_and_cancels(void)
{
    enum { SLOTS = 16 };
    weft_endpoint_config config = test_config();
    config.max_transfers = SLOTS;
    struct duo duo = duo_with_idle_peer(&config);
    _Atomic uint64_t *word = (_Atomic uint64_t *)(void *)duo.b_bytes;
    struct atomic_request args = atomic_args(duo.b_of_a, 0, 1);
    weft_op id[SLOTS];
    uint64_t began = judged_from();
    for (int i = 0; i < SLOTS; i++) {
        args.options.timeout_ns = i % 2 ? 300 * MS : 0; /* the others are canceled */
        CHECK_OK(submit_fetch_add(duo.a->endpoint, &args, &id[i]));
    }
    canary_sleep_ms(50); /* they are on their way */
    for (int i = 0; i < SLOTS; i += 2) {
        CHECK_OK(weft_op_cancel(duo.a->endpoint, id[i]));
        weft_completion c = box_await(duo.a, id[i], patience_ms());
        CHECK_STATUS(c.status, WEFT_ERR_CANCELED);
        CHECK_EQ(c.previous, 0);
        REFUSED(WEFT_ERR_HANDLE, weft_op_cancel(duo.a->endpoint, id[i]));
    }
    for (int i = 1; i < SLOTS; i += 2) {
        weft_completion c = box_await(duo.a, id[i], patience_ms());
        CHECK_STATUS(c.status, WEFT_ERR_TIMED_OUT);
        CHECK(c.done_ns - c.submit_ns >= 300 * MS);
        CHECK_WITHIN(c.submit_ns + 300 * MS, c.done_ns, LATE_MOST);
    }
    CHECK(now_ns() - began >= 300 * MS);
    CHECK_EQ(*word, 0);
    /* All of them are still in flight: their number is limited. */
    REFUSED(WEFT_ERR_AGAIN, submit_fetch_add(duo.a->endpoint, &args, NULL));
    REFUSED(WEFT_ERR_BUSY, weft_remote_memory_release(duo.b_of_a));
    args.options.timeout_ns = 0;
    uint64_t until = now_ns() + patience_ms() * MS;
    while (submit_fetch_add(duo.a->endpoint, &args, &id[0]) != WEFT_OK) {
        CHECK(now_ns() < until);
        box_pump(duo.b, 1);
    }
    weft_completion c;
    for (; !box_try(duo.a, WEFT_COMPLETION_ATOMIC, &c); box_pump(duo.a, 1)) {
        CHECK(now_ns() < until);
        box_pump(duo.b, 1);
    }
    CHECK_OK(c.status);
    CHECK(c.op == id[0]);
    CHECK_EQ(c.previous, SLOTS); /* each was done, once */
    box_quiet(duo.a, 20);
    box_close(duo.a);
    box_close(duo.b);
}

static void disconnect_ends_atomics(void)
{
    weft_endpoint_config config = test_config();
    struct duo duo = duo_with_idle_peer(&config);
    struct atomic_request args = atomic_args(duo.b_of_a, 0, 1);
    for (int i = 0; i < 500; i++)
        CHECK_OK(submit_fetch_add(duo.a->endpoint, &args, NULL));
    CHECK_OK(weft_peer_disconnect(duo.a->endpoint, duo.a_to_b));
    for (int i = 0; i < 500; i++)
        CHECK_STATUS(box_take(duo.a, WEFT_COMPLETION_ATOMIC, patience_ms()).status, WEFT_ERR_CANCELED);
    CHECK_OK(box_take(duo.a, WEFT_COMPLETION_PEER_DOWN, patience_ms()).status);
    REFUSED_EITHER(WEFT_ERR_PEER_CLOSED, WEFT_ERR_PEER_LOST, submit_fetch_add(duo.a->endpoint, &args, NULL));
    CHECK_OK(weft_remote_memory_release(duo.b_of_a));
    box_quiet(duo.a, 20);
    box_close(duo.a);
    box_close(duo.b);
}

static void shutdown_ends_atomics(void)
{
    weft_endpoint_config config = test_config();
    struct duo duo = duo_with_idle_peer(&config);
    struct atomic_request args = atomic_args(duo.b_of_a, 0, 1);
    for (int i = 0; i < 500; i++)
        CHECK_OK(submit_fetch_add(duo.a->endpoint, &args, NULL));
    CHECK_OK(weft_endpoint_shutdown(duo.a->endpoint, 0));
    REFUSED(WEFT_ERR_CLOSED, submit_fetch_add(duo.a->endpoint, &args, NULL));
    for (int i = 0; i < 500; i++)
        CHECK_STATUS(box_take(duo.a, WEFT_COMPLETION_ATOMIC, patience_ms()).status, WEFT_ERR_CANCELED);
    box_close(duo.a);
    box_close(duo.b);
}

/* ---- A peer that is stopped, then killed ---- */

static void owns_until_it_is_killed(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    join(team, 0, box);
    give_memory(team, 0, register_one(box->endpoint, map_bytes(4096), 4096));
    for (;;)
        box_pump(box, 100);
}

static void stops_and_kills(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    weft_peer peer = join(team, 1, box);
    weft_remote_memory *remote = take_memory(team, 1, box, peer);
    pid_t pid = pid_of(team, 1);
    CHECK_EQ(add(box, remote, 0, 1), 0);
    stop_process(pid);
    struct atomic_request args = atomic_args(remote, 0, 1);
    args.options.timeout_ns = 500 * MS;
    for (int i = 0; i < 100; i++)
        CHECK_OK(submit_fetch_add(box->endpoint, &args, NULL));
    for (int i = 0; i < 100; i++)
        CHECK_STATUS(box_take(box, WEFT_COMPLETION_ATOMIC, patience_ms()).status, WEFT_ERR_TIMED_OUT);
    CHECK(kill(pid, SIGCONT) == 0);
    CHECK_EQ(add(box, remote, 0, 1), 101); /* operations that timed out were done all the same, once */
    args.options.timeout_ns = 0;
    for (int i = 0; i < 1000; i++)
        CHECK_OK(submit_fetch_add(box->endpoint, &args, NULL));
    kill_member(team, 1);
    for (int i = 0; i < 1000; i++)
        CHECK_ONE_OF(box_take(box, WEFT_COMPLETION_ATOMIC, patience_ms()).status, WEFT_OK,
                     WEFT_ERR_PEER_LOST);
    CHECK_STATUS(box_take(box, WEFT_COMPLETION_PEER_DOWN, patience_ms()).status, WEFT_ERR_PEER_LOST);
    CHECK_OK(weft_remote_memory_release(remote));
    box_quiet(box, 50);
    box_close(box);
}

static void atomics_end_when_the_peer_is_stopped_and_killed(void)
{
    run_pair(stops_and_kills, owns_until_it_is_killed);
}

static const struct test tests[] = {
    {"atomics_return_the_previous_value", "any wide", atomics_return_the_previous_value},
    {"memory_in_use_is_not_released", "once", memory_in_use_is_not_released},
    {"atomics_wait_until_the_peer_is_up", "any", atomics_wait_until_the_peer_is_up},
    {"sums_of_many_peers_add_up", "any", sums_of_many_peers_add_up},
    {"compare_swap_makes_a_lock", "any", compare_swap_makes_a_lock},
    {"atomics_from_both_sides_at_once", "any", atomics_from_both_sides_at_once},
    {"atomics_from_both_sides_at_once_manually", "any", atomics_from_both_sides_at_once_manually},
    {"bad_input_is_refused", "once", bad_input_is_refused},
    {"atomics_to_a_peer_without_support_are_refused", "any", atomics_to_a_peer_without_support_are_refused},
    {"atomics_on_memory_that_is_deregistered", "any", atomics_on_memory_that_is_deregistered},
    {"atomics_on_memory_that_is_deregistered_on_one_processor", "any", atomics_on_memory_that_is_deregistered_on_one_processor},
    {"remote_memory_is_released_while_others_submit", "once", remote_memory_is_released_while_others_submit},
    {"deadlines_and_cancels", "any timed", deadlines_and_cancels},
    {"disconnect_ends_atomics", "any", disconnect_ends_atomics},
    {"shutdown_ends_atomics", "any", shutdown_ends_atomics},
    {"atomics_end_when_the_peer_is_stopped_and_killed", "tcp,host", atomics_end_when_the_peer_is_stopped_and_killed},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
