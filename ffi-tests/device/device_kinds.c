/*
 * CUDA's kinds of memory: each kind moves, or is refused. On a GPU only: a fake device has one kind.
 */
#include "gpu.h"

#define LEN (4 * MIB)

static void cuda_begin(void)
{
    devices_begin("");
    if (!on_cuda())
        skip("no GPU: kinds of memory that only CUDA has");
    use_device(0);
}

/* ---- The kinds ---- */

static uint8_t *plain(int device)
{
    return device_alloc(device, LEN);
}

static void free_plain(uint8_t *at)
{
    device_free(at, LEN);
}

static uint8_t *of_pool(int device)
{
    address at = 0;
    use_device(device);
    CU(cuMemAllocAsync, &at, (size_t)LEN, NULL);
    CU(cuCtxSynchronize, 0);
    return (uint8_t *)(uintptr_t)at;
}

/* The pool keeps no unused memory, so it is freed. */
static void free_of_pool(uint8_t *at)
{
    void *pool;
    int device;
    CU(cuMemFreeAsync, (address)(uintptr_t)at, NULL);
    CU(cuCtxSynchronize, 0);
    CU(cuCtxGetDevice, &device);
    CU(cuDeviceGetMemPool, &pool, device);
    CU(cuMemPoolTrimTo, pool, (size_t)0);
}

static uint8_t *mapped(int device)
{
    return device_map(device, LEN, LEN / 2, 0);
}

static uint8_t *mapped_for_files(int device)
{
    return device_map(device, LEN, LEN / 2, 1);
}

static void unmap(uint8_t *at)
{
    CU(cuMemUnmap, (address)(uintptr_t)at, (size_t)LEN);
    CU(cuMemAddressFree, (address)(uintptr_t)at, (size_t)LEN);
}

static uint8_t *managed(int device)
{
    address at = 0;
    use_device(device);
    CU(cuMemAllocManaged, &at, (size_t)LEN, 1);
    CU(cuMemsetD8_v2, at, 1, (size_t)LEN);
    CU(cuCtxSynchronize, 0);
    return (uint8_t *)(uintptr_t)at;
}

static uint8_t *pinned(int device)
{
    void *at = NULL;
    use_device(device);
    CU(cuMemHostAlloc, &at, (size_t)LEN, 0);
    return at;
}

static void free_pinned(uint8_t *at)
{
    CU(cuMemFreeHost, at);
}

static uint8_t *registered(int device)
{
    void *at = map_bytes(LEN);
    use_device(device);
    CU(cuMemHostRegister_v2, at, (size_t)LEN, 0);
    return at;
}

static void unregister(uint8_t *at)
{
    CU(cuMemHostUnregister, at);
    munmap(at, LEN);
}

struct kind {
    const char *name;
    uint8_t *(*make)(int device);
    void (*give_back)(uint8_t *at); /* with its device current */
    bool on_host, shared;
};

static const struct kind kinds[] = {
    {"cuMemAlloc", plain, free_plain, false, true},
    {"cuMemAllocAsync", of_pool, free_of_pool, false, false},
    {"cuMemMap", mapped, unmap, false, false},
    {"cuMemMap, with files", mapped_for_files, unmap, false, true},
    {"cuMemAllocManaged", managed, free_plain, false, false},
    {"cuMemHostAlloc", pinned, free_pinned, true, false},
    {"cuMemHostRegister", registered, unregister, true, false},
};

static void say(const char *what, const char *which)
{
    printf("%s%s\n", what, which);
    fflush(stdout);
}

/* ---- Each moves ---- */

/* Memory of a pool is accessible only to its own device. */
static void put(uint8_t *at, int device, uint64_t seed)
{
    uint8_t *bytes = malloc(LEN);
    CHECK(bytes != NULL);
    use_device(device);
    fill_random(bytes, LEN, seed);
    device_put(at, bytes, LEN);
    free(bytes);
}

static void check_bytes(uint8_t *at, int device, uint64_t seed)
{
    uint8_t *bytes = malloc(LEN);
    CHECK(bytes != NULL);
    use_device(device);
    device_get(bytes, at, LEN);
    CHECK_EQ(differs_random(bytes, LEN, seed), -1);
    free(bytes);
}

static weft_status move(struct duo *duo, weft_memory *mine, weft_remote_memory *theirs, bool read)
{
    struct pages_request args = PAGES_REQUEST_INIT;
    weft_op id;
    args.local = mine;
    args.remote = theirs;
    args.pages.page_len = 16 * KIB;
    args.pages.page_count = LEN / args.pages.page_len;
    CHECK_OK((read ? submit_read_pages : submit_write_pages)(duo->a->endpoint, &args, &id));
    return box_await(duo->a, id, 4 * patience_ms()).status;
}

