"""What agents do with each other while nothing fails."""

import mmap
import tempfile
import threading

import numpy as np
from support import Agent, Case, nixl, pattern

PAGE = 4096


def pages(base, numbers, length=PAGE):
    return [(base + n * length, length) for n in numbers]


class Transfers(Case):
    def moved(self, operation, local, remote, agents=None, notification=b""):
        """Moves `local` pieces (of pairs of offset and length) between two agents; the rest must not change."""
        here, there = agents or self.pair()
        here.bytes[:], there.bytes[:] = pattern(here.bytes.size, 1), pattern(there.bytes.size, 2)
        source, target = (here, there) if operation == "WRITE" else (there, here)
        wanted = target.bytes.copy()
        for mine, theirs in zip(local, remote):
            (s, n), (t, _) = (mine, theirs) if operation == "WRITE" else (theirs, mine)
            wanted[t : t + n] = source.bytes[s : s + n]
        handle = here.request(
            operation,
            [(here.bytes.ctypes.data + o, n) for o, n in local],
            [(there.bytes.ctypes.data + o, n) for o, n in remote],
            there.name,
            notification,
        )
        self.assertEqual(here.finish(handle), "DONE")
        np.testing.assert_array_equal(target.bytes, wanted)
        return here, there, handle

    def test_pages_of_one_length_move(self):
        order = np.random.default_rng(3).permutation(200)
        for operation in "WRITE", "READ":
            self.moved(operation, pages(0, order), pages(0, order[::-1]))

    def test_pages_of_odd_places_and_lengths_move(self):
        local = [(17 + i * 5000, 1 + 13 * i) for i in range(150)]
        remote = [(900_001 - i * 4999, 1 + 13 * i) for i in range(150)]
        for operation in "WRITE", "READ":
            self.moved(operation, local, remote)

    def test_neighbours_and_strides_move(self):
        for stride in PAGE, PAGE + 64, 2 * PAGE:
            self.moved("WRITE", [(i * PAGE, PAGE) for i in range(100)], [(i * stride, PAGE) for i in range(100)])

    def test_one_byte_moves(self):
        self.moved("WRITE", [(5, 1)], [(77, 1)])

    def test_a_request_is_posted_many_times(self):
        here, there, handle = self.moved("WRITE", pages(0, range(10)), pages(0, range(10)))
        for i in range(50):
            here.bytes[:] = i
            self.assertEqual(here.finish(handle), "DONE")
            self.assertTrue((there.bytes[: 10 * PAGE] == i).all())
        here.release_xfer_handle(handle)

    def test_a_request_in_progress_is_not_posted_again(self):
        here, there = self.pair(64 << 20)
        everything = [(here.bytes.ctypes.data, here.bytes.size)], [(there.bytes.ctypes.data, here.bytes.size)]
        handle = here.request("WRITE", *everything, there.name)
        state = here.transfer(handle)
        if state == "PROC":
            try:
                here.transfer(handle)
            except nixl._bindings.nixlRepostActiveError:
                pass
        self.assertEqual(here.end(handle, state), "DONE")

    def test_memories_are_many(self):
        here, there = Agent(), Agent()
        mine, theirs = ([np.zeros(64 * PAGE, dtype=np.uint8) for _ in range(40)] for _ in range(2))
        here.register(*mine)
        there.register(*theirs)
        for i, array in enumerate(mine):
            array[:] = pattern(array.size, i)
        name = here.meet(there.describe()[0])
        local, remote = (sum((pages(a.ctypes.data, range(0, 64, 2)) for a in side), []) for side in (mine, theirs))
        handle = here.request("WRITE", local, remote, name, b"all layers")
        self.assertEqual(here.finish(handle), "DONE")
        for a, b in zip(mine, theirs):
            np.testing.assert_array_equal(a.reshape(32, 2, PAGE)[:, 0], b.reshape(32, 2, PAGE)[:, 0])
            self.assertFalse(b.reshape(32, 2, PAGE)[:, 1].any())
        self.assertEqual(there.notifications(1), [(here.name, b"all layers")])

    def test_prepared_lists_move(self):
        here, there = self.pair()
        here.bytes[:] = pattern(here.bytes.size, 4)
        local, remote = (
            agent.descs([(a.bytes.ctypes.data + i * PAGE, PAGE, 0) for i in range(256)])
            for agent, a in ((here, here), (here, there))
        )
        mine, theirs = here.prep_xfer_dlist("", local), here.prep_xfer_dlist(there.name, remote)
        order = np.random.default_rng(5).permutation(256).astype(np.int32)
        handle = here.make_prepped_xfer("WRITE", mine, order, theirs, order[::-1].copy(), b"prepared")
        self.assertEqual(here.finish(handle), "DONE")
        moved = there.bytes.reshape(256, PAGE)[order[::-1]]
        np.testing.assert_array_equal(moved, here.bytes.reshape(256, PAGE)[order])
        self.assertEqual(there.notifications(1), [(here.name, b"prepared")])
        here.release_xfer_handle(handle)
        here.release_dlist_handle(mine)
        here.release_dlist_handle(theirs)

    def test_an_agent_reaches_itself(self):
        here = Agent()
        here.bytes[:] = pattern(here.bytes.size, 6)
        base, half = here.bytes.ctypes.data, here.bytes.size // 2
        for operation in "WRITE", "READ":
            handle = here.request(operation, [(base, half)], [(base + half, half)], here.name, b"to myself")
            self.assertEqual(here.finish(handle), "DONE")
            self.assertEqual(here.notifications(1), [(here.name, b"to myself")])
            here.release_xfer_handle(handle)
        np.testing.assert_array_equal(here.bytes[:half], here.bytes[half:])
        here.send_notif(here.name, b"a note")
        self.assertEqual(here.notifications(1), [(here.name, b"a note")])
        here.deregister_memory(here.registered)

    def test_agents_of_one_process_are_several(self):
        agents = [Agent() for _ in range(4)]
        for a in agents:
            a.bytes[:] = pattern(a.bytes.size, id(a))
            for b in agents:
                if a is not b:
                    a.meet(b.describe()[0])
        for i, a in enumerate(agents):
            for j, b in enumerate(agents):
                if a is not b:
                    place = [(a.bytes.ctypes.data, PAGE)], [(b.bytes.ctypes.data + (10 + i) * PAGE, PAGE)]
                    self.assertEqual(a.finish(a.request("WRITE", *place, b.name, b"%d to %d" % (i, j))), "DONE")
        for j, b in enumerate(agents):
            got = sorted(b.notifications(3))
            self.assertEqual(got, sorted((a.name, b"%d to %d" % (i, j)) for i, a in enumerate(agents) if i != j))

    def test_notifications_of_any_length_arrive(self):
        here, there = self.pair()
        place = [(here.bytes.ctypes.data, PAGE)], [(there.bytes.ctypes.data, PAGE)]
        handle = here.request("WRITE", *place, there.name)
        for text in b"x", b"\0\xff binary \0", b"y" * 256, b"z" * 257, b"w" * 100_000:
            self.assertEqual(here.finish(handle, text), "DONE")
            self.assertEqual(there.notifications(1), [(here.name, text)])
            here.send_notif(there.name, text)
            self.assertEqual(there.notifications(1), [(here.name, text)])
        quiet = here.request("WRITE", *place, there.name)
        self.assertEqual(here.finish(quiet), "DONE")
        self.assertEqual(there.notifications(1, patience=0.2), [])

    def test_a_notification_comes_after_the_last_byte(self):
        here, there = self.pair()
        order = range(0, 256, 2)
        handle = here.request("WRITE", pages(here.bytes.ctypes.data, order), pages(there.bytes.ctypes.data, order), there.name)
        for i in range(1, 60):
            here.bytes[:] = i
            state = here.transfer(handle, b"round" if i % 2 else b"round" * 100)
            while not (got := there.notifications(1, patience=0)):
                state = here.check_xfer_state(handle)
            self.assertTrue((there.bytes.reshape(256, PAGE)[::2] == i).all())
            self.assertEqual(len(got), 1)
            self.assertEqual(here.end(handle, state), "DONE")

    def test_threads_share_an_agent(self):
        here, there = self.pair(threads=True)
        failures = []

        def work(k):
            local, remote = (pages(a.bytes.ctypes.data + k * 40 * PAGE, range(40)) for a in (here, there))
            for _ in range(20):
                handle = here.request("WRITE", local, remote, there.name, b"%d" % k)
                if here.finish(handle) != "DONE":
                    failures.append(k)
                here.release_xfer_handle(handle)

        here.bytes[:] = pattern(here.bytes.size, 7)
        threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(failures, [])
        np.testing.assert_array_equal(here.bytes[: 160 * PAGE], there.bytes[: 160 * PAGE])
        wanted = sorted([(here.name, b"%d" % k) for k in range(4)] * 20)
        self.assertEqual(sorted(there.notifications(80)), wanted)

    def test_memory_that_is_read_only_is_read(self):
        with tempfile.TemporaryFile() as file:
            file.write(pattern(1 << 16, 8).tobytes())
            file.flush()
            weights = np.frombuffer(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ), dtype=np.uint8)
            here, there = Agent(), Agent()
            there.register(weights)
            name = here.meet(there.describe()[0])
            handle = here.request("READ", [(here.bytes.ctypes.data, 1 << 16)], [(weights.ctypes.data, 1 << 16)], name)
            self.assertEqual(here.finish(handle), "DONE")
            np.testing.assert_array_equal(here.bytes[: 1 << 16], weights)

    def test_partial_metadata_are_loaded(self):
        here, there = Agent(), Agent()
        more = np.zeros(PAGE, dtype=np.uint8)
        here.meet(there.describe()[0])
        descriptors = there.register(more)
        try:
            part = there.get_partial_agent_metadata(descriptors, True, [there.backend])
        except TypeError:
            part = there.get_partial_agent_metadata(descriptors, True)
        here.meet(part)
        here.bytes[:] = 9
        handle = here.request("WRITE", [(here.bytes.ctypes.data, PAGE)], [(more.ctypes.data, PAGE)], there.name)
        self.assertEqual(here.finish(handle), "DONE")
        self.assertTrue((more == 9).all())

    def test_agents_connect_part_and_meet_again(self):
        here, there = self.pair()
        here.make_connection(there.name)
        place = [(here.bytes.ctypes.data, PAGE)], [(there.bytes.ctypes.data, PAGE)]
        back = [(there.bytes.ctypes.data, PAGE)], [(here.bytes.ctypes.data, PAGE)]
        there_to_here = there.request("WRITE", *back, here.name)
        for _ in range(3):
            handle = here.request("WRITE", *place, there.name)
            self.assertEqual(here.finish(handle), "DONE")
            here.release_xfer_handle(handle)
            here.remove_remote_agent(there.name)
            with self.assertRaises(Exception):
                here.request("WRITE", *place, there.name)
            self.assertEqual(there.finish(there_to_here), "DONE")  # what the other side does goes on
            here.meet(there.describe()[0])

    def test_wrong_arguments_are_refused(self):
        here, there = self.pair()
        with self.assertRaises(Exception):
            here.request("WRITE", [(here.bytes.ctypes.data, PAGE)], [(there.bytes.ctypes.data + (1 << 20), PAGE)], there.name)
        with self.assertRaises(Exception):
            here.request("WRITE", [(here.bytes.ctypes.data, PAGE)], [(there.bytes.ctypes.data, PAGE)], "nobody")
        with self.assertRaises(Exception):
            here.make_connection("nobody")
        with self.assertRaises(Exception):
            here.send_notif("nobody", b"text")
        with self.assertRaises(Exception):
            here.add_remote_agent(b"no metadata")
        with self.assertRaises(Exception):
            here.nixl.register_memory([(4096, 4096, 0, "")], "DRAM")  # memory that is not there
        for wrong in {"fabrik": "tcp"}, {"timeout_ms": "soon"}, {"idle": "never"}, {"fabric": "carrier-pigeon"}:
            with self.assertRaises(Exception, msg=wrong):
                Agent(**wrong)

    def test_parameters_are_listed_and_kept(self):
        agent = Agent(timeout_ms=5000)
        self.assertEqual(agent.get_backend_params(agent.backend)["timeout_ms"], "5000")
        self.assertEqual(sorted(agent.get_backend_mem_types(agent.backend)), ["DRAM_SEG", "FILE_SEG", "VRAM_SEG"])
        self.assertIn("secret_file", agent.get_plugin_params(agent.backend))
        Agent(**agent.get_plugin_params(agent.backend))  # as programs do that begin with the defaults
