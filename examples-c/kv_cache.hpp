// A paged KV cache over weft.hpp: layers x pages in memory that peers can reach.
#ifndef KV_CACHE_HPP
#define KV_CACHE_HPP

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include <weft.hpp>

class kv_cache {
public:
    struct shape {
        std::uint32_t layers = 0;
        std::uint32_t pages = 0; // in each layer
        std::uint64_t page_len = 0;
    };

    kv_cache(weft::endpoint &endpoint, shape dimensions) : endpoint_(endpoint), shape_(dimensions)
    {
        std::vector<weft_memory_range> ranges;
        for (std::uint32_t l = 0; l < dimensions.layers; l++) {
            layers_.push_back(endpoint.allocate(dimensions.pages * dimensions.page_len));
            ranges.push_back(weft::range(layers_.back().data(), layers_.back().size()));
        }
        memory_ = endpoint.register_memory(ranges); // layer l is range l
        for (std::uint32_t p = dimensions.pages; p-- > 0;)
            free_.push_back(p);
    }

    /** Pages for a request: the same numbers in every layer. */
    std::vector<std::uint32_t> take(std::size_t count)
    {
        if (count > free_.size())
            throw std::runtime_error("the cache is full");
        const auto from = free_.end() - static_cast<std::ptrdiff_t>(count);
        std::vector<std::uint32_t> pages(from, free_.end());
        free_.erase(from, free_.end());
        return pages;
    }
    void give(const std::vector<std::uint32_t> &pages) { free_.insert(free_.end(), pages.begin(), pages.end()); }
    std::size_t free_pages() const { return free_.size(); }

    std::byte *page(std::uint32_t layer, std::uint32_t page) { return layers_[layer].data() + page * shape_.page_len; }
    const shape &dimensions() const { return shape_; }

    /* * What a peer needs to write into this cache. */
    weft::blob descriptor() const { return memory_.descriptor(); }

    /* * Moves pages of all layers with one call; the peer is notified with `request` after the last byte. */
    void send(const weft::remote_memory &to, const std::vector<std::uint32_t> &mine,
              const std::vector<std::uint32_t> &theirs, std::uint64_t request, weft::deadline by)
    {
        void *tag = reinterpret_cast<void *>(request);
        endpoint_.write(memory_, to, weft::pages(shape_.page_len, mine, theirs).layers(shape_.layers),
                        weft::options().with_notification(request).within(by).tagged(tag));
    }

private:
    weft::endpoint &endpoint_;
    shape shape_;
    std::vector<weft::allocation> layers_;
    weft::memory memory_; // declared after the layers, so that it is deregistered before they are freed
    std::vector<std::uint32_t> free_;
};

#endif
