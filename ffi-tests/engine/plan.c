/* The parameters of a seed: the world, its settings, and the faults of a simulated one. */
#include "engine.h"

static void add(struct plan *plan, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void add(struct plan *plan, const char *format, ...)
{
    size_t len = strlen(plan->sim_faults);
    va_list args;
    va_start(args, format);
    int n = vsnprintf(plan->sim_faults + len, sizeof plan->sim_faults - len, format, args);
    va_end(args);
    CHECK(n > 0 && len + (size_t)n < sizeof plan->sim_faults);
}

/* ---- Faults of simulated rails ---- */

/* After the peers are up: a time up to 2.5 s, mostly early, in us. */
static uint32_t when(uint64_t *random)
{
    return 60000 + (below(random, 3) ? below(random, 300000) : below(random, 2500000));
}

/* A fault of one rail: on both sides, or on one; their ports are consecutive. */
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

static void plan_faults(struct plan *plan, uint64_t *random)
{
    plan->spared = below(random, 5) != 0;
    int spared = (int)below(random, (uint32_t)plan->rails);
    for (int i = 1 + (int)below(random, 6); i > 0; i--) {
        int rail = (int)below(random, (uint32_t)plan->rails);
        if (!plan->spared || rail != spared)
            strike(plan, random, rail);
    }
    if (!plan->spared && below(random, 2)) /* an endpoint dies */
        for (int rail = 0, at = (int)when(random); rail < plan->rails; rail++)
            add(plan, "%d port%d kill; ", at, rail + plan->rails);
    add(plan, "3500000 * up");
}

/* ---- Worlds ---- */

/* Two hosts in one thread, simulated rails, virtual time. Modes whose lanes can be reset usually have faults. */
static void plan_virtual(struct plan *plan, const char *fabric, uint64_t *random)
{
    static const uint32_t gbps[] = {1, 10, 100}, delay_us[] = {0, 5, 50, 500};
    static const char *const modes[] = {"sim:like=tcp", "sim:like=verbs", "sim:like=tcp", "sim:like=verbs", "sim:like=efa",
                                        "sim:like=efa-direct"};
    if (!fabric)
        fabric = modes[below(random, COUNT(modes))];
    bool can_fail = !strstr(fabric, "efa");
    plan->rails = can_fail ? 2 + (int)below(random, 3) : below(random, 2) ? 4 : 1;
    snprintf(plan->fabric, sizeof plan->fabric,
             "%s:rails=%d:gbps=%u:delay_us=%u:clock=virtual:seed=%" PRIu64 ":world=s%" PRIu64, fabric, plan->rails,
             gbps[below(random, COUNT(gbps))], delay_us[below(random, COUNT(delay_us))], plan->seed, plan->seed);
    plan->manual = plan->spared = true;
    if (can_fail && below(random, 6))
        plan_faults(plan, random);
    plan->length_ns = (300 + below(random, 2000)) * MS;
    plan->rate = 100 << below(random, 6);
    plan->rest_ms = 20;
    plan->fault_ms = below(random, 3) ? 0 : 600;
}

/* Two hosts in one thread over any fabric; driven by Weft's own threads, or by polling. */
static void plan_threads(struct plan *plan, const char *fabric, uint64_t *random)
{
    static uint32_t worlds;
    bool is_sim = strncmp(fabric, "sim", 3) == 0;
    plan->rails = is_sim && below(random, 2) ? 4 : 1;
    snprintf(plan->fabric, sizeof plan->fabric, "%s", fabric);
    if (is_sim) /* Both sides of a simulated world share one world, which no other case may use. */
        snprintf(plan->fabric, sizeof plan->fabric, "%s:rails=%d:world=c%u", fabric, plan->rails, worlds++);
    plan->nics = strcmp(fabric, "tcp") == 0 ? "lo" : NULL;
    plan->manual = below(random, 3) == 0;
    plan->spared = true;
    plan->length_ns = patiently(150) * MS;
    plan->rate = 500 << below(random, 5);
    plan->rest_ms = 3;
    plan->fault_ms = below(random, 2) ? 0 : 60;
}

/* Three processes: on one machine, or each in a network namespace with rails whose links fail. */
static void plan_processes(struct plan *plan, const char *fabric)
{
    bool lab = plan->world == NAMESPACES;
    plan->hosts = HOSTS;
    plan->rails = lab ? RAILS : 1;
    snprintf(plan->fabric, sizeof plan->fabric, "%s", fabric);
    plan->nics = strcmp(fabric, "tcp") != 0 ? NULL : lab ? "rail*" : "lo";
    plan->layer = 64 * KIB;
    plan->slots = SLOTS_MAX;
    plan->most = UINT32_MAX;
    plan->operations = OPERATIONS_MAX;
    plan->rate = 1 + (uint32_t)(69 / patiently(1));
    plan->rest_ms = 200;
    plan->fault_ms = lab ? 1500 : 700;
    plan->length_ns = 10 * SECOND;
    plan->abrupt = false;
    if (patiently(1) > 1) /* a dozen threads that spin leave no time to others on a slow machine */
        plan->idle = WEFT_IDLE_SLEEP;
}

struct plan plan_of(enum world world, const char *fabric, uint64_t seed)
{
    struct plan plan = {.seed = seed, .world = world, .hosts = 2};
    uint64_t random = mix(seed);
    plan.layer = 4 * KIB << below(&random, 2);
    plan.slots = 16;
    plan.most = 1 + below(&random, 2 * plan.slots);
    plan.operations = 1 + below(&random, below(&random, 2) ? 600 : 40);
    plan.idle = below(&random, 3);
    plan.workers = below(&random, 2);
    plan.abrupt = below(&random, 2) == 0;
    if (world == VIRTUAL)
        plan_virtual(&plan, fabric, &random);
    else if (world == THREADS)
        plan_threads(&plan, fabric, &random);
    else
        plan_processes(&plan, fabric);
    plan.open_lanes = (world & (PROCESSES | NAMESPACES)) && strncmp(plan.fabric, "efa", 3) == 0;
    /* Without grants, what a lost peer's NIC had posted may land there (docs/pages-back.md). */
    plan.granted = below(&random, 3) == 0 || plan.open_lanes;
    if (world != VIRTUAL && below(&random, 2)) /* the clock of disks is not virtual */
        plan.files = 1 + below(&random, (1u << plan.hosts) - 1);
    return plan;
}
