/* The counts that endpoints and rails report. */
#include "harness.h"

#define WRITES 20
#define READS 5
#define SENDS 7
#define WRITE_LEN 10000
#define READ_LEN 3000

static weft_endpoint_statistics stats_of(struct box *box)
{
    weft_endpoint_statistics s = WEFT_ENDPOINT_STATISTICS_INIT;
    CHECK_OK(weft_endpoint_info(box->endpoint, NULL, &s));
    CHECK_EQ(s.size, sizeof s);
    return s;
}

static weft_rail_statistics rail_stats(struct box *box, uint32_t rail)
{
    weft_rail_statistics s = WEFT_RAIL_STATISTICS_INIT;
    CHECK_OK(weft_rail_info(box->endpoint, rail, NULL, &s));
    CHECK_EQ(s.size, sizeof s);
    return s;
}

/* The sum over all rails. */
static weft_rail_statistics all_rails(struct box *box)
{
    weft_endpoint_properties info = WEFT_ENDPOINT_PROPERTIES_INIT;
    weft_rail_statistics all = WEFT_RAIL_STATISTICS_INIT;
    CHECK_OK(weft_endpoint_info(box->endpoint, &info, NULL));
    for (uint32_t i = 0; i < info.rails; i++) {
        weft_rail_statistics one = rail_stats(box, i);
        all.up += one.up;
        all.lanes += one.lanes;
        all.lanes_stalled += one.lanes_stalled;
        all.bytes_written += one.bytes_written;
        all.bytes_read += one.bytes_read;
        all.slices_written += one.slices_written;
        all.slices_read += one.slices_read;
        all.posts += one.posts;
        all.posts_refused += one.posts_refused;
        all.errors += one.errors;
        all.frames_sent += one.frames_sent;
        all.frames_received += one.frames_received;
        all.inflight_bytes += one.inflight_bytes;
        all.inflight_posts += one.inflight_posts;
    }
    return all;
}

static uint64_t sum(const uint64_t *values, size_t count)
{
    uint64_t all = 0;
    for (size_t i = 0; i < count; i++)
        all += values[i];
    return all;
}

static size_t bucket(uint64_t ns)
{
    size_t i = 0;
    while (ns >= 2 && i < WEFT_STATISTICS_BUCKETS - 1) {
        ns /= 2;
        i++;
    }
    return i;
}

/* The completion of an operation, whose duration is added to `latency`. */
static void await_ok(struct duo *duo, weft_op id, uint64_t *latency, uint64_t *total)
{
    weft_completion c = box_await(duo->a, id, patience_ms());
    CHECK_OK(c.status);
    latency[bucket(c.done_ns - c.submit_ns)]++;
    *total += c.done_ns - c.submit_ns;
}

static void move_some(struct duo *duo, uint64_t *latency, uint64_t *total)
{
    for (uint64_t i = 0; i < WRITES; i++) {
        struct range_request args = range_args(duo->a_memory, duo->b_of_a, WRITE_LEN);
        args.options.flags = i % 2 ? WEFT_NOTIFY : 0;
        args.options.notify = i % 2 ? i : 0;
        await_ok(duo, write_now(duo->a, &args), latency, total);
    }
    for (int i = 0; i < READS; i++) {
        struct range_request args = range_args(duo->a_memory, duo->b_of_a, READ_LEN);
        weft_op id;
        CHECK_OK(submit_read(duo->a->endpoint, &args, &id));
        await_ok(duo, id, latency, total);
    }
    for (int i = 0; i < SENDS; i++) {
        uint64_t unused_latency[WEFT_STATISTICS_BUCKETS] = {0}, unused = 0;
        await_ok(duo, send_now(duo->a, duo->a_to_b, "message", 7), unused_latency, &unused);
    }
}

