// The backend engine of NIXL over an agent, and what the plugin exports.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT
#include "agent.hpp"
#include "log.hpp"

#include <dlfcn.h>

using weft_nixl::agent;
using weft_nixl::level;
using weft_nixl::local_memory;
using weft_nixl::parameters;
using weft_nixl::remote_memory;
using weft_nixl::transfer;

namespace {

nixl_mem_list_t all_kinds() { return {DRAM_SEG, VRAM_SEG, FILE_SEG}; }

class engine final : public nixlBackendEngine {
public:
    explicit engine(const nixlBackendInitParams *init) : nixlBackendEngine(init)
    {
        const parameters with(*init->customParams);
        if (with.valid())
            agent_ = std::make_unique<agent>(init->localAgent, with);
        initErr = !agent_ || !agent_->open();
    }

    bool supportsRemote() const override { return true; }
    bool supportsLocal() const override { return true; }
    bool supportsNotif() const override { return true; }
    nixl_mem_list_t getSupportedMems() const override { return all_kinds(); }

    nixl_status_t registerMem(const nixlBlobDesc &range, const nixl_mem_t &kind, nixlBackendMD *&out) override
    {
        return agent_->register_memory(range, kind, out);
    }
    nixl_status_t deregisterMem(nixlBackendMD *memory) override
    {
        return agent_->deregister_memory(static_cast<local_memory *>(memory));
    }
    nixl_status_t getPublicData(const nixlBackendMD *memory, std::string &out) const override
    {
        return agent_->describe(static_cast<const local_memory &>(*memory), out);
    }
    nixl_status_t loadRemoteMD(const nixlBlobDesc &described, const nixl_mem_t &, const std::string &,
                               nixlBackendMD *&out) override
    {
        return agent_->load_memory(described.metaInfo, out);
    }
    nixl_status_t loadLocalMD(nixlBackendMD *memory, nixlBackendMD *&out) override
    {
        auto *own = new remote_memory;
        own->own = static_cast<local_memory *>(memory);
        out = own;
        return NIXL_SUCCESS;
    }
    nixl_status_t unloadMD(nixlBackendMD *memory) override
    {
        delete memory;
        return NIXL_SUCCESS;
    }

    nixl_status_t getConnInfo(std::string &out) const override
    {
        out = agent_->connection();
        return NIXL_SUCCESS;
    }
    nixl_status_t loadRemoteConnInfo(const std::string &other, const std::string &connection) override
    {
        return agent_->learn(other, connection);
    }
    nixl_status_t connect(const std::string &other) override { return agent_->connect(other); }
    nixl_status_t disconnect(const std::string &other) override
    {
        agent_->forget(other);
        return NIXL_SUCCESS;
    }

    nixl_status_t prepXfer(const nixl_xfer_op_t &operation, const nixl_meta_dlist_t &local,
                           const nixl_meta_dlist_t &remote, const std::string &other, nixlBackendReqH *&out,
                           const nixl_opt_b_args_t *) const override
    {
        return agent_->prepare(operation == NIXL_WRITE, local, remote, other, out);
    }
    nixl_status_t postXfer(const nixl_xfer_op_t &, const nixl_meta_dlist_t &, const nixl_meta_dlist_t &,
                           const std::string &, nixlBackendReqH *&request,
                           const nixl_opt_b_args_t *options) const override
    {
        return agent_->post(static_cast<transfer &>(*request),
                            options && options->hasNotif ? &options->notifMsg : nullptr);
    }
    nixl_status_t checkXfer(nixlBackendReqH *request) const override
    {
        return agent_->check(static_cast<transfer &>(*request));
    }
    nixl_status_t releaseReqH(nixlBackendReqH *request) const override
    {
        return agent_->release(static_cast<transfer *>(request));
    }

    nixl_status_t getNotifs(notif_list_t &into) override
    {
        agent_->take_notifications(into);
        return NIXL_SUCCESS;
    }
    nixl_status_t queryMem(const nixl_reg_dlist_t &named, std::vector<nixl_query_resp_t> &found) const override
    {
        if (named.getType() != FILE_SEG)
            return NIXL_ERR_NOT_SUPPORTED;
        found.clear();
        for (std::size_t i = 0; i < static_cast<std::size_t>(named.descCount()); i++)
            found.push_back(weft_nixl::query(named[i]));
        return NIXL_SUCCESS;
    }
    nixl_status_t genNotif(const std::string &other, const std::string &text) const override
    {
        return agent_->notify(other, text);
    }

private:
    std::unique_ptr<agent> agent_;
};

nixlBackendEngine *create(const nixlBackendInitParams *init)
try {
    return new engine(init);
} catch (const std::exception &failure) {
    weft_nixl::log(level::error, "no engine: %s", failure.what());
    return nullptr;
}

// Versions before 1.0 have other virtual functions under the same interface number, and would call the wrong ones. Only
// later versions have views of memory.
bool is_known(const void *in_nixl)
{
    Dl_info caller{};
    void *nixl = dladdr(in_nixl, &caller) ? dlopen(caller.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : nullptr;
    const bool known = nixl && dlsym(nixl, "_ZNK9nixlAgent14releaseMemViewEPv");
    if (nixl)
        dlclose(nixl);
    if (!known)
        weft_nixl::log(level::error, "%s is not NIXL 1.0 or newer, which this plugin is for",
                       caller.dli_fname ? caller.dli_fname : "what loads it");
    return known;
}

} // namespace

#define TEXT_OF(number) #number
#define VERSION_OF(major, minor, patch) TEXT_OF(major) "." TEXT_OF(minor) "." TEXT_OF(patch)
static constexpr const char *VERSION = VERSION_OF(WEFT_VERSION_MAJOR, WEFT_VERSION_MINOR, WEFT_VERSION_PATCH);

nixlBackendPlugin *nixl_plugin_init()
{
    static nixlBackendPlugin plugin = {
        NIXL_PLUGIN_API_VERSION,
        create,
        [](nixlBackendEngine *made) { delete made; },
        [] { return "WEFT"; },
        [] { return VERSION; },
        parameters::names,
        all_kinds,
    };
    return is_known(__builtin_return_address(0)) ? &plugin : nullptr;
}

void nixl_plugin_fini() {}
