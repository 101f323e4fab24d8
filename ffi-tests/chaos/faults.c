/* What happens to links and hosts, as a seed has it; and the hosts' processes. */
#include "book.h"

#define EVERY_MS 1500 /* a fault, on average */

enum fault { DOWN, FLAP, LOSES, SLOW, CUT, KILL, STOP, RESTART, DISCONNECT };

struct plan {
    uint64_t at_ns;
    enum fault fault;
    int host, rail;
    uint32_t ms;
};

/* What is not as it should be, and until when. */
static struct trouble {
    bool on, flaps, down;
    enum fault fault;
    uint64_t until_ns, next_ns;
    struct span *span, *spans[RAILS];
} rails[HOSTS][RAILS], hosts[HOSTS];

static pid_t pids[HOSTS];
static uint32_t played;

static const char *const names[] = {"down", "flap", "loses", "slow", "cut", "kill", "stop", "restart", "disconnect"};

/* ---- Processes ---- */

static void host_begin(int host)
{
    struct host *of = &book->hosts[host];
    uint32_t life = of->lives_count;
    CHECK(life < LIVES_MAX);
    of->lives[life].begin_ns = now_ns();
    of->leave = false;
    of->disconnect_from = 0;
    of->card |= 1; /* the old address holds no more */
    of->beat_ns = now_ns();
    of->lives_count++;
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0)
        host_live(host, life);
    pids[host] = pid;
}

void hosts_begin(void)
{
    for (int host = 0; host < HOSTS; host++)
        host_begin(host);
}

static struct life *life_of(int host)
{
    return &book->hosts[host].lives[book->hosts[host].lives_count - 1];
}

/* When that life is over: now, or since it was told so. */
static void host_ends(int host, enum end how)
{
    struct life *life = life_of(host);
    if (life->end_ns == 0)
        life->end_ns = now_ns();
    life->how = how;
    pids[host] = 0;
}

static void host_ended(int host, int status)
{
    bool well = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (!well)
        finding(&book->odd, "host %d, life %u, ended with status %#x", host, book->hosts[host].lives_count - 1,
                (unsigned)status);
    host_ends(host, well ? LEFT_WELL : CRASHED);
    if (!book->over)
        host_begin(host);
}

bool hosts_watch(void)
{
    bool any = false;
    for (int host = 0; host < HOSTS; host++) {
        int status;
        if (pids[host] && waitpid(pids[host], &status, WNOHANG) == pids[host])
            host_ended(host, status);
        any |= pids[host] != 0;
    }
    return !any;
}

/* ---- Faults ---- */

static void end_span(struct span **span)
{
    if (*span)
        (*span)->to_ns = now_ns();
    *span = NULL;
}

static void move_link(int host, int rail, bool up)
{
    struct trouble *of = &rails[host][rail];
    if (!up && !of->span)
        of->span = span_begin(host, rail);
    rail_is(rail, (enum side)host, up);
    of->down = !up;
    if (up)
        end_span(&of->span);
}

static void cut(int host, bool up)
{
    for (int rail = 0; rail < RAILS; rail++)
        if (!rails[host][rail].on)
            move_link(host, rail, up);
}

static void on_rail(const struct plan *plan, uint64_t now)
{
    struct trouble *of = &rails[plan->host][plan->rail];
    *of = (struct trouble){.on = true, .fault = plan->fault, .until_ns = now + plan->ms * MS};
    if (plan->fault == DOWN || plan->fault == FLAP)
        move_link(plan->host, plan->rail, false);
    of->next_ns = now + (50 + plan->ms % 300) * MS;
    if (plan->fault == LOSES) {
        of->span = span_begin(plan->host, plan->rail);
        link_loses(plan->rail, (enum side)plan->host);
    }
    if (plan->fault == SLOW)
        rail_rate(plan->rail, (enum side)plan->host, plan->ms % 2 ? "10mbit" : "400mbit");
}

static void rail_is_well(int host, int rail)
{
    struct trouble *of = &rails[host][rail];
    of->on = false;
    if (of->fault == SLOW)
        rail_rate(rail, (enum side)host, "100mbit");
    else if (of->fault == LOSES)
        link_heals(rail, (enum side)host);
    else
        move_link(host, rail, true);
    end_span(&of->span);
}