static void statistics_equal_the_moved_bytes(void)
{
    struct duo duo = duo_open(MIB);
    uint64_t latency[WEFT_STATISTICS_BUCKETS] = {0}, total = 0;
    CHECK_EQ(stats_of(duo.a).writes, 0);
    move_some(&duo, latency, &total);
    weft_endpoint_statistics s = stats_of(duo.a);
    CHECK_EQ(s.peers, 1);
    CHECK_EQ(s.active, 0);
    CHECK_EQ(s.writes, WRITES);
    CHECK_EQ(s.reads, READS);
    CHECK_EQ(s.sends, SENDS);
    CHECK_EQ(s.bytes_written, WRITES * WRITE_LEN);
    CHECK_EQ(s.bytes_read, READS * READ_LEN);
    CHECK_EQ(s.bytes_sent, SENDS * 7);
    CHECK_EQ(s.messages_sent, SENDS);
    CHECK_EQ(s.notifications_sent, WRITES / 2);
    CHECK_EQ(s.completions[0], WRITES + READS + SENDS);
    CHECK_EQ(sum(s.completions, COUNT(s.completions)), WRITES + READS + SENDS);
    CHECK_EQ(sum(s.latency, COUNT(s.latency)), WRITES + READS);
    CHECK(memcmp(s.latency, latency, sizeof latency) == 0);
    CHECK_EQ(s.latency_sum_ns, total);
    weft_rail_statistics r = all_rails(duo.a);
    CHECK(r.up > 0);
    CHECK_EQ(r.bytes_written, WRITES * WRITE_LEN);
    CHECK_EQ(r.bytes_read, READS * READ_LEN);
    CHECK(r.slices_written >= WRITES && r.slices_read >= READS);
    CHECK(r.posts >= WRITES + READS && r.errors == 0);
    CHECK(r.frames_sent > 0 && r.frames_received > 0);
    s = stats_of(duo.b);
    CHECK_EQ(s.messages_received, SENDS);
    CHECK_EQ(s.bytes_received, SENDS * 7);
    CHECK_EQ(s.notifications_received, WRITES / 2);
    CHECK_EQ(s.writes + s.bytes_written, 0);
    CHECK_EQ(all_rails(duo.b).bytes_written, 0);
    uint64_t until = now_ns() + patience_ms() * MS;
    do {
        CHECK(now_ns() < until);
        box_pump(duo.a, 1);
        r = all_rails(duo.a);
    } while (r.inflight_bytes + r.inflight_posts > 0 || r.lanes == 0);
    CHECK_OK(weft_endpoint_shutdown(duo.a->endpoint, 0));
    CHECK_EQ(all_rails(duo.a).up, 0);
    CHECK_EQ(all_rails(duo.a).bytes_written, WRITES * WRITE_LEN);
    CHECK_EQ(stats_of(duo.a).peers, 0);
    duo_close(&duo);
}

static uint64_t accepted(const weft_endpoint_statistics *s)
{
    return s->writes + s->reads + s->sends + s->atomics + s->expects + s->fences;
}

/* Lists over several peers, atomics and waits for counters: the sums hold at every time. */
static void statistics_of_all_kinds_add_up(void)
{
    char blob[8192];
    struct duo duo = duo_open(4096);
    struct box *third = box_of(open_endpoint());
    weft_list_entry entries[2] = {{.peer = duo.a_to_b}};
    struct list_request list = LIST_REQUEST_INIT;
    struct atomic_request atomic = ATOMIC_REQUEST_INIT;
    struct expect_request expect = EXPECT_REQUEST_INIT;
    weft_counter counter;
    weft_op id;
    uint64_t value = 1;
    size_t n = address_of(third->endpoint, blob, sizeof blob);
    CHECK_OK(weft_peer_connect(duo.a->endpoint, blob, n, NULL, &entries[1].peer));
    CHECK_OK(box_take(duo.a, WEFT_COMPLETION_PEER_UP, patience_ms()).status);
    CHECK_OK(weft_counter_create(duo.a->endpoint, &counter));
    expect.counters = &counter;
    expect.values = &value;
    expect.count = 1;
    CHECK_OK(submit_expect(duo.a->endpoint, &expect, &id));
    list.entries = entries;
    list.count = 2;
    list.options.flags = WEFT_NOTIFY;
    for (int each = 0; each < 2; each++) {
        list.options.flags |= each ? WEFT_COMPLETE_EACH_PEER : 0;
        CHECK_OK(submit_write_list(duo.a->endpoint, &list, NULL));
        for (int i = 0; i <= each; i++)
            CHECK_OK(box_take(duo.a, WEFT_COMPLETION_WRITE, patience_ms()).status);
        weft_endpoint_statistics s = stats_of(duo.a);
        CHECK_EQ(s.active, 1); /* the wait */
        CHECK_EQ(s.writes, each ? 3 : 1);
        CHECK_EQ(s.notifications_sent, each ? 4 : 2);
        CHECK_EQ(sum(s.completions, COUNT(s.completions)) + s.active, accepted(&s));
    }
    /* An operation that cannot end yet. */
    weft_endpoint_config config = test_config();
    config.progress = WEFT_PROGRESS_MANUAL;
    struct box *silent = box_of(open_with(&config));
    n = address_of(silent->endpoint, blob, sizeof blob);
    CHECK_OK(weft_peer_connect(duo.a->endpoint, blob, n, NULL, &entries[1].peer));
    list.options.flags = WEFT_NOTIFY;
    CHECK_OK(submit_write_list(duo.a->endpoint, &list, &id));
    weft_endpoint_statistics s = stats_of(duo.a);
    CHECK_EQ(s.active, 2);
    CHECK_EQ(sum(s.completions, COUNT(s.completions)) + s.active, accepted(&s));
    CHECK_OK(weft_op_cancel(duo.a->endpoint, id));
    CHECK_STATUS(box_await(duo.a, id, patience_ms()).status, WEFT_ERR_CANCELED);
    atomic.remote = duo.b_of_a;
    CHECK_OK(submit_fetch_add(duo.a->endpoint, &atomic, &id));
    CHECK_OK(box_await(duo.a, id, patience_ms()).status);
    CHECK_OK(weft_counter_destroy(duo.a->endpoint, counter));
    s = stats_of(duo.a);
    CHECK(s.atomics == 1 && s.expects == 1 && s.active == 0);
    CHECK_EQ(sum(s.completions, COUNT(s.completions)), accepted(&s));
    box_close(silent);
    box_close(third);
    duo_close(&duo);
}

