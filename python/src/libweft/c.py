"""weft.h as ctypes sees it: constants, structs and the types of functions.

Made from include/weft.h by tools/bindings.py: do not edit. Names are those of the header
without `weft_`, which has the contract.
"""

import ctypes
from ctypes import c_char, c_char_p, c_int32, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p
from typing import Any, Dict, Final, List, Optional, Tuple


class Text(str):
    """A text of a struct. It was bytes in 0.2: it still equals them, and can be decoded."""

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other.decode("utf-8", "replace") if isinstance(other, bytes) else other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return str.__hash__(self)

    def decode(self, *_: str, **__: str) -> str:
        """Itself."""
        return str(self)


class Struct(ctypes.Structure):
    def __repr__(self) -> str:
        """Its fields, without those that are 0."""
        fields = ((name, getattr(self, name)) for name, *_ in self._fields_ if name not in ("size", "reserved"))
        return f"{type(self).__name__}({', '.join(f'{name}={_shown(value)}' for name, value in fields if _said(value))})"


def _said(value: Any) -> bool:
    return any(value) if isinstance(value, ctypes.Array) else bool(value)


def _shown(value: Any) -> str:
    if isinstance(value, ctypes.Array):
        return repr({i: one for i, one in enumerate(value) if one})
    return repr(value)


