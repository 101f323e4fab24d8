"""Agents with the WEFT backend, in this process and in others.

NIXL_PLUGIN_DIR is where libplugin_WEFT.so lies; WEFT_NIXL_FABRIC which fabric is tested; with NIXL_MEMORY=VRAM the memory
of agents lies on GPUs (torch), and `bytes` is a tensor.
"""

import contextlib
import importlib.util
import itertools
import multiprocessing
import os
import signal
import sys
import time
import traceback
import types
import unittest
import zlib

import numpy as np

if importlib.util.find_spec("torch") is None:
    # Before 1.4 NIXL's Python module needed torch's types, which numpy arrays do not use.
    sys.modules["torch"] = types.ModuleType("torch")
    sys.modules["torch"].Tensor = sys.modules["torch"].dtype = sys.modules["torch"].device = type("Absent", (), {})
nixl = importlib.import_module(os.environ.get("NIXL_MODULE", "nixl_cu12"))
FABRIC = os.environ.setdefault("WEFT_NIXL_FABRIC", "host")
if FABRIC == "tcp":
    os.environ.setdefault("WEFT_NIXL_RAILS", "lo")
BACKEND = os.environ.get("NIXL_BACKEND", "WEFT")
MEMORY = os.environ.get("NIXL_MEMORY", "DRAM")
PATIENCE = 120.0  # after which something hangs
names = (f"agent-{os.getpid()}-{i}" for i in itertools.count())


def state_of(call, *arguments):
    """PROC, DONE, or what was raised: each of NIXL's statuses has a class of its own."""
    try:
        return call(*arguments)
    except Exception as failure:
        return type(failure).__name__


class Agent:
    """A nixl_agent with one memory, `bytes`, which other agents reach."""

    def __init__(self, size=1 << 20, name=None, threads=False, backend=BACKEND, device=0, **parameters):
        if threads and not hasattr(nixl, "nixl_thread_sync_t"):
            raise unittest.SkipTest("this NIXL leaves locking to its caller")
        more = {"sync_mode": nixl.nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT} if threads else {}
        self.name = name or next(names)
        self.backend = backend
        self.nixl = nixl.nixl_agent(self.name, nixl.nixl_agent_config(backends=[], **more))
        self.nixl.create_backend(backend, {key: str(value) for key, value in parameters.items()})
        self.device = device
        if MEMORY == "VRAM":
            import torch

            torch.cuda.set_device(device)
            self.bytes = torch.empty(size, dtype=torch.uint8, device="cuda")
            self.fill(0)
            self.base = self.bytes.data_ptr()
        else:
            self.bytes = np.zeros(size, dtype=np.uint8)
            self.base = self.bytes.ctypes.data
        self.registered = self.nixl.register_memory([(self.base, size, device, "")], MEMORY)

    def register(self, *arrays):
        return self.nixl.register_memory([(a.ctypes.data, a.nbytes, 0, "") for a in arrays], "DRAM")

    def meet(self, metadata):
        """The other agent's name, and where its memory begins."""
        name = self.nixl.add_remote_agent(metadata)
        return name.decode() if isinstance(name, bytes) else name

    def describe(self):
        return self.nixl.get_agent_metadata(), self.base

    def descs(self, triples):
        return self.nixl.get_xfer_descs(np.array(triples, dtype=np.uint64).reshape(-1, 3), MEMORY)

    def fill(self, value):
        self.bytes[:] = value
        if MEMORY == "VRAM":
            sys.modules["torch"].cuda.synchronize()

    def checksum(self):
        return zlib.crc32(self.bytes if MEMORY == "DRAM" else self.bytes.cpu().numpy())

    def request(self, operation, local, remote, other, notification=b""):
        """`local`, `remote`: pairs of address and length."""
        both = [self.descs([(a, n, 0) for a, n in side]) for side in (local, remote)]
        return self.nixl.initialize_xfer(operation, *both, other, notification)

    def post(self, handle, notification=b""):
        return state_of(self.nixl.transfer, handle, *([notification] if notification else []))

    def finish(self, handle, notification=b"", patience=PATIENCE):
        """Posts, and polls until it has ended."""
        return self.end(handle, self.post(handle, notification), patience)

    def end(self, handle, state="PROC", patience=PATIENCE):
        until = time.monotonic() + patience
        while state == "PROC":
            assert time.monotonic() < until, "the transfer hangs"
            state = state_of(self.nixl.check_xfer_state, handle)
        return state

    def notifications(self, count, patience=PATIENCE):
        """As many notifications as that, as pairs of agent and text."""
        until = time.monotonic() + patience
        got = []
        while True:
            for agent, texts in self.nixl.get_new_notifs().items():
                got += [(agent, text) for text in texts]
            if len(got) >= count or time.monotonic() >= until:
                return got
            time.sleep(0.001)

    def drop(self):
        self.nixl.deregister_memory(self.registered)

    def __getattr__(self, name):
        return getattr(self.nixl, name)


def pattern(size, seed):
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def _child(pipe, options):
    """Runs what the parent asks for: (name of a method or function, arguments)."""
    agent = None
    try:
        agent = Agent(**options)
        pipe.send(agent.describe())
        for what, arguments in iter(pipe.recv, None):
            if what == "reuse":  # as another request does, whose bytes all have this value
                agent.bytes[:] = arguments[0]
                pipe.send(None)
            elif what == "foreign":
                pipe.send(int(np.count_nonzero(agent.bytes != arguments[0])))
            elif what == "fill":
                agent.bytes[:] = pattern(agent.bytes.size, *arguments)
                pipe.send(None)
            else:
                pipe.send(getattr(agent, what)(*arguments))
    except EOFError:
        pass
    except Exception:
        traceback.print_exc()


class Child:
    """An agent in a process of its own."""

    def __init__(self, **options):
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_child, args=(theirs, options))
        self.process.start()
        theirs.close()
        self.metadata, self.base = self.pipe.recv()

    def ask(self, what, *arguments):
        self.pipe.send((what, arguments))
        return self.pipe.recv()

    def signal(self, number):
        os.kill(self.process.pid, number)

    def close(self):
        with contextlib.suppress(OSError):
            self.pipe.send(None)
        self.process.join(10)
        if self.process.is_alive():
            self.signal(signal.SIGKILL)
        self.process.join()


class Case(unittest.TestCase):
    def pair(self, size=1 << 20, **options):
        """Two agents of this process that know each other: (first, second)."""
        first, second = Agent(size, **options), Agent(size, **options)
        first.meet(second.describe()[0])
        second.meet(first.describe()[0])
        return first, second

    def child(self, **options):
        child = Child(**options)
        self.addCleanup(child.close)
        return child
