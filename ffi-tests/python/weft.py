"""weft.h by hand, for ctypes: what a Python program needs and no more."""

import ctypes
import os
from ctypes import (POINTER, Structure, byref, c_char, c_char_p, c_int32, c_size_t, c_uint32,
                    c_uint64, c_void_p)

OK, AGAIN, DENIED = 0, -1, -30
LOG_DEFAULT, LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG, LOG_TRACE = range(6)
NOTIFY, COUNT_PAGES = 1, 4
WRITE, READ, SEND, MESSAGE, NOTIFICATION, PEER_UP, PEER_DOWN, COUNTER, ATOMIC = range(1, 10)

lib = ctypes.CDLL(os.environ["WEFT_TEST_LIBRARY"])


class Sized(Structure):
    """A struct that begins with its size; everything else is 0 unless named."""

    def __init__(self, **fields):
        super().__init__(size=ctypes.sizeof(self), **fields)


class EndpointConfig(Sized):
    _fields_ = [
        ("size", c_uint32), ("flags", c_uint32), ("fabric", c_char_p), ("rails", c_char_p),
        ("rail_count", c_uint32), ("min_rails", c_uint32), ("progress", c_uint32),
        ("workers", c_uint32), ("max_transfers", c_uint32), ("queue_depth", c_uint32),
        ("max_peers", c_uint32), ("idle", c_uint32), ("timeout_ns", c_uint64),
        ("connect_timeout_ns", c_uint64), ("message_bytes", c_uint64),
        ("packing", c_uint32), ("max_counters", c_uint32), ("secret", c_char_p),
        ("secret_len", c_uint64), ("liveness_ns", c_uint64)]


class EndpointProperties(Sized):
    _fields_ = [
        ("size", c_uint32), ("rails", c_uint32), ("workers", c_uint32), ("peers", c_uint32),
        ("incarnation", c_uint64), ("libfabric", c_char * 256)]


class RailProperties(Sized):
    _fields_ = [
        ("size", c_uint32), ("worker", c_uint32), ("fabric", c_char * 64), ("name", c_char * 64),
        ("address", c_char * 128), ("numa_node", c_int32), ("pci", c_char * 32),
        ("bytes", c_uint64), ("posts", c_uint64)]


class EndpointStatistics(Sized):
    _fields_ = [("size", c_uint32), ("peers", c_uint32)] + [(name, c_uint64) for name in (
        "active", "writes", "reads", "sends", "atomics", "expects", "fences", "bytes_written", "bytes_read",
        "bytes_sent", "messages_sent", "notifications_sent", "messages_received", "bytes_received",
        "notifications_received", "frames_dropped")] + [
        ("completions", c_uint64 * 96), ("latency", c_uint64 * 40), ("latency_sum_ns", c_uint64),
        ("strangers_refused", c_uint64)]


class RailStatistics(Sized):
    _fields_ = [(name, c_uint32) for name in ("size", "up", "lanes", "lanes_stalled")] + [
        (name, c_uint64) for name in (
            "bytes_written", "bytes_read", "slices_written", "slices_read", "posts",
            "posts_refused", "errors", "retries", "frames_sent", "frames_received",
            "inflight_bytes", "inflight_posts", "bytes_per_s", "round_trip_ns")]


LogCallback = ctypes.CFUNCTYPE(None, c_uint32, c_char_p, c_char_p, c_void_p)


class MemoryRange(Structure):
    _fields_ = [("address", c_void_p), ("len", c_uint64)]


class RangeArgs(Sized):
    _fields_ = [
        ("size", c_uint32), ("flags", c_uint32), ("local", c_void_p), ("remote", c_void_p),
        ("local_range", c_uint32), ("remote_range", c_uint32), ("local_offset", c_uint64),
        ("remote_offset", c_uint64), ("len", c_uint64), ("notify", c_uint64),
        ("notify_data", c_void_p), ("notify_data_len", c_uint32), ("reserved", c_uint32),
        ("timeout_ns", c_uint64), ("user_data", c_void_p), ("queue", c_void_p)]