/* Small pages count as slices, even if several go in one post. */
static void pages_count_as_slices(void)
{
    struct duo duo = duo_open(MIB);
    uint32_t backwards[64]; /* neighbours that are not merged */
    for (uint32_t i = 0; i < COUNT(backwards); i++)
        backwards[i] = (uint32_t)COUNT(backwards) - 1 - i;
    struct pages_request args = PAGES_REQUEST_INIT;
    args.local = duo.a_memory;
    args.remote = duo.b_of_a;
    args.pages.local.pages = backwards;
    args.pages.page_len = 4096;
    args.pages.page_count = COUNT(backwards);
    weft_op id;
    CHECK_OK(submit_write_pages(duo.a->endpoint, &args, &id));
    CHECK_OK(box_await(duo.a, id, patience_ms()).status);
    weft_rail_statistics r = all_rails(duo.a);
    CHECK_EQ(r.slices_written, COUNT(backwards));
    CHECK_EQ(r.bytes_written, sizeof backwards / 4 * 4096);
    CHECK_EQ(r.slices_read, 0);
    duo_close(&duo);
}

/* Every accepted operation is outstanding or has ended, whatever its kind. */
static void adds_up(struct box *box, uint64_t active, uint64_t total)
{
    weft_endpoint_statistics s = stats_of(box);
    CHECK_EQ(s.active, active);
    CHECK_EQ(accepted(&s), total);
    CHECK_EQ(sum(s.completions, COUNT(s.completions)), total - active);
}

static void statistics_count_every_operation(void)
{
    struct duo duo = duo_open(MIB);
    weft_endpoint *ep = duo.a->endpoint;
    weft_counter counter;
    weft_op waiting, id;
    uint64_t value = 1;
    CHECK_OK(weft_counter_create(ep, &counter));
    struct expect_request expect = EXPECT_REQUEST_INIT;
    expect.counters = &counter;
    expect.values = &value;
    expect.count = 1;
    CHECK_OK(submit_expect(ep, &expect, &waiting));
    adds_up(duo.a, 1, 1);
    struct atomic_request add = ATOMIC_REQUEST_INIT;
    add.remote = duo.b_of_a;
    add.operand = 1;
    CHECK_OK(submit_fetch_add(ep, &add, &id));
    CHECK_OK(box_await(duo.a, id, patience_ms()).status);
    CHECK_EQ(stats_of(duo.a).atomics, 1);
    CHECK_EQ(stats_of(duo.a).expects, 1);
    adds_up(duo.a, 1, 2);
    CHECK_OK(weft_op_cancel(ep, waiting));
    CHECK_STATUS(box_await(duo.a, waiting, patience_ms()).status, WEFT_ERR_CANCELED);
    adds_up(duo.a, 0, 2);
    duo_close(&duo);
}

/* A list over several peers counts once per completion, also while it is outstanding: neither peer ever answers. */
static void a_list_counts_by_its_completions(void)
{
    struct box *box = box_of(open_endpoint());
    weft_endpoint_config config = test_config();
    config.progress = WEFT_PROGRESS_MANUAL;
    weft_list_entry entries[2];
    weft_endpoint *silent[2];
    weft_memory *mine = register_one(box->endpoint, map_bytes(4096), 4096);
    for (int i = 0; i < 2; i++) {
        char blob[8192];
        weft_peer peer;
        weft_remote_memory *theirs;
        silent[i] = open_with(&config);
        size_t len = address_of(silent[i], blob, sizeof blob);
        CHECK_OK(weft_peer_connect(box->endpoint, blob, len, NULL, &peer));
        len = descriptor_of(register_one(silent[i], map_bytes(4096), 4096), blob, sizeof blob);
        CHECK_OK(weft_remote_memory_import(box->endpoint, peer, blob, len, &theirs));
        entries[i] = (weft_list_entry){.local = mine, .remote = theirs, .len = 4096};
    }
    struct list_request list = LIST_REQUEST_INIT;
    weft_op one, each;
    list.entries = entries;
    list.count = 2;
    CHECK_OK(submit_write_list(box->endpoint, &list, &one));
    adds_up(box, 1, 1);
    list.options.flags = WEFT_COMPLETE_EACH_PEER;
    CHECK_OK(submit_write_list(box->endpoint, &list, &each));
    adds_up(box, 3, 3);
    CHECK_OK(weft_op_cancel(box->endpoint, one));
    CHECK_STATUS(box_await(box, one, patience_ms()).status, WEFT_ERR_CANCELED);
    adds_up(box, 2, 3);
    CHECK_OK(weft_op_cancel(box->endpoint, each));
    for (int i = 0; i < 2; i++)
        CHECK_STATUS(box_await(box, each, patience_ms()).status, WEFT_ERR_CANCELED);
    adds_up(box, 0, 3);
    box_close(box);
    for (int i = 0; i < 2; i++)
        CHECK_OK(weft_endpoint_destroy(silent[i]));
}

