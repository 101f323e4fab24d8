/* Calls that must be refused, at any moment, and with which status: nothing is submitted, nothing changes. */
#include "engine.h"

static const char *const TEXT = "what is too long, or should not be there";

/* Statuses that are fine too while the connection comes to its end. */
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
    TRY(call, a.size = 0, WEFT_ERR_INVALID);                                                \
    TRY(call, a.size = 5000, WEFT_ERR_INVALID);                                             \
    TRY(call, a.flags |= 1u << 31, WEFT_ERR_UNSUPPORTED);                                   \
    TRY(call, a.timeout_ns = DAY + 1, WEFT_ERR_LIMIT);                                      \
    TRY(call, a.queue = (void *)self->endpoint, WEFT_ERR_HANDLE)

/* What notifies, too. */
#define TRY_NOTIFY(call)                                                                    \
    TRY_COMMON(call);                                                                       \
    TRY(call, (a.notify_data = TEXT, a.notify_data_len = 5), WEFT_ERR_INVALID);             \
    TRY(call, (a.flags |= WEFT_NOTIFY, a.notify_data = TEXT, a.notify_data_len = WEFT_NOTIFY_DATA_MAX + 1), WEFT_ERR_LIMIT); \
    TRY(call, (a.flags |= WEFT_NOTIFY, a.notify_data_len = 3), WEFT_ERR_INVALID)

/* What writes between two memories, too. */
#define TRY_TRANSFER(call)                                                                  \
    TRY_NOTIFY(call);                                                                       \
    TRY(call, a.local = NULL, WEFT_ERR_HANDLE);                                             \
    TRY(call, a.remote = NULL, WEFT_ERR_HANDLE);                                            \
    TRY(call, a.local = (const void *)a.remote, WEFT_ERR_HANDLE);                           \
    TRY(call, a.local = (const void *)((const char *)a.local + 1), WEFT_ERR_HANDLE);        \
    TRY(call, a.remote_offset = UINT64_MAX, WEFT_ERR_RANGE);                                \
    TRY(call, a.local_offset = book->plan.layer, WEFT_ERR_RANGE);                           \
    TRY(call, a.flags |= WEFT_COUNT_PAGES, WEFT_ERR_INVALID)

static void wrong_ranges(int target)
{
    const weft_range_args valid = {.size = sizeof valid, .local = self->local[0], .remote = self->to[target]->remote,
                                   .local_range = range_of(target, 0), .len = 16};
    weft_range_args a;
    TRY_TRANSFER(weft_write(ep, &a, NULL));
    TRY_TRANSFER(weft_read(ep, &a, NULL));
    TRY(weft_write(ep, &a, NULL), a.reserved = 1, WEFT_ERR_UNSUPPORTED);
    TRY(weft_write(ep, &a, NULL), a.local_range = UINT32_MAX, WEFT_ERR_RANGE);
    TRY(weft_write(ep, &a, NULL), a.remote_range = UINT32_MAX, WEFT_ERR_RANGE);
    TRY(weft_write(ep, &a, NULL), a.len = (UINT64_C(1) << 47) + 1, WEFT_ERR_RANGE);
    TRY(weft_write(ep, &a, NULL), a.counter = 1, WEFT_ERR_HANDLE);
    TRY(weft_read(ep, &a, NULL), (a.flags = WEFT_COUNT_PAGES, a.counter = book->ways[self->me][target].counter),
        WEFT_ERR_UNSUPPORTED);
    refused("no arguments", weft_write(self->endpoint, NULL, NULL), WEFT_ERR_INVALID);
    struct {
        weft_range_args args;
        uint64_t tail;
    } newer = {valid, 1};
    newer.args.size += 8;
    refused("a newer struct", weft_write(self->endpoint, &newer.args, NULL), WEFT_ERR_UNSUPPORTED);
}

