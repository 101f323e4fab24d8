/* The side that has the pages: waits for a request, fills the requested pages, and writes them with one call. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common.h"
#include "pattern.h"
#include "random_fill.h"

/* One job for each run of the program. */
static struct job {
    bool has_request;
    struct request request;
    uint8_t *body; /* the descriptor, then the page indexes */
    uint64_t body_len, body_have;
    bool has_verdict;
    struct verdict verdict;
    struct pool pool;
    weft_remote_memory *remote;
} job;

/* ---- Messages of the decode side ---- */

static bool request_makes_sense(const struct request *r) {
    const uint64_t most = UINT64_C(1) << 47;
    if (r->kind != KIND_REQUEST) return complain("what came is no request of this program");
    bool ok = r->layers >= 1 && r->layers <= 65536 && r->pages <= UINT32_MAX && r->page_len >= 1 &&
              r->page_len <= most && r->descriptor_len <= UINT32_MAX;
    ok = ok && (r->pages == 0 || r->page_len <= most / r->pages / r->layers);
    return ok || complain("the request asks for %s pages of %s bytes in %u layers: impossible",
                          with_commas(r->pages).text, with_commas(r->page_len).text, r->layers);
}

static bool take_request(const void *data, uint64_t len) {
    if (len != sizeof job.request) return complain("a request of %s bytes is none", with_commas(len).text);
    memcpy(&job.request, data, sizeof job.request);
    if (!request_makes_sense(&job.request)) return false;
    job.body_len = job.request.descriptor_len + job.request.pages * sizeof(uint32_t);
    job.body = malloc(job.body_len + 1);
    job.has_request = true;
    return job.body || complain("out of memory");
}

static bool take_body(const void *data, uint64_t len) {
    if (len > job.body_len - job.body_have) return complain("the request is longer than it said");
    memcpy(job.body + job.body_have, data, len);
    job.body_have += len;
    return true;
}

static bool take_verdict(struct session *session, const void *data, uint64_t len) {
    if (len != sizeof job.verdict) return complain("a verdict of %s bytes is none", with_commas(len).text);
    memcpy(&job.verdict, data, sizeof job.verdict);
    job.has_verdict = job.verdict.kind == KIND_VERDICT && job.verdict.id == job.request.id;
    session->peer_may_leave = true;
    return job.has_verdict || complain("the verdict is of another job");
}

static bool take_message(struct session *session, const void *data, uint64_t len) {
    if (!job.has_request) return take_request(data, len);
    if (job.body_have < job.body_len) return take_body(data, len);
    return take_verdict(session, data, len);
}

static bool request_is_whole(const struct session *session) {
    (void)session;
    return job.has_request && job.body_have == job.body_len;
}

static bool verdict_is_here(const struct session *session) {
    (void)session;
    return job.has_verdict;
}

static bool write_has_ended(const struct session *session) { return session->write_ended; }

/* ---- The work ---- */

static bool meet(struct session *session) {
    uint8_t theirs[65536]; /* not needed: the decode side connects */
    size_t theirs_len;
    int listener = tcp_listen(session->options->host, session->options->port);
    int fd = listener >= 0 ? tcp_accept(listener) : -1;
    bool ok = fd >= 0 && session_swap_addresses(session, fd, theirs, sizeof theirs, &theirs_len);
    if (fd >= 0) close(fd);
    if (listener >= 0) close(listener);
    return ok && session_wait(session, "connecting", session_peer_is_up);
}

/* * Page `slot` of the request, in every layer, is at `slot * page_len` here. */
static bool fill(struct session *session) {
    const struct request *r = &job.request;
    const uint64_t step = 1 << 20;
    uint64_t done = 0;
    progress_begin("filling", r->pages * r->page_len * r->layers);
    for (uint32_t layer = 0; layer < r->layers; layer++) {
        for (uint64_t slot = 0; slot < r->pages; slot++) {
            uint8_t *page = job.pool.layers[layer] + slot * r->page_len;
            uint64_t key = page_key(r->seed, layer, slot);
            for (uint64_t at = 0; at < r->page_len; at += step) {
                uint64_t n = r->page_len - at < step ? r->page_len - at : step;
                pattern_fill(key, at, page + at, n);
                done += n;
                /* With --manual, polling here drives Weft, and detects a dead peer early. */
                if (progress_at(done) && !session_poll(session, 0)) return false;
            }
        }
    }
    progress_end();
    return true;
}

