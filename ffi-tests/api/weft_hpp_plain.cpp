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

weft::completion next(const weft::endpoint &endpoint, weft_completion_kind kind)
{
    weft::completion c{};
    while (weft_queue_poll(weft_endpoint_queue(endpoint.get()), &c, 1, 20000000000U) == 1 && c.kind != kind)
        continue;
    return c;
}

/** What a peer decides about is submitted by the functions of weft.h, with the handles of owners. */
bool refused_writes_are_survived()
{
    weft::endpoint_config config;
    config.fabric = "host";
    weft_endpoint *made = nullptr;
    if (weft_endpoint_create(&config, &made) != WEFT_OK)
        return false;
    const weft::endpoint a(made);
    weft::endpoint b{config};
    std::vector<char> from(4096, 'x'), to(4096);
    weft::memory_args granted;
    granted.access = WEFT_ACCESS_GRANTED;
    const weft_memory_range range = weft::range_of(from);
    const weft::memory_args all;
    weft_memory *registered = nullptr;
    if (weft_memory_register(a.get(), &range, 1, &all, &registered) != WEFT_OK)
        return false;
    const weft::memory source(a.get(), registered), target = b.register_memory(weft::range_of(to), granted);
    const weft::blob address = b.address(), descriptor = target.descriptor();
    weft::peer peer = 0;
    weft_remote_memory *imported = nullptr;
    if (weft_peer_connect(a.get(), "nobody", 6, nullptr, &peer) != WEFT_ERR_FORMAT ||
        weft_peer_connect(a.get(), address.data(), address.size(), nullptr, &peer) != WEFT_OK ||
        weft_remote_memory_import(a.get(), peer, descriptor.data(), descriptor.size(), &imported) != WEFT_OK)
        return false;
    const weft::remote_memory remote(imported);
    const weft_grant_token token = target.grant(next(b, WEFT_COMPLETION_PEER_UP).peer);
    const auto write = [&](std::uint64_t len) {
        const weft_status status =
            weft_write(a.get(), source.get(), 0, remote.get(), 0, len, &weft::options().under(token), nullptr);
        return status == WEFT_OK ? next(a, WEFT_COMPLETION_WRITE).status : status;
    };
    if (write(4097) != WEFT_ERR_RANGE || write(4096) != WEFT_OK || to != from)
        return false;
    b.revoke(token);
    return next(b, WEFT_COMPLETION_FENCE).status == WEFT_OK && write(4096) == WEFT_ERR_REVOKED &&
        write(4096) == WEFT_ERR_REVOKED;
}

} // namespace

int main(int argc, char **argv)
{
    if (argc == 2 && std::strcmp(argv[1], "--list") == 0) {
        std::puts("failures_end_the_program host\npages_move host\nrefused_writes_are_survived host");
        return 0;
    }
    if (argc == 2 && std::strcmp(argv[1], "failures_end_the_program") == 0)
        return failures_end_the_program() ? 0 : 1;
    if (argc == 2 && std::strcmp(argv[1], "pages_move") == 0)
        return pages_move() ? 0 : 1;
    if (argc == 2 && std::strcmp(argv[1], "refused_writes_are_survived") == 0)
        return refused_writes_are_survived() ? 0 : 1;
    return 2;
}
