// Prefill and decode as two processes, in C++: decode requests pages, prefill fills its own and writes them into
// decode's cache, which gets a notification for each request. A failed request ends alone: prefill reports it by a
// message, and decode fences prefill before it reuses the pages.
//
//     kv_cache prefill PORT                 PORT 0: any that is free
//     kv_cache decode HOST PORT
#include <cstdio>
#include <cstring>
#include <map>
#include <string_view>

#include <unistd.h>

#include "exchange.h"
#include "kv_cache.hpp"

namespace {

using namespace std::chrono_literals;

constexpr kv_cache::shape shape{16, 256, 16384};
constexpr std::uint64_t requests = 8, pages_of_each = 24;

// A message is a vector of numbers: a request's id and decode's pages for it, or, from prefill, the id of a failed
// request; before all others, and as bytes, the descriptor of decode's cache.
using numbers = std::vector<std::uint32_t>;

int content(std::uint64_t request, std::uint32_t layer, std::size_t i)
{
    return static_cast<int>((request * 31 + layer * 7 + i) % 251);
}

/* * Handles completions until `done`. An exception in `each` loses the remaining ones, and ends the program. */
template <class Done, class Each> void run(weft::endpoint &endpoint, Done done, Each each)
{
    std::array<weft::completion, 64> room;
    while (!done())
        for (const weft::completion &c : endpoint.wait(room, weft::forever))
            each(c);
}

// ---- Prefill ----

class prefill {
public:
    explicit prefill(const char *port)
    {
        const weft::blob address = endpoint_.address();
        const int listener = exchange_listen(port), fd = exchange_accept(listener);
        exchange_put(fd, address.data(), address.size());
        close(fd), close(listener);
    }

    void serve()
    {
        run(endpoint_, [this] { return gone_; }, [this](const weft::completion &c) { handle(c); });
        std::printf("prefill: %zu of %u pages are free again\n", cache_.free_pages(), shape.pages);
    }

private:
    void handle(const weft::completion &c)
    {
        switch (c.kind) {
        case WEFT_COMPLETION_MESSAGE: take(endpoint_.take(c), c.peer); break;
        case WEFT_COMPLETION_WRITE: finish(c); break;
        case WEFT_COMPLETION_PEER_DOWN: gone_ = true; break;
        default: weft::check(c);
        }
    }

    void take(const weft::message &m, weft::peer from)
    {
        if (theirs_.get() == nullptr) {
            theirs_ = endpoint_.import_memory(from, weft::bytes(m.data(), m.size()));
            return;
        }
        numbers wanted(m.size() / sizeof(std::uint32_t));
        std::memcpy(wanted.data(), m.data(), wanted.size() * sizeof(std::uint32_t));
        const std::uint32_t request = wanted.at(0);
        wanted.erase(wanted.begin());
        const numbers &mine = pages_[request] = cache_.take(wanted.size());
        for (std::uint32_t l = 0; l < shape.layers; l++)
            for (std::size_t i = 0; i < mine.size(); i++)
                std::memset(cache_.page(l, mine[i]), content(request, l, i), shape.page_len);
        cache_.send(theirs_, mine, wanted, request, 10s);
    }

    /* * With any status: nothing reads the pages any longer. */
    void finish(const weft::completion &c)
    {
        const auto request = pages_.find(reinterpret_cast<std::uint64_t>(c.user_data));
        cache_.give(request->second);
        if (c.status != WEFT_OK)
            report(static_cast<std::uint32_t>(request->first), c);
        pages_.erase(request);
    }

    void report(std::uint32_t request, const weft::completion &c)
    try {
        std::printf("prefill: request %u: %s\n", request, weft_status_text(c.status));
        endpoint_.send(c.peer, numbers{request});
    } catch (const weft::error &) { // decode is gone: its PEER_DOWN follows
    }

