// weft.hpp as a user of C++17 uses it: every class, over two endpoints of one process.
#include <weft.hpp>

#include "named_tests.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <list>
#include <map>
#include <numeric>
#include <poll.h>
#include <string_view>
#include <thread>

namespace {

using namespace std::chrono_literals;
using std::string_view;

[[noreturn]] void fail(const char *what, int line)
{
    throw std::runtime_error("line " + std::to_string(line) + ": failed: " + what);
}
#define CHECK(what) ((what) ? static_cast<void>(0) : fail(#what, __LINE__))

/** The call throws weft::error with this status, and a message. */
template <class F> void refused(weft_status want, int line, F &&call)
{
    try {
        call();
    } catch (const weft::error &e) {
        const std::string text = e.what();
        if (e.status() != want || text.find(weft_status_name(want)) != 0 ||
            text.size() < std::strlen(weft_status_name(want)) + 4)
            fail(text.c_str(), line);
        return;
    }
    fail("nothing was thrown", line);
}
#define REFUSED(want, call) refused(want, __LINE__, [&] { return call; })

// ---- Compile-time checks ----

template <class T>
constexpr bool is_owner = !std::is_copy_constructible_v<T> && !std::is_copy_assignable_v<T> &&
    std::is_nothrow_move_constructible_v<T> && std::is_nothrow_move_assignable_v<T> &&
    std::is_nothrow_destructible_v<T>;
static_assert(is_owner<weft::endpoint> && is_owner<weft::memory> && is_owner<weft::remote_memory>);
static_assert(is_owner<weft::queue> && is_owner<weft::prepared> && is_owner<weft::counter>);
static_assert(is_owner<weft::message> && is_owner<weft::allocation>);
// Objects are as large as the handles that they own, unless they need more.
static_assert(sizeof(weft::endpoint) == sizeof(void *) && sizeof(weft::prepared) == sizeof(void *));
static_assert(sizeof(weft::queue) == sizeof(void *) && sizeof(weft::remote_memory) == sizeof(void *));
static_assert(sizeof(weft::options) == sizeof(weft_op_options) && sizeof(weft::pages) == sizeof(weft_pages));

static_assert(weft::deadline().timeout_ns() == 0);
static_assert(weft::deadline(5s).timeout_ns() == 5'000'000'000);
static_assert(weft::deadline(3ns).timeout_ns() == 3);
static_assert(weft::deadline(0ms).timeout_ns() == 1 && weft::deadline(-1h).timeout_ns() == 1);
static_assert(weft::deadline(std::chrono::hours::max()).timeout_ns() == 0x7fffffffffffffff);
static_assert(weft::deadline(std::chrono::duration<double>(0.25)).timeout_ns() == 250'000'000);
static_assert(weft::deadline(std::chrono::duration<double>(1e200)).timeout_ns() == 0x7fffffffffffffff);
static_assert(weft::deadline(std::chrono::duration<std::int64_t, std::pico>(2500)).timeout_ns() == 2);

template <class From, class To> constexpr bool views = std::is_constructible_v<To, From>;
static_assert(views<std::vector<std::uint32_t> &, weft::span<const std::uint32_t>>);
static_assert(views<std::array<weft::completion, 4> &, weft::span<weft::completion>>);
static_assert(!views<const std::array<weft::completion, 4> &, weft::span<weft::completion>>);
static_assert(!views<std::vector<std::uint64_t> &, weft::span<const std::uint32_t>>);
static_assert(views<string_view, weft::bytes> && views<weft::blob, weft::bytes>);
static_assert(!views<std::vector<std::string>, weft::bytes>); // not plain data
static_assert(!views<const char (&)[6], weft::bytes>);

// ---- Two endpoints ----

weft::endpoint_config config()
{
    const char *fabric = std::getenv("WEFT_TEST_FABRIC");
    weft::endpoint_config c;
    c.fabric = fabric ? fabric : "host";
    c.rails = string_view(c.fabric) == "tcp" ? "lo" : nullptr;
    return c;
}

/* * The next completion of a kind; earlier ones of other kinds are dropped. */
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

constexpr std::uint32_t layer_count = 4;
constexpr std::uint64_t page_len = 4096, page_count = 16, layer_len = page_len * page_count;

using layers = std::vector<std::vector<std::uint64_t>>;

layers make_layers(std::uint64_t first)
{
    layers made(layer_count, std::vector<std::uint64_t>(layer_len / sizeof(std::uint64_t)));
    for (auto &layer : made) {
        std::iota(layer.begin(), layer.end(), first);
        first += layer.size();
    }
    return made;
}

weft::memory register_all(weft::endpoint &e, layers &all)
{
    std::vector<weft_memory_range> ranges;
    for (auto &layer : all)
        ranges.push_back(weft::range_of(layer));
    return e.register_memory(ranges);
}

/** `a` knows the memory of `b`, and is connected to it. */
struct duo {
    layers mine = make_layers(1), theirs = make_layers(1'000'000);
    weft::endpoint a{config()}, b{config()};
    weft::memory a_memory = register_all(a, mine), b_memory = register_all(b, theirs);
    weft::peer a_to_b = a.connect(b.address(), 10s), b_to_a = await(b, WEFT_COMPLETION_PEER_UP).peer;
    weft::remote_memory remote = a.import_memory(a_to_b, b_memory.descriptor());

    duo() { await(a, WEFT_COMPLETION_PEER_UP); }
};

// ---- Moving bytes ----

void ranges_and_pages_move()
{
    duo d;
    int mark = 0;
    const weft::op id = d.a.write(d.a_memory, layer_len + 8, d.remote, 2 * layer_len + 16, 100,
                                  weft::options().tagged(&mark).within(10s));
    weft::completion c = await(d.a, WEFT_COMPLETION_WRITE);
    CHECK(c.op == id && c.user_data == &mark && c.bytes == 100);
    CHECK(std::memcmp(&d.theirs[2][2], &d.mine[1][1], 100) == 0);

    const std::array<std::uint32_t, 3> from{1, 3, 5};
    const std::vector<std::uint32_t> to{7, 0, 2};
    d.a.write(d.a_memory, d.remote, weft::pages(page_len, from, to).layers(layer_count),
              weft::options().with_notification(42, string_view("pages")).latency_class());
    CHECK(await(d.a, WEFT_COMPLETION_WRITE).bytes == 3 * page_len * layer_count);
    c = await(d.b, WEFT_COMPLETION_NOTIFICATION);
    CHECK(c.notify == 42 && d.b.take(c).text() == "pages");
    const std::size_t words = page_len / sizeof(std::uint64_t);
    for (std::size_t l = 0; l < layer_count; l++)
        for (std::size_t i = 0; i < from.size(); i++)
            CHECK(std::memcmp(&d.theirs[l][to[i] * words], &d.mine[l][from[i] * words], page_len) == 0);

    // Page i here is the second half of page i there: the other side's pages are twice as large.
    CHECK(d.a.try_read(d.a_memory, d.remote,
                       weft::pages(page_len, 4).local_at(3, 0).remote_at(0, page_len, 2 * page_len)));
    await(d.a, WEFT_COMPLETION_READ);
    for (std::size_t i = 0; i < 4; i++)
        CHECK(std::memcmp(&d.mine[3][i * words], &d.theirs[0][(2 * i + 1) * words], page_len) == 0);

    CHECK(d.a.read(d.a_memory, 0, d.remote, 0, layer_len) != 0);
    await(d.a, WEFT_COMPLETION_READ);
    CHECK(d.mine[0] == d.theirs[0]);
    CHECK(d.a.try_write(d.a_memory, 0, d.remote, 0, 8));
    CHECK(d.a.try_read(d.a_memory, 0, d.remote, 0, 8));
    await(d.a, WEFT_COMPLETION_READ);
}

void watches()
{
    duo d;
    weft::watch go = d.a.create_watch(), over = d.a.create_watch();
    CHECK(go.word() && *go.word() == 0 && *over.word() == 0 && !weft::watch().word());
    CHECK(d.a_memory.info().kind == WEFT_MEMORY_HOST && d.a_memory.info().ranges == layer_count);
    d.a.write(d.a_memory, 0, d.remote, 0, 64, weft::options().starting_at(go, 3).setting(over, 5));
    d.mine[0][0] = 4711;
    REFUSED(WEFT_ERR_BUSY, go.free());
    CHECK(*over.word() == 0 && d.theirs[0][0] != 4711);
    __atomic_store_n(go.word(), 3, __ATOMIC_RELEASE);
    await(d.a, WEFT_COMPLETION_WRITE);
    CHECK(__atomic_load_n(over.word(), __ATOMIC_ACQUIRE) == 5 && d.theirs[0][0] == 4711);
    d.a.read(d.a_memory, d.remote, weft::pages(page_len, 1), weft::options().starting_at(over, 5).setting(over, 6));
    await(d.a, WEFT_COMPLETION_READ);
    CHECK(__atomic_load_n(over.word(), __ATOMIC_ACQUIRE) == 6);
    const weft_list_entry entry = weft::list_entry(d.a_memory, d.remote, 64);
    d.a.write({&entry, 1}, weft::options().starting_at(over, 6).setting(over, 7));
    await(d.a, WEFT_COMPLETION_WRITE);
    CHECK(__atomic_load_n(over.word(), __ATOMIC_ACQUIRE) == 7);
    go.free();
    REFUSED(WEFT_ERR_INVALID, d.a.write(d.a_memory, 0, d.remote, 0, 64, weft::options().starting_at(weft::watch(), 1)));
}

void lists_and_prepared()
{
    CHECK(weft::options().completing_each_peer().flags == WEFT_COMPLETE_EACH_PEER);
    duo d;
    std::vector<weft_list_entry> entries(2, weft::list_entry(d.a_memory, d.remote, layer_len));
    entries[0].remote_range = entries[1].local_range = 1;
    d.a.write(entries, weft::options().with_notification(1).completing_each_peer());
    CHECK(await(d.a, WEFT_COMPLETION_WRITE).peer == d.a_to_b);
    CHECK(await(d.b, WEFT_COMPLETION_NOTIFICATION).notify == 1);
    CHECK(d.theirs[1] == d.mine[0] && d.theirs[0] == d.mine[1]);
    d.a.read(entries);
    CHECK(await(d.a, WEFT_COMPLETION_READ).bytes == 2 * layer_len);
    CHECK(d.a.try_write(entries));
    await(d.a, WEFT_COMPLETION_WRITE);
    CHECK(d.a.try_read(entries));
    await(d.a, WEFT_COMPLETION_READ);

    weft::prepared swap = d.a.prepare(entries);
    weft::prepared all = d.a.prepare(d.a_memory, d.remote, weft::pages(page_len, page_count).layers(layer_count));
    d.mine[2][0] = 4711;
    d.a.write(all, weft::options().with_notification(2).within(10s));
    CHECK(await(d.b, WEFT_COMPLETION_NOTIFICATION).notify == 2 && d.theirs == d.mine);
    d.a.write(swap, weft::options().completing_each_peer().with_notification(3));
    CHECK(await(d.b, WEFT_COMPLETION_NOTIFICATION).notify == 3 && d.theirs[0] == d.mine[1]);
    d.theirs[3][1] = 17;
    d.a.read(all);
    CHECK(d.a.try_write(swap) && d.a.try_read(all));
    for (int i = 0; i < 2; i++)
        while (await(d.a, WEFT_COMPLETION_READ).bytes != page_count * page_len * layer_count) {
        }
    CHECK(d.mine[3][1] == 17);
    REFUSED(WEFT_ERR_BUSY, d.a_memory.deregister()); // it is in use
}

void messages()
{
    duo d;
    const weft::op id = d.a.send(d.a_to_b, string_view("hello"));
    CHECK(await(d.a, WEFT_COMPLETION_SEND).op == id);
    const weft::completion c = await(d.b, WEFT_COMPLETION_MESSAGE);
    {
        weft::message m = d.b.take(c), moved = std::move(m);
        CHECK(c.peer == d.b_to_a && moved.text() == "hello" && moved.size() == 5 && moved.data() == c.data);
        CHECK(m.data() == nullptr && m.size() == 0 && m.text().empty());
        m = std::move(moved);
        CHECK(m.text() == "hello");
    }
    CHECK(weft_message_release(d.b.get(), c.op) == WEFT_ERR_HANDLE); // released, once
    const std::vector<std::uint32_t> numbers{1, 2, 3};
    CHECK(d.b.try_send(d.b_to_a, numbers, weft::options().within(10s)));
    const weft::message m = d.a.take(await(d.a, WEFT_COMPLETION_MESSAGE));
    CHECK(m.size() == 12 && std::memcmp(m.data(), numbers.data(), 12) == 0);
    d.b.send(d.b_to_a, {});
    CHECK(d.a.take(await(d.a, WEFT_COMPLETION_MESSAGE)).text().empty());
}

void counters_atomics_and_fences_work()
{
    duo d;
    const weft::counter whole = d.b.create_counter(), pages = d.b.create_counter();
    const std::array<weft_counter, 2> which{whole.id(), pages.id()};
    const std::array<std::uint64_t, 2> values{1, page_count * layer_count};
    const weft::op expected = d.b.expect(which, values, weft::options().within(10s));
    d.a.write(d.a_memory, d.remote, weft::pages(page_len, page_count).layers(layer_count),
              weft::options().raising_by_page(pages.id()));
    d.a.write(d.a_memory, 0, d.remote, 0, 8, weft::options().raising(whole.id()));
    CHECK(await(d.b, WEFT_COMPLETION_COUNTER).op == expected);
    CHECK(whole.read() == 1 && pages.read() == values[1] && d.theirs == d.mine);

    weft_peer_properties peer = d.a.info(d.a_to_b);
    if (peer.capabilities & WEFT_CAPABILITY_ATOMICS) {
        d.theirs[1][2] = 5;
        d.a.fetch_add(d.remote, layer_len + 16, 37);
        CHECK(await(d.a, WEFT_COMPLETION_ATOMIC).previous == 5);
        d.a.compare_swap(d.remote, layer_len + 16, 42, 1);
        CHECK(await(d.a, WEFT_COMPLETION_ATOMIC).previous == 42);
        CHECK(__atomic_load_n(&d.theirs[1][2], __ATOMIC_SEQ_CST) == 1);
    }
    const weft::op fence = d.b.fence(d.b_to_a, weft::options().within(10s));
    CHECK(await(d.b, WEFT_COMPLETION_FENCE).op == fence);
    const weft_grant_token grant = d.b_memory.grant(d.b_to_a);
    const weft::op under = d.a.write(d.a_memory, 0, d.remote, 0, 8, weft::options().under(grant));
    while (await(d.a, WEFT_COMPLETION_WRITE).op != under) {
    }
    const weft::op revoked = d.b.revoke(grant);
    CHECK(await(d.b, WEFT_COMPLETION_FENCE).op == revoked);
}

// ---- Waiting ----

void queues_sleep_and_wake()
{
    duo d;
    weft::queue q = d.a.create_queue(64);
    std::array<weft::completion, 8> room;
    CHECK(q.poll(room).empty() && q.wait(room, 1ms).empty() && d.a.wait(room, 0s).empty());
    CHECK(q.arm());
    pollfd wanted{q.event_fd(), POLLIN, 0};
    d.a.write(d.a_memory, 0, d.remote, 0, 8, weft::options().completing_in(q));
    CHECK(poll(&wanted, 1, 10000) == 1);
    const weft::span<weft::completion> got = q.poll(room);
    CHECK(got.size() == 1 && got.data() == room.data() && got[0].kind == WEFT_COMPLETION_WRITE);
    for (const weft::completion &c : got)
        weft::check(c);
    CHECK(d.a.poll(room).empty());

    d.a.write(d.a_memory, 0, d.remote, 0, 8, weft::options().completing_in(q));
    REFUSED(WEFT_ERR_BUSY, q.destroy());
    while (q.arm())
        std::this_thread::sleep_for(1ms);
    CHECK(q.wait(room, std::chrono::steady_clock::now() + 10s).size() == 1);
    q.destroy();
    CHECK(q.get() == nullptr);

    std::thread sender([&] {
        std::this_thread::sleep_for(20ms);
        d.b.send(d.b_to_a, string_view("wake"));
    });
    CHECK(d.a.wait(room, weft::forever).size() == 1 && d.a.take(room[0]).text() == "wake");
    sender.join();
    CHECK(d.a.event_fd() >= 0 && d.a.arm());
}

// ---- What goes wrong ----

void errors_are_exceptions()
{
    duo d;
    REFUSED(WEFT_ERR_RANGE, d.a.write(d.a_memory, 0, d.remote, 0, layer_len + 1));
    REFUSED(WEFT_ERR_FORMAT, d.a.connect(string_view("no address of anybody")));
    REFUSED(WEFT_ERR_RANGE, d.a.rail(1000));
    REFUSED(WEFT_ERR_INVALID, d.a.write(d.a_memory, d.remote, weft::pages(0, 1)));
    REFUSED(WEFT_ERR_LIMIT, d.a.write(d.a_memory, 0, d.remote, 0, 8,
                                      weft::options().with_notification(
                                          1, weft::bytes(d.mine[0].data(), std::size_t{1} << 40))));
    REFUSED(WEFT_ERR_RANGE, d.a.try_write(d.a_memory, 0, d.remote, 0, layer_len + 1));
    try {
        d.a.write(d.a_memory, d.remote, weft::pages(8, std::vector<std::uint32_t>{1, 2}, {}));
        fail("lists of unequal length", __LINE__);
    } catch (const std::invalid_argument &) {
    }
    try {
        weft::check(WEFT_ERR_PEER_LOST);
    } catch (const weft::error &e) {
        CHECK(e.category() == WEFT_CATEGORY_PEER);
    }
    // A completion reports its own failure, whatever failed on this thread before.
    const weft::counter counter = d.a.create_counter();
    const weft_counter id = counter.id();
    const std::uint64_t never = 1;
    for (const weft::deadline soon : {weft::deadline(20ms), weft::deadline(0ms)}) {
        d.a.expect({&id, 1}, {&never, 1}, weft::options().within(soon));
        const std::optional<weft::completion> late = d.a.next(10s);
        REFUSED(WEFT_ERR_TIMED_OUT, weft::check(*late));
    }
    const weft::op waiting = d.a.expect({&id, 1}, {&never, 1});
    CHECK(d.a.cancel(waiting) && d.a.next(10s)->status == WEFT_ERR_CANCELED && !d.a.cancel(waiting));
}

void full_queue_is_not_an_exception()
{
    weft::endpoint_config small = config();
    small.max_transfers = 4;
    duo d;
    d.a = weft::endpoint(small); // objects of the old endpoint become stale, which is harmless
    d.a_memory = register_all(d.a, d.mine);
    d.a_to_b = d.a.connect(d.b.address());
    d.remote = d.a.import_memory(d.a_to_b, d.b_memory.descriptor());
    await(d.a, WEFT_COMPLETION_PEER_UP);
    const weft::counter counter = d.a.create_counter();
    const weft_counter id = counter.id();
    const std::uint64_t never = 1;
    for (int i = 0; i < 4; i++)
        d.a.expect({&id, 1}, {&never, 1});
    CHECK(!d.a.try_write(d.a_memory, 0, d.remote, 0, 8) && !d.a.try_read(d.a_memory, 0, d.remote, 0, 8));
    CHECK(!d.a.try_send(d.a_to_b, string_view("x")));
    REFUSED(WEFT_ERR_AGAIN, d.a.write(d.a_memory, 0, d.remote, 0, 8));
}

void moved_from_owners_own_nothing()
{
    duo d;
    weft::endpoint e = std::move(d.a);
    CHECK(d.a.get() == nullptr && e.get() != nullptr);
    std::array<weft::completion, 2> room;
    REFUSED(WEFT_ERR_HANDLE, d.a.poll(room));
    REFUSED(WEFT_ERR_HANDLE, d.a.address());
    REFUSED(WEFT_ERR_HANDLE, d.a.write(d.a_memory, 0, d.remote, 0, 8));

    // The endpoint's objects continue to work, since handles do not move.
    weft::memory m = std::move(d.a_memory);
    weft::remote_memory r = std::move(d.remote);
    REFUSED(WEFT_ERR_HANDLE, e.write(d.a_memory, 0, r, 0, 8));
    REFUSED(WEFT_ERR_HANDLE, e.write(m, 0, d.remote, 0, 8));
    REFUSED(WEFT_ERR_HANDLE, d.a_memory.descriptor());
    weft::prepared k = e.prepare(m, r, weft::pages(8, 1)), k2 = std::move(k);
    REFUSED(WEFT_ERR_HANDLE, e.write(k));
    e.write(k2);
    weft::queue q = e.create_queue(), q2 = std::move(q);
    REFUSED(WEFT_ERR_HANDLE, q.poll(room));
    CHECK(q2.poll(room).empty());
    weft::counter c = e.create_counter(), c2;
    c2 = std::move(c);
    REFUSED(WEFT_ERR_HANDLE, c.read());
    CHECK(c2.read() == 0 && c.id() == 0 && c2.id() != 0);
    await(e, WEFT_COMPLETION_WRITE);

    // Assignment releases the old object.
    const weft_counter old = c2.id();
    c2 = e.create_counter();
    std::uint64_t value = 0;
    CHECK(weft_counter_read(e.get(), old, &value) == WEFT_ERR_HANDLE);
    k2 = weft::prepared();
    r.release();
    m.deregister();
    CHECK(r.get() == nullptr && m.get() == nullptr);
    m.deregister(); // of nothing
}

// ---- Ends ----

void allocations_move_and_serve_transfers()
{
    duo d;
    weft::allocation room = d.a.allocate(1 << 16), moved = std::move(room);
    CHECK(room.data() == nullptr && room.size() == 0 && moved.size() == 1 << 16 && moved.data()[77] == std::byte{0});
    std::memset(moved.data(), 7, moved.size());
    weft::memory m = d.a.register_memory(weft::range(moved.data(), moved.size()));
    d.a.write(m, 0, d.remote, 0, layer_len);
    await(d.a, WEFT_COMPLETION_WRITE);
    CHECK(d.theirs[0][0] == 0x0707070707070707);
    REFUSED(WEFT_ERR_BUSY, weft::check(weft_memory_free(d.a.get(), moved.data())));
    m.deregister();
    void *const data = moved.data();
    moved = weft::allocation();
    REFUSED(WEFT_ERR_INVALID, weft::check(weft_memory_free(d.a.get(), data))); // it was
    weft::memory_args local;
    local.access = WEFT_ACCESS_LOCAL;
    const weft::memory source = d.a.register_memory(weft::range("read-only", 9), local);
    REFUSED(WEFT_ERR_INVALID, source.descriptor());
}

void shutdown_keeps_unpolled_completions()
{
    duo d;
    const weft::counter counter = d.a.create_counter();
    const weft_counter id = counter.id();
    const std::uint64_t never = 1;
    d.a.expect({&id, 1}, {&never, 1});
    REFUSED(WEFT_ERR_BUSY, d.a.close());
    d.a.shutdown(1ms);
    std::map<weft_completion_kind, weft_status> left;
    d.a.drain([&](const weft::completion &c) { left[c.kind] = c.status; });
    CHECK(left.at(WEFT_COMPLETION_COUNTER) == WEFT_ERR_CANCELED && left.count(WEFT_COMPLETION_PEER_DOWN) == 1);
    std::array<weft::completion, 1> room;
    REFUSED(WEFT_ERR_CLOSED, d.a.poll(room));
    REFUSED(WEFT_ERR_CLOSED, d.a.send(d.a_to_b, {}));
    d.a.close();
    CHECK(d.a.get() == nullptr);
    weft::check(d.b.wait(room, 10s).empty() ? WEFT_ERR_TIMED_OUT : WEFT_OK);
    CHECK(room[0].kind == WEFT_COMPLETION_PEER_DOWN && room[0].status == WEFT_ERR_PEER_CLOSED);

    weft_endpoint *handle = nullptr;
    {
        const weft::endpoint soon_gone(config());
        handle = soon_gone.get();
        d.b.connect(soon_gone.address());
        await(soon_gone, WEFT_COMPLETION_PEER_UP);
    }
    REFUSED(WEFT_ERR_HANDLE, weft::check(weft_endpoint_destroy(handle))); // it was
}

/* * An exception, say, ends a memory's scope while a transfer uses it: nothing may touch the bytes afterwards. */
void destroyed_memory_ends_its_operations()
{
    weft::endpoint a{config()};
    weft::endpoint_config manual = config();
    manual.progress = WEFT_PROGRESS_MANUAL;
    weft::endpoint b{manual}; // b is never polled, so the connect and everything behind it stay outstanding
    layers theirs = make_layers(0), mine = make_layers(1);
    const weft::memory target = register_all(b, theirs);
    const weft::peer peer = a.connect(b.address(), 20s);
    const weft::remote_memory remote = a.import_memory(peer, target.descriptor());
    {
        weft::memory source = register_all(a, mine);
        a.write(source, 0, remote, 0, 8, weft::options().within(20s));
        REFUSED(WEFT_ERR_BUSY, source.deregister());
        CHECK(source.get() != nullptr);
    }
    bool ended = false;
    a.drain([&](const weft::completion &c) { ended |= c.kind == WEFT_COMPLETION_WRITE && c.status != WEFT_OK; });
    CHECK(ended);
    REFUSED(WEFT_ERR_CLOSED, a.send(peer, {}));
}

void topology_and_properties_are_objects()
{
    duo d;
    const weft_endpoint_properties has = d.a.info();
    CHECK(has.rails >= 1 && has.peers == 1 && has.incarnation != d.b.info().incarnation);
    CHECK(d.a.rail(0).fabric[0] != '\0');
    CHECK(d.a.info(d.a_to_b).up == 1 && d.a.info(d.a_to_b).incarnation == d.b.info().incarnation);
    d.a.write(d.a_memory, 0, d.remote, 0, 64);
    await(d.a, WEFT_COMPLETION_WRITE);
    CHECK(d.a.statistics().writes == 1 && d.a.statistics().bytes_written == 64);
    std::uint64_t by_lanes = 0;
    for (const weft_lane_statistics &lane : d.a.lanes(d.a_to_b))
        by_lanes += lane.bytes_written;
    CHECK(by_lanes == 64);
    std::uint64_t carried = 0;
    for (std::uint32_t i = 0; i < has.rails; i++)
        carried += d.a.statistics(i).bytes_written;
    CHECK(carried == 64);
    const std::string machine = weft::topology();
    CHECK(machine.front() == '{' && machine.back() == '}' && machine.find("\"format\"") != std::string::npos);
    d.a.disconnect(d.a_to_b);
    await(d.a, WEFT_COMPLETION_PEER_DOWN);
}

constexpr named_test tests[] = {
    {"ranges_and_pages_move", "host,tcp,sim:like=efa", ranges_and_pages_move},
    {"watches", "host,tcp", watches},
    {"lists_and_prepared", "host,tcp,sim:like=efa", lists_and_prepared},
    {"messages", "host,tcp,sim:like=efa", messages},
    {"counters_atomics_and_fences_work", "host,tcp,sim:like=efa", counters_atomics_and_fences_work},
    {"queues_sleep_and_wake", "host,tcp,sim:like=efa", queues_sleep_and_wake},
    {"errors_are_exceptions", "host,tcp", errors_are_exceptions},
    {"full_queue_is_not_an_exception", "host,tcp", full_queue_is_not_an_exception},
    {"moved_from_owners_own_nothing", "host,tcp", moved_from_owners_own_nothing},
    {"allocations_move_and_serve_transfers", "host,tcp", allocations_move_and_serve_transfers},
    {"shutdown_keeps_unpolled_completions", "host,tcp", shutdown_keeps_unpolled_completions},
    {"destroyed_memory_ends_its_operations", "host,tcp", destroyed_memory_ends_its_operations},
    {"topology_and_properties_are_objects", "host,tcp", topology_and_properties_are_objects},
};

} // namespace

int main(int argc, char **argv) { return run_named(tests, argc, argv); }
