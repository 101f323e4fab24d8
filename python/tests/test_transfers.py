"""Every kind of operation, its result and its bytes."""

import array
import errno
import inspect
import json
import math
import os
import tempfile
import unittest
from typing import Any

import libweft
from support import FABRIC, PAGE, Pair, next_event, open_endpoint, pattern


class Ranges(Pair):
    def test_a_write_and_a_read_move_the_bytes(self) -> None:
        source, target = bytearray(pattern(1)), bytearray(2 * PAGE)
        local, remote = self.memories(source, target)
        done = self.here.write(local, remote, remote_offset=PAGE).wait(20)
        self.assertEqual((done.bytes, done.status), (PAGE, 0))
        self.assertLessEqual(done.submit_ns, done.done_ns)
        self.assertEqual(target[PAGE:], source)
        target[:4] = b"back"
        self.here.read(local, remote, 4, local_offset=8).wait(20)
        self.assertEqual(source[8:12], b"back")

    def test_a_notification_comes_with_its_value_and_data(self) -> None:
        local, remote = self.memories(pattern(2), bytearray(PAGE))
        self.here.write(local, remote, 0, notify=2**64 - 1, notify_data=b"x" * 256).wait(20)
        event = next_event(self.there, libweft.Notification)
        self.assertEqual((event.value, event.data), (2**64 - 1, b"x" * 256))

    def test_a_write_outside_raises_what_is_wrong(self) -> None:
        local, remote = self.memories(pattern(2), bytearray(PAGE))
        with self.assertRaises(libweft.UsageError) as caught:
            self.here.write(local, remote, PAGE + 1)
        self.assertEqual((caught.exception.status, caught.exception.name), (libweft.c.ERR_RANGE, "WEFT_ERR_RANGE"))
        self.assertIn("4097 bytes", caught.exception.message)

    def test_numbers_that_c_would_cut_off_are_refused(self) -> None:
        local, remote = self.memories(pattern(2), bytearray(PAGE))
        for wrong in (dict(length=-1), dict(length=2**64), dict(local_offset=2**64), dict(notify=-1),
                      dict(timeout=-0.1), dict(timeout=1e9)):
            with self.subTest(wrong), self.assertRaises(ValueError):
                self.here.write(local, remote, **wrong)

    def test_a_read_into_a_read_only_buffer_is_refused(self) -> None:
        local, remote = self.memories(bytes(PAGE), bytearray(PAGE))
        with self.assertRaises(BufferError):
            self.here.read(local, remote)


class Files(Pair):
    def setUp(self) -> None:
        if FABRIC not in ("tcp", "host"):
            self.skipTest("files move over tcp and host")
        super().setUp()

    def test_a_file_holds_what_a_peer_wrote_and_says_where_it_ends(self) -> None:
        with tempfile.NamedTemporaryFile() as file:
            with self.there.register_file(file, [(0, PAGE), (3 * PAGE + 5, 2 * PAGE)]) as memory:
                self.assertEqual((memory.lengths, memory.writable), ([PAGE, 2 * PAGE], True))
                remote = self.peer.import_memory(memory.export())
                local = self.here.register(bytearray(pattern(4)))
                self.here.write(local, remote, PAGE, remote_offset=PAGE, durable=True).wait(20)
                self.assertIn("weft_file_flushes_total 1\n", self.there.metrics())
                self.here.read(local, remote, 5, remote_offset=PAGE).wait(20)
                file.seek(3 * PAGE + 5)
                self.assertEqual(file.read(), pattern(4))
                with self.assertRaises(libweft.FileError) as caught:
                    self.here.read(local, remote, PAGE, remote_offset=2 * PAGE).wait(20)
                self.assertEqual(caught.exception.errno, errno.ENODATA)
                remote.release()
            with self.there.register_file(file.name, [(0, PAGE)], access=libweft.Access.REMOTE_READ) as memory:
                self.assertFalse(memory.writable)
            with self.assertRaises(libweft.UsageError):
                self.there.register_file(0, [(0, 0)])


