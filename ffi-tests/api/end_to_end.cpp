// A small program as a C++17 user would write it: two processes, a write with a notification, a message back. No
// harness: weft.h and the standard library only.
#include "weft.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace {

struct error : std::runtime_error {
    error(const char *what, weft_status status)
        : std::runtime_error(std::string(what) + ": " + weft_status_name(status) + ": " +
                             weft_last_error())
    {
    }
};

void check(const char *what, weft_status status)
{
    if (status != WEFT_OK)
        throw error(what, status);
}

// On every way out, also of a failed test: destroying the endpoint releases everything in use.
void leave(weft_status) {}

void require(bool good, const char *what)
{
    if (!good)
        throw std::runtime_error(what);
}

// A handle that is released when it leaves its scope.
using endpoint = std::unique_ptr<weft_endpoint, std::function<void(weft_endpoint *)>>;
using memory = std::unique_ptr<weft_memory, std::function<void(weft_memory *)>>;
using remote_memory = std::unique_ptr<weft_remote_memory, std::function<void(weft_remote_memory *)>>;

endpoint open()
{
    const char *fabric = std::getenv("WEFT_TEST_FABRIC");
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    config.fabric = fabric ? fabric : "tcp";
    config.rails = std::strcmp(config.fabric, "tcp") == 0 ? "lo" : nullptr;
    weft_endpoint *made = nullptr;
    check("open", weft_endpoint_create(&config, &made));
    return endpoint(made, [](weft_endpoint *e) { leave(weft_endpoint_destroy(e)); });
}

memory register_all(const endpoint &e, std::vector<std::vector<char>> &layers)
{
    std::vector<weft_memory_range> ranges;
    for (auto &layer : layers)
        ranges.push_back({layer.data(), layer.size()});
    weft_memory *made = nullptr;
    check("register", weft_memory_register(e.get(), ranges.data(), ranges.size(), nullptr, &made));
    return memory(made, [](weft_memory *m) { leave(weft_memory_deregister(m)); });
}

weft_completion next(const endpoint &e, weft_completion_kind kind)
{
    weft_completion c{};
    for (int i = 0; i < 20; i++) {
        int32_t n = weft_queue_poll(weft_endpoint_queue(e.get()), &c, 1, 1000000000);
        if (n < 0)
            throw error("wait", n);
        if (n == 1 && c.kind == kind) {
            check("completion", c.status);
            return c;
        }
    }
    throw std::runtime_error("nothing of kind " + std::to_string(kind) + " came");
}

void tell(int fd, const std::vector<char> &bytes)
{
    require(send(fd, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()), "send");
}

std::vector<char> hear(int fd)
{
    std::vector<char> bytes(65536);
    ssize_t n = recv(fd, bytes.data(), bytes.size(), 0);
    require(n > 0, "the other process has gone");
    bytes.resize(static_cast<size_t>(n));
    return bytes;
}

constexpr size_t layer_count = 8, page_len = 4096, page_count = 64;

std::vector<std::vector<char>> make_layers(bool filled)
{
    std::vector<std::vector<char>> layers(layer_count);
    for (size_t l = 0; l < layer_count; l++) {
        layers[l].resize(page_len * page_count);
        for (size_t i = 0; filled && i < layers[l].size(); i++)
            layers[l][i] = static_cast<char>(i / page_len * 31 + i * 7 + l);
    }
    return layers;
}

