// weft.hpp in a program without exceptions and type information: what would be thrown is said, and ends the program.
#include <weft.hpp>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <sys/wait.h>
#include <unistd.h>

namespace {

bool failures_end_the_program()
{
    int ends[2];
    if (pipe(ends) != 0)
        return false;
    const pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        weft::check(WEFT_ERR_PEER_LOST);
        _exit(0);
    }
    close(ends[1]);
    char said[256] = "";
    const ssize_t len = read(ends[0], said, sizeof said - 1);
    int status = 0;
    waitpid(child, &status, 0);
    return len > 0 && std::strstr(said, "weft: WEFT_ERR_PEER_LOST") == said && WIFSIGNALED(status) &&
        WTERMSIG(status) == SIGABRT;
}

bool pages_move()
{
    weft::endpoint_config config;
    config.fabric = "host";
    weft::endpoint a{config}, b{config};
    std::vector<char> from(4096, 'x'), to(4096);
    const weft::memory source = a.register_memory(weft::range_of(from)), target = b.register_memory(weft::range_of(to));
    const weft::peer peer = a.connect(b.address());
    const weft::remote_memory remote = a.import_memory(peer, target.descriptor());
    const std::optional<weft::op> id = a.try_write(source, 0, remote, 0, 4096, weft::options().identified(9));
    if (!id)
        return false;
    for (;;) {
        const std::optional<weft::completion> c = a.next(std::chrono::seconds(20));
        if (!c || c->status != WEFT_OK)
            return false;
        if (c->kind == WEFT_COMPLETION_WRITE)
            return weft::id_of(*c) == 9 && to == from;
    }
}

} // namespace

int main(int argc, char **argv)
{
    if (argc == 2 && std::strcmp(argv[1], "--list") == 0) {
        std::puts("failures_end_the_program host\npages_move host");
        return 0;
    }
    if (argc == 2 && std::strcmp(argv[1], "failures_end_the_program") == 0)
        return failures_end_the_program() ? 0 : 1;
    if (argc == 2 && std::strcmp(argv[1], "pages_move") == 0)
        return pages_move() ? 0 : 1;
    return 2;
}
