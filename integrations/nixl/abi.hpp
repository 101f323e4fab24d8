// The interface between NIXL 1.x and a backend plugin: the layouts and the order of virtual functions in its wheels,
// which ship no headers. With WEFT_NIXL_HEADERS (CMake: NIXL_INCLUDE_DIR) NIXL's own headers are used.
//
// Everything here is hidden in the plugin, so no definition can replace one of NIXL's.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT
#ifndef WEFT_NIXL_ABI_HPP
#define WEFT_NIXL_ABI_HPP

#ifdef WEFT_NIXL_HEADERS
#include <backend/backend_plugin.h>
#else

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

enum nixl_mem_t { DRAM_SEG, VRAM_SEG, BLK_SEG, OBJ_SEG, FILE_SEG };
enum nixl_xfer_op_t { NIXL_READ, NIXL_WRITE };
enum nixl_status_t {
    NIXL_IN_PROG = 1,
    NIXL_SUCCESS = 0,
    NIXL_ERR_INVALID_PARAM = -2,
    NIXL_ERR_BACKEND = -3,
    NIXL_ERR_NOT_FOUND = -4,
    NIXL_ERR_MISMATCH = -5,
    NIXL_ERR_NOT_ALLOWED = -6,
    NIXL_ERR_REPOST_ACTIVE = -7,
    NIXL_ERR_NOT_SUPPORTED = -9,
    NIXL_ERR_REMOTE_DISCONNECT = -10,
    NIXL_ERR_CANCELED = -11
};
enum class nixl_thread_sync_t : int;
enum class nixl_cost_t : int;
struct nixlAgentOptionalArgs;

using nixl_b_params_t = std::unordered_map<std::string, std::string>;
using nixl_mem_list_t = std::vector<nixl_mem_t>;
using nixl_query_resp_t = std::optional<nixl_b_params_t>;
using notif_list_t = std::vector<std::pair<std::string, std::string>>;

struct nixlBasicDesc {
    std::uintptr_t addr;
    std::size_t len;
    std::uint64_t devId;
};

struct nixlBlobDesc : nixlBasicDesc {
    std::string metaInfo;
};

class nixlBackendMD {
protected:
    bool isPrivateMD;

public:
    explicit nixlBackendMD(bool is_private) : isPrivateMD(is_private) {}
    virtual ~nixlBackendMD() {}
};

struct nixlMetaDesc : nixlBasicDesc {
    nixlBackendMD *metadataP;
};

class nixlBackendReqH {
public:
    virtual ~nixlBackendReqH() {}
};

/* * Read-only: NIXL makes them. */
template <class T> class nixlDescList {
    virtual void functions_of_nixl() = 0;
    nixl_mem_t type;
    std::vector<T> descs;

public:
    nixlDescList() = delete;
    nixl_mem_t getType() const { return type; }
    int descCount() const { return static_cast<int>(descs.size()); }
    const T &operator[](std::size_t index) const { return descs[index]; }
};
using nixl_meta_dlist_t = nixlDescList<nixlMetaDesc>;
using nixl_reg_dlist_t = nixlDescList<nixlBlobDesc>;

struct nixlBackendOptionalArgs {
    std::string notifMsg;
    bool hasNotif;
    std::string customParam;
};
using nixl_opt_b_args_t = nixlBackendOptionalArgs;

struct nixlBackendInitParams {
    std::string localAgent;
    std::string type;
    nixl_b_params_t *customParams;
    bool enableProgTh;
    std::uint64_t pthrDelay;
    nixl_thread_sync_t syncMode;
    bool enableTelemetry_;
};

class nixlBackendEngine {
    std::string backendType; // NIXL reads the members by offset
    nixl_b_params_t customParams;
    std::vector<char> telemetryEvents_; // another type there, and empty here
    std::mutex telemetryEventsMutex_;

protected:
    bool initErr = false;
    const std::string localAgent;
    const bool enableTelemetry_;

public:
    explicit nixlBackendEngine(const nixlBackendInitParams *params)
        : backendType(params->type), customParams(*params->customParams), localAgent(params->localAgent),
          enableTelemetry_(params->enableTelemetry_)
    {
    }
    nixlBackendEngine(const nixlBackendEngine &) = delete;
    nixlBackendEngine &operator=(const nixlBackendEngine &) = delete;

