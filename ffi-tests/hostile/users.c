/* Users that cannot be distinguished share no memory: `host` is for one user and group. */
#include <grp.h>
#include <stddef.h>
#include <sys/un.h>

#include "harness.h"

#define USER 1001

/* Runs in a child that has not called Weft. */
static void beside(void (*what)(const char *), const char *name)
{
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        what(name);
        _exit(0);
    }
    int status = 0;
    CHECK(waitpid(pid, &status, 0) == pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        skip("no user namespace can be made here");
    CHECK_EQ(status, 0);
}

static void opens_nothing(const char *name)
{
    (void)name;
    if (setgroups(0, NULL) != 0 || setgid(USER) != 0 || setuid(USER) != 0 || unshare(CLONE_NEWUSER) != 0)
        _exit(77);
    weft_endpoint_config config = test_config();
    weft_endpoint *endpoint;
    REFUSED(WEFT_ERR_NO_RAILS, weft_endpoint_create(&config, &endpoint));
    CHECK(strstr(weft_last_error(), "uid_map") != NULL);
}

/* In that namespace other users' ids read as its own. */
static void host_requires_a_user_map(void)
{
    if (geteuid() != 0)
        skip("becoming another user takes root");
    beside(opens_nothing, NULL);
}

/* Connects, and waits to be rejected. */
static void is_rejected(const char *name)
{
    if (setgroups(0, NULL) != 0 || setgid(USER) != 0)
        _exit(1);
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    memcpy(to.sun_path + 1, name, strlen(name));
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    char byte;
    CHECK(connect(fd, (struct sockaddr *)&to,
                  (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name))) == 0);
    struct pollfd closed = {fd, POLLIN, 0};
    /* (A connection that sends nothing is closed after 3 seconds.) */
    uint64_t began = judged_from();
    CHECK_EQ(poll(&closed, 1, (int)patience_ms()), 1);
    CHECK(recv(fd, &byte, 1, MSG_DONTWAIT) <= 0);
    CHECK_WITHIN(began, now_ns(), 2 * SECOND);
}

static void user_of_another_group_is_rejected(void)
{
    if (geteuid() != 0)
        skip("becoming another group takes root");
    int words[2];
    CHECK(pipe(words) == 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        char name[108] = {0};
        if (read(words[0], name, sizeof name - 1) <= 0)
            _exit(1);
        is_rejected(name);
        _exit(0);
    }
    struct box *box = box_of(open_endpoint());
    weft_rail_properties rail = {.size = sizeof rail};
    CHECK_OK(weft_rail_info(box->endpoint, 0, &rail, NULL));
    const char *name = strrchr(rail.address, '/') + 1;
    CHECK(write(words[1], name, strlen(name)) == (ssize_t)strlen(name));
    int status = 0;
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK_EQ(status, 0);
    box_close(box);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        {"host_requires_a_user_map", "host", host_requires_a_user_map},
        {"user_of_another_group_is_rejected", "host", user_of_another_group_is_rejected},
        {NULL, NULL, NULL},
    };
    return run_tests(argc, argv, tests);
}
