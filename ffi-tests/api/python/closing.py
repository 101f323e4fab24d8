"""`close` beside whatever other threads do with the endpoint."""

import os
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../python/src"))
if "WEFT_TEST_LIBRARY" in os.environ:
    os.environ["WEFT_LIBRARY"] = os.environ["WEFT_TEST_LIBRARY"]

import libweft  # noqa: E402
import libweft.c  # noqa: E402
import libweft.events  # noqa: E402

PATIENCE = 30 * int(os.environ.get("WEFT_TEST_PATIENCE", 1))
SIZE = 1_000_000


def pair():
    fabric = os.environ.get("WEFT_TEST_FABRIC", "host")
    a, b = libweft.Endpoint(fabric), libweft.Endpoint(fabric)
    return a, b, a.connect(b.address).wait(PATIENCE)


def next_message(endpoint):
    while True:
        event = endpoint.wait_event(PATIENCE)
        if event is None or isinstance(event, libweft.Message):
            return event


def close_waits_for_a_copy_of_a_message():
    """The thread that takes a message stands still where it is about to copy: the data stays until it has."""
    a, b, peer = pair()
    inside, go_on, copy = threading.Event(), threading.Event(), libweft.events.data_of

    def slow(raw):
        inside.set()
        go_on.wait(PATIENCE)
        return copy(raw)

    peer.send(b"A" * SIZE).wait(PATIENCE)
    libweft.events.data_of = slow
    try:
        taken = []
        taker = threading.Thread(target=lambda: taken.append(next_message(b)))
        taker.start()
        assert inside.wait(PATIENCE)
        closer = threading.Thread(target=b.close)
        closer.start()
        closer.join(0.3)
        still_open = not b.closed
        go_on.set()
        taker.join(PATIENCE)
        closer.join(PATIENCE)
    finally:
        libweft.events.data_of = copy
    assert still_open and b.closed
    assert isinstance(taken[0], libweft.Message) and taken[0].data == b"A" * SIZE
    a.close()


def all_threads_may_close():
    a, b, _ = pair()
    memories = [a.register(bytearray(4096)) for _ in range(200)]
    failed, start = [], threading.Barrier(8)

    def run(what):
        start.wait()
        try:
            what()
        except libweft.ClosedError:
            pass
        except BaseException as error:  # noqa: B902
            failed.append(error)

    def register():
        for _ in range(200):
            a.register(bytearray(64))

    def deregister():
        for memory in memories:
            memory.deregister()

    def wait():
        while True:
            a.wait_event(0.01)

    def use():
        while True:
            a.poll()
            a.info()

    whats = [a.close, a.close, a.close, register, deregister, deregister, wait, use]
    threads = [threading.Thread(target=run, args=(what,)) for what in whats]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    # What is used after the close is a handle that is stale, or none.
    left = [error for error in failed if getattr(error, "status", None) != libweft.c.ERR_HANDLE]
    assert not left, left
    assert a.closed and not a._memories and all(not memory.handle and not memory._held for memory in memories)
    b.close()


def operations_and_the_end_do_not_meet():
    """Operations begin in some threads while another ends all that there are."""
    for _ in range(20):
        a, b, peer = pair()
        failed = []

        def send():
            while True:
                try:
                    peer.send(b"x" * 100)
                except libweft.RetryError:
                    pass
                except libweft.WeftError:
                    return
                except BaseException as error:  # noqa: B902
                    failed.append(error)
                    return

        threads = [threading.Thread(target=send) for _ in range(3)]
        for thread in threads:
            thread.start()
        a.close()
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
        assert not failed, failed
        b.close()


TESTS = {
    "close_waits_for_a_copy_of_a_message": close_waits_for_a_copy_of_a_message,
    "all_threads_may_close": all_threads_may_close,
    "operations_and_the_end_do_not_meet": operations_and_the_end_do_not_meet,
}

if __name__ == "__main__":
    if sys.argv[1:] == ["--list"]:
        for name in TESTS:
            print(name, "host,tcp")
    else:
        sys.setswitchinterval(1e-5)
        TESTS[sys.argv[1]]()