static void wrong_pages(int target)
{
    uint32_t pages[4] = {0, 1, 2, 3};
    const weft_pages_args valid = {.size = sizeof valid, .local = self->local[0], .remote = self->to[target]->remote,
                                   .local_first_range = range_of(target, 0), .page_len = 16, .page_count = 2};
    weft_pages_args a;
    TRY_TRANSFER(weft_write_pages(ep, &a, NULL));
    TRY_TRANSFER(weft_read_pages(ep, &a, NULL));
    TRY(weft_write_pages(ep, &a, NULL), a.local_page_stride = UINT64_MAX, WEFT_ERR_RANGE);
    TRY(weft_write_pages(ep, &a, NULL), a.page_len = 0, WEFT_ERR_INVALID);
    TRY(weft_write_pages(ep, &a, NULL), a.page_len = (UINT64_C(1) << 47) + 1, WEFT_ERR_LIMIT);
    TRY(weft_write_pages(ep, &a, NULL), a.page_count = UINT64_C(1) << 32, WEFT_ERR_LIMIT);
    TRY(weft_write_pages(ep, &a, NULL), a.layer_count = 65537, WEFT_ERR_LIMIT);
    TRY(weft_write_pages(ep, &a, NULL), a.layer_count = 2, WEFT_ERR_INVALID);
    TRY(weft_write_pages(ep, &a, NULL), a.local_first_range = UINT32_MAX, WEFT_ERR_RANGE);
    TRY(weft_write_pages(ep, &a, NULL), a.local_pages = (void *)((char *)pages + 1), WEFT_ERR_INVALID);
    weft_kept *kept = NULL;
    TRY(weft_pages_keep(ep, &a, &kept), a.user_data = &a, WEFT_ERR_INVALID);
    TRY(weft_pages_keep(ep, &a, &kept), a.counter = 1, WEFT_ERR_INVALID);
    TRY(weft_pages_keep(ep, &a, &kept), a.local = NULL, WEFT_ERR_HANDLE);
    TRY(weft_pages_keep(ep, &a, &kept), a.remote_first_range = UINT32_MAX, WEFT_ERR_RANGE);
}

static void wrong_uses(int target)
{
    const weft_pages_args pages = {.size = sizeof pages, .local = self->local[0], .remote = self->to[target]->remote,
                                   .local_first_range = range_of(target, 0), .page_len = 16, .page_count = 1};
    const weft_kept_args valid = WEFT_KEPT_ARGS_INIT;
    weft_kept_args a;
    weft_kept *kept = NULL;
    if (weft_pages_keep(self->endpoint, &pages, &kept) != WEFT_OK)
        return;
    TRY_NOTIFY(weft_write_kept(ep, kept, &a, NULL));
    TRY(weft_write_kept(ep, kept, &a, NULL), a.flags |= WEFT_COUNT_PAGES, WEFT_ERR_INVALID);
    TRY(weft_write_kept(ep, kept, &a, NULL), a.flags |= WEFT_COMPLETE_EACH_PEER, WEFT_ERR_UNSUPPORTED);
    TRY(weft_write_kept(ep, kept, &a, NULL), a.counter = 1, WEFT_ERR_HANDLE);
    TRY(weft_read_kept(ep, NULL, &a, NULL), a.reserved = 0, WEFT_ERR_HANDLE);
    TRY(weft_read_kept(ep, (void *)self->local[0], &a, NULL), a.reserved = 0, WEFT_ERR_HANDLE);
    TRY(weft_read_kept(ep, kept, &a, NULL), a.reserved = 1, WEFT_ERR_UNSUPPORTED);
    refused("memory that is kept", weft_remote_memory_release(self->to[target]->remote), WEFT_ERR_BUSY);
    refused("memory that is kept", weft_memory_deregister(self->local[0]), WEFT_ERR_BUSY);
    CHECK_OK(weft_kept_release(kept));
    refused("geometry that was given back", weft_kept_release(kept), WEFT_ERR_HANDLE);
    refused("geometry that was given back", weft_write_kept(self->endpoint, kept, &valid, NULL), WEFT_ERR_HANDLE);
}

