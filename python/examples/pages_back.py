#!/usr/bin/env python3
"""Requests that end early, and pages that are used again at once: docs/pages-back.md.

Four senders, each a process, write one page after another for as long as they may. The receiver gives each request a
grant, and takes it back: because its user has hung up, its time is over, its sender says nothing, or has died.
"""

import asyncio
import multiprocessing
import os
import signal
import struct
import sys
from multiprocessing.connection import Connection
from typing import Type, TypeVar

import libweft

LENGTH = 1 << 22
REASONS = ("the user hung up", "the time is over", "the sender is silent", "the sender is dead")
E = TypeVar("E")


async def next_event(endpoint: libweft.Endpoint, kind: Type[E]) -> E:
    while not isinstance(event := await endpoint.event(), kind):
        pass
    return event


async def send_pages(pipe: Connection) -> None:
    """Writes for a request until its grant is taken back, or there is nobody to write to."""
    async with libweft.Endpoint() as endpoint:
        local = endpoint.register(b"x" * LENGTH)
        peer = await endpoint.connect(pipe.recv())
        remote = peer.import_memory(pipe.recv())
        request, grant = struct.unpack("<Q16s", (await next_event(endpoint, libweft.Message)).data)
        try:
            while True:
                await endpoint.write(local, remote, grant=grant, notify=request)
        except libweft.RevokedError:
            pass


def sender(pipe: Connection) -> None:
    asyncio.run(send_pages(pipe))


async def take_back(pipe: Connection, pid: int, reason: str) -> bool:
    async with libweft.Endpoint() as endpoint:
        pages = endpoint.allocate(LENGTH)
        memory = endpoint.register(pages, access=libweft.Access.GRANTED)  # nobody reaches it but under a grant
        pipe.send(endpoint.address)
        pipe.send(memory.export())
        peer = (await next_event(endpoint, libweft.PeerUp)).peer
        # All of the memory; page_length and pages would name some. It notifies if the sender or the time ends before.
        over = reason == "the time is over"
        grant = endpoint.grant(memory, peer, access=libweft.Access.REMOTE_WRITE, notify=7, timeout=0.1 if over else None)
        await peer.send(struct.pack("<Q16s", 7, grant))
        received = await next_event(endpoint, libweft.Notification)

        if reason == "the sender is silent":
            os.kill(pid, signal.SIGSTOP)
        if reason == "the sender is dead":
            os.kill(pid, signal.SIGKILL)
        while reason in ("the time is over", "the sender is dead") and not received.status:
            received = await next_event(endpoint, libweft.Notification)

        await endpoint.revoke(grant)
        pages[:] = b"y" * LENGTH  # another request's, from here on

        await asyncio.sleep(0.1)
        late = bytes(pages) != b"y" * LENGTH
        print(f"{reason}: the pages are used again, {'and were written to LATE' if late else 'nothing came later'}")
        return not late


def main() -> int:
    processes, good = multiprocessing.get_context("spawn"), True
    for reason in REASONS:
        here, there = processes.Pipe()
        child = processes.Process(target=sender, args=(there,))
        child.start()
        assert child.pid is not None
        good &= asyncio.run(take_back(here, child.pid, reason))
        child.kill()
        child.join()
    return not good


if __name__ == "__main__":
    sys.exit(main())