class Lanes(Pair):
    def test_lanes_say_what_they_carried(self) -> None:
        local, remote = self.memories(pattern(1), bytearray(PAGE))
        self.here.write(local, remote).wait(20)
        lanes = self.peer.lanes()
        self.assertEqual(sum(lane.bytes_written for lane in lanes), PAGE)
        self.assertEqual({lane.state for lane in lanes}, {"up"})
        self.assertEqual(sum(lane.up for lane in lanes), self.peer.info().lanes)
        self.assertIn(f'address="{self.peer.info().address}"', self.here.metrics())

    def test_an_error_says_why_there_is_no_connection(self) -> None:
        self.assertIn(self.peer.info().fabric, self.peer.reason())
        gone = open_endpoint()
        address = gone.address
        gone.close()
        with self.assertRaises(libweft.ConnectionFailedError) as caught:
            self.here.connect(address, timeout=5).wait(20)
        error = caught.exception
        self.assertIn("could not be reached: ", error.message)
        self.assertNotIn(error.peer, (0, self.peer.id))
        self.assertEqual((error.errno, error.provider_errno), (errno.ECONNREFUSED, errno.ECONNREFUSED))

    def test_an_end_is_explained_once(self) -> None:
        self.there.close()
        down = next_event(self.here, libweft.PeerDown)
        text = libweft.lib.weft_status_text(down.status).decode()
        self.assertEqual((down.reason.count(text), repr(down).count(text)), (1, 1), repr(down))

    def test_an_end_that_was_wanted_is_no_success(self) -> None:
        self.peer.disconnect()
        down = next_event(self.here, libweft.PeerDown)
        self.assertEqual(down.status, 0)
        self.assertRegex(down.reason, "^peer .* this endpoint has disconnected it")

    def test_an_event_has_its_error(self) -> None:
        local, remote = self.memories(bytearray(8), bytearray(8))
        self.here.write(local, remote, notify=1).wait(20)
        came = next_event(self.there, libweft.Notification)
        self.assertIsNone(came.error)
        self.there.grant(self.there.register(bytearray(8), access=libweft.Access.GRANTED), came.peer, notify=2)
        self.here.close()
        events = {type(event): event for event in (self.there.wait_event(20) for _ in range(2))}
        for kind in (libweft.PeerDown, libweft.Notification):
            event = events[kind]
            assert isinstance(event, (libweft.PeerDown, libweft.Notification))
            error = event.error
            assert error is not None
            self.assertEqual((type(error), error.status, error.peer), (libweft.ConnectionFailedError, event.status, event.peer.id))
            self.assertRegex(error.name, "WEFT_ERR_PEER_")
            self.assertEqual({event.peer: 1}[libweft.Peer(self.there, came.peer.id)], 1)
        self.assertNotEqual(came.peer, self.peer)


