// weft.hpp in C++20: operations that coroutines await; and grants of pages, ids and the logger, as engines use them.
#include <weft.hpp>

#include "named_tests.hpp"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <poll.h>
#include <ranges>
#include <span>
#include <string_view>
#include <thread>

namespace {

using namespace std::chrono_literals;

[[noreturn]] void fail(const char *what, int line)
{
    throw std::runtime_error("line " + std::to_string(line) + ": failed: " + what);
}
#define CHECK(what) ((what) ? static_cast<void>(0) : fail(#what, __LINE__))

weft::endpoint_config config()
{
    const char *fabric = std::getenv("WEFT_TEST_FABRIC");
    weft::endpoint_config c;
    c.fabric = fabric ? fabric : "host";
    c.rails = std::string_view(c.fabric) == "tcp" ? "lo" : nullptr;
    return c;
}

weft::completion await(const weft::endpoint &e, weft_completion_kind kind)
{
    for (const auto until = std::chrono::steady_clock::now() + 20s;;) {
        const std::optional<weft::completion> c = e.next(until);
        CHECK(c);
        if (c->kind == kind) {
            weft::check(*c);
            return *c;
        }
    }
}

constexpr std::size_t page_len = 4096, page_count = 8;

/** `a` knows the memory of `b`, which is reached under grants alone, and is connected to it. */
struct duo {
    std::vector<unsigned char> mine = std::vector<unsigned char>(page_len * page_count, 7), theirs = std::vector<unsigned char>(page_len * page_count);
    weft::endpoint a{config()}, b{config()};
    weft::memory a_memory = a.register_memory(weft::range_of(mine)), b_memory;
    weft::peer a_to_b = a.connect(b.address(), 10s), b_to_a = await(b, WEFT_COMPLETION_PEER_UP).peer;
    weft::remote_memory remote;

    explicit duo(bool granted)
    {
        weft::memory_args args;
        args.access = granted ? WEFT_ACCESS_REMOTE_WRITE | WEFT_ACCESS_REMOTE_READ | WEFT_ACCESS_GRANTED : 0;
        b_memory = b.register_memory(weft::range_of(theirs), args);
        await(a, WEFT_COMPLETION_PEER_UP);
        remote = a.import_memory(a_to_b, b_memory.descriptor());
    }
};

// ---- Views ----

static_assert(std::ranges::view<weft::span<int>> && std::ranges::borrowed_range<weft::span<int>>);
static_assert(std::is_convertible_v<weft::span<weft::completion>, std::span<weft::completion>>); // of what poll returns
static_assert(std::is_convertible_v<std::span<const int>, weft::span<const int>>);
static_assert(!std::is_convertible_v<weft::span<const int>, std::span<int>>);

// ---- Coroutines ----

/** A coroutine that runs until its first wait, and says what it threw. */
struct task {
    struct promise_type {
        std::exception_ptr thrown;
        task get_return_object() { return task(std::coroutine_handle<promise_type>::from_promise(*this)); }
        std::suspend_never initial_suspend() noexcept { return {}; }
        std::suspend_always final_suspend() noexcept { return {}; }
        void return_void() {}
        void unhandled_exception() { thrown = std::current_exception(); }
    };
    std::coroutine_handle<promise_type> handle;

