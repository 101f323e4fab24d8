/* The ledger at the end: what was accepted, how it ended, and what was wrong. */
#include "engine.h"

/* A rail that is up again must be used after this time. */
#define SETTLED (3 * SECOND)

enum column { OK, TIMED_OUT, CANCELED, PEER_LOST, PEER_CLOSED, RAIL_LOST, MEMORY_GONE, OTHER, DIED, MISSING, COLUMNS };

static const char *const columns[] = {"ok", "timed out", "canceled", "peer lost", "peer closed", "rail lost",
                                      "memory gone", "other", "died", "missing"};
static const char *const rows[] = {"range", "pages", "list", "prepared", "message", "atomic", "wait", "fence", "revoke"};
static uint64_t table[KINDS][COLUMNS], accepted[KINDS], usual_ns[KINDS], operations, reads, granted;

static enum column column_of(weft_status status)
{
    static const weft_status known[] = {WEFT_OK, WEFT_ERR_TIMED_OUT, WEFT_ERR_CANCELED, WEFT_ERR_PEER_LOST,
                                        WEFT_ERR_PEER_CLOSED, WEFT_ERR_RAIL_LOST, WEFT_ERR_MEMORY_GONE};
    for (size_t i = 0; i < COUNT(known); i++)
        if (known[i] == status)
            return (enum column)i;
    return OTHER;
}

/* ---- Was an error needless? ---- */

static uint64_t overlap(const struct span *span, uint64_t from, uint64_t to)
{
    uint64_t a = span->from_ns > from ? span->from_ns : from;
    uint64_t b = span->to_ns && span->to_ns < to ? span->to_ns : to;
    return b > a ? b - a : 0;
}

static bool was_alive(int host, uint32_t life, uint64_t until)
{
    const struct life *lived = &book->hosts[host].lives[life];
    return lived->end_ns == 0 || lived->end_ns > until;
}

/* How long one of two hosts was stopped. */
static uint64_t stopped(int a, int b, uint64_t from, uint64_t to)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < book->spans_count; i++) {
        const struct span *span = &book->spans[i];
        if ((span->host == a || span->host == b) && span->rail == -1)
            sum += overlap(span, from, to);
    }
    return sum;
}

/* Whether one of two hosts disconnected, and the other may not have received that yet: a stopped one does not. */
static bool disconnected(int a, int b, uint64_t from, uint64_t to)
{
    for (uint32_t i = 0; i < book->spans_count; i++) {
        const struct span *span = &book->spans[i];
        if ((span->host == a || span->host == b) && span->rail == -2 && span->from_ns <= to &&
            span->from_ns + patiently(1) * SECOND + stopped(a, b, span->from_ns, from) > from)
            return true;
    }
    return false;
}

static bool had_a_rail(int a, int b, uint64_t from, uint64_t to)
{
    bool bad[RAILS] = {false};
    for (uint32_t i = 0; i < book->spans_count; i++) {
        const struct span *span = &book->spans[i];
        if (span->rail >= 0 && (span->host == a || span->host == b) && overlap(span, from, to) > 0)
            bad[span->rail] = true;
    }
    if (book->plan.open_lanes)
        return !(bad[0] || bad[1] || bad[2] || bad[3]);
    return book->plan.world & (THREADS | VIRTUAL) ? book->plan.spared : !(bad[0] && bad[1] && bad[2] && bad[3]);
}

/* Whether memory of one of two hosts was deregistered. */
static bool renewed(int a, int b, uint64_t from, uint64_t to)
{
    for (uint32_t i = 0; i < book->spans_count; i++) {
        const struct span *span = &book->spans[i];
        if ((span->host == a || span->host == b) && span->rail == -3 && span->from_ns <= to && (!span->to_ns || span->to_ns >= from))
            return true;
    }
    return false;
}

static bool is_needless(const struct operation *op, int target)
{
    const struct part *part = &op->part[target];
    uint64_t stop = stopped(op->host, target, op->submit_ns, part->done_ns);
    bool unsure = op->flags & WEFT_COUNT_PAGES || op->counts || op->notify;
    if (part->status == WEFT_OK || (part->status == WEFT_ERR_CANCELED && op->will_cancel))
        return false;
    if (part->status == WEFT_ERR_REVOKED && part->grant)
        return false; /* that is known when it completes */
    if (part->status == WEFT_ERR_RAIL_LOST && unsure)
        return false; /* the completion names it */
    return !disconnected(op->host, target, op->submit_ns, part->done_ns) &&
           !renewed(op->host, target, op->submit_ns, part->done_ns) &&
           op->timeout_ns > stop + 3 * usual_ns[op->kind] && op->ample &&
           was_alive(op->host, op->life, part->done_ns) && was_alive(target, part->life, part->done_ns) &&
           had_a_rail(op->host, target, op->submit_ns - SETTLED, part->done_ns);
}

