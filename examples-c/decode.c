/* The side that needs the pages: requests them by number, waits for the notification, and checks every byte. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common.h"
#include "pattern.h"
#include "random_fill.h"

/* One job for each run of the program. */
static struct job {
    uint64_t id;
    uint32_t *pages; /* the indexes that the request lists */
    struct pool pool;
    bool has_report;
    struct report report;
    struct verdict verdict;
} job;

/* ---- Making the request ---- */

/* * The list: distinct indexes below total_pages, random or consecutive. */
static bool choose_pages(const struct options *o) {
    uint64_t state = o->seed;
    uint32_t *all = malloc(o->total_pages * sizeof *all);
    if (!all) return complain("out of memory");
    uint64_t first = o->adjacent ? random_next(&state) % (o->total_pages - o->pages + 1) : 0;
    for (uint64_t i = 0; i < o->total_pages; i++) all[i] = (uint32_t)((first + i) % o->total_pages);
    for (uint64_t i = 0; i < o->pages && !o->adjacent; i++) { /* Fisher and Yates, as far as needed */
        uint64_t other = i + random_next(&state) % (o->total_pages - i);
        uint32_t swapped = all[i];
        all[i] = all[other];
        all[other] = swapped;
    }
    job.pages = all;
    job.id = random_next(&state);
    return true;
}

static bool fill_background(struct session *session) {
    const struct options *o = session->options;
    const uint64_t step = 1 << 20;
    uint64_t done = 0;
    progress_begin("filling", job.pool.len * job.pool.count);
    for (uint32_t layer = 0; layer < job.pool.count; layer++) {
        for (uint64_t at = 0; at < job.pool.len; at += step) {
            uint64_t n = job.pool.len - at < step ? job.pool.len - at : step;
            pattern_fill(background_key(o->seed, layer), at, job.pool.layers[layer] + at, n);
            done += n;
            if (progress_at(done) && !session_poll(session, 0)) return false;
        }
    }
    progress_end();
    return true;
}

static bool meet(struct session *session) {
    const struct options *o = session->options;
    uint8_t theirs[65536];
    size_t theirs_len;
    int fd = tcp_connect(o->host, o->port, o->timeout_ns);
    bool ok = fd >= 0 && session_swap_addresses(session, fd, theirs, sizeof theirs, &theirs_len);
    if (fd >= 0) close(fd);
    if (!ok) return false;
    weft_peer peer; /* the peer that PEER_UP will name */
    weft_status status = weft_peer_connect(session->endpoint, theirs, theirs_len, NULL, &peer);
    if (status != WEFT_OK) return session_call_failed("weft_peer_connect", status);
    return session_wait(session, "connecting", session_peer_is_up);
}

/* * Sends the descriptor and the list, in messages of limited size. */
static bool send_body(struct session *session, const uint8_t *body, uint64_t len) {
    const uint64_t most = 256 << 10;
    for (uint64_t at = 0; at < len; at += most) {
        if (!session_send(session, body + at, len - at < most ? len - at : most)) return false;
    }
    return true;
}

static bool send_request(struct session *session) {
    const struct options *o = session->options;
    size_t descriptor_len = 0;
    weft_status status = weft_memory_export(job.pool.memory, NULL, 0, &descriptor_len);
    if (status != WEFT_OK && status != WEFT_ERR_TOO_SMALL) return session_call_failed("weft_memory_export", status);
    uint64_t list_len = o->pages * sizeof *job.pages;
    uint8_t *body = malloc(descriptor_len + list_len);
    if (!body) return complain("out of memory");
    status = weft_memory_export(job.pool.memory, body, descriptor_len, &descriptor_len);
    memcpy(body + descriptor_len, job.pages, list_len);

    struct request request = {
        .kind = KIND_REQUEST, .layers = o->layers, .id = job.id, .seed = o->seed, .pages = o->pages,
        .page_len = o->page_len, .page_stride = o->page_stride, .page_offset = o->page_offset,
        .descriptor_len = descriptor_len,
    };
    bool sent = status == WEFT_OK || session_call_failed("weft_memory_export", status);
    sent = sent && session_send(session, &request, sizeof request) &&
           send_body(session, body, descriptor_len + list_len);
    free(body); /* weft_send has copied it */
    return sent;
}

/* ---- The answer ---- */

static bool take_message(struct session *session, const void *data, uint64_t len) {
    (void)session;
    if (len != sizeof job.report) return complain("a report of %s bytes is none", with_commas(len).text);
    memcpy(&job.report, data, sizeof job.report);
    if (job.report.kind != KIND_REPORT || job.report.id != job.id) return complain("the report is of another job");
    job.has_report = true;
    return job.report.status == WEFT_OK || complain("the other side's write ended with %s: %s",
                                                    weft_status_name(job.report.status),
                                                    weft_status_text(job.report.status));
}

/* * The notification alone means that the pages are here; the report adds how long it took. */
static bool pages_are_here(const struct session *session) { return session->notified && job.has_report; }

/* ---- The check ---- */

/* * A page of the list: its place, and its index in the list. */
struct place {
    uint32_t page;
    uint32_t slot;
};

