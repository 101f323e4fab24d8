#include "lab.h"

#include <spawn.h>

extern char **environ;

static const char *host_of(enum side side)
{
    const char *name = getenv(side == LEFT ? "WEFT_LAB_LEFT" : "WEFT_LAB_RIGHT");
    if (!name || !*name)
        skip("no lab: see tools/lab.sh");
    return name;
}

void lab_enter(enum side side)
{
    char path[256];
    snprintf(path, sizeof path, "/var/run/netns/%s", host_of(side));
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || setns(fd, CLONE_NEWNET) != 0)
        FAIL("entering %s: %s", path, strerror(errno));
    close(fd);
}

weft_endpoint *lab_endpoint(void)
{
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    config.fabric = "tcp";
    return open_with(&config);
}

/* iproute2, in the namespace of a host. */
static void ip(enum side side, const char *words)
{
    char line[256], *argv[24] = {"ip", "-n", (char *)host_of(side)}, *rest = line;
    size_t count = 3;
    pid_t pid;
    int status;
    snprintf(line, sizeof line, "%s", words);
    while ((argv[count] = strtok_r(rest, " ", &rest)) != NULL && count + 1 < COUNT(argv))
        count++;
    CHECK_EQ(posix_spawnp(&pid, "ip", NULL, NULL, argv, environ), 0);
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    if (status != 0)
        FAIL("ip -n %s %s: status %d", host_of(side), words, status);
}

static void set_link(int rail, const char *state)
{
    char words[64];
    snprintf(words, sizeof words, "link set rail%d %s", rail, state);
    ip(LEFT, words);
    ip(RIGHT, words);
}

void link_down(int rail)
{
    set_link(rail, "down");
}

void link_up(int rail)
{
    set_link(rail, "up");
}

/* The other host gets frames that are for nobody, and drops them. */
void link_loses(int rail, enum side from)
{
    char words[128];
    snprintf(words, sizeof words, "neigh replace 10.77.%d.%d lladdr 02:00:00:00:00:99 dev rail%d nud permanent",
             rail, from == LEFT ? 2 : 1, rail);
    ip(from, words);
}

void link_heals(int rail, enum side from)
{
    char words[128];
    snprintf(words, sizeof words, "neigh del 10.77.%d.%d dev rail%d", rail, from == LEFT ? 2 : 1, rail);
    ip(from, words);
}
