/* Opens an endpoint, and says which library it runs with and which header it was compiled with. */
#include <stdio.h>
#include <weft.h>

int main(void)
{
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    weft_endpoint *endpoint;
    config.fabric = "host";
    if (weft_endpoint_open(&config, &endpoint) != WEFT_OK || weft_endpoint_close(endpoint) != WEFT_OK) {
        fprintf(stderr, "%s\n", weft_last_error());
        return 1;
    }
    printf("library %s, header %d.%d.%d\n", weft_version_string(), WEFT_VERSION_MAJOR, WEFT_VERSION_MINOR,
           WEFT_VERSION_PATCH);
    return 0;
}
