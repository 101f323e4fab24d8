"""Weights from several sources to targets that are sharded in another way."""

from __future__ import annotations

import base64
import contextlib
import ctypes
import json
import math
import multiprocessing
import os
import pathlib
import pty
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock
import zlib
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any, Dict, List, Tuple

import weights_roundtrip
from support import FABRIC
import libweft
from libweft import weights
from libweft._safetensors import BITS, header_for, parsed, placed
from libweft.weights import FileRange, Shard, Source, Target, answer_at, create, place_of, shards_of

OPTIONS: Dict[str, Any] = {"fabric": FABRIC, "rails": "lo" if FABRIC == "tcp" else None}
ROWS, ROW = 999, 64 << 10
SPAWN = multiprocessing.get_context("spawn")


def rows(begin: int, end: int, row: int = ROW, version: int = 0) -> bytearray:
    return bytearray(b"".join(((i * 7 + version) % 251).to_bytes(1, "little") * row for i in range(begin, end)))


def shard(begin: int, end: int, version: int = 0) -> Shard:
    return Shard("w", "U8", (ROWS, ROW), begin, end, rows(begin, end, version=version))


def array(dtype: str, *shape: int) -> Any:
    """What has a dtype and a shape, as arrays of numpy have; its bytes count up."""
    length = {"F32": 4, "U8": 1}[dtype] * math.prod(shape)
    made: Any = type("Array", (ctypes.c_char * length,), {"dtype": {"F32": "float32", "U8": "uint8"}[dtype], "shape": shape})
    return made.from_buffer(bytearray(range(length)))


def serve(pipe: Connection, parts: List[Tuple[int, int]]) -> None:
    with Source([shard(*part) for part in parts], **OPTIONS) as source:
        pipe.send(source.manifest())
        with contextlib.suppress(EOFError):
            pipe.recv()


