"""Threads, signals, forks, the log, the garbage collector and the interpreter's end."""

import contextlib
import errno
import gc
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
import unittest
import unittest.mock
import warnings
from typing import Any, List, Tuple

import libweft
from libweft import log
from support import PAGE, Pair, next_event, open_endpoint


class Errors(Pair):
    def test_each_category_has_its_class(self) -> None:
        from libweft.errors import error_of

        for name, status in vars(libweft.c).items():
            if name.startswith("ERR_"):
                error = error_of(status, "why")
                self.assertEqual((error.status, error.name, error.message), (status, f"WEFT_{name}", "why"))
                self.assertIsNot(type(error), libweft.WeftError)
        self.assertIsInstance(error_of(libweft.c.ERR_PEER_LOST, ""), libweft.PeerError)
        self.assertIsInstance(error_of(libweft.c.ERR_NO_LIBFABRIC, ""), libweft.MachineError)
        self.assertIsInstance(error_of(-12345, ""), libweft.InternalError)
        for name, builtin in (("PEER_LOST", ConnectionError), ("UNREACHABLE", ConnectionError), ("TIMED_OUT", TimeoutError),
                              ("BUSY", BufferError), ("INVALID", ValueError), ("CLOSED", ValueError)):
            self.assertIsInstance(error_of(getattr(libweft.c, f"ERR_{name}"), ""), builtin)
        for name in ("TIMED_OUT", "CANCELED", "MEMORY_GONE"):
            self.assertNotIsInstance(error_of(getattr(libweft.c, f"ERR_{name}"), ""), ConnectionError)
        copy = pickle.loads(pickle.dumps(error_of(libweft.c.ERR_RANGE, "too far")))
        self.assertEqual((type(copy), copy.status, copy.message), (libweft.UsageError, libweft.c.ERR_RANGE, "too far"))
        copy = pickle.loads(pickle.dumps(error_of(libweft.c.ERR_PEER_LOST, "gone", 7, errno.ECONNRESET)))
        self.assertEqual((copy.peer, copy.provider_errno, copy.errno), (7, errno.ECONNRESET, errno.ECONNRESET))
        # (libfabric's own errors are none of the system's.)
        self.assertIsNone(getattr(error_of(libweft.c.ERR_PEER_LOST, "gone", 7, 257), "errno"))

    def test_memory_in_use_cannot_be_taken_back(self) -> None:
        local, remote = self.memories(bytearray(PAGE), bytearray(PAGE))
        with self.here.create_watch() as watch:
            operation = self.here.write(local, remote, start=(watch, 1))
            with self.assertRaises(libweft.BusyError) as caught:
                local.deregister()
            self.assertIsInstance(caught.exception, BufferError)
            watch.value = 1
            operation.wait(20)
        local.deregister()

    def test_without_a_library_the_manual_can_be_read(self) -> None:
        program = """if True:
            import pydoc, libweft
            assert "notify_data" in pydoc.render_doc(libweft.Endpoint.write), pydoc.render_doc(libweft.Endpoint.write)
            manual = pydoc.plain(pydoc.render_doc(libweft))
            assert "inherited from builtins.int" not in manual and "inherited from builtins.BaseException" not in manual, manual
            assert libweft.Access.GRANTED.name in dir(libweft.Access) and "reason" in dir(libweft.PeerDown), dir(libweft.Access)
            try:
                libweft.Endpoint()
            except ImportError as error:
                assert "/nonexistent cannot be loaded" in str(error), error
            else:
                raise SystemExit("it opened")
        """
        subprocess.run([sys.executable, "-c", program], check=True, timeout=60, env=dict(
            os.environ, WEFT_LIBRARY="/nonexistent", PYTHONPATH=os.pathsep.join(map(os.path.abspath, sys.path))))

    def test_failed_open_says_why(self) -> None:
        with self.assertRaisesRegex(libweft.UsageError, "nosuchfabric"):
            libweft.Endpoint("nosuchfabric")
        with self.assertRaises(libweft.UsageError):
            self.here.connect(b"not an address")
        with self.assertRaises(libweft.PeerError):
            gone = open_endpoint()
            address = gone.address
            gone.close()
            self.here.connect(address, timeout=2).wait(20)

    def test_a_closed_endpoint_says_so(self) -> None:
        local, remote = self.memories(bytearray(PAGE), bytearray(PAGE))
        operation = self.here.create_counter().expect(1)
        self.here.close()
        self.here.close()
        self.assertTrue(self.here.closed and operation.done)
        with self.assertRaises(libweft.CanceledError):
            operation.result()
        self.assertIsInstance(self.here.wait_event(1), libweft.PeerDown)
        with self.assertRaises(libweft.ClosedError):
            self.here.wait_event(1)
        for call in (lambda: self.here.write(local, remote), lambda: self.here.register(bytearray(8)),
                     lambda: self.here.address, self.here.metrics, self.here.info, self.peer.reason, self.peer.lanes):
            with self.subTest(call), self.assertRaises(libweft.ClosedError):
                call()
        remote.release()
        local.deregister()
        self.here.poll()

    def test_messages_that_came_before_the_close_are_there_after_it(self) -> None:
        self.peer.send(b"last words").wait(20)
        self.there.close()
        self.assertEqual(next_event(self.there, libweft.Message).data, b"last words")


