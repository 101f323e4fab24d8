/*
 * Faults of links and hosts, as a seed plans them; and the hosts' processes. A kind of fault is a row of `kinds`: its
 * worlds, its frequency, how it begins, and how it ends.
 */
#include "engine.h"

#include <sys/prctl.h>

struct kind_of_fault {
    const char *name;
    unsigned worlds; /* in which it is played */
    uint32_t weight; /* of all that are played there */
    bool of_rail;    /* of one link of a host; else of the host */
    void (*begin)(int host, int rail, uint32_t ms);
    void (*end)(int host, int rail);
    bool short_one; /* less than a second */
};

/* What is faulty, and until when. */
static struct trouble {
    const struct kind_of_fault *fault; /* NULL: all is well */
    bool down;
    uint64_t until_ns, next_ns;
    struct span *span;
} rails[HOSTS][RAILS], hosts[HOSTS];

static pid_t pids[HOSTS];
static uint64_t next_ns, fault_random;

/* Processes that attack a host, in addition to other faults: drawn separately, so that they do not change a seed's
 * other faults. */
static struct {
    pid_t pid;
    uint64_t until_ns;
} attacks[HOSTS];
static uint64_t next_attack_ns, attack_random;

/* ---- Lives, and processes ---- */

static struct life *life_of(int host)
{
    return &book->hosts[host].lives[book->hosts[host].lives_count - 1];
}

void life_begins(int host)
{
    struct host *one = &book->hosts[host];
    CHECK(one->lives_count < LIVES_MAX);
    one->lives[one->lives_count].begin_ns = world_ns();
    one->leave = false;
    one->disconnect_from = one->renew_for = 0;
    one->card |= 1; /* the old address is invalid */
    one->beat_ns = now_ns();
    one->lives_count++;
}

/* When that life ends: now, or since it was asked to end. */
void life_ends(int host, enum end how)
{
    struct life *life = life_of(host);
    if (life->end_ns == 0)
        life->end_ns = world_ns();
    life->how = how;
}

static void process_lives(int host, uint32_t life)
{
    static struct self party;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGPIPE, SIG_IGN);
    if (book->plan.world == NAMESPACES)
        lab_enter((enum side)host);
    log_lines();
    self = &party;
    self->me = host;
    stalls_watch();
    host_begin(&party, host, life);
    while (!host_wants_to_leave())
        host_step(MS);
    if (book->over)
        host_check();
    host_leave();
    fflush(NULL);
    _exit(0);
}

static void process_begins(int host)
{
    life_begins(host);
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0)
        process_lives(host, book->hosts[host].lives_count - 1);
    pids[host] = pid;
}

void hosts_begin(void)
{
    for (int host = 0; host < book->plan.hosts; host++)
        process_begins(host);
}

static void process_ended(int host, int status)
{
    bool well = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (!well)
        finding(&book->odd, "host %d, life %u, ended with status %#x", host, book->hosts[host].lives_count - 1, (unsigned)status);
    life_ends(host, well ? LEFT_WELL : CRASHED);
    pids[host] = 0;
    if (!book->over && well)
        process_begins(host);
}

bool hosts_watch(void)
{
    bool any = false;
    for (int host = 0; host < book->plan.hosts; host++) {
        int status;
        if (pids[host] && waitpid(pids[host], &status, WNOHANG) == pids[host])
            process_ended(host, status);
        any |= pids[host] != 0;
    }
    return !any;
}

/* ---- Faults of links ---- */

static void end_span(struct span **span)
{
    if (*span)
        (*span)->to_ns = world_ns();
    *span = NULL;
}

static void move_link(int host, int rail, bool up)
{
    struct trouble *one = &rails[host][rail];
    if (!up && !one->span)
        one->span = span_begin(host, rail);
    rail_is(rail, (enum side)host, up);
    one->down = !up;
    if (up)
        end_span(&one->span);
}

static void link_fails(int host, int rail, uint32_t ms)
{
    move_link(host, rail, false);
    rails[host][rail].next_ns = world_ns() + (50 + ms % 300) * MS;
}

static void link_works(int host, int rail) { move_link(host, rail, true); }

static void lose(int host, int rail, uint32_t ms)
{
    (void)ms;
    rails[host][rail].span = span_begin(host, rail);
    link_loses(rail, (enum side)host);
}

static void lose_no_more(int host, int rail) { link_heals(rail, (enum side)host); }

