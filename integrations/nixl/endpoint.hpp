// An agent's Weft endpoint: its connections, by the other agents' names, and the messages between plugins.
//
// A thread handles what peers send, so that they are answered even while the engine makes no calls. Completions of
// transfers go to a separate queue, which the thread does not read.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT
#ifndef WEFT_NIXL_ENDPOINT_HPP
#define WEFT_NIXL_ENDPOINT_HPP

#include "parameters.hpp"

#include <deque>
#include <map>
#include <string>
#include <thread>
#include <vector>

namespace weft_nixl {

/** First byte of a message between two plugins; what follows it. */
enum class message : char {
    handshake = 'h',    // the sender's agent; before all else
    notification = 'n', // its text
    fence = 'f',        // 8 bytes, which return as
    fenced = 'a',       // the same 8 bytes: nothing sent before the fence changes memory from now on
};

class endpoint {
public:
    /** Called with the lock held. */
    struct events {
        virtual void notified(const std::string &agent, std::string text) = 0;
        virtual void delivered(std::uint64_t fence) = 0; // to the peer's queue; 0: another message
        virtual void fenced(std::uint64_t id) = 0;
        virtual void lost(const endpoint &at, weft_peer peer) = 0;

    protected:
        ~events() = default;
    };

    /** `lock` guards this object: all functions but `open`, `close` and `address` are called with it held. */
    endpoint(std::string agent, std::mutex &lock, events &to) : agent_(std::move(agent)), lock_(lock), events_(to) {}
    ~endpoint() { close(); }

    bool open(const parameters &with);
    /* * Ends all operations; returns when no thread of Weft touches memory any longer. */
    void close();
    weft_endpoint *handle() const { return endpoint_; }
    std::string address() const;

    void learn(const std::string &agent, const std::string &address) { routes_[agent] = {address, 0}; }
    bool knows(const std::string &agent) const { return routes_.count(agent) != 0; }
    /* * The connection stays, since the other agent may use it. */
    void forget(const std::string &agent) { routes_.erase(agent); }

    /* * Connects if necessary; the peer may still be connecting. */
    weft_status connect(const std::string &agent, weft_peer *peer);
    bool has(weft_peer peer) const { return peers_.count(peer) != 0; }
    /* * Whether shared memory serves it. */
    bool is_on_host(weft_peer peer) const
    {
        const auto found = peers_.find(peer);
        return found != peers_.end() && found->second.on_host;
    }
    void disconnect(weft_peer peer) { (void)!weft_peer_disconnect(endpoint_, peer); }
    weft_status send(weft_peer peer, message what, const std::string &rest, const weft_op_options *options = nullptr,
                     weft_op *op = nullptr);

    /* * Handles what peers have sent. */
    void drain();

private:
    struct route {
        std::string address;
        weft_peer peer; // 0: not connected
    };
    struct peer {
        std::string agent; // "" until its handshake, unless it was connected to
        bool handshake_done = false, up = false, announced = false, on_host = false;
        std::vector<std::string> early; // notifications that came before the handshake
        std::size_t fences = 0;         // under way; and those that it asked for beyond them
        std::deque<std::uint64_t> later;
    };

    void run();
    void take(const weft_completion &done);
    void take_message(weft_peer from, std::string bytes);
    void notify(weft_peer from, std::string text);
    void fence(weft_peer from, peer &known);
    void announce(weft_peer id, peer &other);
    void end(weft_peer id, weft_status status, const char *what);

    const std::string agent_;
    std::mutex &lock_;
    events &events_;
    weft_endpoint *endpoint_ = nullptr;
    std::map<std::string, route> routes_;
    std::map<weft_peer, peer> peers_;
    std::thread thread_;
    int stop_ = -1; // an eventfd
};

} // namespace weft_nixl
#endif