class Threads(Pair):
    def test_others_run_while_one_waits(self) -> None:
        def runs() -> float:
            began, ran = time.monotonic(), time.thread_time()
            while time.monotonic() - began < 0.5:
                pass
            return time.thread_time() - ran

        def share() -> float:
            alone = runs()
            operation = self.here.create_counter().expect(1, timeout=1)
            thread = threading.Thread(target=lambda: self.assertRaises(libweft.TimedOutError, operation.wait))
            thread.start()
            beside = runs()
            thread.join()
            return beside / alone

        # With the interpreter's lock held, a twentieth each time; other programs may take the processor now and then.
        self.assertTrue(any(share() > 1 / 4 for _ in range(5)))

    def test_each_thread_gets_its_own(self) -> None:
        wrong: List[Tuple[int, int]] = []

        def own(target: int) -> None:
            for value in range(1, 60):
                remote.fetch_add(8 * target, 1).wait(20)
                if remote.fetch_add(8 * target, 0).wait(20) != value:
                    wrong.append((target, value))

        _, remote = self.memories(bytearray(8), self.there.allocate(64))
        threads = [threading.Thread(target=own, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        self.assertEqual(wrong, [])

    def test_close_wakes_waiters(self) -> None:
        counter, caught = self.here.create_counter(), []

        def wait() -> None:
            try:
                counter.expect(1).wait()
            except libweft.CanceledError as error:
                caught.append(error)

        threads = [threading.Thread(target=wait) for _ in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(0.1)
        self.here.close()
        for thread in threads:
            thread.join(20)
        self.assertEqual(len(caught), 4)

    def test_ctrl_c_interrupts_a_wait(self) -> None:
        operation = self.here.create_counter().expect(1)
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        began = time.monotonic()
        with self.assertRaises(KeyboardInterrupt):
            operation.wait(200)
        self.assertLess(time.monotonic() - began, 100)

    def test_the_log_comes_to_a_logger(self) -> None:
        with self.assertLogs("libweft", logging.DEBUG) as logs:
            libweft.log_to(logging.getLogger("libweft"), libweft.c.LOG_DEBUG)
            open_endpoint().close()
            libweft.set_log(None)
        self.assertTrue(any("libweft.endpoint" in line for line in logs.output), logs.output)


class Ends(Pair):
    def test_an_endpoint_that_is_dropped_is_closed(self) -> None:
        endpoint, buffer = open_endpoint(), bytearray(PAGE)
        endpoint.register(buffer)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            del endpoint
            gc.collect()
        self.assertIn(ResourceWarning, [w.category for w in caught])
        buffer.append(1)

    def test_what_goes_in_a_log_callback_calls_weft_outside_it(self) -> None:
        local, remote = self.memories(bytearray(PAGE), bytearray(PAGE))
        held = [self.here.allocate(PAGE), self.here.prepare_pages(local, remote, PAGE, 1), open_endpoint()]
        called: List[Tuple[str, bool]] = []

        def noting(name: str, function: Any) -> Any:
            def note(*given: Any) -> Any:
                called.append((name, log.within()))
                return function(*given)

            return unittest.mock.patch.object(libweft.lib, name, note)

        def take(*_: Any) -> None:
            held.clear()
            gc.collect()

        names = ["weft_endpoint_shutdown", "weft_memory_free", "weft_prepared_destroy"]
        with contextlib.ExitStack() as stack, warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            for name in names:
                stack.enter_context(noting(name, getattr(libweft.lib, name)))
            libweft.set_log(take, libweft.c.LOG_TRACE)
            self.here.register(bytearray(PAGE))
            libweft.set_log(None)
            for _ in range(1000):
                if len(called) >= len(names):
                    break
                time.sleep(0.01)
        self.assertEqual(sorted(called), [(name, False) for name in names])

    def test_what_goes_as_a_log_callback_begins_calls_weft_outside_it(self) -> None:
        called: List[List[str]] = []

        class Held:
            def __init__(self) -> None:
                self.me = self

            def __del__(self) -> None:
                log.outside(lambda: called.append([frame.name for frame in traceback.extract_stack() if frame.filename == log.__file__]))

        self.addCleanup(libweft.set_log, None)
        libweft.set_log(lambda *_: None, libweft.c.LOG_ERROR)
        self.addCleanup(gc.set_threshold, *gc.get_threshold())
        self.addCleanup(gc.enable)
        gc.collect()
        gc.disable()
        Held()
        gc.set_threshold(1)
        gc.enable()
        # From 3.12 on, what the list begins runs at the first instruction of the callback; before, as the list is made.
        log._current(*[libweft.c.LOG_ERROR, b"", b"", None])
        for _ in range(1000):
            if called:
                break
            time.sleep(0.01)
        self.assertEqual([name for names in called for name in names if name != "outside"], [])
        self.assertTrue(called)

    def test_a_forked_child_gets_an_error_and_ends(self) -> None:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                try:
                    self.peer.send(b"from a child")
                except libweft.UsageError as error:
                    status = 0 if error.status == libweft.c.ERR_FORKED else 2
            finally:
                os._exit(status)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.peer.send(b"from the parent").wait(20)

    def test_the_interpreter_ends_with_all_of_it_open(self) -> None:
        program = """if True:
            import logging, libweft, support
            libweft.log_to(logging.getLogger("libweft"), libweft.c.LOG_TRACE)
            here, there = support.open_endpoint(), support.open_endpoint()
            peer = here.connect(there.address).wait(20)
            target = there.allocate(1 << 24)
            remote = peer.import_memory(there.register(target).export())
            local = here.register(bytearray(1 << 24))
            pending = [here.write(local, remote) for _ in range(50)]
            counted = here.create_counter().expect(1)
        """
        # It finds what this process has found.
        ended = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               env=dict(os.environ, PYTHONPATH=os.pathsep.join(map(os.path.abspath, sys.path))),
                               timeout=60)
        self.assertEqual((ended.returncode, ended.stdout), (0, b""))


if __name__ == "__main__":
    unittest.main()
