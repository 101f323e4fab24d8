// A KV cache whose cold blocks lie on a peer's NVMe, in C++. The store has a file of slots, which is memory like any other:
// the engine writes blocks there and reads them back. Each use of a slot has a grant of its own. What to evict is the
// store's decision: it revokes the grant, so no read gets bytes of the slot's next block, and no write is late.
//
//     cold_pages store PORT [FOLDER]        PORT 0: any that is free; FOLDER: on the NVMe (/var/tmp)
//     cold_pages engine HOST PORT
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <unistd.h>
#include <weft.hpp>

#include "exchange.h"

namespace {

using namespace std::chrono_literals;

constexpr std::uint32_t layers = 4, slots = 6, blocks = 10;
constexpr std::uint64_t page_len = 65536; // of one layer of a block

enum class verb : std::uint32_t { put, get, done };

struct request {
    verb what;
    std::uint32_t slot; // with `done`
    std::uint64_t block;
};

struct offer {
    std::uint32_t found, slot;
    weft_grant_token grant;
};

/* * A message that is one struct. */
template <class T> T as(const weft::message &m)
{
    T value{};
    std::memcpy(&value, m.data(), std::min(sizeof value, m.size()));
    return value;
}

// ---- The store ----

class store {
public:
    store(const char *port, std::string folder)
    {
        // Its blocks are there before pages come: growing is slow. Weft opens the file again, without the page cache.
        std::string path = folder + "/weft-cold-XXXXXX";
        const int file = mkstemp(path.data());
        if (file < 0 || unlink(path.c_str()) != 0 || posix_fallocate(file, 0, layers * slots * page_len) != 0)
            throw std::runtime_error("no file in " + folder);
        std::vector<weft_memory_range> ranges; // a range for each layer: their addresses are offsets
        for (std::uint64_t l = 0; l < layers; l++)
            ranges.push_back({reinterpret_cast<void *>(l * slots * page_len), slots * page_len});
        weft::memory_args granted;
        granted.access = WEFT_ACCESS_GRANTED;
        file_ = endpoint_.register_file(file, ranges, granted);
        close(file);

        const weft::blob address = endpoint_.address(), descriptor = file_.descriptor();
        const int listener = exchange_listen(port), fd = exchange_accept(listener);
        exchange_put(fd, address.data(), address.size());
        exchange_put(fd, descriptor.data(), descriptor.size());
        close(fd), close(listener);
    }

    void serve()
    {
        std::array<weft::completion, 64> room;
        while (!gone_)
            for (const weft::completion &c : endpoint_.wait(room, weft::forever))
                handle(c);
        std::printf("store: %d blocks were evicted\n", evicted_);
    }

private:
    struct slot {
        std::uint64_t block = 0, used = 0;
        bool there = false; // the block's bytes are
        std::optional<weft_grant_token> grant;
        bool revoking = false;
        std::optional<request> waiting; // for the end of the grant
    };

    void handle(const weft::completion &c)
    {
        switch (c.kind) {
        case WEFT_COMPLETION_MESSAGE:
            engine_ = c.peer;
            serve(as<request>(endpoint_.take(c)));
            break;
        case WEFT_COMPLETION_NOTIFICATION: // a block is in the file
            for (slot &s : all_)
                if (s.block == c.notify && s.grant && !s.there) {
                    s.there = true;
                    take_back(s);
                }
            break;
        case WEFT_COMPLETION_FENCE: end_grant(all_.at(reinterpret_cast<std::uintptr_t>(c.user_data)), c); break;
        case WEFT_COMPLETION_PEER_DOWN: gone_ = true; break;
        default: weft::check(c);
        }
    }

    void serve(const request &r)
    {
        const auto holds = [&](const slot &s) { return s.there && s.block == r.block; };
        const auto found = std::find_if(all_.begin(), all_.end(), holds);
        if (r.what == verb::done) {
            take_back(all_.at(r.slot));
        } else if (r.what == verb::put) {
            const auto earlier = [](const slot &a, const slot &b) { return a.used < b.used; };
            slot &s = found != all_.end() ? *found : *std::min_element(all_.begin(), all_.end(), earlier);
            evicted_ += s.there && s.block != r.block;
            s.there = false; // from here on it is a miss
            lend(s, r);
        } else if (found != all_.end()) {
            lend(*found, r);
        } else {
            endpoint_.send(engine_, weft::bytes(&miss_, sizeof miss_));
        }
    }

    /* * Lends a slot, when nobody has it any longer. */
    void lend(slot &s, const request &r)
    {
        s.used = ++uses_;
        if (s.grant) {
            s.waiting = r;
            take_back(s);
            return;
        }
        const auto index = static_cast<std::uint32_t>(&s - all_.data());
        weft_page_side side{};
        side.pages = &index;
        side.range_step = 1;
        weft::grant_args args;
        args.access = r.what == verb::put ? WEFT_ACCESS_REMOTE_WRITE : WEFT_ACCESS_REMOTE_READ;
        args.pages = &side;
        args.page_len = page_len;
        args.page_count = 1;
        args.layer_count = layers;
        if (r.what == verb::put)
            s.there = false; // a late notification may have come while the slot's last grant was revoked
        s.block = r.block;
        s.grant = file_.grant(engine_, &args);
        const offer made{1, index, *s.grant};
        endpoint_.send(engine_, weft::bytes(&made, sizeof made));
    }

