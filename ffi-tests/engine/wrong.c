/* Calls that must be refused at any time, and their statuses: nothing is submitted, nothing changes. */
#include "engine.h"

static const char *const TEXT = "what is too long, or should not be there";

/* Statuses that are also allowed while the connection ends. */
static void refused(const char *what, weft_status got, weft_status want)
{
    bool ending = got == WEFT_ERR_PEER_CLOSED || got == WEFT_ERR_PEER_LOST || got == WEFT_ERR_HANDLE || got == WEFT_ERR_CANCELED;
    atomic_fetch_add(&book->refused, 1);
    if (got != want && !(ending && got != WEFT_OK))
        finding(&book->odd, "host %d: a call with %s gave %s, not %s", self->me, what, weft_status_name(got),
                weft_status_name(want));
    else if (strlen(weft_last_error()) < 8)
        finding(&book->odd, "host %d: a call with %s was refused without a message", self->me, what);
}

/* The valid arguments with one change. */
#define TRY(call, change, want)                                                             \
    do {                                                                                    \
        weft_endpoint *ep = self->endpoint;                                                 \
        a = valid;                                                                          \
        (void)ep;                                                                           \
        change;                                                                             \
        refused(#change, call, want);                                                       \
    } while (0)

#define DAY (UINT64_C(24) * 3600 * SECOND)

/* What all operations have. */
#define TRY_COMMON(call)                                                                    \
    TRY(call, ep = NULL, WEFT_ERR_HANDLE);                                                  \
    TRY(call, a.options.size = 0, WEFT_ERR_INVALID);                                                \
    TRY(call, a.options.size = 5000, WEFT_ERR_INVALID);                                             \
    TRY(call, a.options.flags |= 1u << 31, WEFT_ERR_UNSUPPORTED);                                   \
    TRY(call, a.options.timeout_ns = DAY + 1, WEFT_ERR_LIMIT);                                      \
    TRY(call, a.options.queue = (void *)self->endpoint, WEFT_ERR_HANDLE)

/* What notifies, too. */
#define TRY_NOTIFY(call)                                                                    \
    TRY_COMMON(call);                                                                       \
    TRY(call, (a.options.notify_data = TEXT, a.options.notify_data_len = 5), WEFT_ERR_INVALID);             \
    TRY(call, (a.options.flags |= WEFT_NOTIFY, a.options.notify_data = TEXT, a.options.notify_data_len = WEFT_NOTIFY_DATA_MAX + 1), WEFT_ERR_LIMIT); \
    TRY(call, (a.options.flags |= WEFT_NOTIFY, a.options.notify_data_len = 3), WEFT_ERR_INVALID)

/* What writes between two memories, too. */
#define TRY_TRANSFER(call)                                                                  \
    TRY_NOTIFY(call);                                                                       \
    TRY(call, a.local = NULL, WEFT_ERR_HANDLE);                                             \
    TRY(call, a.remote = NULL, WEFT_ERR_HANDLE);                                            \
    TRY(call, a.local = (const void *)a.remote, WEFT_ERR_HANDLE);                           \
    TRY(call, a.local = (const void *)((const char *)a.local + 1), WEFT_ERR_HANDLE);        \
    TRY(call, a.options.flags |= WEFT_COUNT_PAGES, WEFT_ERR_INVALID)

static void wrong_ranges(int target)
{
    const struct range_request valid = {.options.size = sizeof(weft_op_options), .local = self->local[0], .remote = self->to[target]->remote,
                                   .local_offset = start_of(range_of(target, 0)), .len = 16};
    struct range_request a;
    TRY_TRANSFER(submit_write(ep, &a, NULL));
    TRY_TRANSFER(submit_read(ep, &a, NULL));
    TRY(submit_write(ep, &a, NULL), a.options.reserved = 1, WEFT_ERR_UNSUPPORTED);
    TRY(submit_write(ep, &a, NULL), a.local_offset += book->plan.layer - 8, WEFT_ERR_RANGE);
    TRY(submit_write(ep, &a, NULL), a.remote_offset = UINT64_MAX, WEFT_ERR_RANGE);
    TRY(submit_write(ep, &a, NULL), a.len = (UINT64_C(1) << 47) + 1, WEFT_ERR_RANGE);
    TRY(submit_write(ep, &a, NULL), a.options.counter = 1, WEFT_ERR_HANDLE);
    TRY(submit_read(ep, &a, NULL), (a.options.flags = WEFT_COUNT_PAGES, a.options.counter = book->ways[self->me][target].counter),
        WEFT_ERR_UNSUPPORTED);
    refused("no memory", weft_write(self->endpoint, NULL, 0, NULL, 0, 0, NULL, NULL), WEFT_ERR_HANDLE);
    struct {
        struct range_request args;
        uint64_t tail;
    } newer = {valid, 1};
    newer.args.options.size += 8;
    refused("a newer struct", submit_write(self->endpoint, &newer.args, NULL), WEFT_ERR_UNSUPPORTED);
}

static void wrong_pages(int target)
{
    uint32_t pages[4] = {0, 1, 2, 3};
    const struct pages_request valid = {.options.size = sizeof(weft_op_options), .pages.size = sizeof(weft_pages), .local = self->local[0], .remote = self->to[target]->remote,
                                   .pages.local.first_range = range_of(target, 0), .pages.page_len = 16, .pages.page_count = 2};
    struct pages_request a;
    TRY_TRANSFER(submit_write_pages(ep, &a, NULL));
    TRY_TRANSFER(submit_read_pages(ep, &a, NULL));
    TRY(submit_write_pages(ep, &a, NULL), a.pages.local.page_stride = UINT64_MAX, WEFT_ERR_RANGE);
    TRY(submit_write_pages(ep, &a, NULL), a.pages.page_len = 0, WEFT_ERR_INVALID);
    TRY(submit_write_pages(ep, &a, NULL), a.pages.page_len = (UINT64_C(1) << 47) + 1, WEFT_ERR_LIMIT);
    TRY(submit_write_pages(ep, &a, NULL), a.pages.page_count = UINT64_C(1) << 32, WEFT_ERR_LIMIT);
    TRY(submit_write_pages(ep, &a, NULL), a.pages.layer_count = 65537, WEFT_ERR_LIMIT);
    TRY(submit_write_pages(ep, &a, NULL), a.pages.layer_count = 2, WEFT_ERR_INVALID);
    TRY(submit_write_pages(ep, &a, NULL), a.pages.local.first_range = UINT32_MAX, WEFT_ERR_RANGE);
    TRY(submit_write_pages(ep, &a, NULL), a.pages.remote.offset = UINT64_MAX, WEFT_ERR_RANGE);
    TRY(submit_write_pages(ep, &a, NULL), a.pages.local.offset = book->plan.layer, WEFT_ERR_RANGE);
    TRY(submit_write_pages(ep, &a, NULL), a.pages.size = 3, WEFT_ERR_INVALID);
    TRY(submit_write_pages(ep, &a, NULL), a.pages.local.pages = (void *)((char *)pages + 1), WEFT_ERR_INVALID);
    weft_prepared *kept = NULL;
    TRY(prepare_pages(ep, &a, &kept), a.options.flags = WEFT_NOTIFY, WEFT_ERR_UNSUPPORTED);
    TRY(prepare_pages(ep, &a, &kept), a.local = NULL, WEFT_ERR_HANDLE);
    TRY(prepare_pages(ep, &a, &kept), a.pages.remote.first_range = UINT32_MAX, WEFT_ERR_RANGE);
}

static void wrong_uses(int target)
{
    const struct pages_request pages = {.options.size = sizeof(weft_op_options), .pages.size = sizeof(weft_pages), .local = self->local[0], .remote = self->to[target]->remote,
                                   .pages.local.first_range = range_of(target, 0), .pages.page_len = 16, .pages.page_count = 1};
    weft_prepared *kept = NULL;
    if (prepare_pages(self->endpoint, &pages, &kept) != WEFT_OK)
        return;
    const struct prepared_request valid = {kept, WEFT_OP_OPTIONS_INIT};
    struct prepared_request a;
    TRY_NOTIFY(submit_write_prepared(ep, &a, NULL));
    TRY(submit_write_prepared(ep, &a, NULL), a.options.flags |= WEFT_COUNT_PAGES, WEFT_ERR_INVALID);
    TRY(submit_write_prepared(ep, &a, NULL), a.options.flags |= WEFT_COMPLETE_EACH_PEER, WEFT_ERR_UNSUPPORTED);
    TRY(submit_write_prepared(ep, &a, NULL), a.options.counter = 1, WEFT_ERR_HANDLE);
    TRY(submit_read_prepared(ep, &a, NULL), a.prepared = NULL, WEFT_ERR_HANDLE);
    TRY(submit_read_prepared(ep, &a, NULL), a.prepared = (void *)self->local[0], WEFT_ERR_HANDLE);
    TRY(submit_read_prepared(ep, &a, NULL), a.options.reserved = 1, WEFT_ERR_UNSUPPORTED);
    refused("memory that is kept", weft_remote_memory_release(self->to[target]->remote), WEFT_ERR_BUSY);
    refused("memory that is kept", weft_memory_deregister(self->local[0]), WEFT_ERR_BUSY);
    CHECK_OK(weft_prepared_destroy(kept));
    refused("geometry that was given back", weft_prepared_destroy(kept), WEFT_ERR_HANDLE);
    refused("geometry that was given back", submit_write_prepared(self->endpoint, &valid, NULL), WEFT_ERR_HANDLE);
}

static void wrong_lists(int target)
{
    weft_list_entry entries[2] = {{.local = self->local[0], .remote = self->to[target]->remote, .local_range = range_of(target, 0), .len = 16}};
    const weft_list_entry good = entries[1] = entries[0];
    const struct list_request valid = {.options.size = sizeof(weft_op_options), .entries = entries, .count = 2};
    struct list_request a;
    TRY_NOTIFY(submit_write_list(ep, &a, NULL));
    TRY(submit_write_list(ep, &a, NULL), a.count = 0, WEFT_ERR_INVALID);
    TRY(submit_write_list(ep, &a, NULL), a.count = WEFT_LIST_ENTRIES_MAX + 1, WEFT_ERR_LIMIT);
    TRY(submit_write_list(ep, &a, NULL), a.entries = NULL, WEFT_ERR_INVALID);
    TRY(submit_write_list(ep, &a, NULL), a.entries = (const void *)((const char *)entries + 1), WEFT_ERR_INVALID);
    TRY(submit_read_list(ep, &a, NULL), a.options.flags |= WEFT_COUNT_PAGES, WEFT_ERR_UNSUPPORTED);
    TRY(submit_read_list(ep, &a, NULL), a.options.reserved = 1, WEFT_ERR_UNSUPPORTED);
#define TRY_ENTRY(change, want)                                                             \
    do {                                                                                    \
        weft_list_entry *last = &entries[1];                                                \
        weft_prepared *kept = NULL;                                                         \
        *last = good;                                                                       \
        change;                                                                             \
        refused(#change, draw(2) ? submit_write_list(self->endpoint, &valid, NULL)            \
                                 : prepare_list(self->endpoint, &valid, &kept), want);    \
    } while (0)
    TRY_ENTRY(last->local = NULL, WEFT_ERR_HANDLE);
    TRY_ENTRY(last->remote = NULL, WEFT_ERR_HANDLE);
    TRY_ENTRY(last->local = (const void *)last->remote, WEFT_ERR_HANDLE);
    TRY_ENTRY(last->peer = self->to[target]->peer ^ UINT64_C(1) << 40, WEFT_ERR_INVALID);
    TRY_ENTRY(last->local_range = UINT32_MAX, WEFT_ERR_RANGE);
    TRY_ENTRY(last->remote_range = UINT32_MAX, WEFT_ERR_RANGE);
    TRY_ENTRY(last->local_offset = book->plan.layer, WEFT_ERR_RANGE);
    TRY_ENTRY(last->remote_offset = UINT64_MAX, WEFT_ERR_RANGE);
    TRY_ENTRY(last->len = UINT64_MAX, WEFT_ERR_RANGE);
    TRY_ENTRY(last->counter = 1, WEFT_ERR_HANDLE);
}

static void wrong_messages(int target)
{
    const struct send_request valid = {.options.size = sizeof(weft_op_options), .peer = self->to[target]->peer, .data = TEXT, .len = 4};
    const struct fence_request fence = {.options.size = sizeof(weft_op_options), .peer = 0};
    struct send_request a;
    TRY_COMMON(submit_send(ep, &a, NULL));
    TRY(submit_send(ep, &a, NULL), a.len = WEFT_MESSAGE_MAX + 1, WEFT_ERR_LIMIT);
    TRY(submit_send(ep, &a, NULL), a.data = NULL, WEFT_ERR_INVALID);
    TRY(submit_send(ep, &a, NULL), a.peer = 0, WEFT_ERR_HANDLE);
    refused("a fence of nobody", submit_fence(self->endpoint, &fence, NULL), WEFT_ERR_HANDLE);
    refused("a message of nobody", weft_message_release(self->endpoint, 1), WEFT_ERR_HANDLE);
    refused("nobody to part with", weft_peer_disconnect(self->endpoint, 0), WEFT_ERR_HANDLE);
}

static void wrong_atomics(int target)
{
    if (book->plan.files >> target & 1)
        return; /* which have no words */
    const struct atomic_request valid = {.options.size = sizeof(weft_op_options), .remote = self->to[target]->remote,
                                    .remote_offset = start_of(book->plan.slots * LAYERS)};
    struct atomic_request a;
    TRY_COMMON(submit_fetch_add(ep, &a, NULL));
    TRY_COMMON(submit_compare_swap(ep, &a, NULL));
    TRY(submit_fetch_add(ep, &a, NULL), a.remote = NULL, WEFT_ERR_HANDLE);
    TRY(submit_fetch_add(ep, &a, NULL), a.remote = (const void *)self->local[0], WEFT_ERR_HANDLE);
    TRY(submit_fetch_add(ep, &a, NULL), a.remote_offset = UINT64_MAX, WEFT_ERR_RANGE);
    TRY(submit_fetch_add(ep, &a, NULL), a.remote_offset += WORDS * 8 - 7, WEFT_ERR_RANGE);
    TRY(submit_fetch_add(ep, &a, NULL), a.remote_offset = UINT64_MAX - 7, WEFT_ERR_RANGE);
    TRY(submit_fetch_add(ep, &a, NULL), a.remote_offset += 1, WEFT_ERR_INVALID);
    TRY(submit_fetch_add(ep, &a, NULL), a.options.counter = 1, WEFT_ERR_INVALID);
    TRY(submit_compare_swap(ep, &a, NULL), a.options.reserved = 1, WEFT_ERR_UNSUPPORTED);
}

static void wrong_waits(int target)
{
    uint64_t counters[2] = {book->ways[target][self->me].counter, book->ways[self->me][target].counter}, values[2] = {1, 1}, value;
    const struct expect_request valid = {.options.size = sizeof(weft_op_options), .counters = counters, .values = values, .count = 1};
    struct expect_request a;
    if (!self->to[target]->prepared)
        return;
    TRY_COMMON(submit_expect(ep, &a, NULL));
    TRY(submit_expect(ep, &a, NULL), a.counters = NULL, WEFT_ERR_INVALID);
    TRY(submit_expect(ep, &a, NULL), a.values = NULL, WEFT_ERR_INVALID);
    TRY(submit_expect(ep, &a, NULL), a.count = 0, WEFT_ERR_LIMIT);
    TRY(submit_expect(ep, &a, NULL), a.count = 65537, WEFT_ERR_LIMIT);
    TRY(submit_expect(ep, &a, NULL), a.count = 2, WEFT_ERR_HANDLE);
    TRY(submit_expect(ep, &a, NULL), a.options.reserved = 1, WEFT_ERR_UNSUPPORTED);
    values[0] = UINT64_C(1) << 48;
    TRY(submit_expect(ep, &a, NULL), a.options.reserved = 0, WEFT_ERR_LIMIT);
    refused("nowhere to read into", weft_counter_read(self->endpoint, counters[0], NULL), WEFT_ERR_INVALID);
    refused("no counter", weft_counter_read(self->endpoint, 0, &value), WEFT_ERR_HANDLE);
    refused("a peer's counter", weft_counter_read(self->endpoint, counters[1], &value), WEFT_ERR_HANDLE);
    refused("another generation", weft_counter_read(self->endpoint, counters[0] ^ UINT64_C(1) << 31, &value), WEFT_ERR_HANDLE);
}

static void wrong_memory(int target)
{
    static uint8_t bytes[64];
    static char own[65536], damaged[65536];
    size_t len = 0;
    weft_memory *memory = NULL;
    weft_remote_memory *remote = NULL;
    weft_memory_range range = {bytes, sizeof bytes};
    const weft_memory_args valid = WEFT_MEMORY_ARGS_INIT;
    weft_memory_args a;
    TRY(weft_memory_register(ep, &range, 0, &a, &memory), a.access = 0, WEFT_ERR_INVALID);
    TRY(weft_memory_register(ep, &range, 1, &a, &memory), a.access = WEFT_ACCESS_LOCAL | WEFT_ACCESS_REMOTE_READ, WEFT_ERR_INVALID);
    TRY(weft_memory_register(ep, &range, 1, &a, &memory), a.access = 1u << 31, WEFT_ERR_UNSUPPORTED);
    TRY(weft_memory_register(ep, &range, 1, &a, &memory), a.rails = UINT64_C(1) << 63, WEFT_ERR_INVALID);
    range.len = 0;
    TRY(weft_memory_register(ep, &range, 1, &a, &memory), a.access = 0, WEFT_ERR_INVALID);
    range = (weft_memory_range){(void *)64, sizeof bytes}; /* the first page of the address space is never mapped */
    TRY(weft_memory_register(ep, &range, 1, &a, &memory), a.access = 0, WEFT_ERR_INVALID);
    refused("memory that is local", weft_memory_export(self->local[0], own, sizeof own, &len), WEFT_ERR_INVALID);
    CHECK_OK(weft_memory_export(self->exported[target], own, sizeof own, &len));
    weft_peer peer = self->to[target]->peer;
    memcpy(damaged, own, len);
    damaged[draw((uint32_t)len)] ^= 1;
    refused("a damaged descriptor", weft_remote_memory_import(self->endpoint, peer, damaged, len, &remote), WEFT_ERR_FORMAT);
    refused("a part of a descriptor", weft_remote_memory_import(self->endpoint, peer, own, len - 1, &remote), WEFT_ERR_FORMAT);
    refused("no descriptor", weft_remote_memory_import(self->endpoint, peer, own, 0, &remote), WEFT_ERR_FORMAT);
    refused("an own descriptor", weft_remote_memory_import(self->endpoint, peer, own, len, &remote), WEFT_ERR_PEER_GONE);
    refused("a descriptor of nobody", weft_remote_memory_import(self->endpoint, 0, own, len, &remote), WEFT_ERR_HANDLE);
}

void play_wrong(int target)
{
    static void (*const wrongs[])(int) = {wrong_ranges, wrong_pages,   wrong_uses,  wrong_lists,
                                          wrong_messages, wrong_atomics, wrong_waits, wrong_memory};
    wrongs[draw(COUNT(wrongs))](target);
}
