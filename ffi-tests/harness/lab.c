#include "lab.h"

#include <spawn.h>
#include <sys/mount.h>

extern char **environ;

static const char *host_of(enum side side)
{
    static const char *const names[] = {"WEFT_LAB_LEFT", "WEFT_LAB_RIGHT", "WEFT_LAB_THIRD"};
    const char *name = getenv(names[side]);
    if (!name || !*name)
        skip("no lab: see tools/lab.sh");
    return name;
}

/* Where hosts are no namespaces, they have rails of their own, and this program moves those: tools/test-verbs.sh. */
static char *mover(void) { return getenv("WEFT_LAB_LINKS"); }

void lab_enter(enum side side)
{
    char path[256];
    if (mover()) {
        CHECK(setenv("WEFT_RAILS", host_of(side), 1) == 0);
        return;
    }
    snprintf(path, sizeof path, "/var/run/netns/%s", host_of(side));
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || setns(fd, CLONE_NEWNET) != 0)
        FAIL("entering %s: %s", path, strerror(errno));
    close(fd);
    /* /sys/class/net shows the namespace in which /sys was mounted. */
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) != 0 ||
        umount2("/sys", MNT_DETACH) != 0 || mount("sysfs", "/sys", "sysfs", 0, NULL) != 0)
        FAIL("%s sees the NICs of another host: %s", path, strerror(errno));
}

weft_endpoint *lab_endpoint(void)
{
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    config.fabric = "tcp";
    return open_with(&config);
}

static void run(char **argv)
{
    pid_t pid;
    int status;
    CHECK_EQ(posix_spawnp(&pid, argv[0], NULL, NULL, argv, environ), 0);
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    if (status != 0)
        FAIL("%s %s %s %s: status %d", argv[0], argv[1], argv[2], argv[3], status);
}

/* Runs a program of iproute2, in the namespace of a host. */
static void run_in(enum side side, const char *program, const char *words)
{
    char line[256], *argv[24] = {(char *)program, "-n", (char *)host_of(side)}, *rest = line;
    size_t count = 3;
    snprintf(line, sizeof line, "%s", words);
    while ((argv[count] = strtok_r(rest, " ", &rest)) != NULL && count + 1 < COUNT(argv))
        count++;
    run(argv);
}

void rail_is(int rail, enum side whose, bool up)
{
    char words[64], host[] = {(char)('0' + whose), 0}, number[] = {(char)('0' + rail), 0};
    if (mover()) {
        /* Hosts that connect without end would hold back what ends their fault. */
        run((char *[]){"nice", "-n", "-10", mover(), "--link", host, number, up ? "up" : "down", NULL});
        return;
    }
    snprintf(words, sizeof words, "link set rail%d %s", rail, up ? "up" : "down");
    run_in(whose, "ip", words);
}

void rail_rate(int rail, enum side whose, const char *rate)
{
    char words[128];
    snprintf(words, sizeof words, "qdisc replace dev rail%d root tbf rate %s burst 256k latency 20ms", rail, rate);
    run_in(whose, "tc", words);
}

void rail_carries(int rail, enum side whose, int bytes)
{
    char words[128];
    snprintf(words, sizeof words, "qdisc replace dev rail%d root tbf rate 1gbit burst %d limit 1mb", rail, bytes);
    run_in(whose, "tc", words);
}

void link_down(int rail)
{
    rail_is(rail, LEFT, false);
    rail_is(rail, RIGHT, false);
}

void link_up(int rail)
{
    rail_is(rail, LEFT, true);
    rail_is(rail, RIGHT, true);
}

/* The hosts that a host sends to over a rail. */
static void neighbours(int rail, enum side from, const char *verb, const char *rest)
{
    char words[128];
    for (int to = LEFT; to <= (getenv("WEFT_LAB_THIRD") ? THIRD : RIGHT); to++) {
        if (to == (int)from)
            continue;
        snprintf(words, sizeof words, "neigh %s 10.77.%d.%d dev rail%d%s", verb, rail, to + 1, rail, rest);
        run_in(from, "ip", words);
    }
}

/* The others receive frames for an address that no host has, and drop them. */
void link_loses(int rail, enum side from)
{
    neighbours(rail, from, "replace", " lladdr 02:00:00:00:00:99 nud permanent");
}

void link_heals(int rail, enum side from)
{
    neighbours(rail, from, "del", "");
}