/* A peer that never answers: the test chooses how waiting operations end. */
static void statuses_are_counted(void)
{
    enum { LATE = 3, CANCELED = 2 };
    char blob[8192];
    weft_endpoint_config config = test_config();
    config.progress = WEFT_PROGRESS_MANUAL;
    weft_endpoint *silent = open_with(&config);
    struct box *box = box_of(open_endpoint());
    weft_peer peer;
    weft_remote_memory *theirs;
    weft_op id[LATE + CANCELED];
    void *here = map_bytes(4096), *there = map_bytes(4096);
    weft_memory *mine = register_one(box->endpoint, here, 4096);
    size_t len = address_of(silent, blob, sizeof blob);
    CHECK_OK(weft_peer_connect(box->endpoint, blob, len, NULL, &peer));
    len = descriptor_of(register_one(silent, there, 4096), blob, sizeof blob);
    CHECK_OK(weft_remote_memory_import(box->endpoint, peer, blob, len, &theirs));
    struct range_request args = range_args(mine, theirs, 4096);
    for (int i = 0; i < LATE + CANCELED; i++) {
        args.options.timeout_ns = i < LATE ? 20 * MS : patience_ms() * MS;
        CHECK_OK(submit_write(box->endpoint, &args, &id[i]));
    }
    for (int i = 0; i < LATE; i++)
        CHECK_STATUS(box_await(box, id[i], patience_ms()).status, WEFT_ERR_TIMED_OUT);
    weft_endpoint_statistics s = stats_of(box);
    CHECK_EQ(s.active, CANCELED);
    CHECK_EQ(s.peers, 0);
    for (int i = LATE; i < LATE + CANCELED; i++) {
        CHECK_OK(weft_op_cancel(box->endpoint, id[i]));
        CHECK_STATUS(box_await(box, id[i], patience_ms()).status, WEFT_ERR_CANCELED);
    }
    s = stats_of(box);
    CHECK_EQ(s.writes, LATE + CANCELED);
    CHECK_EQ(s.active, 0);
    CHECK_EQ(s.completions[-WEFT_ERR_TIMED_OUT], LATE);
    CHECK_EQ(s.completions[-WEFT_ERR_CANCELED], CANCELED);
    CHECK_EQ(sum(s.completions, COUNT(s.completions)), LATE + CANCELED);
    CHECK_EQ(sum(s.latency, COUNT(s.latency)) + s.bytes_written + s.latency_sum_ns, 0);
    CHECK_OK(weft_endpoint_destroy(silent));
    box_close(box);
}

static bool both_pump(struct box *a, struct box *b, weft_completion_kind kind, weft_completion *c)
{
    box_pump(b, 0);
    box_pump(a, 1);
    return box_try(a, kind, c);
}