static weft_remote_memory *given(struct duo *duo, weft_memory *memory)
{
    char blob[16384];
    weft_remote_memory *remote;
    size_t n = descriptor_of(memory, blob, sizeof blob);
    CHECK_OK(weft_remote_memory_import(duo->a->endpoint, duo->a_to_b, blob, n, &remote));
    return remote;
}

static void check_properties(const struct kind *kind, weft_memory *memory, int device)
{
    weft_memory_properties is = {.size = sizeof is};
    CHECK_OK(weft_memory_info(memory, &is));
    CHECK_EQ(is.kind, kind->on_host ? WEFT_MEMORY_HOST : WEFT_MEMORY_CUDA);
    CHECK_EQ(is.device, kind->on_host ? -1 : device);
    uint32_t of_device = WEFT_WAY_STAGED | (kind->shared && on_fabric("host") ? WEFT_WAY_SHARED : 0);
    CHECK_EQ(is.ways, kind->on_host ? WEFT_WAY_DIRECT : of_device);
}

static void move_between(struct duo *duo, const struct kind *near, const struct kind *far, int device)
{
    uint8_t *a = near->make(0), *b = far->make(device);
    weft_memory *mine = register_one(duo->a->endpoint, a, LEN);
    weft_memory *theirs = register_one(duo->b->endpoint, b, LEN);
    check_properties(near, mine, 0);
    check_properties(far, theirs, device);
    weft_remote_memory *remote = given(duo, theirs);
    for (uint64_t read = 0; read < 2; read++) {
        put(a, 0, 10 + read);
        put(b, device, 30 + read);
        CHECK_OK(move(duo, mine, remote, read != 0));
        check_bytes(a, 0, read ? 31 : 10);
        check_bytes(b, device, read ? 31 : 10);
    }
    CHECK_OK(weft_remote_memory_release(remote));
    CHECK_OK(weft_memory_deregister(mine));
    CHECK_OK(weft_memory_deregister(theirs));
    use_device(0);
    near->give_back(a);
    use_device(device);
    far->give_back(b);
}

static void every_kind_moves(void)
{
    cuda_begin();
    struct duo duo = duo_open(4096);
    for (size_t i = 0; i < COUNT(kinds); i++)
        for (size_t k = 0; k < COUNT(kinds); k++) {
            say(kinds[i].name, "");
            say("    to ", kinds[k].name);
            move_between(&duo, &kinds[i], &kinds[k], device_count() - 1);
        }
    duo_close(&duo);
}

/* ---- What the caller names is checked ---- */

static void check_claims(weft_endpoint *endpoint, const struct kind *kind)
{
    weft_memory_range range = {kind->make(0), LEN};
    weft_memory_args args = WEFT_MEMORY_ARGS_INIT;
    weft_memory *memory;
    args.kind = WEFT_MEMORY_CUDA;
    if (kind->on_host) {
        REFUSED(WEFT_ERR_INVALID, weft_memory_register(endpoint, &range, 1, &args, &memory));
    } else {
        CHECK_OK(weft_memory_register(endpoint, &range, 1, &args, &memory));
        CHECK_OK(weft_memory_deregister(memory));
        range.len = 512 * GIB; /* the following memory belongs to another allocation, or to none */
        REFUSED(WEFT_ERR_INVALID, weft_memory_register(endpoint, &range, 1, &args, &memory));
    }
    kind->give_back(range.address);
}

static void claims_are_checked(void)
{
    cuda_begin();
    weft_endpoint *endpoint = open_endpoint();
    for (size_t i = 0; i < COUNT(kinds); i++) {
        say(kinds[i].name, "");
        check_claims(endpoint, &kinds[i]);
    }
    /* Managed memory may also be named as host memory. */
    weft_memory_args args = WEFT_MEMORY_ARGS_INIT;
    weft_memory_range range = {managed(0), LEN};
    weft_memory_properties is = {.size = sizeof is};
    weft_memory *memory;
    args.kind = WEFT_MEMORY_HOST;
    CHECK_OK(weft_memory_register(endpoint, &range, 1, &args, &memory));
    CHECK_OK(weft_memory_info(memory, &is));
    CHECK_EQ(is.kind, WEFT_MEMORY_HOST);
    CHECK_OK(weft_memory_deregister(memory));
    free_plain(range.address);
    box_close(box_of(endpoint));
}

/* Unplaced memory is on no device, or CUDA knows its future device. */
static void untouched_managed_memory_registers(void)
{
    cuda_begin();
    weft_endpoint *endpoint = open_endpoint();
    address at = 0;
    weft_memory *memory;
    CU(cuMemAllocManaged, &at, (size_t)LEN, 1);
    weft_memory_range range = {(void *)(uintptr_t)at, LEN};
    weft_status status = weft_memory_register(endpoint, &range, 1, NULL, &memory);
    say("untouched: ", weft_status_name(status));
    CHECK_ONE_OF(status, WEFT_OK, WEFT_ERR_UNSUPPORTED);
    if (status == WEFT_OK)
        CHECK_OK(weft_memory_deregister(memory));
    free_plain(range.address);
    box_close(box_of(endpoint));
}

