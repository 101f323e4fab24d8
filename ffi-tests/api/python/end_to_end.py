"""Two Python processes; completions come through asyncio, by the event fd."""

import asyncio
import ctypes
import os
import signal
import socket
import struct
import sys
from ctypes import byref, c_char, c_int32, c_uint32, c_uint64, c_void_p

LAYERS, PAGES, PAGE = 5, 100, 4096


class Events:
    """Completions as they come: poll until there is nothing, arm, sleep."""

    def __init__(self, weft, endpoint):
        self.weft, self.endpoint = weft, endpoint
        self.queue = asyncio.Queue()
        fd = c_int32()
        weft.lib.weft_queue_arm(weft.lib.weft_endpoint_queue(endpoint), byref(fd))
        asyncio.get_running_loop().add_reader(fd.value, self.drain)
        self.drain()

    def drain(self):
        done = (self.weft.Completion * 16)()
        while True:
            while (n := self.weft.lib.weft_queue_poll(self.weft.lib.weft_endpoint_queue(self.endpoint), done, 16, 0)) > 0:
                for i in range(n):
                    self.queue.put_nowait(self.weft.Completion.from_buffer_copy(done[i]))
            status = self.weft.lib.weft_queue_arm(self.weft.lib.weft_endpoint_queue(self.endpoint), None)
            if status == self.weft.OK:
                return
            assert status == self.weft.AGAIN, status

    async def take(self, kind=None):
        while True:
            c = await asyncio.wait_for(self.queue.get(), 20)
            assert c.status == 0, (c.kind, self.weft.lib.weft_status_name(c.status))
            if c.kind == kind or kind is None and c.kind != self.weft.PEER_UP:
                return c


def tell(sock, data):
    sock.sendall(struct.pack("<Q", len(data)) + data)


def hear(sock):
    (length,) = struct.unpack("<Q", sock.recv(8, socket.MSG_WAITALL))
    return sock.recv(length, socket.MSG_WAITALL)


