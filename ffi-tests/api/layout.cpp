// Compiled only, in every version of C++: the layout that programs were built with.
#include "weft.h"
#include "weft.h" // again is harmless

#include <type_traits>

#define PLAIN(type)                                                                          \
    static_assert(std::is_standard_layout<type>::value, "layout of " #type);                 \
    static_assert(std::is_trivially_copyable<type>::value, "copying " #type)
#define SIZE(type, bytes)                                                                    \
    static_assert(sizeof(type) == (bytes), "size of " #type);                                \
    PLAIN(type)
// Begins with its size, and may get more fields at its end.
#define GROWS(type, bytes)                                                                   \
    static_assert(sizeof(type) >= (bytes), "size of " #type);                                \
    PLAIN(type)
#define AT(type, field, bytes, kind)                                                         \
    static_assert(offsetof(type, field) == (bytes), #type "." #field);                       \
    static_assert(std::is_same<decltype(type::field), kind>::value, "type of " #type "." #field)
#define VALUE(constant, value) static_assert((constant) == (value), #constant)

#include "abi/layout.h"

static_assert(std::is_same<weft_status, int32_t>::value, "weft_status");
static_assert(std::is_same<weft_category, int32_t>::value, "weft_category");
static_assert(std::is_same<weft_completion_kind, int32_t>::value, "weft_completion_kind");
static_assert(std::is_same<weft_peer, uint64_t>::value, "weft_peer");
static_assert(std::is_same<weft_op, uint64_t>::value, "weft_op");

bool weft_initializers_are_fine();

bool weft_initializers_are_fine()
{
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    const weft_endpoint_properties endpoint = WEFT_ENDPOINT_PROPERTIES_INIT;
    weft_rail_properties rail = WEFT_RAIL_PROPERTIES_INIT;
    weft_peer_properties peer = WEFT_PEER_PROPERTIES_INIT;
    weft_memory_args memory = WEFT_MEMORY_ARGS_INIT;
    weft_op_options options WEFT_OP_OPTIONS_INIT; // brace initialisation
    weft_pages pages = WEFT_PAGES_INIT;
    weft_endpoint_statistics done = WEFT_ENDPOINT_STATISTICS_INIT;
    weft_rail_statistics carried = WEFT_RAIL_STATISTICS_INIT;
    return config.size == sizeof config && endpoint.size == sizeof endpoint &&
           rail.size == sizeof rail && peer.size == sizeof peer &&
           memory.size == sizeof memory &&
           options.size == sizeof options && pages.size == sizeof pages &&
           done.size == sizeof done &&
           carried.size == sizeof carried && options.queue == nullptr && pages.local.pages == nullptr;
}
