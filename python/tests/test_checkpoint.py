"""Checkpoints on several stores of this host."""

from __future__ import annotations

import argparse
import base64
import errno
import json
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock
import zlib
from typing import Any, BinaryIO, Callable, Dict, List, Tuple

import checkpoint_kills
from support import FABRIC
from libweft import Access, ConnectionFailedError, Memory, TimedOutError, c
from libweft._safetensors import header_for, placed
from libweft.checkpoint import ChangedError, Checkpoints, Shard, Store, StoreError
from libweft.checkpoint import __main__ as commands
from libweft.checkpoint._saving import RUNS, Writer
from libweft.checkpoint._store import PIECE, _Ends, _Filled
from libweft.checkpoint._whole import joined

OPTIONS: Dict[str, Any] = {"fabric": FABRIC, "rails": "lo" if FABRIC == "tcp" else None}
ROWS, ROW = 500, 50_000


def rows(begin: int, end: int, version: int = 0) -> bytearray:
    return bytearray(b"".join(((i * 7 + version) % 251).to_bytes(1, "little") * ROW for i in range(begin, end)))


def shard(begin: int, end: int, version: int = 0) -> Shard:
    return Shard("w", "U8", (ROWS, ROW), begin, end, rows(begin, end, version))


def empty(begin: int, end: int) -> Shard:
    return Shard("w", "U8", (ROWS, ROW), begin, end, bytearray((end - begin) * ROW))