/* NICs that are full for some time: posts are refused, counted, and retried. */
static void refused_posts_are_counted(void)
{
    char blob[8192];
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    config.fabric = "sim:like=efa:gbps=10:clock=virtual:world=refused";
    config.progress = WEFT_PROGRESS_MANUAL;
    setenv("WEFT_SIM_FAULTS", "20000 rail0 again=5000", 1);
    struct box *a = box_of(open_with(&config)), *b = box_of(open_with(&config));
    weft_peer peer;
    weft_completion c;
    weft_remote_memory *theirs;
    size_t len = address_of(b->endpoint, blob, sizeof blob);
    CHECK_OK(weft_peer_connect(a->endpoint, blob, len, NULL, &peer));
    while (!both_pump(a, b, WEFT_COMPLETION_PEER_UP, &c))
        continue;
    weft_memory *mine = register_one(a->endpoint, map_bytes(4 * MIB), 4 * MIB);
    len = descriptor_of(register_one(b->endpoint, map_bytes(4 * MIB), 4 * MIB), blob, sizeof blob);
    CHECK_OK(weft_remote_memory_import(a->endpoint, peer, blob, len, &theirs));
    CHECK_EQ(rail_stats(a, 0).posts_refused, 0);
    struct range_request args = range_args(mine, theirs, 4 * MIB);
    for (int i = 0; i < 20; i++)
        CHECK_OK(submit_write(a->endpoint, &args, NULL));
    for (int i = 0; i < 20; i++) {
        while (!both_pump(a, b, WEFT_COMPLETION_WRITE, &c))
            continue;
        CHECK_OK(c.status);
    }
    weft_rail_statistics r = rail_stats(a, 0);
    CHECK(r.posts_refused > 0);
    CHECK_EQ(r.bytes_written, 80 * MIB);
    CHECK(r.bytes_per_s > GIB / 10 && r.bytes_per_s < 2 * GIB); /* 10 Gbps */
    CHECK(r.round_trip_ns > 0 && r.round_trip_ns < SECOND);
    box_close(a);
    box_close(b);
}

/* A peer that accepts nothing: bytes in flight to it are reported. */
static void statistics_show_a_stalled_peer(void)
{
    char blob[8192];
    weft_endpoint_config config = test_config();
    config.progress = WEFT_PROGRESS_MANUAL;
    struct box *a = box_of(open_endpoint()), *b = box_of(open_with(&config));
    weft_peer peer;
    weft_completion c;
    weft_remote_memory *theirs;
    weft_op id;
    size_t len = address_of(b->endpoint, blob, sizeof blob);
    CHECK_OK(weft_peer_connect(a->endpoint, blob, len, NULL, &peer));
    while (!both_pump(a, b, WEFT_COMPLETION_PEER_UP, &c))
        continue;
    weft_memory *mine = register_one(a->endpoint, map_bytes(64 * MIB), 64 * MIB);
    len = descriptor_of(register_one(b->endpoint, map_bytes(64 * MIB), 64 * MIB), blob, sizeof blob);
    CHECK_OK(weft_remote_memory_import(a->endpoint, peer, blob, len, &theirs));
    struct range_request args = range_args(mine, theirs, 1);
    CHECK_OK(submit_write(a->endpoint, &args, NULL)); /* the import is answered after it */
    while (!both_pump(a, b, WEFT_COMPLETION_WRITE, &c))
        continue;
    args.len = 64 * MIB;
    CHECK_OK(submit_write(a->endpoint, &args, &id));
    uint64_t until = now_ns() + patience_ms() * MS;
    while (all_rails(a).lanes_stalled == 0) {
        CHECK(now_ns() < until);
        sleep_ms(1);
    }
    weft_rail_statistics r = all_rails(a);
    CHECK(r.inflight_bytes > 0 && r.inflight_bytes < 64 * MIB && r.inflight_posts > 0);
    CHECK_EQ(stats_of(a).active, 1);
    while (!both_pump(a, b, WEFT_COMPLETION_WRITE, &c))
        continue;
    CHECK_OK(c.status);
    until = now_ns() + patience_ms() * MS;
    while (all_rails(a).lanes_stalled + all_rails(a).inflight_bytes > 0)
        CHECK(now_ns() < until);
    box_close(a);
    box_close(b);
}

static char *metrics_of(struct box *box)
{
    size_t len, capacity = 1 << 20;
    char *text = malloc(capacity + 1);
    CHECK_OK(weft_endpoint_metrics(box->endpoint, text, capacity, &len));
    text[len] = 0;
    CHECK_EQ(strlen(text), len);
    return text;
}

/* The value of the sample that begins with this text; it occurs once. */
static double sample(const char *text, const char *name)
{
    char line[400];
    CHECK((size_t)snprintf(line, sizeof line, "\n%s ", name) < sizeof line);
    const char *at = strstr(text, line);
    if (at == NULL || strstr(at + 1, line) != NULL)
        fail(__FILE__, __LINE__, "not there once: %s in:\n%s", name, text);
    return strtod(at + strlen(line), NULL);
}

