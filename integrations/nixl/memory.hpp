// Memory as NIXL passes it: of this agent, and of others.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT
#ifndef WEFT_NIXL_MEMORY_HPP
#define WEFT_NIXL_MEMORY_HPP

#include "files.hpp"

#include <memory>
#include <weft.h>

namespace weft_nixl {

struct local_memory final : nixlBackendMD {
    local_memory() : nixlBackendMD(true) {}
    open_file file; // with FILE_SEG, and the `devId` that stands for it
    std::uint64_t file_id = 0;
    weft_memory_range range{}; // of a file: offset and length
    weft_memory_args args = WEFT_MEMORY_ARGS_INIT;
    weft_memory *handle = nullptr;
    weft_memory *mirrored = nullptr; // where the agent is its own peer
    std::uint64_t seen = 0;          // the last transfer that was prepared with it
};

struct imported {
    weft_remote_memory *handle = nullptr;
    weft_peer peer = 0;
    imported() = default;
    imported(const imported &) = delete;
    imported &operator=(const imported &) = delete;
    ~imported() { (void)!weft_remote_memory_release(handle); }
};

struct remote_memory final : nixlBackendMD {
    remote_memory() : nixlBackendMD(false) {}
    std::uintptr_t base = 0;
    std::string descriptor;
    local_memory *own = nullptr;      // it is this agent's
    std::shared_ptr<imported> import; // set by the first transfer; transfers hold it, too
    std::uint64_t seen = 0;
};

} // namespace weft_nixl
#endif
