// Lists of descriptors as prepared transfers.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT
#ifndef WEFT_NIXL_GEOMETRY_HPP
#define WEFT_NIXL_GEOMETRY_HPP

#include "memory.hpp"

namespace weft_nixl {

/* * Up to this size a caller waits for the first byte rather than for the last. */
const std::uint64_t latency_bytes = 256 << 10;

struct geometry {
    std::uint64_t bytes = 0;
    bool latency() const { return bytes <= latency_bytes; }
    std::vector<weft_prepared *> parts; // one, unless the list is longer than Weft's may be
};

/* * Every remote memory is imported. After a failure, `made` has what was made so far, for the caller to release. */
weft_status prepare(weft_endpoint *endpoint, weft_peer peer, const nixl_meta_dlist_t &local,
                    const nixl_meta_dlist_t &remote, geometry *made);

} // namespace weft_nixl
#endif
