"""No wake-up is lost in asyncio, however a completion and going to sleep overlap."""

import asyncio
import os
import sys
import threading
import time
from ctypes import byref, c_int32, c_uint64, c_void_p, create_string_buffer

PATIENCE = 10 * int(os.environ.get("WEFT_TEST_PATIENCE", 1))  # s; a wake-up that is lost is lost for good
ROUNDS = 100_000 * int(os.environ.get("WEFT_TEST_ROUNDS", 1))


class Waiter:
    """Polls until there is nothing, arms, and leaves the rest to the loop."""

    def __init__(self, weft, endpoint, expected):
        self.weft, self.endpoint, self.expected = weft, endpoint, expected
        self.taken = threading.Semaphore(0)
        self.count = self.calls = 0
        self.over = asyncio.get_running_loop().create_future()
        self.done = (weft.Completion * 4)()

    def drain(self):
        lib = self.weft.lib
        self.calls += 1
        while True:
            while (n := lib.weft_queue_poll(lib.weft_endpoint_queue(self.endpoint), self.done, 4, 0)) > 0:
                for i in range(n):
                    assert self.done[i].status == 0 and self.done[i].user_data == self.count + 1
                    self.count += 1
                    self.taken.release()
            if self.count == self.expected and not self.over.done():
                self.over.set_result(None)
            if lib.weft_queue_arm(lib.weft_endpoint_queue(self.endpoint), None) == self.weft.OK:
                return


def writes_nothing(weft, endpoint, memory, remote, waiter, rounds):
    """Each write completes at once, while the loop goes to sleep after the one before."""
    options = weft.OpOptions()
    for i in range(rounds):
        options.user_data = i + 1
        weft.lib.weft_write(endpoint, memory, 0, remote, 0, 0, byref(options), None)
        if not waiter.taken.acquire(timeout=2 * PATIENCE):
            return


async def wait(weft, endpoint, memory, remote):
    fd = c_int32()
    weft.lib.weft_queue_arm(weft.lib.weft_endpoint_queue(endpoint), byref(fd))
    waiter = Waiter(weft, endpoint, ROUNDS)
    asyncio.get_running_loop().add_reader(fd.value, waiter.drain)
    waiter.drain()
    thread = threading.Thread(target=writes_nothing,
                              args=(weft, endpoint, memory, remote, waiter, ROUNDS))
    began = time.monotonic()
    thread.start()
    before = -1
    while not waiter.over.done():
        await asyncio.wait([waiter.over], timeout=PATIENCE)
        stuck = waiter.count == before and not waiter.over.done()
        before = waiter.count
        if stuck:
            there = weft.lib.weft_queue_poll(weft.lib.weft_endpoint_queue(endpoint), waiter.done, 1, 0)
            raise AssertionError(f"after {waiter.count} completions nothing came for {PATIENCE} s; {there} were there")
    thread.join()
    took = time.monotonic() - began
    print(f"{waiter.calls} wake-ups for {ROUNDS} completions, {took / ROUNDS * 1e6:.1f} us each")
    assert waiter.calls > ROUNDS / 10


def connect(weft):
    """Two endpoints of this process; the first has memory of the second."""
    here, there = weft.open_endpoint(), weft.open_endpoint()
    buffers = [create_string_buffer(4096) for _ in range(2)]
    mine, theirs = (weft.register(e, [b]) for e, b in zip((here, there), buffers))
    address = weft.blob(weft.lib.weft_endpoint_address, there)
    descriptor = weft.blob(weft.lib.weft_memory_export, theirs)
    peer, remote = c_uint64(), c_void_p()
    weft.lib.weft_peer_connect(here, address, len(address), None, byref(peer))
    weft.lib.weft_remote_memory_import(here, peer, descriptor, len(descriptor), byref(remote))
    up = weft.Completion()
    assert weft.lib.weft_queue_poll(weft.lib.weft_endpoint_queue(here), byref(up), 1, 20_000_000_000) == 1
    assert (up.kind, up.status) == (weft.PEER_UP, 0)
    return here, there, mine, remote, buffers


def asyncio_loses_no_wake_up():
    import raw as weft

    here, there, mine, remote, _buffers = connect(weft)
    asyncio.run(wait(weft, here, mine, remote))
    for endpoint in (here, there):
        weft.lib.weft_endpoint_shutdown(endpoint, 0)
        weft.lib.weft_endpoint_destroy(endpoint)


TESTS = {"asyncio_loses_no_wake_up": ("host", asyncio_loses_no_wake_up)}

if __name__ == "__main__":
    if sys.argv[1:] == ["--list"]:
        for name, (where, _) in TESTS.items():
            print(name, where)
    else:
        TESTS[sys.argv[1]][1]()