class Saves(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = pathlib.Path(self.enterContext_(tempfile.TemporaryDirectory(dir="/var/tmp")))

    def enterContext_(self, manager: Any) -> Any:
        self.addCleanup(manager.__exit__, None, None, None)
        return manager.__enter__()

    def stores(self, count: int, **options: Any) -> Tuple[List[Store], List[bytes]]:
        stores = [self.enterContext_(Store(self.folder / str(i), **OPTIONS, **options)) for i in range(count)]
        return stores, [store.manifest() for store in stores]

    def rank(self, manifests: List[bytes], **options: Any) -> Checkpoints:
        made: Checkpoints = self.enterContext_(Checkpoints(manifests, **OPTIONS, **options))
        return made

    def files(self, step: int) -> List[pathlib.Path]:
        return sorted(self.folder.glob(f"*/{step}/rank*"))

    def test_ranks_save_and_others_load_with_another_sharding(self) -> None:
        _, manifests = self.stores(3)
        ranks = [self.rank(manifests, rank=i, ranks=2) for i in range(2)]
        small = {"b": os.urandom(1001), "nothing": b""}
        said: List[Tuple[int, int]] = []
        saves = [ranks[0].save(7, [shard(0, 200)], copy=False), ranks[1].save(7, [shard(200, ROWS), *(
            Shard(name, "U8", (len(data),), 0, len(data), data) for name, data in small.items())], progress=lambda *p: said.append(p))]
        parts = [save.wait(60) for save in saves]
        self.assertEqual(said[-1], (saves[1].total, saves[1].total))
        self.assertEqual(ranks[0].steps(), [])
        ranks[1].commit(7, parts)
        self.assertEqual([(s.step, s.missing) for s in ranks[0].steps()], [(7, [])])
        for begin, end in ((0, ROWS), (17, 18), (150, 333), (499, 500)):
            wanted, b = empty(begin, end), bytearray(1001)
            said.clear()
            step = ranks[0].load([wanted, Shard("b", "U8", (1001,), 0, 1001, b)], progress=lambda *p: said.append(p))
            self.assertEqual((step, wanted.buffer, b), (7, rows(begin, end), small["b"]))
            self.assertEqual(said[-1], ((end - begin) * ROW + 1001,) * 2)
        longer = Shard("w", "U8", (ROWS, 4 * ROW), 0, 200, bytearray(200 * 4 * ROW))
        wrong: Any
        for wrong, error in (({"w": bytearray(3)}, "is wanted"), ([longer], "is wanted"), ([empty(0, 2)._replace(buffer=bytearray(3))], "has 3")):
            with self.assertRaisesRegex(ValueError, error):
                ranks[0].load(wrong)
            with self.assertRaisesRegex(ValueError, "are given twice|has 3"):
                ranks[0].save(8, [*([shard(0, 3), shard(2, 4)] if error != "has 3" else wrong)])
        with self.assertRaises(FileNotFoundError):
            ranks[0].load([empty(0, 1)], step=6)

    def test_a_name_has_the_same_bytes_on_every_rank(self) -> None:
        _, manifests = self.stores(2)
        ranks = [self.rank(manifests, rank=i, ranks=2) for i in range(2)]
        plain = Shard("a", "U8", (5,), 0, 5, b"12345")
        for step, other, error in (
            (1, plain, ""),
            (2, plain._replace(buffer=b"12346"), "a was saved twice, with other bytes"),
            (3, plain._replace(shape=(6,), end=6, buffer=b"123456"), "a is not the same on all ranks: rank 0 says U8 .5,., rank 1 says U8 .6,."),
            (4, plain._replace(dtype="I8"), "step 4: a is not the same on all ranks: rank 0 says U8 .5,., rank 1 says I8 .5,."),
        ):
            parts = [rank.save(step, [one]).wait(60) for rank, one in zip(ranks, (plain, other))]
            if step == 1:
                ranks[0].commit(step, parts)
                with self.assertRaisesRegex(ValueError, "step 5: 0 stores have rank0-0.*, of 1: it is a part of step 1"):
                    ranks[0].commit(5, parts)
                continue
            with self.assertRaisesRegex(ValueError, error):
                ranks[0].commit(step, parts)
        self.assertEqual([one.step for one in ranks[0].steps()], [1])

    def test_a_commit_wants_each_row_once_or_the_same_again(self) -> None:
        _, manifests = self.stores(2)
        ranks = [self.rank(manifests, rank=i, ranks=2, copies=2) for i in range(2)]
        data = rows(0, ROWS)

        def part(begin: int, end: int, spoiled: bool = False) -> Shard:
            made = data[begin * ROW:end * ROW]
            made[-1:] = bytes([made[-1] ^ 1]) if spoiled else made[-1:]
            return Shard("w", "U8", (ROWS, ROW), begin, end, made)

        def save(step: int, *of_ranks: List[Shard]) -> List[bytes]:
            return [rank.save(step, shards).wait(60) for rank, shards in zip(ranks, of_ranks)]

        ranks[0].commit(1, save(1, [part(0, 200)], [part(200, ROWS)]))
        parts = save(2, [part(0, 200)], [part(200, ROWS)])
        for given in (parts[:1], parts[1:] * 2, [], [*parts, b'{"rank2-0.0.safetensors": 1}'], [parts[0], b"{}"]):
            with self.assertRaisesRegex(ValueError, "step 2: these are parts of .* wants those of rank0, rank1"):
                ranks[0].commit(2, given)
        wrong: Any
        for wrong, error in (
            (([part(0, 200)], [part(300, ROWS)]), "no rank has saved rows 200 to 300 of w"),
            (([part(0, 0)], [part(1, ROWS)]), "no rank has saved rows 0 to 1 of w"),
            (([part(0, 200)], [part(200, 499)]), "no rank has saved rows 499 to 500 of w"),
            (([part(0, 300)], [part(200, ROWS)]), "were saved twice, in ranges that differ"),
            (([part(0, 200), part(200, ROWS)], [part(0, 230)]), "before and behind row .* were saved twice, in ranges that differ"),
            (([part(0, ROWS)], [part(0, ROWS, True)]), "was saved twice, with other bytes"),
            (([part(0, ROWS)], [part(0, 200), part(200, ROWS, True)]), "was saved twice, with other bytes"),
        ):
            with self.subTest(error), self.assertRaisesRegex(ValueError, error):
                ranks[0].commit(2, save(2, *wrong))
            self.assertEqual([step.step for step in ranks[0].steps()], [1])
        # What else a rank has moves the rows at which a tensor is cut; one without rows has its part, too.
        more = bytes(20 << 20)
        ranks[0].commit(2, save(2, [part(0, ROWS), Shard("x", "U8", (len(more),), 0, len(more), more)], [part(0, ROWS)]))
        ranks[0].commit(3, save(3, [part(0, ROWS)], [part(7, 7)]))
        self.assertEqual([(step.step, step.missing) for step in ranks[0].steps()], [(1, []), (2, []), (3, [])])
        self.assertEqual(ranks[0].contents(), [("w", "U8", (ROWS, ROW), ROWS * ROW)])

    def test_a_file_has_no_more_tensors_than_a_load_can_register(self) -> None:
        _, manifests = self.stores(1)
        rank = self.rank(manifests)
        rank.save(1, {str(i): bytes([i % 251]) for i in range(66_000)}).wait(60)
        wanted = {str(i): bytearray(1) for i in (0, 65_999)}
        rank.load(wanted)
        self.assertEqual(wanted, {"0": b"\0", "65999": bytes([65_999 % 251])})

    def test_many_small_tensors_leave_the_bytes_spread_over_the_stores(self) -> None:
        _, manifests = self.stores(2)
        rank, wanted = self.rank(manifests), empty(0, ROWS)
        with unittest.mock.patch("libweft.checkpoint._saving.MOST", 3):
            rank.save(1, [*(Shard(str(i), "U8", (1,), 0, 1, b"1") for i in range(10)), shard(0, ROWS)]).wait(60)
        self.assertEqual([max(path.stat().st_size for path in self.folder.glob(f"{store}/1/rank*")) // (8 << 20) for store in (0, 1)], [1, 1])
        self.assertEqual((len(self.files(1)), rank.load([wanted]), wanted.buffer, rank.verify()), (5, 1, rows(0, ROWS), []))

    def test_checksums_are_joined(self) -> None:
        data = os.urandom(2 * PIECE + 12345)
        for length in (0, 1, PIECE, 2 * PIECE + 1):
            behind = data[12344:12344 + length]
            self.assertEqual(joined(zlib.crc32(data[:12344]), length, [zlib.crc32(behind[at:at + PIECE]) for at in range(0, length, PIECE)]),
                             zlib.crc32(data[:12344 + length]))

    def test_files_are_safetensors(self) -> None:
        _, manifests = self.stores(1)
        self.rank(manifests).save(1, {"a": b"12345", "b": rows(0, 3)}).wait(60)
        (path,) = self.files(1)
        content = path.read_bytes()
        length = 8 + int.from_bytes(content[:8], "little")
        header = json.loads(content[8:length])
        self.assertEqual(length % 4096, 0)
        self.assertEqual([content[length + begin:length + end] for begin, end in (header[key]["data_offsets"] for key in "ab")],
                         [b"12345", rows(0, 3)])

    def test_training_goes_on_after_the_copy(self) -> None:
        _, manifests = self.stores(2)
        with Checkpoints(manifests, **OPTIONS) as rank:
            source = shard(0, ROWS)
            for step in (1, 2):  # the memory of the first copy is used again
                saving = rank.save(step, [source])
                source.buffer[:] = rows(0, ROWS, step)
                saving.wait(60)
            for step in (1, 2):
                wanted = empty(0, ROWS)
                self.assertEqual(rank.load([wanted], step), step)
                self.assertEqual(wanted.buffer, rows(0, ROWS, step - 1))
            unawaited = rank.save(3, [source])
        self.assertTrue(unawaited.done)
        self.assertEqual(self.rank(manifests).load([wanted]), 3)

    def test_saves_go_on_after_one_without_memory(self) -> None:
        _, manifests = self.stores(1)
        rank, small, wanted = self.rank(manifests), rows(0, 1), bytearray(ROW)
        rank.save(1, {"w": small}).wait(60)
        with unittest.mock.patch.object(rank._endpoint, "allocate", side_effect=MemoryError), self.assertRaises(MemoryError):
            rank.save(2, {"w": rows(0, ROWS)})
        rank.save(3, {"w": small}).wait(60)
        self.assertEqual((rank.load({"w": wanted}), wanted), (3, small))

    def test_a_save_goes_on_where_another_one_ended(self) -> None:
        _, manifests = self.stores(2)

        def stop(there: int, total: int) -> None:
            if there > total // 3:
                raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt), unittest.mock.patch.multiple("libweft.checkpoint._saving", DEPTH=1, BATCH=1, LEAST=1):
            self.rank(manifests).save(1, [shard(0, ROWS)], progress=stop).wait(60)
        again = self.rank(manifests)
        self.assertEqual((again.steps(), self.files(1) != []), ([], True))
        saving = again.save(1, [shard(0, ROWS)])
        saving.wait(60)
        self.assertGreater(saving.skipped, ROWS * ROW // 4)
        self.assertLess(saving.skipped, ROWS * ROW)
        wanted = empty(0, ROWS)
        again.load([wanted])
        self.assertEqual(wanted.buffer, rows(0, ROWS))
        saving = again.save(1, [wanted], copy=False)  # the same once more: all of it is there
        saving.wait(60)
        self.assertEqual(saving.skipped, saving.total)
        saving = again.save(1, [shard(0, ROWS, 1)])
        saving.wait(60)
        self.assertEqual(saving.skipped, 0)
        again.load([wanted])
        self.assertEqual(wanted.buffer, rows(0, ROWS, 1))
        self.assertEqual(len(self.files(1)), 2)  # those of the first save are gone

    def test_copies_survive_a_store(self) -> None:
        stores, manifests = self.stores(3)
        rank = self.rank(manifests, copies=2)
        rank.save(1, [shard(0, ROWS)]).wait(60)
        self.assertEqual(len(self.files(1)), 4)
        stores[1].close()
        wanted = empty(100, 400)
        self.assertEqual(rank.load([wanted]), 1)
        self.assertEqual(wanted.buffer, rows(100, 400))
        stores[0].close()
        self.assertNotEqual(rank.steps()[0].missing, [])
        with self.assertRaisesRegex(ConnectionError, r"the store of manifests\[1\]: .* without it step 1, .*`step=` takes an older one"):
            rank.load([wanted])
        with self.assertRaises(FileNotFoundError):
            rank.load([wanted], 1)
        with self.assertRaises(OSError):
            rank.save(2, [wanted]).wait(60)

    def test_a_save_says_which_store_it_has_lost(self) -> None:
        for do in ("find", "open", "fill", "headers", "written", "seal"):
            with self.subTest(do), tempfile.TemporaryDirectory(dir="/var/tmp") as folder, Store(folder, **OPTIONS) as other, \
                    Store(self.folder / do, **OPTIONS) as lost, Checkpoints([other.manifest(), lost.manifest()], timeout=20, **OPTIONS) as rank:
                began, wrote, once = rank._begin_call, rank._endpoint.write_list, iter([lost])

                def begin(store: int, called: str, *given: Any, **more: Any) -> Any:
                    if (store, called) == (1, do):
                        for one in once:
                            one.close()
                    return began(store, called, *given, **more)

                def write(*given: Any, **more: Any) -> Any:
                    if do == "headers":
                        for one in once:
                            one.close()
                    if do == "written":
                        why = ConnectionFailedError(c.ERR_PEER_LOST, "write of a list", rank._stores[1].id)
                        return unittest.mock.Mock(**{"wait.side_effect": why})
                    return wrote(*given, **more)

                with unittest.mock.patch.object(rank, "_begin_call", begin), unittest.mock.patch.object(rank._endpoint, "write_list", write), \
                        self.assertRaisesRegex(StoreError, r"the store of manifests\[1\]: ") as caught:
                    rank.save(1, [shard(0, ROWS)]).wait(60)
                self.assertEqual((caught.exception.store, isinstance(caught.exception, ConnectionError)), (1, True))
                self.assertEqual(pickle.loads(pickle.dumps(caught.exception)).store, 1)

    def test_a_load_says_which_store_it_has_lost(self) -> None:
        stores, manifests = self.stores(2)
        rank = self.rank(manifests)
        rank.save(1, [shard(0, ROWS)]).wait(60)
        with unittest.mock.patch("libweft.weights.PIECE", ROW), \
                self.assertRaisesRegex(StoreError, r"the store of manifests\[1\]: ") as caught:
            rank.load([empty(0, ROWS)], 1, progress=lambda *_: stores[1].close())
        self.assertEqual(caught.exception.store, 1)

    def test_copies_are_loaded_by_those_who_never_reached_the_other_store(self) -> None:
        stores, manifests = self.stores(2)
        self.rank(manifests, copies=2).save(1, [shard(0, ROWS)]).wait(60)
        stores[1].close()
        rank = self.rank(manifests, copies=2, timeout=5)
        wanted = empty(100, 400)
        self.assertEqual((rank.load([wanted]), wanted.buffer, rank.verify()), (1, rows(100, 400), []))
        with self.assertRaisesRegex(OSError, r"the store of manifests\[1\]: "):
            rank.save(2, [wanted]).wait(60)
        stores[0].close()
        with self.assertRaisesRegex(ConnectionError, r"the store of manifests\[0\]: "):
            self.rank(manifests, timeout=5)

    def test_an_older_step_is_loaded_only_by_its_number(self) -> None:
        stores, manifests = self.stores(2)
        self.rank(manifests, copies=2).save(1, [shard(0, ROWS)]).wait(60)
        rank = self.rank(manifests)
        rank.save(2, [shard(0, ROWS, 1)]).wait(60)
        stores[1].close()
        wanted = empty(0, ROWS)
        with self.assertRaisesRegex(ConnectionError, r"the store of manifests\[1\]: .* without it step 2, .*`step=` takes an older one"):
            rank.load([wanted])
        self.assertEqual((rank.load([wanted], 1), wanted.buffer), (1, rows(0, ROWS)))

    def test_an_exception_of_progress_is_no_store_s_error(self) -> None:
        _, manifests = self.stores(1)
        rank = self.rank(manifests)
        rank.save(1, [shard(0, ROWS)]).wait(60)
        saver, calls = self.rank(manifests), 0

        def leave(there: int, all_: int) -> None:
            nonlocal calls
            calls += 1
            if calls == 1:
                saver.save(2, [shard(0, 1)._replace(shape=(1, ROW))]).wait(60)  # a newer one is no reason to read again
            raise BrokenPipeError("its own")

        with self.assertRaisesRegex(BrokenPipeError, "its own"):
            rank.load([empty(0, ROWS)], progress=leave)
        self.assertEqual(calls, 1)

    def test_the_other_copy_is_loaded(self) -> None:
        _, manifests = self.stores(2)
        rank = self.rank(manifests, copies=2)
        rank.save(1, [shard(0, ROWS)]).wait(60)
        call = rank._call

        def hangs(store: int, do: str, *given: Any, **more: Any) -> Any:
            if (store, do) == (0, hanging):
                rank._raise(store, TimeoutError(do))
            return call(store, do, *given, **more)

        for hanging in ("steps", "offer", "check"):
            with self.subTest(hanging), unittest.mock.patch.object(rank, "_call", hangs):
                wanted = empty(0, ROWS)
                rank.load([wanted])
                self.assertEqual(wanted.buffer, rows(0, ROWS))
                # The other one's first file differs from here on.
                if hanging == "offer":
                    with open(sorted(self.folder.glob("0/1/rank*"))[0], "r+b") as file:
                        file.seek(-1, os.SEEK_END)
                        file.write(b"\xff")
        wanted = empty(3, ROWS)
        rank.load([wanted])
        self.assertEqual(wanted.buffer, rows(3, ROWS))

    def test_each_file_is_loaded_from_the_store_that_has_it_whole(self) -> None:
        _, manifests = self.stores(2)
        rank = self.rank(manifests, copies=2)
        damages: List[Callable[[BinaryIO], object]] = [
            lambda file: file.write(bytes(30)), lambda file: file.truncate(30), lambda file: file.truncate(PIECE)]
        for step, damage in enumerate(damages):
            rank.save(step, [shard(0, ROWS)]).wait(60)
            for number in range(2):  # of each store one
                (path,) = self.folder.glob(f"{number}/{step}/rank0-{number}.*")
                with open(path, "r+b") as file:
                    damage(file)
            with self.subTest(step):
                wanted = empty(3, ROWS)
                rank.load([wanted])
                self.assertEqual((wanted.buffer, rank.contents()), (rows(3, ROWS), [("w", "U8", (ROWS, ROW), ROWS * ROW)]))

    def test_contents_are_whole_or_an_error(self) -> None:
        _, manifests = self.stores(2)
        rank = self.rank(manifests)
        rank.save(1, [shard(0, ROWS), Shard("b", "U8", (3,), 0, 3, b"123")]).wait(60)
        (path,) = self.folder.glob("1/1/rank*")
        with open(path, "r+b") as file:
            file.write(bytes(30))
        with self.assertRaisesRegex(StoreError, r"the store of manifests\[1\]: offer: .* is not what was saved"):
            rank.contents()

    def test_bytes_that_have_changed_are_an_error(self) -> None:
        _, manifests = self.stores(1)
        rank = self.rank(manifests)
        rank.save(1, [shard(0, ROWS), Shard("b", "U8", (3,), 0, 3, b"123")]).wait(60)
        (path,) = self.files(1)
        with open(path, "r+b") as file:
            file.seek(-3 - 60 * ROW - 1, os.SEEK_END)  # in row 439
            file.write(b"\xff")
        self.assertEqual(rank.verify(), [f"manifests[0]: {path.name}: w"])
        for begin, end in ((0, ROWS), (430, 450), (ROWS - 1, ROWS)):  # the last is of the same piece
            with self.assertRaisesRegex(ChangedError, "step 1: w: .* are not what was saved"):
                rank.load([empty(begin, end)])
        rank.load([empty(0, 300)])
        rank.load([empty(430, 450)], verify=False)
        with open(path, "r+b") as file:
            file.seek(20)
            file.write(b"#")
        self.assertIn("is not what was saved", rank.verify()[0])

    def test_steps_that_are_not_kept_are_removed(self) -> None:
        _, manifests = self.stores(2, keep=2)
        rank = self.rank(manifests)
        for step in (5, 10, 3, 20):
            rank.save(step, {"a": b"123"}).wait(60)
            self.assertEqual(rank.load({"a": bytearray(3)}, step), step)
        self.assertEqual([s.step for s in rank.steps()], [3, 20])  # the last that were committed, whatever their numbers
        self.assertEqual({path.name for path in self.folder.glob("*/*")}, {"3", "20"})

    def test_a_clock_that_is_set_back_removes_no_later_commit(self) -> None:
        _, manifests = self.stores(1, keep=2)
        rank = self.rank(manifests)
        rank.save(1, {"a": b"123"}).wait(60)
        os.utime(self.folder / "0" / "1" / "manifest.json", (time.time() + 3600,) * 2)
        for step in (2, 3):
            rank.save(step, {"a": b"123"}).wait(60)
        self.assertEqual([s.step for s in rank.steps()], [2, 3])

    def test_nothing_is_used_again_of_a_file_whose_flush_failed(self) -> None:
        _, manifests = self.stores(1)
        with unittest.mock.patch("libweft.checkpoint._store.os.fdatasync", side_effect=OSError(errno.EIO, "a bad disk")):
            with self.assertRaisesRegex(StoreError, "a bad disk"):
                self.rank(manifests).save(1, [shard(0, ROWS)]).wait(60)
        again = self.rank(manifests)
        saving = again.save(1, [shard(0, ROWS)])
        saving.wait(60)
        self.assertEqual((saving.skipped, again.verify()), (0, []))

    def test_what_did_not_end_is_ended_again(self) -> None:
        (store,), manifests = self.stores(1)
        first, second = self.rank(manifests), self.rank(manifests)
        hangs = TimedOutError(c.ERR_TIMED_OUT, "a disk that hangs")
        with unittest.mock.patch.object(_Filled, "end", side_effect=hangs) as end:
            for name in ("a", "b"):
                first._call(0, "open", step=1, name=name, size=100)
            for _ in range(2):
                with self.assertRaisesRegex(OSError, "a disk that hangs"):
                    second._call(0, "sums", step=1, name="a.tmp", places=[])
            self.assertEqual(end.call_count, 2)
            first.close()
            for _ in range(1000):
                if store._gone:
                    break
                time.sleep(0.01)
            self.assertEqual((end.call_count, set(store._held)), (3, {"1/a.tmp", "1/b.tmp"}))
            end.side_effect = None
            second._call(0, "sums", step=1, name="a.tmp", places=[])
            second._call(0, "commit", step=1, manifest={"format": 1, "step": 1, "number": 1, "files": {}})
            self.assertEqual((end.call_count, set(store._held)), (5, {"1/a.tmp"}))

    def test_what_did_not_end_is_still_read_by_others(self) -> None:
        (store,), manifests = self.stores(1)
        ranks = [self.rank(manifests) for _ in range(3)]
        ranks[0].save(1, {"a": b"123"}).wait(60)

        def offer(rank: Checkpoints) -> str:
            return str(rank._call(0, "offer", step=1, files=list(rank.steps()[0].files), names=["a"])["held"])

        hangs = unittest.mock.patch.object(Memory, "deregister", side_effect=TimedOutError(c.ERR_TIMED_OUT, "a disk that hangs"))
        first = offer(ranks[0])
        with hangs, self.assertRaisesRegex(OSError, "a disk that hangs"):
            ranks[0]._call(0, "release", name=first)
        held = [offer(rank) for rank in ranks[1:]]
        ranks[0]._call(0, "release", name=first)
        for number, rank in enumerate(ranks[1:]):
            self.assertEqual([users for _, users in store._read.values()], [2 - number])
            rank._call(0, "release", name=held[number])
        self.assertEqual((store._read, store._held, store._endpoint._memories), ({}, {}, set()))

    def test_a_commit_waits_for_no_end_that_waits_for_it(self) -> None:
        (store,), manifests = self.stores(1)
        reader, rank = self.rank(manifests), self.rank(manifests)
        rank.save(1, {"a": b"123"}).wait(60)
        held = reader._call(0, "offer", step=1, files=list(rank.steps()[0].files), names=["a"])["held"]
        (peer, ends), began, goes_on = store._held[held], threading.Event(), threading.Event()

        def slow() -> None:
            began.set()
            goes_on.wait(60)

        store._held[held] = peer, _Ends(slow, ends)
        ending = threading.Thread(target=store._ended, args=(peer,), daemon=True)
        ending.start()
        began.wait(60)
        store._gone.add(peer)
        commit = threading.Thread(target=rank._call, args=(0, "commit"), daemon=True, kwargs={
            "step": 2, "manifest": {"format": 1, "step": 2, "number": 1, "files": {}}})
        commit.start()
        while store._gone:
            time.sleep(0.01)
        goes_on.set()
        for thread in (ending, commit):
            thread.join(5)
        self.assertEqual((ending.is_alive(), commit.is_alive(), held in store._held), (False, False, False))

    def test_a_finished_file_that_has_changed_is_written_again(self) -> None:
        _, manifests = self.stores(1)
        rank = self.rank(manifests)
        rank.save(1, [shard(0, ROWS)]).wait(60)
        (path,) = self.files(1)
        with open(path, "r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"\xff")
        saving = rank.save(1, [shard(0, ROWS)])
        saving.wait(60)
        self.assertEqual((saving.skipped, rank.verify(), self.files(1)), (0, [], [path]))

    def test_the_process_that_began_to_save_last_has_the_file(self) -> None:
        _, manifests = self.stores(1)
        hung, again = self.rank(manifests), self.rank(manifests)
        hung._call(0, "open", step=1, name="a", size=100)
        again._call(0, "sums", step=1, name="a.tmp", places=[[0, 100]])
        with self.assertRaisesRegex(OSError, "which began later"):
            hung._call(0, "fill", step=1, name="a", runs=[], seconds=1)
        with self.assertRaisesRegex(OSError, "a is not open"):
            again._call(0, "fill", step=1, name="a", runs=[], seconds=1)
        with self.assertRaisesRegex(OSError, "which began later"):
            hung._call(0, "seal", step=1, name="a", final="a.1")
        hung._call(0, "open", step=1, name="a", size=100)
        with self.assertRaisesRegex(OSError, "which began later"):  # what it has found may be written over
            again._call(0, "open", step=1, name="a", size=100, summed=True)
        hung._call(0, "seal", step=1, name="a", final="a.1")
        manifest = {"format": 1, "step": 1, "number": 1, "files": {"a.1": 100}}
        hung._call(0, "commit", step=1, manifest=manifest)
        hung._call(0, "commit", step=1, manifest=manifest)
        with self.assertRaisesRegex(OSError, "has committed step 1 meanwhile"):
            again._call(0, "commit", step=1, manifest={**manifest, "files": {}})
        self.assertEqual(again.steps()[0].files, {"a.1": 100})
        # What was found may have another name by now, or be gone.
        self.assertEqual(again._call(0, "sums", step=1, name="a.tmp", places=[[0, 100]]), [])
        self.assertIs(again._call(0, "use", step=1, name="a.2"), False)

    def test_a_save_says_that_another_process_has_its_file(self) -> None:
        _, manifests = self.stores(1)
        hung, again = self.rank(manifests), self.rank(manifests)
        headers = Writer._headers

        def late(*given: Any) -> Any:
            again._call(0, "open", step=1, name="rank0-0", size=100)
            return headers(*given)

        with unittest.mock.patch.object(Writer, "_headers", late), self.assertRaisesRegex(StoreError, "by another process, which began later"):
            hung.save(1, {"a": bytes(9000)}).wait(60)

    def test_what_fills_a_file_has_ended_when_another_process_has_it(self) -> None:
        _, manifests = self.stores(1)
        hung, again = self.rank(manifests), self.rank(manifests)
        count, piece = 16, 8 << 20
        with hung._endpoint.register(b"\1" * piece, access=Access.REMOTE_READ) as memory:
            exported = base64.b64encode(memory.export()).decode()
            hung._call(0, "open", step=1, name="a", size=count * piece, memories=[exported])
            calls = [hung._begin_call(0, "fill", step=1, name="a", runs=[(0, 0, 0, at * piece, piece)], seconds=20) for at in range(count)]
            again._call(0, "open", step=1, name="a", size=count * piece)
            found = (self.folder / "0/1/a.tmp").read_bytes()
            with self.assertRaises(OSError):
                for call in calls:
                    call.wait()
        self.assertIn(0, found)  # else it was too late
        self.assertEqual((self.folder / "0/1/a.tmp").read_bytes(), found)

    def test_a_slow_store_is_waited_for(self) -> None:
        _, manifests = self.stores(1)
        slow, fill = threading.Lock(), _Filled.fill

        def slowly(*args: Any) -> None:
            with slow:
                time.sleep(0.5)
            fill(*args)

        with unittest.mock.patch.object(_Filled, "fill", slowly):
            # Each alone has neighbours neither in memory nor in the file.
            tensors = {str(i): bytes([i % 251]) * 100 for i in range(5 * RUNS)}
            self.rank(manifests, timeout=1).save(1, tensors, copy=False).wait(60)

    def test_a_store_that_reads_what_all_ranks_have_left_is_waited_for(self) -> None:
        (store,), manifests = self.stores(1)
        rank = self.rank(manifests, ranks=4, timeout=0.5)
        rank.save(1, {"a": bytes(PIECE)}).wait(60)
        (path,) = self.files(1)

        def slowly(read: Any) -> Any:
            def reads(*given: Any, **more: Any) -> Any:
                time.sleep(1)
                return read(*given, **more)

            return reads

        with unittest.mock.patch("libweft.checkpoint._client.SLOWEST", 4 * PIECE), \
                unittest.mock.patch.multiple(store, _use=slowly(store._use), _sums=slowly(store._sums)):
            for left in (path, path.with_name("rank0-0.tmp")):
                path.rename(left)
                again = rank.save(1, {"a": bytes(PIECE)})
                again.wait(60)
                self.assertGreaterEqual(again.skipped, PIECE)

    def stopped(self, manifest: bytes, piece: int, seconds: float) -> "subprocess.Popen[str]":
        """A process that was stopped while a store reads its memory."""
        code = f"""
import base64, os, signal
from libweft import Access
from libweft.checkpoint import Checkpoints
rank = Checkpoints([{manifest!r}], **{OPTIONS!r})
with rank._endpoint.register(b"\\1" * {piece}, access=Access.REMOTE_READ) as memory:
    rank._call(0, "open", step=1, name="a", size={piece}, memories=[base64.b64encode(memory.export()).decode()])
    calls = [rank._begin_call(0, "fill", step=1, name="a", runs=[(0, 0, 0, 0, {piece})] * 8, seconds={seconds}) for _ in range(16)]
    os.kill(os.getpid(), signal.SIGSTOP)
    try:
        [call.wait() for call in calls]
    except OSError as error:
        print(error)
"""
        stopped = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        self.addCleanup(stopped.communicate)
        self.addCleanup(stopped.kill)
        os.waitid(os.P_PID, stopped.pid, os.WSTOPPED)
        return stopped

    def test_a_process_that_is_stopped_does_not_keep_a_file(self) -> None:
        _, manifests = self.stores(1)
        piece = 8 << 20
        stopped = self.stopped(manifests[0], piece, 20)
        rank = self.rank(manifests)
        rank._call(0, "open", step=1, name="a", size=piece)
        found = (self.folder / "0/1/a.tmp").read_bytes()
        os.kill(stopped.pid, signal.SIGCONT)
        self.assertRegex(stopped.communicate(timeout=60)[0], "which began later|has ended")
        self.assertEqual((self.folder / "0/1/a.tmp").read_bytes(), found)

    def test_a_process_that_is_stopped_does_not_hold_others_up(self) -> None:
        _, manifests = self.stores(1)
        rank = self.rank(manifests, timeout=3)
        self.stopped(manifests[0], 8 << 20, 1)
        until = time.monotonic() + 2
        while time.monotonic() < until:
            self.assertEqual(rank.steps(), [])
            time.sleep(0.1)

    def test_a_store_refuses(self) -> None:
        _, manifests = self.stores(1)
        with self.assertRaisesRegex(BlockingIOError, f"another store has {self.folder / '0'}"):
            Store(self.folder / "0", **OPTIONS)
        rank = self.rank(manifests)
        no_step: Any
        call: Any
        part = b'{"rank0-0.1.safetensors": 5}'
        for no_step, kind in (("11", TypeError), (11.5, TypeError), (-1, ValueError)):
            for call, *given in (rank.save, no_step, {"a": b"1"}), (rank.commit, no_step, [part]), (rank.load, {"a": bytearray(1)}, no_step):
                with self.subTest(no_step), self.assertRaisesRegex(kind, "a step is a number"):
                    call(*given)
        with self.assertRaisesRegex(ValueError, "no tensor can be called __metadata__"):
            rank.save(1, {"__metadata__": b"1"})
        wrong: Tuple[Any, ...]
        for wrong in ((-1, "a"), ("../1", "a"), (1, "../../x"), (1, "")):
            with self.subTest(wrong), self.assertRaisesRegex(OSError, "is no n"):
                rank._call(0, "open", step=wrong[0], name=wrong[1], size=1)
        with self.assertRaisesRegex(OSError, "is no request"):
            rank._call(0, "_hold")
        with self.assertRaises(OSError) as caught:
            rank._call(0, "open", step=1, name="a", size=1 << 60)
        self.assertNotEqual(caught.exception.errno, 0)
        self.assertEqual(list(self.folder.glob("0/1/*")), [])
        wrong_manifests: List[bytes]
        for wrong_manifests, error in (
            (manifests + manifests, r"manifests\[0\] and \[1\] are of the same Store"),
            ([manifests[0][:-9]], r"manifests\[0\] is cut off"),
            ([b'{"format": 2, "address": "AA=="}'], r"manifests\[0\] is of a Source, and one of a Store is wanted"),
        ):
            with self.subTest(error), self.assertRaisesRegex(ValueError, error):
                Checkpoints(wrong_manifests, **OPTIONS)
        with self.assertRaisesRegex(ValueError, "rank 2 is not one of 2 ranks"):
            Checkpoints(manifests, rank=2, ranks=2, **OPTIONS)
        with self.assertRaisesRegex(ValueError, "0 stores have rank0-0"):
            rank.commit(1, [part])
        with self.assertRaisesRegex(BufferError, "^w: "):
            rank.save(1, {"w": memoryview(b"1234")[::2]})
        older = self.rank([json.dumps({**json.loads(manifests[0]), "format": 1}).encode()])
        self.assertEqual(older.steps(), [])
        with self.assertRaisesRegex(ValueError, r"manifests\[0\] is of a store of another version"):
            older.save(1, {"a": b"1"})

    def test_the_commands_save_and_load_files(self) -> None:
        given = self.folder / "in"
        wanted = placed([("a", "U8", (101, 300), 30300), ("s", "F32", (), 4), ("n", "F32", (0, 3), 0), ("c", "F32", (7, 2, 2), 112)])
        given.write_bytes(header_for(wanted) + os.urandom(30416))
        command = [sys.executable, "-m", "libweft.checkpoint"]
        places, stores = [], []
        for i in range(2):
            store = subprocess.Popen([*command, "store", "--listen", "127.0.0.1:0", str(self.folder / f"store{i}")],
                                     stdout=subprocess.PIPE, text=True)
            self.addCleanup(store.wait)
            self.addCleanup(store.kill)
            assert store.stdout is not None
            self.addCleanup(store.stdout.close)
            stores.append(store)
            places += ["--store", store.stdout.readline().split()[-1]]

        def run(name: str, *more: str) -> str:
            return subprocess.run([*command, name, *places, *more], check=True, stdout=subprocess.PIPE, text=True).stdout

        run("save", "--step", "4", "--copies", "2", str(given))
        self.assertRegex(run("list"), "step 4: 1 file, .* bytes, 2 copies of each\n")
        self.assertIn("is what was saved", run("verify"))
        run("load", "--out", str(self.folder / "out"))
        self.assertEqual((self.folder / "out").read_bytes()[-30416:], given.read_bytes()[-30416:])
        stores[0].kill()
        stores[0].wait()
        with self.assertRaises(subprocess.CalledProcessError):
            run("save", "--step", "5", str(given))
        for name, said in (("list", "1 copy of each"), ("verify", "all of it that is on the stores that answer is what was saved")):
            done = subprocess.run([*command, name, *places], stdout=subprocess.PIPE, text=True)
            self.assertEqual((done.returncode, said in done.stdout), (3, True), done)
        run("load", "--step", "4", "--shard", "1/2", "--out", str(self.folder / "part"))
        self.assertEqual((self.folder / "part").read_bytes()[4096:4096 + 51 * 300], given.read_bytes()[-30416 + 50 * 300:][:51 * 300])
        damaged = max(self.folder.glob("store1/4/rank*"), key=os.path.getsize)
        with open(damaged, "r+b") as file:
            file.seek(4096)
            file.write(bytes(16))
        done = subprocess.run([*command, "verify", *places], stdout=subprocess.PIPE, text=True)
        self.assertEqual((done.returncode, done.stdout), (1, f"{places[3]}: {damaged.name}: a\n"))

    def test_a_file_stays_until_another_is_loaded(self) -> None:
        out = self.folder / "out"
        out.write_bytes(b"the old one")
        checkpoints = unittest.mock.Mock()
        checkpoints.contents.return_value = [("a", "U8", (8,), 8)]
        checkpoints.load.side_effect = ConnectionError
        with self.assertRaises(ConnectionError):
            commands._load(checkpoints, argparse.Namespace(shard="0/1", step=None, out=str(out)))
        self.assertEqual((list(self.folder.iterdir()), out.read_bytes()), ([out], b"the old one"))

    @unittest.skipIf(FABRIC != "tcp", "once is enough")
    def test_kills_leave_the_old_or_the_new_checkpoint(self) -> None:
        self.assertEqual(checkpoint_kills.torn(self.folder, 6, sweep=True), [])
