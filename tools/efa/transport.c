/* What work requests do: a reliable datagram queue (SRD), whose operations end in any order. */
#include "abi.h"
#include "model.h"
#include <stdlib.h>
#include <string.h>

/* What a try of an operation leads to, when it is not a status. */
enum { AGAIN = -1, NOT_READY = -2, MORE = -3 };

static struct mr *own_memory(struct qp *qp, const struct buffer *buffer) {
    struct mr *mr = mr_find(qp->nic, buffer->key);
    return mr && mr->owner == qp->owner ? mr : NULL;
}

static bool inside(const struct mr *mr, const struct buffer *range) {
    return range->at >= mr->iova && range->len <= mr->len && range->at - mr->iova <= mr->len - range->len;
}

static enum access load(struct fabric *fabric, struct mr *mr, uint64_t at, void *to, size_t len) {
    if (!mr->mapped) return fabric->host->load(mr->owner, at - mr->iova + mr->start, to, len);
    memcpy(to, mr->mapped + (at - mr->iova), len);
    return ACCESS_OK;
}

static enum access store(struct fabric *fabric, struct mr *mr, uint64_t at, const void *from, size_t len) {
    if (!mr->mapped) return fabric->host->store(mr->owner, at - mr->iova + mr->start, from, len);
    memcpy(mr->mapped + (at - mr->iova), from, len);
    return ACCESS_OK;
}

static bool silent(const struct nic *nic, uint64_t now) { return nic->trouble.dead || nic->trouble.hung_until > now; }

static bool takes_receives(struct qp *qp, uint64_t now) {
    return qp->nic->trouble.not_ready_until <= now && qp->nic->fabric->host->has_receive(qp->receives);
}

/* ---- Sends ---- */

static int gather(struct qp *qp, const struct work *work, uint8_t *message, size_t *len) {
    *len = 0;
    if (work->is_inline) {
        *len = work->count;
        memcpy(message, work->bytes, work->count);
        return STATUS_OK;
    }
    for (uint32_t i = 0; i < work->count; i++) {
        const struct buffer *buffer = &work->buffers[i];
        struct mr *mr = own_memory(qp, buffer);
        if (!mr || !inside(mr, buffer)) return STATUS_INVALID_LKEY;
        if (buffer->len > MAX_MESSAGE - *len) return STATUS_BAD_LENGTH;
        switch (load(qp->nic->fabric, mr, buffer->at, message + *len, buffer->len)) {
        case ACCESS_OK: *len += buffer->len; break;
        case ACCESS_FAULT: return STATUS_INVALID_LKEY;
        case ACCESS_GONE: return AGAIN;
        }
    }
    return STATUS_OK;
}

/* The target's status; where bytes do not fit, or a buffer is not the target's, both sides have an error. */
static int scatter(struct qp *to, const struct receive *receive, const uint8_t *message, size_t len) {
    size_t at = 0;
    for (int i = 0; i < receive->count && at < len; i++) {
        struct buffer part = receive->buffers[i];
        struct mr *mr = own_memory(to, &part);
        if (part.len > len - at) part.len = (uint32_t)(len - at);
        if (!mr || !(mr->access & ACCESS_LOCAL_WRITE) || !inside(mr, &part)) return STATUS_INVALID_LKEY;
        if (store(to->nic->fabric, mr, part.at, message + at, part.len) == ACCESS_FAULT) return STATUS_INVALID_LKEY;
        at += part.len;
    }
    return at < len ? STATUS_BAD_LENGTH : STATUS_OK;
}

static int send_message(struct qp *qp, const struct work *work, struct qp *to, struct completion *arrival, uint64_t now) {
    uint8_t message[MAX_MESSAGE];
    struct receive receive;
    size_t len;
    int status;
    if (!takes_receives(to, now)) return NOT_READY;
    status = gather(qp, work, message, &len);
    if (status != STATUS_OK) return status;
    qp->nic->fabric->host->next_receive(to->receives, &receive);
    status = scatter(to, &receive, message, len);
    arrival->id = receive.id;
    arrival->status = (uint8_t)status;
    arrival->len = (uint32_t)len;
    cq_complete(to->nic, to->receive_cq, arrival);
    qp->nic->bytes += len;
    return status == STATUS_INVALID_LKEY ? STATUS_REMOTE_BAD_STATUS : status == STATUS_BAD_LENGTH ? STATUS_REMOTE_BAD_LENGTH : STATUS_OK;
}

/* ---- Reads and writes ---- */

static int move(struct qp *qp, const struct work *work, struct mr *local, struct mr *remote, uint32_t offset, uint32_t len) {
    static uint8_t bytes[STEP_BYTES];
    struct fabric *fabric = qp->nic->fabric;
    bool write = work->op == OP_WRITE;
    struct mr *from = write ? local : remote, *to = write ? remote : local;
    uint64_t source = (write ? work->local.at : work->remote.at) + offset, target = (write ? work->remote.at : work->local.at) + offset;
    enum access loaded = load(fabric, from, source, bytes, len);
    enum access stored = loaded == ACCESS_OK ? store(fabric, to, target, bytes, len) : ACCESS_OK;
    if (loaded == ACCESS_GONE || stored == ACCESS_GONE) return AGAIN;
    if (loaded == ACCESS_FAULT) return write ? STATUS_INVALID_LKEY : STATUS_REMOTE_BAD_ADDRESS;
    if (stored == ACCESS_FAULT) return write ? STATUS_REMOTE_BAD_ADDRESS : STATUS_INVALID_LKEY;
    qp->nic->bytes += len;
    return STATUS_OK;
}

