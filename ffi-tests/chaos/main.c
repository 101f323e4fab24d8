/*
 * Chaos between three hosts of four rails each (tools/chaos.sh makes them): operations of
 * all kinds at once, while links and processes fail as a seed has it. At the end, a ledger.
 *
 *     chaos [MINUTES [SEED [JSON]]]
 *
 * It knows only weft.h; what it tells of Weft another engine could be asked, too:
 *
 *     book       what the processes share: memory, slots, operations, faults
 *     content     which bytes an operation moves, and whether they are right
 *     host        a process: its life, its links, what it submits and what it polls
 *     faults      what happens to links and processes
 *     report      the ledger
 */
#include "book.h"

/* Of the time that is given, to come to an end in. */
#define CALM (8 * SECOND)
#define SETTLE (30 * SECOND)

static bool is_outstanding(const struct operation *op)
{
    const struct host *host = &book->hosts[op->host];
    if (!op->accepted || op->life != host->lives_count - 1)
        return false;
    for (int target = 0; target < HOSTS; target++)
        if (op->targets >> target & 1 && !op->part[target].done)
            return true;
    return false;
}

static uint32_t outstanding(void)
{
    uint32_t count = book->operations_count < OPERATIONS_MAX ? book->operations_count : OPERATIONS_MAX, sum = 0;
    for (uint32_t i = count > 20000 ? count - 20000 : 0; i < count; i++)
        sum += is_outstanding(&book->operations[i]);
    return sum;
}

static void rest(uint64_t ns)
{
    for (uint64_t until = now_ns() + ns; now_ns() < until; sleep_ms(5))
        hosts_watch();
}

/* All operations end by their deadlines; then nothing may change any more. */
static void come_to_rest(void)
{
    uint64_t until = now_ns() + SETTLE;
    book->quiet = true;
    faults_end();
    while (outstanding() > 0 && now_ns() < until)
        rest(50 * MS);
    rest(2 * SECOND);
    book->over = true;
    for (until = now_ns() + SETTLE; !hosts_watch() && now_ns() < until;)
        sleep_ms(5);
    if (!hosts_watch())
        finding(&book->odd, "a host does not end");
}

int main(int argc, char **argv)
{
    double minutes = argc > 1 ? atof(argv[1]) : 10;
    uint64_t seed = argc > 2 && *argv[2] ? strtoull(argv[2], NULL, 10) : now_ns() % 1000000;
    uint64_t ns = (uint64_t)(minutes * 60 * (double)SECOND);
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("chaos: %g minutes, SEED=%" PRIu64 "\n", minutes, seed);
    book_make(seed);
    hosts_begin();
    faults_play(seed, now_ns() + (ns > 2 * CALM ? ns - CALM : ns / 2));
    come_to_rest();
    bool well = report(argc > 3 ? argv[3] : NULL, minutes);
    printf("chaos: SEED=%" PRIu64 ": %s\n", seed, well ? "all is well" : "NOT well");
    return well ? 0 : 1;
}
