/*
 * libfabric's shm when a peer dies, or stops. It keeps no promise there (a dying process may hold a lock of others), so
 * each test only prints what happens; it fails only if something completes twice.
 */
#include "harness.h"

#define LEN (256 * KIB)
#define WRITES 32 /* to each of two peers, at once */
#define TIMEOUT (500 * MS)
#define AFTER SECOND /* how long what has not ended by its deadline is waited for */
#define ROUNDS 3

enum { VICTIM = 1, BYSTANDER = 2 };

/* The outcome of the writes to one peer. */
struct sum {
    uint64_t ok, lost, timed_out, other, missing;
    int64_t last_ns; /* after the deadline */
};

/* The results of all rounds, shared by all processes. */
static struct sum *sums;
static int hurt; /* the signal */
static uint64_t resumes_after; /* it was sent; 0: never */

static const char *const whose[] = {"its own", "the other's"};

/* Lives, and is polled by its own thread. */
static void is_there(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    join(team, 0, box);
    give_memory(team, 0, register_one(box->endpoint, map_bytes(LEN), LEN));
    meet(team, 0, box);
    hear(team, 0, NULL, &(char){0}, 1);
    _exit(0); /* destroying it may wait for a process that is gone */
}

static void count(struct sum *sum, bool *done, const weft_completion *c, uint64_t deadline)
{
    CHECK(!*done);
    *done = true;
    int64_t late = (int64_t)(c->done_ns - deadline);
    sum->last_ns = late > sum->last_ns ? late : sum->last_ns;
    sum->ok += c->status == WEFT_OK;
    sum->lost += c->status == WEFT_ERR_PEER_LOST;
    sum->timed_out += c->status == WEFT_ERR_TIMED_OUT;
    sum->other += c->status != WEFT_OK && c->status != WEFT_ERR_PEER_LOST && c->status != WEFT_ERR_TIMED_OUT;
}

/* Writes to both, and signals one in the middle. */
static void watches(struct team *team)
{
    static bool done[2 * WRITES];
    struct box *box = box_of(open_endpoint());
    weft_memory *memory = register_one(box->endpoint, map_bytes(LEN), LEN);
    weft_remote_memory *theirs[2];
    for (int who = VICTIM; who <= BYSTANDER; who++) {
        weft_peer peer = join(team, who, box);
        theirs[who - 1] = take_memory(team, who, box, peer);
        meet(team, who, box);
    }
    pid_t victim = pid_of(team, VICTIM);
    uint64_t deadline = now_ns() + TIMEOUT;
    for (uintptr_t i = 0; i < 2 * WRITES; i++) {
        struct range_request args = range_args(memory, theirs[i % 2], LEN);
        args.options.timeout_ns = TIMEOUT;
        args.options.user_data = (void *)i;
        CHECK_OK(submit_write(box->endpoint, &args, NULL));
    }
    team->board->may_die[VICTIM] = 1;
    CHECK(kill(victim, hurt) == 0);
    uint64_t resume_ns = resumes_after ? now_ns() + resumes_after : UINT64_MAX, left = 2 * WRITES;
    while (left > 0 && now_ns() < deadline + AFTER) {
        weft_completion c;
        box_pump(box, 5);
        for (; box_try(box, WEFT_COMPLETION_WRITE, &c); left--)
            count(&sums[(uintptr_t)c.user_data % 2], &done[(uintptr_t)c.user_data], &c, deadline);
        if (now_ns() >= resume_ns) {
            CHECK(kill(victim, SIGCONT) == 0);
            resume_ns = UINT64_MAX;
        }
    }
    for (int i = 0; i < 2 * WRITES; i++)
        sums[i % 2].missing += !done[i];
    if (hurt != SIGKILL)
        kill_member(team, VICTIM);
    tell(team, BYSTANDER, "", 1);
    fflush(NULL);
    _exit(0); /* a worker may never come back */
}

static void print_what_happens(const char *what, int signal, uint64_t resumes_after_ns)
{
    const role roles[] = {watches, is_there, is_there};
    sums = mmap(NULL, 2 * sizeof *sums, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(sums != MAP_FAILED);
    hurt = signal;
    resumes_after = resumes_after_ns;
    for (int i = 0; i < 2; i++)
        sums[i].last_ns = -(int64_t)TIMEOUT;
    for (int round = 0; round < ROUNDS; round++)
        run_team(COUNT(roles), roles);
    printf("%s %d times, with %d writes under way to it, and as many to another:", what, ROUNDS, WRITES);
    for (int i = 0; i < 2; i++)
        printf("%s %s: %" PRIu64 " ok, %" PRIu64 " lost, %" PRIu64 " timed out, %" PRIu64 " else, %" PRIu64
               " missing, the last %+" PRId64 " ms from the deadline",
               i ? ";" : "", whose[i], sums[i].ok, sums[i].lost, sums[i].timed_out, sums[i].other, sums[i].missing,
               sums[i].last_ns / (int64_t)MS);
    printf("\n");
}

static void killed_shm_peer_is_reported(void)
{
    print_what_happens("killed", SIGKILL, 0);
}

static void stopped_shm_peer_is_reported(void)
{
    print_what_happens("stopped", SIGSTOP, 0);
}

static void stopped_peer_continues_before_the_deadline(void)
{
    print_what_happens("stopped for 0.2 s", SIGSTOP, 200 * MS);
}

static void stopped_peer_continues_after_the_deadline(void)
{
    print_what_happens("stopped for 0.8 s", SIGSTOP, 800 * MS);
}

static const struct test tests[] = {
    {"killed_shm_peer_is_reported", "shm", killed_shm_peer_is_reported},
    {"stopped_shm_peer_is_reported", "shm", stopped_shm_peer_is_reported},
    {"stopped_peer_continues_before_the_deadline", "shm", stopped_peer_continues_before_the_deadline},
    {"stopped_peer_continues_after_the_deadline", "shm", stopped_peer_continues_after_the_deadline},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
