"""What is done for each operation, compiled or by ctypes: both do the same, and keep nothing."""

import contextlib
import gc
import importlib
import os
import re
import subprocess
import sys
import threading
import unittest
from typing import Any, Callable, Dict, List

import libweft
from libweft._hot import native
from support import FABRIC, PAGE, Pair

#: Keywords of a write that are wrong, or unusual.
ODD: List[Dict[str, Any]] = [
    {"notify": -1}, {"notify": 1 << 64}, {"notify": 1.5}, {"notify": "x"}, {"notify": True}, {"notify": 1, "notify_data": bytes(257)},
    {"notify_data": b"alone"}, {"notify": 1, "notify_data": "text"}, {"notify": 1, "notify_data": bytearray(8)}, {"counter": -1},
    {"counter": 1 << 64}, {"counter": "x"}, {"count_pages": 2}, {"count_pages": True}, {"latency": 1}, {"latency": "x"}, {"timeout": -1},
    {"timeout": float("nan")}, {"timeout": "x"}, {"timeout": 86401}, {"timeout": True}, {"grant": b"short"},
    {"grant": bytes(range(16))}, {"grant": "x" * 16}, {"start": 1}, {"done": (None, 1)}, {"notify_failure": True},
    {"notify": 1, "notify_failure": 1}, {"length": -1}, {"length": 1 << 64}, {"length": 1.5}, {"length": True}, {"length": PAGE + 1},
    {"local_offset": -1}, {"local_offset": 1 << 64}, {"local_offset": PAGE}, {"remote_offset": "x"}, {"remote_offset": PAGE},
    {"local": None}, {"local": "x"}, {"remote": None},
]


def outcome(call: Callable[[], Any]) -> str:
    try:
        done = call()
        return str(done[:2] if isinstance(done, tuple) else done)
    except Exception as error:
        return re.sub("0x[0-9a-f]+|[0-9.]+ [mu]?s after", "...", f"{type(error).__name__}: {error}")


class Calls(Pair):
    def outcomes(self) -> List[str]:
        local, remote = self.memories(bytearray(PAGE), bytearray(PAGE))

        def write(**odd: Any) -> Any:
            return self.here.write(odd.pop("local", local), odd.pop("remote", remote), **odd).wait(20)

        counter = self.here.create_counter()
        waits = [lambda seconds=seconds: counter.expect(1, timeout=0.01).wait(seconds) for seconds in (0, -1, float("nan"), "x", 1e-3)]
        return [outcome(lambda: write(**odd)) for odd in ODD] + [outcome(lambda: write(counter=counter))] + list(map(outcome, waits))

    @unittest.skipUnless(native and FABRIC == "host", "it is the same over every fabric")
    def test_both_raise_the_same(self) -> None:
        program = f"import test_calls; case = test_calls.Calls(); case.setUp(); print('\\n'.join(case.outcomes())); case.doCleanups()"
        other = subprocess.run([sys.executable, "-c", program], check=True, timeout=60, stdout=subprocess.PIPE, text=True, env=dict(
            os.environ, WEFT_PYTHON_PURE="1", PYTHONPATH=os.pathsep.join(map(os.path.abspath, sys.path)))).stdout.splitlines()
        for odd, compiled, pure in zip([*ODD, "a counter", *range(5)], self.outcomes(), other):
            with self.subTest(odd):
                self.assertEqual(compiled, pure)

    def test_integers_of_numpy_are_numbers(self) -> None:
        class Integer(bytearray):  # numpy's are buffers, too
            def __index__(self) -> int:
                return int.from_bytes(self, "little")

        kinds: List[Any] = [lambda value: Integer(value.to_bytes(8, "little"))]
        with contextlib.suppress(ImportError):
            numpy = importlib.import_module("numpy")
            kinds += [numpy.int64, numpy.uint64, numpy.int32, numpy.uint16]
        source, target = bytearray(range(64)), bytearray(64)
        local, remote = self.memories(source, target)
        for kind in kinds:
            for other in [int, *kinds]:
                with self.subTest(kind=kind, other=other):
                    target[:] = bytes(64)
                    self.here.write(local, remote, kind(8), local_offset=other(16), remote_offset=kind(24)).wait(20)
                    self.assertEqual(target, bytes(24) + source[16:24] + bytes(32))
                    self.here.write(local, remote, local_offset=kind(40), remote_offset=other(8)).wait(20)
                    self.assertEqual(target[8:32], source[40:64])
                    self.here.read(local, remote, other(1), local_offset=kind(63), remote_offset=other(8)).wait(20)
                    self.assertEqual(source[63], source[40])
                    source[63] = 63

    def test_thousands_come_in_one_call(self) -> None:
        local, remote = self.memories(bytearray(PAGE), bytearray(PAGE))
        operations = [self.here.write(local, remote, 8, notify=i) for i in range(3000)]
        operations[-1].wait(20)
        while not all(operation.done for operation in operations):
            self.here.poll()
        self.assertEqual([len(operation.completions) for operation in operations], [1] * 3000)
        done = operations[0].wait()
        self.assertEqual((done, hash(done), done._replace(kind=0).kind), (tuple(done), hash(tuple(done)), 0))
        values = [event.value for event in iter(lambda: self.there.wait_event(1), None) if isinstance(event, libweft.Notification)]
        self.assertEqual(sorted(values), list(range(3000)))

    def test_nothing_is_kept(self) -> None:
        local, remote = self.memories(bytearray(PAGE), bytearray(PAGE))

        def round_of(count: int) -> int:
            for i in range(count):
                operation = self.here.write(local, remote, 8, timeout=5)
                operation.wait()
                operation.completions
                odd = ODD[i % len(ODD)]
                if "local" not in odd and "remote" not in odd:
                    outcome(lambda: self.here.write(local, remote, **odd).wait(20))
                while self.there.wait_event(0) is not None:
                    pass
            gc.collect()
            return sys.getallocatedblocks()

        before = round_of(300)
        self.assertLess(round_of(2000) - before, 200)

    def test_a_finalizer_that_takes_events_doubles_none(self) -> None:
        came: List[int] = []

        def take(seconds: float) -> None:
            self.there.poll()
            for event in iter(lambda: self.there.wait_event(seconds), None):
                if isinstance(event, libweft.Message):
                    came.append(int.from_bytes(event.data, "little"))

        def collecting(phase: str, _: Any) -> None:
            if phase == "start" and threading.current_thread() is threading.main_thread():
                take(0)

        self.addCleanup(gc.set_threshold, *gc.get_threshold())
        self.addCleanup(gc.callbacks.remove, collecting)
        for value in range(2000):
            self.peer.send(value.to_bytes(8, "little"))
        gc.callbacks.append(collecting)
        gc.set_threshold(1)
        while len(came) < 2000:
            take(0.01)
        self.assertEqual(sorted(came), list(range(2000)))


if __name__ == "__main__":
    unittest.main()
