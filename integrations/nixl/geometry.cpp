// SPDX-License-Identifier: Apache-2.0 OR MIT
#include "geometry.hpp"

#include <algorithm>
#include <numeric>

namespace weft_nixl {
namespace {

const local_memory &memory_of(const nixlMetaDesc &d, const local_memory *) { return static_cast<local_memory &>(*d.metadataP); }
const remote_memory &memory_of(const nixlMetaDesc &d, const remote_memory *)
{
    return static_cast<remote_memory &>(*d.metadataP);
}
std::uintptr_t base(const local_memory &m) { return reinterpret_cast<std::uintptr_t>(m.range.address); }
std::uintptr_t base(const remote_memory &m) { return m.base; }

// Pages of one length in one memory on each side need 8 bytes each instead of a list's 72, and no separate check.
template <class Memory> class grid {
public:
    explicit grid(const nixl_meta_dlist_t &list) : list_(list) {}

    bool fits()
    {
        const std::size_t count = static_cast<std::size_t>(list_.descCount());
        const nixlMetaDesc &first = list_[0];
        std::uintptr_t last = first.addr;
        low_ = first.addr;
        for (std::size_t i = 1; i < count; i++) {
            const nixlMetaDesc &d = list_[i];
            if (d.len != first.len || d.metadataP != first.metadataP)
                return false;
            const std::uint64_t step = d.addr > last ? d.addr - last : last - d.addr;
            if (step != step_ && (step_ == 0 || step % step_ != 0))
                step_ = std::gcd(step, step_);
            last = d.addr;
            low_ = std::min(low_, d.addr);
            high_ = std::max(high_, d.addr);
        }
        return step_ == 0 || (std::max(high_, low_) - low_) / step_ <= UINT32_MAX;
    }

    weft_page_side side()
    {
        const std::size_t count = static_cast<std::size_t>(list_.descCount());
        weft_page_side side{};
        side.offset = low_ - base(memory_of(list_[0], static_cast<const Memory *>(nullptr)));
        side.page_stride = step_;
        pages_.resize(count);
        for (std::size_t i = 0; i < count; i++)
            pages_[i] = step_ ? static_cast<std::uint32_t>((list_[i].addr - low_) / step_) : 0;
        side.pages = pages_.data();
        return side;
    }

private:
    const nixl_meta_dlist_t &list_;
    std::uintptr_t low_ = 0, high_ = 0;
    std::uint64_t step_ = 0;
    std::vector<std::uint32_t> pages_;
};

std::vector<weft_list_entry> entries(weft_peer peer, const nixl_meta_dlist_t &local, const nixl_meta_dlist_t &remote)
{
    const std::size_t count = static_cast<std::size_t>(local.descCount());
    std::vector<weft_list_entry> list;
    list.reserve(count);
    for (std::size_t i = 0; i < count; i++) {
        const auto &here = memory_of(local[i], static_cast<const local_memory *>(nullptr));
        const auto &there = memory_of(remote[i], static_cast<const remote_memory *>(nullptr));
        const std::uint64_t from = local[i].addr - base(here), to = remote[i].addr - base(there);
        if (local[i].len == 0)
            continue;
        if (!list.empty()) {
            weft_list_entry &last = list.back();
            if (last.local == here.handle && last.remote == there.import->handle &&
                last.local_offset + last.len == from && last.remote_offset + last.len == to) {
                last.len += local[i].len;
                continue;
            }
        }
        weft_list_entry entry{};
        entry.local = here.handle;
        entry.remote = there.import->handle;
        entry.local_offset = from;
        entry.remote_offset = to;
        entry.len = local[i].len;
        list.push_back(entry);
    }
    if (list.empty()) { // nothing to move, but perhaps a notification
        weft_list_entry entry{};
        entry.peer = peer;
        list.push_back(entry);
    }
    return list;
}

} // namespace

weft_status prepare(weft_endpoint *endpoint, weft_peer peer, const nixl_meta_dlist_t &local,
                    const nixl_meta_dlist_t &remote, geometry *made)
{
    const std::size_t count = static_cast<std::size_t>(local.descCount());
    for (std::size_t i = 0; i < count; i++) {
        if (local[i].len != remote[i].len)
            return WEFT_ERR_INVALID;
        made->bytes += local[i].len;
    }
    const std::uint32_t flags = made->latency() ? WEFT_CLASS_LATENCY : 0;
    weft_prepared *part = nullptr;
    grid<local_memory> here(local);
    grid<remote_memory> there(remote);
    if (made->bytes && here.fits() && there.fits()) {
        weft_pages pages = WEFT_PAGES_INIT;
        pages.page_len = local[0].len;
        pages.page_count = count;
        pages.local = here.side();
        pages.remote = there.side();
        const weft_status status = weft_pages_prepare(
            endpoint, memory_of(local[0], static_cast<const local_memory *>(nullptr)).handle,
            memory_of(remote[0], static_cast<const remote_memory *>(nullptr)).import->handle, &pages, flags, &part);
        if (status == WEFT_OK)
            made->parts.push_back(part);
        return status;
    }
    const std::vector<weft_list_entry> list = entries(peer, local, remote);
    for (std::size_t i = 0; i < list.size(); i += WEFT_LIST_ENTRIES_MAX) {
        const std::uint64_t some = std::min<std::uint64_t>(list.size() - i, WEFT_LIST_ENTRIES_MAX);
        const weft_status status = weft_list_prepare(endpoint, &list[i], some, flags, &part);
        if (status != WEFT_OK)
            return status;
        made->parts.push_back(part);
    }
    return WEFT_OK;
}

} // namespace weft_nixl
