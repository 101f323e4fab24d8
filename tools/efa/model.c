/* What commands do to NICs and what belongs to them: queue pairs, memories, address handles. */
#include "model.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE = 4096, KEY_INDEX = MAX_MRS - 1, KEY_GENERATIONS = 64 /* keys have 24 bits in receives (interface) */ };

void fabric_make(struct fabric *fabric, int nics, uint32_t caps, const struct host *host, uint64_t seed) {
    memset(fabric, 0, sizeof *fabric);
    fabric->host = host;
    fabric->nics = nics;
    fabric->caps = caps;
    fabric->random = seed ? seed : 1;
    for (int i = 0; i < nics; i++) {
        struct nic *nic = &fabric->nic[i];
        /* Documentation: a GID is a link-local address, made of the interface's MAC. */
        const uint8_t gid[16] = {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x08, 0xef, 0xa0, 0xff, 0xfe, 0, 0, (uint8_t)(i + 1)};
        nic->fabric = fabric;
        nic->index = i;
        memcpy(nic->gid, gid, sizeof gid);
        nic->mrs = calloc(MAX_MRS, sizeof *nic->mrs);
        if (!nic->mrs) abort();
        nic->next_mr = nic->ah_end = 1; /* key 0 is none */
    }
}

/* xorshift64: the same seed gives the same faults. */
uint64_t fabric_random(struct fabric *fabric, uint64_t below) {
    uint64_t x = fabric->random;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    fabric->random = x;
    return below ? x % below : 0;
}

struct nic *fabric_find(struct fabric *fabric, const uint8_t gid[16]) {
    for (int i = 0; i < fabric->nics; i++)
        if (!memcmp(fabric->nic[i].gid, gid, 16)) return &fabric->nic[i];
    return NULL;
}

/* ---- Completions ---- */

void cq_complete(struct nic *nic, struct cq *cq, const struct completion *completion) {
    nic->fabric->work++;
    if (completion->status) nic->errors++;
    if (cq && !cq->overrun) nic->fabric->host->complete(cq->ring, completion);
}

void cq_overrun(struct nic *nic, struct cq *cq) {
    if (cq->overrun) return;
    cq->overrun = true;
    nic->fabric->host->event(cq->owner, EVENT_CQ_ERROR, cq->element);
}

/* ---- Queue pairs ---- */

struct qp *qp_create(struct nic *nic, const struct qp *as) {
    struct qp *qp;
    unsigned at = nic->next_qp, tries;
    for (tries = 0; tries < MAX_QPS && nic->qps[at % MAX_QPS]; tries++) at++;
    if (tries == MAX_QPS || !(qp = malloc(sizeof *qp))) return NULL;
    at %= MAX_QPS;
    *qp = *as;
    qp->nic = nic;
    qp->number = (uint16_t)at;
    qp->state = QP_RESET;
    qp->not_ready_retries = NOT_READY_FOREVER;
    qp->first = NULL;
    qp->end = &qp->first;
    nic->qps[at] = qp;
    nic->next_qp = at + 1; /* a number is not used again at once */
    nic->live_qps++;
    return qp;
}

/* Guess: in the state of error, all that was posted ends flushed. */
static void flush(struct qp *qp) {
    struct receive receive;
    while (qp->first) {
        struct operation *op = qp->first;
        struct completion flushed = {.id = op->work.id, .qpn = qp->number, .op = op->work.op, .status = STATUS_FLUSHED};
        qp->first = op->next;
        cq_complete(qp->nic, qp->send_cq, &flushed);
        free(op);
    }
    qp->end = &qp->first;
    while (qp->nic->fabric->host->next_receive(qp->receives, &receive)) {
        struct completion flushed = {.id = receive.id, .qpn = qp->number, .received = true, .status = STATUS_FLUSHED};
        cq_complete(qp->nic, qp->receive_cq, &flushed);
    }
}

void qp_set_state(struct qp *qp, enum qp_state state) {
    qp->state = state;
    if (state == QP_ERROR) flush(qp);
}

void qp_destroy(struct qp *qp) {
    qp->nic->qps[qp->number] = NULL;
    qp->nic->live_qps--;
    while (qp->first) {
        struct operation *op = qp->first;
        qp->first = op->next;
        free(op);
    }
    free(qp);
}

/* ---- Memories ---- */

struct mr *mr_find(struct nic *nic, uint32_t key) {
    struct mr *mr = &nic->mrs[key & KEY_INDEX];
    return mr->owner && mr->key == key ? mr : NULL;
}

int mr_register(struct nic *nic, const struct mr *as, struct mr **made) {
    uint64_t pages = (as->start % PAGE + as->len + PAGE - 1) / PAGE;
    unsigned at, tries;
    if (!as->len || as->len > UINT64_MAX - as->start || as->len > UINT64_MAX - as->iova) return EINVAL;
    if (as->access & ~(uint32_t)(ACCESS_LOCAL_WRITE | ACCESS_REMOTE_WRITE | ACCESS_REMOTE_READ)) return EOPNOTSUPP;
    if (nic->trouble.max_pages && nic->pages + pages > nic->trouble.max_pages) return ENOMEM;
    for (tries = 0, at = nic->next_mr; tries < MAX_MRS; tries++, at++) {
        at = at < MAX_MRS ? at : 1;
        if (!nic->mrs[at].owner) break;
    }
    if (tries == MAX_MRS) return ENOMEM;
    *made = &nic->mrs[at];
    **made = *as;
    (*made)->pages = pages;
    (*made)->key = at | ++nic->generation % KEY_GENERATIONS * MAX_MRS;
    nic->pages += pages;
    nic->next_mr = at + 1;
    return 0;
}

void mr_deregister(struct nic *nic, struct mr *mr) {
    nic->pages -= mr->pages;
    mr->owner = NULL;
}

/* ---- Address handles ---- */

static struct ah *ah_of(struct nic *nic, struct owner *owner, const uint8_t gid[16]) {
    for (int i = 1; i < nic->ah_end; i++) {
        struct ah *ah = &nic->ahs[i];
        if (ah->users && !ah->lost && ah->owner == owner && !memcmp(ah->gid, gid, 16)) return ah;
    }
    return NULL;
}

uint16_t ah_number(struct nic *nic, struct owner *owner, const uint8_t gid[16]) {
    struct ah *ah = ah_of(nic, owner, gid);
    return ah ? ah->number : NO_AH;
}

/* Interface (the kernel's driver): one address has one handle, however often a program asks for it. */
struct ah *ah_create(struct nic *nic, struct owner *owner, const uint8_t gid[16]) {
    struct ah *ah = ah_of(nic, owner, gid);
    for (uint16_t i = 1; !ah && i < MAX_AHS; i++) {
        if (nic->ahs[i].users) continue;
        ah = &nic->ahs[i];
        *ah = (struct ah){.owner = owner, .number = i};
        memcpy(ah->gid, gid, 16);
        if (i >= nic->ah_end) nic->ah_end = i + 1;
    }
    if (ah) ah->users++;
    return ah;
}

void ah_destroy(struct ah *ah) { ah->users--; }