void decode(int fd)
{
    auto layers = make_layers(false);
    const auto expected = make_layers(true);
    endpoint e = open();
    memory m = register_all(e, layers);
    size_t len = 0;
    check("length", weft_endpoint_address(e.get(), nullptr, 0, &len));
    std::vector<char> blob(len);
    check("address", weft_endpoint_address(e.get(), blob.data(), blob.size(), &len));
    tell(fd, blob);
    check("length", weft_memory_export(m.get(), nullptr, 0, &len));
    blob.resize(len);
    check("export", weft_memory_export(m.get(), blob.data(), blob.size(), &len));
    tell(fd, blob);
    weft_counter counter = 0;
    check("counter", weft_counter_create(e.get(), &counter));
    const uint64_t value = page_count * layer_count;
    weft_op id = 0;
    check("expect", weft_counter_expect(e.get(), &counter, &value, 1, nullptr, &id));
    blob.assign(reinterpret_cast<const char *>(&counter),
                reinterpret_cast<const char *>(&counter + 1));
    tell(fd, blob);

    weft_completion c = next(e, WEFT_COMPLETION_COUNTER);
    require(c.op == id, "the expected counter");
    uint64_t counted = 0;
    check("read", weft_counter_read(e.get(), counter, &counted));
    require(counted == value, "the counter's value");
    check("destroy", weft_counter_destroy(e.get(), counter));
    c = next(e, WEFT_COMPLETION_NOTIFICATION);
    require(c.notify == 4711, "the notification's value");
    for (size_t l = 0; l < layer_count; l++)
        for (size_t p = 0; p < page_count; p++) // pages arrive in reverse
            require(std::memcmp(&layers[l][p * page_len],
                                &expected[l][(page_count - 1 - p) * page_len], page_len) == 0,
                    "a page");
    tell(fd, {'1'});
    // The same with a prepared geometry, and a list that swaps two layers.
    require(next(e, WEFT_COMPLETION_NOTIFICATION).notify == 4712, "the prepared one's notification");
    require(next(e, WEFT_COMPLETION_NOTIFICATION).notify == 4713, "the list's notification");
    require(layers[0] == expected[1] && layers[1] == expected[0], "the list's layers");
    check("send", weft_send(e.get(), c.peer, "thanks", 6, nullptr, nullptr));
    next(e, WEFT_COMPLETION_SEND);
    hear(fd);
    uint64_t before = 0, after = 0;
    std::memcpy(&before, &expected[0][0], sizeof before);
    std::memcpy(&after, &layers[1][0], sizeof after);
    require(after == before + 42, "the word that was added to");
}

// Writes prepared pages once more; then swaps layers 0 and 1 by a list, reads them back, and reports it.
void prepare_and_list(const endpoint &e, const memory &m, const remote_memory &theirs, const weft_pages &pages)
{
    weft_prepared *made = nullptr;
    check("prepare", weft_pages_prepare(e.get(), m.get(), theirs.get(), &pages, 0, &made));
    std::unique_ptr<weft_prepared, weft_status (*)(weft_prepared *)> prepared(made, weft_prepared_destroy);
    weft_op_options again = WEFT_OP_OPTIONS_INIT;
    again.flags = WEFT_NOTIFY;
    again.notify = 4712;
    check("write prepared", weft_write_prepared(e.get(), prepared.get(), &again, nullptr));
    require(next(e, WEFT_COMPLETION_WRITE).bytes == page_len * page_count * layer_count, "prepared bytes");

    std::vector<weft_list_entry> entries(2);
    for (uint32_t l = 0; l < 2; l++) {
        entries[l].local = m.get();
        entries[l].remote = theirs.get();
        entries[l].local_range = l;
        entries[l].remote_range = 1 - l;
        entries[l].len = page_len * page_count;
    }
    check("write list", weft_write_list(e.get(), entries.data(), 2, nullptr, nullptr));
    require(next(e, WEFT_COMPLETION_WRITE).entry == UINT64_MAX, "the list's completion");
    check("read list", weft_read_list(e.get(), entries.data(), 2, nullptr, nullptr));
    require(next(e, WEFT_COMPLETION_READ).bytes == 2 * page_len * page_count, "the list's bytes");
    for (auto &entry : entries)
        entry.len = 0;
    again.notify = 4713;
    check("notify by an empty list", weft_write_list(e.get(), entries.data(), 2, &again, nullptr));
}

