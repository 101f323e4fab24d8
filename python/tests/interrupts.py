"""Exceptions out of signal handlers, thousands of them: what is lost by them.

    python3 interrupts.py [INTERRUPTS=10000]     prints python_interrupts_lost and python_closes_hung, and leaves them in
                                                 target/figures: with the compiled module and without, if it is built

A timer's handler raises while the main thread submits, waits, takes events or runs an event loop. A completion is lost if
its operation does not end; a message or a notification, if its sender was told that it has arrived and it never comes out,
or comes twice, or out of turn. A close hangs if a process that closes its endpoints in a handler does not end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from typing import Any, Callable, List, Optional

import libweft
from support import open_endpoint

PATIENCE = 20.0


class Tick(BaseException):
    """What the handler raises, as Ctrl-C would."""


class Ticks:
    """Interrupts the main thread; counts how often."""

    def __init__(self) -> None:
        self.count = 0
        self._raises = False

    def _tick(self, *_: Any) -> None:
        if self._raises:
            self.count += 1
            raise Tick

    def __enter__(self) -> Ticks:
        self._before = signal.signal(signal.SIGALRM, self._tick)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGALRM, self._before)

    def during(self, what: Callable[[], Any]) -> None:
        """Calls it, and interrupts it some time afterwards; now and then a second time, in what handles the first."""
        try:
            self._raises = True
            again = random.choice((0.2, 0.2, 0.2, 1e-5, 1e-4))
            signal.setitimer(signal.ITIMER_REAL, random.choice((1e-4, 1e-3)) * (random.random() + 1e-2), again)
            what()
        except Tick:
            pass
        calm = False
        while not calm:
            try:
                self._raises = False
                signal.setitimer(signal.ITIMER_REAL, 0)
                calm = True
            except Tick:
                pass


class Ledger:
    def __init__(self) -> None:
        self.here, self.there = open_endpoint(), open_endpoint()
        self.peer = self.here.connect(self.there.address).wait(PATIENCE)
        self.local = self.here.register(bytearray(1 << 16))
        self.remote = self.peer.import_memory(self.there.register(bytearray(1 << 16)).export())
        #: Values of messages and notifications: of those whose operation has ended well, and of those that came.
        self.sent: List[int] = []
        self.came: List[int] = []
        self.lost = 0
        self.next = 0

    def begin(self) -> "libweft.Operation[Any]":
        """A message or a notification, with the next value."""
        self.next += 1
        if self.next % 2:
            return self.peer.send(self.next.to_bytes(8, "little"), timeout=PATIENCE)
        return self.here.write(self.local, self.remote, 1 << 12, notify=self.next, timeout=PATIENCE)

    def ended(self, operation: "Optional[libweft.Operation[Any]]", value: int) -> None:
        if operation is None:
            return  # the call was interrupted: nobody knows whether it was accepted
        try:
            operation.wait(PATIENCE / 4)
            self.sent.append(value)
        except libweft.StillRunningError:
            self.lost += 1
        except libweft.CanceledError:
            pass  # with the task that awaited it

    def take(self, event: "Optional[libweft.Event]") -> None:
        if isinstance(event, libweft.Message):
            self.came.append(int.from_bytes(event.data, "little"))
        elif isinstance(event, libweft.Notification):
            self.came.append(event.value)

    def close(self) -> int:
        """What was lost."""
        while True:
            event = self.there.wait_event(0.3)
            if event is None:
                break
            self.take(event)
        # Messages come in order. (A notification that followed one whose call was interrupted may overtake it.)
        messages = [value for value in self.came if value % 2]
        late = sum(a >= b for a, b in zip(messages, messages[1:])) + len(self.came) - len(set(self.came))
        missing = set(self.sent) - set(self.came)
        running = self.here.statistics().active
        self.here.close()
        self.there.close()
        if self.lost + late + len(missing) + running:
            print(f"{self.lost} operations did not end, {late} out of turn, {len(missing)} missing, {running} left over", file=sys.stderr)
        return self.lost + late + len(missing) + running


def waits(ticks: Ticks, count: int) -> int:
    """The main thread waits for each operation, and takes the other side's events."""
    ledger, until = Ledger(), ticks.count + count
    operation: Any = None
    event: Any = None

    def step() -> None:
        nonlocal operation, event
        operation = ledger.begin()
        operation.wait()
        ledger.there.poll()
        event = ledger.there.wait_event(0.002)

    while ticks.count < until:
        operation = event = None
        value = ledger.next + 1
        ticks.during(step)
        ledger.take(event)
        ledger.ended(operation, value)
    return ledger.close()


def threads(ticks: Ticks, count: int) -> int:
    """Other threads wait and take events while the main thread, which leads now and then, is interrupted."""
    ledger, until = Ledger(), ticks.count + count
    stop = threading.Event()
    counter = ledger.here.create_counter()

    def send() -> None:
        while not stop.is_set():
            value = ledger.next + 1
            ledger.ended(ledger.begin(), value)

    def take() -> None:
        while not stop.is_set():
            ledger.take(ledger.there.wait_event(0.01))

    workers = [threading.Thread(target=work) for work in (send, take)]
    for worker in workers:
        worker.start()

    def wait() -> None:
        try:
            counter.expect(1, timeout=0.01).wait()
        except libweft.TimedOutError:
            pass

    while ticks.count < until:
        ticks.during(wait)
    stop.set()
    for worker in workers:
        worker.join(2 * PATIENCE)
        ledger.lost += worker.is_alive()
    time.sleep(0.02)
    ledger.here.poll()
    return ledger.close()


