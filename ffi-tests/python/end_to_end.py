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
        weft.lib.weft_event_fd(endpoint, byref(fd))
        asyncio.get_running_loop().add_reader(fd.value, self.drain)
        self.drain()

    def drain(self):
        done = (self.weft.Completion * 16)()
        while True:
            while (n := self.weft.lib.weft_poll(self.endpoint, done, 16)) > 0:
                for i in range(n):
                    self.queue.put_nowait(self.weft.Completion.from_buffer_copy(done[i]))
            status = self.weft.lib.weft_arm(self.endpoint)
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
    transfer = c_uint64()
    args = weft.ExpectArgs(counters=(c_uint64 * 1)(counter), values=(c_uint64 * 1)(value), count=1)
    weft.lib.weft_counter_expect(endpoint, byref(args), byref(transfer))
    return transfer.value


async def target(sock):
    import weft

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
        transfer = expect(weft, endpoint, counter.value, pages)
        # In either order: they are not about the same thing.
        came = {c.kind: c for c in [await events.take(), await events.take()]}
        c = came[weft.NOTIFICATION]
        assert came[weft.COUNTER].transfer == transfer
        weft.lib.weft_counter_read(endpoint, counter, byref(value))
        assert value.value == pages
        assert c.value == round_
        assert ctypes.string_at(c.data, c.bytes) == b"round %d" % round_
        weft.lib.weft_message_release(endpoint, c.transfer)
        if round_ == 0:
            for layer in range(LAYERS):
                for i in range(PAGES):
                    at = (PAGES - 1 - i) * PAGE
                    assert buffers[layer].raw[at:at + PAGE] == page(layer, i), (layer, i)
        data = b"seen %d" % round_
        args = weft.SendArgs(peer=c.peer, data=ctypes.cast(data, c_void_p), len=len(data))
        weft.lib.weft_send(endpoint, byref(args), None)
        await events.take(weft.SEND)
    hear(sock)
    weft.lib.weft_counter_destroy(endpoint, counter)
    weft.lib.weft_endpoint_shutdown(endpoint, 0)
    weft.lib.weft_endpoint_close(endpoint)


async def writer(sock):
    import weft

    endpoint = weft.open_endpoint()
    buffers = [ctypes.create_string_buffer(b"".join(page(layer, i) for i in range(PAGES)),
                                           PAGES * PAGE) for layer in range(LAYERS)]
    memory = weft.register(endpoint, buffers)
    events = Events(weft, endpoint)
    address, descriptor, counter = hear(sock), hear(sock), hear(sock)
    peer, remote, transfer = c_uint64(), c_void_p(), c_uint64()
    weft.lib.weft_peer_connect(endpoint, address, len(address), None, byref(peer))
    weft.lib.weft_remote_memory_import(endpoint, peer, descriptor, len(descriptor), byref(remote))
    await events.take(weft.PEER_UP)
    backwards = (c_uint32 * PAGES)(*reversed(range(PAGES)))
    for round_ in range(200):
        data = b"round %d" % round_
        args = weft.PagesArgs(
            flags=weft.NOTIFY | weft.COUNT_PAGES, local=memory, remote=remote, remote_pages=backwards,
            local_range_step=1, remote_range_step=1, page_len=PAGE, page_count=PAGES,
            layer_count=LAYERS, notify=round_, notify_data=ctypes.cast(data, c_void_p),
            notify_data_len=len(data), user_data=1000 + round_,
            counter=int.from_bytes(counter, sys.byteorder))
        weft.lib.weft_write_pages(endpoint, byref(args), byref(transfer))
        done = seen = None
        while done is None or seen is None:
            c = await asyncio.wait_for(events.queue.get(), 20)
            assert c.status == 0, (c.kind, weft.lib.weft_status_name(c.status))
            if c.kind == weft.WRITE:
                done = c
            elif c.kind == weft.MESSAGE:
                seen = ctypes.string_at(c.data, c.bytes)
                weft.lib.weft_message_release(endpoint, c.transfer)
        assert done.transfer == transfer.value and done.user_data == 1000 + round_
        assert done.bytes == PAGE * PAGES * LAYERS
        assert seen == b"seen %d" % round_
    tell(sock, b"done")
    weft.lib.weft_remote_memory_release(remote)
    weft.lib.weft_memory_deregister(memory)
    weft.lib.weft_endpoint_shutdown(endpoint, 0)
    weft.lib.weft_endpoint_close(endpoint)


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


def sigterm_handler_still_runs():
    """A handler that Python installed runs after an open, and after a close."""
    ran = []
    signal.signal(signal.SIGTERM, lambda number, frame: ran.append(number))
    signal.signal(signal.SIGINT, lambda number, frame: ran.append(number))
    import weft

    endpoint = weft.open_endpoint()
    for number in (signal.SIGTERM, signal.SIGINT):
        ran.clear()
        os.kill(os.getpid(), number)
        for _ in range(1000):
            pass
        assert ran == [number], ran
    weft.lib.weft_endpoint_close(endpoint)
    ran.clear()
    os.kill(os.getpid(), signal.SIGTERM)
    for _ in range(1000):
        pass
    assert ran == [signal.SIGTERM], ran


def errors_are_exceptions():
    import weft

    endpoint = c_void_p()
    config = weft.EndpointConfig(fabric=b"nosuchfabric")
    try:
        weft.lib.weft_endpoint_open(byref(config), byref(endpoint))
    except weft.Error as error:
        assert "WEFT_ERR_UNSUPPORTED" in str(error) and "nosuchfabric" in str(error), error
    else:
        raise AssertionError("an unknown fabric opened")


TESTS = {
    "asyncio_end_to_end": ("any", asyncio_end_to_end),
    "sigterm_handler_still_runs": ("any", sigterm_handler_still_runs),
    "errors_are_exceptions": ("once", errors_are_exceptions),
}

if __name__ == "__main__":
    if sys.argv[1:] == ["--list"]:
        for name, (where, _) in TESTS.items():
            print(name, where)
    else:
        TESTS[sys.argv[1]][1]()
