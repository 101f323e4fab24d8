// Decode with several threads, and prefills that come, die and come again: see README.md.
//
//     prefill_decode decode PORT REQUESTS          PORT 0: any that is free
//     prefill_decode prefill HOST PORT [WRITES]    dies after this many writes
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <map>
#include <string_view>
#include <thread>

#include <unistd.h>

#include "../exchange.h"
#include "kv_cache.hpp"

namespace {

using namespace std::chrono_literals;

constexpr kv_cache::shape shape{16, 256, 16384};
constexpr std::uint32_t pages_of_each = 24;
constexpr int request_threads = 4;

/* * What decode sends to a prefill for each request. A request that is tried again is another attempt. */
struct order {
    std::uint64_t request = 0, attempt = 0;
    weft_grant_token token{};
    std::array<std::uint32_t, pages_of_each> pages{};
};

std::byte content(std::uint64_t request, std::uint32_t layer, std::size_t i)
{
    return static_cast<std::byte>((request * 31 + layer * 7 + i) % 251);
}

// ---- Decode ----

class decode {
public:
    int run(const char *port, std::uint64_t requests)
    {
        std::thread door([this, listener = exchange_listen(port)] { admit(listener); });
        door.detach(); // it waits for prefills until the program ends
        std::thread poller([this] { poll(); });
        std::vector<std::thread> workers;
        for (int i = 0; i < request_threads; i++)
            workers.emplace_back([this, requests] {
                for (std::uint64_t request; (request = next_++) <= requests;)
                    while (!serve(request))
                        retries_++;
            });
        for (std::thread &worker : workers)
            worker.join();
        over_ = true;
        poller.join();
        std::printf("decode: %llu requests, %d wrong, %d tried again, %zu of %u pages are free\n",
                    static_cast<unsigned long long>(requests), wrong_.load(), retries_.load(), cache_.free_pages(),
                    shape.pages);
        endpoint_.shutdown(1s); // prefills get their PEER_DOWN at once
        return wrong_ == 0 && cache_.free_pages() == shape.pages ? 0 : 1;
    }

private:
    /* * Gives each prefill that connects the address and the descriptor. Those could travel by any means. */
    void admit(int listener)
    {
        const weft::blob address = endpoint_.address(), descriptor = cache_.memory().descriptor();
        for (;;) {
            const int fd = exchange_accept(listener);
            exchange_put(fd, address.data(), address.size());
            exchange_put(fd, descriptor.data(), descriptor.size());
            close(fd);
        }
    }

    /* * One thread takes completions, and passes each on to the thread that waits for it. */
    void poll()
    {
        std::array<weft::completion, 64> room;
        while (!over_)
            for (const weft::completion &c : endpoint_.wait(room, 100ms)) {
                if (c.kind == WEFT_COMPLETION_PEER_UP)
                    arrive(c.peer, true);
                if (c.kind == WEFT_COMPLETION_PEER_DOWN)
                    arrive(c.peer, false);
                if (c.kind == WEFT_COMPLETION_NOTIFICATION) {
                    const weft::message data = endpoint_.take(c);
                    answer(2 * c.notify, c.status);
                }
                if (c.kind == WEFT_COMPLETION_FENCE)
                    answer(weft::id_of(c), c.status);
            }
    }

    void arrive(weft::peer prefill, bool up)
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        prefills_.erase(prefill);
        if (up)
            prefills_.insert({prefill, 0});
        changed_.notify_all();
        std::printf("decode: a prefill %s: %zu\n", up ? "came" : "left", prefills_.size());
    }

    /* * The prefill with the fewest requests; waits until there is one. */
    weft::peer choose()
    {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [this] { return !prefills_.empty(); });
        const auto least = std::min_element(prefills_.begin(), prefills_.end(),
                                            [](const auto &a, const auto &b) { return a.second < b.second; });
        least->second++;
        return least->first;
    }

    std::future<weft_status> expect(std::uint64_t what)
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        return (waits_[what] = {}).get_future();
    }
    void answer(std::uint64_t what, weft_status status)
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        const auto wait = waits_.find(what);
        if (wait == waits_.end())
            return; // of a request that has failed
        wait->second.set_value(status);
        waits_.erase(wait);
    }

    /* * One request: false if its prefill failed, and another has to do it. */
    bool serve(std::uint64_t request)
    {
        const weft::peer prefill = choose();
        const page_numbers pages = cache_.take(pages_of_each);
        const bool good = have_filled(prefill, request, pages);
        if (good)
            verify(request, pages);
        cache_.give(pages);
        const std::lock_guard<std::mutex> lock(mutex_);
        if (const auto its = prefills_.find(prefill); its != prefills_.end())
            its->second--;
        return good;
    }

    bool have_filled(weft::peer prefill, std::uint64_t request, const page_numbers &pages)
    try {
        // The grant says which pages the prefill may write to, until when, and that a failure notifies us.
        const std::uint64_t attempt = ++attempts_;
        std::future<weft_status> arrived = expect(2 * attempt), revoked = expect(2 * attempt + 1);
        const weft::pages lent = cache_.both(pages, pages);
        order what{request, attempt,
                   cache_.memory().grant(
                       prefill, weft::grant_args(lent).to_write().within(10s).with_notification_of_failure(attempt)),
                   {}};
        std::copy(pages.begin(), pages.end(), what.pages.begin());
        const bool good = send(prefill, what) && arrived.get() == WEFT_OK;
        // From the revoke's completion on nothing of the request can arrive, whatever its prefill does.
        endpoint_.revoke(what.token, weft::options().identified(2 * attempt + 1));
        // Until then the pages are not free: a revoke that took too long is repeated.
        while (revoked.get() == WEFT_ERR_TIMED_OUT) {
            revoked = expect(2 * attempt + 1);
            endpoint_.revoke(what.token, weft::options().identified(2 * attempt + 1));
        }
        return good;
    } catch (const weft::error &) { // it has left
        return false;
    }

    bool send(weft::peer to, const order &what)
    try {
        endpoint_.send(to, weft::bytes(&what, sizeof what));
        return true;
    } catch (const weft::error &) { // it has left
        return false;
    }

    void verify(std::uint64_t request, const page_numbers &pages)
    {
        for (std::uint32_t l = 0; l < shape.layers; l++)
            for (std::size_t i = 0; i < pages.size(); i++)
                for (std::size_t b = 0; b < shape.page_len; b++)
                    wrong_ += cache_.page(l, pages[i])[b] != content(request, l, i);
    }

    weft::endpoint endpoint_;
    kv_cache cache_{endpoint_, shape, WEFT_ACCESS_REMOTE_WRITE | WEFT_ACCESS_GRANTED};
    std::mutex mutex_;
    std::condition_variable changed_;
    std::map<weft::peer, int> prefills_;
    std::map<std::uint64_t, std::promise<weft_status>> waits_;
    std::atomic<std::uint64_t> next_{1}, attempts_{0};
    std::atomic<int> wrong_{0}, retries_{0};
    std::atomic<bool> over_{false};
};