    explicit task(std::coroutine_handle<promise_type> its) : handle(its) {}
    task(task &&other) noexcept : handle(std::exchange(other.handle, nullptr)) {}
    ~task()
    {
        if (handle)
            handle.destroy();
    }
    void end() const
    {
        CHECK(handle.done());
        if (handle.promise().thrown)
            std::rethrow_exception(handle.promise().thrown);
    }
};

task there_and_back(duo &d, const weft::awaiter &done, std::size_t page)
{
    const std::size_t at = page * page_len;
    weft::completion c = co_await done(
        [&](const weft::options &how) { return d.a.write(d.a_memory, at, d.remote, at, page_len, how); },
        weft::options().within(10s));
    weft::check(c);
    CHECK(c.kind == WEFT_COMPLETION_WRITE && c.bytes == page_len && d.theirs[at] == 7);
    d.theirs[at] = static_cast<unsigned char>(page + 100);
    c = co_await done([&](const weft::options &how) { return d.a.read(d.a_memory, at, d.remote, at, 1, how); });
    weft::check(c);
    CHECK(d.mine[at] == page + 100);
}

task beyond_the_end(duo &d, const weft::awaiter &done)
{
    co_await done([&](const weft::options &how) { return d.a.write(d.a_memory, 0, d.remote, page_len * page_count, 1, how); });
}

void coroutines_await_operations()
{
    duo d(false);
    const weft::awaiter done(d.a, 64);
    std::deque<task> tasks;
    for (std::size_t page = 0; page < page_count; page++)
        tasks.push_back(there_and_back(d, done, page));
    // By an executor of the caller: a list that the loop works off.
    std::deque<std::coroutine_handle<>> ready;
    for (bool all = false; !all;) {
        done.dispatch([&](std::coroutine_handle<> waits) { ready.push_back(waits); });
        for (; !ready.empty(); ready.pop_front())
            ready.front().resume();
        all = true;
        for (const task &one : tasks)
            all = all && one.handle.done();
        pollfd event{done.event_fd(), POLLIN, 0};
        CHECK(all || poll(&event, 1, 20000) == 1);
        event.fd = done.event_fd(); // which takes no signal away
        CHECK(all || poll(&event, 1, 0) == 1);
    }
    for (const task &one : tasks)
        one.end();
    // What the call refuses is thrown where it is awaited.
    const task refused = beyond_the_end(d, done);
    try {
        refused.end();
    } catch (const weft::error &e) {
        CHECK(e.status() == WEFT_ERR_RANGE);
        return;
    }
    fail("nothing was thrown", __LINE__);
}

/** Waits for a counter that nobody raises, then submits once more, by the function of weft.h. */
task until_the_end(const weft::endpoint &ep, const weft::awaiter &done, weft_counter which, weft::op &id)
{
    const std::uint64_t never = 1;
    const auto wait = [&](const weft::options &how) {
        return weft_counter_expect(ep.get(), &which, &never, 1, &how, &id);
    };
    weft::completion c = co_await done(wait, weft::options().within(1h));
    CHECK(c.status == WEFT_ERR_CANCELED && c.op == id);
    c = co_await done(wait, weft::options().within(1h));
    CHECK(c.status == WEFT_ERR_CLOSED && c.op == 0);
}

void coroutines_that_wait_are_passed_on_at_the_end()
{
    weft::endpoint ep{config()};
    const weft::counter counter = ep.create_counter();
    const weft::awaiter done(ep, 128);
    std::array<weft::op, 100> ids;
    std::deque<task> tasks;
    for (weft::op &id : ids)
        tasks.push_back(until_the_end(ep, done, counter.id(), id));
    pollfd event{done.event_fd(), POLLIN, 0};
    std::deque<std::coroutine_handle<>> ready;
    const auto queued = [&](std::coroutine_handle<> waits) { ready.push_back(waits); };
    // One is canceled before, and waits for nothing else.
    CHECK(done.dispatch(queued) && ready.empty() && ep.cancel(ids[0]));
    while (ready.empty()) {
        CHECK(poll(&event, 1, 20000) == 1);
        CHECK(done.dispatch(queued));
    }
    CHECK(ready.size() == 1);
    std::thread ender([&] {
        std::this_thread::sleep_for(20ms);
        ep.shutdown(0s);
    });
    while (done.dispatch(queued))
        CHECK(poll(&event, 1, 20000) == 1);
    ender.join();
    CHECK(ready.size() == ids.size() && !done.dispatch());
    for (; !ready.empty(); ready.pop_front())
        ready.front().resume();
    for (const task &one : tasks)
        one.end();
}

// ---- Grants of pages, ids, the log ----

void grants_name_pages_as_transfers_do()
{
    duo d(true);
    const std::array<std::uint32_t, 2> from{0, 1}, to{3, 5};
    const weft::pages lent(page_len, from, to);
    const weft_grant_token token =
        d.b_memory.grant(d.b_to_a, weft::grant_args(lent).to_write().within(20s).with_notification_of_failure(5));
    d.a.write(d.a_memory, d.remote, lent, weft::options().under(token).identified(4711));
    CHECK(weft::id_of(await(d.a, WEFT_COMPLETION_WRITE)) == 4711);
    CHECK(d.theirs[3 * page_len] == 7 && d.theirs[5 * page_len] == 7 && d.theirs[4 * page_len] == 0);
    // Other pages, and reads, are not lent.
    d.a.write(d.a_memory, 0, d.remote, 4 * page_len, 1, weft::options().under(token));
    CHECK(d.a.next(20s)->status == WEFT_ERR_REVOKED);
    d.a.read(d.a_memory, 0, d.remote, 3 * page_len, 1, weft::options().under(token));
    CHECK(d.a.next(20s)->status == WEFT_ERR_REVOKED && d.theirs[4 * page_len] == 0);
    d.b.revoke(token);
    await(d.b, WEFT_COMPLETION_FENCE);
}

void log_goes_to_a_function()
{
    std::vector<std::string> lines;
    weft::set_logger(WEFT_LOG_INFO, [&](weft_log_level level, std::string_view part, std::string_view text) {
        CHECK(level >= WEFT_LOG_ERROR && level <= WEFT_LOG_INFO && !part.empty());
        lines.emplace_back(text);
    });
    {
        const weft::endpoint e{config()};
    }
    const std::size_t before = lines.size();
    CHECK(before > 0);
    weft::set_logger(WEFT_LOG_ERROR, nullptr);
    {
        const weft::endpoint e{config()};
    }
    CHECK(lines.size() == before);
}

constexpr named_test tests[] = {
    {"coroutines_await_operations", "host,tcp", coroutines_await_operations},
    {"coroutines_that_wait_are_passed_on_at_the_end", "host,tcp", coroutines_that_wait_are_passed_on_at_the_end},
    {"grants_name_pages_as_transfers_do", "host,tcp", grants_name_pages_as_transfers_do},
    {"log_goes_to_a_function", "host", log_goes_to_a_function},
};

} // namespace

int main(int argc, char **argv) { return run_named(tests, argc, argv); }
