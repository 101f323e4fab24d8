// The block opens an endpoint, which meets another one at once. Its write is under a grant that was revoked.
#include <cstdlib>
using namespace std::chrono_literals;

static const std::size_t len = 65536;
static char from[len], to[len];
static weft::endpoint_config config;
static weft_endpoint *other;
static weft_grant_token grant;
/** Its endpoint frees it. */
template <class Handle> struct held {
    Handle *handle = nullptr;
    Handle *get() const { return handle; }
};
static held<weft_memory> mine;
static held<weft_remote_memory> theirs;
static std::uint64_t request = 7, forgotten;
static void forget(std::uint64_t which) { forgotten = which; }
static int give_up(const char *why)
{
    std::fprintf(stderr, "%s\n", why);
    return 1;
}
static weft_status meet(weft_endpoint *ep)
{
    unsigned char bytes[4096];
    std::size_t bytes_len;
    weft_peer peer;
    weft_completion up;
    weft_memory *target;
    weft::memory_args granted;
    granted.access = WEFT_ACCESS_GRANTED;
    const weft_memory_range source = {from, len}, range = {to, len};
    CHECK(weft_endpoint_create(&config, &other));
    CHECK(weft_endpoint_address(other, bytes, sizeof bytes, &bytes_len));
    CHECK(weft_peer_connect(ep, bytes, bytes_len, nullptr, &peer));
    CHECK(weft_memory_register(ep, &source, 1, nullptr, &mine.handle));
    CHECK(weft_memory_register(other, &range, 1, &granted, &target));
    CHECK(weft_memory_export(target, bytes, sizeof bytes, &bytes_len));
    CHECK(weft_remote_memory_import(ep, peer, bytes, bytes_len, &theirs.handle));
    CHECK(weft_queue_poll(weft_endpoint_queue(other), &up, 1, UINT64_C(20000000000)));
    CHECK(weft_grant_create(target, up.peer, nullptr, &grant));
    CHECK(weft_grant_revoke(other, &grant, nullptr, nullptr));
    do
        CHECK(weft_queue_poll(weft_endpoint_queue(other), &up, 1, UINT64_C(20000000000)));
    while (up.kind != WEFT_COMPLETION_FENCE);
    return WEFT_OK;
}
static weft_status opened(const weft_endpoint_config *how, weft_endpoint **ep)
{
    const weft_status status = weft_endpoint_create(how, ep);
    return status == WEFT_OK ? meet(*ep) : status;
}
#define weft_endpoint_create opened

int main()
{
    config.fabric = "host";
    BLOCKS
    weft_completion c;
    if ((forgotten == request) != (status == WEFT_ERR_REVOKED))
        return 1;
    while (status == WEFT_OK) {
        CHECK(weft_queue_poll(weft_endpoint_queue(ep.get()), &c, 1, UINT64_C(20000000000)));
        if (c.kind == WEFT_COMPLETION_WRITE)
            return c.status != WEFT_ERR_REVOKED;
    }
    return status != WEFT_ERR_REVOKED;
}
