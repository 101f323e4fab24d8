/*
 * A peer's machine is reset in the middle of transfers, as if its power had failed: its kernel closes no connection.
 * tools/test-reset.sh runs `guest` in a virtual machine, and each of the other tests on the host.
 */
#include <stddef.h>
#include <sys/un.h>

#include "harness.h"

#define SLOTS 8
#define SLOT (256 * KIB)
#define BYTES (SLOTS * SLOT)
#define ROUNDS 30
#define ALLOWED (10 * SECOND)
#define LONG (3600 * SECOND) /* No deadline ends an operation before the end of its peer does. */
#define MARK 0x5a

/* ---- Both sides ---- */

/* A file that host and guest see. */
static const char *shared(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/reset.%s", getenv("WEFT_RESET_SHARE"), name);
    return path;
}

static struct box *open_box(uint64_t liveness_ns)
{
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    CHECK(getenv("WEFT_RESET_SHARE") != NULL);
    config.fabric = "tcp";
    config.timeout_ns = LONG;
    config.connect_timeout_ns = patience_ms() * MS;
    config.liveness_ns = liveness_ns;
    return box_of(open_with(&config));
}

/* What a side sends first: its memory, and a counter for the writes to it. */
struct offer {
    weft_counter counter;
    uint32_t len;
    uint8_t descriptor[4096];
};

static weft_remote_memory *exchange(struct box *box, weft_peer peer, weft_memory *mine, weft_counter *counter)
{
    struct offer offer = {.counter = *counter};
    weft_remote_memory *remote;
    offer.len = (uint32_t)descriptor_of(mine, offer.descriptor, sizeof offer.descriptor);
    send_now(box, peer, &offer, sizeof offer);
    CHECK_OK(box_take(box, WEFT_COMPLETION_SEND, LONG / MS).status);
    weft_completion message = box_take(box, WEFT_COMPLETION_MESSAGE, LONG / MS);
    CHECK_EQ(message.bytes, sizeof offer);
    memcpy(&offer, message.data, sizeof offer);
    CHECK_OK(weft_message_release(box->endpoint, message.op));
    *counter = offer.counter;
    CHECK_OK(weft_remote_memory_import(box->endpoint, peer, offer.descriptor, offer.len, &remote));
    return remote;
}

/* ---- The guest: writes to each peer, one after the other, and is written to and read ---- */

static void serve(struct box *box, weft_memory *target, weft_memory *source)
{
    weft_peer peer = box_take(box, WEFT_COMPLETION_PEER_UP, LONG / MS).peer;
    weft_counter counter = 0;
    weft_remote_memory *remote = exchange(box, peer, target, &counter);
    weft_completion c;
    for (size_t open = 0, next = 0;;) {
        struct range_request args = range_args(source, remote, SLOT);
        args.options.counter = counter;
        while (open < SLOTS / 2) {
            args.local_offset = args.remote_offset = next++ % SLOTS * SLOT;
            if (submit_write(box->endpoint, &args, NULL) != WEFT_OK)
                break;
            open++;
        }
        box_pump(box, 10);
        while (box_try(box, WEFT_COMPLETION_WRITE, &c)) {
            CHECK_ONE_OF(c.status, WEFT_OK, WEFT_ERR_PEER_CLOSED, WEFT_ERR_PEER_LOST);
            open--;
        }
        if (box_try(box, WEFT_COMPLETION_PEER_DOWN, &c))
            break;
    }
    CHECK_OK(weft_remote_memory_release(remote));
}

static void guest(void)
{
    struct box *box = open_box(WEFT_LIVENESS_OFF);
    weft_memory *target = register_one(box->endpoint, map_bytes(BYTES), BYTES);
    uint8_t *bytes = map_bytes(BYTES), address[4096];
    char whole[512];
    fill_random(bytes, BYTES, 1);
    weft_memory *source = register_one(box->endpoint, bytes, BYTES);
    size_t len = address_of(box->endpoint, address, sizeof address);
    snprintf(whole, sizeof whole, "%s", shared("address"));
    FILE *file = fopen(shared("part"), "w");
    CHECK(file != NULL && fwrite(address, 1, len, file) == len && fclose(file) == 0);
    CHECK(rename(shared("part"), whole) == 0);
    for (;;)
        serve(box, target, source);
}

/* ---- The host: each slot is written and read back, again and again, while the guest writes ---- */