class PagesArgs(Sized):
    _fields_ = [
        ("size", c_uint32), ("flags", c_uint32), ("local", c_void_p), ("remote", c_void_p),
        ("local_pages", POINTER(c_uint32)), ("remote_pages", POINTER(c_uint32)),
        ("local_page_stride", c_uint64), ("remote_page_stride", c_uint64),
        ("local_offset", c_uint64), ("remote_offset", c_uint64),
        ("local_layer_stride", c_uint64), ("remote_layer_stride", c_uint64),
        ("local_first_range", c_uint32), ("remote_first_range", c_uint32),
        ("local_range_step", c_uint32), ("remote_range_step", c_uint32),
        ("page_len", c_uint64), ("page_count", c_uint64), ("layer_count", c_uint32),
        ("notify_data_len", c_uint32), ("notify", c_uint64), ("notify_data", c_void_p),
        ("timeout_ns", c_uint64), ("user_data", c_void_p), ("queue", c_void_p),
        ("counter", c_uint64)]


class ExpectArgs(Sized):
    _fields_ = [
        ("size", c_uint32), ("flags", c_uint32), ("counters", POINTER(c_uint64)),
        ("values", POINTER(c_uint64)), ("count", c_uint32), ("reserved", c_uint32),
        ("timeout_ns", c_uint64), ("user_data", c_void_p), ("queue", c_void_p)]


class ListEntry(Structure):
    _fields_ = [
        ("local", c_void_p), ("remote", c_void_p), ("peer", c_uint64), ("local_range", c_uint32),
        ("remote_range", c_uint32), ("local_offset", c_uint64), ("remote_offset", c_uint64),
        ("len", c_uint64), ("counter", c_uint64)]


class ListArgs(Sized):
    _fields_ = [
        ("size", c_uint32), ("flags", c_uint32), ("entries", POINTER(ListEntry)),
        ("count", c_uint64), ("notify", c_uint64), ("notify_data", c_void_p),
        ("notify_data_len", c_uint32), ("reserved", c_uint32), ("timeout_ns", c_uint64),
        ("user_data", c_void_p), ("queue", c_void_p)]


class KeptArgs(Sized):
    _fields_ = [
        ("size", c_uint32), ("flags", c_uint32), ("notify", c_uint64), ("notify_data", c_void_p),
        ("notify_data_len", c_uint32), ("reserved", c_uint32), ("counter", c_uint64),
        ("timeout_ns", c_uint64), ("user_data", c_void_p), ("queue", c_void_p)]


class SendArgs(Sized):
    _fields_ = [
        ("size", c_uint32), ("flags", c_uint32), ("peer", c_uint64), ("data", c_void_p),
        ("len", c_uint64), ("timeout_ns", c_uint64), ("user_data", c_void_p),
        ("queue", c_void_p)]


class AtomicArgs(Sized):
    _fields_ = [
        ("size", c_uint32), ("flags", c_uint32), ("remote", c_void_p), ("remote_range", c_uint32),
        ("reserved", c_uint32), ("remote_offset", c_uint64), ("operand", c_uint64),
        ("compare", c_uint64), ("timeout_ns", c_uint64), ("user_data", c_void_p),
        ("queue", c_void_p)]


class Completion(Structure):
    _fields_ = [
        ("kind", c_int32), ("status", c_int32), ("transfer", c_uint64), ("user_data", c_void_p),
        ("peer", c_uint64), ("value", c_uint64), ("bytes", c_uint64), ("data", c_void_p),
        ("provider_errno", c_int32), ("rail", c_uint32), ("entry", c_uint64),
        ("submit_ns", c_uint64), ("first_post_ns", c_uint64), ("done_ns", c_uint64),
        ("reserved", c_uint64 * 4)]


assert ctypes.sizeof(Completion) == 128


class Error(Exception):
    pass


def _check(status, function, _args):
    if status < 0:
        name = lib.weft_status_name(status).decode()
        raise Error(f"{function.__name__}: {name}: {lib.weft_last_error().decode()}")
    return status


