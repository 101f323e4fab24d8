// Coroutines that await operations (C++20), in one thread: a loop that sleeps on event fds, operations that are canceled or
// late, and the end, at which coroutines still wait.
#include <algorithm>
#include <array>
#include <coroutine>
#include <cstdio>
#include <exception>
#include <vector>

#include <poll.h>
#include <weft.hpp>

namespace {

using namespace std::chrono_literals;

constexpr std::size_t pages = 16, page_len = 65536, patient = 100;

// A coroutine that begins at once, and frees itself when it ends.
struct task {
    struct promise_type {
        task get_return_object() noexcept { return {}; }
        std::suspend_never initial_suspend() noexcept { return {}; }
        std::suspend_never final_suspend() noexcept { return {}; }
        void return_void() noexcept {}
        void unhandled_exception() noexcept { std::terminate(); }
    };
};

// What the coroutines share. The endpoint comes first, so it is destroyed last.
struct engine {
    explicit engine(const weft_endpoint_config &config) : ep(config) {}

    weft::endpoint ep;
    weft::awaiter done{ep};
    weft::counter never = ep.create_counter(); // which nobody raises
    std::vector<char> bytes = std::vector<char>(pages * page_len);
    weft::memory local = ep.register_memory(weft::range_of(bytes));
    weft::remote_memory remote;
    std::size_t read = 0, canceled = 0, late = 0, refused = 0; // coroutines that ended so

    weft::op expect(const weft::options &how)
    {
        const weft_counter id = never.id();
        const std::uint64_t once = 1;
        return ep.expect({&id, 1}, {&once, 1}, how);
    }
};

task read_page(engine &e, std::size_t page)
{
    const std::uint64_t at = page * page_len;
    const weft::completion c = co_await e.done(
        [&](const weft::options &how) { return e.ep.read(e.local, at, e.remote, at, page_len, how); },
        weft::options().within(10s));
    weft::check(c);
    e.read++;
}

// Waits until `id` is canceled or the time is over. This thread also dispatches, so the lambda may keep the id.
task wait_for_counter(engine &e, weft::deadline by, weft::op &id)
{
    const weft::completion c = co_await e.done(
        [&](const weft::options &how) { return id = e.expect(how); }, weft::options().within(by));
    e.canceled += c.status == WEFT_ERR_CANCELED;
    e.late += c.status == WEFT_ERR_TIMED_OUT;
}

// Works until the end, which refuses its next operation.
task wait_again_and_again(engine &e)
{
    try {
        for (;;)
            co_await e.done([&](const weft::options &how) { return e.expect(how); }, weft::options().within(1h));
    } catch (const weft::error &error) {
        e.refused += error.status() == WEFT_ERR_CLOSED;
    }
}

// Resumes the coroutines whose operations have ended. False: the endpoint is shut down, and none waits.
bool go_on(engine &e)
{
    std::vector<std::coroutine_handle<>> ready;
    const bool open = e.done.dispatch([&](std::coroutine_handle<> waits) { ready.push_back(waits); });
    for (const std::coroutine_handle<> waits : ready)
        waits.resume();
    return open;
}

// What nobody awaits comes to the endpoint's own queue: messages, notifications, peers.
void handle_others(engine &e)
{
    std::array<weft::completion, 16> room;
    do {
        for (auto some = e.ep.poll(room); !some.empty(); some = e.ep.poll(room))
            for (const weft::completion &c : some) {
                weft::check(c);
                if (c.kind == WEFT_COMPLETION_MESSAGE || c.kind == WEFT_COMPLETION_NOTIFICATION)
                    static_cast<void>(e.ep.take(c)); // given back at once
            }
    } while (!e.ep.arm());
}

// The program's loop: both are armed when it sleeps.
template <class Enough> void loop(engine &e, Enough enough)
{
    std::array<pollfd, 2> fds{pollfd{e.done.event_fd(), POLLIN, 0}, pollfd{e.ep.event_fd(), POLLIN, 0}};
    for (;;) {
        go_on(e);
        handle_others(e);
        if (enough())
            return;
        poll(fds.data(), fds.size(), -1);
    }
}

} // namespace

int main()
try {
    weft::endpoint_config config;
    config.fabric = "host"; // between processes, or endpoints, of one host
    std::vector<char> stored(pages * page_len, 'x');
    weft::endpoint store(config);
    const weft::memory memory = store.register_memory(weft::range_of(stored));

    engine e(config);
    e.remote = e.ep.import_memory(e.ep.connect(store.address()), memory.descriptor());
    for (std::size_t page = 0; page < pages; page++)
        read_page(e, page);
    loop(e, [&] { return e.read == pages; });
    std::printf("%zu pages are read, %td bytes wrong\n", pages,
                std::count_if(e.bytes.begin(), e.bytes.end(), [](char c) { return c != 'x'; }));

    weft::op hung_up = 0, slow = 0;
    wait_for_counter(e, 1h, hung_up);
    wait_for_counter(e, 50ms, slow);
    e.ep.cancel(hung_up); // false if it has ended already
    loop(e, [&] { return e.canceled + e.late == 2; });
    std::printf("%zu was canceled, %zu was late\n", e.canceled, e.late);

    for (std::size_t i = 0; i < patient; i++)
        wait_again_and_again(e);
    e.ep.shutdown(0s);
    while (go_on(e))
        continue;
    e.ep.drain([](const weft::completion &) {}); // the store's PEER_DOWN
    std::printf("%zu coroutines waited at the end, %zu ended\n", patient, e.refused);
    return e.read == pages && e.canceled == 1 && e.late == 1 && e.refused == patient ? 0 : 1;
} catch (const std::exception &e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
}
