/* Compiled only, in every version of C: the header alone, and its _INIT macros. */
#include "weft.h"
#include "weft.h" /* again is harmless */

int weft_header_is_fine(void);

static const weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
static const weft_range_args range_args = WEFT_RANGE_ARGS_INIT;

int weft_header_is_fine(void)
{
    weft_endpoint_properties endpoint = WEFT_ENDPOINT_PROPERTIES_INIT;
    weft_rail_properties rail = WEFT_RAIL_PROPERTIES_INIT;
    weft_peer_properties peer = WEFT_PEER_PROPERTIES_INIT;
    weft_connect_args connect = WEFT_CONNECT_ARGS_INIT;
    weft_memory_args memory = WEFT_MEMORY_ARGS_INIT;
    weft_alloc_args alloc = WEFT_ALLOC_ARGS_INIT;
    weft_pages_args pages = WEFT_PAGES_ARGS_INIT;
    weft_expect_args expect = WEFT_EXPECT_ARGS_INIT;
    weft_send_args message = WEFT_SEND_ARGS_INIT;
    weft_atomic_args atomic = WEFT_ATOMIC_ARGS_INIT;
    return config.size == sizeof config && range_args.size == sizeof range_args &&
           endpoint.size == sizeof endpoint && rail.size == sizeof rail &&
           peer.size == sizeof peer && connect.size == sizeof connect &&
           memory.size == sizeof memory && alloc.size == sizeof alloc && pages.size == sizeof pages &&
           message.size == sizeof message && atomic.size == sizeof atomic && expect.size == sizeof expect &&
           pages.queue == 0 && message.timeout_ns == 0;
}