static bool submit(struct session *session) {
    const struct request *r = &job.request;
    /* The list follows a descriptor of any length: numbers must be in aligned memory. */
    uint32_t *pages = malloc((r->pages + 1) * sizeof *pages);
    if (!pages) return complain("out of memory");
    memcpy(pages, job.body + r->descriptor_len, r->pages * sizeof *pages);

    weft_pages w = WEFT_PAGES_INIT;
    w.local.range_step = 1;
    w.remote.pages = pages;
    w.remote.page_stride = r->page_stride;
    w.remote.offset = r->page_offset;
    w.remote.range_step = 1;
    w.page_len = r->page_len;
    w.page_count = r->pages;
    w.layer_count = r->layers;
    weft_op_options options = WEFT_OP_OPTIONS_INIT;
    options.flags = WEFT_NOTIFY;
    options.notify = r->id;
    weft_status status = weft_write_pages(session->endpoint, job.pool.memory, job.remote, &w, &options, NULL);
    free(pages);
    return status == WEFT_OK || session_call_failed("weft_write_pages", status);
}

static bool write_pages(struct session *session) {
    weft_status status = weft_remote_memory_import(session->endpoint, session->peer, job.body,
                                                   job.request.descriptor_len, &job.remote);
    if (status != WEFT_OK) return session_call_failed("weft_remote_memory_import", status);
    return submit(session) && session_wait(session, "writing", write_has_ended);
}

static bool report(struct session *session) {
    struct report report = {.kind = KIND_REPORT, .status = session->write.status, .id = job.request.id};
    report.ns = session->write.done_ns - session->write.submit_ns;
    bool sent = session_send(session, &report, sizeof report);
    if (report.status == WEFT_OK) return sent;
    return complain("the write ended with %s: %s (libfabric's error number %d)", weft_status_name(report.status),
                    weft_status_text(report.status), session->write.provider_errno);
}

static bool judge(struct session *session) {
    const struct request *r = &job.request;
    const struct verdict *v = &job.verdict;
    bool right = v->wrong_inside == 0 && v->wrong_outside == 0;
    uint64_t bytes = r->pages * r->page_len * r->layers;
    printf("prefill: %s: ", right ? "verified" : "WRONG");
    if (!right) {
        printf("%s bytes of pages wrong, %s bytes outside changed: ", with_commas(v->wrong_inside).text,
               with_commas(v->wrong_outside).text);
    }
    printf("%s bytes in %s pages x %u %s, ", with_commas(bytes).text, with_commas(r->pages).text, r->layers,
           r->layers == 1 ? "layer" : "layers");
    print_figures(session, bytes, session->write.done_ns - session->write.submit_ns);
    return right;
}

/* * Leaves after the decode side, whose deregistration waits for our answer. */
static bool part(struct session *session) {
    weft_status status = weft_remote_memory_release(job.remote);
    if (status != WEFT_OK) return session_call_failed("weft_remote_memory_release", status);
    return session_wait(session, "parting", session_peer_has_left);
}

static bool do_job(struct session *session) {
    if (!meet(session) || !session_wait(session, "waiting for the request", request_is_whole)) return false;
    const struct request *r = &job.request;
    if (!pool_allocate(&job.pool, r->layers, r->pages * r->page_len) || !fill(session)) return false;
    if (!pool_register(&job.pool, session, WEFT_ACCESS_LOCAL)) return false;
    if (!write_pages(session) || !report(session)) return false;
    if (!session_wait(session, "waiting for the check", verdict_is_here)) return false;
    bool parted = part(session);
    return judge(session) && parted;
}

bool run_prefill(const struct options *options) {
    struct session session;
    bool ok = session_open(&session, options, take_message) && do_job(&session);
    bool closed = session_close(&session);
    if (closed) pool_free(&job.pool); /* otherwise something may still read it */
    free(job.body);
    return ok && closed;
}
