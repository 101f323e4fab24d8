/*
 * How fast pages move between GPUs: prints gpu-figures.json.
 *
 *     gpu_figures [FILE]
 *
 * Two processes, on the first and the last GPU. Each figure is the best of several
 * transfers, as a part of a yardstick that is measured in the same run. What is staged
 * stands beside host to host in turns, over the same rails: medians of all rounds.
 */
#include "gpu.h"

#define ROUNDS 40
/* New processes for turns, and rounds in each. */
#define SESSIONS 5
#define TURNS 16
/* From an import to the first transfer. */
#define SETTLE_MS 200
#define FIRST_TURNS 4 /* do not count */
#define IDLE_TURNS 9

enum {
    PEER_COPY,
    NVLINK_64K,
    NVLINK_4K,
    NVLINK_1M,
    TCP_GPU,
    TCP_HOST,
    WATCH,
    READ_64K,
    VMM_64K,
    VMM_4K,
    FIRST_64K,
    MEDIAN_64K,
    IDLE_64K,
    IDLE_COPY,
    BUSY_COPY,
    ONE_PAGE,
    WORDS,
    NAME = 64,
    RATES = 128
};

struct plan {
    const char *fabric;
    bool on_host;
    uint64_t page_len, pages, arena;
    int rounds, word;
    bool reads, in_parts;
};

static struct plan plan;
static uint64_t *words; /* of all processes: kB/s, or ns */

static int device_of(int rank)
{
    return rank == 0 ? 0 : device_count() - 1;
}

static void cuda_begin(void)
{
    setenv("WEFT_TEST_DEVICES", "cuda", 1);
    devices_begin("");
}

static struct box *open_box(void)
{
    setenv("WEFT_TEST_FABRIC", plan.fabric, 1);
    return box_of(open_endpoint());
}

static uint8_t *memory_for(int rank)
{
    if (plan.on_host)
        return map_bytes(plan.arena);
    /* Parts as PyTorch's expandable segments have them. */
    return plan.in_parts ? device_map(device_of(rank), plan.arena, 20 * MIB, 1)
                         : device_alloc(device_of(rank), plan.arena);
}

static uint32_t *some_pages(uint64_t seed)
{
    return random_pages(plan.arena / plan.page_len, plan.pages, seed);
}

static struct pages_request pages_between(weft_memory *memory, weft_remote_memory *remote)
{
    struct pages_request args = PAGES_REQUEST_INIT;
    args.local = memory;
    args.remote = remote;
    args.pages.local.pages = some_pages(1);
    args.pages.remote.pages = some_pages(2);
    args.pages.page_len = plan.page_len;
    args.pages.page_count = plan.pages;
    args.options.timeout_ns = 60 * SECOND;
    return args;
}

/* In ns. */
static uint64_t time_of(struct box *box, const struct pages_request *args)
{
    weft_op id;
    uint64_t began = now_ns();
    CHECK_OK((plan.reads ? submit_read_pages : submit_write_pages)(box->endpoint, args, &id));
    CHECK_OK(box_await(box, id, 60000).status);
    return now_ns() - began;
}

