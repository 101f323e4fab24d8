"""Prints the median of ns that a call of weft_write_pages with one page takes through ctypes."""

import ctypes
import statistics
import sys
import time
from ctypes import byref, c_uint64, c_void_p

import raw as weft

BATCHES, BATCH, PAGE = int(sys.argv[1]), 32, 4096
MANUAL, SPIN = 1, 1


def endpoint(progress):
    handle = c_void_p()
    config = weft.EndpointConfig(fabric=b"sim:like=efa:nocopy", progress=progress, workers=1 - progress, idle=SPIN)
    weft.lib.weft_endpoint_create(byref(config), byref(handle))
    return handle


def poll(handle):
    done = (weft.Completion * 16)()
    count = weft.lib.weft_queue_poll(weft.lib.weft_endpoint_queue(handle), done, len(done), 0)
    for one in done[:count]:
        assert one.status == 0, weft.lib.weft_status_name(one.status)
    return [one.kind for one in done[:count]]


def until(kind, count):
    while count > 0:
        poll(receiver)
        count -= poll(sender).count(kind)


sender, receiver = endpoint(0), endpoint(MANUAL)
buffers = [ctypes.create_string_buffer(PAGE) for _ in range(2)]
memory, given = weft.register(sender, buffers[:1]), weft.register(receiver, buffers[1:])
peer, remote = c_uint64(), c_void_p()
address = weft.blob(weft.lib.weft_endpoint_address, receiver)
weft.lib.weft_peer_connect(sender, address, len(address), None, byref(peer))
until(weft.PEER_UP, 1)
descriptor = weft.blob(weft.lib.weft_memory_export, given)
weft.lib.weft_remote_memory_import(sender, peer, descriptor, len(descriptor), byref(remote))
pages = weft.Pages(page_len=PAGE, page_count=1)
submit, reference = weft.lib.weft_write_pages, byref(pages)
times = []
for _ in range(BATCHES):
    begun = time.perf_counter_ns()
    for _ in range(BATCH):
        submit(sender, memory, remote, reference, None, None)
    times.append((time.perf_counter_ns() - begun) / BATCH)
    until(weft.WRITE, BATCH)
print(statistics.median(times))
for handle in (sender, receiver):
    weft.lib.weft_endpoint_shutdown(handle, 0)
    weft.lib.weft_endpoint_destroy(handle)