static void slow(int host, int rail, uint32_t ms) { rail_rate(rail, (enum side)host, ms % 2 ? "10mbit" : "400mbit"); }

static void usual_rate(int host, int rail) { rail_rate(rail, (enum side)host, "100mbit"); }

static void move_all(int host, bool up)
{
    for (int rail = 0; rail < RAILS; rail++)
        if (!rails[host][rail].fault)
            move_link(host, rail, up);
}

static void cut(int host, int rail, uint32_t ms)
{
    (void)rail, (void)ms;
    move_all(host, false);
}

static void uncut(int host, int rail)
{
    (void)rail;
    move_all(host, true);
}

/* ---- Faults of hosts ---- */

static void kill_it(int host, int rail, uint32_t ms)
{
    (void)rail, (void)ms;
    life_of(host)->end_ns = world_ns();
    kill(pids[host], SIGKILL);
    waitpid(pids[host], NULL, 0);
    life_ends(host, KILLED);
    pids[host] = 0;
}

static void revive(int host, int rail)
{
    (void)rail;
    process_begins(host);
}

static void stop_it(int host, int rail, uint32_t ms)
{
    (void)rail, (void)ms;
    hosts[host].span = span_begin(host, -1);
    kill(pids[host], SIGSTOP);
}

static void go_on(int host, int rail)
{
    (void)rail;
    kill(pids[host], SIGCONT);
}

static void restart(int host, int rail, uint32_t ms)
{
    (void)rail, (void)ms;
    life_of(host)->end_ns = world_ns();
    book->hosts[host].leave = true;
}

static int other_than(int host, int drawn)
{
    return (host + 1 + drawn % (book->plan.hosts - 1)) % book->plan.hosts;
}

static void disconnect(int host, int rail, uint32_t ms)
{
    (void)ms;
    book->hosts[host].disconnect_from = 1 + other_than(host, rail);
}

static void renew_memory(int host, int rail, uint32_t ms)
{
    (void)ms;
    book->hosts[host].renew_for = 1 + other_than(host, rail);
}

static const struct kind_of_fault kinds[] = {
    {"down", NAMESPACES, 6, true, link_fails, link_works, false},
    {"flap", NAMESPACES, 2, true, link_fails, link_works, false},
    {"loses", NAMESPACES, 3, true, lose, lose_no_more, false},
    {"slow", NAMESPACES, 3, true, slow, usual_rate, false},
    {"cut", NAMESPACES, 1, false, cut, uncut, false},
    {"kill", PROCESSES | NAMESPACES, 2, false, kill_it, revive, true},
    {"stop", PROCESSES | NAMESPACES, 2, false, stop_it, go_on, false},
    {"restart", THREADS | VIRTUAL | PROCESSES | NAMESPACES, 1, false, restart, NULL, true},
    {"disconnect", THREADS | VIRTUAL | PROCESSES | NAMESPACES, 1, false, disconnect, NULL, false},
    {"renew", THREADS | VIRTUAL, 3, false, renew_memory, NULL, false}, /* needs both hosts in one thread */
};

/* ---- When ---- */

struct blow {
    const struct kind_of_fault *fault;
    int host, rail;
    uint32_t ms;
    uint64_t pause_ns; /* to the next */
};

static struct blow draw_blow(uint64_t *random)
{
    struct blow blow = {.fault = NULL};
    uint32_t all = 0, kind;
    for (size_t i = 0; i < COUNT(kinds); i++)
        all += kinds[i].worlds & book->plan.world ? kinds[i].weight : 0;
    kind = (uint32_t)((next_random(random) >> 16) % all);
    for (size_t i = 0; !blow.fault; i++) {
        uint32_t weight = kinds[i].worlds & book->plan.world ? kinds[i].weight : 0;
        if (kind < weight)
            blow.fault = &kinds[i];
        kind -= weight;
    }
    blow.host = (int)((next_random(random) >> 16) % (uint32_t)book->plan.hosts);
    blow.rail = (int)((next_random(random) >> 16) % RAILS);
    blow.ms = 50 + below(random, 4000);
    blow.pause_ns = (next_random(random) >> 16) % (2 * book->plan.fault_ms) * MS;
    if (blow.fault->short_one)
        blow.ms %= 1000;
    return blow;
}

static void is_well(struct trouble *one, int host, int rail)
{
    const struct kind_of_fault *fault = one->fault;
    one->fault = NULL;
    if (fault->end)
        fault->end(host, rail);
    end_span(&one->span);
}