static int by_size(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static void sends(struct team *team)
{
    if (!plan.on_host)
        cuda_begin();
    struct box *box = open_box();
    weft_peer peer = join(team, 1, box);
    weft_memory *memory = register_one(box->endpoint, memory_for(0), plan.arena);
    weft_remote_memory *remote = take_memory(team, 1, box, peer);
    struct pages_request args = pages_between(memory, remote);
    uint64_t best = UINT64_MAX, all[64];
    sleep_ms(SETTLE_MS); /* the two sides open each other's memory */
    CHECK(plan.rounds <= (int)COUNT(all));
    for (int i = 0; i < plan.rounds; i++) {
        uint64_t took = all[i] = time_of(box, &args);
        fprintf(stderr, "  %s %" PRIu64 " KiB pages: %.2f GB/s\n", plan.fabric, plan.page_len / KIB,
                (double)(plan.page_len * plan.pages) / (double)took);
        best = took < best ? took : best;
    }
    /* In kB/s. */
    words[plan.word] = plan.page_len * plan.pages * 1000000 / best;
    if (plan.word == NVLINK_64K) {
        words[FIRST_64K] = plan.page_len * plan.pages * 1000000 / all[0];
        qsort(all, (size_t)plan.rounds, sizeof all[0], by_size);
        words[MEDIAN_64K] = plan.page_len * plan.pages * 1000000 / all[plan.rounds / 2];
        for (int i = 0; i < IDLE_TURNS; i++) {
            sleep_ms(SETTLE_MS);
            all[i] = time_of(box, &args);
        }
        qsort(all, IDLE_TURNS, sizeof all[0], by_size);
        words[IDLE_64K] = plan.page_len * plan.pages * 1000000 / all[IDLE_TURNS / 2];
    }
    if (plan.word == ONE_PAGE) {
        qsort(all, (size_t)plan.rounds, sizeof all[0], by_size);
        words[ONE_PAGE] = all[plan.rounds / 2];
    }
    meet(team, 1, box);
    box_close(box);
}

static void receives(struct team *team)
{
    if (!plan.on_host)
        cuda_begin();
    struct box *box = open_box();
    join(team, 0, box);
    weft_memory *memory = register_one(box->endpoint, memory_for(1), plan.arena);
    give_memory(team, 0, memory);
    meet(team, 0, box);
    box_close(box);
}

static void sends_in_turns(struct team *team)
{
    cuda_begin();
    struct box *box = open_box();
    weft_peer peer = join(team, 1, box);
    struct pages_request args[2];
    for (int on_host = 0; on_host < 2; on_host++) {
        plan.on_host = on_host;
        weft_memory *memory = register_one(box->endpoint, memory_for(0), plan.arena);
        args[on_host] = pages_between(memory, take_memory(team, 1, box, peer));
    }
    for (int i = 0; i < FIRST_TURNS + TURNS; i++)
        for (int on_host = 0; on_host < 2; on_host++) {
            uint64_t took = time_of(box, &args[on_host]);
            if (i >= FIRST_TURNS)
                words[plan.word + on_host * SESSIONS * TURNS + i - FIRST_TURNS] =
                    plan.page_len * plan.pages * 1000000 / took;
        }
    meet(team, 1, box);
    box_close(box);
}

static void receives_in_turns(struct team *team)
{
    cuda_begin();
    struct box *box = open_box();
    join(team, 0, box);
    for (int on_host = 0; on_host < 2; on_host++) {
        plan.on_host = on_host;
        give_memory(team, 0, register_one(box->endpoint, memory_for(1), plan.arena));
    }
    meet(team, 0, box);
    box_close(box);
}

/*
 * From a GPU's store to the first post: a stream waits for a word that the CPU sets, and sets the watch at once. The
 * time counts from the CPU's store, so it includes the GPU's latency in seeing it.
 */
static void waits(struct team *team)
{
    cuda_begin();
    struct box *box = open_box();
    weft_peer peer = join(team, 1, box);
    weft_memory *memory = register_one(box->endpoint, memory_for(0), plan.arena);
    weft_remote_memory *remote = take_memory(team, 1, box, peer);
    weft_watch *watch, *gate;
    uint64_t *word, *raised, took[200];
    void *stream = NULL;
    use_device(device_of(0));
    CHECK_OK(weft_watch_create(box->endpoint, &watch, &word));
    CHECK_OK(weft_watch_create(box->endpoint, &gate, &raised));
    CU(cuStreamCreate, &stream, 1);
    for (uint64_t i = 1; i <= COUNT(took); i++) {
        struct range_request args = range_args(memory, remote, plan.page_len);
        weft_op id;
        args.options.start_watch = watch;
        args.options.start_value = i;
        CHECK_OK(submit_write(box->endpoint, &args, &id));
        CU(cuStreamWaitValue64_v2, stream, (unsigned long long)(uintptr_t)raised, (unsigned long long)i, 0);
        CU(cuStreamWriteValue64_v2, stream, (unsigned long long)(uintptr_t)word, (unsigned long long)i, 0);
        usleep(300);
        uint64_t began = now_ns();
        atomic_store((_Atomic uint64_t *)raised, i);
        weft_completion done = box_await(box, id, 10000);
        CHECK_OK(done.status);
        took[i - 1] = done.first_post_ns > began ? done.first_post_ns - began : 0;
    }
    qsort(took, COUNT(took), sizeof took[0], by_size);
    words[WATCH] = took[COUNT(took) / 2];
    fprintf(stderr, "  watch: median %" PRIu64 " ns, fastest %" PRIu64 ", slowest %" PRIu64 "\n",
            words[WATCH], took[0], took[COUNT(took) - 1]);
    meet(team, 1, box);
    box_close(box);
}

static uint64_t time_of_copy(void *const contexts[2], const uint8_t *from, uint8_t *to, uint64_t len)
{
    uint64_t began = now_ns();
    CU(cuMemcpyPeer, (unsigned long long)(uintptr_t)to, contexts[1], (unsigned long long)(uintptr_t)from,
       contexts[0], (size_t)len);
    CU(cuCtxSynchronize, 0);
    return now_ns() - began;
}

/* The median of copies as long as 4000 pages of 64 KiB, each after so long a wait; in kB/s. */
static uint64_t copy_rate_after(void *const contexts[2], const uint8_t *from, uint8_t *to, int wait_ms)
{
    const uint64_t len = 4000 * 64 * KIB;
    uint64_t all[IDLE_TURNS];
    for (size_t i = 0; i < COUNT(all); i++) {
        sleep_ms(wait_ms);
        all[i] = time_of_copy(contexts, from, to, len);
    }
    qsort(all, COUNT(all), sizeof all[0], by_size);
    return len * 1000000 / all[COUNT(all) / 2];
}

/* The reference: one contiguous GB from GPU to GPU. */
static void copies(struct team *team)
{
    (void)team;
    cuda_begin();
    uint8_t *from = device_alloc(device_of(0), GIB), *to = device_alloc(device_of(1), GIB);
    void *contexts[2];
    for (int i = 0; i < 2; i++) {
        use_device(device_of(i));
        CU(cuCtxGetCurrent, &contexts[i]);
    }
    if (contexts[0] != contexts[1])
        for (int i = 0; i < 2; i++) {
            use_device(device_of(i));
            CU(cuCtxEnablePeerAccess, contexts[1 - i], 0);
        }
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t took = time_of_copy(contexts, from, to, GIB);
        best = took < best ? took : best;
    }
    words[PEER_COPY] = GIB * 1000000 / best;
    words[BUSY_COPY] = copy_rate_after(contexts, from, to, 0);
    words[IDLE_COPY] = copy_rate_after(contexts, from, to, SETTLE_MS);
}

