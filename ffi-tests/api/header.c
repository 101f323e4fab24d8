/* Compiled only, in every version of C: the header alone, and its _INIT macros. */
#include "weft.h"
#include "weft.h" /* again is harmless */

int weft_header_is_fine(void);

static const weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
static const weft_op_options options = WEFT_OP_OPTIONS_INIT;

int weft_header_is_fine(void)
{
    weft_endpoint_properties endpoint = WEFT_ENDPOINT_PROPERTIES_INIT;
    weft_rail_properties rail = WEFT_RAIL_PROPERTIES_INIT;
    weft_peer_properties peer = WEFT_PEER_PROPERTIES_INIT;
    weft_memory_args memory = WEFT_MEMORY_ARGS_INIT;
    weft_pages pages = WEFT_PAGES_INIT;
    return config.size == sizeof config && options.size == sizeof options &&
           endpoint.size == sizeof endpoint && rail.size == sizeof rail &&
           peer.size == sizeof peer && memory.size == sizeof memory &&
           pages.size == sizeof pages && pages.remote.pages == 0 && options.timeout_ns == 0;
}
