/* What a C program does around calls of the data path; calls.cpp does the same in C++. Compiled, but never run. */
#include "weft.h"

struct owner {
    weft_endpoint *endpoint;
};
struct owner_of_memory {
    weft_endpoint *endpoint;
    weft_memory *handle;
};
struct owner_of_remote {
    weft_remote_memory *handle;
};
struct owner_of_kept {
    weft_prepared *handle;
};

/* A separate function: error handling costs nothing while there is no error. */
__attribute__((cold, noreturn)) void give_up(weft_status status);

static inline void check(weft_status status)
{
    if (status < 0)
        give_up(status);
}

size_t poll_64(struct owner *e, weft_completion *room)
{
    int32_t n = weft_queue_poll(weft_endpoint_queue(e->endpoint), room, 64, 0);
    check(n);
    return (size_t)n;
}

size_t wait_64(struct owner *e, weft_completion *room, int64_t ms)
{
    const int64_t most = INT64_MAX / 1000000;
    uint64_t ns = ms <= 0 ? 0 : ms > most ? INT64_MAX : (uint64_t)ms * 1000000;
    int32_t n = weft_queue_poll(weft_endpoint_queue(e->endpoint), room, 64, ns);
    check(n);
    return (size_t)n;
}

weft_op write_range(struct owner *e, struct owner_of_memory *m, struct owner_of_remote *r, uint64_t offset,
                          uint64_t len, void *tag)
{
    weft_op_options args = WEFT_OP_OPTIONS_INIT;
    weft_op id = 0;
    args.flags |= WEFT_NOTIFY;
    args.notify = 7;
    args.timeout_ns = UINT64_C(5000000000);
    args.user_data = tag;
    check(weft_write(e->endpoint, m->handle, offset, r->handle, offset, len, &args, &id));
    return id;
}

weft_op write_pages(struct owner *e, struct owner_of_memory *m, struct owner_of_remote *r, const uint32_t *mine,
                          const uint32_t *theirs, weft_counter counter)
{
    weft_pages pages = WEFT_PAGES_INIT;
    weft_op_options args = WEFT_OP_OPTIONS_INIT;
    weft_op id = 0;
    pages.page_len = 65536;
    pages.local.pages = mine;
    pages.remote.pages = theirs;
    pages.page_count = 100;
    pages.layer_count = 80;
    pages.local.range_step = pages.remote.range_step = 1;
    pages.remote.page_stride = 131072;
    pages.remote.offset = 65536;
    args.counter = counter;
    check(weft_write_pages(e->endpoint, m->handle, r->handle, &pages, &args, &id));
    return id;
}

weft_op write_kept(struct owner *e, struct owner_of_kept *k, uint64_t value)
{
    weft_op_options args = WEFT_OP_OPTIONS_INIT;
    weft_op id = 0;
    args.flags |= WEFT_NOTIFY;
    args.notify = value;
    check(weft_write_prepared(e->endpoint, k->handle, &args, &id));
    return id;
}

weft_op send_text(struct owner *e, weft_peer peer, const void *text, size_t len)
{
    weft_op_options args = WEFT_OP_OPTIONS_INIT;
    weft_op id = 0;
    check(weft_send(e->endpoint, peer, text, len, &args, &id));
    return id;
}

int arm(struct owner *e)
{
    weft_status status = weft_queue_arm(weft_endpoint_queue(e->endpoint), NULL);
    if (status == WEFT_ERR_AGAIN)
        return 0;
    check(status);
    return 1;
}