static int by_page(const void *a, const void *b) {
    const struct place *x = a, *y = b;
    return (x->page > y->page) - (x->page < y->page);
}

static struct place *places_in_order(const struct options *o) {
    struct place *places = malloc((o->pages + 1) * sizeof *places);
    if (!places) return NULL;
    for (uint64_t i = 0; i < o->pages; i++) places[i] = (struct place){job.pages[i], (uint32_t)i};
    qsort(places, o->pages, sizeof *places, by_page);
    return places;
}

/* * A piece of a layer that must hold the bytes of one key. */
struct piece {
    uint32_t layer;
    uint64_t start, len;
    uint64_t key, key_offset;
    uint64_t *wrong; /* the count that its wrong bytes go to */
    const char *what;
};

static bool check_piece(struct session *session, const struct piece *p, uint64_t *done) {
    const uint64_t step = 1 << 20;
    for (uint64_t at = 0; at < p->len; at += step) {
        uint64_t n = p->len - at < step ? p->len - at : step;
        size_t first;
        size_t wrong = pattern_wrong(p->key, p->key_offset + at, job.pool.layers[p->layer] + p->start + at, n, &first);
        if (wrong > 0 && *p->wrong == 0) {
            complain("the first wrong byte %s: layer %u, byte %s", p->what, (unsigned)p->layer,
                     with_commas(p->start + at + first).text);
        }
        *p->wrong += wrong;
        *done += n;
        if (progress_at(*done) && !session_poll(session, 0)) return false;
    }
    return true;
}

static bool check_outside(struct session *session, uint32_t layer, uint64_t from, uint64_t to, uint64_t *done) {
    struct piece gap = {.layer = layer, .start = from, .len = to - from, .key_offset = from,
                        .key = background_key(session->options->seed, layer),
                        .wrong = &job.verdict.wrong_outside, .what = "outside the pages"};
    return check_piece(session, &gap, done);
}

/* * Walks through a layer from its first byte to its last: the pages, and the bytes between them. */
static bool check_layer(struct session *session, uint32_t layer, const struct place *places, uint64_t *done) {
    const struct options *o = session->options;
    uint64_t at = 0;
    for (uint64_t i = 0; i < o->pages; i++) {
        uint64_t start = o->page_offset + places[i].page * o->page_stride;
        struct piece page = {.layer = layer, .start = start, .len = o->page_len,
                             .key = page_key(o->seed, layer, places[i].slot),
                             .wrong = &job.verdict.wrong_inside, .what = "of a page"};
        if (!check_outside(session, layer, at, start, done) || !check_piece(session, &page, done)) return false;
        at = start + o->page_len;
    }
    return check_outside(session, layer, at, job.pool.len, done);
}

static bool check(struct session *session) {
    uint64_t done = 0;
    job.verdict = (struct verdict){.kind = KIND_VERDICT, .id = job.id};
    if (session->notification != job.id) return complain("the notification is of another job");
    struct place *places = places_in_order(session->options);
    if (!places) return complain("out of memory");
    progress_begin("checking", job.pool.len * job.pool.count);
    bool ok = true;
    for (uint32_t layer = 0; ok && layer < job.pool.count; layer++) ok = check_layer(session, layer, places, &done);
    if (ok) progress_end();
    free(places);
    return ok;
}

static bool judge(const struct session *session) {
    const struct options *o = session->options;
    uint64_t inside = o->pages * o->page_len * o->layers;
    uint64_t outside = job.pool.len * job.pool.count - inside;
    bool right = job.verdict.wrong_inside == 0 && job.verdict.wrong_outside == 0;
    printf("decode: %s: %s pages x %u %s, %s bytes right; %s of %s bytes outside changed; ",
           right ? "verified" : "WRONG", with_commas(o->pages).text, o->layers, o->layers == 1 ? "layer" : "layers",
           with_commas(inside - job.verdict.wrong_inside).text, with_commas(job.verdict.wrong_outside).text,
           with_commas(outside).text);
    print_figures(session, inside, job.report.ns);
    if (!right) complain("to do the same again: --seed %llu", (unsigned long long)o->seed);
    return right;
}

/* ---- The job ---- */

static bool prepare(struct session *session) {
    const struct options *o = session->options;
    return choose_pages(o) && pool_allocate(&job.pool, o->layers, o->page_offset + o->total_pages * o->page_stride) &&
           fill_background(session) && pool_register(&job.pool, session, WEFT_ACCESS_REMOTE_WRITE);
}

static bool do_job(struct session *session) {
    if (!prepare(session) || !meet(session) || !send_request(session)) return false;
    if (!session_wait(session, "waiting for the pages", pages_are_here)) return false;
    if (!check(session) || !session_send(session, &job.verdict, sizeof job.verdict)) return false;
    if (!session_wait(session, "telling the result", session_all_sent)) return false;
    bool freed = pool_deregister(&job.pool, session);
    return judge(session) && freed;
}

bool run_decode(const struct options *options) {
    struct session session;
    bool ok = session_open(&session, options, take_message) && do_job(&session);
    bool closed = session_close(&session);
    if (closed) pool_free(&job.pool); /* otherwise something may still write to it */
    free(job.pages);
    return ok && closed;
}