class Traces(unittest.TestCase):
    def test_close_writes_the_trace(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            open_endpoint(trace=f"{folder}/%p.json").close()
            with open(f"{folder}/{os.getpid()}.json", encoding="utf-8") as file:
                self.assertEqual(json.load(file)["otherData"], {"dropped": 0})
            with self.assertRaises(libweft.UsageError):
                open_endpoint(trace=f"{folder}/missing/trace.json")


class Grants(Pair):
    def test_a_grant_reaches_its_pages_until_it_is_revoked(self) -> None:
        target = bytearray(4 * PAGE)
        granted = self.there.register(target, access=libweft.Access.GRANTED)
        local, remote = self.here.register(pattern(1)), self.peer.import_memory(granted.export())
        with self.assertRaises(libweft.UsageError):
            self.here.write(local, remote)
        grant = self.there.grant(granted, next_event(self.there, libweft.PeerUp).peer, PAGE, [1, 3])
        self.assertEqual(len(grant), 16)
        self.here.write_pages(local, remote, PAGE, local=[0], remote=[3], grant=grant).wait(20)
        self.assertEqual(target[3 * PAGE:], pattern(1))
        self.there.revoke(grant).wait(20)
        with self.assertRaises(libweft.RevokedError):
            self.here.write(local, remote, remote_offset=PAGE, grant=grant).wait(20)
        self.assertEqual(target[PAGE:2 * PAGE], bytes(PAGE))
        with self.assertRaises(ValueError):
            self.here.write(local, remote, grant=b"short")

    def test_a_grant_is_of_the_pages_that_are_named_or_of_none(self) -> None:
        granted = self.there.register(bytearray(4 * PAGE), access=libweft.Access.GRANTED)
        peer = next_event(self.there, libweft.PeerUp).peer
        wrong: Any
        for wrong, error in (
            ({"page_length": PAGE, "pages": [1, 3], "page_count": 3}, "3 pages are to be granted, but there are 2"),
            ({"pages": [1]}, "page_length is needed"),
            ({"page_count": 1}, "page_length is needed"),
            ({"layers": 2}, "page_length is needed"),
            ({"page_length": PAGE, "pages": [1], "layers": (1 << 32) + 1}, "layers is 4294967297"),
            ({"notify": (1 << 64) + 1}, "notify is 18446744073709551617"),
        ):
            with self.subTest(wrong), self.assertRaisesRegex(ValueError, error):
                self.there.grant(granted, peer, **wrong)

    def test_both_sides_are_notified_of_a_failure(self) -> None:
        granted = self.there.register(bytearray(PAGE), access=libweft.Access.GRANTED)
        local, remote = self.here.register(pattern(1)), self.peer.import_memory(granted.export())
        peer = next_event(self.there, libweft.PeerUp).peer
        short = self.there.grant(granted, peer, timeout=0.05, notify=7)
        ended = next_event(self.there, libweft.Notification)
        self.assertEqual((ended.value, ended.status), (7, libweft.c.ERR_TIMED_OUT))
        self.there.revoke(short).wait(20)
        grant = self.there.grant(granted, peer, notify=8)
        self.assertEqual(remote.fetch_add(0, 5, grant=grant).wait(20), 0)
        self.here.write(local, remote, grant=grant, notify=9, notify_failure=True).wait(20)
        self.assertEqual(next_event(self.there, libweft.Notification).status, 0)
        self.here.close()
        ended = next_event(self.there, libweft.Notification)
        self.assertEqual(ended.value, 8)
        self.assertNotEqual(ended.status, 0)
        self.there.revoke(grant).wait(20)


class Configs(unittest.TestCase):
    def test_liveness_is_checked(self) -> None:
        open_endpoint(liveness=math.inf).close()
        open_endpoint(liveness=5).close()
        with self.assertRaises(libweft.UsageError) as caught:
            open_endpoint(liveness=0.5)
        self.assertIn("liveness_ns", caught.exception.message)


class Pages(Pair):
    def test_pages_of_layers_go_where_they_should(self) -> None:
        layers = [bytearray(b"".join(pattern(10 * layer + i, 64) for i in range(8))) for layer in range(3)]
        target = [bytearray(8 * 128) for _ in range(3)]
        local, remote = self.memories(layers, target)
        for there in ([7, 0, 3], array.array("I", [7, 0, 3])):
            self.here.write_pages(
                local, remote, 64, 3, layers=3, local=libweft.Side([1, 2, 5], range_step=1),
                remote=libweft.Side(there, page_stride=128, offset=32, range_step=1)).wait(20)
            for layer in range(3):
                for i, j in zip([1, 2, 5], [7, 0, 3]):
                    at = 32 + 128 * j
                    self.assertEqual(target[layer][at:at + 64], pattern(10 * layer + i, 64))
        self.here.read_pages(local, remote, 64, 1, local=libweft.Side([0]),
                             remote=libweft.Side([7], page_stride=128, offset=32)).wait(20)
        self.assertEqual(layers[0][:64], pattern(1, 64))

    def test_page_indexes_are_checked(self) -> None:
        local, remote = self.memories(bytearray(PAGE), bytearray(PAGE))
        with self.assertRaisesRegex(ValueError, "2 local pages"):
            self.here.write_pages(local, remote, 64, 3, local=libweft.Side([1, 2]))
        with self.assertRaisesRegex(ValueError, "3 pages are to move, but there are 2 local pages"):
            self.here.write_pages(local, remote, 64, local=[1, 2], remote=[1, 2, 3])
        with self.assertRaisesRegex(ValueError, "page_count"):
            self.here.write_pages(local, remote, 64)
        for wrong in ([-1], [2**32]):
            with self.assertRaisesRegex(ValueError, "the remote pages"):
                self.here.write_pages(local, remote, 64, 1, remote=libweft.Side(wrong))
        with self.assertRaises(libweft.UsageError):
            self.here.write_pages(local, remote, 64, 1, remote=libweft.Side([2**32 - 1]))

    def test_indexes_alone_say_how_many_pages_move(self) -> None:
        target = bytearray(PAGE)
        local, remote = self.memories(pattern(6), target)
        self.assertEqual(self.here.write_pages(local, remote, 64, local=(1, 2), remote=[5, 3]).wait(20).bytes, 128)
        self.assertEqual(target[5 * 64:6 * 64], pattern(6)[64:128])
        self.assertEqual(target[3 * 64:4 * 64], pattern(6)[128:192])

    def test_prepared_pages_are_written_again_and_counted(self) -> None:
        source, target = bytearray(pattern(3)), bytearray(PAGE)
        local, remote = self.memories(source, target)
        with self.there.create_counter() as counter, \
                self.here.prepare_pages(local, remote, 1024, 4, count_pages=True) as prepared:
            for round_ in (1, 2):
                source[:] = pattern(round_)
                prepared.write(counter=counter.id, count_pages=True).wait(20)
                counter.expect(4 * round_).wait(20)
                self.assertEqual((counter.value, target), (4 * round_, source))
            with self.assertRaises(libweft.RetryError):
                remote.release()
        remote.release()

    def test_a_counter_in_place_of_its_id_is_refused(self) -> None:
        local, remote = self.memories(bytearray(PAGE), bytearray(PAGE))
        counter: Any = self.there.create_counter()
        with self.assertRaises(TypeError):
            self.here.write(local, remote, counter=counter)


class Watches(Pair):
    def test_a_transfer_begins_at_a_value_and_sets_another(self) -> None:
        source, target = bytearray(pattern(3)), bytearray(PAGE)
        local, remote = self.memories(source, target)
        with self.here.create_watch() as filled, self.here.create_watch() as moved:
            operation = self.here.write_pages(local, remote, PAGE, 1, start=(filled, 2), done=(moved, 7), timeout=20)
            source[:] = pattern(4)
            filled.value = 1
            self.assertIsNone(self.here.wait_event(0.05))
            self.assertEqual((moved.value, target), (0, bytearray(PAGE)))
            with self.assertRaises(libweft.RetryError):
                filled.free()
            filled.value = 2
            operation.wait(20)
            self.assertEqual((moved.value, target), (7, source))

    def test_lists_prepared_pages_and_counters_have_watches(self) -> None:
        local, remote = self.memories(bytearray(PAGE), bytearray(PAGE))
        with self.here.create_watch() as watch, self.there.create_watch() as counted:
            counter = self.there.create_counter()
            expected = counter.expect(1, done=(counted, 9))
            entry = libweft.Entry(local, remote, PAGE, counter=counter.id)
            listed = self.here.write_list([entry], start=(watch, 1), done=(watch, 2))
            watch.value = 1
            listed.wait(20)
            expected.wait(20)
            self.assertEqual((watch.value, counted.value), (2, 9))
            with self.here.prepare_pages(local, remote, PAGE, 1) as prepared:
                prepared.write(start=(watch, 2), done=(watch, 3)).wait(20)
            self.assertEqual(watch.value, 3)

    def test_wrong_watches_and_values_are_refused(self) -> None:
        local, remote = self.memories(bytearray(PAGE), bytearray(PAGE))
        watch = self.here.create_watch()
        for wrong in (-1, 1 << 64):
            with self.assertRaises(ValueError):
                self.here.write(local, remote, start=(watch, wrong))
        watch.free()
        watch.free()
        with self.assertRaises(ValueError):
            self.here.write(local, remote, start=(watch, 1))
        with self.assertRaises(ValueError):
            watch.value = 1


class Lists(Pair):
    def test_a_list_goes_to_several_peers(self) -> None:
        third = open_endpoint()
        self.addCleanup(third.close)
        other = self.here.connect(third.address).wait(20)
        source, targets = pattern(4), [bytearray(PAGE), bytearray(PAGE)]
        local, remote = self.memories(source, targets[0])
        far = other.import_memory(third.register(targets[1]).export())
        entries = [libweft.Entry(local, remote, 100), libweft.Entry(local, far, 50, local_offset=7),
                   libweft.Entry(peer=other)]
        operation = self.here.write_list(entries, each_peer=True, notify=5)
        operation.wait(20)
        self.assertEqual({done.peer: done.bytes for done in operation.completions},
                         {self.peer.id: 100, other.id: 50})
        self.assertEqual((targets[0][:100], targets[1][:50]), (source[:100], source[7:57]))
        for endpoint in (self.there, third):
            self.assertEqual(next_event(endpoint, libweft.Notification).value, 5)
        self.assertEqual(self.here.write_list(entries).wait(20).bytes, 150)
        with self.here.prepare_list(entries) as prepared:
            again = prepared.write(each_peer=True)
            again.wait(20)
            self.assertEqual(len(again.completions), 2)

    def test_an_entry_outside_is_named(self) -> None:
        local, remote = self.memories(bytearray(PAGE), bytearray(PAGE))
        with self.assertRaisesRegex(libweft.UsageError, "entry 1"):
            self.here.write_list([libweft.Entry(local, remote, 1), libweft.Entry(local, remote, PAGE + 1)])


class Small(Pair):
    def test_messages_come_in_order(self) -> None:
        sent = [pattern(i, i * 97) for i in range(30)]
        operations = [self.peer.send(data) for data in sent]
        got = [next_event(self.there, libweft.Message) for _ in sent]
        self.assertEqual([message.data for message in got], sent)
        for operation in operations:
            operation.wait(20)
        got[0].peer.send(memoryview(b"answer")).wait(20)
        self.assertEqual(next_event(self.here, libweft.Message).data, b"answer")

    def test_atomics_return_the_old_value(self) -> None:
        word = self.there.allocate(8)
        _, remote = self.memories(bytearray(8), word)
        self.assertEqual([remote.fetch_add(0, 5).wait(20) for _ in range(3)], [0, 5, 10])
        self.assertEqual(remote.compare_swap(0, 15, 2**64 - 1).wait(20), 15)
        self.assertEqual(bytes(word), b"\xff" * 8)

    def test_a_fence_ends(self) -> None:
        self.assertIsNone(self.peer.fence().wait(20))

    def test_wait_for_idle_counters_times_out_and_can_be_canceled(self) -> None:
        counter = self.here.create_counter()
        with self.assertRaises(libweft.TimedOutError) as caught:
            counter.expect(1, timeout=0.05).wait(20)
        self.assertIsInstance(caught.exception, TimeoutError)
        self.assertNotIsInstance(caught.exception, libweft.StillRunningError)
        operation = counter.expect(1)
        with self.assertRaises(libweft.StillRunningError) as waited:
            operation.wait(0.05)
        self.assertIsInstance(waited.exception, TimeoutError)
        self.assertFalse(operation.done)
        operation.cancel()
        with self.assertRaises(libweft.CanceledError):
            operation.wait(20)

    def test_a_failure_names_the_operation(self) -> None:
        local, remote = self.memories(bytearray(PAGE), bytearray(PAGE))
        with self.here.create_watch() as watch:
            late = self.here.write(local, remote, notify=7, start=(watch, 1), timeout=0.05)
            named = f"write of {PAGE} bytes, peer {self.peer.id:#x}, notify 7: .* after it was submitted"
            with self.assertRaisesRegex(libweft.TimedOutError, named) as caught:
                late.wait(20)
        self.assertEqual(caught.exception.message.count(f"{self.peer.id:#x}"), 1)

    def test_a_prompt_shows_what_an_object_is(self) -> None:
        source, target = bytearray(PAGE), bytearray(PAGE)
        local, remote = self.memories([source, bytearray(8)], target)
        counter, watch = self.there.create_counter(), self.here.create_watch()
        prepared = self.here.prepare_pages(local, remote, 64, 3)
        operation = self.here.write_pages(local, remote, 64, 3, start=(watch, 1), notify=5)
        shown = {
            "Endpoint": (self.here, "1 peers"), "Memory": (local, f"2 ranges, {PAGE + 8} bytes"),
            "RemoteMemory": (remote, f"{self.peer.id:#x}"), "Counter": (counter, ": 0"), "Watch": (watch, "0 at 0x"),
            "Peer": (self.peer, self.peer.info().fabric), "Prepared": (prepared, "3 pages of 64 bytes"),
            "Operation": (operation, "write of 3 pages of 64 bytes, "),
        }
        for kind, (thing, part) in shown.items():
            self.assertRegex(repr(thing), f"^<libweft.{kind} .*{part}")
        self.assertRegex(repr(operation), "notify 5: under way>$")
        watch.value = 1
        done = operation.wait(20)
        self.assertRegex(repr(operation), ": done>$")
        self.assertRegex(repr(done), f"^<libweft.Completion WRITE: WEFT_OK, 192 bytes, peer {self.peer.id:#x}")
        self.assertRegex(repr(self.here.statistics()), r"^EndpointStatistics\(peers=1, .*completions=\{0: 1\}")
        prepared.release()
        self.here.close()
        self.assertRegex(repr(next_event(self.there, libweft.PeerDown)), "WEFT_ERR_PEER_CLOSED: peer .*: the peer disconnected")
        for ended in (local, self.here, watch, prepared):
            self.assertRegex(repr(ended), "closed|deregistered|freed|released")

    def test_every_keyword_is_in_its_signature(self) -> None:
        for kind in (libweft.Endpoint, libweft.Prepared, libweft.Peer, libweft.RemoteMemory, libweft.Counter, libweft.Memory):
            for name, method in inspect.getmembers(kind, inspect.isfunction):
                if not name.startswith("_"):
                    kinds = {p.kind for p in inspect.signature(method).parameters.values()}
                    self.assertNotIn(inspect.Parameter.VAR_KEYWORD, kinds, f"{kind.__name__}.{name}")

    def test_statistics_and_descriptions(self) -> None:
        self.peer.send(b"hello").wait(20)
        self.assertEqual(self.here.statistics().messages_sent, 1)
        self.assertEqual(self.here.info().peers, 1)
        self.assertGreater(sum(self.here.rail_statistics(i).frames_sent for i in range(self.here.info().rails)), 0)
        self.assertTrue(self.here.rail_info(0).fabric)
        self.assertEqual(self.peer.info().up, 1)
        self.assertTrue(self.peer.info().fabric)
        self.assertEqual(libweft.topology()["format"], 1)


if __name__ == "__main__":
    unittest.main()
