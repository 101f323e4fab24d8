"""What agents see when something fails, and what they leave alone afterwards."""

import ctypes
import os
import signal
import threading
import time
import zlib

import numpy as np
from support import Agent, Case, pattern, state_of

BIG = 128 << 20
SOON = 30.0  # seconds: far less than a hang, far more than a busy machine needs


def whole(here, child, size=None):
    size = size or here.bytes.size
    return [(here.bytes.ctypes.data, size)], [(child.base, size)]


class Faults(Case):
    def meet(self, size, **options):
        here, child = Agent(size, **options), self.child(size=size, **options)
        return here, child, here.meet(child.metadata)

    def ends_in_failure(self, here, handle, state="PROC"):
        began = time.monotonic()
        self.assertNotIn(here.end(handle, state, patience=SOON), ("DONE", "PROC"))
        self.assertLess(time.monotonic() - began, SOON)
        here.release_xfer_handle(handle)

    def reader(self, here):
        """Another agent, and its request that reads the memory of this one, done once."""
        reader = Agent()
        reader.meet(here.describe()[0])
        read = reader.request("READ", [(reader.base, 4096)], [(here.base, 4096)], here.name)
        self.assertEqual(reader.finish(read), "DONE")
        return reader, read

    def busy(self, here, child, name, seconds):
        """A write that takes about this long, from a memory of its own, posted."""
        here.more = np.ones(BIG, dtype=np.uint8)
        here.register(here.more)
        local, remote = (here.more.ctypes.data, BIG), (child.base, BIG)
        took = self.shortest(here, here.request("WRITE", [local], [remote], name))
        count = int(seconds / took) + 1
        handle = here.request("WRITE", [local] * count, [remote] * count, name)
        self.assertEqual(here.post(handle), "PROC")
        return handle

    def test_a_killed_peer_ends_a_request(self):
        for operation in "WRITE", "READ":
            here, child, name = self.meet(BIG)
            handle = here.request(operation, *whole(here, child), name)
            self.assertEqual(here.finish(handle), "DONE")
            state = here.post(handle)
            child.signal(signal.SIGKILL)
            self.ends_in_failure(here, handle, state)
            with self.assertRaises(Exception):  # NIXL has forgotten the agent
                here.request(operation, *whole(here, child), name)

    def test_a_stopped_peer_ends_a_request_at_its_deadline(self):
        here, child, name = self.meet(1 << 20, timeout_ms=1000)
        handle = here.request("WRITE", *whole(here, child), name)
        self.assertEqual(here.finish(handle), "DONE")
        child.signal(signal.SIGSTOP)
        self.addCleanup(child.signal, signal.SIGCONT)
        self.assertNotEqual(here.finish(handle, patience=SOON), "DONE")
        here.release_xfer_handle(handle)

    def test_a_restarted_peer_is_met_again(self):
        here, child, name = self.meet(1 << 20)
        handle = here.request("WRITE", *whole(here, child), name)
        self.assertEqual(here.finish(handle), "DONE")
        child.signal(signal.SIGKILL)
        child.process.join()
        self.ends_in_failure(here, handle, here.post(handle))
        try:
            here.remove_remote_agent(name)
        except Exception:
            pass  # it is forgotten already
        again = self.child(size=1 << 20, name=name)
        self.assertEqual(here.meet(again.metadata), name)
        here.bytes[:] = pattern(here.bytes.size, 1)
        handle = here.request("WRITE", *whole(here, again), name, b"welcome back")
        self.assertEqual(here.finish(handle), "DONE")
        self.assertEqual(again.ask("checksum"), zlib.crc32(here.bytes))
        self.assertEqual(again.ask("notifications", 1), [(here.name, b"welcome back")])

    def shortest(self, here, handle):
        """Seconds of a request at its best: the first one finds memory that the kernel has yet to provide."""
        times = []
        for _ in range(3):
            began = time.monotonic()
            self.assertEqual(here.finish(handle), "DONE")
            times.append(time.monotonic() - began)
        return min(times)

    def test_a_write_that_is_released_leaves_the_target_alone(self):
        here, child, name = self.meet(BIG)
        handle = here.request("WRITE", *whole(here, child), name, b"never")
        here.bytes[:] = 1
        took = self.shortest(here, handle)
        interrupted = 0
        for round in range(2, 8):
            here.bytes[:] = round
            state = here.post(handle, b"never")
            time.sleep(took * round / 10)
            interrupted += here.check_xfer_state(handle) == "PROC"
            here.release_xfer_handle(handle)
            before = child.ask("checksum")
            time.sleep(0.2)
            self.assertEqual(child.ask("checksum"), before)
            handle = here.request("WRITE", *whole(here, child), name, b"never")
        self.assertGreater(interrupted, 0)
        self.assertEqual(here.finish(handle), "DONE")

    def test_a_released_write_is_over_only_when_the_target_says_so(self):
        here, child, name = self.meet(BIG)
        handle = here.request("WRITE", *whole(here, child), name)
        here.bytes[:] = 1
        self.assertEqual(here.finish(handle), "DONE")
        here.bytes[:] = 2
        child.signal(signal.SIGSTOP)
        here.post(handle)
        released = threading.Event()

        def release():
            if state_of(here.release_xfer_handle, handle) is None:
                released.set()

        thread = threading.Thread(target=release)
        thread.start()
        time.sleep(0.6)
        self.assertFalse(released.is_set())  # bytes are on their way to a process that does not run
        child.signal(signal.SIGCONT)
        thread.join()
        if not released.is_set():
            here.release_xfer_handle(handle)
        before = child.ask("checksum")
        time.sleep(0.5)
        self.assertEqual(child.ask("checksum"), before)

    def test_a_read_that_is_released_leaves_local_memory_alone(self):
        here, child, name = self.meet(BIG)
        child.ask("fill", 1)
        interrupted = 0
        took = self.shortest(here, here.request("READ", *whole(here, child), name))
        for round in range(6):
            handle = here.request("READ", *whole(here, child), name)
            here.post(handle)
            time.sleep(took * round / 10)
            interrupted += here.check_xfer_state(handle) == "PROC"
            here.release_xfer_handle(handle)
            here.bytes[:] = 0
            time.sleep(0.2)
            self.assertFalse(here.bytes.any())
        self.assertGreater(interrupted, 0)

    def test_memory_that_is_deregistered_ends_what_uses_it(self):
        here, child, name = self.meet(BIG)
        handle = here.request("WRITE", *whole(here, child), name)
        here.post(handle)
        here.deregister_memory(here.registered)
        self.assertNotEqual(here.end(handle), "PROC")
        self.assertNotEqual(here.finish(handle, patience=SOON), "DONE")
        here.release_xfer_handle(handle)

    def test_memory_that_a_stopped_peer_holds_is_deregistered(self):
        for count in 1, 5:
            here, child, name = self.meet(BIG)
            reader, read = self.reader(here)
            handles = [here.request("WRITE", *whole(here, child), name) for _ in range(count)]
            self.assertEqual(here.finish(handles[0]), "DONE")
            child.signal(signal.SIGSTOP)
            self.addCleanup(child.signal, signal.SIGCONT)
            for handle in handles:
                here.post(handle)
            here.deregister_memory(here.registered)  # NIXL does not say whether it failed
            self.assertNotEqual(reader.finish(read), "DONE")
            for handle in handles:
                self.assertNotIn(here.end(handle, patience=SOON), ("DONE", "PROC"))

    def test_memory_of_a_write_that_was_released_twice_is_deregistered(self):
        for _ in range(3):
            here, child, name = self.meet(BIG)
            handle = here.request("WRITE", *whole(here, child), name)
            self.assertEqual(here.finish(handle), "DONE")
            child.signal(signal.SIGSTOP)
            self.addCleanup(child.signal, signal.SIGCONT)
            here.post(handle)
            self.assertEqual(state_of(here.release_xfer_handle, handle), "nixlRepostActiveError")
            here.release_xfer_handle(handle)
            here.deregister_memory(here.registered)

    def test_a_released_write_leaves_a_busy_peer_connected(self):
        here, child, name = self.meet(BIG)
        busy = self.busy(here, child, name, 5)
        handle = here.request("WRITE", *whole(here, child), name)
        here.post(handle)
        self.assertEqual(state_of(here.release_xfer_handle, handle), "nixlRepostActiveError")
        here.release_xfer_handle(handle)  # is confirmed when all else that was posted before has ended
        self.assertEqual(here.check_xfer_state(busy), "DONE")

    def test_memory_is_deregistered_while_its_peer_is_busy(self):
        here, child, name = self.meet(BIG)
        reader, read = self.reader(here)
        busy = self.busy(here, child, name, 8)
        handle = here.request("WRITE", *whole(here, child), name)
        here.post(handle)
        here.deregister_memory(here.registered)
        self.assertNotEqual(reader.finish(read), "DONE")
        self.assertEqual(here.check_xfer_state(busy), "PROC")
        self.assertEqual(here.end(busy), "DONE")
        self.assertNotIn(here.end(handle, patience=SOON), ("DONE", "PROC"))

    def test_many_writes_that_fail_together_leave_a_peer_connected(self):
        here, child, name = self.meet(BIG, timeout_ms=1000)
        kept = here.request("WRITE", *whole(here, child), name)
        self.assertEqual(here.finish(kept), "DONE")
        local, remote = whole(here, child)
        handles = [here.request("WRITE", local * 10, remote * 10, name) for _ in range(200)]
        for handle in handles:
            here.post(handle)
        states = [here.end(handle, patience=SOON) for handle in handles]
        self.assertGreater(len([state for state in states if state != "DONE"]), 100)
        self.assertEqual(here.finish(kept), "DONE")  # a prepared transfer ends with its connection

    def test_a_disconnect_ends_the_other_requests_as_such(self):
        for operation in "WRITE", "READ":
            here, child, name = self.meet(BIG)
            released = here.request("WRITE", *whole(here, child), name)
            other = here.request(operation, *whole(here, child), name)
            self.assertEqual(here.finish(released), "DONE")
            child.signal(signal.SIGSTOP)
            self.addCleanup(child.signal, signal.SIGCONT)
            for handle in released, other:
                self.assertEqual(here.post(handle), "PROC")
            self.assertEqual(state_of(here.release_xfer_handle, released), "nixlRepostActiveError")
            here.release_xfer_handle(released)
            self.assertEqual(here.end(other, patience=SOON), "nixlRemoteDisconnectError")

    def test_memory_that_a_peer_deregisters_ends_what_uses_it(self):
        here, child, name = self.meet(1 << 20)
        handle = here.request("WRITE", *whole(here, child), name)
        self.assertEqual(here.finish(handle), "DONE")
        child.ask("drop")
        self.ends_in_failure(here, handle, here.post(handle))

    def test_an_agent_whose_process_is_gone_is_not_reached(self):
        here, child = Agent(connect_timeout_ms=2000), self.child()
        child.signal(signal.SIGKILL)
        child.process.join()
        name = here.meet(child.metadata)
        try:
            handle = here.request("WRITE", *whole(here, child), name)
        except Exception:
            return  # it was refused at once
        self.ends_in_failure(here, handle, here.post(handle))

    def test_a_caller_that_is_not_nixl_is_refused(self):
        plugin = ctypes.CDLL(os.path.join(os.environ["NIXL_PLUGIN_DIR"], "libplugin_WEFT.so"))
        plugin.nixl_plugin_init.restype = ctypes.c_void_p
        self.assertIsNone(plugin.nixl_plugin_init())

    def test_agents_without_the_secret_are_refused(self):
        with open(os.path.join(os.environ["NIXL_PLUGIN_DIR"], "secret"), "w") as file:
            file.write("0123456789abcdef0123456789abcdef\n")
        here, there, outsider = Agent(secret_file=file.name), Agent(secret_file=file.name), Agent()
        for other in there, outsider:
            here.meet(other.describe()[0])
        place = [(here.bytes.ctypes.data, 4096)]
        handle = here.request("WRITE", place, [(there.bytes.ctypes.data, 4096)], there.name)
        self.assertEqual(here.finish(handle), "DONE")
        handle = here.request("WRITE", place, [(outsider.bytes.ctypes.data, 4096)], outsider.name)
        self.ends_in_failure(here, handle, here.post(handle))