/* Runs a team in a separate process, so that a failure does not end the others. */
static void measure(struct plan what, int size, role first, role second)
{
    const role roles[2] = {first, second};
    int status;
    plan = what;
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        run_team(size, roles);
        exit(0);
    }
    CHECK_EQ(waitpid(pid, &status, 0), pid);
}

/* Staged transfers and host transfers, in turns. */
static void measure_staged(struct plan what)
{
    for (int i = 0; i < SESSIONS; i++) {
        what.word = RATES + i * TURNS;
        measure(what, 2, sends_in_turns, receives_in_turns);
    }
    for (int on_host = 0; on_host < 2; on_host++) {
        uint64_t *rates = words + RATES + on_host * SESSIONS * TURNS, *median = rates + SESSIONS * TURNS / 2;
        qsort(rates, SESSIONS * TURNS, sizeof *rates, by_size);
        words[on_host ? TCP_HOST : TCP_GPU] = *median;
        fprintf(stderr, "  tcp, %s: %.2f GB/s, from %.2f to %.2f\n", on_host ? "host" : "GPU", (double)*median / 1e6,
                (double)rates[0] / 1e6, (double)rates[SESSIONS * TURNS - 1] / 1e6);
    }
}

/* Parts of something that was measured in the same run. */
static const struct part {
    const char *id;
    int word, yardstick_word;
    const char *what;
} parts[] = {
    {"gpu_nvlink_64k", NVLINK_64K, PEER_COPY, "two processes, 4000 random pages of 64 KiB, of cuMemcpyPeer of one GB"},
    {"gpu_nvlink_4k", NVLINK_4K, PEER_COPY, "two processes, 60000 random pages of 4 KiB, of cuMemcpyPeer of one GB"},
    {"gpu_nvlink_1m", NVLINK_1M, PEER_COPY, "two processes, 512 random pages of 1 MiB, of cuMemcpyPeer of one GB"},
    {"gpu_vmm_64k", VMM_64K, PEER_COPY, "memory of the virtual memory API in parts of 20 MiB, 4000 random pages of 64 KiB, of cuMemcpyPeer of one GB"},
    {"gpu_vmm_4k", VMM_4K, PEER_COPY, "the same with 60000 random pages of 4 KiB"},
    {"gpu_first_transfer_share", FIRST_64K, MEDIAN_64K, "the first transfer of 4000 pages of 64 KiB, 200 ms after the import, of the median"},
    {"gpu_idle_transfer_share", IDLE_64K, MEDIAN_64K, "transfers of 4000 pages of 64 KiB, each after 200 ms of idleness, of the same without; medians"},
    {"gpu_idle_copy_share", IDLE_COPY, BUSY_COPY, "cuMemcpyPeer of as many bytes after 200 ms of idleness, of the same without; medians"},
    {"gpu_nvlink_read_64k", READ_64K, PEER_COPY, "reads of two processes, 4000 random pages of 64 KiB, of cuMemcpyPeer of one GB"},
    {"gpu_staged_tcp_64k", TCP_GPU, TCP_HOST, "staged over tcp, GPU to GPU, 4000 random pages of 64 KiB, of host to host in turns; medians"},
};

