// Requests that end early, and pages that are reused at once, in C++: docs/pages-back.md.
//
// Four senders, each a process, write one page after another as long as they may. The receiver gives each request a
// grant, and revokes it because its user has hung up, its time has passed, or its sender is silent or dead.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <weft.hpp>

#include "exchange.h"

namespace {

using namespace std::chrono_literals;

enum why { user_hung_up, time_is_over, sender_is_silent, sender_is_dead, cases };

constexpr std::array<const char *, cases> words{"the user hung up", "the time is over", "the sender is silent",
                                                "the sender is dead"};

struct order {
    std::uint64_t request;
    weft_grant_token grant;
};

std::array<char, 1 << 22> pages;

/* * The next completion of a kind, with any status. Earlier ones of other kinds are dropped. */
weft::completion next(const weft::endpoint &endpoint, weft_completion_kind kind)
{
    for (;;)
        if (const auto c = endpoint.next(20s); !c)
            throw std::runtime_error("nothing came");
        else if (c->kind == kind)
            return *c;
}

/* * Writes for a request until its grant is revoked, or the receiver is gone. */
void send_pages(int fd)
{
    std::array<char, 4096> blob;
    pages.fill('x');
    weft::endpoint endpoint;
    const weft::memory local = endpoint.register_memory(weft::range(pages.data(), pages.size()));
    const std::size_t address_len = exchange_get(fd, blob.data(), blob.size());
    const weft::peer peer = endpoint.connect(weft::bytes(blob.data(), address_len));
    const std::size_t descriptor_len = exchange_get(fd, blob.data(), blob.size());
    const weft::remote_memory remote = endpoint.import_memory(peer, weft::bytes(blob.data(), descriptor_len));
    order from_receiver;
    {
        const weft::message message = endpoint.take(next(endpoint, WEFT_COMPLETION_MESSAGE));
        std::memcpy(&from_receiver, message.data(), sizeof from_receiver);
    }
    try {
        for (;;) {
            endpoint.write(local, 0, remote, 0, pages.size(),
                           weft::options().with_notification(from_receiver.request).under(from_receiver.grant));
            weft::check(next(endpoint, WEFT_COMPLETION_WRITE));
        }
    } catch (const weft::error &) {
    }
}

/* * The ways in which a request ends. */
void end(const weft::endpoint &endpoint, pid_t sender, why why)
{
    if (why == sender_is_silent)
        kill(sender, SIGSTOP);
    if (why == sender_is_dead)
        kill(sender, SIGKILL);
    // The grant's own notification, whose status is not OK.
    while ((why == time_is_over || why == sender_is_dead) &&
           next(endpoint, WEFT_COMPLETION_NOTIFICATION).status == WEFT_OK)
        continue;
}

/* * True if nothing arrived late. */
bool take_back(int fd, pid_t sender, why why)
{
    weft::endpoint endpoint;
    weft::memory_args granted;
    granted.access = WEFT_ACCESS_GRANTED; // reached only under a grant
    const weft::memory memory = endpoint.register_memory(weft::range(pages.data(), pages.size()), granted);
    const weft::blob address = endpoint.address(), descriptor = memory.descriptor();
    exchange_put(fd, address.data(), address.size());
    exchange_put(fd, descriptor.data(), descriptor.size());
    const weft::peer peer = next(endpoint, WEFT_COMPLETION_PEER_UP).peer;

    weft::grant_args args; // the whole memory; `pages` would select some
    args.access = WEFT_ACCESS_REMOTE_WRITE;
    args.flags = WEFT_NOTIFY_FAILURE; // notifies if the sender ends, or the grant expires, before the revoke
    args.notify = 7;
    args.timeout_ns = why == time_is_over ? 100000000 : 0;
    const order sent{args.notify, memory.grant(peer, &args)};
    endpoint.send(peer, weft::bytes(&sent, sizeof sent));
    next(endpoint, WEFT_COMPLETION_NOTIFICATION);
    end(endpoint, sender, why);

    endpoint.revoke(sent.grant);
    weft::check(next(endpoint, WEFT_COMPLETION_FENCE));
    pages.fill('y'); // from here on, the pages belong to another request

    bool late = false;
    for (int round = 0; round < 100; round++) {
        const auto received = endpoint.next(1ms);
        late |= received && received->kind == WEFT_COMPLETION_NOTIFICATION;
        late |= std::find(pages.begin(), pages.end(), 'x') != pages.end();
    }
    std::printf("%s: the pages are used again, %s\n", words.at(why),
                late ? "and were written to LATE" : "nothing came later");
    std::fflush(stdout);
    kill(sender, SIGKILL);
    return !late;
}

} // namespace

int main()
try {
    std::array<int, 2> sockets;
    std::array<int, cases> fds;
    std::array<pid_t, cases> senders;
    // Before any endpoint: a forked child cannot use one.
    for (std::size_t i = 0; i < cases; i++) {
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets.data()) != 0 || (senders[i] = fork()) < 0)
            return 1;
        fds[i] = sockets[0];
        if (senders[i] == 0) {
            send_pages(sockets[1]);
            return 0;
        }
    }
    bool good = true;
    for (std::size_t i = 0; i < cases; i++)
        good &= take_back(fds[i], senders[i], static_cast<why>(i));
    while (wait(nullptr) > 0)
        continue;
    return good ? 0 : 1;
} catch (const std::exception &e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
}
