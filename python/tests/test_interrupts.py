"""Exceptions out of signal handlers, canceled waits, and closes in handlers: a short form of `interrupts.py`."""

import asyncio
import sys
import unittest

import interrupts
from support import FABRIC, Pair


@unittest.skipUnless(FABRIC == "host", "it is the same over every fabric")
class Interrupts(Pair):
    @unittest.skipIf(sys.version_info < (3, 11), "a function's return can be interrupted")
    def test_an_interrupt_loses_nothing(self) -> None:
        self.assertEqual(interrupts.lost(240), 0)

    def test_a_close_in_a_handler_ends(self) -> None:
        self.assertEqual(interrupts.hung(1), 0)

    def test_canceled_waits_leave_nothing(self) -> None:
        async def cancel() -> None:
            for _ in range(50):
                task = asyncio.ensure_future(self.here.event())
                await asyncio.sleep(0)
                task.cancel()
                await asyncio.sleep(0)
            self.assertEqual(len(self.here._completions._listeners), 0)
            self.here._completions.detach()

        asyncio.run(cancel())


if __name__ == "__main__":
    unittest.main()
