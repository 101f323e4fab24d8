"""What can be registered, and for how long it is held."""

import array
import ctypes
import gc
import mmap
import unittest
from typing import Any, Tuple, Type

import libweft
from support import PAGE, Pair, next_event, open_endpoint, pattern


class Tensor:
    """As torch's, as far as Weft looks."""

    def __init__(self, data: bytes, contiguous: bool = True, lazy: bool = False) -> None:
        self.memory = ctypes.create_string_buffer(data, len(data))
        self.contiguous = contiguous
        self.lazy = lazy

    def data_ptr(self) -> int:
        return ctypes.addressof(self.memory)

    def numel(self) -> int:
        return len(self.memory) // 2

    def element_size(self) -> int:
        return 2

    def is_contiguous(self) -> bool:
        return self.contiguous

    def is_conj(self) -> bool:
        return self.lazy

    is_neg = is_conj


class OfDevice(Tensor):
    """A tensor that the CPU cannot read."""

    is_cpu = False

    def data_ptr(self) -> int:
        raise AssertionError("the CPU reads a GPU's memory")

    def detach(self) -> "OfDevice":
        return self

    def cpu(self) -> Tensor:
        return Tensor(self.memory.raw)


class Indexes:
    """As a tensor of indexes."""

    def __init__(self, kind: str, *indexes: int) -> None:
        self.memory = array.array({"torch.int64": "q", "torch.int32": "i"}[kind], indexes)
        self.dtype = kind

    def detach(self) -> "Indexes":
        return self

    cpu = contiguous = detach

    def dim(self) -> int:
        return 1

    def numel(self) -> int:
        return len(self.memory)

    def data_ptr(self) -> int:
        return self.memory.buffer_info()[0]