// ---- Prefill ----

class prefill {
public:
    explicit prefill(long writes_until_death) : writes_left_(writes_until_death) {}

    /* * Serves decode until that has ended. A connection that is lost is made again. */
    int run(const char *host, const char *port)
    {
        for (;;) {
            weft::blob address(4096), descriptor(1 << 20);
            const int fd = exchange_connect(host, port); // ends the program if decode is not there
            address.resize(exchange_get(fd, address.data(), address.size()));
            descriptor.resize(exchange_get(fd, descriptor.data(), descriptor.size()));
            close(fd);
            const weft::peer decode = endpoint_.connect(address, 10s);
            const weft::remote_memory theirs = endpoint_.import_memory(decode, descriptor);
            const weft_status end = serve(theirs);
            std::printf("prefill: %s\n", weft_status_text(end));
            if (end == WEFT_ERR_PEER_CLOSED)
                return 0;
        }
    }

private:
    /* * Until the peer is down; returns why. */
    weft_status serve(const weft::remote_memory &theirs)
    {
        std::array<weft::completion, 64> room;
        weft_status end = WEFT_OK;
        while (end == WEFT_OK)
            for (const weft::completion &c : endpoint_.wait(room, weft::forever)) {
                if (c.kind == WEFT_COMPLETION_MESSAGE)
                    fill(endpoint_.take(c), theirs);
                if (c.kind == WEFT_COMPLETION_WRITE) // with any status: nothing reads the pages from here on
                    pages_.erase(give_back(pages_.find(weft::id_of(c))));
                if (c.kind == WEFT_COMPLETION_PEER_DOWN || (c.kind == WEFT_COMPLETION_PEER_UP && c.status != WEFT_OK))
                    end = c.status;
            }
        return end;
    }

    using filled = std::map<std::uintptr_t, page_numbers>;
    filled::iterator give_back(filled::iterator its)
    {
        cache_.give(its->second);
        return its;
    }

    void fill(const weft::message &m, const weft::remote_memory &theirs)
    {
        order what;
        if (m.size() != sizeof what)
            return;
        std::memcpy(&what, m.data(), sizeof what);
        // There are always enough: decode's threads have fewer requests at once than the cache has room for.
        const page_numbers mine = cache_.take(pages_of_each), remote(what.pages.begin(), what.pages.end());
        for (std::uint32_t l = 0; l < shape.layers; l++)
            for (std::size_t i = 0; i < mine.size(); i++)
                std::memset(cache_.page(l, mine[i]), static_cast<int>(content(what.request, l, i)), shape.page_len);
        const auto its = pages_.emplace(++writes_, mine).first;
        try {
            endpoint_.write(cache_.memory(), theirs, cache_.both(mine, remote),
                            weft::options().under(what.token).with_notification(what.attempt).within(10s).identified(its->first));
        } catch (const weft::error &) { // decode has left: its PEER_DOWN follows
            pages_.erase(give_back(its));
        }
        if (--writes_left_ == 0)
            _exit(1); // as a crash: no peer gets a goodbye
    }

    weft::endpoint endpoint_;
    kv_cache cache_{endpoint_, shape, WEFT_ACCESS_LOCAL};
    filled pages_; // pages of writes in progress
    std::uintptr_t writes_ = 0;
    long writes_left_;
};

} // namespace

int main(int argc, char **argv)
try {
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    const std::string_view role = argc > 1 ? argv[1] : "";
    if (role == "decode" && argc == 4)
        return decode().run(argv[2], std::strtoull(argv[3], nullptr, 10));
    if (role == "prefill" && (argc == 4 || argc == 5))
        return prefill(argc == 5 ? std::strtol(argv[4], nullptr, 10) : -1).run(argv[2], argv[3]);
    std::fprintf(stderr, "%s decode PORT REQUESTS | prefill HOST PORT [WRITES]\n", argv[0]);
    return 2;
} catch (const std::exception &e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
}