static bool strike(const struct blow *blow)
{
    bool of_rail = blow->fault->of_rail, processes = book->plan.world & (PROCESSES | NAMESPACES);
    struct trouble *host = &hosts[blow->host], *one = of_rail ? &rails[blow->host][blow->rail] : host;
    if (one->fault || (of_rail ? host->fault && host->fault->begin == cut : book->hosts[blow->host].leave || (processes && !pids[blow->host])))
        return false;
    if (processes && of_rail)
        fprintf(stderr, "%6" PRIu64 " ms: %s of host %d, rail %d for %u ms\n", book_ms(), blow->fault->name, blow->host, blow->rail, blow->ms);
    else if (processes)
        fprintf(stderr, "%6" PRIu64 " ms: %s of host %d for %u ms\n", book_ms(), blow->fault->name, blow->host, blow->ms);
    *one = (struct trouble){.fault = blow->fault, .until_ns = world_ns() + blow->ms * MS};
    blow->fault->begin(blow->host, blow->rail, blow->ms);
    if (!processes) /* It ends as soon as the host has received it. */
        one->fault = NULL;
    book->faults_count++;
    return true;
}

static void heal(uint64_t now)
{
    for (int host = 0; host < book->plan.hosts; host++) {
        if (hosts[host].fault && now >= hosts[host].until_ns)
            is_well(&hosts[host], host, 0);
        for (int rail = 0; rail < RAILS; rail++) {
            struct trouble *one = &rails[host][rail];
            if (one->fault && now >= one->until_ns)
                is_well(one, host, rail);
            else if (one->fault && strcmp(one->fault->name, "flap") == 0 && now >= one->next_ns) {
                one->next_ns = now + 200 * MS;
                move_link(host, rail, one->down);
            }
        }
    }
}

/* ---- Attackers ---- */

static void attack_ends(int host)
{
    if (attacks[host].pid) {
        kill(attacks[host].pid, SIGKILL);
        waitpid(attacks[host].pid, NULL, 0);
        attacks[host].pid = 0;
    }
}

static void attacks_step(uint64_t now, const char *only)
{
    if (next_attack_ns == 0) {
        attack_random = mix(book->plan.seed ^ 0x57ea);
        next_attack_ns = now + SECOND;
    }
    for (int host = 0; host < book->plan.hosts; host++)
        if (attacks[host].pid && now >= attacks[host].until_ns)
            attack_ends(host);
    if (now < next_attack_ns || book->quiet || (only && !strstr(only, "attackers")))
        return;
    int host = (int)below(&attack_random, (uint32_t)book->plan.hosts);
    uint32_t ms = 500 + below(&attack_random, 4000);
    next_attack_ns = now + (ms + below(&attack_random, 4000)) * MS;
    if (attacks[host].pid)
        return;
    fprintf(stderr, "%6" PRIu64 " ms: attackers of host %d for %u ms\n", book_ms(), host, ms);
    attacks[host].pid = attackers_begin(host, next_random(&attack_random));
    attacks[host].until_ns = now + ms * MS;
    book->faults_count++;
}

void faults_step(void)
{
    const char *only = getenv("WEFT_CHAOS_ONLY"), *pace = getenv("WEFT_CHAOS_PACE");
    uint64_t now = world_ns(), times = pace ? strtoul(pace, NULL, 10) : 1;
    heal(now);
    if (book->plan.world & (PROCESSES | NAMESPACES))
        attacks_step(now, only);
    if (next_ns == 0 || next_ns < book->begin_ns) { /* of this run */
        fault_random = mix(book->plan.seed);
        next_ns = now + (book->plan.world & (PROCESSES | NAMESPACES) ? 2 * SECOND : below(&fault_random, 2 * book->plan.fault_ms) * MS);
    }
    if (now < next_ns || book->quiet)
        return;
    struct blow blow = draw_blow(&fault_random);
    bool struck = (!only || strstr(only, blow.fault->name)) && strike(&blow);
    next_ns = struck || !(book->plan.world & (PROCESSES | NAMESPACES)) ? now + blow.pause_ns * times : now;
}

void faults_end(void)
{
    for (int host = 0; host < book->plan.hosts; host++) {
        attack_ends(host);
        if (hosts[host].fault)
            is_well(&hosts[host], host, 0);
        for (int rail = 0; rail < RAILS; rail++)
            if (rails[host][rail].fault)
                is_well(&rails[host][rail], host, rail);
    }
    next_ns = next_attack_ns = 0;
}