/* A list with one completion may have failed because of any of its peers. */
static void judge(const struct operation *op, int target)
{
    for (int other = 0; other < HOSTS; other++)
        if (other == target || (op->targets >> other & 1 && !op->each_peer))
            if (!is_needless(op, other))
                return;
    finding(&book->needless, "needless: operation %td (%s, %s), host %d life %u to %d life %u, at %" PRIu64 " ms, ended with %s after %" PRIu64 " ms",
            op - book->operations, rows[op->kind], op->read ? "reads" : "writes", op->host, op->life, target,
            op->part[target].life, (op->submit_ns - book->begin_ns) / MS, weft_status_name(op->part[target].status),
            (op->part[target].done_ns - op->submit_ns) / MS);
}

/* ---- Sums ---- */

static bool died(int host, uint32_t life)
{
    enum end how = book->hosts[host].lives[life].how;
    return how == KILLED || how == CRASHED;
}

static void count_completion(const struct operation *op, int target)
{
    const struct part *part = &op->part[target];
    enum column column = part->done ? column_of(part->status) : died(op->host, op->life) ? DIED : MISSING;
    accepted[op->kind]++;
    table[op->kind][column]++;
    if (column == MISSING) {
        static _Atomic uint64_t count;
        finding(&count, "missing: operation %td (%s, %s), host %d life %u to %d life %u, submitted at %" PRIu64 " ms",
                op - book->operations, rows[op->kind], op->read ? "reads" : "writes", op->host, op->life, target,
                part->life, (op->submit_ns - book->begin_ns) / MS);
    }
    if (part->done)
        judge(op, target);
}

/* Everything reported as arrived was polled at its target, unless that process was killed. */
static void count_arrival(const struct operation *op, int target)
{
    const struct part *part = &op->part[target];
    bool arrives = (op->notify && op->kind < SEND) || op->kind == SEND;
    if (arrives && part->done && part->status == WEFT_OK && part->arrived == 0 && !died(target, part->life))
        finding(&book->lost, "lost: the arrival of operation %td (%s), host %d to %d life %u, done at %" PRIu64 " ms",
                op - book->operations, rows[op->kind], op->host, target, part->life,
                (part->done_ns - book->begin_ns) / MS);
}

static void count_operation(const struct operation *op)
{
    bool counted = false;
    operations++;
    reads += op->read;
    for (int target = 0; target < HOSTS; target++)
        granted += op->kind != REVOKE && op->part[target].grant != 0;
    for (int target = 0; target < HOSTS; target++) {
        if (!(op->targets >> target & 1))
            continue;
        if (!counted || op->each_peer)
            count_completion(op, target);
        counted = true;
        count_arrival(op, target);
    }
}

static int ascending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* The median of the successful ones. */
static void find_usual(enum kind kind)
{
    uint32_t n = 0, count = book_operations();
    uint64_t *times = malloc((count + 1) * sizeof *times);
    CHECK(times != NULL);
    for (uint32_t i = 0; i < count; i++) {
        const struct operation *op = &book->operations[i];
        for (int h = 0; op->accepted && op->kind == kind && h < HOSTS; h++)
            if (op->part[h].done && op->part[h].status == WEFT_OK)
                times[n++] = op->part[h].done_ns - op->submit_ns;
        if (n + HOSTS > count)
            break;
    }
    qsort(times, n, sizeof *times, ascending);
    usual_ns[kind] = n ? times[n / 2] : 0;
    free(times);
}

static uint64_t stall_ms(uint64_t *longest)
{
    uint64_t sum = 0;
    *longest = 0;
    for (int h = 0; h < HOSTS; h++) {
        const struct host *host = &book->hosts[h];
        for (uint32_t i = 0; i < host->stalls_count && i < STALLS_MAX; i++) {
            uint64_t ns = host->stalls[i].to_ns - host->stalls[i].from_ns;
            sum += ns;
            *longest = ns > *longest ? ns : *longest;
        }
    }
    return sum / MS;
}

/* ---- Output ---- */

static void print_table(void)
{
    printf("%-8s %9s", "", "accepted");
    for (int c = 0; c < COLUMNS; c++)
        printf(" %11s", columns[c]);
    printf(" %9s\n", "usual ms");
    for (int k = 0; k < KINDS; k++) {
        printf("%-8s %9" PRIu64, rows[k], accepted[k]);
        for (int c = 0; c < COLUMNS; c++)
            printf(" %11" PRIu64, table[k][c]);
        printf(" %9.1f\n", (double)usual_ns[k] / MS);
    }
}