/* Each sample follows the HELP and TYPE of its metric, and has a number. */
static void is_prometheus_text(char *text)
{
    char metric[100] = "", *rest = text;
    int samples = 0;
    CHECK(text[strlen(text) - 1] == '\n');
    for (char *line; (line = strtok_r(rest, "\n", &rest)) != NULL;) {
        char name[100], kind[20];
        if (sscanf(line, "# HELP %99s", name) == 1) {
            CHECK(strncmp(name, "weft_", 5) == 0 && line[strlen(line) - 1] == '.');
            bool of_some = strstr(metric, "weft_peer_") == metric || strcmp(metric, "weft_lane_connection") == 0;
            CHECK(metric[0] == 0 || samples > 0 || of_some);
            CHECK(sscanf(rest, "# TYPE %99s %19s", metric, kind) == 2 && strcmp(metric, name) == 0);
            bool total = strcmp(name + strlen(name) - 6, "_total") == 0;
            CHECK(total == (strcmp(kind, "counter") == 0));
            CHECK(total || strcmp(kind, "gauge") == 0 || strcmp(kind, "histogram") == 0);
            samples = 0;
        } else if (line[0] != '#') {
            char *end, *value = strrchr(line, ' ');
            CHECK(strncmp(line, metric, strlen(metric)) == 0 && value != NULL);
            strtod(value + 1, &end);
            CHECK(end > value + 1 && *end == 0);
            samples++;
        }
    }
}

static void metrics_equal_statistics(void)
{
    struct duo duo = duo_open(MIB);
    uint64_t latency[WEFT_STATISTICS_BUCKETS] = {0}, total = 0;
    move_some(&duo, latency, &total);
    char *text = metrics_of(duo.a), name[400];
    CHECK_EQ(sample(text, "weft_peers"), 1);
    CHECK_EQ(sample(text, "weft_operations_active"), 0);
    CHECK_EQ(sample(text, "weft_operations_total{kind=\"write\"}"), WRITES);
    CHECK_EQ(sample(text, "weft_operations_total{kind=\"read\"}"), READS);
    CHECK_EQ(sample(text, "weft_bytes_total{kind=\"read\"}"), READS * READ_LEN);
    CHECK_EQ(sample(text, "weft_completions_total{status=\"ok\"}"), WRITES + READS + SENDS);
    CHECK_EQ(sample(text, "weft_completions_total{status=\"timed_out\"}"), 0);
    CHECK_EQ(sample(text, "weft_messages_total{direction=\"sent\"}"), SENDS);
    CHECK_EQ(sample(text, "weft_transfer_seconds_count"), WRITES + READS);
    double took = sample(text, "weft_transfer_seconds_sum") * 1e9 - (double)total;
    CHECK(took > -1000 && took < 1000);
    /* All of them moved more than 2 KiB; the reads at most 4 KiB, all at most 16 KiB. */
    CHECK_EQ(sample(text, "weft_transfer_size_bytes_bucket{le=\"2048\"}"), 0);
    CHECK_EQ(sample(text, "weft_transfer_size_bytes_bucket{le=\"4096\"}"), READS);
    CHECK_EQ(sample(text, "weft_transfer_size_bytes_bucket{le=\"16384\"}"), READS + WRITES);
    CHECK_EQ(sample(text, "weft_transfer_size_bytes_sum"), WRITES * WRITE_LEN + READS * READ_LEN);
    weft_peer_properties peer = WEFT_PEER_PROPERTIES_INIT;
    CHECK_OK(weft_peer_info(duo.a->endpoint, duo.a_to_b, &peer));
    snprintf(name, sizeof name, "weft_peer_lanes{peer=\"0x%llx\",address=\"%s\",fabric=\"%s\"}",
             (unsigned long long)duo.a_to_b, peer.address, peer.fabric);
    CHECK_EQ(sample(text, name), peer.lanes);
    weft_rail_properties rail = WEFT_RAIL_PROPERTIES_INIT;
    CHECK_OK(weft_rail_info(duo.a->endpoint, 0, &rail, NULL));
    snprintf(name, sizeof name, "weft_rail_bytes_total{rail=\"0\",name=\"%s\",fabric=\"%s\",direction=\"read\"}",
             rail.name, rail.fabric);
    CHECK_EQ(sample(text, name), rail_stats(duo.a, 0).bytes_read);
    is_prometheus_text(text);
    free(text);
    size_t len = 0;
    char few[10];
    REFUSED(WEFT_ERR_TOO_SMALL, weft_endpoint_metrics(duo.a->endpoint, few, sizeof few, &len));
    CHECK(len > sizeof few);
    CHECK_OK(weft_endpoint_metrics(duo.a->endpoint, NULL, 0, &len));
    REFUSED(WEFT_ERR_INVALID, weft_endpoint_metrics(duo.a->endpoint, few, sizeof few, NULL));
    REFUSED(WEFT_ERR_HANDLE, weft_endpoint_metrics(NULL, few, sizeof few, &len));
    duo_close(&duo);
}

static size_t occurrences(const char *text, const char *part)
{
    size_t count = 0;
    for (const char *at = text; (at = strstr(at, part)) != NULL; at++)
        count++;
    return count;
}

/* A folder for traces; the name of a trace in it, and the file of this process. */
struct traces {
    char folder[32], name[64], file[64];
};

