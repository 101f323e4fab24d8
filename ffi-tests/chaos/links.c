/*
 * Who is connected. A connection is in use once each side has said hello with a token of
 * its own, and the other has made its area ready for it: only after everything of the
 * connection before it is over there.
 */
#include "host.h"

struct link *link_of(weft_peer peer)
{
    for (uint32_t i = self.links_count; i-- > 0;)
        if (self.links[i % LINKS_MAX].peer == peer)
            return &self.links[i % LINKS_MAX];
    return NULL;
}

bool is_ready(int host)
{
    const struct link *link = self.to[host];
    return link && link->remote && book->ways[self.me][host].ready == link->token;
}

/* ---- Connecting ---- */

static bool has_link(int host)
{
    for (uint32_t i = 0; i < LINKS_MAX; i++)
        if (self.links[i].up && self.links[i].host == host)
            return true;
    return false;
}

static void connect_to(int host)
{
    struct host *there = &book->hosts[host];
    uint64_t card = there->card;
    char address[sizeof there->address];
    uint32_t len = there->address_len;
    weft_connect_args args = WEFT_CONNECT_ARGS_INIT;
    weft_peer peer;
    memcpy(address, there->address, sizeof address);
    if (card == 0 || card % 2 || card != there->card)
        return;
    args.user_data = (void *)(uintptr_t)(host + 1);
    weft_status status = weft_peer_connect(self.endpoint, address, len, &args, &peer);
    if (status != WEFT_OK) {
        finding(&book->odd, "host %d: weft_peer_connect: %s", self.me, weft_last_error());
        self.connect_at_ns[host] = now_ns() + SECOND;
        return;
    }
    self.connecting[host] = true;
    book->hosts[self.me].lives[self.life].connects++;
}

static void connect_where_needed(void)
{
    uint64_t now = now_ns();
    for (int host = 0; host < HOSTS; host++) {
        if (host == self.me || self.connecting[host] || book->over)
            continue;
        if (has_link(host)) { /* The lower one is the first to try; often both do. */
            self.connect_at_ns[host] = now + (host > self.me ? draw(200) : draw(600)) * MS;
            continue;
        }
        if (now >= self.connect_at_ns[host])
            connect_to(host);
    }
}

static void know(struct link *link)
{
    weft_peer_properties of = WEFT_PEER_PROPERTIES_INIT;
    link->host = -1;
    if (weft_peer_info(self.endpoint, link->peer, &of) != WEFT_OK)
        return;
    for (int host = 0; host < HOSTS; host++) {
        struct host *there = &book->hosts[host];
        if (there->card % 2 == 0 && there->incarnation == of.incarnation) {
            link->host = host;
            link->life = there->lives_count - 1;
        }
    }
}

void link_is_up(const weft_completion *c)
{
    struct link *link = link_of(c->peer);
    if (c->user_data) {
        int host = (int)(uintptr_t)c->user_data - 1;
        self.connecting[host] = false;
        self.connect_at_ns[host] = now_ns() + (100 + draw(300)) * MS;
        book->hosts[self.me].lives[self.life].answers++;
    }
    if (c->status != WEFT_OK || (link && link->up))
        return;
    link = &self.links[self.links_count++ % LINKS_MAX];
    CHECK(!link->up && !link->remote);
    memset(link, 0, sizeof *link);
    link->peer = c->peer;
    link->up = true;
    know(link);
}

/* The fabric may still have it, for a while. */
static void give_back(struct link *link)
{
    weft_status status = link->remote ? weft_remote_memory_release(link->remote) : WEFT_OK;
    if (status == WEFT_OK)
        link->remote = NULL;
    else if (status != WEFT_ERR_BUSY)
        finding(&book->odd, "host %d: releasing a peer's memory: %s", self.me, weft_last_error());
}

void link_is_down(const weft_completion *c)
{
    struct link *link = link_of(c->peer);
    if (!link || !link->up) {
        finding(&book->extra, "host %d: PEER_DOWN of a peer that is not up", self.me);
        return;
    }
    link->up = false;
    give_back(link);
    if (link->host < 0)
        return;
    if (link->prepared) {
        check_counts(link->host);
        struct way *way = &book->ways[link->host][self.me];
        CHECK_OK(weft_counter_destroy(self.endpoint, way->counter));
    }
    if (self.to[link->host] == link)
        self.to[link->host] = NULL;
}

/* ---- Hello ---- */