    // Their order is the interface.
    virtual ~nixlBackendEngine() = default;
    virtual bool supportsRemote() const = 0;
    virtual bool supportsLocal() const = 0;
    virtual bool supportsNotif() const = 0;
    virtual nixl_mem_list_t getSupportedMems() const = 0;
    virtual nixl_status_t registerMem(const nixlBlobDesc &, const nixl_mem_t &, nixlBackendMD *&) = 0;
    virtual nixl_status_t deregisterMem(nixlBackendMD *) = 0;
    virtual nixl_status_t connect(const std::string &) = 0;
    virtual nixl_status_t disconnect(const std::string &) = 0;
    virtual nixl_status_t unloadMD(nixlBackendMD *) = 0;
    virtual nixl_status_t prepXfer(const nixl_xfer_op_t &, const nixl_meta_dlist_t &, const nixl_meta_dlist_t &,
                                   const std::string &, nixlBackendReqH *&, const nixl_opt_b_args_t *) const = 0;
    virtual nixl_status_t postXfer(const nixl_xfer_op_t &, const nixl_meta_dlist_t &, const nixl_meta_dlist_t &,
                                   const std::string &, nixlBackendReqH *&, const nixl_opt_b_args_t *) const = 0;
    virtual nixl_status_t checkXfer(nixlBackendReqH *) const = 0;
    virtual nixl_status_t releaseReqH(nixlBackendReqH *) const = 0;
    virtual nixl_status_t prep_remote_view(const void *, void *&, const nixl_opt_b_args_t *) const
    {
        return NIXL_ERR_NOT_SUPPORTED;
    }
    virtual nixl_status_t prep_local_view(const void *, void *&, const nixl_opt_b_args_t *) const
    {
        return NIXL_ERR_NOT_SUPPORTED;
    }
    virtual void releaseMemView(void *) const {}
    virtual nixl_status_t getPublicData(const nixlBackendMD *, std::string &) const = 0;
    virtual nixl_status_t getConnInfo(std::string &) const = 0;
    virtual nixl_status_t loadRemoteConnInfo(const std::string &, const std::string &) = 0;
    virtual nixl_status_t loadRemoteMD(const nixlBlobDesc &, const nixl_mem_t &, const std::string &,
                                       nixlBackendMD *&) = 0;
    virtual nixl_status_t loadLocalMD(nixlBackendMD *, nixlBackendMD *&) = 0;
    virtual nixl_status_t getNotifs(notif_list_t &) = 0;
    virtual nixl_status_t genNotif(const std::string &, const std::string &) const = 0;
    virtual nixl_status_t queryMem(const nixl_reg_dlist_t &, std::vector<nixl_query_resp_t> &) const
    {
        return NIXL_ERR_NOT_SUPPORTED;
    }
    virtual nixl_status_t estimateXferCost(const nixl_xfer_op_t &, const nixl_meta_dlist_t &, const nixl_meta_dlist_t &,
                                           const std::string &, nixlBackendReqH *const &, std::chrono::microseconds &,
                                           std::chrono::microseconds &, nixl_cost_t &,
                                           const nixlAgentOptionalArgs *) const
    {
        return NIXL_ERR_NOT_SUPPORTED;
    }
};

struct nixlBackendPlugin {
    int api_version;
    nixlBackendEngine *(*create_engine)(const nixlBackendInitParams *);
    void (*destroy_engine)(nixlBackendEngine *);
    const char *(*get_plugin_name)();
    const char *(*get_plugin_version)();
    nixl_b_params_t (*get_backend_options)();
    nixl_mem_list_t (*get_backend_mems)();
};

#define NIXL_PLUGIN_API_VERSION 1
#define NIXL_PLUGIN_EXPORT __attribute__((visibility("default")))

extern "C" {
NIXL_PLUGIN_EXPORT nixlBackendPlugin *nixl_plugin_init();
NIXL_PLUGIN_EXPORT void nixl_plugin_fini();
}

#endif
#endif