struct session {
    struct box *box;
    weft_peer peer;
    uint64_t incarnation;
    weft_remote_memory *remote;
    uint8_t *out, *in, *landing;
    weft_memory *out_memory, *in_memory, *landing_memory;
    weft_counter counter;
    uint64_t seed[SLOTS];
    bool reading[SLOTS];
    uint64_t verified, goal; /* reads; slots rest once there are as many as the goal */
    int open, lost;
    bool was_reset;
    weft_completion down; /* kind 0: it is up */
};

static void start(struct session *s, size_t slot)
{
    bool reading = s->reading[slot];
    struct range_request args = range_args(reading ? s->in_memory : s->out_memory, s->remote, SLOT);
    args.local_offset = args.remote_offset = slot * SLOT;
    args.options.user_data = (void *)slot;
    if (!reading)
        fill_random(s->out + slot * SLOT, SLOT, ++s->seed[slot]);
    weft_status status = reading ? submit_read(s->box->endpoint, &args, NULL) : submit_write(s->box->endpoint, &args, NULL);
    CHECK_STATUS(status, s->was_reset && status != WEFT_OK ? WEFT_ERR_PEER_LOST : WEFT_OK);
    s->open += status == WEFT_OK;
}

static void transfer_ended(struct session *s, const weft_completion *c)
{
    size_t slot = (size_t)c->user_data;
    uint8_t *in = s->in + slot * SLOT;
    CHECK_EQ(c->peer, s->peer);
    CHECK_EQ(c->kind, s->reading[slot] ? WEFT_COMPLETION_READ : WEFT_COMPLETION_WRITE);
    s->open--;
    if (c->status != WEFT_OK) {
        CHECK(s->was_reset);
        CHECK_STATUS(c->status, WEFT_ERR_PEER_LOST);
        memset(in, MARK, SLOT);
        s->lost++;
        return;
    }
    if (s->reading[slot]) {
        CHECK_EQ(differs_random(in, SLOT, s->seed[slot]), -1);
        memset(in, MARK, SLOT);
        s->verified++;
    }
    s->reading[slot] = !s->reading[slot];
    if (s->reading[slot] || s->verified < s->goal)
        start(s, slot);
}

/* One completion at a time: nothing may be submitted once the PEER_DOWN is polled. */
static void pump(struct session *s)
{
    weft_completion c;
    int32_t n = weft_queue_poll(weft_endpoint_queue(s->box->endpoint), &c, 1, 10 * MS);
    CHECK(n == 0 || n == 1);
    if (n == 0 || c.kind == WEFT_COMPLETION_RAIL_DOWN || c.kind == WEFT_COMPLETION_RAIL_UP)
        return;
    CHECK_EQ(s->down.kind, 0);
    if (c.kind != WEFT_COMPLETION_PEER_DOWN) {
        transfer_ended(s, &c);
        return;
    }
    CHECK_EQ(c.peer, s->peer);
    CHECK(s->was_reset);
    CHECK_STATUS(c.status, WEFT_ERR_PEER_LOST);
    CHECK_EQ(s->open, 0);
    memset(s->landing, MARK, BYTES);
    s->down = c;
}

static uint64_t counted(const struct session *s)
{
    uint64_t value;
    CHECK_OK(weft_counter_read(s->box->endpoint, s->counter, &value));
    return value;
}

static struct session *begin(struct box *box, uint64_t goal)
{
    struct session *s = calloc(1, sizeof *s);
    weft_peer_properties properties = WEFT_PEER_PROPERTIES_INIT;
    uint64_t until = now_ns() + 20 * patience_ms() * MS;
    uint8_t address[4096];
    weft_completion c;
    FILE *file;
    CHECK(s != NULL);
    while ((file = fopen(shared("address"), "r")) == NULL) {
        if (now_ns() > until)
            FAIL("the guest has not started in time");
        sleep_ms(100);
    }
    size_t len = fread(address, 1, sizeof address, file);
    fclose(file);
    *s = (struct session){.box = box, .goal = goal, .out = map_bytes(BYTES), .in = map_bytes(BYTES), .landing = map_bytes(BYTES)};
    memset(s->in, MARK, BYTES);
    s->out_memory = register_one(box->endpoint, s->out, BYTES);
    s->in_memory = register_one(box->endpoint, s->in, BYTES);
    s->landing_memory = register_one(box->endpoint, s->landing, BYTES);
    CHECK_OK(weft_counter_create(box->endpoint, &s->counter));
    CHECK_OK(weft_peer_connect(box->endpoint, address, len, NULL, &s->peer));
    CHECK_OK(box_take(box, WEFT_COMPLETION_PEER_UP, 2 * patience_ms()).status);
    CHECK_OK(weft_peer_info(box->endpoint, s->peer, &properties));
    s->incarnation = properties.incarnation;
    weft_counter counter = s->counter;
    s->remote = exchange(box, s->peer, s->landing_memory, &counter);
    CHECK(!box_try(box, WEFT_COMPLETION_PEER_DOWN, &c)); /* the peer before this one has ended once */
    for (size_t slot = 0; slot < SLOTS; slot++)
        start(s, slot);
    return s;
}

