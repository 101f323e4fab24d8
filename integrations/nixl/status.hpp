// Weft's statuses as NIXL's, which has none for a deadline.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT
#ifndef WEFT_NIXL_STATUS_HPP
#define WEFT_NIXL_STATUS_HPP

#include "abi.hpp"

#include <weft.h>

namespace weft_nixl {

/** After NIXL_ERR_REMOTE_DISCONNECT, NIXL forgets the agent until its metadata are loaded again. */
inline nixl_status_t as_nixl(weft_status status)
{
    switch (status) {
    case WEFT_OK: return NIXL_SUCCESS;
    case WEFT_ERR_CANCELED: return NIXL_ERR_CANCELED;
    case WEFT_ERR_PEER_LOST:
    case WEFT_ERR_PEER_GONE:
    case WEFT_ERR_PEER_CLOSED:
    case WEFT_ERR_UNREACHABLE:
    case WEFT_ERR_HANDLE: return NIXL_ERR_REMOTE_DISCONNECT;
    case WEFT_ERR_MEMORY_GONE: return NIXL_ERR_NOT_FOUND;
    case WEFT_ERR_DENIED:
    case WEFT_ERR_REMOTE_ACCESS: return NIXL_ERR_NOT_ALLOWED;
    case WEFT_ERR_VERSION:
    case WEFT_ERR_FORMAT: return NIXL_ERR_MISMATCH;
    case WEFT_ERR_INVALID:
    case WEFT_ERR_RANGE: return NIXL_ERR_INVALID_PARAM;
    case WEFT_ERR_UNSUPPORTED: return NIXL_ERR_NOT_SUPPORTED;
    default: return NIXL_ERR_BACKEND;
    }
}

} // namespace weft_nixl
#endif
