"""The engines of the comparison behind one interface: each is driven through its public Python API.

An engine has a memory, `bytes`, that another process's engine of the same kind reaches. `describe` gives what that
process passes to `meet`; `plan` makes a transfer of pages ready, as far as the engine can do that beforehand, and gives
a function that moves them and returns when all have arrived. `hand_over` is what it takes from indexes to an accepted
transfer, the wait for its end not included.
"""

import base64
import ctypes
import os
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
#: Odd, so that what it multiplies stays different.
FACTOR = 0x9E3779B97F4A7C15


def text(data):
    return base64.b64encode(data).decode()


def data(text):
    return base64.b64decode(text)


class Host:
    """Ordinary memory of this process."""

    kind, device = "DRAM", 0

    def __init__(self, size, own=None):
        self.buffer = np.zeros(size, np.uint8) if own is None else np.frombuffer(own, dtype=np.uint8)
        self.buffer[:] = 0  # every page is there
        self.address, self.size = self.buffer.ctypes.data, size

    def fill(self, seed):
        words = self.buffer[: self.size // 8 * 8].view(np.uint64)
        words[:] = np.arange(seed << 32, (seed << 32) + words.size, dtype=np.uint64)
        words *= np.uint64(FACTOR)

    def pages(self, page, picked):
        return self.buffer[: self.size // page * page].reshape(-1, page)[picked]


class Gpu:
    """Memory of a GPU, by torch."""

    kind = "VRAM"

    def __init__(self, size, device):
        import torch
        self.torch, self.device, self.size = torch, device, size
        torch.cuda.set_device(device)
        self.buffer = torch.zeros(size, dtype=torch.uint8, device=f"cuda:{device}")
        self.address = self.buffer.data_ptr()

    def fill(self, seed):
        words = self.buffer[: self.size // 8 * 8].view(self.torch.int64)
        words.copy_(self.torch.arange(seed << 32, (seed << 32) + words.numel(), device=words.device))
        words.mul_(FACTOR - (1 << 64))
        self.torch.cuda.synchronize()

    def pages(self, page, picked):
        rows = self.torch.from_numpy(picked.astype(np.int64)).to(self.buffer.device)
        return self.buffer[: self.size // page * page].view(-1, page)[rows].cpu().numpy()


class Engine:
    def memory_of(self, size, gpu, own=None):
        self.memory = Host(size, own) if gpu is None else Gpu(size, int(gpu))

    def know(self, other):
        """Of a target: what describes the initiator."""

    def ready(self, page):
        """What is done once for pages of a size."""


class Weft(Engine):
    """Settings are fields of the endpoint's configuration; `allocated`: the memory is Weft's own."""

    def __init__(self, size, allocated=False, gpu=None, **settings):
        import libweft
        self.weft = libweft
        if not allocated:  # with a GPU, CUDA is to be there first
            self.memory_of(size, gpu)
        self.endpoint = libweft.Endpoint(**settings)
        if allocated:
            self.memory_of(size, None, self.endpoint.allocate(size))
        self.mine = self.endpoint.register(self.memory.buffer)

    def describe(self):
        return {"address": text(self.endpoint.address), "memory": text(self.mine.export())}

    def connect(self, other):
        peer = self.endpoint.connect(data(other["address"])).wait(20)
        self.remote = peer.import_memory(data(other["memory"]))

    def plan(self, operation, page, local, remote):
        if len(local) == 1:
            # What its manual has for a single page.
            call = self.endpoint.write if operation == "write" else self.endpoint.read
            at = dict(length=page, local_offset=int(local[0]) * page, remote_offset=int(remote[0]) * page)
            return lambda: call(self.mine, self.remote, **at).wait()
        prepared = self.endpoint.prepare_pages(self.mine, self.remote, page, local=local, remote=remote)
        call = prepared.write if operation == "write" else prepared.read
        return lambda: call().wait()

    def hand_over(self, operation, page, local, remote):
        call = self.endpoint.write_pages if operation == "write" else self.endpoint.read_pages
        return call(self.mine, self.remote, page, local=local, remote=remote)

    def end(self, handed):
        handed.wait()

    def start(self, operation, page, local, remote):
        """A transfer under way, and whether it has ended: "", "done", or what it failed with."""
        self.began = self.hand_over(operation, page, local, remote)
        return self.state

    def state(self):
        try:
            self.began.wait(0.001)
        except self.weft.StillRunningError:
            return ""
        except self.weft.WeftError as error:
            return type(error).__name__
        return "done"


def lacking(backend):
    """What a backend of NIXL's wheel needs and this machine has not; "": nothing is known to be missing."""
    import nixl_cu12
    folder = Path(nixl_cu12.__file__).resolve().parents[1] / ".nixl_cu12.mesonpy.libs/plugins"
    try:
        if backend == "LIBFABRIC":
            version = ctypes.CDLL("libfabric.so.1").fi_version()
            if version >> 16 < 2:
                return f"its plugin needs libfabric 2, and {version >> 16}.{version & 0xFFFF} is what packages bring here"
        ctypes.CDLL(str(folder / f"libplugin_{backend}.so"))
    except OSError as error:
        return f"its plugin does not load: {error}"
    return ""


class Nixl(Engine):
    """An agent with one backend. The tests of Weft's own backend have the agent."""

    def __init__(self, size, backend="UCX", gpu=None):
        sys.path.insert(0, str(ROOT / "integrations/nixl/tests"))
        from support import Agent, state_of
        self.state_of = state_of
        if why := lacking(backend):
            raise RuntimeError(why)
        self.memory_of(size, gpu)
        self.agent = Agent(4096, name=f"{backend}-{os.getpid()}", backend=backend)
        self.registered = self.agent.nixl.register_memory([(self.memory.address, size, self.memory.device, "")], self.memory.kind)
        self.sides = {}

    def describe(self):
        return {"metadata": text(self.agent.nixl.get_agent_metadata()), "base": self.memory.address, "device": self.memory.device}

    def know(self, other):
        self.agent.meet(data(other["metadata"]))

    def connect(self, other):
        self.name, self.there = self.agent.meet(data(other["metadata"])), (other["base"], other["device"])
        self.agent.nixl.make_connection(self.name)

    def prepared(self, page):
        """Both sides' pages, whole memories of them, checked once: as its benchmark does."""
        if page not in self.sides:
            slots = self.memory.size // page
            made = []
            for base, device in (self.memory.address, self.memory.device), self.there:
                places = np.empty((slots, 3), np.uint64)
                places[:, 0], places[:, 1], places[:, 2] = base + np.arange(slots, dtype=np.uint64) * page, page, device
                made.append(self.agent.nixl.get_xfer_descs(places, self.memory.kind))
            self.sides[page] = (self.agent.nixl.prep_xfer_dlist("", made[0]), self.agent.nixl.prep_xfer_dlist(self.name, made[1]))
        return self.sides[page]

    ready = prepared

    def handle(self, operation, page, local, remote):
        mine, theirs = self.prepared(page)
        return self.agent.nixl.make_prepped_xfer(operation.upper(), mine, local.astype(np.int32), theirs, remote.astype(np.int32))

    def plan(self, operation, page, local, remote):
        handle = self.handle(operation, page, local, remote)
        transfer, check = self.agent.nixl.transfer, self.agent.nixl.check_xfer_state

        # Without a yield, which gives away a turn of 4 ms where both sides' threads share two processors.
        def move():
            state = transfer(handle)
            while state == "PROC":
                state = check(handle)
            assert state == "DONE", state

        return move

    def hand_over(self, operation, page, local, remote):
        handle = self.handle(operation, page, local, remote)
        return handle, self.agent.nixl.transfer(handle)

    def end(self, handed):
        handle, state = handed
        while state == "PROC":
            state = self.agent.nixl.check_xfer_state(handle)
        assert state == "DONE", state

    def start(self, operation, page, local, remote):
        handle = self.handle(operation, page, local, remote)
        state = self.state_of(self.agent.nixl.transfer, handle)
        first = [state] if state != "PROC" else []

        def ended():
            time.sleep(0.001)
            state = first.pop() if first else self.state_of(self.agent.nixl.check_xfer_state, handle)
            return {"PROC": "", "DONE": "done"}.get(state, state)

        return ended


class Mooncake(Engine):
    """Its transfer engine, in peer-to-peer mode: no metadata service. It refuses batches of some thousand pages."""

    BATCH = 1000

    def __init__(self, size, address="127.0.0.1", protocol="tcp"):
        from mooncake.engine import TransferEngine
        self.engine = TransferEngine()
        assert self.engine.initialize(address, "P2PHANDSHAKE", protocol, "") == 0, "it does not initialize"
        self.memory_of(size, None)
        self.base = self.memory.address
        assert self.engine.register_memory(self.base, size) == 0, "it does not register the memory"
        self.session = f"{address}:{self.engine.get_rpc_port()}"

    def describe(self):
        return {"session": self.session, "base": self.base}

    def connect(self, other):
        self.peer, self.there = other["session"], other["base"]

    def batches(self, page, local, remote):
        mine, theirs = (base + pages.astype(np.int64) * page for base, pages in ((self.base, local), (self.there, remote)))
        for at in range(0, len(mine), self.BATCH):
            part = slice(at, at + self.BATCH)
            yield self.peer, mine[part].tolist(), theirs[part].tolist(), [page] * len(mine[part])

    def plan(self, operation, page, local, remote):
        engine, batches = self.engine, list(self.batches(page, local, remote))
        if len(local) == 1:
            call = engine.transfer_sync_write if operation == "write" else engine.transfer_sync_read
            batches = [(peer, mine[0], theirs[0], page) for peer, mine, theirs, _ in batches]
        else:
            call = engine.batch_transfer_sync_write if operation == "write" else engine.batch_transfer_sync_read

        def move():
            for batch in batches:
                result = call(*batch)
                assert result == 0, f"it returns {result}"

        return move

    def hand_over(self, operation, page, local, remote):
        call = self.engine.batch_transfer_async_write if operation == "write" else self.engine.batch_transfer_async_read
        handed = [call(*batch) for batch in self.batches(page, local, remote)]
        assert all(handed), "it refuses the batch"
        return handed

    def end(self, handed):
        result = self.engine.get_batch_transfer_status(handed)
        assert result == 0, f"it returns {result}"

    def start(self, operation, page, local, remote):
        import threading
        move, ended = self.plan(operation, page, local, remote), []

        def run():
            try:
                move()
                ended.append("done")
            except AssertionError as error:
                ended.append(str(error))

        threading.Thread(target=run, daemon=True).start()

        def state():
            time.sleep(0.001)
            return ended[0] if ended else ""

        return state


ENGINES = {"weft": Weft, "nixl": Nixl, "mooncake": Mooncake}
