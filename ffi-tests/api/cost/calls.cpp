// The same as calls.c, with weft.hpp.
#include "weft.hpp"

using namespace std::chrono_literals;
using room = std::array<weft::completion, 64>;

extern "C" {

std::size_t poll_64(weft::endpoint &e, room &r);
std::size_t wait_64(weft::endpoint &e, room &r, std::chrono::milliseconds time);
weft::op write_range(weft::endpoint &e, weft::memory &m, weft::remote_memory &r, std::uint64_t offset,
                     std::uint64_t len, void *tag);
weft::op write_pages(weft::endpoint &e, weft::memory &m, weft::remote_memory &r, const std::uint32_t *mine,
                     const std::uint32_t *theirs, weft_counter counter);
weft::op write_kept(weft::endpoint &e, weft::prepared &k, std::uint64_t value);
weft::op send_text(weft::endpoint &e, weft::peer peer, const void *text, std::size_t len);
bool arm(weft::endpoint &e);

std::size_t poll_64(weft::endpoint &e, room &r)
{
    return e.poll(r).size();
}

std::size_t wait_64(weft::endpoint &e, room &r, std::chrono::milliseconds time)
{
    return e.wait(r, time).size();
}

weft::op write_range(weft::endpoint &e, weft::memory &m, weft::remote_memory &r, std::uint64_t offset,
                     std::uint64_t len, void *tag)
{
    return e.write(
        m, offset, r, offset, len, weft::options().with_notification(7).within(5s).tagged(tag));
}

weft::op write_pages(weft::endpoint &e, weft::memory &m, weft::remote_memory &r, const std::uint32_t *mine,
                     const std::uint32_t *theirs, weft_counter counter)
{
    return e.write(m, r, weft::pages(65536, {mine, 100}, {theirs, 100}).layers(80).remote_at(0, 65536, 131072),
                   weft::options().raising(counter));
}

weft::op write_kept(weft::endpoint &e, weft::prepared &k, std::uint64_t value)
{
    return e.write(k, weft::options().with_notification(value));
}

weft::op send_text(weft::endpoint &e, weft::peer peer, const void *text, std::size_t len)
{
    return e.send(peer, {text, len});
}

bool arm(weft::endpoint &e)
{
    return e.arm();
}

} // extern "C"
