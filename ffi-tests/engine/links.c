/*
 * Connections. A connection is in use once each side has sent a hello with its own token, and the other has prepared
 * its area for it: only after everything of the earlier connection has ended there. A host that deregisters its memory
 * and registers it again sends another hello, with the next version.
 */
#include "engine.h"

struct link *link_of(weft_peer peer)
{
    for (uint32_t i = self->links_count; i-- > 0 && i + LINKS_MAX >= self->links_count;)
        if (self->links[i % LINKS_MAX].peer == peer)
            return &self->links[i % LINKS_MAX];
    return NULL;
}

bool is_ready(int host)
{
    const struct link *link = self->to[host];
    const struct way *way = &book->ways[self->me][host];
    return link && link->remote && way->ready == link->token && way->version == link->version;
}

/* ---- Connecting ---- */

static bool has_link(int host)
{
    for (uint32_t i = 0; i < LINKS_MAX; i++)
        if (self->links[i].up && self->links[i].host == host)
            return true;
    return false;
}

static void connect_to(int host)
{
    struct host *there = &book->hosts[host];
    uint64_t card = there->card;
    char address[sizeof there->address];
    uint32_t len = there->address_len;
    weft_op_options args = WEFT_OP_OPTIONS_INIT;
    weft_peer peer;
    memcpy(address, there->address, sizeof address);
    if (card == 0 || card % 2 || card != there->card)
        return;
    args.user_data = (void *)(uintptr_t)(host + 1);
    weft_status status = weft_peer_connect(self->endpoint, address, len, &args, &peer);
    if (status != WEFT_OK) {
        finding(&book->odd, "host %d: weft_peer_connect: %s", self->me, weft_last_error());
        self->connect_at_ns[host] = world_ns() + SECOND;
        return;
    }
    self->connecting[host] = true;
    book->hosts[self->me].lives[self->life].connects++;
}

static void connect_where_needed(void)
{
    uint64_t now = world_ns(), scale = book->plan.world & (THREADS | VIRTUAL) ? MS / 20 : MS;
    for (int host = 0; host < book->plan.hosts; host++) {
        if (host == self->me || self->connecting[host] || book->over || (book->quiet && book->plan.world & (THREADS | VIRTUAL)))
            continue;
        if (has_link(host)) { /* The lower host tries first; often both do. */
            self->connect_at_ns[host] = now + (host > self->me ? draw(200) : draw(600)) * scale;
            continue;
        }
        if (now >= self->connect_at_ns[host])
            connect_to(host);
    }
}

static void know(struct link *link)
{
    weft_peer_properties known = WEFT_PEER_PROPERTIES_INIT;
    link->host = -1;
    if (weft_peer_info(self->endpoint, link->peer, &known) != WEFT_OK)
        return;
    for (int host = 0; host < book->plan.hosts; host++) {
        struct host *there = &book->hosts[host];
        if (there->card % 2 == 0 && there->incarnation == known.incarnation) {
            link->host = host;
            link->life = there->lives_count - 1;
        }
    }
}

void link_is_up(const weft_completion *c)
{
    struct link *link = link_of(c->peer);
    if (c->accepted != (c->user_data == NULL))
        finding(&book->odd, "host %d: PEER_UP with accepted %u%s", self->me, c->accepted, c->user_data ? ", of our own connect" : "");
    if (c->user_data) {
        int host = (int)(uintptr_t)c->user_data - 1;
        self->connecting[host] = false;
        self->connect_at_ns[host] = world_ns() + (100 + draw(300)) * MS;
    }
    if (c->status != WEFT_OK || (link && link->up))
        return;
    link = &self->links[self->links_count++ % LINKS_MAX];
    CHECK(!link->up && !link->remote);
    memset(link, 0, sizeof *link);
    link->peer = c->peer;
    link->up = true;
    link->begin_ns = world_ns();
    know(link);
}