class Buffers(Pair):
    def arrives(self, source: Any, expected: bytes) -> None:
        target = bytearray(len(expected))
        local, remote = self.memories(source, target)
        self.assertEqual(local.lengths, [len(expected)])
        self.here.write(local, remote).wait(20)
        self.assertEqual(bytes(target), expected)

    def test_all_that_has_bytes(self) -> None:
        data = pattern(1)
        mapped = mmap.mmap(-1, PAGE)
        mapped[:] = data
        place = ctypes.create_string_buffer(data, PAGE)
        shaped = memoryview(data).cast("I", (8, PAGE // 32))
        for source in (data, bytearray(data), array.array("I", data), mapped, memoryview(data), shaped, place,
                       Tensor(data), (ctypes.addressof(place), PAGE)):
            with self.subTest(type(source)):
                self.arrives(source, data)

    def test_numpy(self) -> None:
        try:
            import numpy
        except ImportError:
            self.skipTest("no numpy here")
        source = numpy.arange(1024, dtype=numpy.float32).reshape(4, 256)
        self.arrives(source, source.tobytes())
        local, remote = self.memories(source, bytearray(PAGE))
        pages = numpy.array([[3, 1], [7, 4]], dtype=numpy.uint32)
        for kind in (numpy.uint32, numpy.int32, numpy.int64, numpy.uint64, numpy.uint8):
            for indexes in (pages.astype(kind)[0], pages.astype(kind)[:, 1]):
                self.assertEqual(self.page_at(indexes), bytes(indexes.astype(numpy.uint8)))
        self.assertEqual(self.page_at(numpy.array([], dtype=numpy.int64)), b"")
        for wrong in (pages, pages[0] > 1, pages[0] * 1.0):
            with self.assertRaises(TypeError):
                self.page_at(wrong)
        with self.assertRaises(ValueError):
            self.page_at(numpy.array([5, -1]))
        self.here.write_pages(local, remote, int(numpy.int64(64)), local=pages[0]).wait(20)
        with self.assertRaises(ValueError):
            self.here.register(source[:, ::2])
        block = numpy.frombuffer(self.here.allocate(PAGE), dtype=numpy.uint64)
        block[:] = 7
        self.arrives(block, block.tobytes())

    def page_at(self, indexes: Any) -> bytes:
        """Where pages of a byte come from that are written with these indexes."""
        target = bytearray(8)
        local, remote = self.memories(bytes(range(200)), target)
        done = self.here.write_pages(local, remote, 1, local=indexes).wait(20)
        return bytes(target[:done.bytes])

    def test_indexes_of_any_integers(self) -> None:
        for indexes in ([3, 199], (3, 199), range(3, 200, 196), b"\3\xc7", Indexes("torch.int64", 3, 199),
                        Indexes("torch.int32", 3, 199), *(array.array(kind, [3, 199]) for kind in "HiIlLqQ"),
                        memoryview(array.array("q", [3, 7, 199, 7]))[::2]):
            with self.subTest(indexes):
                self.assertEqual(self.page_at(indexes), b"\3\xc7")
        for wrong in ([-1], array.array("i", [-1]), array.array("q", [1, -1]), array.array("q", [1 << 32]),
                      Indexes("torch.int64", 1, 1 << 32), Indexes("torch.int32", -1)):
            with self.subTest(wrong), self.assertRaisesRegex(ValueError, "the local pages"):
                self.page_at(wrong)
        for kind in ([1.0], array.array("d", [1]), memoryview(bytes(8)).cast("?"), memoryview(bytes(8)).cast("I", (2, 1)),
                     "ab"):
            with self.subTest(kind), self.assertRaises(TypeError):
                self.page_at(kind)
        for empty in (range(0), array.array("q"), Indexes("torch.int64")):
            self.assertEqual(self.page_at(empty), b"")

    def test_torch(self) -> None:
        try:
            import torch  # type: ignore[import-not-found,unused-ignore]
        except ImportError:
            self.skipTest("no torch here")
        source = torch.arange(2048, dtype=torch.int32).to(torch.bfloat16)
        self.arrives(source, source.view(torch.uint8).numpy().tobytes())
        with self.assertRaises(BufferError):
            self.here.register(source.reshape(4, 512)[:, ::2])

    def test_empty_and_fragmented_buffers_are_refused(self) -> None:
        wrongs: Tuple[Tuple[Any, Type[Exception]], ...] = (
                (object(), TypeError), (memoryview(bytearray(8))[::2], BufferError), ((1, 2, 3), TypeError),
                (Tensor(b"12", contiguous=False), BufferError), (Tensor(b"12", lazy=True), BufferError), ((-1, 5), TypeError))
        for wrong, error in wrongs:
            with self.subTest(wrong), self.assertRaises(error):
                self.here.register(wrong)
        with self.assertRaises(libweft.UsageError):
            self.here.register([])
        with self.assertRaises(libweft.UsageError):
            self.here.register((1, PAGE))

    def test_a_tensor_of_a_gpu_is_sent_from_the_host(self) -> None:
        self.peer.send(OfDevice(pattern(1))).wait(20)
        self.assertEqual(next_event(self.there, libweft.Message).data, pattern(1))

    def test_read_only_memory_cannot_be_written_by_peers(self) -> None:
        data = bytes(PAGE)
        with self.assertRaises(BufferError):
            self.here.register(data, access=libweft.Access.REMOTE_WRITE)
        local, remote = self.memories(bytearray(PAGE), data)
        with self.assertRaises(libweft.PeerError) as caught:
            self.here.write(local, remote).wait(20)
        self.assertEqual(caught.exception.status, libweft.c.ERR_REMOTE_ACCESS)

    def test_a_buffer_is_held_until_it_is_deregistered(self) -> None:
        buffer = bytearray(PAGE)
        with self.here.register([bytearray(5), buffer]):
            with self.assertRaises(BufferError):
                buffer.append(1)
        buffer.append(1)
        nothing: Any = object()
        try:
            self.here.register([buffer, nothing])
        except TypeError:
            pass
        buffer.append(1)

    def test_a_buffer_lives_as_long_as_its_registration(self) -> None:
        target = self.there.register(bytearray(PAGE))
        remote = self.peer.import_memory(target.export())
        gc.collect()
        local = self.here.register(bytearray(pattern(5)))
        self.here.write(local, remote).wait(20)
        back = bytearray(PAGE)
        self.here.read(self.here.register(back), remote).wait(20)
        self.assertEqual(back, pattern(5))

    def test_a_block_is_freed_with_its_last_view(self) -> None:
        block = self.here.allocate(PAGE)
        first = ctypes.addressof(ctypes.c_ubyte.from_buffer(block))
        self.assertEqual(bytes(block), bytes(PAGE))
        part = block[8:16]
        del block
        gc.collect()
        part[0] = 1  # still there
        del part
        gc.collect()
        # Freed already: a second time is an error.
        self.assertEqual(libweft.lib.weft_memory_free(self.here.handle, first), libweft.c.ERR_INVALID)

    def test_a_block_that_outlives_all_endpoints_is_freed_by_the_next_allocation(self) -> None:
        block = self.here.allocate(PAGE)
        first = ctypes.addressof(ctypes.c_ubyte.from_buffer(block))
        self.here.close()
        self.there.close()
        del block
        gc.collect()
        with open_endpoint() as another:
            another.allocate(PAGE)
            self.assertEqual(libweft.lib.weft_memory_free(another.handle, first), libweft.c.ERR_INVALID)


if __name__ == "__main__":
    unittest.main()
