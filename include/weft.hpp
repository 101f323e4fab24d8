/*
 * Weft in C++17: weft.h with owners that move, spans, std::chrono and exceptions.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * How it goes:
 *
 *     weft::endpoint ep;
 *     weft::memory kv = ep.register_memory(layers);          // 80 ranges, one handle
 *     weft::peer decode = ep.connect(address);               // its address came by any means
 *     weft::remote_memory theirs = ep.import_memory(decode, descriptor);
 *
 *     ep.write(kv, theirs, weft::pages(65536, mine, yours).layers(80),
 *              weft::options().with_notification(request_id).within(5s));
 *
 *     std::array<weft::completion, 64> room;
 *     for (const weft::completion &c : ep.poll(room)) finish(c);
 *
 * (`finish` must not throw: the completions behind it in `room` would be lost.)
 *
 * weft.h is the contract: each function here calls the one of its name there, and says only what is different. What
 * fails throws weft::error. Arguments are the structs of weft.h, zeroed and with their size set; the functions that
 * fill them in are a help, and every field can be set by hand.
 *
 * Without exceptions what would be thrown is said on stderr and ends the program by std::abort, also what a peer or a NIC
 * has caused. The functions named try_... survive `WEFT_ERR_AGAIN` alone. What is noexcept does not do it, nor does `cancel`
 * of what has completed. These do:
 *
 *     when a peer or a grant has ended:  every operation and its try_..., prepare, import_memory, disconnect, grant,
 *                                        info, lanes
 *     of blobs that are damaged:         connect, import_memory
 *     once the endpoint is shut down:    poll, wait, next, arm, event_fd, and what submits or makes (drain and dispatch end)
 *     while it is in use:                close, deregister, release, destroy
 *     without memory, NICs or room:      constructors, register_..., allocate, create_..., prepare, and what returns a blob,
 *                                        text or vector: address, descriptor, reason, metrics, lanes
 *     of stale handles, and mistakes:    all of these, info, statistics, counter::read, pages of two lists, expect, awaiter
 *
 * So there, call the functions of weft.h with the owners' handles (`get()`) for all that may fail, look at `status` of
 * completions instead of `weft::check`, and hand what was made to owners: each has a constructor that takes a handle.
 * examples-c/no_exceptions.cpp is a program.
 *
 * Owners move and do not copy; one that was moved from owns nothing, and is answered with WEFT_ERR_HANDLE. Their
 * destructors never throw. Keep what belongs to an endpoint no longer than the endpoint: declare it after. An order
 * that is wrong is harmless, since handles are checked. A `memory` that is destroyed while transfers use it shuts its
 * endpoint down: `deregister` it first.
 */
#ifndef WEFT_HPP
#define WEFT_HPP

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <ratio>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>
#if defined(__cpp_impl_coroutine)
#include <coroutine>
#endif
#if __cplusplus >= 202002L
#include <ranges>
#endif

#include "weft.h"

/* Names of their own in each mode: a program may have parts of both, and what is linked must not take a function of the other. */
#if defined(__cpp_exceptions)
#define WEFT_MODE throws
#else
#define WEFT_MODE aborts
#endif

namespace weft {
inline namespace WEFT_MODE {

using completion = weft_completion;
using peer = weft_peer;
using op = weft_op;

// ---- Errors ----

/** The failure of a call or of an operation. */
class error : public std::runtime_error {
public:
    error(weft_status status, const char *why)
        : std::runtime_error(std::string(weft_status_name(status)) + ": " + why), status_(status)
    {
    }

    weft_status status() const noexcept { return status_; }
    /** What can be done about it: `WEFT_CATEGORY_*`. */
    weft_category category() const noexcept { return weft_status_category(status_); }

private:
    weft_status status_;
};

namespace detail {

#if defined(__GNUC__) || defined(__clang__)
#define WEFT_COLD __attribute__((cold, noinline))
#else
#define WEFT_COLD
#endif

/** Throws; in a program without exceptions, says why on stderr and aborts. */
template <class Error> [[noreturn]] WEFT_COLD inline void raise(const Error &what)
{
#if defined(__cpp_exceptions)
    throw what;
#else
    std::fprintf(stderr, "weft: %s\n", what.what());
    std::abort();
#endif
}

[[noreturn]] WEFT_COLD inline void fail(weft_status status)
{
    raise(error(status, weft_last_error()));
}

[[noreturn]] WEFT_COLD inline void fail(const completion &c)
{
    std::string why = weft_status_text(c.status);
    if (c.provider_errno != 0)
        why += " (error number " + std::to_string(c.provider_errno) + ")";
    raise(error(c.status, why.c_str()));
}

#undef WEFT_COLD

} // namespace detail

/** The number that `options::identified` gave the operation. */
inline std::uintptr_t id_of(const completion &c) noexcept
{
    return reinterpret_cast<std::uintptr_t>(c.user_data);
}

/** Throws if a call of weft.h failed. */
inline void check(weft_status status)
{
    if (status < 0)
        detail::fail(status);
}

/** Throws if the operation that has completed failed. */
inline void check(const completion &c)
{
    if (c.status != WEFT_OK)
        detail::fail(c);
}

// ---- Views ----

/** Elements that lie elsewhere: of an array, a vector, a std::span. */
template <class T> class span {
    template <class C>
    using enabled = std::enable_if_t<
        std::is_convertible_v<std::remove_pointer_t<decltype(std::data(std::declval<C &>()))> (*)[], T (*)[]>>;

public:
    constexpr span() noexcept = default;
    constexpr span(T *data, std::size_t size) noexcept : data_(data), size_(size) {}
    template <class C, class = enabled<C>>
    constexpr span(C &&container) : data_(std::data(container)), size_(std::size(container))
    {
    }

    constexpr T *data() const noexcept { return data_; }
    constexpr std::size_t size() const noexcept { return size_; }
    constexpr bool empty() const noexcept { return size_ == 0; }
    constexpr T *begin() const noexcept { return data_; }
    constexpr T *end() const noexcept { return data_ + size_; }
    constexpr T &operator[](std::size_t i) const noexcept { return data_[i]; }

private:
    T *data_ = nullptr;
    std::size_t size_ = 0;
};

} // namespace WEFT_MODE
} // namespace weft