/* Our end of the way is clean, and the other is asked to clean its own. */
static void greet(struct link *link)
{
    static char message[sizeof(struct note) + 65536];
    struct note note = {HELLO, 0, self.life};
    struct way *way = &book->ways[self.me][link->host];
    weft_send_args args = WEFT_SEND_ARGS_INIT;
    size_t len = 0;
    if (self.to[link->host] != link) {
        self.to[link->host] = link;
        link->token = next_random(&self.random) | 1;
        for (uint32_t s = 0; s < SLOTS; s++) {
            way->slots[s].state = 0;
            way->slots[s].since_ns = 0;
            put_guard(self.me, link->host, LOCAL, s);
        }
    }
    note.what = link->token;
    memcpy(message, &note, sizeof note);
    CHECK_OK(weft_memory_export(self.memory, message + sizeof note, sizeof message - sizeof note, &len));
    args.peer = link->peer;
    args.data = message;
    args.len = sizeof note + len;
    args.timeout_ns = 10 * SECOND;
    link->greeted = weft_send(self.endpoint, &args, &link->hello) == WEFT_OK;
}

bool hello_is_sent(const weft_completion *c)
{
    for (uint32_t i = 0; i < LINKS_MAX; i++) {
        if (self.links[i].hello != c->transfer)
            continue;
        self.links[i].greeted = c->status == WEFT_OK;
        self.links[i].hello = 0;
        return true;
    }
    return false;
}

void hello_arrives(struct link *link, const weft_completion *c)
{
    struct note note;
    memcpy(&note, c->data, sizeof note);
    link->life = (uint32_t)note.life;
    link->their_token = note.what;
    if (link->remote)
        return;
    weft_status status = weft_remote_memory_import(self.endpoint, link->peer, (const char *)c->data + sizeof note,
                                                   c->bytes - sizeof note, &link->remote);
    /* What came before may be polled after the peer has ended, or while we leave. */
    if (status != WEFT_OK && status != WEFT_ERR_HANDLE && status != WEFT_ERR_CLOSED)
        finding(&book->odd, "host %d: importing: %s", self.me, weft_last_error());
}

/* Another connection with that host is not over yet. */
static bool is_haunted(const struct link *link)
{
    for (uint32_t i = 0; i < LINKS_MAX; i++)
        if (self.links[i].up && &self.links[i] != link && self.links[i].host == link->host)
            return true;
    return false;
}

static void prepare(struct link *link)
{
    struct way *way = &book->ways[link->host][self.me];
    weft_counter counter;
    CHECK_OK(weft_counter_create(self.endpoint, &counter));
    for (uint32_t s = 0; s < SLOTS; s++)
        put_guard(link->host, self.me, REMOTE, s);
    *(_Atomic uint64_t *)(memories[self.me] + WORDS + (uint64_t)link->host * 8) = 0;
    way->counts_asked = way->counts_ok = way->adds_asked = way->adds_ok = 0;
    way->counter = counter;
    link->prepared = true;
    way->ready = link->their_token;
}

static void check_between(const char *what, int owner, uint64_t ok, uint64_t value, uint64_t asked)
{
    if (value < ok)
        finding(&book->lost, "host %d: %s of host %d is %" PRIu64 ", and %" PRIu64 " were said to be done", self.me,
                what, owner, value, ok);
    if (value > asked)
        finding(&book->doubled, "host %d: %s of host %d is %" PRIu64 ", and %" PRIu64 " were asked for", self.me,
                what, owner, value, asked);
}

void check_counts(int owner)
{
    struct way *way = &book->ways[owner][self.me];
    uint64_t value, ok = way->counts_ok;
    if (weft_counter_read(self.endpoint, way->counter, &value) == WEFT_OK)
        check_between("the counter", owner, ok, value, way->counts_asked);
    ok = way->adds_ok;
    value = *(_Atomic uint64_t *)(memories[self.me] + WORDS + (uint64_t)owner * 8);
    check_between("the word", owner, ok, value, way->adds_asked);
}

/* ---- Fences ---- */

static void fence_what_failed(struct link *link)
{
    struct way *way = &book->ways[link->host][self.me];
    if (!link->prepared || link->fencing || now_ns() < link->fence_at_ns)
        return;
    for (uint32_t s = 0; s < SLOTS; s++)
        if ((way->slots[s].state & (FAILED | FENCED)) == FAILED)
            link->fencing |= UINT64_C(1) << s;
    if (link->fencing && !submit_fence(link))
        link->fencing = 0;
}

static void obey(void)
{
    int from = atomic_exchange(&book->hosts[self.me].disconnect_from, 0);
    struct link *link = from ? self.to[from - 1] : NULL;
    if (!link || !link->up)
        return;
    struct span *span = span_begin(self.me, -2);
    (void)span; /* it says when: what was under way then may fail */
    CHECK_ONE_OF(weft_peer_disconnect(self.endpoint, link->peer), WEFT_OK, WEFT_ERR_HANDLE);
}

void links_step(void)
{
    obey();
    connect_where_needed();
    for (uint32_t i = 0; i < LINKS_MAX; i++) {
        struct link *link = &self.links[i];
        if (!link->up)
            give_back(link);
        if (!link->up || link->host < 0)
            continue;
        if (!link->greeted && (self.to[link->host] == NULL || self.to[link->host] == link))
            greet(link);
        if (!link->prepared && link->their_token && !is_haunted(link))
            prepare(link);
        fence_what_failed(link);
    }
}
