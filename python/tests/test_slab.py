"""Pages of caches in slots of a file, under grants."""

from __future__ import annotations

import json
import tempfile
import threading
import time
import unittest
import unittest.mock
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, List, Tuple

import libweft
from libweft._calls import HEAD, IS_ANSWER, IS_LAST, Calls
from libweft.slab import Slab, Slots
from support import FABRIC, PAGE, next_event, open_endpoint, pattern

OPTIONS: Dict[str, Any] = {"fabric": FABRIC, "rails": "lo" if FABRIC == "tcp" else None}


class Slabs(unittest.TestCase):
    def setUp(self) -> None:
        file = tempfile.NamedTemporaryFile(dir="/var/tmp")
        self.addCleanup(file.close)
        self.slab = Slab(file.name, 4 * PAGE + 17, **OPTIONS)
        self.addCleanup(self.slab.close)
        self.slots = self.engine()
        self.pages = bytearray(b"".join(pattern(i) for i in range(8)) + bytes(8 * PAGE))
        self.memory = self.slots.endpoint.register(self.pages)

    def engine(self, **options: Any) -> Slots:
        slots = Slots(self.slab.manifest(), PAGE, **OPTIONS, **options)
        self.addCleanup(slots.close)
        return slots

    def page(self, number: int) -> bytes:
        return bytes(self.pages[number * PAGE:(number + 1) * PAGE])

    def test_pages_come_back_until_they_are_evicted(self) -> None:
        self.assertEqual(self.slots.put(["a", "b", "c", "d"], self.memory, [0, 1, 2, 3]), 4)
        self.assertEqual(self.slots.put(["a", "b"], self.memory, [5, 5]), 0)
        self.assertEqual(self.slots.get(["d", "x", "a"], self.memory, [8, 9, 10]), [True, False, True])
        self.assertEqual([self.page(i) for i in (8, 10)], [pattern(3), pattern(0)])
        self.assertEqual(self.slots.put(["e"], self.memory, [4]), 1)  # b was used longest ago
        self.assertEqual(self.slots.has(["a", "b", "c", "d", "e"]), [True, False, True, True, True])
        with self.assertRaisesRegex(OSError, "slots of 5 bytes are wanted"):
            Slots(self.slab.manifest(), 5, **OPTIONS)
        with self.assertRaisesRegex(ValueError, "is of a Store, and one of a Slab is wanted"):
            Slots(b'{"checkpoints": ""}', PAGE, **OPTIONS)

    def test_a_key_that_is_given_twice_has_one_slot(self) -> None:
        self.assertEqual(self.slots.put(["a", "a", "b"], self.memory, [0, 5, 1]), 2)
        self.assertEqual(self.slots.put(["c", "d"], self.memory, [2, 3]), 2)
        self.assertEqual(self.slots.has(["a", "b", "c", "d"]), [True] * 4)

    def test_slots_come_back_after_a_revocation_that_failed(self) -> None:
        failing = unittest.mock.Mock(side_effect=libweft.WeftError(libweft.c.ERR_TIMED_OUT, "the disk hangs"))
        with unittest.mock.patch.object(self.slab._endpoint, "revoke", failing), self.assertRaises(OSError):
            self.slots.put(["a", "b"], self.memory, [0, 1])
        self.assertEqual(self.slots.put(["c", "d", "e", "f"], self.memory, [2, 3, 4, 5]), 4)
        self.assertEqual(self.slots.has(["a", "b", "c", "d", "e", "f"]), [False] * 2 + [True] * 4)

    def test_a_reader_loses_its_grant_before_a_slot_is_used_again(self) -> None:
        other = self.engine()
        own = bytearray(4 * PAGE)
        memory = other.endpoint.register(own)
        self.slots.put(["a"], self.memory, [0])
        move = other._move

        def late(*given: Any) -> None:
            self.slots.put(["b", "c", "d", "e"], self.memory, [1, 2, 3, 4])
            move(*given)

        with unittest.mock.patch.object(other, "_move", late), self.assertRaises(libweft.RevokedError):
            other.get(["a"], memory, [0])
        self.assertEqual(own, bytes(len(own)))

    def test_what_a_peer_did_not_finish_is_not_there(self) -> None:
        dying = self.engine()
        memory = dying.endpoint.register(bytearray(4 * PAGE))

        def die(*given: Any) -> None:
            dying.close()
            raise KeyboardInterrupt

        with unittest.mock.patch.object(dying, "_move", die), self.assertRaises(KeyboardInterrupt):
            dying.put(["a", "b", "c"], memory, [0, 1, 2])
        found: List[bool] = [False]
        for _ in range(1000):  # until its end has come there
            self.slots.put(["a", "b", "c", "d"], self.memory, [0, 1, 2, 3])
            found = self.slots.has(["a", "b", "c", "d"])
            if all(found):
                break
        self.assertEqual(found, [True] * 4)
        self.assertEqual(self.slots.get(["a", "b", "c", "d"], self.memory, [8, 9, 10, 11]), [True] * 4)
        self.assertEqual([self.page(8 + i) for i in range(4)], [pattern(i) for i in range(4)])

    def test_a_key_can_be_put_again_after_a_grant_that_came_too_late(self) -> None:
        hasty, grant = self.engine(timeout=0.2), self.slab._grant

        def slowly(*given: Any) -> Any:
            time.sleep(0.5)
            return grant(*given)

        with unittest.mock.patch.object(self.slab, "_grant", slowly), self.assertRaises(TimeoutError):
            hasty.put(["a", "b", "c"], self.memory, [0, 1, 2])
        while not self.slab._grants:
            time.sleep(0.01)
        self.assertEqual(self.slots.put(["a", "b", "c", "d"], self.memory, [0, 1, 2, 3]), 1)
        time.sleep(0.6)
        self.assertEqual(self.slots.put(["a", "b", "c", "d"], self.memory, [0, 1, 2, 3]), 3)
        self.assertEqual(self.slots.has(["a", "b", "c", "d"]), [True] * 4)