static void on_host(const struct plan *plan, uint64_t now)
{
    struct trouble *of = &hosts[plan->host];
    *of = (struct trouble){.on = true, .fault = plan->fault, .until_ns = now + plan->ms * MS};
    switch (plan->fault) {
    case CUT:
        cut(plan->host, false);
        break;
    case KILL:
        life_of(plan->host)->end_ns = now_ns();
        kill(pids[plan->host], SIGKILL);
        waitpid(pids[plan->host], NULL, 0);
        host_ends(plan->host, KILLED);
        break;
    case STOP:
        of->span = span_begin(plan->host, -1);
        kill(pids[plan->host], SIGSTOP);
        break;
    case RESTART:
        life_of(plan->host)->end_ns = now_ns();
        book->hosts[plan->host].leave = true;
        break;
    default:
        book->hosts[plan->host].disconnect_from = 1 + (plan->host + 1 + plan->rail % (HOSTS - 1)) % HOSTS;
    }
}

static void host_is_well(int host)
{
    struct trouble *of = &hosts[host];
    of->on = false;
    if (of->fault == CUT)
        cut(host, true);
    else if (of->fault == KILL)
        host_begin(host);
    else if (of->fault == STOP)
        kill(pids[host], SIGCONT);
    end_span(&of->span);
}

static bool strike(const struct plan *plan)
{
    uint64_t now = now_ns();
    bool of_rail = plan->fault <= SLOW;
    if (of_rail ? rails[plan->host][plan->rail].on || (hosts[plan->host].on && hosts[plan->host].fault == CUT)
                : hosts[plan->host].on || !pids[plan->host] || book->hosts[plan->host].leave)
        return false;
    fprintf(stderr, "%6" PRIu64 " ms: %s of host %d%s%.0d for %u ms\n", book_ms(), names[plan->fault], plan->host,
            of_rail ? ", rail " : "", of_rail ? plan->rail : 0, plan->ms);
    if (of_rail)
        on_rail(plan, now);
    else
        on_host(plan, now);
    played++;
    return true;
}

static void go_on(uint64_t now)
{
    for (int host = 0; host < HOSTS; host++) {
        if (hosts[host].on && now >= hosts[host].until_ns)
            host_is_well(host);
        for (int rail = 0; rail < RAILS; rail++) {
            struct trouble *of = &rails[host][rail];
            if (of->on && now >= of->until_ns)
                rail_is_well(host, rail);
            else if (of->on && of->fault == FLAP && now >= of->next_ns) {
                of->next_ns = now + 200 * MS;
                move_link(host, rail, of->down);
            }
        }
    }
}

static struct plan draw_plan(uint64_t *random)
{
    static const enum fault kinds[] = {DOWN, DOWN, DOWN, DOWN, DOWN, DOWN, FLAP, FLAP, LOSES, LOSES, LOSES,
                                       SLOW, SLOW, SLOW, CUT, KILL, KILL, STOP, STOP, RESTART, DISCONNECT};
    struct plan plan;
    plan.fault = kinds[(next_random(random) >> 16) % COUNT(kinds)];
    plan.host = (int)((next_random(random) >> 16) % HOSTS);
    plan.rail = (int)((next_random(random) >> 16) % RAILS);
    plan.ms = 50 + (uint32_t)(next_random(random) >> 16) % 4000;
    plan.at_ns = (next_random(random) >> 16) % (2 * EVERY_MS) * MS;
    if (plan.fault == KILL || plan.fault == RESTART)
        plan.ms %= 1000;
    return plan;
}

uint32_t faults_count(void)
{
    return played;
}

void faults_play(uint64_t seed, uint64_t until_ns)
{
    uint64_t random = mix(seed), next = now_ns() + 2 * SECOND;
    const char *only = getenv("WEFT_CHAOS_ONLY");
    while (now_ns() < until_ns) {
        uint64_t now = now_ns();
        go_on(now);
        hosts_watch();
        if (now >= next) {
            struct plan plan = draw_plan(&random);
            next = !only || strstr(only, names[plan.fault]) ? (strike(&plan) ? now + plan.at_ns : now) : now;
        }
        sleep_ms(1);
    }
}

void faults_end(void)
{
    for (int host = 0; host < HOSTS; host++) {
        if (hosts[host].on)
            host_is_well(host);
        for (int rail = 0; rail < RAILS; rail++)
            if (rails[host][rail].on)
                rail_is_well(host, rail);
    }
}