static struct traces new_traces(void)
{
    struct traces traces = {"/tmp/weft-trace-XXXXXX", "", ""};
    CHECK(mkdtemp(traces.folder) != NULL);
    snprintf(traces.name, sizeof traces.name, "%s/%%p.json", traces.folder);
    snprintf(traces.file, sizeof traces.file, "%s/%d.json", traces.folder, (int)getpid());
    return traces;
}

static char *read_trace(const struct traces *traces)
{
    FILE *stream = fopen(traces->file, "r");
    CHECK(stream != NULL);
    char *text = calloc(1, 4 * MIB);
    CHECK(fread(text, 1, 4 * MIB - 1, stream) > 0);
    fclose(stream);
    unlink(traces->file);
    rmdir(traces->folder);
    return text;
}

/* Each operation has a bar and a mark at its first post; peers come and go; rails post and deliver. */
static void trace_has_every_operation(void)
{
    struct traces traces = new_traces();
    setenv("WEFT_TRACE", traces.name, 1);
    struct duo duo = duo_open(MIB);
    uint64_t latency[WEFT_STATISTICS_BUCKETS] = {0}, total = 0;
    move_some(&duo, latency, &total);
    duo_close(&duo);
    char *text = read_trace(&traces);
    CHECK(strstr(text, "{\"otherData\":{\"dropped\":0},\"traceEvents\":[") == text);
    CHECK(strcmp(text + strlen(text) - 3, "]}\n") == 0);
    CHECK_EQ(occurrences(text, "\"ph\":\"b\""), WRITES + READS + SENDS);
    CHECK_EQ(occurrences(text, "\"ph\":\"e\""), WRITES + READS + SENDS);
    CHECK_EQ(occurrences(text, "\"bytes\":10000,\"status\":0"), WRITES);
    CHECK(occurrences(text, "\"first post\"") >= WRITES + READS);
    CHECK_EQ(occurrences(text, "\"name\":\"PEER_UP\""), 2);
    CHECK_EQ(occurrences(text, "\"name\":\"notification\""), WRITES / 2);
    CHECK(occurrences(text, "\"name\":\"delivered\"") > 0);
    CHECK(occurrences(text, "\"name\":\"rail 0\"") == 1);
    free(text);
}

/* An endpoint with a trace opens and shuts down: its file has what others did meanwhile, and only that. */
static void trace_of_a_running_process_begins_and_ends(void)
{
    struct traces traces = new_traces();
    struct duo duo = duo_open(MIB);
    uint64_t latency[WEFT_STATISTICS_BUCKETS] = {0}, total = 0;
    move_some(&duo, latency, &total);
    weft_endpoint_config config = test_config();
    config.trace = traces.name;
    weft_endpoint *tracer;
    CHECK_OK(weft_endpoint_create(&config, &tracer));
    move_some(&duo, latency, &total);
    CHECK_OK(weft_endpoint_destroy(tracer));
    move_some(&duo, latency, &total);
    duo_close(&duo);
    char *text = read_trace(&traces);
    CHECK_EQ(occurrences(text, "\"ph\":\"b\""), WRITES + READS + SENDS);
    CHECK_EQ(occurrences(text, "\"name\":\"PEER_UP\""), 0);
    free(text);

    config.trace = "/nowhere/trace.json";
    REFUSED(WEFT_ERR_INVALID, weft_endpoint_create(&config, &tracer));
    CHECK(strstr(weft_last_error(), "/nowhere/trace.json") != NULL);
}

/* A rail fails under load: its lane is reset, and the other rail claims again what it had claimed. */
static void trace_has_resets_and_claims(void)
{
    struct traces traces = new_traces();
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    config.fabric = "sim:like=tcp:rails=2:gbps=1:delay_us=20:world=traced";
    config.trace = traces.name;
    setenv("WEFT_SIM_FAULTS", "port4+0 rail1 down", 1);
    struct duo duo = duo_open_with(MIB, &config);
    struct range_request args = range_args(duo.a_memory, duo.b_of_a, 256 * KIB);
    int open = 0;
    for (; open < 16; open++)
        write_now(duo.a, &args);
    box_pump(duo.a, 5);
    config.trace = NULL;
    CHECK_OK(weft_endpoint_destroy(open_with(&config))); /* opens the NICs at which the plan begins */
    for (; open > 0; open--)
        CHECK_OK(box_take(duo.a, WEFT_COMPLETION_WRITE, patience_ms()).status);
    duo_close(&duo);
    char *text = read_trace(&traces);
    CHECK(occurrences(text, "\"name\":\"lane reset\"") > 0);
    CHECK(occurrences(text, "\"name\":\"claim\"") >= 16);
    CHECK(occurrences(text, "\"name\":\"claim again\"") > 0);
    CHECK(occurrences(text, "\"args\":{\"worker\":0,\"posts\":") > 0);
    free(text);
}

