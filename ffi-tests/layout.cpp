// Compiled only, in every version of C++: the layout that programs were built with.
// A line here never changes; a newer library adds lines.
#include "weft.h"
#include "weft.h" // again is harmless

#include <type_traits>

#define SIZE(type, bytes)                                                                    \
    static_assert(sizeof(type) == (bytes), "size of " #type);                                \
    static_assert(std::is_standard_layout<type>::value, "layout of " #type);                 \
    static_assert(std::is_trivially_copyable<type>::value, "copying " #type)
#define AT(type, field, bytes) static_assert(offsetof(type, field) == (bytes), #type "." #field)

SIZE(weft_endpoint_config, 104);
AT(weft_endpoint_config, size, 0);
AT(weft_endpoint_config, flags, 4);
AT(weft_endpoint_config, fabric, 8);
AT(weft_endpoint_config, rails, 16);
AT(weft_endpoint_config, rail_count, 24);
AT(weft_endpoint_config, min_rails, 28);
AT(weft_endpoint_config, progress, 32);
AT(weft_endpoint_config, workers, 36);
AT(weft_endpoint_config, max_transfers, 40);
AT(weft_endpoint_config, queue_depth, 44);
AT(weft_endpoint_config, max_peers, 48);
AT(weft_endpoint_config, idle, 52);
AT(weft_endpoint_config, timeout_ns, 56);
AT(weft_endpoint_config, connect_timeout_ns, 64);
AT(weft_endpoint_config, message_bytes, 72);
AT(weft_endpoint_config, packing, 80);
AT(weft_endpoint_config, max_counters, 84);
AT(weft_endpoint_config, secret, 88);
AT(weft_endpoint_config, secret_len, 96);

SIZE(weft_endpoint_properties, 280);
AT(weft_endpoint_properties, size, 0);
AT(weft_endpoint_properties, rails, 4);
AT(weft_endpoint_properties, workers, 8);
AT(weft_endpoint_properties, peers, 12);
AT(weft_endpoint_properties, incarnation, 16);
AT(weft_endpoint_properties, libfabric, 24);

SIZE(weft_rail_properties, 320);
AT(weft_rail_properties, size, 0);
AT(weft_rail_properties, worker, 4);
AT(weft_rail_properties, fabric, 8);
AT(weft_rail_properties, name, 72);
AT(weft_rail_properties, address, 136);
AT(weft_rail_properties, numa_node, 264);
AT(weft_rail_properties, pci, 268);
AT(weft_rail_properties, bytes, 304);
AT(weft_rail_properties, posts, 312);

SIZE(weft_connect_args, 24);
AT(weft_connect_args, size, 0);
AT(weft_connect_args, flags, 4);
AT(weft_connect_args, timeout_ns, 8);
AT(weft_connect_args, user_data, 16);

SIZE(weft_peer_properties, 352);
AT(weft_peer_properties, size, 0);
AT(weft_peer_properties, up, 4);
AT(weft_peer_properties, lanes, 8);
AT(weft_peer_properties, local_rails, 12);
AT(weft_peer_properties, remote_rails, 16);
AT(weft_peer_properties, capabilities, 20);
AT(weft_peer_properties, incarnation, 24);
AT(weft_peer_properties, fabric, 32);
AT(weft_peer_properties, reason, 96);

SIZE(weft_memory_range, 16);
AT(weft_memory_range, address, 0);
AT(weft_memory_range, len, 8);

SIZE(weft_memory_args, 24);
AT(weft_memory_args, size, 0);
AT(weft_memory_args, access, 4);
AT(weft_memory_args, rails, 8);
AT(weft_memory_args, kind, 16);
AT(weft_memory_args, device, 20);

SIZE(weft_memory_properties, 40);
AT(weft_memory_properties, size, 0);
AT(weft_memory_properties, kind, 4);
AT(weft_memory_properties, device, 8);
AT(weft_memory_properties, ways, 12);
AT(weft_memory_properties, bytes, 16);
AT(weft_memory_properties, rails, 24);
AT(weft_memory_properties, ranges, 32);

SIZE(weft_alloc_args, 8);
AT(weft_alloc_args, size, 0);
AT(weft_alloc_args, node, 4);

SIZE(weft_completion, 128);
AT(weft_completion, kind, 0);
AT(weft_completion, status, 4);
AT(weft_completion, transfer, 8);
AT(weft_completion, user_data, 16);
AT(weft_completion, peer, 24);
AT(weft_completion, value, 32);
AT(weft_completion, bytes, 40);
AT(weft_completion, data, 48);
AT(weft_completion, provider_errno, 56);
AT(weft_completion, rail, 60);
AT(weft_completion, entry, 64);
AT(weft_completion, submit_ns, 72);
AT(weft_completion, first_post_ns, 80);
AT(weft_completion, done_ns, 88);
AT(weft_completion, reserved, 96);

SIZE(weft_range_args, 144);
AT(weft_range_args, size, 0);
AT(weft_range_args, flags, 4);
AT(weft_range_args, local, 8);
AT(weft_range_args, remote, 16);
AT(weft_range_args, local_range, 24);
AT(weft_range_args, remote_range, 28);
AT(weft_range_args, local_offset, 32);
AT(weft_range_args, remote_offset, 40);
AT(weft_range_args, len, 48);
AT(weft_range_args, notify, 56);
AT(weft_range_args, notify_data, 64);
AT(weft_range_args, notify_data_len, 72);
AT(weft_range_args, reserved, 76);
AT(weft_range_args, timeout_ns, 80);
AT(weft_range_args, user_data, 88);
AT(weft_range_args, queue, 96);
AT(weft_range_args, counter, 104);
AT(weft_range_args, start_watch, 112);
AT(weft_range_args, start_value, 120);
AT(weft_range_args, done_watch, 128);
AT(weft_range_args, done_value, 136);

SIZE(weft_pages_args, 208);
AT(weft_pages_args, size, 0);
AT(weft_pages_args, flags, 4);
AT(weft_pages_args, local, 8);
AT(weft_pages_args, remote, 16);
AT(weft_pages_args, local_pages, 24);
AT(weft_pages_args, remote_pages, 32);
AT(weft_pages_args, local_page_stride, 40);
AT(weft_pages_args, remote_page_stride, 48);
AT(weft_pages_args, local_offset, 56);
AT(weft_pages_args, remote_offset, 64);
AT(weft_pages_args, local_layer_stride, 72);
AT(weft_pages_args, remote_layer_stride, 80);
AT(weft_pages_args, local_first_range, 88);
AT(weft_pages_args, remote_first_range, 92);
AT(weft_pages_args, local_range_step, 96);
AT(weft_pages_args, remote_range_step, 100);
AT(weft_pages_args, page_len, 104);
AT(weft_pages_args, page_count, 112);
AT(weft_pages_args, layer_count, 120);
AT(weft_pages_args, notify_data_len, 124);
AT(weft_pages_args, notify, 128);
AT(weft_pages_args, notify_data, 136);
AT(weft_pages_args, timeout_ns, 144);
AT(weft_pages_args, user_data, 152);
AT(weft_pages_args, queue, 160);
AT(weft_pages_args, counter, 168);
AT(weft_pages_args, start_watch, 176);
AT(weft_pages_args, start_value, 184);
AT(weft_pages_args, done_watch, 192);
AT(weft_pages_args, done_value, 200);

SIZE(weft_expect_args, 56);
AT(weft_expect_args, size, 0);
AT(weft_expect_args, flags, 4);
AT(weft_expect_args, counters, 8);
AT(weft_expect_args, values, 16);
AT(weft_expect_args, count, 24);
AT(weft_expect_args, reserved, 28);
AT(weft_expect_args, timeout_ns, 32);
AT(weft_expect_args, user_data, 40);
AT(weft_expect_args, queue, 48);

SIZE(weft_list_entry, 64);
AT(weft_list_entry, local, 0);
AT(weft_list_entry, remote, 8);
AT(weft_list_entry, peer, 16);
AT(weft_list_entry, local_range, 24);
AT(weft_list_entry, remote_range, 28);
AT(weft_list_entry, local_offset, 32);
AT(weft_list_entry, remote_offset, 40);
AT(weft_list_entry, len, 48);
AT(weft_list_entry, counter, 56);

SIZE(weft_list_args, 72);
AT(weft_list_args, size, 0);
AT(weft_list_args, flags, 4);
AT(weft_list_args, entries, 8);
AT(weft_list_args, count, 16);
AT(weft_list_args, notify, 24);
AT(weft_list_args, notify_data, 32);
AT(weft_list_args, notify_data_len, 40);
AT(weft_list_args, reserved, 44);
AT(weft_list_args, timeout_ns, 48);
AT(weft_list_args, user_data, 56);
AT(weft_list_args, queue, 64);

SIZE(weft_kept_args, 64);
AT(weft_kept_args, size, 0);
AT(weft_kept_args, flags, 4);
AT(weft_kept_args, notify, 8);
AT(weft_kept_args, notify_data, 16);
AT(weft_kept_args, notify_data_len, 24);
AT(weft_kept_args, reserved, 28);
AT(weft_kept_args, counter, 32);
AT(weft_kept_args, timeout_ns, 40);
AT(weft_kept_args, user_data, 48);
AT(weft_kept_args, queue, 56);

SIZE(weft_fence_args, 40);
AT(weft_fence_args, size, 0);
AT(weft_fence_args, flags, 4);
AT(weft_fence_args, peer, 8);
AT(weft_fence_args, timeout_ns, 16);
AT(weft_fence_args, user_data, 24);
AT(weft_fence_args, queue, 32);

SIZE(weft_send_args, 56);
AT(weft_send_args, size, 0);
AT(weft_send_args, flags, 4);
AT(weft_send_args, peer, 8);
AT(weft_send_args, data, 16);
AT(weft_send_args, len, 24);
AT(weft_send_args, timeout_ns, 32);
AT(weft_send_args, user_data, 40);
AT(weft_send_args, queue, 48);

SIZE(weft_endpoint_statistics, 1240);
AT(weft_endpoint_statistics, size, 0);
AT(weft_endpoint_statistics, peers, 4);
AT(weft_endpoint_statistics, active, 8);
AT(weft_endpoint_statistics, writes, 16);
AT(weft_endpoint_statistics, reads, 24);
AT(weft_endpoint_statistics, sends, 32);
AT(weft_endpoint_statistics, atomics, 40);
AT(weft_endpoint_statistics, expects, 48);
AT(weft_endpoint_statistics, fences, 56);
AT(weft_endpoint_statistics, bytes_written, 64);
AT(weft_endpoint_statistics, bytes_read, 72);
AT(weft_endpoint_statistics, bytes_sent, 80);
AT(weft_endpoint_statistics, messages_sent, 88);
AT(weft_endpoint_statistics, notifications_sent, 96);
AT(weft_endpoint_statistics, messages_received, 104);
AT(weft_endpoint_statistics, bytes_received, 112);
AT(weft_endpoint_statistics, notifications_received, 120);
AT(weft_endpoint_statistics, frames_dropped, 128);
AT(weft_endpoint_statistics, completions, 136);
AT(weft_endpoint_statistics, latency, 904);
AT(weft_endpoint_statistics, latency_sum_ns, 1224);
AT(weft_endpoint_statistics, strangers_refused, 1232);

SIZE(weft_rail_statistics, 128);
AT(weft_rail_statistics, size, 0);
AT(weft_rail_statistics, up, 4);
AT(weft_rail_statistics, lanes, 8);
AT(weft_rail_statistics, lanes_stalled, 12);
AT(weft_rail_statistics, bytes_written, 16);
AT(weft_rail_statistics, bytes_read, 24);
AT(weft_rail_statistics, slices_written, 32);
AT(weft_rail_statistics, slices_read, 40);
AT(weft_rail_statistics, posts, 48);
AT(weft_rail_statistics, posts_refused, 56);
AT(weft_rail_statistics, errors, 64);
AT(weft_rail_statistics, retries, 72);
AT(weft_rail_statistics, frames_sent, 80);
AT(weft_rail_statistics, frames_received, 88);
AT(weft_rail_statistics, inflight_bytes, 96);
AT(weft_rail_statistics, inflight_posts, 104);
AT(weft_rail_statistics, bytes_per_s, 112);
AT(weft_rail_statistics, round_trip_ns, 120);

SIZE(weft_atomic_args, 72);
AT(weft_atomic_args, size, 0);
AT(weft_atomic_args, flags, 4);
AT(weft_atomic_args, remote, 8);
AT(weft_atomic_args, remote_range, 16);
AT(weft_atomic_args, reserved, 20);
AT(weft_atomic_args, remote_offset, 24);
AT(weft_atomic_args, operand, 32);
AT(weft_atomic_args, compare, 40);
AT(weft_atomic_args, timeout_ns, 48);
AT(weft_atomic_args, user_data, 56);
AT(weft_atomic_args, queue, 64);

// Numbers, fixed for ever.
static_assert(WEFT_OK == 0, "WEFT_OK");
static_assert(WEFT_ERR_AGAIN == -1, "WEFT_ERR_AGAIN");
static_assert(WEFT_ERR_BUSY == -2, "WEFT_ERR_BUSY");
static_assert(WEFT_ERR_TIMED_OUT == -20, "WEFT_ERR_TIMED_OUT");
static_assert(WEFT_ERR_CANCELED == -21, "WEFT_ERR_CANCELED");
static_assert(WEFT_ERR_PEER_LOST == -22, "WEFT_ERR_PEER_LOST");
static_assert(WEFT_ERR_PEER_GONE == -23, "WEFT_ERR_PEER_GONE");
static_assert(WEFT_ERR_PEER_CLOSED == -24, "WEFT_ERR_PEER_CLOSED");
static_assert(WEFT_ERR_UNREACHABLE == -25, "WEFT_ERR_UNREACHABLE");
static_assert(WEFT_ERR_VERSION == -26, "WEFT_ERR_VERSION");
static_assert(WEFT_ERR_NO_COMMON_FABRIC == -27, "WEFT_ERR_NO_COMMON_FABRIC");
static_assert(WEFT_ERR_MEMORY_GONE == -28, "WEFT_ERR_MEMORY_GONE");
static_assert(WEFT_ERR_REMOTE_ACCESS == -29, "WEFT_ERR_REMOTE_ACCESS");
static_assert(WEFT_ERR_DENIED == -30, "WEFT_ERR_DENIED");
static_assert(WEFT_ERR_PROTOCOL == -31, "WEFT_ERR_PROTOCOL");
static_assert(WEFT_ERR_INVALID == -40, "WEFT_ERR_INVALID");
static_assert(WEFT_ERR_HANDLE == -41, "WEFT_ERR_HANDLE");
static_assert(WEFT_ERR_RANGE == -42, "WEFT_ERR_RANGE");
static_assert(WEFT_ERR_UNSUPPORTED == -43, "WEFT_ERR_UNSUPPORTED");
static_assert(WEFT_ERR_LIMIT == -44, "WEFT_ERR_LIMIT");
static_assert(WEFT_ERR_FORMAT == -45, "WEFT_ERR_FORMAT");
static_assert(WEFT_ERR_TOO_SMALL == -46, "WEFT_ERR_TOO_SMALL");
static_assert(WEFT_ERR_CLOSED == -47, "WEFT_ERR_CLOSED");
static_assert(WEFT_ERR_FORKED == -48, "WEFT_ERR_FORKED");
static_assert(WEFT_ERR_NO_LIBFABRIC == -70, "WEFT_ERR_NO_LIBFABRIC");
static_assert(WEFT_ERR_NO_RAILS == -71, "WEFT_ERR_NO_RAILS");
static_assert(WEFT_ERR_FABRIC == -72, "WEFT_ERR_FABRIC");
static_assert(WEFT_ERR_NO_MEMORY == -73, "WEFT_ERR_NO_MEMORY");
static_assert(WEFT_ERR_SYSTEM == -74, "WEFT_ERR_SYSTEM");
static_assert(WEFT_ERR_INTERNAL == -90, "WEFT_ERR_INTERNAL");
static_assert(WEFT_CATEGORY_OK == 0, "WEFT_CATEGORY_OK");
static_assert(WEFT_CATEGORY_RETRY == 1, "WEFT_CATEGORY_RETRY");
static_assert(WEFT_CATEGORY_PEER == 2, "WEFT_CATEGORY_PEER");
static_assert(WEFT_CATEGORY_USAGE == 3, "WEFT_CATEGORY_USAGE");
static_assert(WEFT_CATEGORY_SYSTEM == 4, "WEFT_CATEGORY_SYSTEM");
static_assert(WEFT_CATEGORY_INTERNAL == 5, "WEFT_CATEGORY_INTERNAL");
static_assert(WEFT_PROGRESS_THREADS == 0, "WEFT_PROGRESS_THREADS");
static_assert(WEFT_PROGRESS_MANUAL == 1, "WEFT_PROGRESS_MANUAL");
static_assert(WEFT_ACCESS_REMOTE_WRITE == 1, "WEFT_ACCESS_REMOTE_WRITE");
static_assert(WEFT_ACCESS_REMOTE_READ == 2, "WEFT_ACCESS_REMOTE_READ");
static_assert(WEFT_ACCESS_LOCAL == 4, "WEFT_ACCESS_LOCAL");
static_assert(WEFT_COMPLETION_WRITE == 1, "WEFT_COMPLETION_WRITE");
static_assert(WEFT_COMPLETION_READ == 2, "WEFT_COMPLETION_READ");
static_assert(WEFT_COMPLETION_SEND == 3, "WEFT_COMPLETION_SEND");
static_assert(WEFT_COMPLETION_MESSAGE == 4, "WEFT_COMPLETION_MESSAGE");
static_assert(WEFT_COMPLETION_NOTIFICATION == 5, "WEFT_COMPLETION_NOTIFICATION");
static_assert(WEFT_COMPLETION_PEER_UP == 6, "WEFT_COMPLETION_PEER_UP");
static_assert(WEFT_COMPLETION_PEER_DOWN == 7, "WEFT_COMPLETION_PEER_DOWN");
static_assert(WEFT_COMPLETION_ATOMIC == 9, "WEFT_COMPLETION_ATOMIC");
static_assert(WEFT_CAPABILITY_ATOMICS == 1, "WEFT_CAPABILITY_ATOMICS");
static_assert(WEFT_NOTIFY == 1, "WEFT_NOTIFY");
static_assert(WEFT_CLASS_LATENCY == 2, "WEFT_CLASS_LATENCY");
static_assert(WEFT_COUNT_PAGES == 4, "WEFT_COUNT_PAGES");
static_assert(WEFT_COMPLETE_EACH_PEER == 8, "WEFT_COMPLETE_EACH_PEER");
static_assert(WEFT_NOTIFY_DATA_MAX == 256, "WEFT_NOTIFY_DATA_MAX");
static_assert(WEFT_MESSAGE_MAX == 1048576, "WEFT_MESSAGE_MAX");
static_assert(WEFT_LOG_DEFAULT == 0, "WEFT_LOG_DEFAULT");
static_assert(WEFT_LOG_ERROR == 1, "WEFT_LOG_ERROR");
static_assert(WEFT_LOG_WARN == 2, "WEFT_LOG_WARN");
static_assert(WEFT_LOG_INFO == 3, "WEFT_LOG_INFO");
static_assert(WEFT_LOG_DEBUG == 4, "WEFT_LOG_DEBUG");
static_assert(WEFT_LOG_TRACE == 5, "WEFT_LOG_TRACE");
static_assert(WEFT_STATISTICS_STATUSES == 96, "WEFT_STATISTICS_STATUSES");
static_assert(WEFT_STATISTICS_BUCKETS == 40, "WEFT_STATISTICS_BUCKETS");

static_assert(std::is_same<weft_status, int32_t>::value, "weft_status");
static_assert(std::is_same<weft_category, int32_t>::value, "weft_category");
static_assert(std::is_same<weft_completion_kind, int32_t>::value, "weft_completion_kind");
static_assert(std::is_same<weft_peer, uint64_t>::value, "weft_peer");
static_assert(std::is_same<weft_transfer, uint64_t>::value, "weft_transfer");

bool weft_initializers_are_fine();

bool weft_initializers_are_fine()
{
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    const weft_endpoint_properties endpoint = WEFT_ENDPOINT_PROPERTIES_INIT;
    weft_rail_properties rail = WEFT_RAIL_PROPERTIES_INIT;
    weft_peer_properties peer = WEFT_PEER_PROPERTIES_INIT;
    weft_connect_args connect = WEFT_CONNECT_ARGS_INIT;
    weft_memory_args memory = WEFT_MEMORY_ARGS_INIT;
    weft_alloc_args alloc = WEFT_ALLOC_ARGS_INIT;
    weft_range_args range WEFT_RANGE_ARGS_INIT; // brace initialisation
    weft_pages_args pages = WEFT_PAGES_ARGS_INIT;
    static weft_send_args message = WEFT_SEND_ARGS_INIT;
    weft_endpoint_statistics done = WEFT_ENDPOINT_STATISTICS_INIT;
    weft_rail_statistics carried = WEFT_RAIL_STATISTICS_INIT;
    weft_atomic_args atomic = WEFT_ATOMIC_ARGS_INIT;
    return config.size == sizeof config && endpoint.size == sizeof endpoint &&
           rail.size == sizeof rail && peer.size == sizeof peer &&
           connect.size == sizeof connect && memory.size == sizeof memory && alloc.size == sizeof alloc &&
           range.size == sizeof range && pages.size == sizeof pages &&
           message.size == sizeof message && atomic.size == sizeof atomic && done.size == sizeof done &&
           carried.size == sizeof carried && pages.queue == nullptr;
}