/* Over QEMU's monitor; once it reports the reset, the guest's kernel is gone. */
static void reset_machine(void)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    char line[1024];
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(to.sun_path, sizeof to.sun_path, "%s", getenv("WEFT_RESET_MONITOR"));
    CHECK(connect(fd, (struct sockaddr *)&to, sizeof to) == 0);
    CHECK(dprintf(fd, "{\"execute\":\"qmp_capabilities\"}{\"execute\":\"system_reset\"}") > 0);
    FILE *file = fdopen(fd, "r");
    do
        CHECK(fgets(line, sizeof line, file) != NULL);
    while (strstr(line, "\"RESET\"") == NULL);
    fclose(file);
}

static void check_marked(const uint8_t *bytes)
{
    for (size_t i = 0; i < BYTES; i++)
        CHECK_EQ(bytes[i], MARK);
}

static void reset_in_the_middle(uint64_t liveness_ns)
{
    struct box *box = open_box(liveness_ns);
    struct session *old = begin(box, UINT64_MAX), *new;
    bool silent = liveness_ns != WEFT_LIVENESS_OFF;
    while (old->verified < ROUNDS || counted(old) < ROUNDS)
        pump(old);
    CHECK(unlink(shared("address")) == 0);
    if (silent)
        fclose(fopen(shared("silent"), "w"));
    old->was_reset = true;
    judged_from();
    reset_machine();
    uint64_t reset = now_ns(), until = reset + 20 * patience_ms() * MS;
    while (old->down.kind == 0) {
        pump(old);
        if (now_ns() > until)
            FAIL("the peer is not lost, and %d of %d transfers have not ended", old->open, SLOTS);
    }
    printf("%" PRIu64 " transfers before the reset, %d of %d lost %" PRIu64 " ms after it\n", old->verified + counted(old),
           old->lost, SLOTS, (old->down.done_ns - reset) / MS);
    CHECK_EQ(old->lost, SLOTS);
    if (silent) {
        CHECK(old->down.done_ns > reset + ALLOWED / 2); /* else the guest has said something */
        CHECK_WITHIN(reset, old->down.done_ns, 2 * ALLOWED);
        CHECK(unlink(shared("silent")) == 0);
    }
    uint64_t counts = counted(old);
    new = begin(box, ROUNDS);
    CHECK(new->incarnation != old->incarnation && new->peer != old->peer);
    while (new->open > 0 || counted(new) < ROUNDS)
        pump(new);
    check_marked(old->in);
    check_marked(old->landing);
    CHECK_EQ(counted(old), counts);
    CHECK_OK(weft_remote_memory_release(old->remote));
    CHECK_OK(weft_memory_deregister(old->landing_memory));
    CHECK_OK(weft_memory_deregister(old->in_memory));
    CHECK_OK(weft_memory_deregister(old->out_memory));
    box_close(box);
}

/* Nothing answers until the host has noticed. */
static void peer_is_lost_by_its_silence(void)
{
    reset_in_the_middle(ALLOWED);
}

/* The new kernel does not know the old one's connections. */
static void peer_is_lost_when_its_machine_is_back(void)
{
    reset_in_the_middle(WEFT_LIVENESS_OFF);
}

static const struct test tests[] = {
    {"guest", "lab", guest},
    {"peer_is_lost_by_its_silence", "lab", peer_is_lost_by_its_silence},
    {"peer_is_lost_when_its_machine_is_back", "lab", peer_is_lost_when_its_machine_is_back},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
