// The same in C++.
#include <cstdio>
#include <weft.hpp>

int main()
{
    weft::endpoint_config config;
    config.fabric = "host";
    const weft::endpoint endpoint(config);
    std::printf("library %s, header %d.%d.%d\n", weft_version_string(), WEFT_VERSION_MAJOR, WEFT_VERSION_MINOR,
                WEFT_VERSION_PATCH);
}
