"""The calls that engines make, in their order and with their arguments; DRAM in the place of VRAM."""

import uuid

import numpy as np
from support import BACKEND, PATIENCE, Agent, Case, nixl, pattern, state_of, time

BLOCK, BLOCKS, LAYERS = 8192, 64, 12


def caches(seed=None):
    return [np.zeros(BLOCKS * BLOCK, dtype=np.uint8) if seed is None else pattern(BLOCKS * BLOCK, seed + i)
            for i in range(LAYERS)]


def bare(**config):
    """A nixl_agent as engines make it: the backend is named in the configuration, without parameters."""
    return nixl.nixl_agent(str(uuid.uuid4()), nixl.nixl_agent_config(backends=[BACKEND], **config))


def until(done):
    end = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < end, "hangs"


class Engines(Case):
    def test_vllm_pulls_blocks(self):
        prefill, decode = (bare(num_threads=4, capture_telemetry=True) for _ in range(2))
        full, empty = caches(1), caches()
        registered, block_lists = {}, {}
        for agent, layers in (prefill, full), (decode, empty):
            data = [(c.ctypes.data, c.nbytes, 0, "") for c in layers]
            registered[agent] = agent.get_reg_descs(data, "DRAM")
            agent.register_memory(registered[agent], backends=[BACKEND])
            block_lists[agent] = [(c.ctypes.data + i * BLOCK, BLOCK, 0) for c in layers for i in range(BLOCKS)]
        local = decode.prep_xfer_dlist("NIXL_INIT_AGENT", decode.get_xfer_descs(block_lists[decode], "DRAM"))
        name = decode.add_remote_agent(prefill.get_agent_metadata())
        remote = decode.prep_xfer_dlist(name, decode.get_xfer_descs(block_lists[prefill], "DRAM"))
        decode.send_notif(name, notif_msg=b"HB:request")
        wanted = np.array([l * BLOCKS + i for l in range(LAYERS) for i in (3, 4, 5, 17, 40)])
        handle = decode.make_prepped_xfer("READ", local, wanted, remote, wanted, notif_msg=b"request-0:1")
        decode.transfer(handle)
        until(lambda: decode.check_xfer_state(handle) == "DONE")
        telemetry = decode.get_xfer_telemetry(handle)
        self.assertEqual(telemetry.totalBytes, wanted.size * BLOCK)
        decode.release_xfer_handle(handle)
        for a, b in zip(full, empty):
            for i in range(BLOCKS):
                same = (a[i * BLOCK : (i + 1) * BLOCK] == b[i * BLOCK : (i + 1) * BLOCK]).all()
                self.assertEqual(same, i in (3, 4, 5, 17, 40))
        got = []
        until(lambda: got.extend(sum(prefill.get_new_notifs().values(), [])) or len(got) == 2)
        self.assertEqual(sorted(got), [b"HB:request", b"request-0:1"])
        decode.release_dlist_handle(local)
        decode.release_dlist_handle(remote)
        decode.remove_remote_agent(name)
        for agent, what in registered.items():
            agent.deregister_memory(what)

    def test_sglang_pushes_pages(self):
        prefill, decode = Agent(threads=True), Agent(threads=True)  # it asks for strict synchronisation
        full, empty = caches(2), caches()
        prefill.register(*full)
        decode.register(*empty)
        name = prefill.meet(decode.describe()[0])
        pages = np.array([0, 1, 2, 9, 30, 31], dtype=np.int32)
        handles = []
        for chunk in np.array_split(pages, 2):
            sides = [np.array([(c.ctypes.data + int(p) * BLOCK, BLOCK, 0) for c in layers for p in chunk], dtype=np.uint64)
                     for layers in (full, empty)]
            notification = f"7_kv_{len(handles)}_{int(len(handles) == 1)}_0".encode("ascii")
            handle = prefill.initialize_xfer("WRITE", *(prefill.get_xfer_descs(s, "DRAM") for s in sides), name, notification)
            self.assertNotEqual(prefill.transfer(handle), "ERR")
            handles.append(handle)
        until(lambda: all(state_of(prefill.check_xfer_state, h) == "DONE" for h in handles))
        self.assertEqual(sorted(decode.notifications(2)), [(prefill.name, b"7_kv_0_0_0"), (prefill.name, b"7_kv_1_1_0")])
        for a, b in zip(full, empty):
            moved = b.reshape(BLOCKS, BLOCK)
            np.testing.assert_array_equal(moved[pages], a.reshape(BLOCKS, BLOCK)[pages])
            self.assertEqual(np.count_nonzero(moved.any(axis=1)), pages.size)
        prefill.remove_remote_agent(name)

    def test_lmcache_moves_chunks_both_ways(self):
        sender, receiver = Agent(BLOCKS * BLOCK), Agent(BLOCKS * BLOCK)
        sender.bytes[:] = pattern(sender.bytes.size, 3)
        original = sender.bytes.copy()
        name = sender.meet(receiver.describe()[0])
        sides = [[(a.bytes.ctypes.data + i * BLOCK, BLOCK, 0) for i in range(BLOCKS)] for a in (sender, receiver)]
        mine = sender.prep_xfer_dlist("", sender.get_xfer_descs(sides[0], "DRAM"))
        theirs = sender.prep_xfer_dlist(name, sender.get_xfer_descs(sides[1], "DRAM"))
        indices = list(range(BLOCKS))
        for operation, there in ("WRITE", indices[::-1]), ("READ", indices):
            handle = sender.make_prepped_xfer(operation, mine, indices, theirs, there)
            sender.transfer(handle)
            until(lambda: sender.check_xfer_state(handle) == "DONE")
            sender.release_xfer_handle(handle)
        np.testing.assert_array_equal(sender.bytes.reshape(BLOCKS, BLOCK), original.reshape(BLOCKS, BLOCK)[::-1])
        sender.send_notif(name, b"chunks are there")
        self.assertEqual(receiver.notifications(1), [(sender.name, b"chunks are there")])