static void wrong_lists(int target)
{
    weft_list_entry entries[2] = {{.local = self->local[0], .remote = self->to[target]->remote, .local_range = range_of(target, 0), .len = 16}};
    const weft_list_entry good = entries[1] = entries[0];
    const weft_list_args valid = {.size = sizeof valid, .entries = entries, .count = 2};
    weft_list_args a;
    TRY_NOTIFY(weft_write_list(ep, &a, NULL));
    TRY(weft_write_list(ep, &a, NULL), a.count = 0, WEFT_ERR_INVALID);
    TRY(weft_write_list(ep, &a, NULL), a.count = WEFT_LIST_ENTRIES_MAX + 1, WEFT_ERR_LIMIT);
    TRY(weft_write_list(ep, &a, NULL), a.entries = NULL, WEFT_ERR_INVALID);
    TRY(weft_write_list(ep, &a, NULL), a.entries = (const void *)((const char *)entries + 1), WEFT_ERR_INVALID);
    TRY(weft_read_list(ep, &a, NULL), a.flags |= WEFT_COUNT_PAGES, WEFT_ERR_INVALID);
    TRY(weft_read_list(ep, &a, NULL), a.reserved = 1, WEFT_ERR_UNSUPPORTED);
#define TRY_ENTRY(change, want)                                                             \
    do {                                                                                    \
        weft_list_entry *last = &entries[1];                                                \
        weft_kept *kept = NULL;                                                             \
        *last = good;                                                                       \
        change;                                                                             \
        refused(#change, draw(2) ? weft_write_list(self->endpoint, &valid, NULL)            \
                                 : weft_list_keep(self->endpoint, &valid, &kept), want);    \
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
    const weft_send_args valid = {.size = sizeof valid, .peer = self->to[target]->peer, .data = TEXT, .len = 4};
    const weft_fence_args fence = {.size = sizeof fence, .peer = 0};
    weft_send_args a;
    TRY_COMMON(weft_send(ep, &a, NULL));
    TRY(weft_send(ep, &a, NULL), a.len = WEFT_MESSAGE_MAX + 1, WEFT_ERR_LIMIT);
    TRY(weft_send(ep, &a, NULL), a.data = NULL, WEFT_ERR_INVALID);
    TRY(weft_send(ep, &a, NULL), a.peer = 0, WEFT_ERR_HANDLE);
    refused("a fence of nobody", weft_peer_fence(self->endpoint, &fence, NULL), WEFT_ERR_HANDLE);
    refused("a message of nobody", weft_message_release(self->endpoint, 1), WEFT_ERR_HANDLE);
    refused("nobody to part with", weft_peer_disconnect(self->endpoint, 0), WEFT_ERR_HANDLE);
}

static void wrong_atomics(int target)
{
    const weft_atomic_args valid = {.size = sizeof valid, .remote = self->to[target]->remote,
                                    .remote_range = book->plan.slots * LAYERS};
    weft_atomic_args a;
    TRY_COMMON(weft_fetch_add(ep, &a, NULL));
    TRY_COMMON(weft_compare_swap(ep, &a, NULL));
    TRY(weft_fetch_add(ep, &a, NULL), a.remote = NULL, WEFT_ERR_HANDLE);
    TRY(weft_fetch_add(ep, &a, NULL), a.remote = (const void *)self->local[0], WEFT_ERR_HANDLE);
    TRY(weft_fetch_add(ep, &a, NULL), a.remote_range = UINT32_MAX, WEFT_ERR_RANGE);
    TRY(weft_fetch_add(ep, &a, NULL), a.remote_offset = WORDS * 8 - 7, WEFT_ERR_RANGE);
    TRY(weft_fetch_add(ep, &a, NULL), a.remote_offset = UINT64_MAX - 7, WEFT_ERR_RANGE);
    TRY(weft_fetch_add(ep, &a, NULL), a.remote_offset = 1, WEFT_ERR_INVALID);
    TRY(weft_fetch_add(ep, &a, NULL), a.compare = 1, WEFT_ERR_INVALID);
    TRY(weft_compare_swap(ep, &a, NULL), a.reserved = 1, WEFT_ERR_UNSUPPORTED);
}

static void wrong_waits(int target)
{
    uint64_t counters[2] = {book->ways[target][self->me].counter, book->ways[self->me][target].counter}, values[2] = {1, 1}, value;
    const weft_expect_args valid = {.size = sizeof valid, .counters = counters, .values = values, .count = 1};
    weft_expect_args a;
    if (!self->to[target]->prepared)
        return;
    TRY_COMMON(weft_counter_expect(ep, &a, NULL));
    TRY(weft_counter_expect(ep, &a, NULL), a.counters = NULL, WEFT_ERR_INVALID);
    TRY(weft_counter_expect(ep, &a, NULL), a.values = NULL, WEFT_ERR_INVALID);
    TRY(weft_counter_expect(ep, &a, NULL), a.count = 0, WEFT_ERR_LIMIT);
    TRY(weft_counter_expect(ep, &a, NULL), a.count = 65537, WEFT_ERR_LIMIT);
    TRY(weft_counter_expect(ep, &a, NULL), a.count = 2, WEFT_ERR_HANDLE);
    TRY(weft_counter_expect(ep, &a, NULL), a.reserved = 1, WEFT_ERR_UNSUPPORTED);
    values[0] = UINT64_C(1) << 48;
    TRY(weft_counter_expect(ep, &a, NULL), a.reserved = 0, WEFT_ERR_LIMIT);
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
    range = (weft_memory_range){(void *)64, sizeof bytes}; /* the first page of the address space is never there */
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
