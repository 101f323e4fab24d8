// SPDX-License-Identifier: Apache-2.0 OR MIT
#include "endpoint.hpp"
#include "log.hpp"

#include <cstring>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

namespace weft_nixl {
namespace {

const std::size_t most_early = 1024; // a peer that sends more without a handshake is no plugin
const std::size_t most_fences = 64;  // of one peer, by Weft's limit
// A fence waits for the peer's operations, whose deadlines are the peer's own: the longest that there is.
const std::uint64_t fence_timeout_ns = 24 * 3600 * 1'000'000'000ull;

} // namespace

bool endpoint::open(const parameters &with)
{
    const weft_endpoint_config config = with.endpoint();
    if (weft_endpoint_create(&config, &endpoint_) != WEFT_OK) {
        log(level::error, "agent %s: no endpoint: %s", agent_.c_str(), weft_last_error());
        return false;
    }
    stop_ = eventfd(0, EFD_CLOEXEC);
    thread_ = std::thread([this] { run(); });
    return true;
}

void endpoint::close()
{
    if (!endpoint_)
        return;
    if (thread_.joinable()) {
        (void)!eventfd_write(stop_, 1);
        thread_.join();
    }
    ::close(stop_);
    if (weft_endpoint_shutdown(endpoint_, 0) != WEFT_OK || weft_endpoint_destroy(endpoint_) != WEFT_OK)
        log(level::error, "agent %s: its endpoint stays open: %s", agent_.c_str(), weft_last_error());
    endpoint_ = nullptr;
}

std::string endpoint::address() const
{
    std::size_t len = 0;
    if (weft_endpoint_address(endpoint_, nullptr, 0, &len) != WEFT_OK)
        return "";
    std::string address(len, '\0');
    return weft_endpoint_address(endpoint_, &address[0], len, &len) == WEFT_OK ? address : "";
}

weft_status endpoint::connect(const std::string &agent, weft_peer *peer)
{
    const auto found = routes_.find(agent);
    if (found == routes_.end())
        return WEFT_ERR_HANDLE;
    route &to = found->second;
    if (!to.peer) {
        weft_peer id = 0;
        const weft_status status =
            weft_peer_connect(endpoint_, to.address.data(), to.address.size(), nullptr, &id);
        if (status != WEFT_OK) {
            log(level::error, "agent %s: no connection to %s: %s", agent_.c_str(), agent.c_str(), weft_last_error());
            return status;
        }
        to.peer = id;
        peers_[id].agent = agent;
        announce(id, peers_[id]);
        const weft_status sent = send(id, message::handshake, agent_);
        if (sent != WEFT_OK)
            return sent;
    }
    *peer = to.peer;
    return WEFT_OK;
}

weft_status endpoint::send(weft_peer peer, message what, const std::string &rest, const weft_op_options *options,
                           weft_op *op)
{
    const std::string bytes = static_cast<char>(what) + rest;
    return weft_send(endpoint_, peer, bytes.data(), bytes.size(), options, op);
}

void endpoint::run()
{
    int32_t event = -1;
    for (;;) {
        weft_status armed = weft_queue_arm(weft_endpoint_queue(endpoint_), &event);
        if (armed == WEFT_OK) {
            pollfd on[] = {{event, POLLIN, 0}, {stop_, POLLIN, 0}};
            poll(on, 2, -1);
            if (on[1].revents)
                return;
        } else if (armed != WEFT_ERR_AGAIN) {
            return;
        }
        const std::lock_guard<std::mutex> held(lock_);
        drain();
    }
}

void endpoint::drain()
{
    weft_completion done[64];
    for (std::int32_t count = 64; count == 64;) {
        count = weft_queue_poll(weft_endpoint_queue(endpoint_), done, 64, 0);
        for (std::int32_t i = 0; i < count; i++)
            take(done[i]);
    }
}

void endpoint::take(const weft_completion &done)
{
    switch (done.kind) {
    case WEFT_COMPLETION_PEER_UP:
        if (done.status != WEFT_OK)
            return end(done.peer, done.status, "cannot be reached");
        peers_[done.peer].up = true;
        return announce(done.peer, peers_[done.peer]);
    case WEFT_COMPLETION_PEER_DOWN:
        return end(done.peer, done.status, "ended");
    case WEFT_COMPLETION_MESSAGE:
    case WEFT_COMPLETION_NOTIFICATION: {
        std::string bytes(static_cast<const char *>(done.data), done.data ? done.bytes : 0);
        weft_message_release(endpoint_, done.op);
        return done.kind == WEFT_COMPLETION_MESSAGE ? take_message(done.peer, std::move(bytes))
                                                    : notify(done.peer, std::move(bytes));
    }
    case WEFT_COMPLETION_FENCE: {
        if (done.status == WEFT_OK) { // else the peer gives up at its own time
            const auto id = reinterpret_cast<std::uintptr_t>(done.user_data);
            send(done.peer, message::fenced, std::string(reinterpret_cast<const char *>(&id), sizeof id));
        }
        const auto found = peers_.find(done.peer);
        if (found == peers_.end())
            return;
        found->second.fences--;
        return fence(done.peer, found->second);
    }
    case WEFT_COMPLETION_SEND:
        if (done.status == WEFT_OK)
            return events_.delivered(reinterpret_cast<std::uintptr_t>(done.user_data));
        if (has(done.peer))
            log(level::warning, "agent %s: a message to %s failed: %s", agent_.c_str(),
                peers_[done.peer].agent.c_str(), weft_status_text(done.status));
        return;
    default: return;
    }
}

void endpoint::take_message(weft_peer from, std::string bytes)
{
    const auto what = static_cast<message>(bytes.empty() ? '\0' : bytes[0]);
    bytes.erase(0, 1);
    std::uint64_t id = 0;
    if ((what == message::fence || what == message::fenced) && bytes.size() == sizeof id)
        std::memcpy(&id, bytes.data(), sizeof id);
    switch (what) {
    case message::handshake: {
        peer &known = peers_[from];
        known.handshake_done = true;
        if (known.agent.empty())
            known.agent = bytes;
        announce(from, known);
        for (std::string &text : std::exchange(known.early, {}))
            events_.notified(known.agent, std::move(text));
        return;
    }
    case message::notification: return notify(from, std::move(bytes));
    case message::fence: {
        peer &known = peers_[from];
        known.later.push_back(id);
        return fence(from, known);
    }
    case message::fenced: return events_.fenced(id);
    }
    log(level::warning, "agent %s: a peer sends what is no message of this plugin", agent_.c_str());
}

void endpoint::notify(weft_peer from, std::string text)
{
    peer &known = peers_[from];
    if (known.handshake_done)
        events_.notified(known.agent, std::move(text));
    else if (known.early.size() < most_early)
        known.early.push_back(std::move(text));
}

void endpoint::fence(weft_peer from, peer &known)
{
    while (known.fences < most_fences && !known.later.empty()) {
        weft_op_options options = WEFT_OP_OPTIONS_INIT;
        options.timeout_ns = fence_timeout_ns;
        options.user_data = reinterpret_cast<void *>(static_cast<std::uintptr_t>(known.later.front()));
        known.later.pop_front();
        if (weft_peer_fence(endpoint_, from, &options, nullptr) == WEFT_OK)
            known.fences++;
        else
            log(level::warning, "agent %s: no fence: %s", agent_.c_str(), weft_last_error());
    }
}

void endpoint::announce(weft_peer id, peer &other)
{
    weft_peer_properties known = WEFT_PEER_PROPERTIES_INIT;
    if (other.announced || !other.up || other.agent.empty() || weft_peer_info(endpoint_, id, &known) != WEFT_OK)
        return;
    other.announced = true;
    other.on_host = std::strcmp(known.fabric, "host") == 0;
    log(level::information, "agent %s: peer %s: fabric %s, %u rails: %s", agent_.c_str(), other.agent.c_str(), known.fabric,
        known.local_rails, known.reason);
}

void endpoint::end(weft_peer id, weft_status status, const char *what)
{
    const auto found = peers_.find(id);
    if (found != peers_.end() && status != WEFT_OK && status != WEFT_ERR_PEER_CLOSED)
        log(level::warning, "agent %s: peer %s %s: %s", agent_.c_str(), found->second.agent.c_str(), what,
            weft_status_text(status));
    if (found != peers_.end())
        peers_.erase(found);
    for (auto &[agent, to] : routes_)
        if (to.peer == id)
            to.peer = 0;
    events_.lost(*this, id);
}

} // namespace weft_nixl
