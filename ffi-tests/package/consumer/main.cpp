// The same in C++.
#include <cstdio>
#include <weft.hpp>

int main()
{
    weft::endpoint_config config;
    config.fabric = "host";
    const weft::endpoint endpoint(config);
    const unsigned is = weft_version();
    std::printf("library %u.%u.%u, header %d.%d.%d\n", is >> 16, is >> 8 & 255, is & 255, WEFT_VERSION_MAJOR,
                WEFT_VERSION_MINOR, WEFT_VERSION_PATCH);
}