static void print_part(FILE *out, const struct part *part)
{
    double value = (double)words[part->word] / 1e6, yardstick = (double)words[part->yardstick_word] / 1e6;
    fprintf(out, "  \"%s\": {\"what\": \"%s\", \"gb_per_s\": %.2f, \"of_gb_per_s\": %.2f, ", part->id, part->what,
            value, yardstick);
    if (value > 0 && yardstick > 0)
        fprintf(out, "\"value\": %.3f},\n", value / yardstick);
    else
        fprintf(out, "\"value\": null},\n");
}

static void print_all(FILE *out, int devices, const char *name)
{
    char date[32];
    time_t now = time(NULL);
    strftime(date, sizeof date, "%Y-%m-%d", gmtime(&now));
    fprintf(out, "{\n  \"date\": \"%s\", \"gpu\": \"%s\", \"gpus\": %d, \"cpus\": %ld,\n", date, name,
            devices, sysconf(_SC_NPROCESSORS_ONLN));
    for (size_t i = 0; i < COUNT(parts); i++)
        print_part(out, &parts[i]);
    fprintf(out, "  \"one_page_gpu_64k_us\": {\"what\": \"one page of 64 KiB over NVLink, from the call to the completion; median\", \"value\": %.2f},\n",
            (double)words[ONE_PAGE] / 1000);
    if (words[WATCH] > 0)
        fprintf(out, "  \"gpu_watch_us\": {\"what\": \"from the CPU's store that a stream waits for, through the stream's own store, to the first post; median\", \"value\": %.2f}\n}\n", (double)words[WATCH] / 1000);
    else
        fprintf(out, "  \"gpu_watch_us\": {\"value\": null}\n}\n");
}

static void asks(struct team *team)
{
    cuda_begin();
    (void)team;
    CU(cuDeviceGetName, (char *)(words + NAME), 100, 0);
    words[WORDS] = (uint64_t)device_count();
}

int main(int argc, char **argv)
{
    words = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(words != MAP_FAILED);
    const uint64_t arena = GIB, big = 4000, small = 60000;
    measure((struct plan){.fabric = "host"}, 1, asks, NULL);
    if (words[WORDS] == 0) {
        puts("SKIPPED: no GPU here");
        return 77;
    }
    measure((struct plan){.fabric = "host"}, 1, copies, NULL);
    measure((struct plan){"host", false, 65536, big, arena, ROUNDS, NVLINK_64K, false, false}, 2, sends, receives);
    measure((struct plan){"host", false, 4096, small, arena, ROUNDS, NVLINK_4K, false, false}, 2, sends, receives);
    measure((struct plan){"host", false, 65536, big, arena, ROUNDS, READ_64K, true, false}, 2, sends, receives);
    measure((struct plan){"host", false, MIB, 512, arena, ROUNDS, NVLINK_1M, false, false}, 2, sends, receives);
    measure((struct plan){"host", false, 65536, big, 52 * 20 * MIB, ROUNDS, VMM_64K, false, true}, 2, sends, receives);
    measure((struct plan){"host", false, 4096, small, 52 * 20 * MIB, ROUNDS, VMM_4K, false, true}, 2, sends, receives);
    measure((struct plan){"host", false, 65536, 1, arena, 64, ONE_PAGE, false, false}, 2, sends, receives);
    measure_staged((struct plan){"tcp", false, 65536, big, arena, 0, 0, false, false});
    measure((struct plan){"host", false, 4096, 1, MIB, ROUNDS, WATCH, false, false}, 2, waits, receives);
    print_all(stdout, (int)words[WORDS], (char *)(words + NAME));
    if (argc > 1) {
        FILE *out = fopen(argv[1], "w");
        CHECK(out != NULL);
        print_all(out, (int)words[WORDS], (char *)(words + NAME));
        CHECK_EQ(fclose(out), 0);
    }
    return 0;
}
