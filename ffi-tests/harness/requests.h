/* Operations as values: a test changes one field of a valid request, and submits it again. */
#ifndef REQUESTS_H
#define REQUESTS_H

#include <weft.h>

struct range_request {
    const weft_memory *local;
    uint64_t local_offset;
    const weft_remote_memory *remote;
    uint64_t remote_offset, len;
    weft_op_options options;
};
#define RANGE_REQUEST_INIT {NULL, 0, NULL, 0, 0, WEFT_OP_OPTIONS_INIT}

struct pages_request {
    const weft_memory *local;
    const weft_remote_memory *remote;
    weft_pages pages;
    weft_op_options options;
};
#define PAGES_REQUEST_INIT {NULL, NULL, WEFT_PAGES_INIT, WEFT_OP_OPTIONS_INIT}

struct list_request {
    const weft_list_entry *entries;
    uint64_t count;
    weft_op_options options;
};
#define LIST_REQUEST_INIT {NULL, 0, WEFT_OP_OPTIONS_INIT}

struct prepared_request {
    const weft_prepared *prepared;
    weft_op_options options;
};
#define PREPARED_REQUEST_INIT {NULL, WEFT_OP_OPTIONS_INIT}

struct fence_request {
    weft_peer peer;
    weft_op_options options;
};
#define FENCE_REQUEST_INIT {0, WEFT_OP_OPTIONS_INIT}

struct send_request {
    weft_peer peer;
    const void *data;
    uint64_t len;
    weft_op_options options;
};
#define SEND_REQUEST_INIT {0, NULL, 0, WEFT_OP_OPTIONS_INIT}

struct atomic_request {
    const weft_remote_memory *remote;
    uint64_t remote_offset, operand, compare;
    weft_op_options options;
};
#define ATOMIC_REQUEST_INIT {NULL, 0, 0, 0, WEFT_OP_OPTIONS_INIT}

struct expect_request {
    const weft_counter *counters;
    const uint64_t *values;
    uint32_t count;
    weft_op_options options;
};
#define EXPECT_REQUEST_INIT {NULL, NULL, 0, WEFT_OP_OPTIONS_INIT}

static inline weft_status submit_write(weft_endpoint *ep, const struct range_request *r, weft_op *op)
{
    return weft_write(ep, r->local, r->local_offset, r->remote, r->remote_offset, r->len, &r->options, op);
}

static inline weft_status submit_read(weft_endpoint *ep, const struct range_request *r, weft_op *op)
{
    return weft_read(ep, r->local, r->local_offset, r->remote, r->remote_offset, r->len, &r->options, op);
}

static inline weft_status submit_write_pages(weft_endpoint *ep, const struct pages_request *r, weft_op *op)
{
    return weft_write_pages(ep, r->local, r->remote, &r->pages, &r->options, op);
}

static inline weft_status submit_read_pages(weft_endpoint *ep, const struct pages_request *r, weft_op *op)
{
    return weft_read_pages(ep, r->local, r->remote, &r->pages, &r->options, op);
}

static inline weft_status prepare_pages(weft_endpoint *ep, const struct pages_request *r, weft_prepared **prepared)
{
    return weft_pages_prepare(ep, r->local, r->remote, &r->pages, r->options.flags, prepared);
}

static inline weft_status submit_write_list(weft_endpoint *ep, const struct list_request *r, weft_op *op)
{
    return weft_write_list(ep, r->entries, r->count, &r->options, op);
}

static inline weft_status submit_read_list(weft_endpoint *ep, const struct list_request *r, weft_op *op)
{
    return weft_read_list(ep, r->entries, r->count, &r->options, op);
}

static inline weft_status prepare_list(weft_endpoint *ep, const struct list_request *r, weft_prepared **prepared)
{
    return weft_list_prepare(ep, r->entries, r->count, r->options.flags, prepared);
}

static inline weft_status submit_write_prepared(weft_endpoint *ep, const struct prepared_request *r, weft_op *op)
{
    return weft_write_prepared(ep, r->prepared, &r->options, op);
}

static inline weft_status submit_read_prepared(weft_endpoint *ep, const struct prepared_request *r, weft_op *op)
{
    return weft_read_prepared(ep, r->prepared, &r->options, op);
}

static inline weft_status submit_fence(weft_endpoint *ep, const struct fence_request *r, weft_op *op)
{
    return weft_peer_fence(ep, r->peer, &r->options, op);
}

static inline weft_status submit_send(weft_endpoint *ep, const struct send_request *r, weft_op *op)
{
    return weft_send(ep, r->peer, r->data, r->len, &r->options, op);
}

static inline weft_status submit_fetch_add(weft_endpoint *ep, const struct atomic_request *r, weft_op *op)
{
    return weft_fetch_add(ep, r->remote, r->remote_offset, r->operand, &r->options, op);
}

static inline weft_status submit_compare_swap(weft_endpoint *ep, const struct atomic_request *r, weft_op *op)
{
    return weft_compare_swap(ep, r->remote, r->remote_offset, r->compare, r->operand, &r->options, op);
}

static inline weft_status submit_expect(weft_endpoint *ep, const struct expect_request *r, weft_op *op)
{
    return weft_counter_expect(ep, r->counters, r->values, r->count, &r->options, op);
}

#endif