lib.weft_status_name.restype = c_char_p
lib.weft_last_error.restype = c_char_p
lib.weft_version_string.restype = c_char_p
for _name, _types in {
    "weft_endpoint_open": [POINTER(EndpointConfig), POINTER(c_void_p)],
    "weft_endpoint_address": [c_void_p, c_void_p, c_size_t, POINTER(c_size_t)],
    "weft_endpoint_info": [c_void_p, POINTER(EndpointProperties)],
    "weft_rail_info": [c_void_p, c_uint32, POINTER(RailProperties)],
    "weft_endpoint_stats": [c_void_p, POINTER(EndpointStatistics)],
    "weft_rail_stats": [c_void_p, c_uint32, POINTER(RailStatistics)],
    "weft_log_set": [c_uint32, LogCallback, c_void_p],
    "weft_endpoint_shutdown": [c_void_p, c_uint64],
    "weft_endpoint_close": [c_void_p],
    "weft_peer_connect": [c_void_p, c_char_p, c_size_t, c_void_p, POINTER(c_uint64)],
    "weft_memory_register": [c_void_p, POINTER(MemoryRange), c_size_t, c_void_p,
                             POINTER(c_void_p)],
    "weft_memory_export": [c_void_p, c_void_p, c_size_t, POINTER(c_size_t)],
    "weft_memory_deregister": [c_void_p],
    "weft_remote_memory_import": [c_void_p, c_uint64, c_char_p, c_size_t, POINTER(c_void_p)],
    "weft_remote_memory_release": [c_void_p],
    "weft_poll": [c_void_p, POINTER(Completion), c_uint32],
    "weft_wait": [c_void_p, POINTER(Completion), c_uint32, c_uint64],
    "weft_event_fd": [c_void_p, POINTER(c_int32)],
    "weft_write": [c_void_p, POINTER(RangeArgs), POINTER(c_uint64)],
    "weft_write_pages": [c_void_p, POINTER(PagesArgs), POINTER(c_uint64)],
    "weft_write_list": [c_void_p, POINTER(ListArgs), POINTER(c_uint64)],
    "weft_read_list": [c_void_p, POINTER(ListArgs), POINTER(c_uint64)],
    "weft_pages_keep": [c_void_p, POINTER(PagesArgs), POINTER(c_void_p)],
    "weft_list_keep": [c_void_p, POINTER(ListArgs), POINTER(c_void_p)],
    "weft_write_kept": [c_void_p, c_void_p, POINTER(KeptArgs), POINTER(c_uint64)],
    "weft_read_kept": [c_void_p, c_void_p, POINTER(KeptArgs), POINTER(c_uint64)],
    "weft_kept_release": [c_void_p],
    "weft_counter_create": [c_void_p, POINTER(c_uint64)],
    "weft_counter_read": [c_void_p, c_uint64, POINTER(c_uint64)],
    "weft_counter_expect": [c_void_p, POINTER(ExpectArgs), POINTER(c_uint64)],
    "weft_counter_destroy": [c_void_p, c_uint64],
    "weft_send": [c_void_p, POINTER(SendArgs), POINTER(c_uint64)],
    "weft_message_release": [c_void_p, c_uint64],
    "weft_fetch_add": [c_void_p, POINTER(AtomicArgs), POINTER(c_uint64)],
    "weft_compare_swap": [c_void_p, POINTER(AtomicArgs), POINTER(c_uint64)],
}.items():
    _function = getattr(lib, _name)
    _function.argtypes, _function.restype, _function.errcheck = _types, c_int32, _check
lib.weft_topology.argtypes = [c_void_p, c_size_t, POINTER(c_size_t)]
lib.weft_topology.restype = c_int32
lib.weft_arm.argtypes = [c_void_p]
lib.weft_arm.restype = c_int32


def open_endpoint(secret=None):
    fabric = os.environ.get("WEFT_TEST_FABRIC", "tcp").encode()
    endpoint = c_void_p()
    config = EndpointConfig(fabric=fabric, rails=b"lo" if fabric == b"tcp" else None,
                            secret=secret, secret_len=len(secret or b""))
    lib.weft_endpoint_open(byref(config), byref(endpoint))
    return endpoint


def blob(function, handle):
    """An address or a descriptor, as bytes."""
    length = c_size_t()
    function(handle, None, 0, byref(length))
    buffer = ctypes.create_string_buffer(length.value)
    function(handle, buffer, length.value, byref(length))
    return buffer.raw


def register(endpoint, buffers):
    ranges = (MemoryRange * len(buffers))()
    for r, buffer in zip(ranges, buffers):
        r.address, r.len = ctypes.addressof(buffer), ctypes.sizeof(buffer)
    memory = c_void_p()
    lib.weft_memory_register(endpoint, ranges, len(buffers), None, byref(memory))
    return memory