/* The fabric may still use it for a while. */
static void give_back(weft_remote_memory **remote)
{
    weft_status status = *remote ? weft_remote_memory_release(*remote) : WEFT_OK;
    if (status == WEFT_OK)
        *remote = NULL;
    else if (status != WEFT_ERR_BUSY)
        finding(&book->odd, "host %d: releasing a peer's memory: %s", self->me, weft_last_error());
}

void release_kept(int host)
{
    for (uint32_t s = 0; s < book->plan.slots; s++)
        if (self->kept[host][s].handle) {
            CHECK_OK(weft_prepared_destroy(self->kept[host][s].handle));
            self->kept[host][s].handle = NULL;
        }
}

/* Whether one of the two has recently disconnected, is leaving, or has left. */
bool is_ending(const struct link *link)
{
    const struct host *there = &book->hosts[link->host];
    uint64_t left = book->ways[self->me][link->host].left_ns, other = book->ways[link->host][self->me].left_ns;
    left = left > other ? left : other;
    return (left && left + SECOND > link->begin_ns) || there->leave || book->hosts[self->me].leave || book->over ||
           link->life != there->lives_count - 1 || there->lives[link->life].end_ns;
}


static void judge_down(const struct link *link, weft_status status)
{
    if (status != WEFT_OK && status != WEFT_ERR_PEER_CLOSED && status != WEFT_ERR_PEER_LOST)
        finding(&book->odd, "host %d: PEER_DOWN with %s", self->me, weft_status_name(status));
    if (book->plan.spared && !is_ending(link))
        finding(&book->needless, "host %d: needless: host %d went down with %s", self->me, link->host, weft_status_name(status));
}

void link_is_down(const weft_completion *c)
{
    struct link *link = link_of(c->peer);
    if (!link || !link->up) {
        finding(&book->stray, "host %d: PEER_DOWN of a peer that is not up", self->me);
        return;
    }
    link->up = false;
    if (link->open > 0)
        finding(&book->odd, "host %d: PEER_DOWN before %u of its operations had completed", self->me, link->open);
    if (link->host < 0)
        return;
    judge_down(link, c->status);
    release_kept(link->host);
    give_back(&link->remote);
    if (link->prepared)
        revoke_grants(link->host);
    if (link->prepared) {
        check_counts(link->host, false);
        struct way *way = &book->ways[link->host][self->me];
        CHECK_OK(weft_counter_destroy(self->endpoint, way->counter));
    }
    if (self->to[link->host] == link)
        self->to[link->host] = NULL;
}

/* ---- Handshake ---- */

static void say_hello(struct link *link)
{
    static _Thread_local char message[sizeof(struct note) + 65536];
    struct note note = {HELLO, link->token, self->life, book->ways[link->host][self->me].version};
    struct send_request args = SEND_REQUEST_INIT;
    size_t len = 0;
    memcpy(message, &note, sizeof note);
    CHECK_OK(weft_memory_export(self->exported[link->host], message + sizeof note, sizeof message - sizeof note, &len));
    args.peer = link->peer;
    args.data = message;
    args.len = sizeof note + len;
    args.options.timeout_ns = 10 * SECOND;
    link->greeted = submit_send(self->endpoint, &args, &link->hello) == WEFT_OK;
}

/* Our end of the way is clean, and the other host is asked to clean its end. */
static void greet(struct link *link)
{
    struct way *way = &book->ways[self->me][link->host];
    if (self->to[link->host] != link) {
        self->to[link->host] = link;
        link->token = next_random(&self->random) | 1;
        for (uint32_t s = 0; s < book->plan.slots; s++) {
            way->slots[s].state = 0;
            way->slots[s].since_ns = 0;
            put_guard(self->me, link->host, LOCAL, s);
        }
    }
    say_hello(link);
}

void hello_is_sent(const weft_completion *c)
{
    for (uint32_t i = 0; i < LINKS_MAX; i++)
        if (self->links[i].hello == c->op)
            self->links[i].greeted = c->status == WEFT_OK;
}

