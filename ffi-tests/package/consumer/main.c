/* Opens an endpoint, and prints the versions of the loaded library and of the header. */
#include <stdio.h>
#include <weft.h>

int main(void)
{
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    weft_endpoint *endpoint;
    config.fabric = "host";
    if (weft_endpoint_create(&config, &endpoint) != WEFT_OK || weft_endpoint_destroy(endpoint) != WEFT_OK) {
        fprintf(stderr, "%s\n", weft_last_error());
        return 1;
    }
    unsigned is = weft_version();
    printf("library %u.%u.%u, header %d.%d.%d\n", is >> 16, is >> 8 & 255, is & 255, WEFT_VERSION_MAJOR,
           WEFT_VERSION_MINOR, WEFT_VERSION_PATCH);
    return 0;
}