/* For a seed that is played again: what was submitted, and how it ended. */
static void print_operations(void)
{
    for (uint32_t i = 0; i < book_operations(); i++) {
        const struct operation *op = &book->operations[i];
        printf("%s:%s", text_of(op), op->accepted ? "" : " refused");
        for (int target = 0; op->accepted && target < HOSTS; target++)
            if (op->targets >> target & 1)
                printf(" %s at %" PRIu64 " us, arrived %d", op->part[target].done ? weft_status_name(op->part[target].status) : "open",
                       (op->part[target].done_ns - book->begin_ns) / 1000, op->part[target].arrived);
        printf(", uses %d, raises %u\n", op->uses, op->counts);
    }
}

static uint64_t column_sum(enum column column)
{
    uint64_t sum = 0;
    for (int k = 0; k < KINDS; k++)
        sum += table[k][column];
    return sum;
}

struct figure {
    const char *name;
    uint64_t value;
    bool must_be_0;
};

static void write_json(const char *path, const struct figure *figures, size_t count)
{
    FILE *file = fopen(path, "w");
    CHECK(file != NULL);
    fprintf(file, "{\n  \"seed\": %" PRIu64 ",\n  \"minutes\": %g", book->plan.seed, (double)book->plan.length_ns / 60 / SECOND);
    for (size_t i = 0; i < count; i++)
        fprintf(file, ",\n  \"%s\": %" PRIu64, figures[i].name, figures[i].value);
    fprintf(file, ",\n  \"by_status\": {");
    for (int c = 0; c < COLUMNS; c++)
        fprintf(file, "%s\"%s\": %" PRIu64, c ? ", " : "", columns[c], column_sum((enum column)c));
    fprintf(file, "}\n}\n");
    fclose(file);
}

static void sum_up(void)
{
    uint32_t count = book_operations();
    memset(table, 0, sizeof table);
    memset(accepted, 0, sizeof accepted);
    operations = reads = granted = 0;
    for (int k = 0; k < KINDS; k++)
        find_usual((enum kind)k);
    for (uint32_t i = 0; i < count; i++)
        if (book->operations[i].accepted)
            count_operation(&book->operations[i]);
}

bool report(bool print, const char *json)
{
    uint64_t lives = 0, connects = 0, longest, all = 0;
    bool well = true;
    sum_up();
    for (int k = 0; k < KINDS; k++)
        all += accepted[k];
    for (int h = 0; h < HOSTS; h++) {
        lives += book->hosts[h].lives_count;
        for (uint32_t i = 0; i < book->hosts[h].lives_count; i++)
            connects += book->hosts[h].lives[i].connects;
    }
    uint64_t stalls = stall_ms(&longest), idle = book->plan.length_ns >= 30 * SECOND && operations == 0;
    const struct figure figures[] = {
        {"operations", operations, false},
        {"reads", reads, false},
        {"under_grants", granted, false},
        {"faults", book->faults_count, false},
        {"completions", all - column_sum(DIED) - column_sum(MISSING), false},
        {"died_with_their_process", column_sum(DIED), false},
        {"missing_completions", column_sum(MISSING), true},
        {"stray_completions", book->stray, true},
        {"late", book->late, true},
        {"wrong_bytes", book->wrong, true},
        {"ghost_writes", book->ghosts, true},
        {"revoked_notifications", book->revoked, true},
        {"revoked_counts", book->revoked_counts, true},
        {"lost_notifications", book->lost, true},
        {"doubled_notifications", book->doubled, true},
        {"needless_errors", book->needless, true},
        {"oddities", book->odd, true},
        {"runs_without_operations", idle, true},
        {"slow_calls", book->slow, false},
        {"refused_calls", book->refused, false},
        {"bytes_verified", book->verified, false},
        {"processes", lives, false},
        {"connects", connects, false},
        {"stall_ms", stalls, false}, /* of any thread */
        {"longest_stall_ms", longest / MS, false},
        {"worker_pass_us_worst", book->pass_ns / 1000, false},
        {"clock_jump_us_worst", book->jump_ns / 1000, false},
        {"driver_call_us_worst", book->driver_ns / 1000, false},
    };
    for (size_t i = 0; i < COUNT(figures); i++)
        well &= !figures[i].must_be_0 || figures[i].value == 0;
    if (json)
        write_json(json, figures, COUNT(figures));
    if (!print && well)
        return well;
    printf("\n");
    for (size_t i = 0; i < COUNT(figures) && !well; i++)
        if (figures[i].must_be_0 && figures[i].value)
            printf("failed: %s is %" PRIu64 ", and must be 0\n", figures[i].name, figures[i].value);
    for (uint32_t i = 0; i < book->notes_count && i < NOTES_MAX; i++)
        printf("%s\n", book->notes[i]);
    if (getenv("WEFT_SEED"))
        print_operations();
    print_table();
    for (size_t i = 0; i < COUNT(figures); i++)
        printf("%-26s %" PRIu64 "%s\n", figures[i].name, figures[i].value,
               figures[i].must_be_0 && figures[i].value ? "    <-- must be 0" : "");
    return well;
}
