// C++ without exceptions (-fno-exceptions). A peer takes a grant back, and leaves: what the functions of weft.hpp would end the
// program for is a status here, because the functions of weft.h are called with the owners' handles.
#include <cstdio>
#include <vector>

#include <weft.hpp>

namespace {

using namespace std::chrono_literals;

constexpr std::size_t len = 65536;

// The next completion of a kind. What is not needed here is given back or dropped.
weft_status next(const weft::endpoint &ep, weft_completion_kind kind, weft::completion &c)
{
    for (;;) {
        const weft_status n = weft_queue_poll(weft_endpoint_queue(ep.get()), &c, 1, 20000000000U);
        if (n <= 0)
            return n == 0 ? WEFT_ERR_TIMED_OUT : n;
        if (c.kind == kind)
            return c.status;
        if (c.kind == WEFT_COMPLETION_MESSAGE || c.kind == WEFT_COMPLETION_NOTIFICATION)
            weft::check(weft_message_release(ep.get(), c.op)); // a mistake of this program alone
    }
}

int failed(const char *what, weft_status status)
{
    std::fprintf(stderr, "%s: %s: %s\n", what, weft_status_name(status), weft_last_error());
    return 1;
}

// An owner of nothing where that failed: calls with it end with WEFT_ERR_HANDLE.
weft::endpoint open()
{
    weft::endpoint_config config;
    config.fabric = "host"; // between processes, or endpoints, of one host
    weft_endpoint *made = nullptr;
    const weft_status status = weft_endpoint_create(&config, &made);
    if (status != WEFT_OK)
        failed("weft_endpoint_create", status);
    return weft::endpoint(made);
}

weft::memory registered(const weft::endpoint &ep, std::vector<char> &bytes, const weft::memory_args &args = {})
{
    const weft_memory_range range = weft::range_of(bytes);
    weft_memory *made = nullptr;
    const weft_status status = weft_memory_register(ep.get(), &range, 1, &args, &made);
    if (status != WEFT_OK)
        failed("weft_memory_register", status);
    return {ep.get(), made};
}

} // namespace

int main()
{
    std::vector<char> from(len, 'x'), to(len);
    const weft::endpoint ours = open();
    weft::endpoint theirs = open();
    weft::memory_args granted;
    granted.access = WEFT_ACCESS_GRANTED;
    const weft::memory source = registered(ours, from);
    weft::memory target = registered(theirs, to, granted);
    unsigned char address[4096], descriptor[4096];
    std::size_t address_len = 0, descriptor_len = 0;
    weft::peer peer = 0;
    weft_remote_memory *imported = nullptr;
    weft::completion c{};
    weft_status status = weft_endpoint_address(theirs.get(), address, sizeof address, &address_len);
    if (status == WEFT_OK)
        status = weft_memory_export(target.get(), descriptor, sizeof descriptor, &descriptor_len);
    if (status == WEFT_OK)
        status = weft_peer_connect(ours.get(), address, address_len, nullptr, &peer);
    if (status == WEFT_OK)
        status = weft_remote_memory_import(ours.get(), peer, descriptor, descriptor_len, &imported);
    const weft::remote_memory remote(imported);
    if (status == WEFT_OK)
        status = next(theirs, WEFT_COMPLETION_PEER_UP, c);
    if (status != WEFT_OK)
        return failed("to meet", status);

    weft_grant_token token;
    status = weft_grant_create(target.get(), c.peer, nullptr, &token);
    if (status != WEFT_OK)
        return failed("weft_grant_create", status);
    // The status of the call, or else that of the completion: a peer can cause either.
    const auto write = [&] {
        const weft::options how = weft::options().under(token).within(5s);
        const weft_status called = weft_write(ours.get(), source.get(), 0, remote.get(), 0, len, &how, nullptr);
        return called == WEFT_OK ? next(ours, WEFT_COMPLETION_WRITE, c) : called;
    };
    status = write();
    if (status != WEFT_OK || from != to)
        return failed("weft_write", status);

    status = weft_grant_revoke(theirs.get(), &token, nullptr, nullptr);
    if (status != WEFT_OK || (status = next(theirs, WEFT_COMPLETION_FENCE, c)) != WEFT_OK)
        return failed("weft_grant_revoke", status);
    std::printf("refused: %s\n", weft_status_name(write()));

    status = weft_endpoint_shutdown(theirs.get(), 0);
    if (status != WEFT_OK)
        return failed("weft_endpoint_shutdown", status);
    std::printf("left: %s\n", weft_status_name(next(ours, WEFT_COMPLETION_PEER_DOWN, c)));
    return 0;
}