#if defined(__cpp_lib_ranges)
/* A view, as std::span is: so one becomes a std::span also where it is returned. */
template <class T> inline constexpr bool std::ranges::enable_borrowed_range<weft::span<T>> = true;
template <class T> inline constexpr bool std::ranges::enable_view<weft::span<T>> = true;
#endif

namespace weft {
inline namespace WEFT_MODE {

/** Bytes that lie elsewhere: of a string, or a vector of plain data. */
class bytes {
    template <class C> using element = std::remove_pointer_t<decltype(std::data(std::declval<const C &>()))>;
    template <class C> using plain = std::enable_if_t<std::is_trivially_copyable_v<element<C>>>;

public:
    constexpr bytes() noexcept = default;
    constexpr bytes(const void *data, std::size_t size) noexcept : data_(data), size_(size) {}
    template <class C, class = plain<C>>
    constexpr bytes(const C &container)
        : data_(std::data(container)), size_(std::size(container) * sizeof(element<C>))
    {
    }

    /** A text or a buffer? Say std::string_view, or how many bytes. */
    template <std::size_t N> bytes(const char (&)[N]) = delete;

    constexpr const void *data() const noexcept { return data_; }
    constexpr std::size_t size() const noexcept { return size_; }

private:
    const void *data_ = nullptr;
    std::size_t size_ = 0;
};

/** An address or a descriptor, to travel by any means. */
using blob = std::vector<std::byte>;

/** A range to register. It may be read-only if nothing writes to it. */
inline weft_memory_range range(const void *address, std::size_t len) noexcept
{
    weft_memory_range made{};
    made.address = const_cast<void *>(address);
    made.len = len;
    return made;
}

/** All elements of an array or vector of plain data. */
template <class C> weft_memory_range range_of(C &container)
{
    const bytes all(container);
    return range(all.data(), all.size());
}

// ---- Time ----

/** For ever, for `wait`. */
inline constexpr std::chrono::nanoseconds forever = std::chrono::nanoseconds::max();

namespace detail {

/** Negative durations (and what is no number) are 0, and those of more than 292 years are that long. */
template <class Rep, class Period> constexpr std::uint64_t to_ns(std::chrono::duration<Rep, Period> d)
{
    using unit = std::ratio_divide<Period, std::nano>;
    constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
    if (!(d > d.zero()))
        return 0;
    if constexpr (std::is_integral_v<Rep> && unit::den == 1) {
        if (d.count() > most / unit::num)
            return static_cast<std::uint64_t>(most);
        return static_cast<std::uint64_t>(d.count()) * static_cast<std::uint64_t>(unit::num);
    } else {
        const double ns = std::chrono::duration<double, std::nano>(d).count();
        return ns >= 9e18 ? static_cast<std::uint64_t>(most) : static_cast<std::uint64_t>(ns);
    }
}

/** The library rejects a value that does not fit, rather than use a part of it. */
constexpr std::uint32_t to_u32(std::size_t n) noexcept
{
    return n > 0xffffffffU ? 0xffffffffU : static_cast<std::uint32_t>(n);
}

} // namespace detail

/**
 * When an operation is to have ended: after a duration from now, up to 24 hours, or at a point of any clock. By
 * default the endpoint's `timeout_ns` (`connect_timeout_ns`). One that has passed ends the operation at once.
 */
class deadline {
public:
    constexpr deadline() noexcept = default;
    template <class Rep, class Period>
    constexpr deadline(std::chrono::duration<Rep, Period> from_now) : ns_(detail::to_ns(from_now))
    {
        if (ns_ == 0) // which is the default in C
            ns_ = 1;
    }
    template <class Clock, class Duration>
    deadline(std::chrono::time_point<Clock, Duration> when) : deadline(when - Clock::now())
    {
    }

    constexpr std::uint64_t timeout_ns() const noexcept { return ns_; }

private:
    std::uint64_t ns_ = 0;
};

// ---- What an endpoint makes ----

namespace detail {

/** What is in use when it is destroyed stays until its endpoint is closed: nothing else can be done about that. */
inline void leave(weft_status) noexcept {}

template <auto Give> struct giver {
    template <class T> void operator()(T *handle) const noexcept { leave(Give(handle)); }
};

struct memory_giver {
    weft_endpoint *owner = nullptr;
    void operator()(weft_memory *handle) const noexcept
    {
        if (given_back(handle) || (weft_endpoint_shutdown(owner, 0) == WEFT_OK && given_back(handle)))
            return;
        std::terminate();
    }

private:
    /** It is, or was before: with its endpoint, or by the process that this one was forked from. What ended early may
        take its time on a machine with much load: each call waits for it. */
    static bool given_back(weft_memory *handle) noexcept
    {
        weft_status status = WEFT_ERR_BUSY;
        for (int tries = 0; tries < 30 && status == WEFT_ERR_BUSY; ++tries)
            status = weft_memory_deregister(handle);
        return status == WEFT_OK || status == WEFT_ERR_HANDLE || status == WEFT_ERR_FORKED;
    }
};

struct allocation_giver {
    weft_endpoint *owner = nullptr;
    void operator()(void *data) const noexcept { leave(weft_memory_free(owner, data)); }
};

/** An address or descriptor, whose length is asked for first; it may grow in between. */
template <class To, class Fill> To fetch(Fill &&fill)
{
    To to;
    std::size_t len = 0;
    check(fill(nullptr, std::size_t{0}, &len));
    for (;;) {
        to.resize(len);
        const weft_status status = fill(to.data(), to.size(), &len);
        if (status == WEFT_ERR_TOO_SMALL)
            continue;
        check(status);
        to.resize(len);
        return to;
    }
}

/** A struct of weft.h that begins with its size. */
template <class Args> struct sized : Args {
    constexpr sized() noexcept : Args{} { this->size = sizeof(Args); }
};

} // namespace detail

/**
 * Registered memory. Where it cannot be given back when it is destroyed (transfers of its own still use it, a worker
 * does not answer, the fabric fails), it shuts its endpoint down and tries again, since nothing else makes it safe to
 * free the bytes: `deregister` first, where the endpoint goes on. If it is not given back even then (a provider does not
 * return), the program ends by std::terminate.
 */
class memory {
public:
    memory() noexcept = default;
    memory(weft_endpoint *owner, weft_memory *handle) noexcept : handle_(handle, detail::memory_giver{owner}) {}

    weft_memory *get() const noexcept { return handle_.get(); }
    /** Where it is, and how its bytes move. */
    weft_memory_properties info() const
    {
        detail::sized<weft_memory_properties> all;
        check(weft_memory_info(get(), &all));
        return all;
    }
    /** The descriptor that a peer imports. */
    blob descriptor() const
    {
        return detail::fetch<blob>(
            [this](void *to, std::size_t room, std::size_t *len) { return weft_memory_export(get(), to, room, len); });
    }
    /** Lets a peer reach it, all of it or what `args` names, until `endpoint::revoke`. */
    weft_grant_token grant(weft_peer to, const weft_grant_args *args = nullptr) const
    {
        weft_grant_token token;
        check(weft_grant_create(get(), to, args, &token));
        return token;
    }
    weft_grant_token grant(weft_peer to, const weft_grant_args &args) const { return grant(to, &args); }
    /** Throws if own transfers use it (`WEFT_ERR_BUSY`), and stays the owner. */
    void deregister()
    {
        check(weft_memory_deregister(get()));
        static_cast<void>(handle_.release());
    }

private:
    std::unique_ptr<weft_memory, detail::memory_giver> handle_;
};

/** Memory of a peer. Destroyed while transfers use it, it stays until the endpoint is closed. */
class remote_memory {
public:
    remote_memory() noexcept = default;
    explicit remote_memory(weft_remote_memory *handle) noexcept : handle_(handle) {}

    weft_remote_memory *get() const noexcept { return handle_.get(); }
    /** Throws if transfers use it (`WEFT_ERR_BUSY`), and owns it still. */
    void release()
    {
        check(weft_remote_memory_release(get()));
        static_cast<void>(handle_.release());
    }

private:
    std::unique_ptr<weft_remote_memory, detail::giver<weft_remote_memory_release>> handle_;
};

/** A prepared geometry. */
class prepared {
public:
    prepared() noexcept = default;
    explicit prepared(weft_prepared *handle) noexcept : handle_(handle) {}

    weft_prepared *get() const noexcept { return handle_.get(); }

private:
    std::unique_ptr<weft_prepared, detail::giver<weft_prepared_destroy>> handle_;
};

/** A watch. Destroyed while transfers name it, it stays until the endpoint is closed. */
class watch {
public:
    watch() noexcept = default;
    watch(weft_watch *handle, std::uint64_t *word) noexcept : handle_(handle), word_(word) {}

    weft_watch *get() const noexcept { return handle_.get(); }
    /** For the CPU and for GPUs, for as long as it owns the watch. */
    std::uint64_t *word() const noexcept { return word_; }
    /** Throws if transfers name it (`WEFT_ERR_BUSY`), and owns it still. */
    void free()
    {
        check(weft_watch_destroy(get()));
        static_cast<void>(handle_.release());
    }

private:
    std::unique_ptr<weft_watch, detail::giver<weft_watch_destroy>> handle_;
    std::uint64_t *word_ = nullptr;
};

/** Memory that `endpoint::allocate` made. Destroyed while it is registered, or after its endpoint, it stays for ever. */
class allocation {
public:
    allocation() noexcept = default;
    allocation(weft_endpoint *owner, void *data, std::size_t size) noexcept
        : data_(data, detail::allocation_giver{owner}), size_(size)
    {
    }

    std::byte *data() const noexcept { return static_cast<std::byte *>(data_.get()); }
    std::size_t size() const noexcept { return data_ ? size_ : 0; }

private:
    std::unique_ptr<void, detail::allocation_giver> data_;
    std::size_t size_ = 0;
};

namespace detail {

/** What belongs to an endpoint and is named by an id. */
template <auto Give> class owned_id {
public:
    owned_id() noexcept = default;
    owned_id(weft_endpoint *owner, std::uint64_t id) noexcept : owner_(owner), id_(id) {}
    owned_id(owned_id &&other) noexcept : owner_(other.owner_), id_(std::exchange(other.id_, 0)) {}
    owned_id &operator=(owned_id &&other) noexcept
    {
        owned_id old(std::move(*this));
        owner_ = other.owner_;
        id_ = std::exchange(other.id_, 0);
        return *this;
    }
    ~owned_id()
    {
        if (id_ != 0)
            Give(owner_, id_);
    }

    weft_endpoint *owner() const noexcept { return owner_; }
    std::uint64_t id() const noexcept { return id_; }

private:
    weft_endpoint *owner_ = nullptr;
    std::uint64_t id_ = 0;
};

} // namespace detail

/** A counter. */
class counter {
public:
    counter() noexcept = default;
    counter(weft_endpoint *owner, weft_counter id) noexcept : id_(owner, id) {}

    /** The id to send to peers. */
    weft_counter id() const noexcept { return id_.id(); }
    std::uint64_t read() const
    {
        std::uint64_t value = 0;
        check(weft_counter_read(id_.owner(), id_.id(), &value));
        return value;
    }

private:
    detail::owned_id<weft_counter_destroy> id_;
};

/** The data of a message or notification, given back when it leaves its scope. */
class message {
public:
    message() noexcept = default;
    message(weft_endpoint *owner, const completion &c) noexcept
        : id_(owner, c.op), data_(c.data), size_(static_cast<std::size_t>(c.bytes))
    {
    }

    /** Null if it has no bytes. */
    const std::byte *data() const noexcept { return size() == 0 ? nullptr : static_cast<const std::byte *>(data_); }
    std::size_t size() const noexcept { return id_.id() == 0 ? 0 : size_; }
    std::string text() const { return {static_cast<const char *>(data_), size()}; }

private:
    detail::owned_id<weft_message_release> id_;
    const void *data_ = nullptr;
    std::size_t size_ = 0;
};

namespace detail {

/** What an endpoint, which stands for its own queue, and further queues have in common. */
template <class Self> class polled {
public:
    /** Those that were there: the first of `room`. */
    [[nodiscard]] span<completion> poll(span<completion> room) const
    {
        return taken(room, weft_queue_poll(self(), room.data(), to_u32(room.size()), 0));
    }
    /** None if the time passed. */
    template <class Rep, class Period>
    [[nodiscard]] span<completion> wait(span<completion> room, std::chrono::duration<Rep, Period> time) const
    {
        return taken(room, weft_queue_poll(self(), room.data(), to_u32(room.size()), to_ns(time)));
    }
    template <class Clock, class Duration>
    [[nodiscard]] span<completion> wait(span<completion> room, std::chrono::time_point<Clock, Duration> until) const
    {
        return wait(room, until - Clock::now());
    }
    /** The next one, if it comes within that time. */
    template <class Time> [[nodiscard]] std::optional<completion> next(Time time) const
    {
        std::array<completion, 1> one;
        if (wait(one, time).empty())
            return std::nullopt;
        return one[0];
    }
    /** True: armed, sleep. False: there are completions, poll first. */
    [[nodiscard]] bool arm() const
    {
        const weft_status status = weft_queue_arm(self(), nullptr);
        if (status == WEFT_ERR_AGAIN)
            return false;
        check(status);
        return true;
    }
    /** Always the same. It arms, too: ask for it before the loop, since between `arm` and the sleep it takes a signal away. */
    [[nodiscard]] int event_fd() const
    {
        std::int32_t fd = -1;
        const weft_status status = weft_queue_arm(self(), &fd);
        if (status != WEFT_ERR_AGAIN)
            check(status);
        return fd;
    }

private:
    weft_queue *self() const noexcept { return static_cast<const Self *>(this)->queue_handle(); }

    static span<completion> taken(span<completion> room, std::int32_t n)
    {
        if (n < 0)
            fail(n);
        return {room.data(), static_cast<std::size_t>(n)};
    }
};

} // namespace detail

/** A further queue. Destroyed while it is in use, it stays until the endpoint is closed. */
class queue : public detail::polled<queue> {
public:
    queue() noexcept = default;
    explicit queue(weft_queue *handle) noexcept : handle_(handle) {}

    weft_queue *get() const noexcept { return handle_.get(); }
    /** Throws if it is in use (`WEFT_ERR_BUSY`), and owns it still. */
    void destroy()
    {
        check(weft_queue_destroy(get()));
        static_cast<void>(handle_.release());
    }

private:
    friend detail::polled<queue>;
    weft_queue *queue_handle() const noexcept { return get(); }

    std::unique_ptr<weft_queue, detail::giver<weft_queue_destroy>> handle_;
};

// ---- Arguments ----

using endpoint_config = detail::sized<weft_endpoint_config>;
using memory_args = detail::sized<weft_memory_args>;

/**
 * The options of an operation. Data, watches and queues that it names must be there until the call. Each function sets
 * one option or two and returns the options, so that they can be written in a row.
 */
struct options : detail::sized<weft_op_options> {
    options &within(deadline d) noexcept
    {
        timeout_ns = d.timeout_ns();
        return *this;
    }
    /** Comes back in the completion. */
    options &tagged(void *tag) noexcept
    {
        user_data = tag;
        return *this;
    }
    /** The same with a number: `id_of` the completion. */
    options &identified(std::uintptr_t id) noexcept { return tagged(reinterpret_cast<void *>(id)); }
    options &completing_in(const weft::queue &q) noexcept
    {
        queue = q.get();
        return *this;
    }
    options &with_notification(std::uint64_t value, bytes data = {}) noexcept
    {
        notify = value;
        notify_data = data.data();
        notify_data_len = detail::to_u32(data.size());
        return with(WEFT_NOTIFY);
    }
    /** As `with_notification`; of a failure, too. */
    options &with_notification_either_way(std::uint64_t value, bytes data = {}) noexcept
    {
        return with_notification(value, data).with(WEFT_NOTIFY_FAILURE);
    }
    options &latency_class() noexcept { return with(WEFT_CLASS_LATENCY); }
    /** Of a write into files: they are flushed before it has arrived. */
    options &durable() noexcept { return with(WEFT_DURABLE); }
    /** Of a list: one completion for each peer. */
    options &completing_each_peer() noexcept { return with(WEFT_COMPLETE_EACH_PEER); }
    /** Raises a counter of the peer by 1, when all bytes have arrived. */
    options &raising(weft_counter of_peer) noexcept
    {
        counter = of_peer;
        return *this;
    }
    /** By 1 for each page. */
    options &raising_by_page(weft_counter of_peer) noexcept { return raising(of_peer).with(WEFT_COUNT_PAGES); }
    /** Not before the watch has come to the value. */
    options &starting_at(const watch &of_stream, std::uint64_t value) noexcept
    {
        start_watch = of_stream.get();
        start_value = value;
        return *this;
    }
    /** The watch gets the value when the operation has ended, whatever its status. */
    options &setting(const watch &for_stream, std::uint64_t value) noexcept
    {
        done_watch = for_stream.get();
        done_value = value;
        return *this;
    }

    /** The peer's grant that it is under. */
    options &under(const weft_grant_token &of_peer) noexcept
    {
        grant = of_peer;
        return *this;
    }

private:
    options &with(int flag) noexcept
    {
        flags |= static_cast<std::uint32_t>(flag);
        return *this;
    }
};

/** The geometry of pages x layers. The lists must be there until the call. */
struct pages : detail::sized<weft_pages> {
    pages() noexcept = default;
    /** The first `count` pages of both sides. */
    explicit pages(std::uint64_t bytes_of_page, std::uint64_t count = 0) noexcept
    {
        page_len = bytes_of_page;
        page_count = count;
    }
    /** Page mine[i] here is page theirs[i] there. Throws std::invalid_argument if there are not as many. */
    pages(std::uint64_t bytes_of_page, span<const std::uint32_t> mine, span<const std::uint32_t> theirs)
        : pages(bytes_of_page, mine.size())
    {
        if (mine.size() != theirs.size())
            detail::raise(std::invalid_argument("weft::pages: not as many local pages as remote ones"));
        local.pages = mine.data();
        remote.pages = theirs.data();
    }
    /** Name arrays that outlive the call: lists in braces would be gone by then. */
    pages(std::uint64_t, std::initializer_list<std::uint32_t>, std::initializer_list<std::uint32_t>) = delete;
    /** Each layer is a range of its own; set `range_step` and `layer_stride` where it is not. */
    pages &layers(std::uint32_t count) noexcept
    {
        layer_count = count;
        local.range_step = remote.range_step = 1;
        return *this;
    }
    /** The range of layer 0, where its page 0 begins, and bytes from a page to the next (0: `page_len`). */
    pages &local_at(std::uint32_t first_range, std::uint64_t offset, std::uint64_t page_stride = 0) noexcept
    {
        return at(local, first_range, offset, page_stride);
    }
    pages &remote_at(std::uint32_t first_range, std::uint64_t offset, std::uint64_t page_stride = 0) noexcept
    {
        return at(remote, first_range, offset, page_stride);
    }

private:
    pages &at(weft_page_side &side, std::uint32_t first_range, std::uint64_t offset, std::uint64_t stride) noexcept
    {
        side.first_range = first_range;
        side.offset = offset;
        side.page_stride = stride;
        return *this;
    }
};

/** What a grant allows; by default all that the memory does, to all of it. */
struct grant_args : detail::sized<weft_grant_args> {
    grant_args() noexcept = default;
    /** These pages alone: the remote side of `all`, as the peer's transfers have it. `all` must be there until the call. */
    explicit grant_args(const weft::pages &all) noexcept
    {
        pages = &all.remote;
        page_len = all.page_len;
        page_count = all.page_count;
        layer_count = all.layer_count;
    }
    explicit grant_args(const weft::pages &&) = delete;
    grant_args &to_write() noexcept
    {
        access |= WEFT_ACCESS_REMOTE_WRITE;
        return *this;
    }
    grant_args &to_read() noexcept
    {
        access |= WEFT_ACCESS_REMOTE_READ;
        return *this;
    }
    /** The grant ends by itself then; revoke it all the same. */
    grant_args &within(deadline d) noexcept
    {
        timeout_ns = d.timeout_ns();
        return *this;
    }
    /** One notification of this value if the peer ends or the time is over. */
    grant_args &with_notification_of_failure(std::uint64_t value) noexcept
    {
        notify = value;
        flags |= WEFT_NOTIFY_FAILURE;
        return *this;
    }
};

/** An entry of a list, at the first byte of the first range of both. */
inline weft_list_entry list_entry(const memory &mine, const remote_memory &theirs, std::uint64_t len) noexcept
{
    weft_list_entry entry{};
    entry.local = mine.get();
    entry.remote = theirs.get();
    entry.len = len;
    return entry;
}

// ---- The endpoint ----

/**
 * An endpoint. Its destructor shuts it down without draining; `shutdown` first, to drain. Operations throw; those
 * named try_... are for callers that submit until there is no room: nothing instead of `WEFT_ERR_AGAIN`.
 */
class endpoint : public detail::polled<endpoint> {
public:
    /** With all defaults. */
    endpoint() : endpoint(endpoint_config()) {}
    explicit endpoint(const weft_endpoint_config &config)
    {
        weft_endpoint *made = nullptr;
        check(weft_endpoint_create(&config, &made));
        handle_.reset(made);
    }
    /** Owns what `weft_endpoint_create` made. */
    explicit endpoint(weft_endpoint *handle) noexcept : handle_(handle) {}

    weft_endpoint *get() const noexcept { return handle_.get(); }

    /** What is left comes out of `poll`, which throws `WEFT_ERR_CLOSED` behind the last; or use `drain`. */
    template <class Rep, class Period> void shutdown(std::chrono::duration<Rep, Period> drain)
    {
        check(weft_endpoint_shutdown(get(), detail::to_ns(drain)));
    }
    /** After a shutdown: passes on every completion that is left. */
    template <class Each> void drain(Each &&each)
    {
        std::array<completion, 16> room;
        for (;;) {
            const std::int32_t n = weft_queue_poll(weft_endpoint_queue(get()), room.data(), detail::to_u32(room.size()), 0);
            if (n == WEFT_ERR_CLOSED)
                return;
            check(n);
            for (std::size_t i = 0; i < static_cast<std::size_t>(n); i++)
                each(static_cast<const completion &>(room[i]));
        }
    }
    /** Throws if operations are outstanding (`WEFT_ERR_BUSY`), and owns it still. */
    void close()
    {
        check(weft_endpoint_destroy(get()));
        static_cast<void>(handle_.release());
    }

    blob address() const
    {
        return detail::fetch<blob>([this](void *to, std::size_t room, std::size_t *len) {
            return weft_endpoint_address(get(), to, room, len);
        });
    }
    weft_endpoint_properties info() const
    {
        detail::sized<weft_endpoint_properties> all;
        check(weft_endpoint_info(get(), &all, nullptr));
        return all;
    }
    weft_rail_properties rail(std::uint32_t index) const
    {
        detail::sized<weft_rail_properties> all;
        check(weft_rail_info(get(), index, &all, nullptr));
        return all;
    }
    weft_peer_properties info(weft::peer id) const
    {
        detail::sized<weft_peer_properties> all;
        check(weft_peer_info(get(), id, &all));
        return all;
    }
    /** Why a peer ended or could not be reached, for people. */
    std::string reason(weft::peer id) const
    {
        return detail::fetch<std::string>([this, id](char *to, std::size_t room, std::size_t *len) {
            return weft_peer_reason(get(), id, to, room, len);
        });
    }
    /** The peer's lanes, each with what it has done. */
    std::vector<weft_lane_statistics> lanes(weft::peer id) const
    {
        std::vector<weft_lane_statistics> all;
        for (std::uint32_t index = 0;; index++) {
            detail::sized<weft_lane_statistics> lane;
            const weft_status status = weft_lane_info(get(), id, index, &lane);
            if (status == WEFT_ERR_RANGE)
                return all;
            check(status);
            all.push_back(lane);
        }
    }
    weft_endpoint_statistics statistics() const
    {
        detail::sized<weft_endpoint_statistics> all;
        check(weft_endpoint_info(get(), nullptr, &all));
        return all;
    }
    weft_rail_statistics statistics(std::uint32_t rail) const
    {
        detail::sized<weft_rail_statistics> all;
        check(weft_rail_info(get(), rail, nullptr, &all));
        return all;
    }
    /** All that is counted, as text for Prometheus. */
    std::string metrics() const
    {
        return detail::fetch<std::string>([this](char *to, std::size_t room, std::size_t *len) {
            return weft_endpoint_metrics(get(), to, room, len);
        });
    }

    /** Answered by one `WEFT_COMPLETION_PEER_UP`; the peer can be used at once. */
    weft::peer connect(bytes address, deadline by = {}, void *user_data = nullptr)
    {
        const options said = options().within(by).tagged(user_data);
        weft::peer made = 0;
        check(weft_peer_connect(get(), address.data(), address.size(), &said, &made));
        return made;
    }
    void disconnect(weft::peer whom) { check(weft_peer_disconnect(get(), whom)); }

    [[nodiscard]] allocation allocate(std::size_t len, std::int32_t numa_node = WEFT_NUMA_ANY)
    {
        void *made = nullptr;
        check(weft_memory_alloc(get(), len, numa_node, &made));
        return {get(), made, len};
    }
    [[nodiscard]] memory register_memory(span<const weft_memory_range> ranges,
                                         const weft_memory_args &args = memory_args())
    {
        weft_memory *made = nullptr;
        check(weft_memory_register(get(), ranges.data(), ranges.size(), &args, &made));
        return {get(), made};
    }
    [[nodiscard]] memory register_memory(weft_memory_range range, const weft_memory_args &args = memory_args())
    {
        return register_memory(span<const weft_memory_range>(&range, 1), args);
    }
    /* Ranges of a file: their addresses are offsets. */
    [[nodiscard]] memory register_file(int fd, span<const weft_memory_range> ranges,
                                       weft_memory_args args = memory_args())
    {
        args.kind = WEFT_MEMORY_FILE;
        args.fd = fd;
        return register_memory(ranges, args);
    }
    [[nodiscard]] remote_memory import_memory(weft::peer owner, bytes descriptor)
    {
        weft_remote_memory *made = nullptr;
        check(weft_remote_memory_import(get(), owner, descriptor.data(), descriptor.size(), &made));
        return remote_memory(made);
    }
    [[nodiscard]] queue create_queue(std::uint32_t depth = 0)
    {
        weft_queue *made = nullptr;
        check(weft_queue_create(get(), depth, &made));
        return queue(made);
    }
    [[nodiscard]] counter create_counter()
    {
        weft_counter made = 0;
        check(weft_counter_create(get(), &made));
        return {get(), made};
    }
    [[nodiscard]] watch create_watch()
    {
        weft_watch *made = nullptr;
        std::uint64_t *word = nullptr;
        check(weft_watch_create(get(), &made, &word));
        return {made, word};
    }
    /** `flags`: see `weft_pages_prepare`. */
    [[nodiscard]] prepared prepare(const memory &mine, const remote_memory &theirs, const weft_pages &all,
                                   std::uint32_t flags = 0)
    {
        weft_prepared *made = nullptr;
        check(weft_pages_prepare(get(), mine.get(), theirs.get(), &all, flags, &made));
        return prepared(made);
    }
    [[nodiscard]] prepared prepare(span<const weft_list_entry> all, std::uint32_t flags = 0)
    {
        weft_prepared *made = nullptr;
        check(weft_list_prepare(get(), all.data(), all.size(), flags, &made));
        return prepared(made);
    }

    op write(const memory &mine, std::uint64_t offset, const remote_memory &theirs, std::uint64_t their_offset,
        std::uint64_t len, const weft_op_options &how = options())
    {
        return submit(weft_write, mine.get(), offset, theirs.get(), their_offset, len, &how);
    }
    op write(const memory &mine, const remote_memory &theirs, const weft_pages &all,
        const weft_op_options &how = options())
    {
        return submit(weft_write_pages, mine.get(), theirs.get(), &all, &how);
    }
    op write(span<const weft_list_entry> all, const weft_op_options &how = options())
    {
        return submit(weft_write_list, all.data(), all.size(), &how);
    }
    op write(const prepared &what, const weft_op_options &how = options())
    {
        return submit(weft_write_prepared, what.get(), &how);
    }
    [[nodiscard]] std::optional<op> try_write(const memory &mine, std::uint64_t offset, const remote_memory &theirs, std::uint64_t their_offset,
        std::uint64_t len, const weft_op_options &how = options())
    {
        return try_submit(weft_write, mine.get(), offset, theirs.get(), their_offset, len, &how);
    }
    [[nodiscard]] std::optional<op> try_write(const memory &mine, const remote_memory &theirs, const weft_pages &all,
        const weft_op_options &how = options())
    {
        return try_submit(weft_write_pages, mine.get(), theirs.get(), &all, &how);
    }
    [[nodiscard]] std::optional<op> try_write(span<const weft_list_entry> all, const weft_op_options &how = options())
    {
        return try_submit(weft_write_list, all.data(), all.size(), &how);
    }
    [[nodiscard]] std::optional<op> try_write(const prepared &what, const weft_op_options &how = options())
    {
        return try_submit(weft_write_prepared, what.get(), &how);
    }
    op read(const memory &mine, std::uint64_t offset, const remote_memory &theirs, std::uint64_t their_offset,
        std::uint64_t len, const weft_op_options &how = options())
    {
        return submit(weft_read, mine.get(), offset, theirs.get(), their_offset, len, &how);
    }
    op read(const memory &mine, const remote_memory &theirs, const weft_pages &all,
        const weft_op_options &how = options())
    {
        return submit(weft_read_pages, mine.get(), theirs.get(), &all, &how);
    }
    op read(span<const weft_list_entry> all, const weft_op_options &how = options())
    {
        return submit(weft_read_list, all.data(), all.size(), &how);
    }
    op read(const prepared &what, const weft_op_options &how = options())
    {
        return submit(weft_read_prepared, what.get(), &how);
    }
    [[nodiscard]] std::optional<op> try_read(const memory &mine, std::uint64_t offset, const remote_memory &theirs, std::uint64_t their_offset,
        std::uint64_t len, const weft_op_options &how = options())
    {
        return try_submit(weft_read, mine.get(), offset, theirs.get(), their_offset, len, &how);
    }
    [[nodiscard]] std::optional<op> try_read(const memory &mine, const remote_memory &theirs, const weft_pages &all,
        const weft_op_options &how = options())
    {
        return try_submit(weft_read_pages, mine.get(), theirs.get(), &all, &how);
    }
    [[nodiscard]] std::optional<op> try_read(span<const weft_list_entry> all, const weft_op_options &how = options())
    {
        return try_submit(weft_read_list, all.data(), all.size(), &how);
    }
    [[nodiscard]] std::optional<op> try_read(const prepared &what, const weft_op_options &how = options())
    {
        return try_submit(weft_read_prepared, what.get(), &how);
    }
    op send(weft::peer to, bytes what, const weft_op_options &how = options())
    {
        return submit(weft_send, to, what.data(), what.size(), &how);
    }
    [[nodiscard]] std::optional<op> try_send(weft::peer to, bytes what, const weft_op_options &how = options())
    {
        return try_submit(weft_send, to, what.data(), what.size(), &how);
    }
    op fetch_add(const remote_memory &theirs, std::uint64_t offset, std::uint64_t operand,
                 const weft_op_options &how = options())
    {
        return submit(weft_fetch_add, theirs.get(), offset, operand, &how);
    }
    op compare_swap(const remote_memory &theirs, std::uint64_t offset, std::uint64_t expected, std::uint64_t desired,
                    const weft_op_options &how = options())
    {
        return submit(weft_compare_swap, theirs.get(), offset, expected, desired, &how);
    }
    /** Throws std::invalid_argument if there are not as many values as counters. */
    op expect(span<const weft_counter> which, span<const std::uint64_t> values,
              const weft_op_options &how = options())
    {
        if (which.size() != values.size())
            detail::raise(std::invalid_argument("weft::endpoint::expect: not as many values as counters"));
        return submit(weft_counter_expect, which.data(), values.data(), detail::to_u32(which.size()), &how);
    }
    op fence(weft::peer id, const weft_op_options &how = options()) { return submit(weft_peer_fence, id, &how); }
    /** Takes a grant back: nothing arrives under it once that is complete. */
    op revoke(const weft_grant_token &token, const weft_op_options &how = options())
    {
        return submit(weft_grant_revoke, &token, &how);
    }

    /** False if it has completed already, which is normal when the two race. */
    bool cancel(op id)
    {
        const weft_status status = weft_op_cancel(get(), id);
        if (status == WEFT_ERR_HANDLE)
            return false;
        check(status);
        return true;
    }
    /** Owns the data of a MESSAGE or NOTIFICATION. To be called once for each, with data or without. */
    [[nodiscard]] message take(const completion &c) noexcept { return {get(), c}; }

private:
    struct closer {
        void operator()(weft_endpoint *handle) const noexcept
        {
            if (weft_endpoint_shutdown(handle, 0) == WEFT_OK)
                detail::leave(weft_endpoint_destroy(handle));
        }
    };

    template <class F, class... Args> op submit(F call, Args... args)
    {
        op id = 0;
        check(call(get(), args..., &id));
        return id;
    }
    template <class F, class... Args> std::optional<op> try_submit(F call, Args... args)
    {
        op id = 0;
        const weft_status status = call(get(), args..., &id);
        if (status == WEFT_ERR_AGAIN)
            return std::nullopt;
        check(status);
        return id;
    }
    friend detail::polled<endpoint>;
    weft_queue *queue_handle() const noexcept { return weft_endpoint_queue(get()); }

    std::unique_ptr<weft_endpoint, closer> handle_;
};

#if defined(__cpp_impl_coroutine)

/**
 * Operations that coroutines await, where the compiler has them (C++20):
 *
 *     weft::awaiter done(ep);
 *     weft::completion c = co_await done([&](const weft::options &how) { return ep.write(mine, 0, theirs, 0, len, how); },
 *                                        weft::options().within(5s));
 *
 * and, in the program's loop, whenever `event_fd` is readable: `done.dispatch(executor)`, one thread at a time. A failure
 * of the call is thrown where it is awaited; that of the operation is the completion's status (`weft::check(c)`). A lambda may
 * call a function of weft.h instead and return its `weft_status`: then nothing is thrown, and a failure of the call is the
 * completion's status, too. A coroutine must not be destroyed while it waits: every operation ends by its deadline.
 *
 * To cancel, keep the id: `return id = ep.write(...);` in the lambda, and `ep.cancel(id)` elsewhere. That is safe where one
 * thread submits and dispatches. Where another one dispatches, the coroutine may go on, and end, before the call has
 * returned: then the lambda must use neither its captures nor the coroutine's variables after the call. Have the id outlive
 * the coroutine, and name its place before the call (`kept` is a std::shared_ptr<std::atomic<weft::op>>):
 *
 *     [&](const weft::options &how) { const auto its = kept; return *its = ep.write(mine, 0, theirs, 0, len, how); }
 *
 * The end: shut the endpoint down, and dispatch until that returns false. Each coroutine that waited has then been passed on,
 * with `WEFT_ERR_CANCELED`, and what it submits is refused with `WEFT_ERR_CLOSED`. examples-c/coroutines.cpp is a program.
 */
class awaiter {
    template <class Submit> class operation;
    struct place {
        std::coroutine_handle<> waits;
        completion result;
    };

public:
    /** `depth`: operations at once; 0: the endpoint's `queue_depth`. */
    explicit awaiter(endpoint &ep, std::uint32_t depth = 0)
        : queue_(ep.create_queue(depth)), event_fd_(queue_.event_fd())
    {
    }

    template <class Submit> [[nodiscard]] operation<Submit> operator()(Submit submit, options how = {}) const
    {
        if (how.flags & WEFT_COMPLETE_EACH_PEER)
            detail::raise(std::invalid_argument("weft::awaiter: one completion for each peer cannot be awaited"));
        return {std::move(how.completing_in(queue_)), std::move(submit)};
    }
    /**
     * Passes the coroutines whose operations have ended to `executor(std::coroutine_handle<>)`, which must not throw, and
     * arms the event fd. False once the endpoint is shut down and all have been passed on: no other will come.
     */
    template <class Executor> bool dispatch(Executor &&executor) const
    {
        std::array<completion, 64> room;
        for (;;) {
            std::int32_t n = weft_queue_poll(queue_.get(), room.data(), detail::to_u32(room.size()), 0);
            for (std::int32_t i = 0; i < n; i++) {
                const completion &c = room[static_cast<std::size_t>(i)];
                place *const its = static_cast<place *>(c.user_data);
                its->result = c;
                executor(its->waits);
            }
            if (n == 0) {
                n = weft_queue_arm(queue_.get(), nullptr);
                if (n == WEFT_OK)
                    return true;
            }
            if (n == WEFT_ERR_CLOSED)
                return false;
            if (n != WEFT_ERR_AGAIN)
                check(n);
        }
    }
    /** Resumes them in place. */
    bool dispatch() const
    {
        return dispatch([](std::coroutine_handle<> waits) { waits.resume(); });
    }
    /** Always the same. */
    [[nodiscard]] int event_fd() const noexcept { return event_fd_; }

private:
    template <class Submit> class operation : place {
    public:
        operation(options how, Submit submit) : how_(how), submit_(std::move(submit)) {}
        operation(const operation &) = delete;
        operation &operator=(const operation &) = delete;
        bool await_ready() const noexcept { return false; }
        bool await_suspend(std::coroutine_handle<> caller)
        {
            using answer = decltype(submit_(how_));
            static_assert(std::is_same_v<answer, op> || std::is_same_v<answer, weft_status>,
                          "the lambda returns what the call does: an id, or a weft_status (try_... would start nothing)");
            this->waits = caller;
            /* From the call on another thread may resume the coroutine, and end it: nothing of it is used after, unless
             * the call was refused. */
            [[maybe_unused]] const answer started = submit_(how_.tagged(static_cast<place *>(this)));
            if constexpr (std::is_same_v<answer, weft_status>)
                if (started < 0) {
                    this->result = {};
                    this->result.status = started;
                    return false;
                }
            return true;
        }
        completion await_resume() const noexcept { return this->result; }

    private:
        options how_;
        Submit submit_;
    };

    queue queue_;
    int event_fd_;
};

#endif

/** What a logger gets: level (`WEFT_LOG_*`), part of the library, text. See weft_log_callback for what it may do. */
using logger = std::function<void(weft_log_level, std::string_view, std::string_view)>;

/** Sends the log of all endpoints to `to`, which must not throw; an empty one: to stderr. */
inline void set_logger(weft_log_level level, logger to)
{
    static std::mutex one_at_a_time;
    static logger *current = nullptr;
    const std::lock_guard<std::mutex> lock(one_at_a_time);
    auto next = std::make_unique<logger>(std::move(to));
    const weft_log_callback callback = [](weft_log_level at, const char *part, const char *text, void *what) noexcept {
        (*static_cast<logger *>(what))(at, part, text);
    };
    check(weft_log_set(level, *next ? callback : nullptr, next.get()));
    /* Nothing calls the old one from here on. */
    delete std::exchange(current, next.release());
}

/** The machine, as JSON. */
inline std::string topology()
{
    return detail::fetch<std::string>(
        [](char *to, std::size_t room, std::size_t *len) { return weft_topology(to, room, len); });
}

} // namespace WEFT_MODE
} // namespace weft

#undef WEFT_MODE

#endif // WEFT_HPP