def loops(ticks: Ticks, count: int) -> int:
    """The main thread runs an event loop."""
    ledger, until = Ledger(), ticks.count + count
    loop = asyncio.new_event_loop()
    operation: Any = None
    event: Any = None
    task: "Optional[asyncio.Task[None]]" = None

    async def step() -> None:
        nonlocal operation, event
        operation = ledger.begin()
        await operation
        event = await ledger.there.event()

    async def settle() -> None:
        if operation is not None and not operation.done:
            await operation
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=1)

    def run() -> None:
        nonlocal task
        task = loop.create_task(step())
        with contextlib.suppress(RuntimeError, OSError):  # asyncio's own: see below
            loop.run_until_complete(task)

    while ticks.count < until:
        operation = event = task = None
        value = ledger.next + 1
        ticks.during(run)
        try:
            loop.run_until_complete(asyncio.wait_for(settle(), 0.5))
        except (asyncio.TimeoutError, RuntimeError, OSError):
            # asyncio is not made for this: it loses what it was to run, takes an interrupted loop for running, and
            # forgets which descriptors it has given to epoll.
            asyncio._set_running_loop(None)
            ledger.here._completions.detach()
            ledger.there._completions.detach()
            loop = asyncio.new_event_loop()
        ledger.take(event)
        ledger.ended(operation, value)
    ledger.here._completions.detach()
    ledger.there._completions.detach()
    return ledger.close()


def lost(count: int) -> int:
    """How much is lost in that many interrupts, a third of them of each kind."""
    total = 0
    with Ticks() as ticks:
        for kind in (waits, threads, loops):
            before = ticks.count
            missing = kind(ticks, -(-count // 3))
            print(f"{kind.__name__}: {ticks.count - before} interrupts, {missing} lost", file=sys.stderr)
            total += missing
    return total


#: Programs whose handler closes both endpoints, or whose child ends by itself, while something goes on.
CLOSING = {
    "poll and events": """
        while not closed:
            try: peer.send(b'x' * 100)
            except libweft.RetryError: pass  # there is no room for more
            a.poll(); b.wait_event(0)""",
    "waits": "while not closed: peer.send(b'x' * 100).wait(1); b.wait_event(1)",
    "memory": "while not closed: a.register(bytearray(4096)).deregister()",
    "beside threads": """
        def use():
            while not closed:
                try: peer.send(b'x').wait(1); b.wait_event(0.001)
                except libweft.WeftError: pass
        threads = [threading.Thread(target=use) for _ in range(3)]
        for thread in threads: thread.start()
        while not closed: peer.send(b'y').wait(1); b.wait_event(0.001)""",
    "loop": """
        async def use():
            while not closed: await peer.send(b'x'); await b.event()
        asyncio.run(use())""",
    "forked": """
        faulthandler.cancel_dump_traceback_later()  # which hangs in a child
        def use():
            while not closed:
                try: peer.send(b'x').wait(1); b.wait_event(0.001)
                except libweft.WeftError: pass
        threads = [threading.Thread(target=use) for _ in range(3)]
        for thread in threads: thread.start()
        for _ in range(20):
            child = os.fork()
            if child == 0: sys.exit(0)
            for _ in range(1000):
                if os.waitpid(child, os.WNOHANG)[0]: break
                time.sleep(0.01)
            else:
                os.kill(child, 9); os._exit(3)
        while not closed: time.sleep(0.01)""",
}
PROGRAM = """if True:
        import asyncio, faulthandler, logging, os, random, signal, sys, threading, time, warnings
        import libweft, support
        warnings.simplefilter("ignore")
        faulthandler.dump_traceback_later({patience}, exit=True)
        a, b = support.open_endpoint(), support.open_endpoint()
        peer = a.connect(b.address).wait(20)
        closed = False
        def handler(*_):
            global closed
            closed = True
            b.close(); a.close()
        signal.signal(signal.SIGTERM, handler)
        threading.Timer(0.02 + random.random() * 0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
        try:
{body}
        except libweft.WeftError:
            pass
        assert a.closed and b.closed and not a._ending and not b._ending
        print("ended well")
"""


def hung(rounds: int) -> int:
    """How many processes, of that many of each kind, do not end."""
    total = 0
    for kind, body in CLOSING.items():
        for _ in range(rounds):
            # It finds what this process has found.
            ended = subprocess.run([sys.executable, "-c", PROGRAM.format(body=textwrap.indent(textwrap.dedent(body).strip("\n"), 12 * " "), patience=PATIENCE)], text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=6 * PATIENCE,
                                   env=dict(os.environ, PYTHONPATH=os.pathsep.join(map(os.path.abspath, sys.path))))
            if ended.returncode or "ended well" not in ended.stdout:
                total += 1
                print(f"{kind}: {ended.returncode}, {ended.stderr[-2000:]}", file=sys.stderr)
    return total


def both(many: int) -> None:
    """With the compiled module, and by ctypes alone."""
    folder = pathlib.Path(__file__).resolve().parents[2] / "target/figures"
    folder.mkdir(parents=True, exist_ok=True)
    ways = [subprocess.run([sys.executable, __file__, str(many)], env=dict(os.environ, WEFT_PYTHON_PURE=pure), stdout=subprocess.PIPE,
                           check=True, text=True).stdout.split() for pure in "01"]
    for name, values in zip(("python_interrupts_lost", "python_closes_hung"), zip(*ways)):
        value = sum(map(int, values))
        print(f"{name:28}{value}", flush=True)
        (folder / name).write_text(f"{value}\n")


if __name__ == "__main__":
    many = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    if "WEFT_PYTHON_PURE" in os.environ:
        print(lost(many), hung(max(many // 1000, 1)))
    else:
        both(many)
