// A paged KV cache over weft.hpp: layers x pages, handed out to requests. Any thread may call it.
#ifndef KV_CACHE_HPP
#define KV_CACHE_HPP

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include <weft.hpp>

using page_numbers = std::vector<std::uint32_t>;

class kv_cache {
public:
    struct shape {
        std::uint32_t layers = 0;
        std::uint32_t pages = 0; // in each layer
        std::uint64_t page_len = 0;
    };

    kv_cache(weft::endpoint &endpoint, shape dimensions, std::uint32_t access) : shape_(dimensions)
    {
        std::vector<weft_memory_range> ranges;
        for (std::uint32_t l = 0; l < dimensions.layers; l++) {
            layers_.push_back(endpoint.allocate(dimensions.pages * dimensions.page_len));
            ranges.push_back(weft::range(layers_.back().data(), layers_.back().size()));
        }
        weft::memory_args args;
        args.access = access;
        memory_ = endpoint.register_memory(ranges, args); // layer l is range l
        for (std::uint32_t p = dimensions.pages; p-- > 0;)
            free_.push_back(p);
    }

    /* * Pages for a request, the same numbers in every layer; waits until there are enough. */
    page_numbers take(std::size_t count)
    {
        std::unique_lock<std::mutex> lock(mutex_);
        freed_.wait(lock, [&] { return count <= free_.size(); });
        const auto from = free_.end() - static_cast<std::ptrdiff_t>(count);
        page_numbers pages(from, free_.end());
        free_.erase(from, free_.end());
        return pages;
    }
    void give(const page_numbers &pages)
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        free_.insert(free_.end(), pages.begin(), pages.end());
        freed_.notify_all();
    }
    std::size_t free_pages()
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        return free_.size();
    }

    std::byte *page(std::uint32_t layer, std::uint32_t page) { return layers_[layer].data() + page * shape_.page_len; }
    /* * Pages here and there, as one transfer of all layers, and a grant of it, have them. */
    weft::pages both(const page_numbers &mine, const page_numbers &theirs) const
    {
        return weft::pages(shape_.page_len, mine, theirs).layers(shape_.layers);
    }
    const weft::memory &memory() const { return memory_; }
    const shape &dimensions() const { return shape_; }

private:
    shape shape_;
    std::vector<weft::allocation> layers_;
    weft::memory memory_; // declared after the layers, so that it is deregistered before they are freed
    std::mutex mutex_;
    std::condition_variable freed_;
    page_numbers free_;
};

#endif
