"""Long transfers in parts, whose progress is seen."""

import asyncio
import itertools
from typing import Any, Callable, Iterator, List

import libweft
from support import PAGE, Pair, open_endpoint, pattern

COUNT = 20


class InParts(Pair):
    def setUp(self) -> None:
        super().setUp()
        self.source, self.target = pattern(3, COUNT * PAGE), bytearray(COUNT * PAGE)
        self.local, self.remote = self.memories(self.source, self.target)
        self.begun: List[libweft.Operation[libweft.Completion]] = []

    def writes(self, length: int = COUNT * PAGE) -> Iterator[Callable[[], libweft.Operation[libweft.Completion]]]:
        def write(at: int) -> libweft.Operation[libweft.Completion]:
            self.begun.append(self.here.write(self.local, self.remote, PAGE, local_offset=at, remote_offset=at))
            return self.begun[-1]

        return (lambda at=at: write(at) for at in range(0, length, PAGE))  # type: ignore[misc]

    def test_each_step_moves_a_part(self) -> None:
        moved = 0
        for part in libweft.Parts(self.writes(), in_flight=3):
            self.assertEqual(self.target[moved:moved + PAGE], self.source[moved:moved + PAGE])
            moved += part.bytes
            self.assertLessEqual(len(self.begun) * PAGE, moved + 3 * PAGE)
        self.assertEqual((moved, bytes(self.target)), (COUNT * PAGE, self.source))

    def test_on_a_loop(self) -> None:
        async def moved() -> int:
            return sum([part.bytes async for part in libweft.Parts(self.writes())])

        self.assertEqual(asyncio.run(moved()), COUNT * PAGE)
        self.assertEqual(self.target, self.source)

    def test_one_that_fails_ends_the_others(self) -> None:
        counter = self.here.create_counter()
        begun = []

        def never() -> "libweft.Operation[None]":
            begun.append(counter.expect(1))
            return begun[-1]

        def fails() -> "libweft.Operation[None]":
            return counter.expect(1, timeout=0.05)

        with self.assertRaises(libweft.TimedOutError):
            for _ in libweft.Parts([fails, never, never]):
                self.fail("nothing ends well")

        async def on_a_loop() -> None:
            async for _ in libweft.Parts([fails, never, never]):
                self.fail("nothing ends well")

        with self.assertRaises(libweft.TimedOutError):
            asyncio.run(on_a_loop())
        self.assertEqual(len(begun), 4)
        for operation in begun:
            with self.assertRaises(libweft.CanceledError):
                operation.result()
        with self.assertRaises(libweft.UsageError):
            list(libweft.Parts(self.writes(COUNT * PAGE + 1)))
        self.assertTrue(all(operation.done for operation in self.begun))

    def test_leaving_the_loop_ends_the_parts(self) -> None:
        for _ in itertools.islice(libweft.Parts(self.writes()), 2):
            pass
        self.assertEqual(len(self.begun), 5)
        self.assertTrue(all(operation.done for operation in self.begun))

    def test_leaving_async_with_ends_the_parts(self) -> None:
        counter, begun = self.here.create_counter(), []

        def never() -> "libweft.Operation[None]":
            begun.append(counter.expect(1))
            return begun[-1]

        def at_once() -> "libweft.Operation[None]":
            return counter.expect(0)

        async def leave(canceled: bool, fails: bool) -> None:
            task: Any = asyncio.current_task()
            try:
                async with libweft.Parts([at_once, never, never]) as parts:
                    async for _ in parts:
                        if canceled:
                            asyncio.get_running_loop().call_soon(task.cancel)
                        if fails:
                            raise InterruptedError
                        break
            finally:
                self.assertEqual([operation.done for operation in begun], [True, True])

        ends = {(False, True): InterruptedError, (True, False): asyncio.CancelledError, (True, True): asyncio.CancelledError}
        for (canceled, fails), end in ends.items():
            with self.subTest(canceled=canceled, fails=fails), self.assertRaises(end):
                begun.clear()
                asyncio.run(leave(canceled, fails))
        begun.clear()
        asyncio.run(leave(False, False))

    def test_without_room_they_wait(self) -> None:
        with open_endpoint(max_transfers=2) as small:
            peer = small.connect(self.there.address).wait(20)
            remote = peer.import_memory(self.there.register(self.target).export())
            local = small.register(self.source)
            writes = (lambda at=at: small.write(local, remote, PAGE, local_offset=at, remote_offset=at)
                      for at in range(0, COUNT * PAGE, PAGE))
            self.assertEqual(sum(part.bytes for part in libweft.Parts(writes, in_flight=8)), COUNT * PAGE)
        with self.assertRaises(ValueError):
            libweft.Parts([], in_flight=0)