static atomic_bool over;

/* Counts read by one thread while others work. */
static void *look(void *argument)
{
    struct box *box = argument;
    weft_endpoint_statistics before = stats_of(box);
    weft_rail_statistics rail_before = rail_stats(box, 0);
    while (!over) {
        weft_endpoint_statistics s = stats_of(box);
        weft_rail_statistics r = rail_stats(box, 0);
        CHECK(s.writes >= before.writes && s.bytes_written >= before.bytes_written);
        CHECK(s.latency_sum_ns >= before.latency_sum_ns);
        for (size_t i = 0; i < COUNT(s.latency); i++)
            CHECK(s.latency[i] >= before.latency[i]);
        for (size_t i = 0; i < COUNT(s.completions); i++)
            CHECK(s.completions[i] >= before.completions[i]);
        CHECK(r.bytes_written >= rail_before.bytes_written && r.posts >= rail_before.posts);
        CHECK(r.frames_sent >= rail_before.frames_sent);
        before = s;
        rail_before = r;
    }
    return NULL;
}

static void counters_only_grow(void)
{
    struct duo duo = duo_open(MIB);
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, look, duo.a), 0);
    struct range_request args = range_args(duo.a_memory, duo.b_of_a, 64 * KIB);
    weft_op ids[8];
    for (int i = 0; i < 1000; i++) {
        if (i >= 8)
            CHECK_OK(box_await(duo.a, ids[i % 8], patience_ms()).status);
        ids[i % 8] = write_now(duo.a, &args);
    }
    for (int i = 0; i < 8; i++)
        CHECK_OK(box_await(duo.a, ids[i], patience_ms()).status);
    over = true;
    pthread_join(thread, NULL);
    CHECK_EQ(stats_of(duo.a).bytes_written, 1000 * 64 * KIB);
    duo_close(&duo);
}

static void arguments_are_checked(void)
{
    weft_endpoint *endpoint = open_endpoint();
    weft_endpoint_statistics s = WEFT_ENDPOINT_STATISTICS_INIT;
    weft_rail_statistics r = WEFT_RAIL_STATISTICS_INIT;
    REFUSED(WEFT_ERR_HANDLE, weft_endpoint_info(NULL, NULL, &s));
    REFUSED(WEFT_ERR_HANDLE, weft_rail_info(NULL, 0, NULL, &r));
    REFUSED(WEFT_ERR_INVALID, weft_endpoint_info(endpoint, NULL, NULL));
    REFUSED(WEFT_ERR_INVALID, weft_rail_info(endpoint, 0, NULL, NULL));
    REFUSED(WEFT_ERR_RANGE, weft_rail_info(endpoint, 64, NULL, &r));
    s.size = 0;
    REFUSED(WEFT_ERR_INVALID, weft_endpoint_info(endpoint, NULL, &s));
    /* A shorter struct is filled to its end, and no further. */
    memset(&s, 0xee, sizeof s);
    s.size = offsetof(weft_endpoint_statistics, completions);
    CHECK_OK(weft_endpoint_info(endpoint, NULL, &s));
    CHECK_EQ(s.writes, 0);
    CHECK(s.completions[0] == UINT64_C(0xeeeeeeeeeeeeeeee));
    CHECK_OK(weft_endpoint_destroy(endpoint));
    s.size = sizeof s;
    REFUSED(WEFT_ERR_HANDLE, weft_endpoint_info(endpoint, NULL, &s));
}

static const struct test tests[] = {
    {"statistics_equal_the_moved_bytes", "any", statistics_equal_the_moved_bytes},
    {"metrics_equal_statistics", "any", metrics_equal_statistics},
    {"trace_has_every_operation", "tcp,host", trace_has_every_operation},
    {"trace_of_a_running_process_begins_and_ends", "tcp", trace_of_a_running_process_begins_and_ends},
    {"trace_has_resets_and_claims", "once", trace_has_resets_and_claims},
    {"statistics_of_all_kinds_add_up", "any", statistics_of_all_kinds_add_up},
    {"pages_count_as_slices", "once", pages_count_as_slices},
    {"statistics_count_every_operation", "any", statistics_count_every_operation},
    {"a_list_counts_by_its_completions", "any", a_list_counts_by_its_completions},
    {"statuses_are_counted", "any", statuses_are_counted},
    {"refused_posts_are_counted", "once", refused_posts_are_counted},
    {"statistics_show_a_stalled_peer", "tcp", statistics_show_a_stalled_peer},
    {"counters_only_grow", "once", counters_only_grow},
    {"arguments_are_checked", "once", arguments_are_checked},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
