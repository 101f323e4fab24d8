"""Buffers where a memory is asked for: what is registered, and for how long."""

import array
import contextlib
import ctypes
import gc
import threading
import unittest
import weakref
from typing import Any, Iterator, List
from unittest import mock

import libweft
from support import PAGE, Pair, pattern
from test_buffers import Tensor


class Storage(Tensor):
    """A tensor that another one shares its bytes with."""

    def detach(self) -> "Storage":
        other = Storage(b"")
        other.memory = self.memory
        return other


class Counted:
    """Registrations since a test began."""

    def __init__(self) -> None:
        self.made = self.ended = 0

    def take(self, _: int, __: str, text: str) -> None:
        self.made += "is registered" in text
        self.ended += "is deregistered" in text

    @property
    def there(self) -> int:
        return self.made - self.ended


@contextlib.contextmanager
def counted() -> Iterator[Counted]:
    counts = Counted()
    libweft.set_log(counts.take, libweft.c.LOG_TRACE)
    try:
        yield counts
    finally:
        libweft.set_log(None)


class Given(Pair):
    def setUp(self) -> None:
        super().setUp()
        self.target = bytearray(2 * PAGE)
        self.remote = self.peer.import_memory(self.there.register(self.target).export())

    def lasting(self) -> List[Any]:
        """What stays registered; nothing else refers to it."""
        made: List[Any] = [memoryview(bytearray(pattern(1))), memoryview(array.array("I", pattern(1))), Tensor(pattern(1)), Storage(pattern(1)),
                self.here.allocate(PAGE)]
        made[-1][:] = pattern(1)
        try:
            import numpy
        except ImportError:
            return made
        return [*made, numpy.frombuffer(pattern(1), dtype=numpy.uint8).copy()]

    def test_each_call_takes_them(self) -> None:
        for source in (pattern(2), bytearray(pattern(2)), array.array("I", pattern(2)), *self.lasting()):
            with self.subTest(type(source)):
                data = pattern(2) if isinstance(source, (bytes, bytearray, array.array)) else pattern(1)
                self.assertEqual(self.here.write(source, self.remote, remote_offset=PAGE).wait(20).bytes, PAGE)
                self.assertEqual(self.target[PAGE:], data)
                self.here.write_pages(source, self.remote, 64, local=[1], remote=[0]).wait(20)
                self.assertEqual(self.target[:64], data[64:128])
                with self.here.prepare_pages(source, self.remote, 32, local=[3], remote=[0]) as prepared:
                    prepared.write().wait(20)
                self.assertEqual(self.target[:32], data[96:128])
                entries = [libweft.Entry(source, self.remote, 8, local_offset=8), libweft.Entry(source, self.remote, 8, remote_offset=8)]
                self.here.write_list(entries).wait(20)
                self.assertEqual(self.target[:16], data[8:16] + data[:8])
                with self.here.prepare_list(entries) as prepared:
                    prepared.write().wait(20)
        back = bytearray(16)
        self.here.read(back, self.remote, 8, local_offset=8).wait(20)
        self.here.read_pages(back, self.remote, 4, local=[0], remote=[1]).wait(20)
        self.here.read_list([libweft.Entry(back, self.remote, 2, local_offset=4)]).wait(20)
        self.assertEqual(back, self.target[4:8] + self.target[:2] + bytes(2) + self.target[:8])
        place = ctypes.create_string_buffer(pattern(3), PAGE)
        self.here.write((ctypes.addressof(place), PAGE), self.remote).wait(20)
        self.assertEqual(self.target[:PAGE], pattern(3))

    def test_an_array_is_registered_once_until_it_goes(self) -> None:
        sources = self.lasting()
        for _ in range(len(sources)):
            source = sources.pop()
            with self.subTest(type(source)), counted() as counts:
                for _ in range(3):
                    self.here.write(source, self.remote).wait(20)
                self.assertEqual((counts.made, counts.ended), (1, 0))
                del source
                gc.collect()
                self.assertEqual((counts.made, counts.ended), (1, 1))

    def test_the_registration_goes_before_the_bytes(self) -> None:
        tensor, seen = Tensor(pattern(1)), []
        with counted() as counts:
            operation = self.here.write(tensor, self.remote)
            weakref.finalize(tensor.memory, lambda: seen.append(counts.there))
            operation.wait(20)
            del tensor, operation
            gc.collect()
            self.assertEqual(seen, [0])

    def test_other_buffers_are_registered_for_one_operation(self) -> None:
        for source in (bytearray(pattern(4)), array.array("I", pattern(4)), pattern(4)):
            with self.subTest(type(source)), counted() as counts:
                for number in (1, 2):
                    operation = self.here.write(source, self.remote)
                    if isinstance(source, bytearray):
                        with self.assertRaises(BufferError):
                            source.append(1)
                    operation.wait(20)
                    del operation
                    self.assertEqual((counts.made, counts.ended), (number, number))
                if isinstance(source, bytearray):
                    source.append(1)

    def test_an_operation_and_a_geometry_keep_what_they_move(self) -> None:
        sources = self.lasting()
        for _ in range(len(sources)):
            source = sources.pop()
            self.target[:] = bytes(2 * PAGE)
            with self.subTest(type(source)), counted() as counts, self.here.create_watch() as watch:
                operations = [self.here.write(source, self.remote, start=(watch, 1))]
                prepared = self.here.prepare_pages(source, self.remote, PAGE, local=[0], remote=[1])
                operations.append(prepared.write(start=(watch, 1)))
                del source, prepared
                gc.collect()
                self.assertEqual((counts.made, counts.ended), (1, 0))
                watch.value = 1
                for operation in operations:
                    operation.wait(20)
                self.assertEqual(self.target, 2 * pattern(1))
                operations.clear()
                del operation
                gc.collect()
                self.assertEqual((counts.made, counts.ended), (1, 1))

    def test_few_are_kept(self) -> None:
        sources = [memoryview(bytearray(pattern(i))) for i in range(12)]
        with mock.patch("libweft._registrations.LIMIT", 4), counted() as counts, self.here.create_watch() as watch:
            for number, source in enumerate(2 * sources):
                self.here.write(source, self.remote).wait(20)
                self.assertEqual(counts.there, min(number + 1, 4))
                self.assertEqual(self.target[:PAGE], pattern(number % 12))
            # One that is under way is none to be given back.
            waiting = self.here.write(sources[0], self.remote, remote_offset=PAGE, start=(watch, 1))
            for source in sources[1:]:
                self.here.write(source, self.remote).wait(20)
            self.assertEqual(counts.there, 5)
            watch.value = 1
            waiting.wait(20)
            self.assertEqual(self.target[PAGE:], pattern(0))

    def test_what_moves_is_registered_anew(self) -> None:
        tensor = Storage(pattern(5))
        with counted() as counts:
            self.here.write(tensor, self.remote).wait(20)
            former = tensor.memory
            tensor.memory = ctypes.create_string_buffer(pattern(6), PAGE)
            self.here.write(tensor, self.remote).wait(20)
            self.assertEqual((counts.made, counts.ended), (2, 1))
            del former
        self.assertEqual(self.target[:PAGE], pattern(6))

    def test_a_registered_tensor_keeps_its_storage(self) -> None:
        tensor = Storage(pattern(5))
        former = weakref.ref(tensor.memory)
        memory = self.here.register([tensor])
        tensor.memory = ctypes.create_string_buffer(pattern(6), PAGE)  # as `p.data = other` does
        gc.collect()
        self.assertIsNotNone(former())
        self.here.write(memory, self.remote).wait(20)
        self.assertEqual(self.target[:PAGE], pattern(5))
        memory.deregister()
        gc.collect()
        self.assertIsNone(former())

    def test_a_view_that_is_released_leaves_its_bytes_in_place(self) -> None:
        whole = bytearray(pattern(7))
        view = memoryview(whole)
        self.here.write(view, self.remote).wait(20)
        view.release()
        with self.assertRaises(BufferError):
            whole.append(1)
        with self.assertRaises(ValueError):
            self.here.write(view, self.remote)
        del view
        whole.append(1)

    def test_threads_and_endpoints_may_share_them(self) -> None:
        sources = [memoryview(bytearray(pattern(i))) for i in range(6)]
        failed: List[BaseException] = []

        def move() -> None:
            try:
                for source in 20 * sources:
                    self.here.write(source, self.remote).wait(20)
            except BaseException as error:
                failed.append(error)

        with mock.patch("libweft._registrations.LIMIT", 2):
            threads = [threading.Thread(target=move) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual(failed, [])
        mine = bytearray(PAGE)
        back = self.there.connect(self.here.address).wait(20).import_memory(self.here.register(mine).export())
        self.there.write(sources[3], back).wait(20)
        self.assertEqual(mine, pattern(3))

    def test_they_may_go_after_the_endpoint(self) -> None:
        source = memoryview(bytearray(pattern(8)))
        operation = self.here.write(source, self.remote)
        self.here.close()
        with contextlib.suppress(libweft.PeerError):
            operation.wait(20)
        del source, operation
        gc.collect()

    def test_peers_cannot_reach_them(self) -> None:
        source: Any = memoryview(bytearray(pattern(9)))
        with self.assertRaisesRegex(TypeError, "memory is of type memoryview: a grant is of a Memory"):
            self.here.grant(source, self.peer)

    def test_a_read_only_buffer_is_no_destination(self) -> None:
        for fixed in (pattern(1), memoryview(pattern(1))):
            with self.assertRaises(BufferError):
                self.here.read(fixed, self.remote)
            with self.assertRaises(BufferError):
                self.here.read_pages(fixed, self.remote, 8, 1)
            with self.assertRaises(BufferError):
                self.here.read_list([libweft.Entry(fixed, self.remote, 8)])
            with self.here.prepare_pages(fixed, self.remote, 8, 1) as prepared, self.assertRaises(BufferError):
                prepared.read()

    def test_errors_name_what_was_given(self) -> None:
        local, mine = self.here.register(bytearray(PAGE)), bytearray(PAGE)
        wrong: Any
        number: Any = 5
        for wrong, said in ((5, "of type int"), (None, "of type NoneType"), ([mine], "of type list"), ("text", "encode it"),
                            (self.peer, "of type libweft.peer.Peer")):
            for call in (lambda: self.here.write(wrong, self.remote), lambda: self.here.read(wrong, self.remote),
                         lambda: self.here.write_pages(wrong, self.remote, 8, 1),
                         lambda: self.here.prepare_pages(wrong, self.remote, 8, 1)):
                with self.subTest(said), self.assertRaisesRegex(TypeError, f"the local memory is .*{said}"):
                    call()
        with self.assertRaisesRegex(TypeError, "the local memory of entry 1 is of type int"):
            self.here.write_list([libweft.Entry(mine, self.remote), libweft.Entry(number, self.remote)])
        for wrong, said in ((b"descriptor", "bytes"), (mine, "bytearray"), (self.peer, "libweft.peer.Peer")):
            for call in (lambda: self.here.write(mine, wrong), lambda: self.here.read_pages(local, wrong, 8, 1),
                         lambda: self.here.write_list([libweft.Entry(mine, wrong, 8)])):
                with self.subTest(said), self.assertRaisesRegex(TypeError, f"the remote memory is of type {said}: .*import_memory"):
                    call()
        with self.assertRaisesRegex(libweft.UsageError, "weft_memory"):
            self.here.write(local, local)  # type: ignore[arg-type]


if __name__ == "__main__":
    unittest.main()
