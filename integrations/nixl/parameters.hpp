// The parameters of the backend: by createBackend, or by the environment.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT
#ifndef WEFT_NIXL_PARAMETERS_HPP
#define WEFT_NIXL_PARAMETERS_HPP

#include "abi.hpp"

#include <weft.h>

namespace weft_nixl {

class parameters {
public:
    /* * Logs errors in the parameters; `valid` tells whether there were any. */
    explicit parameters(const nixl_b_params_t &given);
    bool valid() const { return valid_; }

    /* * Its texts live as long as this object. */
    weft_endpoint_config endpoint() const;
    std::uint64_t timeout_ns() const;

    /** All names, with "" for the default. */
    static nixl_b_params_t names();

private:
    const char *text(const char *name) const;
    std::uint64_t number(const char *name) const;

    nixl_b_params_t values_;
    bool valid_ = true;
};

} // namespace weft_nixl
#endif