void hello_arrives(struct link *link, const weft_completion *c)
{
    struct note note;
    memcpy(&note, c->data, sizeof note);
    link->life = (uint32_t)note.life;
    link->their_token = note.what;
    if (!link->up || (link->remote && link->version == note.version))
        return;
    if (link->remote) {
        release_kept(link->host);
        size_t place = 0;
        while (place < COUNT(link->old) && link->old[place])
            place++;
        CHECK(place < COUNT(link->old));
        link->old[place] = link->remote;
        link->remote = NULL;
    }
    link->version = (uint32_t)note.version;
    weft_status status = weft_remote_memory_import(self->endpoint, link->peer, (const char *)c->data + sizeof note,
                                                   c->bytes - sizeof note, &link->remote);
    /* Earlier completions may be polled after the peer has ended, while this host leaves, or after the next version. */
    if (status != WEFT_OK && status != WEFT_ERR_HANDLE && status != WEFT_ERR_CLOSED && status != WEFT_ERR_MEMORY_GONE &&
        weft_status_category(status) != WEFT_CATEGORY_PEER)
        finding(&book->odd, "host %d: importing gave %s: %s", self->me, weft_status_name(status), weft_last_error());
}

/* Another connection to that host has not ended yet. */
static bool is_haunted(const struct link *link)
{
    for (uint32_t i = 0; i < LINKS_MAX; i++)
        if (self->links[i].up && &self->links[i] != link && self->links[i].host == link->host)
            return true;
    return false;
}

/* The way into this host starts again: nothing earlier counts or lands. */
static void clean(int owner)
{
    struct way *way = &book->ways[owner][self->me];
    weft_counter counter;
    CHECK_OK(weft_counter_create(self->endpoint, &counter));
    end_watch(way);
    for (uint32_t s = 0; s < book->plan.slots; s++)
        put_guard(owner, self->me, REMOTE, s);
    for (uint32_t w = 0; w < WORDS; w++) {
        way->words[w] = w ? mix(counter + w) : 0;
        way->word_state[w] = 0;
        *word_at(owner, self->me, w) = way->words[w];
    }
    memset(way->tickets, 0, sizeof way->tickets);
    way->seen = way->counts_asked = way->counts_ok = way->counts_sure = way->adds_asked = way->adds_ok = 0;
    way->counter = counter;
}

static void prepare(struct link *link)
{
    struct way *way = &book->ways[link->host][self->me];
    clean(link->host);
    link->prepared = true;
    make_grants(link);
    way->ready = link->their_token;
}

/* ---- Memory that is deregistered ---- */

static void deregister(void)
{
    /* Revokes of its grants have begun, but are not complete. */
    while ((self->went = weft_memory_deregister(self->going)) == WEFT_ERR_BUSY && book->plan.granted) {
        revoke_grants(self->going_of);
        host_poll(MS);
    }
}

/* The rails that register a memory: any, where none of them fails. */
static uint64_t draw_rails(void)
{
    bool calm = book->plan.world & (THREADS | VIRTUAL) && !*book->plan.sim_faults && book->plan.rails > 1;
    return calm && draw(2) ? 1 + draw((1u << book->plan.rails) - 1) : 0;
}

static void register_for(int other)
{
    weft_memory_range *ranges = calloc(book->plan.slots * LAYERS + 1, sizeof *ranges);
    weft_memory_args args = WEFT_MEMORY_ARGS_INIT;
    uint32_t count = book->plan.slots * LAYERS;
    uint8_t *first = slot_at(other, self->me, REMOTE, 0);
    CHECK(ranges != NULL);
    args.access = book->plan.granted ? WEFT_ACCESS_GRANTED : 0;
    if (book->plan.files >> self->me & 1) {
        args.kind = WEFT_MEMORY_FILE;
        args.fd = files[self->me];
        first -= (uintptr_t)(memories[self->me] + reached_len());
    } else {
        args.rails = draw_rails();
    }
    for (uint32_t i = 0; i < count; i++)
        ranges[i] = (weft_memory_range){first + (uint64_t)i * book->plan.layer, book->plan.layer};
    if (args.kind != WEFT_MEMORY_FILE) /* which has no words */
        ranges[count++] = (weft_memory_range){(void *)(uintptr_t)word_at(other, self->me, 0), WORDS * sizeof(uint64_t)};
    CHECK_OK(weft_memory_register(self->endpoint, ranges, count, &args, &self->exported[other]));
    free(ranges);
}

