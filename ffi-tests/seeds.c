/*
 * Random operations under random faults in simulated worlds, one world for each seed, and
 * a ledger of each at its end. WEFT_SEED=N plays one seed (again), WEFT_SEEDS=FIRST:COUNT
 * so many; else seeds from 1 on are played for WEFT_SEED_SECONDS (20).
 */
#include "ledger.h"

struct plan {
    char name[128];
    char faults[4096];
    size_t len;
    int rails;
    bool spared; /* one pair of rails is up throughout */
};

static void add(struct plan *plan, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void add(struct plan *plan, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(plan->faults + plan->len, sizeof plan->faults - plan->len, format, args);
    va_end(args);
    CHECK(n > 0 && plan->len + (size_t)n < sizeof plan->faults);
    plan->len += (size_t)n;
}

static uint32_t below(uint64_t *random, uint32_t limit)
{
    return (uint32_t)(next_random(random) >> 16) % limit;
}

/* When the peers are up: a time to 2.5 s, mostly early, in us. */
static uint32_t when(uint64_t *random)
{
    return 60000 + (below(random, 3) ? below(random, 300000) : below(random, 2500000));
}

/* A fault of one rail: of both sides, or of one, whose ports come one after the other. */
static void strike(struct plan *plan, uint64_t *random, int rail)
{
    static const char *const ways[] = {"", "", ":tx", ":rx"};
    char who[16];
    snprintf(who, sizeof who, "rail%d", rail);
    if (below(random, 2))
        snprintf(who, sizeof who, "port%d", rail + (below(random, 2) ? plan->rails : 0));
    const char *way = ways[below(random, COUNT(ways))];
    uint32_t at = when(random);
    switch (below(random, 8)) {
    case 0: /* it flaps */
        for (int i = 2 + (int)below(random, 6); i > 0; i--) {
            add(plan, "%u %s down%s; ", at, who, way);
            at += 500 + below(random, 300000);
            add(plan, "%u %s up; ", at, who);
            at += 500 + below(random, 300000);
        }
        break;
    case 1:
        add(plan, "%u %s error=%u; ", at, who, 1 + below(random, 4));
        break;
    case 2:
        add(plan, "%u %s slow=0.%02u; ", at, who, 2 + below(random, 90));
        break;
    case 3:
        add(plan, "%u %s again=%u; ", at, who, 1 + below(random, 200000));
        break;
    case 4:
        if (below(random, 4) == 0) {
            add(plan, "%u port%d kill; ", at, rail + (below(random, 2) ? plan->rails : 0));
            break;
        }
        /* fall through */
    default:
        add(plan, "%u %s down%s; ", at, who, way);
        if (below(random, 4))
            add(plan, "%u %s up; ", at + 500 + below(random, 1500000), who);
    }
}

static struct plan plan_of(uint64_t seed)
{
    struct plan plan = {.len = 0};
    uint64_t random = mix(seed);
    plan.rails = 2 + (int)below(&random, 3);
    plan.spared = below(&random, 5) != 0;
    uint32_t gbps[] = {1, 10, 100}, delay_us[] = {0, 5, 50, 500};
    snprintf(plan.name, sizeof plan.name,
             "sim:like=%s:rails=%d:gbps=%u:delay_us=%u:clock=virtual:seed=%" PRIu64 ":world=s%" PRIu64,
             below(&random, 2) ? "tcp" : "verbs", plan.rails, gbps[below(&random, COUNT(gbps))],
             delay_us[below(&random, COUNT(delay_us))], seed, seed);
    int spared = (int)below(&random, (uint32_t)plan.rails);
    for (int i = 1 + (int)below(&random, 6); i > 0; i--) {
        int rail = (int)below(&random, (uint32_t)plan.rails);
        if (!plan.spared || rail != spared)
            strike(&plan, &random, rail);
    }
    if (!plan.spared && below(&random, 2)) /* an endpoint dies */
        for (int rail = 0, at = (int)when(&random); rail < plan.rails; rail++)
            add(&plan, "%d port%d kill; ", at, rail + plan.rails);
    add(&plan, "3500000 * up");
    return plan;
}

static void play(uint64_t seed)
{
    struct plan plan = plan_of(seed);
    struct ledger *ledger = ledger_open(plan.name, plan.faults, seed);
    int most = 1 + (int)draw(ledger, SLOTS - 1);
    uint64_t length = (300 + draw(ledger, 2000)) * MS, next = 0;
    while (elapsed(ledger) < length && ledger->count < 600) {
        if (elapsed(ledger) >= next && (int)ledger->open < most) {
            int side = (int)draw(ledger, 2);
            switch (draw(ledger, 6)) {
            case 0:
                send_message(ledger, side, 20 * SECOND);
                break;
            case 1:
                add_one(ledger, side, 20 * SECOND);
                break;
            default:
                submit(ledger, any_operation(ledger, side));
            }
            if (draw(ledger, 4) == 0)
                next = elapsed(ledger) + draw(ledger, 20000) * 1000;
        }
        turn(ledger, 100 * 1000);
    }
    settle(ledger, 4 * SECOND);
    if (plan.spared && (ledger->errors > 0 || ledger->side[0].down || ledger->side[1].down))
        LEDGER_FAIL(ledger, "%" PRIu64 " needless errors, the last: %s", ledger->errors,
                    weft_status_name(ledger->last_error));
    ledger_close(ledger);
}

static uint64_t number_of(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : otherwise;
}

static void random_faults_lose_nothing(void)
{
    const char *range = getenv("WEFT_SEEDS");
    const char *count = range ? strchr(range, ':') : NULL;
    uint64_t first = number_of("WEFT_SEED", number_of("WEFT_SEEDS", 1));
    uint64_t last = count ? first + strtoull(count + 1, NULL, 10) - 1 : UINT64_MAX;
    uint64_t until = now_ns() + number_of("WEFT_SEED_SECONDS", 20) * SECOND, passed = 0;
    if (getenv("WEFT_SEED"))
        last = first;
    CHECK_OK(weft_log_set(getenv("WEFT_SEED") ? WEFT_LOG_DEFAULT : WEFT_LOG_ERROR, NULL, NULL));
    for (uint64_t seed = first; seed <= last && (last != UINT64_MAX || now_ns() < until); seed++) {
        fprintf(stderr, "WEFT_SEED=%" PRIu64 "\r", seed);
        play(seed);
        passed++;
    }
    printf("sim_seeds_passed %" PRIu64 "\n", passed);
}

static const struct test tests[] = {
    {"random_faults_lose_nothing", "once", random_faults_lose_nothing},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
