/* What a program in C does around calls of the data path; calls.cpp does the same in C++. Compiled, never run. */
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
    weft_kept *handle;
};

/* Somewhere else: what is done about an error costs nothing while there is none. */
__attribute__((cold, noreturn)) void give_up(weft_status status);

static inline void check(weft_status status)
{
    if (status < 0)
        give_up(status);
}

size_t poll_64(struct owner *e, weft_completion *room)
{
    int32_t n = weft_poll(e->endpoint, room, 64);
    check(n);
    return (size_t)n;
}

size_t wait_64(struct owner *e, weft_completion *room, int64_t ms)
{
    const int64_t most = INT64_MAX / 1000000;
    uint64_t ns = ms <= 0 ? 0 : ms > most ? INT64_MAX : (uint64_t)ms * 1000000;
    int32_t n = weft_wait(e->endpoint, room, 64, ns);
    check(n);
    return (size_t)n;
}

weft_transfer write_range(struct owner *e, struct owner_of_memory *m, struct owner_of_remote *r, uint64_t offset,
                          uint64_t len, void *tag)
{
    weft_range_args args = WEFT_RANGE_ARGS_INIT;
    weft_transfer id = 0;
    args.local = m->handle;
    args.remote = r->handle;
    args.len = len;
    args.local_range = 1;
    args.local_offset = offset;
    args.remote_range = 2;
    args.remote_offset = offset;
    args.flags |= WEFT_NOTIFY;
    args.notify = 7;
    args.timeout_ns = UINT64_C(5000000000);
    args.user_data = tag;
    check(weft_write(e->endpoint, &args, &id));
    return id;
}

weft_transfer write_pages(struct owner *e, struct owner_of_memory *m, struct owner_of_remote *r, const uint32_t *mine,
                          const uint32_t *theirs, weft_counter counter)
{
    weft_pages_args args = WEFT_PAGES_ARGS_INIT;
    weft_transfer id = 0;
    args.local = m->handle;
    args.remote = r->handle;
    args.page_len = 65536;
    args.local_pages = mine;
    args.remote_pages = theirs;
    args.page_count = 100;
    args.layer_count = 80;
    args.local_range_step = args.remote_range_step = 1;
    args.remote_page_stride = 131072;
    args.remote_offset = 65536;
    args.counter = counter;
    check(weft_write_pages(e->endpoint, &args, &id));
    return id;
}

weft_transfer write_kept(struct owner *e, struct owner_of_kept *k, uint64_t value)
{
    weft_kept_args args = WEFT_KEPT_ARGS_INIT;
    weft_transfer id = 0;
    args.flags |= WEFT_NOTIFY;
    args.notify = value;
    check(weft_write_kept(e->endpoint, k->handle, &args, &id));
    return id;
}

weft_transfer send_text(struct owner *e, weft_peer peer, const void *text, size_t len)
{
    weft_send_args args = WEFT_SEND_ARGS_INIT;
    weft_transfer id = 0;
    args.peer = peer;
    args.data = text;
    args.len = len;
    check(weft_send(e->endpoint, &args, &id));
    return id;
}

int arm(struct owner *e)
{
    weft_status status = weft_arm(e->endpoint);
    if (status == WEFT_ERR_AGAIN)
        return 0;
    check(status);
    return 1;
}