void prefill(int fd)
{
    auto layers = make_layers(true);
    std::vector<std::string> lines;
    auto keep = [](weft_log_level, const char *component, const char *message, void *all) {
        static_cast<std::vector<std::string> *>(all)->push_back(std::string(component) + ": " + message);
    };
    check("log", weft_log_set(WEFT_LOG_DEBUG, keep, &lines));
    endpoint e = open();
    check("log", weft_log_set(WEFT_LOG_DEFAULT, nullptr, nullptr));
    require(!lines.empty(), "a line of the log");
    memory m = register_all(e, layers);
    auto address = hear(fd), descriptor = hear(fd), counter = hear(fd);
    weft_peer peer = 0;
    check("connect", weft_peer_connect(e.get(), address.data(), address.size(), nullptr, &peer));
    weft_remote_memory *made = nullptr;
    check("import", weft_remote_memory_import(e.get(), peer, descriptor.data(), descriptor.size(),
                                              &made));
    remote_memory theirs(made, [](weft_remote_memory *r) { leave(weft_remote_memory_release(r)); });

    std::vector<uint32_t> pages;
    for (uint32_t p = page_count; p-- > 0;)
        pages.push_back(p);
    weft_pages all = WEFT_PAGES_INIT;
    all.local.range_step = all.remote.range_step = 1;
    all.remote.pages = pages.data();
    all.page_len = page_len;
    all.page_count = page_count;
    all.layer_count = layer_count;
    weft_op_options options = WEFT_OP_OPTIONS_INIT;
    options.flags = WEFT_NOTIFY | WEFT_COUNT_PAGES;
    options.notify = 4711;
    std::memcpy(&options.counter, counter.data(), sizeof options.counter);
    weft_op id = 0;
    check("write", weft_write_pages(e.get(), m.get(), theirs.get(), &all, &options, &id));
    weft_completion c = next(e, WEFT_COMPLETION_WRITE);
    require(c.op == id && c.bytes == page_len * page_count * layer_count, "the completion");
    weft_endpoint_statistics stats = WEFT_ENDPOINT_STATISTICS_INIT;
    check("stats", weft_endpoint_info(e.get(), nullptr, &stats));
    require(stats.bytes_written == c.bytes && stats.writes == 1 && stats.completions[-WEFT_OK] == 1 &&
                std::accumulate(stats.latency, stats.latency + WEFT_STATISTICS_BUCKETS, uint64_t(0)) == 1,
            "the statistics");
    hear(fd); // the target has checked them
    prepare_and_list(e, m, theirs, all);
    c = next(e, WEFT_COMPLETION_MESSAGE);
    require(c.bytes == 6 && std::memcmp(c.data, "thanks", 6) == 0, "the message");
    check("release", weft_message_release(e.get(), c.op));

    weft_peer_properties properties = WEFT_PEER_PROPERTIES_INIT;
    check("peer", weft_peer_info(e.get(), peer, &properties));
    require(properties.capabilities & WEFT_CAPABILITY_ATOMICS, "the peer does atomics");
    uint64_t word = 0;
    std::memcpy(&word, &layers[0][0], sizeof word); // the list has swapped the layers
    const uint64_t second = page_len * page_count; // where the second range begins
    check("fetch_add", weft_fetch_add(e.get(), theirs.get(), second, 42, nullptr, &id));
    c = next(e, WEFT_COMPLETION_ATOMIC);
    require(c.op == id && c.previous == word, "what the word was before");
    check("compare_swap", weft_compare_swap(e.get(), theirs.get(), second, 0, 42, nullptr, nullptr)); // the word is not 0
    c = next(e, WEFT_COMPLETION_ATOMIC);
    require(c.previous == word + 42, "what was added");
    tell(fd, {'.'});
}

int run(void (*role)(int), int fd)
{
    try {
        role(fd);
        return 0;
    } catch (const std::exception &e) {
        std::fprintf(stderr, "%s\n", e.what());
        return 1;
    }
}

} // namespace

int main(int argc, char **argv)
{
    if (argc == 2 && std::strcmp(argv[1], "--list") == 0) {
        std::puts("prefill_and_decode any");
        return 0;
    }
    int fds[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds) != 0)
        return 1;
    pid_t child = fork(); // before any Weft call
    if (child == 0) {
        close(fds[0]);
        return run(decode, fds[1]);
    }
    close(fds[1]);
    int status = 0, mine = run(prefill, fds[0]);
    close(fds[0]);
    waitpid(child, &status, 0);
    return mine != 0 || status != 0;
}