def page(layer, index):
    return bytes((layer * 50 + index * 3 + k * 7) % 256 for k in range(64)) * (PAGE // 64)


def expect(weft, endpoint, counter, value):
    op = c_uint64()
    weft.lib.weft_counter_expect(endpoint, (c_uint64 * 1)(counter), (c_uint64 * 1)(value), 1, None, byref(op))
    return op.value


async def target(sock):
    import raw as weft

    endpoint = weft.open_endpoint()
    buffers = [(c_char * (PAGES * PAGE))() for _ in range(LAYERS)]
    memory = weft.register(endpoint, buffers)
    tell(sock, weft.blob(weft.lib.weft_endpoint_address, endpoint))
    tell(sock, weft.blob(weft.lib.weft_memory_export, memory))
    counter, value = c_uint64(), c_uint64()
    weft.lib.weft_counter_create(endpoint, byref(counter))
    tell(sock, bytes(counter))
    events = Events(weft, endpoint)
    for round_ in range(200):
        pages = (round_ + 1) * LAYERS * PAGES
        op = expect(weft, endpoint, counter.value, pages)
        # In either order: they are not about the same thing.
        came = {c.kind: c for c in [await events.take(), await events.take()]}
        c = came[weft.NOTIFICATION]
        assert came[weft.COUNTER].op == op
        weft.lib.weft_counter_read(endpoint, counter, byref(value))
        assert value.value == pages
        assert c.notify == round_
        assert ctypes.string_at(c.data, c.bytes) == b"round %d" % round_
        weft.lib.weft_message_release(endpoint, c.op)
        if round_ == 0:
            for layer in range(LAYERS):
                for i in range(PAGES):
                    at = (PAGES - 1 - i) * PAGE
                    assert buffers[layer].raw[at:at + PAGE] == page(layer, i), (layer, i)
        data = b"seen %d" % round_
        weft.lib.weft_send(endpoint, c.peer, data, len(data), None, None)
        await events.take(weft.SEND)
    hear(sock)
    assert buffers[1].raw[8:16] == struct.pack("<Q", 4711)
    weft.lib.weft_counter_destroy(endpoint, counter)
    weft.lib.weft_endpoint_shutdown(endpoint, 0)
    weft.lib.weft_endpoint_destroy(endpoint)


def check_figures(weft, endpoint):
    done, carried = weft.EndpointStatistics(), weft.RailStatistics()
    weft.lib.weft_endpoint_info(endpoint, None, byref(done))
    assert (done.writes, done.atomics, done.completions[0], sum(done.latency)) == (200, 3, 203, 200)
    assert (done.notifications_sent, done.messages_received) == (200, 200)
    assert done.bytes_written == 200 * PAGE * PAGES * LAYERS
    properties = weft.EndpointProperties()
    weft.lib.weft_endpoint_info(endpoint, byref(properties), None)
    written = 0
    for rail in range(properties.rails):
        weft.lib.weft_rail_info(endpoint, rail, None, byref(carried))
        written += carried.bytes_written
    assert written == done.bytes_written


async def writer(sock):
    import raw as weft

    endpoint = weft.open_endpoint()
    buffers = [ctypes.create_string_buffer(b"".join(page(layer, i) for i in range(PAGES)),
                                           PAGES * PAGE) for layer in range(LAYERS)]
    memory = weft.register(endpoint, buffers)
    events = Events(weft, endpoint)
    address, descriptor, counter = hear(sock), hear(sock), hear(sock)
    peer, remote, op = c_uint64(), c_void_p(), c_uint64()
    weft.lib.weft_peer_connect(endpoint, address, len(address), None, byref(peer))
    weft.lib.weft_remote_memory_import(endpoint, peer, descriptor, len(descriptor), byref(remote))
    await events.take(weft.PEER_UP)
    backwards = (c_uint32 * PAGES)(*reversed(range(PAGES)))
    for round_ in range(200):
        data = b"round %d" % round_
        pages = weft.Pages(
            page_len=PAGE, page_count=PAGES, layer_count=LAYERS, local=weft.PageSide(range_step=1),
            remote=weft.PageSide(pages=backwards, range_step=1))
        options = weft.OpOptions(
            flags=weft.NOTIFY | weft.COUNT_PAGES, notify=round_, notify_data=ctypes.cast(data, c_void_p),
            notify_data_len=len(data), user_data=1000 + round_, counter=int.from_bytes(counter, sys.byteorder))
        weft.lib.weft_write_pages(endpoint, memory, remote, byref(pages), byref(options), byref(op))
        done = seen = None
        while done is None or seen is None:
            c = await asyncio.wait_for(events.queue.get(), 20)
            assert c.status == 0, (c.kind, weft.lib.weft_status_name(c.status))
            if c.kind == weft.WRITE:
                done = c
            elif c.kind == weft.MESSAGE:
                seen = ctypes.string_at(c.data, c.bytes)
                weft.lib.weft_message_release(endpoint, c.op)
        assert done.op == op.value and done.user_data == 1000 + round_
        assert done.bytes == PAGE * PAGES * LAYERS
        assert seen == b"seen %d" % round_
    (word,) = struct.unpack("<Q", page(1, PAGES - 1)[8:16])
    offset = PAGES * PAGE + 8  # in the second range
    for before in (word, word + 5):
        weft.lib.weft_fetch_add(endpoint, remote, offset, 5, None, byref(op))
        c = await events.take(weft.ATOMIC)
        assert (c.op, c.previous) == (op.value, before), c.previous
    weft.lib.weft_compare_swap(endpoint, remote, offset, word + 10, 4711, None, None)
    assert (await events.take(weft.ATOMIC)).previous == word + 10
    tell(sock, b"done")
    check_figures(weft, endpoint)
    weft.lib.weft_remote_memory_release(remote)
    weft.lib.weft_memory_deregister(memory)
    weft.lib.weft_endpoint_shutdown(endpoint, 0)
    weft.lib.weft_endpoint_destroy(endpoint)


def asyncio_end_to_end():
    mine, theirs = socket.socketpair()
    child = os.fork()  # before weft is loaded
    if child == 0:
        status = 1
        try:
            mine.close()
            asyncio.run(target(theirs))
            status = 0
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    theirs.close()
    try:
        asyncio.run(writer(mine))
    finally:
        mine.close()
        _, status = os.waitpid(child, 0)
    assert status == 0, f"the target ended with {status:#x}"


def wait_for(weft, endpoint, kind):
    """The next completion of a kind, which must be a success."""
    c = weft.Completion()
    for _ in range(200):
        if weft.lib.weft_queue_poll(weft.lib.weft_endpoint_queue(endpoint), byref(c), 1, 100_000_000) == 1:
            assert c.status == 0, (c.kind, weft.lib.weft_status_name(c.status))
            if c.kind == kind:
                return c
    raise AssertionError(f"nothing of kind {kind} came")


def lists_and_prepared():
    """Two endpoints of one process: a list, the same one prepared, and prepared pages."""
    import raw as weft

    endpoints = [weft.open_endpoint(), weft.open_endpoint()]
    mine = [ctypes.create_string_buffer(page(layer, 0), PAGE) for layer in range(LAYERS)]
    theirs = [(c_char * PAGE)() for _ in range(LAYERS)]
    local, target = weft.register(endpoints[0], mine), weft.register(endpoints[1], theirs)
    address = weft.blob(weft.lib.weft_endpoint_address, endpoints[1])
    descriptor = weft.blob(weft.lib.weft_memory_export, target)
    peer, remote, prepared, pages = c_uint64(), c_void_p(), c_void_p(), c_void_p()
    weft.lib.weft_peer_connect(endpoints[0], address, len(address), None, byref(peer))
    weft.lib.weft_remote_memory_import(endpoints[0], peer, descriptor, len(descriptor), byref(remote))
    wait_for(weft, endpoints[0], weft.PEER_UP)
    entries = (weft.ListEntry * LAYERS)()
    for layer, entry in enumerate(entries):
        entry.local, entry.remote, entry.len = local.value, remote.value, PAGE
        entry.local_range, entry.remote_range = layer, LAYERS - 1 - layer
    notifies, again = weft.OpOptions(flags=weft.NOTIFY, notify=7), weft.OpOptions(user_data=42)
    weft.lib.weft_write_list(endpoints[0], entries, LAYERS, byref(notifies), None)
    assert wait_for(weft, endpoints[0], weft.WRITE).bytes == LAYERS * PAGE
    assert wait_for(weft, endpoints[1], weft.NOTIFICATION).notify == 7
    assert [t.raw for t in theirs] == [page(layer, 0) for layer in reversed(range(LAYERS))]
    weft.lib.weft_list_prepare(endpoints[0], entries, LAYERS, 0, byref(prepared))
    ctypes.memset(mine[1], 0, PAGE)
    weft.lib.weft_read_prepared(endpoints[0], prepared, byref(again), None)
    assert wait_for(weft, endpoints[0], weft.READ).user_data == 42
    assert mine[1].raw == page(1, 0)
    weft.lib.weft_read_list(endpoints[0], entries, LAYERS, None, None)
    wait_for(weft, endpoints[0], weft.READ)
    whole = weft.Pages(page_len=PAGE, page_count=1, layer_count=LAYERS, local=weft.PageSide(range_step=1),
                       remote=weft.PageSide(range_step=1))
    weft.lib.weft_pages_prepare(endpoints[0], local, remote, byref(whole), 0, byref(pages))
    weft.lib.weft_write_prepared(endpoints[0], pages, byref(again), None)
    wait_for(weft, endpoints[0], weft.WRITE)
    assert [t.raw for t in theirs] == [m.raw for m in mine]
    entries[2].len = PAGE + 1
    try:
        weft.lib.weft_write_list(endpoints[0], entries, LAYERS, None, None)
    except weft.Error as error:
        assert "WEFT_ERR_RANGE" in str(error) and "entry 2" in str(error), error
    else:
        raise AssertionError("an entry outside its memory was taken")
    for made in (prepared, pages):
        weft.lib.weft_prepared_destroy(made)
    weft.lib.weft_remote_memory_release(remote)
    weft.lib.weft_memory_deregister(local)
    for endpoint in endpoints:
        weft.lib.weft_endpoint_shutdown(endpoint, 0)
        weft.lib.weft_endpoint_destroy(endpoint)


def sigterm_handler_still_runs():
    """A handler that Python installed runs after an open, and after a close."""
    ran = []
    signal.signal(signal.SIGTERM, lambda number, frame: ran.append(number))
    signal.signal(signal.SIGINT, lambda number, frame: ran.append(number))
    import raw as weft

    endpoint = weft.open_endpoint()
    for number in (signal.SIGTERM, signal.SIGINT):
        ran.clear()
        os.kill(os.getpid(), number)
        for _ in range(1000):
            pass
        assert ran == [number], ran
    weft.lib.weft_endpoint_destroy(endpoint)
    ran.clear()
    os.kill(os.getpid(), signal.SIGTERM)
    for _ in range(1000):
        pass
    assert ran == [signal.SIGTERM], ran


def errors_are_exceptions():
    import raw as weft

    endpoint = c_void_p()
    config = weft.EndpointConfig(fabric=b"nosuchfabric")
    try:
        weft.lib.weft_endpoint_create(byref(config), byref(endpoint))
    except weft.Error as error:
        assert "WEFT_ERR_UNSUPPORTED" in str(error) and "nosuchfabric" in str(error), error
    else:
        raise AssertionError("an unknown fabric opened")


def the_log_comes_to_python():
    import raw as weft

    lines = []

    def keep(level, component, message, user_data):
        lines.append((level, component.decode(), message.decode()))

    callback = weft.LogCallback(keep)
    weft.lib.weft_log_set(weft.LOG_DEBUG, callback, None)
    endpoint = weft.open_endpoint()
    weft.lib.weft_endpoint_destroy(endpoint)
    weft.lib.weft_log_set(weft.LOG_DEFAULT, weft.LogCallback(), None)
    assert any(component == "endpoint" and "rails" in text for _, component, text in lines), lines
    assert all(level <= weft.LOG_DEBUG for level, _, _ in lines)


def a_secret_is_asked_for():
    import raw as weft

    def first(endpoint, kind):
        done = weft.Completion()
        for _ in range(40):
            if weft.lib.weft_queue_poll(weft.lib.weft_endpoint_queue(endpoint), byref(done), 1, 500_000_000) == 1:
                assert done.kind == kind, done.kind
                return done.status
        raise AssertionError("no completion")

    # With a zero byte in it: it is bytes, not text.
    secret = b"\0 32 random bytes, say: \xff\xfe\xfd."
    ours = weft.open_endpoint(secret)
    address = weft.blob(weft.lib.weft_endpoint_address, ours)
    peer = c_uint64()
    for theirs, expected in [(secret, weft.OK), (b"\0" + b"x" * 31, weft.DENIED), (None, weft.DENIED)]:
        endpoint = weft.open_endpoint(theirs)
        weft.lib.weft_peer_connect(endpoint, address, len(address), None, byref(peer))
        assert first(endpoint, weft.PEER_UP) == expected
        weft.lib.weft_endpoint_destroy(endpoint)
    done = weft.EndpointStatistics()
    weft.lib.weft_endpoint_info(ours, None, byref(done))
    assert done.handshakes_rejected >= 2, done.handshakes_rejected
    weft.lib.weft_endpoint_destroy(ours)


TESTS = {
    "asyncio_end_to_end": ("any", asyncio_end_to_end),
    "lists_and_prepared": ("any", lists_and_prepared),
    "sigterm_handler_still_runs": ("any", sigterm_handler_still_runs),
    "the_log_comes_to_python": ("any", the_log_comes_to_python),
    "a_secret_is_asked_for": ("any", a_secret_is_asked_for),
    "errors_are_exceptions": ("once", errors_are_exceptions),
}

if __name__ == "__main__":
    if sys.argv[1:] == ["--list"]:
        for name, (where, _) in TESTS.items():
            print(name, where)
    else:
        TESTS[sys.argv[1]][1]()