class Weights(unittest.TestCase):
    def sources(self, *parts: List[Tuple[int, int]]) -> Tuple[List[Any], List[bytes]]:
        """A process for each list of parts, and their manifests."""
        processes, manifests = [], []
        for part in parts:
            ours, theirs = SPAWN.Pipe()
            process = SPAWN.Process(target=serve, args=(theirs, part), daemon=True)
            process.start()
            self.addCleanup(process.join)
            self.addCleanup(process.kill)
            manifests.append(ours.recv())
            processes.append((process, ours))
        return processes, manifests

    def target(self, begin: int, end: int, manifests: List[bytes], timeout: float = 60) -> Tuple[Target, bytearray]:
        buffer = bytearray((end - begin) * ROW)
        target = Target([Shard("w", "U8", (ROWS, ROW), begin, end, buffer)], manifests, timeout=timeout, **OPTIONS)
        self.addCleanup(target.close)
        return target, buffer

    def test_four_targets_pull_from_three_sources(self) -> None:
        _, manifests = self.sources([(0, 333)], [(333, 600)], [(600, 999)])
        for i in range(4):
            begin, end = ROWS * i // 4, ROWS * (i + 1) // 4
            target, buffer = self.target(begin, end, manifests)
            said: List[Tuple[int, int]] = []
            read = target.pull(verify=True, progress=lambda there, all_: said.append((there, all_)))
            self.assertEqual(buffer, rows(begin, end))
            self.assertEqual(read, [ROW * max(min(end, last) - max(begin, first), 0) for first, last in ((0, 333), (333, 600), (600, 999))])
            self.assertEqual(said[-1], (len(buffer), len(buffer)))

    def test_a_source_that_dies_is_replaced_by_others(self) -> None:
        processes, manifests = self.sources([(0, 700)], [(300, 999)], [(0, 999)])
        target, buffer = self.target(0, ROWS, manifests)
        killed: List[int] = []

        def kill(there: int, all_: int) -> None:
            if not killed:
                killed.append(there)
                os.kill(processes[2][0].pid, signal.SIGKILL)

        self.assertEqual(sum(target.pull(verify=True, progress=kill)), target.total)
        self.assertLess(killed[0], target.total)
        self.assertEqual(buffer, rows(0, ROWS))
        buffer[:] = bytes(len(buffer))
        target.pull(verify=True)  # the same plan, without the dead one
        self.assertEqual(buffer, rows(0, ROWS))

    def test_a_pull_goes_on_while_sources_are_silent(self) -> None:
        processes, manifests = self.sources(*[[(0, ROWS)]] * 4)
        buffer = bytearray(ROWS * ROW)
        with unittest.mock.patch("libweft.weights.PIECE", 4 << 20):
            target = Target([Shard("w", "U8", (ROWS, ROW), 0, ROWS, buffer)], manifests, timeout=3, **OPTIONS)
        self.addCleanup(target.close)

        def stop(number: int) -> None:
            os.kill(processes[number][0].pid, signal.SIGSTOP)

        # One before anything, one with reads under way, and one before it is asked for checksums.
        stop(0)
        target.pull(verify=True, progress=lambda there, all_: stop(2 if there == all_ else 1))
        self.assertEqual(buffer, rows(0, ROWS))
        self.assertEqual(set(target.lost), {0, 1, 2})

    def test_a_source_that_was_silent_is_used_again(self) -> None:
        processes, manifests = self.sources(*[[(0, ROWS)]] * 2)
        alone, both = (self.target(0, ROWS, sources, timeout=2) for sources in (manifests[:1], manifests))
        os.kill(processes[0][0].pid, signal.SIGSTOP)
        with self.assertRaises(libweft.PeerError):
            alone[0].pull()
        self.assertEqual(both[0].pull(), [0, both[0].total])
        os.kill(processes[0][0].pid, signal.SIGCONT)
        alone[0].pull(verify=True)
        self.assertEqual((alone[1], alone[0].lost), (rows(0, ROWS), {}))
        until = time.monotonic() + 30
        while both[0].lost and time.monotonic() < until:
            both[0].pull(verify=True)
        self.assertNotIn(0, both[0].pull(verify=True))
        self.assertEqual(both[1], rows(0, ROWS))

    def test_an_answer_to_an_earlier_pull_is_none_to_this_one(self) -> None:
        gate, first, second = threading.Event(), shard(0, ROWS), shard(0, ROWS)
        self.addCleanup(gate.set)
        with Source([first], **OPTIONS) as late, Source([second], **OPTIONS) as other:
            def checksum(*given: Any) -> int:
                sum_ = known(*given)
                if threading.current_thread() is late._thread:
                    gate.wait()
                return sum_

            known = weights.checksum
            target, buffer = self.target(0, ROWS, [late.manifest(), other.manifest()], timeout=2)
            with unittest.mock.patch("libweft.weights.checksum", checksum):
                target.pull(verify=True)
                self.assertEqual(set(target.lost), {0})
                self.assertIn("no checksum", str(target.lost[0]))
                first.buffer[:] = second.buffer[:] = rows(0, ROWS, version=1)
                gate.set()
                until = time.monotonic() + 30
                while target.lost and time.monotonic() < until:
                    target.pull()
                target.pull(verify=True)
            self.assertEqual(buffer, first.buffer)

    def test_an_answer_to_another_target_is_none_to_this_one(self) -> None:
        gate, known = threading.Event(), weights.checksum
        self.addCleanup(gate.set)
        with Source({"a": b"12345", "b": b"54321"}, **OPTIONS) as source, libweft.Endpoint(**OPTIONS) as shared:
            def checksum(*given: Any) -> int:
                if threading.current_thread() is source._thread:
                    gate.wait()
                return known(*given)

            a, b = bytearray(5), bytearray(5)
            with unittest.mock.patch("libweft.weights.checksum", checksum), Target(
                    {"a": a}, [source.manifest()], endpoint=shared, timeout=1) as first, Target(
                    {"b": b}, [source.manifest()], endpoint=shared) as second:
                with self.assertRaisesRegex(TimeoutError, "no checksum"):
                    first.pull(verify=True)
                second.pull(verify=True, progress=lambda *_: gate.set())
                self.assertEqual((b, second.lost), (b"54321", {}))

    def test_an_exception_of_progress_ends_a_pull(self) -> None:
        _, manifests = self.sources([(0, ROWS)])
        with unittest.mock.patch("libweft.weights.PIECE", 2 << 20):
            target, buffer = self.target(0, ROWS, manifests)
        begun: List[Any] = []

        def start(*given: Any) -> Any:
            begun.append(unittest.mock.Mock() if begun else known(*given))
            return begun[-1]

        def leave(there: int, all_: int) -> None:
            raise InterruptedError(threading.current_thread().name)

        known = target._start
        with unittest.mock.patch.object(target, "_start", start), self.assertRaisesRegex(InterruptedError, threading.current_thread().name):
            target.pull(progress=leave)
        self.assertEqual(begun[1].method_calls, [unittest.mock.call.cancel(), unittest.mock.call.wait()])
        whole = iter(range(3))

        def leave_late(there: int, all_: int) -> None:
            if there == all_ and next(whole) == 2:  # while checksums are compared
                raise InterruptedError

        with self.assertRaises(InterruptedError):
            target.pull(verify=True, progress=leave_late)
        target.pull(verify=True)
        self.assertEqual(buffer, rows(0, ROWS))

    def test_a_pull_goes_on_while_sources_refuse(self) -> None:
        with tempfile.NamedTemporaryFile() as secret, contextlib.ExitStack() as closes:
            secret.write(b"of another cluster")
            secret.flush()
            closed, withdrawn, other = (closes.enter_context(Source([shard(0, ROWS)], **OPTIONS, **more))
                                        for more in ({}, {}, {"secret_file": secret.name}))
            _, manifests = self.sources([(0, ROWS)])
            target, buffer = self.target(0, ROWS, [closed.manifest(), withdrawn.manifest(), *manifests, other.manifest()])
            target.pull(verify=True)
            self.assertEqual(set(target.lost), {3})
            closed.close()
            withdrawn._memories[0].deregister()
            buffer[:] = bytes(len(buffer))
            target.pull(verify=True)
            self.assertEqual(buffer, rows(0, ROWS))
            self.assertEqual(set(target.lost), {0, 1, 3})

    def test_what_no_source_is_left_for_is_an_error(self) -> None:
        with Source({"b": b"12345"}, **OPTIONS) as source, self.assertRaisesRegex(ValueError, "no source has a tensor w"):
            self.target(0, 1, [source.manifest()])
        processes, manifests = self.sources([(0, 500)], [(500, 999)])
        target, buffer = self.target(0, ROWS, manifests)
        os.kill(processes[1][0].pid, signal.SIGKILL)
        with self.assertRaises(Exception):
            target.pull()
        with self.assertRaisesRegex(ValueError, "no source has rows 500 to 999"):
            self.target(0, ROWS, manifests[:1])
        with self.assertRaisesRegex(ValueError, "is wanted"):
            Target([Shard("w", "F32", (ROWS, ROW // 4), 0, 1, bytearray(ROW))], manifests, **OPTIONS)

    def test_shards_are_what_they_say(self) -> None:
        with Source({"a": array("F32", 8, 4), "b": b"12345"}, **OPTIONS) as source:
            manifest = source.manifest()
            a, b = bytearray(4 * 16), array("U8", 5)
            with Target([Shard("a", "F32", (8, 4), 4, 8, a), Shard("b", "U8", (5,), 0, 5, b)], [manifest], **OPTIONS) as target:
                target.pull(verify=True)
            self.assertEqual((bytes(a), bytes(b)), (bytes(range(64, 128)), b"12345"))
            b = bytearray(5)
            with Target({"b": b}, [manifest], **OPTIONS) as target:
                target.pull(verify=True)
            self.assertEqual(b, b"12345")
        right = Shard("a", "F32", (8, 4), 0, 8, bytearray(128))
        wrong: Any
        for wrong, error in (
            ({"dtype": "float32"}, "a: 'float32' is no dtype of safetensors, which are BOOL, "),
            ({"dtype": "F16", "buffer": array("F32", 8, 2)}, "a is F16, the buffer is F32"),
            ({"dtype": "U8", "buffer": array("F32", 8)}, "a is U8, the buffer is F32"),
            ({"dtype": "F4", "shape": (8, 3)}, "a: a row of F4 .8, 3. has 12 bits"),
            ({"buffer": bytearray(112)}, "a: rows 0 to 8 of F32 .8, 4. are 128 bytes, the buffer has 112"),
            ({"buffer": array("U8", 112)}, "the buffer has 112"),
            ({"buffer": FileRange("/dev/zero", 0, 112)}, "the buffer has 112"),
            ({"begin": 5, "end": 4, "buffer": b""}, "rows 5 to 4 are none of F32 .8, 4., which has 8"),
            ({"begin": -1, "end": 7}, "rows -1 to 7 are none"),
            ({"begin": 1, "end": 9}, "rows 1 to 9 are none"),
            ({"shape": (), "begin": 0, "end": 2}, "rows 0 to 2 are none"),
        ):
            for make in (lambda shards: Source(shards, **OPTIONS), lambda shards: Target(shards, [], **OPTIONS)):
                with self.subTest(wrong), self.assertRaisesRegex(ValueError, error):
                    make([right._replace(**wrong)])
        for others, error in (
            ([right], "rows 0 to 8 are given twice"),
            ([Shard("b", "U8", (9,), 0, 6, b"123456"), Shard("b", "U8", (9,), 3, 3, b""), Shard("b", "U8", (9,), 4, 5, b"5")], "b: rows 4 to 5 are"),
            ([right._replace(shape=(9, 4), begin=8, end=9, buffer=bytearray(16))], "a is F32 .8, 4., and F32 .9, 4."),
        ):
            with self.assertRaisesRegex(ValueError, error):
                Source([right, *others], **OPTIONS)
        with self.assertRaisesRegex(TypeError, "a list is of Shards, and one is of type str"):
            Source([*right], **OPTIONS)  # type: ignore[list-item]
        self.assertEqual([dtype for dtype in BITS if dtype not in str(Shard.__doc__)], [])

    def test_manifests_are_of_different_sources(self) -> None:
        with Source({"b": b"12345"}, **OPTIONS) as source:
            one = source.manifest()
            for manifests, error in (
                ([one, one[:-9]], r"manifests\[1\] is cut off"),
                ([one, b""], r"manifests\[1\] is cut off"),
                ([one, b"[" * 100_000], r"manifests\[1\] is cut off"),
                ([b"[]"], r"manifests\[0\] is of something else, and one of a Source is wanted"),
                ([b'{"format": 1, "checkpoints": "AA=="}'], r"manifests\[0\] is of a Store, and one of a Source is wanted"),
                ([one, source.manifest()], r"manifests\[0\] and \[1\] are of the same Source"),
            ):
                with self.subTest(error), self.assertRaisesRegex(ValueError, error):
                    Target({"b": bytearray(5)}, manifests, **OPTIONS)

    def test_bytes_that_differ_are_an_error(self) -> None:
        with Source([shard(0, ROWS)], **OPTIONS) as source:
            target, buffer = self.target(0, ROWS, [source.manifest()])

            def spoil(there: int, all_: int) -> None:
                if there == all_:
                    buffer[12345] ^= 1

            with self.assertRaisesRegex(ValueError, "is not what it has"):
                target.pull(verify=True, progress=spoil)

    def test_sources_of_two_versions_are_refused(self) -> None:
        two = [shard(0, ROWS), shard(0, ROWS, version=1)]
        with contextlib.ExitStack() as closes:
            plain, named, later = (closes.enter_context(Source([one], version=version, **OPTIONS))
                                   for one, version in ((two[0], None), (two[1], "step 7"), (two[1], "step 8")))
            for manifests, error in (
                ([plain.manifest(), named.manifest(), later.manifest()], r"manifests\[1\] is of version step 7, and manifests\[2\] of version step 8"),
                ([json.dumps({**json.loads(one.manifest()), "samples": one.samples(), "from": f"host:{number}"}).encode()
                  for number, one in enumerate((plain, named))], "w: host:0 and host:1 have different bytes"),
            ):
                with self.subTest(error), self.assertRaisesRegex(ValueError, error):
                    self.target(0, ROWS, manifests)
            later.version = "step 7"
            target, _ = self.target(0, ROWS, [named.manifest(), later.manifest()])
            target.pull(verify=True)
            target, _ = self.target(0, ROWS, [plain.manifest(), named.manifest()])
            target.pull()
            with self.assertRaisesRegex(ValueError, r"w: manifests\[.\] and manifests\[.\] have different bytes"):
                target.pull(verify=True)

    def test_what_a_source_has_not_is_read_from_another(self) -> None:
        changed, kept = shard(0, ROWS), shard(0, ROWS)
        with Source([changed], **OPTIONS) as source, Source([kept], **OPTIONS) as other:
            with unittest.mock.patch("libweft.weights.PIECE", 2 << 20):
                target, buffer = self.target(0, ROWS, [source.manifest(), other.manifest()])

            def change(there: int, all_: int) -> None:
                if there == all_:  # in the last of the pieces that it has sent
                    changed.buffer[(30 << 21) + 12345] = 255

            self.assertEqual(target.pull(verify=True, progress=change), [0, target.total])
            self.assertEqual((buffer, set(target.lost)), (kept.buffer, {0}))
            self.assertRegex(str(target.lost[0]), r"w: what was read from manifests\[0\] is not what it has")

    def test_a_question_that_is_none_leaves_other_targets_their_answers(self) -> None:
        with Source({"b": b"12345"}, **OPTIONS) as source, libweft.Endpoint(**OPTIONS) as other:
            peer = other.connect(source._endpoint.address, timeout=10).wait()
            for question in (b"no JSON", b"7", b"[1, 2]", b"[1, 99, 0, 1]", b'[1, "b", 0, 1]'):
                peer.send(question).wait()
            b = bytearray(5)
            with Target({"b": b}, [source.manifest()], timeout=5, **OPTIONS) as target:
                target.pull(verify=True)
            self.assertEqual(b, b"12345")

    def test_a_source_that_answers_something_else_is_lost(self) -> None:
        wrong = (b"no JSON", b"\xff", b"7", b"[1, 2, 3]", b"[[], 1]", b"[" * 100_000)
        with Source({"b": b"12345"}, **OPTIONS) as good, libweft.Endpoint(**OPTIONS) as bad, libweft.Endpoint(
                **OPTIONS) as other, libweft.Endpoint(**OPTIONS) as shared:
            shards = [Shard("b", "U8", (5,), 0, 5, b"12345")]
            offered = json.dumps(weights.offer(bad, shards, *weights.register(bad, shards, libweft.Access.REMOTE_READ))).encode()
            said = iter(wrong)

            def answer() -> None:
                with contextlib.suppress(libweft.ClosedError):
                    while True:
                        event = bad.wait_event()
                        if isinstance(event, libweft.Message):
                            event.peer.send(next(said))

            thread = threading.Thread(target=answer)
            thread.start()
            self.addCleanup(thread.join)
            self.addCleanup(bad.close)
            peer = other.connect(shared.address, timeout=10).wait()
            for _ in wrong:
                b = bytearray(5)
                with Target({"b": b}, [offered, good.manifest()], endpoint=shared, timeout=5) as target:
                    for one in wrong:
                        peer.send(one).wait(20)
                    target.pull(verify=True)
                    self.assertEqual((b, set(target.lost)), (b"12345", {0}))
                    self.assertEqual(str(target.lost[0]), "manifests[0] has sent no checksum, but something else")

    def test_bytes_that_no_shard_has_are_not_answered(self) -> None:
        with tempfile.NamedTemporaryFile() as file:
            file.write(bytes(100))
            file.flush()
            shards = {"b": bytes(100), "in a file": FileRange(file.name, 10, 80)}
            with Source([Shard(name, "U8", (weights.length_of(b),), 0, weights.length_of(b), b) for name, b in shards.items()],
                        **OPTIONS) as source, libweft.Endpoint(**OPTIONS) as other:
                peer = other.connect(source._endpoint.address, timeout=10).wait()
                for question in ([0, 0, -1, 1], [0, 0, 0, 101], [0, 0, 100, 1], [0, 0, 1 << 64, 1], [0, 0, 2, -1], [0, -1, 0, 1],
                                 [0, 1, -1, 1], [0, 1, 0, 81], [0, False, 0, 1], [0, 0, 0, True], [0, 0, 1e0, 1], ["x", 0, 0, 1], "abcd"):
                    peer.send(json.dumps(question).encode()).wait()
                peer.send(b"[" * 100_000).wait()
                for question in ([1, 0, 100, 0], [2, 0, 99, 1], [3, 1, 79, 1]):
                    peer.send(json.dumps(question).encode()).wait()
                    event: Any = None
                    while not isinstance(event, libweft.Message):
                        event = other.wait_event(20)
                        self.assertIsNotNone(event, question)
                    self.assertEqual(json.loads(event.data), [question[0], zlib.crc32(bytes(question[3]))])

    def test_an_interrupted_pull_leaves_no_read_under_way(self) -> None:
        with Source([shard(0, ROWS)], **OPTIONS) as source:
            with unittest.mock.patch("libweft.weights.PIECE", 2 << 20):
                target, _ = self.target(0, ROWS, [source.manifest()])
            counter, begun = target._endpoint.create_counter(), []

            def start(*_: Any) -> Any:
                begun.append(counter.expect(1))
                return begun[-1]

            timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
            with unittest.mock.patch.object(target, "_start", start), self.assertRaises(KeyboardInterrupt):
                timer.start()
                target.pull()
            self.assertEqual([operation.done for operation in begun], [True] * weights.DEPTH)

    def test_more_pieces_are_compared_than_operations_can_be_open(self) -> None:
        with Source([shard(0, ROWS)], **OPTIONS) as source, unittest.mock.patch("libweft.weights.PIECE", ROW):
            buffer = bytearray(ROWS * ROW)
            with Target([Shard("w", "U8", (ROWS, ROW), 0, ROWS, buffer)], [source.manifest()], max_transfers=128, **OPTIONS) as target:
                target.pull(verify=True)
            self.assertEqual((len(target.pieces), target.lost, buffer), (ROWS, {}, rows(0, ROWS)))

    def test_no_source_is_lost_where_there_is_no_room_for_its_reads(self) -> None:
        with Source([shard(0, ROWS)], **OPTIONS) as source, Source([shard(0, ROWS)], **OPTIONS) as other:
            buffer = bytearray(ROWS * ROW)
            with unittest.mock.patch("libweft.weights.PIECE", ROW):
                target = Target([Shard("w", "U8", (ROWS, ROW), 0, ROWS, buffer)], [source.manifest(), other.manifest()],
                                max_transfers=1, **OPTIONS)
            with target:
                target.pull(verify=True)
                self.assertEqual((target.lost, buffer), ({}, rows(0, ROWS)))
                with target._endpoint.create_watch() as watch, self.assertRaises(libweft.RetryError):
                    here = target._endpoint.register(bytearray(1))
                    waiting = target._endpoint.read(here, target._remotes[0][0], 1, start=(watch, 1))  # the program's own
                    try:
                        target.pull()
                    finally:
                        watch.value = 1
                        waiting.wait(20)
                self.assertEqual(target.lost, {})

    def test_a_plan_is_pulled_again_for_the_next_version(self) -> None:
        first = shard(0, ROWS)
        with Source([first], **OPTIONS) as source:
            target, buffer = self.target(0, ROWS, [source.manifest()])
            for version in range(3):
                first.buffer[:] = rows(0, ROWS, version=version)
                target.pull(verify=True)
                self.assertEqual(buffer, first.buffer)

    def test_shards_lie_in_files_on_both_sides(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            with open(f"{folder}/in", "wb") as file:
                file.write(b"odd" + rows(0, 300))
            with open(f"{folder}/out", "wb") as file:
                file.truncate(5 + 200 * ROW)
            offered = [Shard("w", "U8", (ROWS, ROW), *part, FileRange(f"{folder}/in", 3 + part[0] * ROW, (part[1] - part[0]) * ROW))
                       for part in ((0, 100), (100, 300))]
            wanted = Shard("w", "U8", (ROWS, ROW), 50, 250, FileRange(f"{folder}/out", 5, 200 * ROW))
            with Source(offered, **OPTIONS) as source, Target([wanted], [source.manifest()], **OPTIONS) as target:
                target.pull(verify=True)
                with open(f"{folder}/other", "wb") as file:
                    file.write(bytes(3 + 300 * ROW))
                os.replace(f"{folder}/other", f"{folder}/in")  # what is served is the file that it was
                target.pull(verify=True)
            with open(f"{folder}/out", "rb") as file:
                self.assertEqual(file.read(), bytes(5) + rows(50, 250))

    def offered(self, manifest: bytes) -> str:
        """Where the command finds a source, of a file with all rows."""
        header = header_for(placed([("w", "U8", (ROWS, ROW), ROWS * ROW)]))
        answer = json.dumps({**json.loads(manifest), "headers": [base64.b64encode(header).decode()]}).encode()
        server = socket.create_server(("127.0.0.1", 0))

        def give() -> None:
            with server, contextlib.suppress(OSError):
                while True:
                    with server.accept()[0] as connection:
                        connection.sendall(answer)

        thread = threading.Thread(target=give)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(server.shutdown, socket.SHUT_RDWR)
        return f"127.0.0.1:{server.getsockname()[1]}"

    def test_a_file_stays_until_another_is_complete(self) -> None:
        processes, manifests = self.sources([(0, ROWS)])
        place = self.offered(manifests[0])
        os.kill(processes[0][0].pid, signal.SIGSTOP)
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder, "out")
            out.write_bytes(b"the old one")
            for number, direct, end in ((signal.SIGINT, [], 130), (signal.SIGTERM, ["--direct"], 143), (signal.SIGHUP, [], 129), (None, [], 1), (None, ["--direct"], 1)):
                if number is None:
                    os.kill(processes[0][0].pid, signal.SIGKILL)
                command = subprocess.Popen([sys.executable, "-m", "libweft.weights", "pull", "--from", place, "--out", str(out), *direct],
                                           stderr=subprocess.PIPE, text=True)
                with command:
                    until = time.monotonic() + 30
                    while number is not None and len(os.listdir(folder)) == 1 and time.monotonic() < until:
                        time.sleep(0.01)
                    if number is not None:
                        time.sleep(0.5)
                        command.send_signal(number)
                    said = command.communicate(timeout=100)[1]
                self.assertEqual((command.returncode, "Traceback" in said), (end, False), said)
                self.assertEqual((os.listdir(folder), out.read_bytes()), (["out"], b"the old one"))
            with self.assertRaisesRegex(ValueError, "not a file"):
                weights._pull([place_of(place)], folder, 0, 1, False, False)
            # What a killed process has left goes with the next success; what another one is writing stays.
            pathlib.Path(folder, "out.1.unfinished").write_bytes(b"")
            with weights.replacing(str(out)) as slow:
                with unittest.mock.patch("os.getpid", return_value=1 << 30), weights.replacing(str(out)):
                    pass
                self.assertEqual(sorted(os.listdir(folder)), ["out", os.path.basename(slow)])
            self.assertEqual(os.listdir(folder), ["out"])
            # Two processes of one number, in two containers, have one name.
            with weights.replacing(str(out)) as slow:
                pathlib.Path(slow).write_bytes(b"of the first one")
                with self.assertRaisesRegex(BlockingIOError, f"another process pulls into {out}"), weights.replacing(str(out)):
                    pass
                self.assertEqual(pathlib.Path(slow).read_bytes(), b"of the first one")
            out.chmod(0o640)
            with weights.replacing(str(out)):
                pass
            self.assertEqual(out.stat().st_mode & 0o777, 0o640)
            out.unlink()
            out.symlink_to(pathlib.Path(folder, "in"))
            with weights.replacing(str(out)) as name:
                pathlib.Path(name).write_bytes(b"new")
            self.assertEqual((sorted(os.listdir(folder)), out.is_symlink(), out.read_bytes()), (["in", "out"], True, b"new"))

    def test_a_pull_says_how_far_it_is_and_what_came_from_where(self) -> None:
        processes, manifests = self.sources(*[[(0, ROWS)]] * 2)
        places = [self.offered(manifest) for manifest in manifests]
        os.kill(processes[1][0].pid, signal.SIGKILL)
        ours, theirs = pty.openpty()
        self.addCleanup(os.close, ours)
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([sys.executable, "-m", "libweft.weights", "pull", "--from", places[0], "--from", places[1], "--verify",
                                   "--out", f"{folder}/out"], check=True, stdout=subprocess.PIPE, stderr=theirs, text=True, timeout=100)
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # its end
            while True:
                shown += os.read(ours, 1 << 16)
        self.assertRegex(done.stdout, f"{places[0]}: {ROWS * ROW} bytes\n{places[1]}: 0 bytes, then lost: .*could not be reached")
        os.kill(processes[0][0].pid, signal.SIGSTOP)
        failed = subprocess.run([sys.executable, "-m", "libweft.weights", "pull", "--from", places[0], "--from", places[1], "--timeout", "1",
                                 "--out", "out"], cwd=tempfile.gettempdir(), capture_output=True, text=True, timeout=30)
        self.assertRegex(failed.stderr, f"{places[0]}: 0 bytes, then lost: .*was not answered in time.*\n{places[1]}: 0 bytes, then lost: .*could not be reached"
                         ".*\npull: ")
        self.assertEqual(failed.returncode, 1)
        self.assertRegex(shown.decode(), "\r\x1b\\[K100% of 0.07 GB, .* GB/s, comparing checksums\r\x1b\\[K1 of 2 sources was lost")

    def test_the_command_compares_the_files_of_two_sources(self) -> None:
        header = header_for(placed([("a", "U8", (101, 30000), 3030000), ("b", "F32", (1,), 4)]))
        with tempfile.TemporaryDirectory() as folder:
            paths, servers = [pathlib.Path(folder, name) for name in "01"], []
            for path in paths:
                path.write_bytes(header + bytes(3030004))
                server = subprocess.Popen([sys.executable, "-m", "libweft.weights", "serve", "--version", "1", str(path)],
                                          stdout=subprocess.PIPE, text=True)
                self.addCleanup(server.wait)
                self.addCleanup(server.kill)
                assert server.stdout is not None
                self.addCleanup(server.stdout.close)
                servers.append(server.stdout)
            places = [said.readline().split()[-1] for said in servers]

            def pull(*more: str) -> Any:
                return subprocess.run([sys.executable, "-m", "libweft.weights", "pull", "--from", places[0], "--from", places[1],
                                       "--out", f"{folder}/out", *more], capture_output=True, text=True, timeout=100)

            self.assertEqual(pull("--verify").returncode, 0)
            with Target({"b": array("F32", 1)}, [weights.manifest_of(place) for place in places]) as target:
                target.pull()
            with open(paths[1], "r+b") as file:
                file.seek(len(header) + 1515000)
                file.write(b"\1")
            os.unlink(paths[0])  # what was served from it goes on
            done = pull()
            self.assertEqual((done.returncode, os.path.exists(f"{folder}/out.1")), (1, False))
            self.assertIn(f"pull: a: {places[0]} and {places[1]} have different bytes", done.stderr)
            os.truncate(paths[1], len(header))
            self.assertIn(f"{places[1]} offers nothing: {paths[1]} has become shorter", pull().stderr)
        with socket.create_server(("127.0.0.1", 0)) as other, ThreadPoolExecutor(1) as pool:
            answered = pool.submit(lambda: other.accept()[0].close())
            with self.assertRaisesRegex(ValueError, "it has no address or .*: it is something else"):
                weights.manifest_of(f"127.0.0.1:{other.getsockname()[1]}")
            answered.result()

    def test_a_header_that_is_none_is_an_error(self) -> None:
        for text in (b"[" * 100_000, b'{"a": {"dtype": "U8", "shape": [1e999], "data_offsets": [0, 1]}}', b'{"a": {"dtype": "U8"}}'):
            with self.subTest(text[:9]), self.assertRaisesRegex(ValueError, "a file is no safetensors file"):
                parsed("a file", bytes(8) + text)

    def test_files_come_out_byte_for_byte(self) -> None:
        self.assertEqual(weights_roundtrip.failed(weights_roundtrip.files()[::10]), [])

    def test_files_are_served_and_pulled_by_the_command(self) -> None:
        for listen, reached in (("0.0.0.0:0", "for every host, at each address of this one, at 0.0.0.0:"), ("127.0.0.2:0", "doing at 127.0.0.2:")):
            with unittest.mock.patch("builtins.print", side_effect=KeyboardInterrupt) as printed, self.assertRaises(KeyboardInterrupt):
                answer_at(place_of(listen), "doing", bytes)
            self.assertIn(reached, printed.call_args[0][0])
        with tempfile.TemporaryDirectory() as folder:
            wanted = placed([("a", "U8", (101, 30), 3030), ("b", "F32", (1,), 4), ("c", "F32", (7, 2, 2), 112)])
            for made in create(f"{folder}/in", header_for(wanted)):
                made.buffer[:] = os.urandom(len(made.buffer))
            command = [sys.executable, "-m", "libweft.weights"]
            server = subprocess.Popen([*command, "serve", "--direct", "--listen", "0", f"{folder}/in"], stdout=subprocess.PIPE, text=True)
            self.addCleanup(server.wait)
            self.addCleanup(server.kill)
            assert server.stdout is not None
            self.addCleanup(server.stdout.close)
            said = server.stdout.readline()
            self.assertRegex(said, "serving for this host alone .* at 127.0.0.1:")
            place = said.split()[-1].rpartition(":")[2]
            parts: dict[str, bytes] = {}
            for i in range(2):
                subprocess.run([*command, "pull", "--from", place, "--out", f"{folder}/{i}", "--shard", f"{i}/2", "--verify",
                                *["--direct"] * i],
                               check=True, stdout=subprocess.DEVNULL)
                for part in shards_of(f"{folder}/{i}"):
                    parts[part.name] = parts.get(part.name, b"") + bytes(part.buffer)
            self.assertEqual(parts, {s.name: bytes(s.buffer) for s in shards_of(f"{folder}/in")})