static unsigned divisor(unsigned a, unsigned b) {
    while (b) {
        unsigned rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* One piece after the other, in an order that visits each once: by a stride that has no divisor with their number. */
static int move_pieces(struct qp *qp, struct operation *op, struct mr *local, struct mr *remote) {
    uint32_t len = op->work.remote.len, pieces = (len + MAX_MESSAGE - 1) / MAX_MESSAGE;
    struct fabric *fabric = qp->nic->fabric;
    unsigned now_moved = 1 + (unsigned)fabric_random(fabric, pieces);
    if (!op->stride) {
        op->first_piece = (unsigned)fabric_random(fabric, pieces);
        do op->stride = 1 + (unsigned)fabric_random(fabric, pieces);
        while (divisor(op->stride, pieces) != 1);
    }
    for (; now_moved && op->moved < pieces; now_moved--, op->moved++) {
        uint32_t piece = (uint32_t)((op->first_piece + (uint64_t)op->stride * op->moved) % pieces), at = piece * MAX_MESSAGE;
        int status = move(qp, &op->work, local, remote, at, len - at < MAX_MESSAGE ? len - at : MAX_MESSAGE);
        if (status != STATUS_OK) return status;
    }
    return op->moved < pieces ? MORE : STATUS_OK;
}

static int move_in_order(struct qp *qp, struct operation *op, struct mr *local, struct mr *remote) {
    uint32_t left = op->work.remote.len - op->moved, part = left < STEP_BYTES ? left : STEP_BYTES;
    int status = move(qp, &op->work, local, remote, op->moved, part);
    if (status != STATUS_OK) return status;
    op->moved += part;
    return op->moved < op->work.remote.len ? MORE : STATUS_OK;
}

/* What is checked before the first byte, and again before each part: a key may have gone in between. */
static int check(struct qp *qp, const struct work *work, struct qp *to, struct mr *local, struct mr *remote, uint16_t ah) {
    uint32_t needs = work->op == OP_READ ? ACCESS_REMOTE_READ : ACCESS_REMOTE_WRITE;
    uint32_t cap = work->op == OP_READ ? CAP_READ : CAP_WRITE;
    if (!(qp->nic->fabric->caps & cap)) return STATUS_UNSUPPORTED_OP;
    if (work->remote.len > MAX_RDMA || work->local.len < work->remote.len) return STATUS_BAD_LENGTH;
    if (work->remote.len && (!local || !inside(local, &work->local))) return STATUS_INVALID_LKEY;
    if (work->remote.len && work->op == OP_READ && !(local->access & ACCESS_LOCAL_WRITE)) return STATUS_INVALID_LKEY;
    if (ah == NO_AH) return STATUS_UNKNOWN_PEER; /* documentation: libfabric's text for this status */
    if (!work->remote.len) return STATUS_OK;
    if (!remote || remote->owner != to->owner || remote->pd != to->pd) return STATUS_REMOTE_BAD_ADDRESS;
    return inside(remote, &work->remote) && remote->access & needs ? STATUS_OK : STATUS_REMOTE_BAD_ADDRESS;
}

static int rdma(struct qp *qp, struct operation *op, struct qp *to, struct completion *arrival, uint64_t now) {
    const struct work *work = &op->work;
    struct mr *local = own_memory(qp, &work->local), *remote = mr_find(to->nic, work->remote.key);
    bool takes_receive = work->has_immediate && !to->unsolicited;
    struct receive receive = {0};
    int status = check(qp, work, to, local, remote, arrival->ah);
    if (status != STATUS_OK) return status;
    if (takes_receive && !takes_receives(to, now)) return NOT_READY;
    if (work->remote.len)
        status = op->in_pieces ? move_pieces(qp, op, local, remote) : move_in_order(qp, op, local, remote);
    if (status != STATUS_OK || work->op == OP_READ || !work->has_immediate) return status;
    if (takes_receive) qp->nic->fabric->host->next_receive(to->receives, &receive);
    arrival->id = receive.id;
    arrival->unsolicited = !takes_receive;
    arrival->len = work->remote.len;
    cq_complete(to->nic, to->receive_cq, arrival);
    return STATUS_OK;
}

/* ---- Operations under way ---- */

static struct qp *target_of(struct nic *nic, const struct work *work) {
    struct qp *to = work->qpn < MAX_QPS ? nic->qps[work->qpn] : NULL;
    bool ready = to && (to->state == QP_RTR || to->state == QP_RTS);
    return ready && to->qkey == work->qkey ? to : NULL;
}

/* A status, or what else becomes of it. */
static int try(struct qp *qp, struct operation *op, uint64_t now) {
    const struct work *work = &op->work;
    struct nic *nic = qp->nic, *other = fabric_find(nic->fabric, op->gid);
    struct qp *to;
    if (op->bad_ah) return STATUS_INVALID_AH;
    if (work->op > OP_WRITE) return STATUS_UNSUPPORTED_OP;
    if (!other || silent(other, now) || nic->fabric->cut[nic->index][other->index]) {
        if (now - op->begin <= TIMEOUT_US) return AGAIN;
        return nic->ahs[work->ah].answered ? STATUS_UNRESPONSIVE : STATUS_UNREACHABLE;
    }
    to = target_of(other, work);
    if (!to) return STATUS_REMOTE_BAD_QPN;
    struct completion arrival = {
        .received = true,
        .op = work->op,
        .qpn = to->number,
        .source_qpn = qp->number,
        .has_immediate = work->has_immediate,
        .immediate = work->immediate,
        .ah = ah_number(other, to->owner, nic->gid),
        .gid = nic->gid,
    };
    return work->op == OP_SEND ? send_message(qp, work, to, &arrival, now) : rdma(qp, op, to, &arrival, now);
}

/* When an operation may end: after its turn on the line, the way, and what reordering adds. */
static uint64_t due(struct nic *nic, const struct operation *op, uint64_t now) {
    struct trouble *trouble = &nic->trouble;
    uint64_t at = now, bits = 8 * (uint64_t)(op->work.op == OP_SEND ? op->work.buffers[0].len : op->work.remote.len);
    if (trouble->rate_mbps) {
        nic->line_free = (nic->line_free > now ? nic->line_free : now) + bits / trouble->rate_mbps;
        at = nic->line_free;
    }
    return at + trouble->delay_us + fabric_random(nic->fabric, trouble->reorder_us);
}

static void accept(struct qp *qp, uint64_t now) {
    struct nic *nic = qp->nic;
    struct work work;
    while (nic->fabric->host->next_work(qp->sends, &work)) {
        struct completion flushed = {.id = work.id, .qpn = qp->number, .op = work.op, .status = STATUS_FLUSHED};
        struct operation *op = qp->state == QP_ERROR ? NULL : calloc(1, sizeof *op);
        struct ah *ah = work.ah < MAX_AHS ? &nic->ahs[work.ah] : NULL;
        if (!op) {
            cq_complete(nic, qp->send_cq, &flushed);
            continue;
        }
        op->work = work;
        op->bad_ah = !ah || !ah->users || ah->lost || ah->owner != qp->owner;
        if (!op->bad_ah) memcpy(op->gid, ah->gid, 16);
        op->in_pieces = nic->trouble.pieces;
        op->begin = now;
        op->due = due(nic, op, now);
        *qp->end = op;
        qp->end = &op->next;
        nic->fabric->work++;
    }
}

/* Whether an operation has ended. */
static bool advance(struct qp *qp, struct operation *op, uint64_t now) {
    struct nic *nic = qp->nic;
    int status = try(qp, op, now);
    struct completion end = {.id = op->work.id, .qpn = qp->number, .op = op->work.op};
    if (status == NOT_READY && qp->not_ready_retries != NOT_READY_FOREVER && op->tries >= qp->not_ready_retries) status = STATUS_REMOTE_NOT_READY;
    switch (status) {
    case AGAIN: op->due = now + RETRY_WAIT; return false;
    case NOT_READY:
        op->tries++;
        op->due = now + NOT_READY_WAIT;
        return false;
    case MORE:
        op->due = now + (op->in_pieces ? fabric_random(nic->fabric, nic->trouble.reorder_us) : 0);
        nic->fabric->work++;
        return false;
    }
    if (status != STATUS_INVALID_AH && status != STATUS_UNREACHABLE) nic->ahs[op->work.ah].answered = true;
    nic->done[op->work.op % 3]++;
    end.status = (uint8_t)status;
    cq_complete(nic, qp->send_cq, &end);
    return true;
}

static uint64_t qp_step(struct qp *qp, uint64_t now) {
    uint64_t next = NEVER;
    if (qp->state != QP_RTS && qp->state != QP_ERROR) return NEVER;
    accept(qp, now);
    for (struct operation **at = &qp->first; *at;) {
        struct operation *op = *at;
        if (op->due <= now && advance(qp, op, now)) {
            *at = op->next;
            if (!*at) qp->end = at;
            free(op);
            continue;
        }
        if (op->due < next) next = op->due;
        at = &op->next;
    }
    return next;
}

uint64_t nic_step(struct nic *nic, uint64_t now) {
    uint64_t next = NEVER;
    unsigned left = nic->live_qps;
    if (nic->trouble.dead || !left) return NEVER;
    if (nic->trouble.hung_until > now) return nic->trouble.hung_until;
    for (int i = 0; i < MAX_QPS && left; i++) {
        if (!nic->qps[i]) continue;
        left--;
        uint64_t due = qp_step(nic->qps[i], now);
        if (due < next) next = due;
    }
    return next;
}
