"""Completions on an event loop, by the event fd; two processes."""

import asyncio
import multiprocessing
import os
import signal
import threading
import unittest
from typing import Any
from unittest import mock

import libweft
from support import PAGE, Pair, next_event, open_endpoint, pattern


class Loop(Pair):
    def test_many_at_once_and_events(self) -> None:
        target = bytearray(64 * 16)
        local, remote = self.memories(pattern(1), target)

        async def writes() -> None:
            async def one(i: int) -> None:
                done = await self.here.write(local, remote, 16, local_offset=i, remote_offset=16 * i, notify=i)
                self.assertEqual(done.bytes, 16)

            await asyncio.gather(*(one(i) for i in range(64)))
            seen = set()
            async for event in self.there.events():
                if isinstance(event, libweft.Notification):
                    seen.add(event.value)
                if len(seen) == 64:
                    break
            self.assertEqual(seen, set(range(64)))

        asyncio.run(writes())
        for i in range(64):
            self.assertEqual(target[16 * i:16 * i + 16], pattern(1)[i:i + 16])

    def test_a_late_wait_cancels_the_operation(self) -> None:
        async def late() -> None:
            counter = self.here.create_counter()
            operation = counter.expect(1)
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(operation, 0.05)
            with self.assertRaises(libweft.CanceledError):
                await operation
            kept = counter.expect(1)
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.shield(kept), 0.05)
            self.assertFalse(kept.done)
            counter.destroy()

        asyncio.run(late())

    def test_a_canceled_task_ends_with_its_operation(self) -> None:
        async def cancel() -> None:
            watch = self.here.create_watch()
            local, remote = self.memories(bytearray(PAGE), bytearray(PAGE))
            operation = self.here.write(local, remote, start=(watch, 1))
            task = asyncio.ensure_future(_awaited(operation))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.sleep(0)
            task.cancel()  # the second finds it on its way out
            with self.assertRaises(asyncio.CancelledError):
                await task
            self.assertTrue(operation.done)
            local.deregister()
            watch.free()

        asyncio.run(cancel())

    def test_a_canceled_close_closes(self) -> None:
        canceled = threading.Event()

        class Slow(libweft.Endpoint):
            def close(self, drain: float = 0) -> None:
                canceled.wait(20)
                super().close(drain)

        async def close() -> None:
            endpoint, entered = Slow("host"), asyncio.Event()

            async def use() -> None:
                async with endpoint:
                    entered.set()

            task = asyncio.ensure_future(use())
            await entered.wait()
            task.cancel()
            await asyncio.sleep(0)
            canceled.set()
            with self.assertRaises(asyncio.CancelledError):
                await task
            self.assertTrue(endpoint.closed)

        asyncio.run(close())

    def test_one_loop_after_the_other_but_not_two_at_once(self) -> None:
        async def send() -> None:
            await self.peer.send(b"x")

        asyncio.run(send())
        asyncio.run(send())

        async def beside() -> None:
            await self.peer.send(b"x")
            caught = []

            def other() -> None:
                try:
                    asyncio.run(send())
                except RuntimeError as error:
                    caught.append(error)

            await asyncio.get_running_loop().run_in_executor(None, other)
            self.assertIn("another event loop", str(caught))

        asyncio.run(beside())

    def test_each_loop_watches_a_thread_that_leads(self) -> None:
        progress = self.here._completions
        self.here.poll()

        async def attached(seconds: float) -> None:
            progress.attach()
            await asyncio.sleep(seconds)

        with mock.patch.object(progress, "_lead", lambda *_: None), mock.patch.object(progress, "_watch") as watch:
            asyncio.run(attached(0))
            watch.assert_not_called()
            asyncio.run(attached(0.3))
            watch.assert_called_once()

    def test_a_loop_and_threads_share_an_endpoint(self) -> None:
        def blocking() -> None:
            for _ in range(200):
                self.peer.send(b"thread").wait(20)

        async def both() -> None:
            threads = [threading.Thread(target=blocking) for _ in range(3)]
            for thread in threads:
                thread.start()
            for _ in range(200):
                await asyncio.wait_for(self.peer.send(b"loop"), 20)
            for thread in threads:
                await asyncio.get_running_loop().run_in_executor(None, thread.join)

        asyncio.run(both())
        self.assertEqual(self.here.statistics().messages_sent, 800)

    def test_a_close_ends_events_and_operations(self) -> None:
        async def close() -> None:
            counter = self.here.create_counter()

            async def listen() -> "list[libweft.Event]":
                return [event async for event in self.here.events()]

            listener = asyncio.ensure_future(listen())
            waiter = asyncio.ensure_future(_awaited(counter.expect(1)))
            await asyncio.sleep(0.05)
            async with self.here:
                pass
            with self.assertRaises(libweft.CanceledError):
                await asyncio.wait_for(waiter, 20)
            events = await asyncio.wait_for(listener, 20)
            self.assertEqual([type(event) for event in events], [libweft.PeerDown])

        asyncio.run(close())

    def test_manual_progress_has_no_event_fd(self) -> None:
        async def awaits() -> None:
            with open_endpoint(progress=libweft.Progress.MANUAL) as endpoint:
                await endpoint.connect(self.there.address)

        with self.assertRaises(libweft.UsageError) as caught:
            asyncio.run(awaits())
        self.assertEqual(caught.exception.status, libweft.c.ERR_UNSUPPORTED)