class Requests(unittest.TestCase):
    """What slabs and stores answer."""

    def endpoint(self) -> libweft.Endpoint:
        made = open_endpoint()
        self.addCleanup(made.close)
        return made

    def answers(self, endpoint: libweft.Endpoint) -> List[Any]:
        """Up to its next one, or its peer's end."""
        while True:
            event = endpoint.wait_event(20)
            if isinstance(event, libweft.Message):
                return [json.loads(event.data[HEAD.size:])["result"]]
            if not isinstance(event, libweft.PeerUp):
                return []

    def test_a_peer_that_finishes_nothing_ends_alone(self) -> None:
        there, gone, first, second, third = (self.endpoint() for _ in range(5))
        peers = [one.connect(there.address).wait(20) for one in (gone, first, second, third)]
        for number in range(3):
            peers[0].send(HEAD.pack(number, 0) + bytes(100)).wait(20)
        gone.close()
        while there.info().peers == 4:
            time.sleep(0.01)
        request = json.dumps({"do": "this", "more": "." * 60}).encode()
        with unittest.mock.patch("libweft._calls.MOST", 150), unittest.mock.patch("libweft._calls.MOST_WHOLES", 3):
            calls = Calls(there, lambda peer, given: given["do"])
            self.addCleanup(calls.close)
            for peer in peers[1:3]:
                peer.send(HEAD.pack(0, 0) + request[:80]).wait(20)
            for number in range(4):
                peers[3].send(HEAD.pack(number, 0)).wait(20)
            self.assertEqual(self.answers(third), [])
            for one, peer in ((first, peers[1]), (second, peers[2])):
                peer.send(HEAD.pack(0, IS_LAST) + request[80:]).wait(20)
                self.assertEqual(self.answers(one), ["this"])

    def test_a_peer_that_asks_for_too_much_at_once_ends_alone(self) -> None:
        there, first, second = (self.endpoint() for _ in range(3))
        peers = [one.connect(there.address).wait(20) for one in (first, second)]
        gate = threading.Event()
        served: List[int] = []

        def serve(peer: libweft.Peer, given: Dict[str, Any]) -> Any:
            served.append(given["do"])
            gate.wait(20)
            return given["do"]

        with unittest.mock.patch("libweft._calls.MOST_WHOLES", 3), unittest.mock.patch("libweft._calls.ThreadPoolExecutor",
                                                                                       lambda threads, name: ThreadPoolExecutor(1, name)):
            calls = Calls(there, serve)
            self.addCleanup(calls.close)
            self.addCleanup(gate.set)
            asked = [peers[1].send(HEAD.pack(number, IS_LAST) + b'{"do": 7}') for number in range(3)]
            for operation in asked:
                operation.wait(20)
            for number in range(4):
                peers[0].send(HEAD.pack(number, IS_LAST) + b'{"do": 8}').wait(20)
            self.assertEqual(self.answers(first), [])
            gate.set()
            self.assertEqual([self.answers(second) for _ in asked], [[7]] * 3)
            self.assertEqual(served, [7] * 3)

    def test_an_answer_that_is_none_fails_its_call(self) -> None:
        there, here = self.endpoint(), self.endpoint()
        calls = Calls(here)
        self.addCleanup(calls.close)
        peer = here.connect(there.address).wait(20)
        wrong: List[Tuple[bytes, Any, str]] = [
            *((answer, ConnectionError, "answer is none") for answer in (b"no JSON", b"[" * 100_000, b"7", b'["error"]', b"{}")),
            (b'{"error": "no", "errno": 28}', OSError, "Errno 28. this: no"),
            *((b'{"error": "no"%s}' % code, OSError, "this: no") for code in (b"", b', "errno": null', b', "errno": "28"'))]
        for answer, error, text in (*wrong, (b'{"result": 7}', None, "")):
            call = calls.begin(peer, "this", 20)
            request = next_event(there, libweft.Message)
            number, _ = HEAD.unpack_from(request.data)
            request.peer.send(HEAD.pack(number, IS_ANSWER | IS_LAST) + answer).wait(20)
            if error is None:
                self.assertEqual(call.wait(), 7)
            else:
                with self.subTest(answer[:9]), self.assertRaisesRegex(error, text):
                    call.wait()