/* What the kernel still writes for a process that was killed is in its file once that has become shorter. */
static void settle_file(void)
{
    off_t len = (off_t)reached_len();
    CHECK(ftruncate(files[self->me], len + 1) == 0 && ftruncate(files[self->me], len) == 0);
}

void register_all(void)
{
    if (book->plan.files >> self->me & 1)
        settle_file();
    uint32_t count = HOSTS * book->plan.slots * LAYERS;
    weft_memory_range *ranges = calloc(count, sizeof *ranges);
    weft_memory_args args = WEFT_MEMORY_ARGS_INIT;
    CHECK(ranges != NULL);
    for (uint32_t i = 0; i < count; i++)
        ranges[i] = (weft_memory_range){memories[self->me] + (uint64_t)i * book->plan.layer, book->plan.layer};
    args.access = WEFT_ACCESS_LOCAL;
    for (int i = 0; i < 2; i++) {
        args.rails = draw_rails();
        CHECK_OK(weft_memory_register(self->endpoint, ranges, count, &args, &self->local[i]));
    }
    free(ranges);
    for (int other = 0; other < book->plan.hosts; other++)
        if (other != self->me)
            register_for(other);
}

/* From the return of the call on nothing lands, whatever is in flight. */
static void renew(int other)
{
    struct way *way = &book->ways[other][self->me];
    struct link *link = self->to[other];
    if (!link || !link->up || !link->prepared || !way->ready)
        return;
    struct span *span = span_begin(self->me, -3);
    way->version++;
    check_counts(other, false);
    revoke_grants(other);
    self->going = self->exported[other];
    self->going_of = other;
    call_blocking(deregister);
    self->going = NULL;
    if (self->went != WEFT_OK)
        finding(&book->odd, "host %d: weft_memory_deregister gave %s: %s", self->me, weft_status_name(self->went), weft_last_error());
    for (uint32_t s = 0; s < book->plan.slots; s++)
        if (way->slots[s].state & BUSY)
            atomic_fetch_or(&way->slots[s].state, FENCED);
    link->fencing &= FENCE_UNDER_WAY;
    if (link->up) { /* else its PEER_DOWN was polled meanwhile */
        CHECK_OK(weft_counter_destroy(self->endpoint, way->counter));
        clean(other);
    }
    register_for(other);
    if (link->up)
        make_grants(link);
    span->to_ns = world_ns() + 1;
    if (self->to[other] == link)
        say_hello(link);
}

/* ---- Counts ---- */

/* Whether it was submitted over this connection, to this version of the memory. */
static bool is_current(const struct operation *op, int owner, int target)
{
    const struct way *way = &book->ways[owner][target];
    return op->accepted && op->part[target].token == way->ready && op->part[target].version == way->version;
}

static void check_between(const char *what, int owner, uint64_t ok, uint64_t value, uint64_t asked)
{
    if (value < ok)
        finding(&book->lost, "host %d: %s of host %d is %" PRIu64 ", and %" PRIu64 " were said to be done", self->me, what,
                owner, value, ok);
    if (value > asked)
        finding(&book->doubled, "host %d: %s of host %d is %" PRIu64 ", and %" PRIu64 " were asked for", self->me, what,
                owner, value, asked);
}

/* A counter with its full count: the bytes of all pages that raise it are there. */
static void check_counted(int owner)
{
    const struct way *way = &book->ways[owner][self->me];
    for (uint32_t s = 0; s < book->plan.slots; s++) {
        const struct slot *slot = &way->slots[s];
        const struct operation *op = &book->operations[slot->operation];
        if (slot->state == BUSY && !op->read && !op->list && (op->counts || op->flags & WEFT_COUNT_PAGES) && is_current(op, owner, self->me))
            check_content(op, self->me, REMOTE);
    }
}

