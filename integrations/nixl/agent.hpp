// An agent's work over Weft: its memory, its transfers, its notifications.
//
// An agent that is its own peer has a second endpoint, its mirror, to which it connects like to any other.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT
#ifndef WEFT_NIXL_AGENT_HPP
#define WEFT_NIXL_AGENT_HPP

#include "endpoint.hpp"
#include "geometry.hpp"

#include <atomic>
#include <unordered_map>
#include <unordered_set>

namespace weft_nixl {

/** A request of NIXL: prepared once, posted any number of times, one after the other. */
struct transfer final : nixlBackendReqH {
    weft_peer peer = 0;
    bool writes = false;
    geometry what;
    std::vector<const local_memory *> local;
    std::vector<std::shared_ptr<imported>> remote;

    // Of the last post:
    std::atomic<nixl_status_t> status{NIXL_SUCCESS};
    std::vector<weft_op> ops;
    std::size_t pending = 0;           // parts that have not completed
    weft_status failed = WEFT_OK;      // of the first part that failed
    bool canceled = false;             // by this agent
    bool notify_later = false;         // by a message, when all parts have completed
    std::string notification;
    std::uint64_t fence = 0;           // the fence that the peer was asked for
    std::uint64_t fence_until_ns = 0;
    bool refused = false;              // a release that took too long
};

class agent final : public endpoint::events {
public:
    agent(std::string name, const parameters &with);
    ~agent();
    bool open();
    std::string connection() const;

    nixl_status_t register_memory(const nixlBlobDesc &range, nixl_mem_t kind, nixlBackendMD *&out);
    nixl_status_t deregister_memory(local_memory *memory);
    nixl_status_t describe(const local_memory &memory, std::string &out) const;
    nixl_status_t load_memory(const std::string &described, nixlBackendMD *&out);

    nixl_status_t learn(const std::string &other, const std::string &connection);
    nixl_status_t connect(const std::string &other);
    void forget(const std::string &other);

    nixl_status_t prepare(bool writes, const nixl_meta_dlist_t &local, const nixl_meta_dlist_t &remote,
                          const std::string &other, nixlBackendReqH *&out);
    nixl_status_t post(transfer &t, const std::string *notification);
    nixl_status_t check(transfer &t);
    nixl_status_t release(transfer *t);

    nixl_status_t notify(const std::string &other, const std::string &text);
    void take_notifications(notif_list_t &into);

private:
    void notified(const std::string &from, std::string text) override;
    void delivered(std::uint64_t fence) override;
    void fenced(std::uint64_t id) override;
    void lost(const endpoint &at, weft_peer peer) override;

    weft_status reach(const std::string &other, weft_peer *peer);
    weft_status import(remote_memory &memory, weft_peer peer);
    void progress(std::uint64_t wait_ns = 0);
    void completed(transfer &t, const weft_completion &done);
    void all_parts_ended(transfer &t);
    void end(transfer &t, weft_status status);
    void cancel(transfer &t);
    bool wait(transfer *t, std::unique_lock<std::mutex> &held, std::uint64_t until_ns);
    void expire(transfer &t);
    void destroy(transfer *t);

    const std::string name_;
    const parameters parameters_;
    std::mutex lock_;
    endpoint main_;
    std::unique_ptr<endpoint> mirror_;
    weft_queue *queue_ = nullptr; // of transfers
    file_ids files_;
    std::unordered_set<transfer *> transfers_;
    std::unordered_map<std::uint64_t, transfer *> fences_;
    std::vector<transfer *> orphans_; // released before they had ended
    std::uint64_t last_fence_ = 0, last_prepared_ = 0;
    notif_list_t notifications_;
};

} // namespace weft_nixl
#endif