    void take_back(slot &s)
    {
        if (s.grant && !s.revoking)
            endpoint_.revoke(*s.grant, weft::options().tagged(reinterpret_cast<void *>(&s - all_.data())));
        s.revoking = s.grant.has_value();
    }

    /* * Nothing reads or writes the slot any longer. */
    void end_grant(slot &s, const weft::completion &c)
    {
        weft::check(c); // a disk that hangs: WEFT_ERR_TIMED_OUT, and the slot could be revoked again later
        s.grant.reset();
        s.revoking = false;
        if (const auto next = std::exchange(s.waiting, std::nullopt))
            lend(s, *next);
    }

    weft::endpoint endpoint_;
    weft::memory file_;
    std::array<slot, slots> all_;
    weft::peer engine_ = 0;
    std::uint64_t uses_ = 0;
    int evicted_ = 0;
    bool gone_ = false;
    offer miss_{};
};

// ---- The engine ----

class engine {
public:
    engine(const char *host, const char *port)
    {
        std::array<char, 4096> blob;
        const int fd = exchange_connect(host, port);
        store_ = endpoint_.connect(weft::bytes(blob.data(), exchange_get(fd, blob.data(), blob.size())), 10s);
        file_ = endpoint_.import_memory(store_, weft::bytes(blob.data(), exchange_get(fd, blob.data(), blob.size())));
        close(fd);
    }

    bool run()
    {
        for (std::uint64_t block = 1; block <= blocks; block++)
            offload(block);
        int back = 0, wrong = 0;
        for (std::uint64_t block = 1; block <= blocks; block++)
            if (const offer from = ask(verb::get, block); from.found != 0 && read(from) == WEFT_OK) {
                back++;
                for (std::uint64_t i = 0; i < bytes_.size(); i++)
                    wrong += bytes_.data()[i] != content(block, i);
                say(verb::done, block, from.slot);
            }
        std::printf("engine: %d blocks are back, %d bytes wrong\n", back, wrong);

        // The store gives the slot to another block before this one is read.
        const offer late = ask(verb::get, blocks);
        for (std::uint64_t block = blocks + 1; block <= blocks + slots; block++)
            offload(block);
        const weft_status status = read(late);
        std::printf("engine: a block that was evicted meanwhile: %s\n", weft_status_text(status));
        endpoint_.shutdown(1s);
        return back == slots && wrong == 0 && status == WEFT_ERR_REVOKED;
    }

private:
    static std::byte content(std::uint64_t block, std::uint64_t i)
    {
        return static_cast<std::byte>((block * 31 + i / page_len * 7 + i) % 251);
    }

    void offload(std::uint64_t block)
    {
        for (std::uint64_t i = 0; i < bytes_.size(); i++)
            bytes_.data()[i] = content(block, i);
        const offer to = ask(verb::put, block);
        endpoint_.write(memory_, file_, pages(to), weft::options().with_notification(block).under(to.grant).within(10s));
        weft::check(next(WEFT_COMPLETION_WRITE));
    }

    /* * A revoked grant may be known before the read begins. */
    weft_status read(const offer &from)
    try {
        std::fill(bytes_.data(), bytes_.data() + bytes_.size(), std::byte{0});
        endpoint_.read(memory_, file_, pages(from), weft::options().under(from.grant).within(10s));
        return next(WEFT_COMPLETION_READ).status;
    } catch (const weft::error &e) {
        return e.status();
    }

    static weft::pages pages(const offer &at)
    {
        return weft::pages(page_len, 1).layers(layers).remote_at(0, at.slot * page_len);
    }

    void say(verb what, std::uint64_t block, std::uint32_t slot = 0)
    {
        const request r{what, slot, block};
        endpoint_.send(store_, weft::bytes(&r, sizeof r));
    }

    offer ask(verb what, std::uint64_t block)
    {
        say(what, block);
        return as<offer>(endpoint_.take(next(WEFT_COMPLETION_MESSAGE)));
    }

    /* * The next completion of a kind; the others are of messages that were sent, and of the peer. */
    weft::completion next(weft_completion_kind kind)
    {
        for (;;)
            if (const auto c = endpoint_.next(20s); !c || c->kind == WEFT_COMPLETION_PEER_DOWN)
                throw std::runtime_error("the store does not answer");
            else if (c->kind == kind)
                return *c;
    }

    weft::endpoint endpoint_;
    weft::allocation bytes_ = endpoint_.allocate(layers * page_len);
    weft::memory memory_ = endpoint_.register_memory(ranges(bytes_)); // declared after what it registers
    weft::remote_memory file_;
    weft::peer store_ = 0;

    static std::vector<weft_memory_range> ranges(const weft::allocation &bytes)
    {
        std::vector<weft_memory_range> all;
        for (std::uint64_t l = 0; l < layers; l++)
            all.push_back(weft::range(bytes.data() + l * page_len, page_len));
        return all;
    }
};

} // namespace

int main(int argc, char **argv)
try {
    const std::string_view role = argc > 1 ? argv[1] : "";
    if (role == "store" && (argc == 3 || argc == 4)) {
        store(argv[2], argc == 4 ? argv[3] : "/var/tmp").serve();
        return 0;
    }
    if (role == "engine" && argc == 4)
        return engine(argv[2], argv[3]).run() ? 0 : 1;
    std::fprintf(stderr, "%s store PORT [FOLDER] | engine HOST PORT\n", argv[0]);
    return 2;
} catch (const std::exception &e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
}