void check_counts(int owner, bool rested)
{
    struct way *way = &book->ways[owner][self->me];
    uint64_t value, ok = rested ? way->counts_ok : way->counts_sure;
    if (weft_counter_read(self->endpoint, way->counter, &value) == WEFT_OK) {
        check_between("the counter", owner, ok > way->seen ? ok : way->seen, value, way->counts_asked);
        way->seen = value;
        if (value == way->counts_asked && book->plan.world & (THREADS | VIRTUAL)) /* whose owner does nothing meanwhile */
            check_counted(owner);
    }
    ok = way->adds_ok;
    value = *word_at(owner, self->me, 0);
    check_between("the word", owner, ok, value, way->adds_asked);
    for (uint32_t w = 1; w < WORDS && rested; w++)
        if (way->word_state[w] == 0 && (value = *word_at(owner, self->me, w)) != way->words[w])
            finding(&book->wrong, "host %d: word %u of host %d is %#" PRIx64 ", not %#" PRIx64, self->me, w, owner, value, way->words[w]);
}

/* Unused slots must not have changed. */
void check_guards(void)
{
    for (int other = 0; other < book->plan.hosts; other++)
        for (uint32_t s = 0; s < book->plan.slots && other != self->me && is_ready(other); s++) {
            uint32_t state = book->ways[self->me][other].slots[s].state;
            if (state == 0 || state == (BUSY | DONE | TAKEN) || (state & (DONE | FENCED)) == (DONE | FENCED)) {
                check_guard(self->me, other, LOCAL, s);
                check_guard(self->me, other, REMOTE, s);
            }
        }
}

/* ---- Fences ---- */

static void fence_what_failed(struct link *link)
{
    struct way *way = &book->ways[link->host][self->me];
    if (!link->prepared || link->fencing || world_ns() < link->fence_at_ns)
        return;
    for (uint32_t s = 0; s < book->plan.slots; s++)
        if ((way->slots[s].state & (FAILED | FENCED | REVOKED)) == FAILED)
            link->fencing |= UINT64_C(1) << s;
    if (link->fencing == 0)
        return;
    link->fencing |= FENCE_UNDER_WAY;
    if (!fence_link(link))
        link->fencing = 0;
}

static void obey(void)
{
    struct host *host = &book->hosts[self->me];
    int from = atomic_exchange(&host->disconnect_from, 0), other = atomic_exchange(&host->renew_for, 0);
    struct link *link = from ? self->to[from - 1] : NULL;
    if (link && link->up) {
        struct span *span = span_begin(self->me, -2);
        (void)span; /* the time is recorded: operations then in flight may fail */
        book->ways[self->me][from - 1].left_ns = world_ns();
        CHECK_ONE_OF(weft_peer_disconnect(self->endpoint, link->peer), WEFT_OK, WEFT_ERR_HANDLE, WEFT_ERR_PEER_CLOSED,
                     WEFT_ERR_PEER_LOST); /* its PEER_DOWN is not polled yet */
    }
    if (other)
        renew(other - 1);
}

void links_step(void)
{
    obey();
    connect_where_needed();
    for (uint32_t i = 0; i < LINKS_MAX && i < self->links_count; i++) {
        struct link *link = &self->links[i];
        for (size_t k = 0; k < COUNT(link->old); k++)
            give_back(&link->old[k]);
        if (!link->up)
            give_back(&link->remote);
        if (!link->up || link->host < 0)
            continue;
        if (!link->greeted && (self->to[link->host] == NULL || self->to[link->host] == link))
            greet(link);
        if (!link->prepared && link->their_token && !is_haunted(link))
            prepare(link);
        grants_step(link);
        fence_what_failed(link);
    }
}
