// SPDX-License-Identifier: Apache-2.0 OR MIT
#include "agent.hpp"
#include "log.hpp"
#include "status.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>

namespace weft_nixl {
namespace {

const std::string connection_prefix = "weft/1:"; // the version is also that of messages between plugins
const std::uint64_t fence_ns = 2'000'000'000, release_ns = 1'000'000'000;
// A waiting caller makes the passes of Weft's worker, whose thread sleeps meanwhile and leaves its processor to the
// peer's. So a small transfer within one host has usually ended by its first check.
const std::uint64_t check_ns = 20'000;
const int deregister_tries = 2000;

std::uint64_t now_ns()
{
    using namespace std::chrono;
    return static_cast<std::uint64_t>(duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count());
}

void pause(std::chrono::microseconds for_) { std::this_thread::sleep_for(for_); }

weft_status exported(const weft_memory *memory, std::string &out)
{
    std::size_t len = 0;
    weft_status status = weft_memory_export(memory, nullptr, 0, &len);
    out.resize(len);
    return status == WEFT_OK ? weft_memory_export(memory, &out[0], len, &len) : status;
}

bool in_progress(const transfer &t) { return t.status.load(std::memory_order_acquire) == NIXL_IN_PROG; }

} // namespace

agent::agent(std::string name, const parameters &with)
    : name_(std::move(name)), parameters_(with), main_(name_, lock_, *this)
{
}

agent::~agent()
{
    main_.close();
    if (mirror_)
        mirror_->close();
    for (transfer *t : orphans_)
        delete t;
}

bool agent::open()
{
    if (!main_.open(parameters_))
        return false;
    if (weft_queue_create(main_.handle(), 0, &queue_) == WEFT_OK)
        return true;
    log(level::error, "agent %s: no queue: %s", name_.c_str(), weft_last_error());
    return false;
}

std::string agent::connection() const { return connection_prefix + main_.address(); }

// ---- Memory

nixl_status_t agent::register_memory(const nixlBlobDesc &range, nixl_mem_t kind, nixlBackendMD *&out)
{
    if (kind != DRAM_SEG && kind != VRAM_SEG && kind != FILE_SEG)
        return NIXL_ERR_NOT_SUPPORTED;
    auto memory = std::make_unique<local_memory>();
    memory->range = {reinterpret_cast<void *>(range.addr), range.len};
    memory->args.kind = kind == VRAM_SEG ? WEFT_MEMORY_CUDA : WEFT_MEMORY_HOST;
    if (kind == FILE_SEG) {
        if (!memory->file.open(range)) {
            log(level::error, "agent %s: a file is not opened (devId %llu, metaInfo \"%s\"): %s", name_.c_str(),
                static_cast<unsigned long long>(range.devId), range.metaInfo.c_str(), std::strerror(errno));
            return NIXL_ERR_INVALID_PARAM;
        }
        memory->args.kind = WEFT_MEMORY_FILE;
        memory->args.fd = memory->file.fd();
        memory->file_id = range.devId;
    }
    weft_status status = WEFT_ERR_INVALID;
    // Read-only memory, such as weights that are mapped from a file, and files that are open in one direction, are invalid
    // for the other one.
    for (const std::uint32_t access : {WEFT_ACCESS_REMOTE_READ | WEFT_ACCESS_REMOTE_WRITE, WEFT_ACCESS_REMOTE_READ,
                                       WEFT_ACCESS_REMOTE_WRITE}) {
        if (status != WEFT_ERR_INVALID)
            break;
        memory->args.access = access;
        status = weft_memory_register(main_.handle(), &memory->range, 1, &memory->args, &memory->handle);
    }
    if (status != WEFT_OK) {
        log(level::error, "agent %s: memory of %zu bytes is not registered: %s", name_.c_str(), range.len,
            weft_last_error());
        return as_nixl(status);
    }
    const std::lock_guard<std::mutex> held(lock_);
    if (kind == FILE_SEG && !files_.take(range.devId, memory->file)) {
        log(level::error, "agent %s: devId %llu stands for another file, which is registered", name_.c_str(),
            static_cast<unsigned long long>(range.devId));
        (void)!weft_memory_deregister(memory->handle);
        return NIXL_ERR_INVALID_PARAM;
    }
    out = memory.release();
    return NIXL_SUCCESS;
}

nixl_status_t agent::deregister_memory(local_memory *memory)
{
    {
        std::unique_lock<std::mutex> held(lock_);
        std::vector<transfer *> canceled;
        for (transfer *t : transfers_) {
            if (std::find(t->local.begin(), t->local.end(), memory) == t->local.end())
                continue;
            cancel(*t);
            for (weft_prepared *part : std::exchange(t->what.parts, {}))
                weft_prepared_destroy(part);
            canceled.push_back(t);
        }
        // By then a stopped peer, which may hold the memory, is disconnected. One that is only busy does not hold it.
        const std::uint64_t until_ns = now_ns() + fence_ns + release_ns;
        for (transfer *t : canceled)
            wait(t, held, until_ns);
    }
    weft_status status = WEFT_OK;
    for (weft_memory **handle : {&memory->mirrored, &memory->handle}) {
        for (int tries = 0; tries < deregister_tries; tries++) {
            status = weft_memory_deregister(*handle);
            if (status != WEFT_ERR_BUSY)
                break;
            pause(std::chrono::milliseconds(1));
        }
        if (status != WEFT_OK) {
            log(level::error, "agent %s: memory stays registered: %s", name_.c_str(), weft_last_error());
            return as_nixl(status);
        }
        *handle = nullptr; // so that a call after a failure begins where this one ended
    }
    if (memory->args.kind == WEFT_MEMORY_FILE) {
        const std::lock_guard<std::mutex> held(lock_);
        files_.give_back(memory->file_id);
    }
    delete memory;
    return NIXL_SUCCESS;
}

nixl_status_t agent::describe(const local_memory &memory, std::string &out) const
{
    const weft_status status = exported(memory.handle, out);
    out.insert(0, reinterpret_cast<const char *>(&memory.range.address), sizeof(std::uintptr_t));
    return as_nixl(status);
}

nixl_status_t agent::load_memory(const std::string &described, nixlBackendMD *&out)
{
    std::uintptr_t base = 0;
    if (described.size() <= sizeof base)
        return NIXL_ERR_MISMATCH;
    std::memcpy(&base, described.data(), sizeof base);
    auto memory = std::make_unique<remote_memory>();
    memory->base = base;
    memory->descriptor = described.substr(sizeof base);
    out = memory.release();
    return NIXL_SUCCESS;
}

weft_status agent::import(remote_memory &memory, weft_peer peer)
{
    if (memory.import && memory.import->peer == peer)
        return WEFT_OK;
    if (local_memory *own = memory.own) {
        memory.base = reinterpret_cast<std::uintptr_t>(own->range.address);
        weft_status status = WEFT_OK;
        if (!own->mirrored)
            status = weft_memory_register(mirror_->handle(), &own->range, 1, &own->args, &own->mirrored);
        if (status == WEFT_OK)
            status = exported(own->mirrored, memory.descriptor);
        if (status != WEFT_OK)
            return status;
    }
    auto fresh = std::make_shared<imported>();
    fresh->peer = peer;
    const weft_status status = weft_remote_memory_import(main_.handle(), peer, memory.descriptor.data(),
                                                         memory.descriptor.size(), &fresh->handle);
    if (status == WEFT_OK)
        memory.import = std::move(fresh);
    return status;
}

// ---- Other agents

nixl_status_t agent::learn(const std::string &other, const std::string &connection)
{
    if (connection.compare(0, connection_prefix.size(), connection_prefix) != 0) {
        log(level::error, "agent %s: %s has another version of this plugin", name_.c_str(), other.c_str());
        return NIXL_ERR_MISMATCH;
    }
    const std::lock_guard<std::mutex> held(lock_);
    main_.learn(other, connection.substr(connection_prefix.size()));
    return NIXL_SUCCESS;
}

nixl_status_t agent::connect(const std::string &other)
{
    if (other == name_) // NIXL asks each backend for it, before it is needed
        return NIXL_SUCCESS;
    const std::lock_guard<std::mutex> held(lock_);
    weft_peer peer = 0;
    return main_.knows(other) ? as_nixl(reach(other, &peer)) : NIXL_ERR_NOT_FOUND;
}

void agent::forget(const std::string &other)
{
    const std::lock_guard<std::mutex> held(lock_);
    main_.forget(other);
}

weft_status agent::reach(const std::string &other, weft_peer *peer)
{
    if (other == name_ && !mirror_) {
        auto mirror = std::make_unique<endpoint>(name_, lock_, *this);
        if (!mirror->open(parameters_))
            return WEFT_ERR_NO_RAILS;
        mirror_ = std::move(mirror);
        main_.learn(name_, mirror_->address());
    }
    return main_.connect(other, peer);
}

// ---- Transfers

nixl_status_t agent::prepare(bool writes, const nixl_meta_dlist_t &local, const nixl_meta_dlist_t &remote,
                             const std::string &other, nixlBackendReqH *&out)
{
    auto t = std::make_unique<transfer>();
    t->writes = writes;
    weft_status status = WEFT_OK;
    {
        const std::lock_guard<std::mutex> held(lock_);
        status = reach(other, &t->peer);
        const std::uint64_t serial = ++last_prepared_;
        for (std::size_t i = 0, count = static_cast<std::size_t>(local.descCount()); i < count && status == WEFT_OK; i++) {
            auto &here = static_cast<local_memory &>(*local[i].metadataP);
            auto &there = static_cast<remote_memory &>(*remote[i].metadataP);
            if (here.seen != serial) {
                here.seen = serial;
                t->local.push_back(&here);
            }
            if (there.seen != serial) {
                there.seen = serial;
                status = import(there, t->peer);
                t->remote.push_back(there.import);
            }
        }
    }
    if (status == WEFT_OK)
        status = weft_nixl::prepare(main_.handle(), t->peer, local, remote, &t->what);
    if (status != WEFT_OK) {
        log(level::error, "agent %s: a transfer with %s cannot be prepared: %s: %s", name_.c_str(), other.c_str(),
            weft_status_name(status), weft_last_error());
        for (weft_prepared *part : t->what.parts)
            weft_prepared_destroy(part);
        return as_nixl(status);
    }
    const std::lock_guard<std::mutex> held(lock_);
    transfers_.insert(t.get());
    out = t.release();
    return NIXL_SUCCESS;
}

nixl_status_t agent::post(transfer &t, const std::string *notification)
{
    const std::lock_guard<std::mutex> held(lock_);
    if (in_progress(t))
        return NIXL_ERR_REPOST_ACTIVE;
    if (t.what.parts.empty()) // its local memory was deregistered
        return NIXL_ERR_NOT_FOUND;
    weft_op_options options = WEFT_OP_OPTIONS_INIT;
    options.timeout_ns = parameters_.timeout_ns();
    options.user_data = &t;
    options.queue = queue_;
    options.flags = t.what.latency() ? WEFT_CLASS_LATENCY : 0;
    t.notify_later = notification && (t.what.parts.size() > 1 || notification->size() > WEFT_NOTIFY_DATA_MAX);
    if (t.notify_later)
        t.notification = *notification;
    if (notification && !t.notify_later) {
        options.flags |= WEFT_NOTIFY;
        options.notify_data = notification->empty() ? nullptr : notification->data();
        options.notify_data_len = static_cast<std::uint32_t>(notification->size());
    }
    t.failed = WEFT_OK;
    t.canceled = false;
    t.refused = false;
    t.ops.clear();
    for (const weft_prepared *part : t.what.parts) {
        weft_op op = 0;
        t.failed = t.writes ? weft_write_prepared(main_.handle(), part, &options, &op)
                            : weft_read_prepared(main_.handle(), part, &options, &op);
        if (t.failed != WEFT_OK)
            break;
        t.ops.push_back(op);
    }
    t.pending = t.ops.size();
    if (t.failed != WEFT_OK)
        log(level::error, "agent %s: a transfer is not posted: %s", name_.c_str(), weft_last_error());
    t.status.store(t.pending ? NIXL_IN_PROG : as_nixl(t.failed), std::memory_order_release);
    if (t.failed != WEFT_OK)
        cancel(t);
    return t.status;
}

nixl_status_t agent::check(transfer &t)
{
    if (in_progress(t) && lock_.try_lock()) {
        const std::lock_guard<std::mutex> held(lock_, std::adopt_lock);
        progress(t.what.latency() && main_.is_on_host(t.peer) ? check_ns : 0);
        expire(t);
    }
    if (in_progress(t)) // callers check without pause, possibly on the CPU that a worker needs
        std::this_thread::yield();
    return t.status.load(std::memory_order_acquire);
}

// Blocks for a round trip, so that a caller that reuses the memory at once finds it untouched on both sides.
nixl_status_t agent::release(transfer *t)
{
    std::unique_lock<std::mutex> held(lock_);
    cancel(*t);
    // NIXL drops a request at the second attempt, whatever that returns. So the second one waits for the end.
    if (!wait(t, held, now_ns() + (t->refused ? parameters_.timeout_ns() + fence_ns + release_ns : release_ns))) {
        if (std::exchange(t->refused, true))
            orphans_.push_back(t);
        return NIXL_ERR_REPOST_ACTIVE;
    }
    destroy(t);
    return NIXL_SUCCESS;
}

void agent::cancel(transfer &t)
{
    if (!in_progress(t))
        return;
    t.canceled = true;
    for (const weft_op op : t.ops)
        (void)!weft_op_cancel(main_.handle(), op);
}

bool agent::wait(transfer *t, std::unique_lock<std::mutex> &held, std::uint64_t until_ns)
{
    for (;;) {
        progress();
        if (!transfers_.count(t)) // an orphan that has ended, or another thread has released it
            return true;
        expire(*t);
        if (!in_progress(*t))
            return true;
        if (now_ns() > until_ns)
            return false;
        held.unlock();
        pause(std::chrono::microseconds(50));
        held.lock();
    }
}

void agent::destroy(transfer *t)
{
    for (weft_prepared *part : t->what.parts)
        weft_prepared_destroy(part);
    transfers_.erase(t);
    delete t;
}

void agent::progress(std::uint64_t wait_ns)
{
    weft_completion done[64];
    for (std::int32_t count = 64; count == 64; wait_ns = 0) {
        count = weft_queue_poll(queue_, done, 64, wait_ns);
        for (std::int32_t i = 0; i < count; i++)
            completed(*static_cast<transfer *>(done[i].user_data), done[i]);
    }
    for (std::size_t i = orphans_.size(); i-- > 0;) {
        transfer *t = orphans_[i];
        expire(*t);
        if (in_progress(*t))
            continue;
        orphans_.erase(orphans_.begin() + static_cast<std::ptrdiff_t>(i));
        destroy(t);
    }
}

void agent::completed(transfer &t, const weft_completion &done)
{
    // Weft cancels all operations of a peer that `expire` disconnects.
    const weft_status status =
        done.status == WEFT_ERR_CANCELED && !t.canceled ? WEFT_ERR_PEER_CLOSED : done.status;
    if (done.kind == WEFT_COMPLETION_SEND)
        return end(t, status);
    if (status != WEFT_OK && t.failed == WEFT_OK) {
        t.failed = status;
        cancel(t);
    }
    if (--t.pending == 0)
        all_parts_ended(t);
}

void agent::all_parts_ended(transfer &t)
{
    if (t.failed == WEFT_OK && t.notify_later) {
        weft_op_options options = WEFT_OP_OPTIONS_INIT;
        options.timeout_ns = parameters_.timeout_ns();
        options.user_data = &t;
        options.queue = queue_;
        t.ops.assign(1, 0); // what a release cancels now
        t.failed = main_.send(t.peer, message::notification, t.notification, &options, t.ops.data());
        if (t.failed == WEFT_OK)
            return;
    }
    // Bytes of an unsuccessful write may still land, unless the peer confirms that they cannot.
    if (t.failed != WEFT_OK && t.writes && main_.has(t.peer)) {
        t.fence = ++last_fence_;
        const std::string id(reinterpret_cast<const char *>(&t.fence), sizeof t.fence);
        weft_op_options options = WEFT_OP_OPTIONS_INIT;
        options.user_data = reinterpret_cast<void *>(static_cast<std::uintptr_t>(t.fence));
        if (main_.send(t.peer, message::fence, id, &options) == WEFT_OK) {
            t.fence_until_ns = now_ns() + fence_ns;
            fences_[t.fence] = &t;
            return;
        }
        t.fence = 0;
    }
    end(t, t.failed);
}

void agent::expire(transfer &t)
{
    if (!in_progress(t) || !t.fence || now_ns() < t.fence_until_ns)
        return;
    log(level::warning, "agent %s: a peer does not confirm that a write has ended: its connection is closed",
        name_.c_str());
    main_.disconnect(t.peer); // afterwards nothing of this agent lands there
    end(t, t.failed);
}

void agent::end(transfer &t, weft_status status)
{
    fences_.erase(std::exchange(t.fence, 0));
    if (status != WEFT_OK && status != WEFT_ERR_CANCELED)
        log(level::warning, "agent %s: a %s of %llu bytes failed: %s", name_.c_str(), t.writes ? "write" : "read",
            static_cast<unsigned long long>(t.what.bytes), weft_status_text(status));
    t.ops.clear();
    t.status.store(as_nixl(status), std::memory_order_release);
}

// A peer that is stopped does not take the message. One that has taken it answers once all operations that this agent
// had posted to it have ended.
void agent::delivered(std::uint64_t fence)
{
    const auto found = fences_.find(fence);
    if (found != fences_.end())
        found->second->fence_until_ns = now_ns() + parameters_.timeout_ns() + fence_ns;
}

void agent::fenced(std::uint64_t id)
{
    const auto found = fences_.find(id);
    if (found != fences_.end())
        end(*found->second, found->second->failed);
}

void agent::lost(const endpoint &at, weft_peer peer)
{
    if (&at != &main_)
        return;
    std::vector<transfer *> over;
    for (const auto &[id, t] : fences_)
        if (t->peer == peer)
            over.push_back(t);
    for (transfer *t : over)
        end(*t, t->failed);
}

// ---- Notifications

nixl_status_t agent::notify(const std::string &other, const std::string &text)
{
    const std::lock_guard<std::mutex> held(lock_);
    weft_peer peer = 0;
    weft_status status = reach(other, &peer);
    if (status == WEFT_OK)
        status = main_.send(peer, message::notification, text);
    if (status != WEFT_OK)
        log(level::error, "agent %s: no notification to %s: %s", name_.c_str(), other.c_str(), weft_last_error());
    return as_nixl(status);
}

void agent::notified(const std::string &from, std::string text) { notifications_.emplace_back(from, std::move(text)); }

void agent::take_notifications(notif_list_t &into)
{
    const std::lock_guard<std::mutex> held(lock_);
    main_.drain();
    if (mirror_)
        mirror_->drain();
    into = std::exchange(notifications_, {});
}

} // namespace weft_nixl