/* ---- Contexts ---- */

static void memory_of_another_context_is_refused(void)
{
    cuda_begin();
    weft_endpoint *endpoint = open_endpoint();
    void *context, *now;
    address at = 0;
    weft_memory *memory;
    uint8_t *of_primary = plain(0);
    CU(cuCtxCreate_v2, &context, 0, 0);
    CU(cuMemAlloc_v2, &at, (size_t)LEN);
    weft_memory_range range = {(void *)(uintptr_t)at, LEN};
    REFUSED(WEFT_ERR_UNSUPPORTED, weft_memory_register(endpoint, &range, 1, NULL, &memory));
    /* The current context stays current; and memory of the primary context works. */
    CU(cuCtxGetCurrent, &now);
    CHECK(now == context);
    memory = register_one(endpoint, of_primary, LEN);
    CHECK_OK(weft_memory_deregister(memory));
    CU(cuCtxGetCurrent, &now);
    CHECK(now == context);
    CU(cuCtxDestroy_v2, context);
    box_close(box_of(endpoint));
}

static struct duo pair;
static uint8_t *ends[2];

static void *without_a_context(void *nothing)
{
    void *context;
    CU(cuCtxGetCurrent, &context);
    CHECK(context == NULL);
    weft_memory *mine = register_one(pair.a->endpoint, ends[0], LEN);
    weft_memory *theirs = register_one(pair.b->endpoint, ends[1], LEN);
    weft_remote_memory *remote = given(&pair, theirs);
    CHECK_OK(move(&pair, mine, remote, false));
    CHECK_OK(move(&pair, mine, remote, true));
    CHECK_OK(weft_remote_memory_release(remote));
    CHECK_OK(weft_memory_deregister(mine));
    CHECK_OK(weft_memory_deregister(theirs));
    CU(cuCtxGetCurrent, &context);
    CHECK(context == NULL);
    return nothing;
}

static void threads_without_a_context_can_register(void)
{
    pthread_t thread;
    cuda_begin();
    pair = duo_open(4096);
    ends[0] = plain(0);
    ends[1] = plain(device_count() - 1);
    put(ends[0], 0, 5);
    CHECK_EQ(pthread_create(&thread, NULL, without_a_context, NULL), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    check_bytes(ends[1], device_count() - 1, 5);
    duo_close(&pair);
}

/* ---- Freed while it is registered ---- */

/* Its transfers end with a status; then transfers of other memory continue. */
static void free_one(struct duo *duo, const struct kind *kind, weft_memory *mine, weft_remote_memory *theirs)
{
    uint8_t *lost = kind->make(0);
    weft_memory *here = register_one(duo->a->endpoint, lost, LEN);
    weft_memory *there = register_one(duo->b->endpoint, lost, LEN);
    weft_remote_memory *gone = given(duo, there);
    CHECK_OK(move(duo, mine, gone, false));
    kind->give_back(lost);
    for (int i = 0; i < 3; i++) {
        weft_status status = i < 2 ? move(duo, mine, gone, i == 1) : move(duo, here, theirs, false);
        say("    freed: ", weft_status_name(status));
        CHECK_ONE_OF(status, WEFT_ERR_MEMORY_GONE, WEFT_ERR_REMOTE_ACCESS);
    }
    CHECK_OK(weft_remote_memory_release(gone));
    CHECK_OK(weft_memory_deregister(there));
    CHECK_OK(weft_memory_deregister(here));
}

static void device_memory_of_any_kind_may_be_freed(void)
{
    cuda_begin();
    struct duo duo = duo_open(4096);
    uint8_t *a = plain(0), *b = plain(0);
    weft_memory *mine = register_one(duo.a->endpoint, a, LEN), *theirs = register_one(duo.b->endpoint, b, LEN);
    weft_remote_memory *remote = given(&duo, theirs);
    for (size_t i = 0; i < COUNT(kinds); i++) {
        if (kinds[i].on_host)
            continue;
        say(kinds[i].name, "");
        free_one(&duo, &kinds[i], mine, remote);
        put(a, 0, 40 + i);
        CHECK_OK(move(&duo, mine, remote, false));
        check_bytes(b, 0, 40 + i);
    }
    duo_close(&duo);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        {"every_kind_moves", "host", every_kind_moves},
        {"claims_are_checked", "host", claims_are_checked},
        {"untouched_managed_memory_registers", "host", untouched_managed_memory_registers},
        {"memory_of_another_context_is_refused", "host", memory_of_another_context_is_refused},
        {"threads_without_a_context_can_register", "host", threads_without_a_context_can_register},
        {"device_memory_of_any_kind_may_be_freed", "host", device_memory_of_any_kind_may_be_freed},
        {0},
    };
    return run_tests(argc, argv, tests);
}
