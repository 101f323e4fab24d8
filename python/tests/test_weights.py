"""Weights from several sources to targets that are sharded in another way."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
from multiprocessing.connection import Connection
from typing import Any, Dict, List, Tuple

import weights_roundtrip
from support import FABRIC
from libweft._safetensors import header_for, placed
from libweft.weights import FileRange, Shard, Source, Target, answer_at, create, place_of, shards_of

OPTIONS: Dict[str, Any] = {"fabric": FABRIC, "rails": "lo" if FABRIC == "tcp" else None}
ROWS, ROW = 999, 64 << 10
SPAWN = multiprocessing.get_context("spawn")


def rows(begin: int, end: int, row: int = ROW, version: int = 0) -> bytearray:
    return bytearray(b"".join(((i * 7 + version) % 251).to_bytes(1, "little") * row for i in range(begin, end)))


def shard(begin: int, end: int, version: int = 0) -> Shard:
    return Shard("w", "U8", (ROWS, ROW), begin, end, rows(begin, end, version=version))


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

    def target(self, begin: int, end: int, manifests: List[bytes]) -> Tuple[Target, bytearray]:
        buffer = bytearray((end - begin) * ROW)
        target = Target([Shard("w", "U8", (ROWS, ROW), begin, end, buffer)], manifests, **OPTIONS)
        self.addCleanup(target.close)
        return target, buffer

    def test_four_targets_pull_from_three_sources(self) -> None:
        _, manifests = self.sources([(0, 333)], [(333, 600)], [(600, 999)])
        for i in range(4):
            begin, end = ROWS * i // 4, ROWS * (i + 1) // 4
            target, buffer = self.target(begin, end, manifests)
            said: List[Tuple[int, int]] = []
            target.pull(verify=True, progress=lambda there, all_: said.append((there, all_)))
            self.assertEqual(buffer, rows(begin, end))
            self.assertEqual(said[-1], (len(buffer), len(buffer)))

    def test_a_source_that_dies_is_replaced_by_others(self) -> None:
        processes, manifests = self.sources([(0, 700)], [(300, 999)], [(0, 999)])
        target, buffer = self.target(0, ROWS, manifests)
        killed: List[int] = []

        def kill(there: int, all_: int) -> None:
            if not killed:
                killed.append(there)
                os.kill(processes[2][0].pid, signal.SIGKILL)

        target.pull(verify=True, progress=kill)
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
        self.assertEqual(target._dead, {0, 1, 2})

    def test_a_pull_goes_on_while_sources_refuse(self) -> None:
        with tempfile.NamedTemporaryFile() as secret, contextlib.ExitStack() as closes:
            secret.write(b"of another cluster")
            secret.flush()
            closed, withdrawn, other = (closes.enter_context(Source([shard(0, ROWS)], **OPTIONS, **more))
                                        for more in ({}, {}, {"secret_file": secret.name}))
            _, manifests = self.sources([(0, ROWS)])
            target, buffer = self.target(0, ROWS, [closed.manifest(), withdrawn.manifest(), *manifests, other.manifest()])
            target.pull(verify=True)
            self.assertEqual(target._dead, {3})
            closed.close()
            withdrawn._memories[0].deregister()
            buffer[:] = bytes(len(buffer))
            target.pull(verify=True)
            self.assertEqual(buffer, rows(0, ROWS))
            self.assertEqual(target._dead, {0, 1, 3})

    def test_what_no_source_is_left_for_is_an_error(self) -> None:
        processes, manifests = self.sources([(0, 500)], [(500, 999)])
        target, buffer = self.target(0, ROWS, manifests)
        os.kill(processes[1][0].pid, signal.SIGKILL)
        with self.assertRaises(Exception):
            target.pull()
        with self.assertRaisesRegex(ValueError, "no source has rows 500 to 998"):
            self.target(0, ROWS, manifests[:1])
        with self.assertRaisesRegex(ValueError, "is wanted"):
            Target([Shard("w", "F32", (ROWS, ROW // 4), 0, 1, bytearray(ROW))], manifests, **OPTIONS)

    def test_bytes_that_differ_are_an_error(self) -> None:
        with Source([shard(0, ROWS)], **OPTIONS) as source:
            target, buffer = self.target(0, ROWS, [source.manifest()])

            def spoil(there: int, all_: int) -> None:
                if there == all_:
                    buffer[12345] ^= 1

            with self.assertRaisesRegex(ValueError, "is not what it has"):
                target.pull(verify=True, progress=spoil)

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
            with open(f"{folder}/out", "rb") as file:
                self.assertEqual(file.read(), bytes(5) + rows(50, 250))

    def test_files_come_out_byte_for_byte(self) -> None:
        self.assertEqual(weights_roundtrip.failed(weights_roundtrip.files()[::10]), [])

    def test_files_are_served_and_pulled_by_the_command(self) -> None:
        for listen, reached in (("0.0.0.0:0", "for every host, at each address of this one, at 0.0.0.0:"), ("127.0.0.2:0", "doing at 127.0.0.2:")):
            with unittest.mock.patch("builtins.print", side_effect=KeyboardInterrupt) as printed, self.assertRaises(KeyboardInterrupt):
                answer_at(place_of(listen), "doing", b"")
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