async def _awaited(operation: "libweft.Operation[Any]") -> Any:
    return await operation


class Manual(unittest.TestCase):
    def test_waits_drive_the_rails(self) -> None:
        here, there = open_endpoint(progress=libweft.Progress.MANUAL), open_endpoint()
        with there, here:
            peer = here.connect(there.address).wait(20)
            peer.send(b"by hand").wait(20)
            self.assertEqual(next_event(there, libweft.Message).data, b"by hand")


def decode(pipe: Any) -> None:
    """The other process: has memory, and answers notifications until its peer is down."""

    async def serve() -> None:
        async with open_endpoint() as endpoint:
            pages = endpoint.allocate(8 * PAGE)
            pipe.send((endpoint.address, endpoint.register(pages).export()))
            async for event in endpoint.events():
                if isinstance(event, libweft.Notification):
                    await event.peer.send(bytes(pages[event.value * PAGE:][:PAGE]))
                elif isinstance(event, libweft.PeerDown):
                    return

    asyncio.run(serve())


class Processes(unittest.TestCase):
    def setUp(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.child = context.Process(target=decode, args=(theirs,))
        self.child.start()
        self.addCleanup(self.child.kill)
        self.assertTrue(self.pipe.poll(60))
        self.address, self.descriptor = self.pipe.recv()

    def test_pages_go_to_another_process_and_come_back(self) -> None:
        async def prefill() -> None:
            async with open_endpoint() as endpoint:
                peer = await endpoint.connect(self.address)
                local = endpoint.register([pattern(i) for i in range(8)])
                remote = peer.import_memory(self.descriptor)
                events = endpoint.events()
                for i in range(8):
                    await endpoint.write(local, remote, PAGE, local_offset=i * PAGE, remote_offset=i * PAGE, notify=i)
                    event = await events.__anext__()
                    assert isinstance(event, libweft.Message)
                    self.assertEqual(event.data, pattern(i))

        asyncio.run(prefill())
        self.child.join(30)
        self.assertEqual(self.child.exitcode, 0)

    def test_killed_peer_ends_its_waiters(self) -> None:
        async def lose() -> None:
            async with open_endpoint() as endpoint:
                peer = await endpoint.connect(self.address)
                counted = endpoint.create_counter().expect(1)
                os.kill(self.child.pid or 0, signal.SIGKILL)
                event = await asyncio.wait_for(endpoint.event(), 30)
                assert isinstance(event, libweft.PeerDown)
                self.assertEqual((event.peer, event.status), (peer, libweft.c.ERR_PEER_LOST))
                self.assertIn("died", event.reason)
                with self.assertRaises(libweft.WeftError):
                    await peer.send(b"anybody?")
                self.assertFalse(counted.done)

        asyncio.run(lose())


if __name__ == "__main__":
    unittest.main()
