/* A lost peer: the cause that completions, PEER_DOWN and the log report. */
#include "harness.h"

#define WRITES 40

struct lines {
    pthread_mutex_t lock;
    char text[16 * 1024];
    int lost; /* lines that say so */
};

/* Collects the log lines about lost peers. */
static void keep(weft_log_level level, const char *component, const char *message, void *user_data)
{
    struct lines *lines = user_data;
    (void)component;
    if (level > WEFT_LOG_WARN || strstr(message, " is lost: ") == NULL)
        return;
    pthread_mutex_lock(&lines->lock);
    lines->lost++;
    snprintf(lines->text, sizeof lines->text, "%s", message);
    pthread_mutex_unlock(&lines->lock);
}

static struct lines lines = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void is_in_the_line(const char *text)
{
    if (strstr(lines.text, text) == NULL)
        FAIL("\"%s\" is not in: %s", text, lines.text);
}

/* One line reports that the peer is lost, its address, and the cause. */
static void the_line_says(weft_peer peer, const char *address, int provider_errno)
{
    char text[160];
    CHECK_EQ(lines.lost, 1);
    /* For an address of host the log has the beginning of the last part. */
    const char *slash = strrchr(address, '/');
    snprintf(text, sizeof text, "peer 0x%" PRIx64 " (%.*s, ", peer, slash ? 13 : 100, slash ? slash + 1 : address);
    is_in_the_line(text);
    snprintf(text, sizeof text, "(%d)", provider_errno);
    is_in_the_line(text);
}

/* All failed writes name the cause that PEER_DOWN names; returns it. */
static int cause_of(struct box *box, size_t writes)
{
    int seen = 0, failed = 0;
    weft_endpoint_properties properties = WEFT_ENDPOINT_PROPERTIES_INIT;
    CHECK_OK(weft_endpoint_info(box->endpoint, &properties, NULL));
    while (writes-- > 0) {
        weft_completion c = box_take(box, WEFT_COMPLETION_WRITE, patience_ms());
        if (c.status == WEFT_OK)
            continue;
        CHECK_STATUS(c.status, WEFT_ERR_PEER_LOST);
        CHECK(c.provider_errno != 0 && c.rail < properties.rails);
        CHECK(!failed++ || c.provider_errno == seen);
        seen = c.provider_errno;
    }
    CHECK(failed > 0);
    weft_completion down = box_take(box, WEFT_COMPLETION_PEER_DOWN, patience_ms());
    CHECK_STATUS(down.status, WEFT_ERR_PEER_LOST);
    CHECK_EQ(down.provider_errno, seen);
    return seen;
}

static void kills(struct team *team)
{
    char address[128] = {0};
    struct box *box = box_of(open_endpoint());
    weft_memory *mine = register_one(box->endpoint, map_bytes(MIB), MIB);
    weft_peer peer = join(team, 1, box);
    weft_remote_memory *theirs = take_memory(team, 1, box, peer);
    hear(team, 1, box, address, sizeof address - 1);
    CHECK_OK(weft_log_set(WEFT_LOG_WARN, keep, &lines));
    struct range_request args = range_args(mine, theirs, MIB);
    CHECK_OK(box_await(box, write_now(box, &args), patience_ms()).status);
    stop_process(pid_of(team, 1));
    for (int i = 0; i < WRITES; i++)
        CHECK_OK(submit_write(box->endpoint, &args, NULL));
    kill_member(team, 1);
    int cause = cause_of(box, WRITES);
    CHECK_OK(weft_log_set(WEFT_LOG_DEFAULT, NULL, NULL));
    the_line_says(peer, address, cause);
    box_close(box);
}

static void is_killed(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    weft_rail_properties rail = WEFT_RAIL_PROPERTIES_INIT;
    CHECK_OK(weft_rail_info(box->endpoint, 0, &rail, NULL));
    join(team, 0, box);
    give_memory(team, 0, register_one(box->endpoint, map_bytes(MIB), MIB));
    tell(team, 0, rail.address, strlen(rail.address));
    for (;;)
        box_pump(box, 100);
}

static void killed_peer_is_reported_with_a_cause(void)
{
    run_pair(kills, is_killed);
}

/* A part in the middle is unmapped: what needs it ends, and nothing else. */
static void unmapped_memory_ends_its_operations_alone(void)
{
    struct duo duo = duo_open(MIB);
    uint8_t *bytes = map_bytes(MIB), blob[4096];
    weft_memory *mine = register_one(duo.a->endpoint, bytes, MIB), *theirs = register_one(duo.b->endpoint, bytes, MIB);
    weft_remote_memory *far;
    CHECK_OK(weft_remote_memory_import(duo.a->endpoint, duo.a_to_b, blob, descriptor_of(theirs, blob, sizeof blob), &far));
    CHECK_EQ(munmap(bytes + MIB / 2, MIB / 4), 0);
    for (int i = 0; i < 8; i++) {
        struct range_request of_mine = range_args(mine, duo.b_of_a, MIB), of_far = range_args(duo.a_memory, far, MIB);
        struct range_request fine = range_args(duo.a_memory, duo.b_of_a, MIB);
        weft_op writes = write_now(duo.a, &of_mine), beside = write_now(duo.a, &fine), reads;
        CHECK_OK(submit_read(duo.a->endpoint, &of_far, &reads));
        CHECK_STATUS(box_await(duo.a, writes, patience_ms()).status, WEFT_ERR_MEMORY_GONE);
        CHECK_STATUS(box_await(duo.a, reads, patience_ms()).status, WEFT_ERR_MEMORY_GONE);
        CHECK_OK(box_await(duo.a, beside, patience_ms()).status);
    }
    CHECK(!box_try(duo.a, WEFT_COMPLETION_PEER_DOWN, NULL) && !box_try(duo.b, WEFT_COMPLETION_PEER_DOWN, NULL));
    CHECK_OK(weft_remote_memory_release(far));
    duo_close(&duo);
}

static const struct test tests[] = {
    {"killed_peer_is_reported_with_a_cause", "tcp,host", killed_peer_is_reported_with_a_cause},
    {"unmapped_memory_ends_its_operations_alone", "tcp", unmapped_memory_ends_its_operations_alone},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