class Sized(Struct):
    """A struct that begins with its size; everything else is 0 unless named."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(size=ctypes.sizeof(self), **fields)


#: Of the header.
VERSION: Final = "0.3.0"
OK: Final = 0
ERR_AGAIN: Final = -1
ERR_BUSY: Final = -2
ERR_TIMED_OUT: Final = -20
ERR_CANCELED: Final = -21
ERR_PEER_LOST: Final = -22
ERR_PEER_GONE: Final = -23
ERR_PEER_CLOSED: Final = -24
ERR_UNREACHABLE: Final = -25
ERR_VERSION: Final = -26
ERR_NO_COMMON_FABRIC: Final = -27
ERR_MEMORY_GONE: Final = -28
ERR_REMOTE_ACCESS: Final = -29
ERR_DENIED: Final = -30
ERR_PROTOCOL: Final = -31
ERR_RAIL_LOST: Final = -32
ERR_REVOKED: Final = -33
ERR_FILE: Final = -34
ERR_INVALID: Final = -40
ERR_HANDLE: Final = -41
ERR_RANGE: Final = -42
ERR_UNSUPPORTED: Final = -43
ERR_LIMIT: Final = -44
ERR_FORMAT: Final = -45
ERR_TOO_SMALL: Final = -46
ERR_CLOSED: Final = -47
ERR_FORKED: Final = -48
ERR_NO_LIBFABRIC: Final = -70
ERR_NO_RAILS: Final = -71
ERR_FABRIC: Final = -72
ERR_NO_MEMORY: Final = -73
ERR_SYSTEM: Final = -74
ERR_INTERNAL: Final = -90
CATEGORY_OK: Final = 0
CATEGORY_RETRY: Final = 1
CATEGORY_PEER: Final = 2
CATEGORY_USAGE: Final = 3
CATEGORY_SYSTEM: Final = 4
CATEGORY_INTERNAL: Final = 5
PROGRESS_THREADS: Final = 0
PROGRESS_MANUAL: Final = 1
IDLE_ADAPTIVE: Final = 0
IDLE_SPIN: Final = 1
IDLE_SLEEP: Final = 2
LIVENESS_OFF: Final = 18446744073709551615
NOTIFY: Final = 1
CLASS_LATENCY: Final = 2
COUNT_PAGES: Final = 4
COMPLETE_EACH_PEER: Final = 8
NOTIFY_FAILURE: Final = 16
DURABLE: Final = 32
NOTIFY_DATA_MAX: Final = 256
CAPABILITY_ATOMICS: Final = 1
CAPABILITY_DURABLE: Final = 2
ACCESS_REMOTE_WRITE: Final = 1
ACCESS_REMOTE_READ: Final = 2
ACCESS_LOCAL: Final = 4
ACCESS_GRANTED: Final = 8
MEMORY_ANY: Final = 0
MEMORY_HOST: Final = 1
MEMORY_CUDA: Final = 2
MEMORY_FILE: Final = 3
NUMA_ANY: Final = -1
COMPLETION_WRITE: Final = 1
COMPLETION_READ: Final = 2
COMPLETION_SEND: Final = 3
COMPLETION_MESSAGE: Final = 4
COMPLETION_NOTIFICATION: Final = 5
COMPLETION_PEER_UP: Final = 6
COMPLETION_PEER_DOWN: Final = 7
COMPLETION_COUNTER: Final = 8
COMPLETION_ATOMIC: Final = 9
COMPLETION_RAIL_DOWN: Final = 10
COMPLETION_RAIL_UP: Final = 11
COMPLETION_FENCE: Final = 12
MESSAGE_MAX: Final = 1048576
LIST_ENTRIES_MAX: Final = 1048576
WAY_DIRECT: Final = 1
WAY_STAGED: Final = 2
WAY_SHARED: Final = 4
WAY_DMABUF: Final = 8
WAY_FILE: Final = 16
WAY_CACHED: Final = 32
STATISTICS_STATUSES: Final = 96
STATISTICS_BUCKETS: Final = 40
LOG_DEFAULT: Final = 0
LOG_ERROR: Final = 1
LOG_WARN: Final = 2
LOG_INFO: Final = 3
LOG_DEBUG: Final = 4
LOG_TRACE: Final = 5
VERSION_MAJOR: Final = 0
VERSION_MINOR: Final = 3
VERSION_PATCH: Final = 0

LogCallback: Any = ctypes.CFUNCTYPE(None, c_uint32, c_char_p, c_char_p, c_void_p)


class EndpointConfig(Sized):
    size: int
    flags: int
    fabric: Optional[bytes]
    rails: Optional[bytes]
    rail_count: int
    min_rails: int
    tcp_streams: int
    progress: int
    workers: int
    max_transfers: int
    queue_depth: int
    max_peers: int
    max_counters: int
    idle: int
    timeout_ns: int
    connect_timeout_ns: int
    message_bytes: int
    secret: Optional[int]
    secret_len: int
    liveness_ns: int
    other_secret: Optional[int]
    other_secret_len: int
    secret_file: Optional[bytes]
    encrypt: int
    tcp_dscp: int
    tcp_ports: Optional[bytes]
    tcp_address: Optional[bytes]
    trace: Optional[bytes]
    _fields_ = [
        ("size", c_uint32),
        ("flags", c_uint32),
        ("fabric", c_char_p),
        ("rails", c_char_p),
        ("rail_count", c_uint32),
        ("min_rails", c_uint32),
        ("tcp_streams", c_uint32),
        ("progress", c_uint32),
        ("workers", c_uint32),
        ("max_transfers", c_uint32),
        ("queue_depth", c_uint32),
        ("max_peers", c_uint32),
        ("max_counters", c_uint32),
        ("idle", c_uint32),
        ("timeout_ns", c_uint64),
        ("connect_timeout_ns", c_uint64),
        ("message_bytes", c_uint64),
        ("secret", c_void_p),
        ("secret_len", c_uint64),
        ("liveness_ns", c_uint64),
        ("other_secret", c_void_p),
        ("other_secret_len", c_uint64),
        ("secret_file", c_char_p),
        ("encrypt", c_uint32),
        ("tcp_dscp", c_uint32),
        ("tcp_ports", c_char_p),
        ("tcp_address", c_char_p),
        ("trace", c_char_p),
    ]


class GrantToken(Struct):
    bytes: Any
    _fields_ = [
        ("bytes", c_uint8 * 16),
    ]


class OpOptions(Sized):
    size: int
    flags: int
    timeout_ns: int
    user_data: Optional[int]
    queue: Optional[int]
    notify: int
    notify_data: Optional[int]
    notify_data_len: int
    reserved: int
    counter: int
    start_watch: Optional[int]
    start_value: int
    done_watch: Optional[int]
    done_value: int
    grant: Any
    _fields_ = [
        ("size", c_uint32),
        ("flags", c_uint32),
        ("timeout_ns", c_uint64),
        ("user_data", c_void_p),
        ("queue", c_void_p),
        ("notify", c_uint64),
        ("notify_data", c_void_p),
        ("notify_data_len", c_uint32),
        ("reserved", c_uint32),
        ("counter", c_uint64),
        ("start_watch", c_void_p),
        ("start_value", c_uint64),
        ("done_watch", c_void_p),
        ("done_value", c_uint64),
        ("grant", GrantToken),
    ]


class PeerProperties(Sized):
    size: int
    up: int
    lanes: int
    local_rails: int
    remote_rails: int
    capabilities: int
    incarnation: int
    fabric: Text
    reason: Text
    address: Text
    _fields_ = [
        ("size", c_uint32),
        ("up", c_uint32),
        ("lanes", c_uint32),
        ("local_rails", c_uint32),
        ("remote_rails", c_uint32),
        ("capabilities", c_uint32),
        ("incarnation", c_uint64),
        ("fabric", c_char * 64),
        ("reason", c_char * 256),
        ("address", c_char * 128),
    ]


class MemoryRange(Struct):
    address: Optional[int]
    len: int
    _fields_ = [
        ("address", c_void_p),
        ("len", c_uint64),
    ]


class MemoryArgs(Sized):
    size: int
    access: int
    rails: int
    kind: int
    reserved: int
    fd: int
    reserved2: int
    _fields_ = [
        ("size", c_uint32),
        ("access", c_uint32),
        ("rails", c_uint64),
        ("kind", c_uint32),
        ("reserved", c_uint32),
        ("fd", c_int32),
        ("reserved2", c_uint32),
    ]


class Completion(Struct):
    kind: int
    status: int
    op: int
    user_data: Optional[int]
    peer: int
    notify: int
    bytes: int
    data: Optional[int]
    provider_errno: int
    rail: int
    entry: int
    submit_ns: int
    first_post_ns: int
    done_ns: int
    previous: int
    accepted: int
    reserved: Any
    _fields_ = [
        ("kind", c_int32),
        ("status", c_int32),
        ("op", c_uint64),
        ("user_data", c_void_p),
        ("peer", c_uint64),
        ("notify", c_uint64),
        ("bytes", c_uint64),
        ("data", c_void_p),
        ("provider_errno", c_int32),
        ("rail", c_uint32),
        ("entry", c_uint64),
        ("submit_ns", c_uint64),
        ("first_post_ns", c_uint64),
        ("done_ns", c_uint64),
        ("previous", c_uint64),
        ("accepted", c_uint32),
        ("reserved", c_uint32 * 5),
    ]


class PageSide(Struct):
    pages: Any
    page_stride: int
    offset: int
    layer_stride: int
    first_range: int
    range_step: int
    _fields_ = [
        ("pages", ctypes.POINTER(c_uint32)),
        ("page_stride", c_uint64),
        ("offset", c_uint64),
        ("layer_stride", c_uint64),
        ("first_range", c_uint32),
        ("range_step", c_uint32),
    ]


class Pages(Sized):
    size: int
    layer_count: int
    page_len: int
    page_count: int
    local: Any
    remote: Any
    _fields_ = [
        ("size", c_uint32),
        ("layer_count", c_uint32),
        ("page_len", c_uint64),
        ("page_count", c_uint64),
        ("local", PageSide),
        ("remote", PageSide),
    ]


class GrantArgs(Sized):
    size: int
    access: int
    pages: Any
    page_len: int
    page_count: int
    layer_count: int
    flags: int
    timeout_ns: int
    notify: int
    _fields_ = [
        ("size", c_uint32),
        ("access", c_uint32),
        ("pages", ctypes.POINTER(PageSide)),
        ("page_len", c_uint64),
        ("page_count", c_uint64),
        ("layer_count", c_uint32),
        ("flags", c_uint32),
        ("timeout_ns", c_uint64),
        ("notify", c_uint64),
    ]


class ListEntry(Struct):
    local: Optional[int]
    remote: Optional[int]
    peer: int
    local_range: int
    remote_range: int
    local_offset: int
    remote_offset: int
    len: int
    counter: int
    _fields_ = [
        ("local", c_void_p),
        ("remote", c_void_p),
        ("peer", c_uint64),
        ("local_range", c_uint32),
        ("remote_range", c_uint32),
        ("local_offset", c_uint64),
        ("remote_offset", c_uint64),
        ("len", c_uint64),
        ("counter", c_uint64),
    ]


class MemoryProperties(Sized):
    size: int
    kind: int
    device: int
    ways: int
    bytes: int
    rails: int
    ranges: int
    _fields_ = [
        ("size", c_uint32),
        ("kind", c_uint32),
        ("device", c_int32),
        ("ways", c_uint32),
        ("bytes", c_uint64),
        ("rails", c_uint64),
        ("ranges", c_uint64),
    ]


class EndpointProperties(Sized):
    size: int
    rails: int
    workers: int
    peers: int
    incarnation: int
    libfabric: Text
    _fields_ = [
        ("size", c_uint32),
        ("rails", c_uint32),
        ("workers", c_uint32),
        ("peers", c_uint32),
        ("incarnation", c_uint64),
        ("libfabric", c_char * 256),
    ]


class EndpointStatistics(Sized):
    size: int
    peers: int
    active: int
    writes: int
    reads: int
    sends: int
    atomics: int
    expects: int
    fences: int
    bytes_written: int
    bytes_read: int
    bytes_sent: int
    messages_sent: int
    notifications_sent: int
    messages_received: int
    bytes_received: int
    notifications_received: int
    frames_dropped: int
    completions: Any
    latency: Any
    latency_sum_ns: int
    handshakes_rejected: int
    pass_longest_ns: int
    driver_call_longest_ns: int
    grants: int
    _fields_ = [
        ("size", c_uint32),
        ("peers", c_uint32),
        ("active", c_uint64),
        ("writes", c_uint64),
        ("reads", c_uint64),
        ("sends", c_uint64),
        ("atomics", c_uint64),
        ("expects", c_uint64),
        ("fences", c_uint64),
        ("bytes_written", c_uint64),
        ("bytes_read", c_uint64),
        ("bytes_sent", c_uint64),
        ("messages_sent", c_uint64),
        ("notifications_sent", c_uint64),
        ("messages_received", c_uint64),
        ("bytes_received", c_uint64),
        ("notifications_received", c_uint64),
        ("frames_dropped", c_uint64),
        ("completions", c_uint64 * 96),
        ("latency", c_uint64 * 40),
        ("latency_sum_ns", c_uint64),
        ("handshakes_rejected", c_uint64),
        ("pass_longest_ns", c_uint64),
        ("driver_call_longest_ns", c_uint64),
        ("grants", c_uint64),
    ]


class RailProperties(Sized):
    size: int
    worker: int
    fabric: Text
    name: Text
    address: Text
    numa_node: int
    pci: Text
    _fields_ = [
        ("size", c_uint32),
        ("worker", c_uint32),
        ("fabric", c_char * 64),
        ("name", c_char * 64),
        ("address", c_char * 128),
        ("numa_node", c_int32),
        ("pci", c_char * 32),
    ]


class RailStatistics(Sized):
    size: int
    up: int
    lanes: int
    lanes_stalled: int
    bytes_written: int
    bytes_read: int
    slices_written: int
    slices_read: int
    posts: int
    posts_refused: int
    errors: int
    retries: int
    frames_sent: int
    frames_received: int
    inflight_bytes: int
    inflight_posts: int
    bytes_per_s: int
    round_trip_ns: int
    lane_resets: int
    lane_reconnects: int
    link: Text
    _fields_ = [
        ("size", c_uint32),
        ("up", c_uint32),
        ("lanes", c_uint32),
        ("lanes_stalled", c_uint32),
        ("bytes_written", c_uint64),
        ("bytes_read", c_uint64),
        ("slices_written", c_uint64),
        ("slices_read", c_uint64),
        ("posts", c_uint64),
        ("posts_refused", c_uint64),
        ("errors", c_uint64),
        ("retries", c_uint64),
        ("frames_sent", c_uint64),
        ("frames_received", c_uint64),
        ("inflight_bytes", c_uint64),
        ("inflight_posts", c_uint64),
        ("bytes_per_s", c_uint64),
        ("round_trip_ns", c_uint64),
        ("lane_resets", c_uint64),
        ("lane_reconnects", c_uint64),
        ("link", c_char * 16),
    ]


class LaneStatistics(Sized):
    size: int
    rail: int
    remote_rail: int
    up: int
    state: Text
    remote_address: Text
    bytes_written: int
    bytes_read: int
    bytes_sent: int
    bytes_received: int
    retransmits: int
    round_trip_ns: int
    bytes_per_s: int
    inflight_bytes: int
    resets: int
    reconnects: int
    connection_local: Text
    connection_remote: Text
    _fields_ = [
        ("size", c_uint32),
        ("rail", c_uint32),
        ("remote_rail", c_uint32),
        ("up", c_uint32),
        ("state", c_char * 16),
        ("remote_address", c_char * 128),
        ("bytes_written", c_uint64),
        ("bytes_read", c_uint64),
        ("bytes_sent", c_uint64),
        ("bytes_received", c_uint64),
        ("retransmits", c_uint64),
        ("round_trip_ns", c_uint64),
        ("bytes_per_s", c_uint64),
        ("inflight_bytes", c_uint64),
        ("resets", c_uint64),
        ("reconnects", c_uint64),
        ("connection_local", c_char * 64),
        ("connection_remote", c_char * 64),
    ]


#: What each function returns, and takes.
FUNCTIONS: Dict[str, Tuple[Any, List[Any]]] = {
    "weft_status_name": (c_char_p, [c_int32]),
    "weft_status_text": (c_char_p, [c_int32]),
    "weft_status_category": (c_int32, [c_int32]),
    "weft_last_error": (c_char_p, []),
    "weft_endpoint_create": (c_int32, [ctypes.POINTER(EndpointConfig), ctypes.POINTER(c_void_p)]),
    "weft_endpoint_address": (c_int32, [c_void_p, c_void_p, c_size_t, ctypes.POINTER(c_size_t)]),
    "weft_endpoint_shutdown": (c_int32, [c_void_p, c_uint64]),
    "weft_endpoint_destroy": (c_int32, [c_void_p]),
    "weft_op_cancel": (c_int32, [c_void_p, c_uint64]),
    "weft_peer_connect": (c_int32, [c_void_p, c_void_p, c_size_t, ctypes.POINTER(OpOptions), ctypes.POINTER(c_uint64)]),
    "weft_peer_disconnect": (c_int32, [c_void_p, c_uint64]),
    "weft_peer_reason": (c_int32, [c_void_p, c_uint64, c_void_p, c_size_t, ctypes.POINTER(c_size_t)]),
    "weft_peer_info": (c_int32, [c_void_p, c_uint64, ctypes.POINTER(PeerProperties)]),
    "weft_memory_alloc": (c_int32, [c_void_p, c_uint64, c_int32, ctypes.POINTER(c_void_p)]),
    "weft_memory_free": (c_int32, [c_void_p, c_void_p]),
    "weft_memory_register": (c_int32, [c_void_p, ctypes.POINTER(MemoryRange), c_size_t, ctypes.POINTER(MemoryArgs), ctypes.POINTER(c_void_p)]),
    "weft_memory_export": (c_int32, [c_void_p, c_void_p, c_size_t, ctypes.POINTER(c_size_t)]),
    "weft_memory_deregister": (c_int32, [c_void_p]),
    "weft_remote_memory_import": (c_int32, [c_void_p, c_uint64, c_void_p, c_size_t, ctypes.POINTER(c_void_p)]),
    "weft_remote_memory_release": (c_int32, [c_void_p]),
    "weft_endpoint_queue": (c_void_p, [c_void_p]),
    "weft_queue_create": (c_int32, [c_void_p, c_uint32, ctypes.POINTER(c_void_p)]),
    "weft_queue_poll": (c_int32, [c_void_p, ctypes.POINTER(Completion), c_uint32, c_uint64]),
    "weft_queue_arm": (c_int32, [c_void_p, ctypes.POINTER(c_int32)]),
    "weft_queue_destroy": (c_int32, [c_void_p]),
    "weft_write": (c_int32, [c_void_p, c_void_p, c_uint64, c_void_p, c_uint64, c_uint64, ctypes.POINTER(OpOptions), ctypes.POINTER(c_uint64)]),
    "weft_read": (c_int32, [c_void_p, c_void_p, c_uint64, c_void_p, c_uint64, c_uint64, ctypes.POINTER(OpOptions), ctypes.POINTER(c_uint64)]),
    "weft_write_pages": (c_int32, [c_void_p, c_void_p, c_void_p, ctypes.POINTER(Pages), ctypes.POINTER(OpOptions), ctypes.POINTER(c_uint64)]),
    "weft_read_pages": (c_int32, [c_void_p, c_void_p, c_void_p, ctypes.POINTER(Pages), ctypes.POINTER(OpOptions), ctypes.POINTER(c_uint64)]),
    "weft_send": (c_int32, [c_void_p, c_uint64, c_void_p, c_uint64, ctypes.POINTER(OpOptions), ctypes.POINTER(c_uint64)]),
    "weft_message_release": (c_int32, [c_void_p, c_uint64]),
    "weft_peer_fence": (c_int32, [c_void_p, c_uint64, ctypes.POINTER(OpOptions), ctypes.POINTER(c_uint64)]),
    "weft_grant_create": (c_int32, [c_void_p, c_uint64, ctypes.POINTER(GrantArgs), ctypes.POINTER(GrantToken)]),
    "weft_grant_revoke": (c_int32, [c_void_p, ctypes.POINTER(GrantToken), ctypes.POINTER(OpOptions), ctypes.POINTER(c_uint64)]),
    "weft_write_list": (c_int32, [c_void_p, ctypes.POINTER(ListEntry), c_uint64, ctypes.POINTER(OpOptions), ctypes.POINTER(c_uint64)]),
    "weft_read_list": (c_int32, [c_void_p, ctypes.POINTER(ListEntry), c_uint64, ctypes.POINTER(OpOptions), ctypes.POINTER(c_uint64)]),
    "weft_pages_prepare": (c_int32, [c_void_p, c_void_p, c_void_p, ctypes.POINTER(Pages), c_uint32, ctypes.POINTER(c_void_p)]),
    "weft_list_prepare": (c_int32, [c_void_p, ctypes.POINTER(ListEntry), c_uint64, c_uint32, ctypes.POINTER(c_void_p)]),
    "weft_write_prepared": (c_int32, [c_void_p, c_void_p, ctypes.POINTER(OpOptions), ctypes.POINTER(c_uint64)]),
    "weft_read_prepared": (c_int32, [c_void_p, c_void_p, ctypes.POINTER(OpOptions), ctypes.POINTER(c_uint64)]),
    "weft_prepared_destroy": (c_int32, [c_void_p]),
    "weft_counter_create": (c_int32, [c_void_p, ctypes.POINTER(c_uint64)]),
    "weft_counter_read": (c_int32, [c_void_p, c_uint64, ctypes.POINTER(c_uint64)]),
    "weft_counter_expect": (c_int32, [c_void_p, ctypes.POINTER(c_uint64), ctypes.POINTER(c_uint64), c_uint32, ctypes.POINTER(OpOptions), ctypes.POINTER(c_uint64)]),
    "weft_counter_destroy": (c_int32, [c_void_p, c_uint64]),
    "weft_fetch_add": (c_int32, [c_void_p, c_void_p, c_uint64, c_uint64, ctypes.POINTER(OpOptions), ctypes.POINTER(c_uint64)]),
    "weft_compare_swap": (c_int32, [c_void_p, c_void_p, c_uint64, c_uint64, c_uint64, ctypes.POINTER(OpOptions), ctypes.POINTER(c_uint64)]),
    "weft_memory_info": (c_int32, [c_void_p, ctypes.POINTER(MemoryProperties)]),
    "weft_watch_create": (c_int32, [c_void_p, ctypes.POINTER(c_void_p), ctypes.POINTER(ctypes.POINTER(c_uint64))]),
    "weft_watch_destroy": (c_int32, [c_void_p]),
    "weft_endpoint_info": (c_int32, [c_void_p, ctypes.POINTER(EndpointProperties), ctypes.POINTER(EndpointStatistics)]),
    "weft_rail_info": (c_int32, [c_void_p, c_uint32, ctypes.POINTER(RailProperties), ctypes.POINTER(RailStatistics)]),
    "weft_lane_info": (c_int32, [c_void_p, c_uint64, c_uint32, ctypes.POINTER(LaneStatistics)]),
    "weft_endpoint_metrics": (c_int32, [c_void_p, c_void_p, c_size_t, ctypes.POINTER(c_size_t)]),
    "weft_topology": (c_int32, [c_void_p, c_size_t, ctypes.POINTER(c_size_t)]),
    "weft_log_set": (c_int32, [c_uint32, LogCallback, c_void_p]),
    "weft_version": (c_uint32, []),
}

#: The structs, by their names in C.
STRUCTS: Dict[str, Any] = {
    "weft_endpoint_config": EndpointConfig,
    "weft_grant_token": GrantToken,
    "weft_op_options": OpOptions,
    "weft_peer_properties": PeerProperties,
    "weft_memory_range": MemoryRange,
    "weft_memory_args": MemoryArgs,
    "weft_completion": Completion,
    "weft_page_side": PageSide,
    "weft_pages": Pages,
    "weft_grant_args": GrantArgs,
    "weft_list_entry": ListEntry,
    "weft_memory_properties": MemoryProperties,
    "weft_endpoint_properties": EndpointProperties,
    "weft_endpoint_statistics": EndpointStatistics,
    "weft_rail_properties": RailProperties,
    "weft_rail_statistics": RailStatistics,
    "weft_lane_statistics": LaneStatistics,
}


class _Field:
    """A field of characters, as text."""

    def __init__(self, field: Any) -> None:
        self._field, self.offset, self.size = field, field.offset, field.size

    def __get__(self, struct: Any, _: Any = None) -> Any:
        return self if struct is None else Text(self._field.__get__(struct).decode("utf-8", "replace"))

    def __set__(self, struct: Any, value: Any) -> None:
        self._field.__set__(struct, value.encode() if isinstance(value, str) else value)


for _struct in STRUCTS.values():
    for _name, _kind in _struct._fields_:
        if issubclass(_kind, ctypes.Array) and _kind._type_ is c_char:
            setattr(_struct, _name, _Field(getattr(_struct, _name)))