    weft::endpoint endpoint_;
    kv_cache cache_{endpoint_, shape};
    weft::remote_memory theirs_;
    std::map<std::uint64_t, numbers> pages_; // pages of requests in progress
    bool gone_ = false;
};

// ---- Decode ----

class decode {
public:
    decode(const char *host, const char *port)
    {
        std::array<char, 4096> address;
        const int fd = exchange_connect(host, port);
        const std::size_t len = exchange_get(fd, address.data(), address.size());
        close(fd);
        prefill_ = endpoint_.connect(weft::bytes(address.data(), len), 10s);
        endpoint_.send(prefill_, cache_.descriptor()); // messages wait until the peer is up, and keep their order
    }

    void ask_for(std::uint32_t request)
    {
        numbers message = pages_[request] = cache_.take(pages_of_each);
        message.insert(message.begin(), request);
        endpoint_.send(prefill_, message);
    }

    bool await_all()
    {
        run(endpoint_, [this] { return pages_.empty(); }, [this](const weft::completion &c) { handle(c); });
        std::printf("decode: %d requests, %d failed, %d bytes wrong\n", static_cast<int>(requests), failed_, wrong_);
        endpoint_.shutdown(1s); // prefill gets its PEER_DOWN at once
        return wrong_ == 0 && failed_ == 0;
    }

private:
    void handle(const weft::completion &c)
    {
        switch (c.kind) {
        case WEFT_COMPLETION_NOTIFICATION: arrive(c); break;
        case WEFT_COMPLETION_MESSAGE: fence(endpoint_.take(c)); break;
        case WEFT_COMPLETION_FENCE: retire(c); break;
        case WEFT_COMPLETION_PEER_DOWN: throw std::runtime_error("prefill has left");
        default: weft::check(c);
        }
    }

    /* * A request failed, but some of its bytes may still arrive, until the fence has ended. */
    void fence(const weft::message &failed)
    {
        std::uint32_t request = 0;
        std::memcpy(&request, failed.data(), sizeof request);
        void *tag = reinterpret_cast<void *>(static_cast<std::uint64_t>(request));
        endpoint_.fence(prefill_, weft::options().tagged(tag));
    }

    /* * Nothing of a failed request arrives any longer: its pages are free. */
    void retire(const weft::completion &c)
    {
        weft::check(c); // otherwise the pages could only be reused after PEER_DOWN
        const auto request = pages_.find(reinterpret_cast<std::uint64_t>(c.user_data));
        if (request == pages_.end())
            return; // its notification had arrived before
        cache_.give(request->second);
        pages_.erase(request);
        failed_++;
    }

    void arrive(const weft::completion &c)
    {
        const auto request = pages_.find(c.notify);
        for (std::uint32_t l = 0; l < shape.layers; l++)
            for (std::size_t i = 0; i < request->second.size(); i++)
                for (std::size_t b = 0; b < shape.page_len; b++)
                    wrong_ += cache_.page(l, request->second[i])[b] != static_cast<std::byte>(content(c.notify, l, i));
        std::printf("decode: request %d is here\n", static_cast<int>(c.notify));
        cache_.give(request->second);
        pages_.erase(request);
    }

    weft::endpoint endpoint_;
    kv_cache cache_{endpoint_, shape};
    weft::peer prefill_ = 0;
    std::map<std::uint64_t, numbers> pages_; // pages of requests that have not arrived
    int wrong_ = 0, failed_ = 0;
};

} // namespace

int main(int argc, char **argv)
try {
    const std::string_view role = argc > 1 ? argv[1] : "";
    if (role == "prefill" && argc == 3) {
        prefill(argv[2]).serve();
        return 0;
    }
    if (role == "decode" && argc == 4) {
        decode side(argv[2], argv[3]);
        for (std::uint32_t request = 1; request <= requests; request++)
            side.ask_for(request);
        return side.await_all() ? 0 : 1;
    }
    std::fprintf(stderr, "%s prefill PORT | decode HOST PORT\n", argv[0]);
    return 2;
} catch (const std::exception &e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
}
