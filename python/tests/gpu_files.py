"""A peer's file read into GPU memory and written from it, beside cuFile with the same file on this host, in turns:

    python gpu_files.py [GIB] [TURNS]      a GPU, torch, and libcufile.so.0; `./run.sh files` of the bundle of `make gpu-test`

Prints GB/s of medians, and the mode that cuFile offers here (its own path needs the kernel's nvidia-fs, else it goes by
host memory as Weft does). Blocks of 192 KiB in any order, without the page cache; cuFile by as many threads as there are
processors, up to 16.
"""
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import concurrent.futures
import ctypes
import glob
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Callable, Dict, List

os.environ.setdefault("CUFILE_ALLOW_COMPAT_MODE", "true")
import torch

import libweft

BLOCK = 192 << 10
THREADS = min(16, len(os.sched_getaffinity(0)))
SERVER = """
import sys, libweft
path, fabric, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
with libweft.Endpoint(fabric, rails="lo" if fabric == "tcp" else None) as endpoint:
    print(endpoint.address.hex(), endpoint.register_file(path, [(0, size)]).export().hex(), flush=True)
    sys.stdin.read()
"""


class Descriptor(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("handle", ctypes.c_void_p), ("operations", ctypes.c_void_p)]


class Status(ctypes.Structure):
    _fields_ = [("error", ctypes.c_int), ("cuda", ctypes.c_int)]


class CuFile:
    """An open file of cuFile's, and a tensor that it knows."""

    def __init__(self, path: str, tensor: torch.Tensor):
        names = ["libcufile.so.0", *(found for folder in sys.path for found in glob.glob(folder + "/nvidia/*/lib/libcufile.so.0"))]
        for name in names:
            try:
                self.library = ctypes.CDLL(name)
                break
            except OSError:
                continue
        else:
            raise OSError("no libcufile.so.0 here")
        for call in ("cuFileDriverOpen", "cuFileHandleRegister", "cuFileBufRegister"):
            getattr(self.library, call).restype = Status
        for call in ("cuFileRead", "cuFileWrite"):
            getattr(self.library, call).restype = ctypes.c_ssize_t
            getattr(self.library, call).argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64, ctypes.c_int64]
        self.handle, self.base = ctypes.c_void_p(), tensor.data_ptr()
        self.file = os.open(path, os.O_RDWR | os.O_DIRECT)
        self.expect(self.library.cuFileDriverOpen())
        self.expect(self.library.cuFileHandleRegister(ctypes.byref(self.handle), ctypes.byref(Descriptor(1, self.file, None))))
        self.registered = self.library.cuFileBufRegister(ctypes.c_void_p(self.base), ctypes.c_size_t(tensor.nbytes), 0).error == 0

    @staticmethod
    def expect(status: Status) -> None:
        if status.error:
            raise OSError(f"cuFile refuses: error {status.error}, CUDA {status.cuda}")

    def all(self, call: str, order: List[int]) -> None:
        move = getattr(self.library, call)

        def some(blocks: List[int]) -> None:
            torch.cuda.set_device(0)
            for block in blocks:
                done = move(self.handle, self.base, BLOCK, block * BLOCK, block * BLOCK)
                assert done == BLOCK, done

        with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(some, [order[thread::THREADS] for thread in range(THREADS)]))


def main() -> int:
    gib, turns = float((sys.argv[1:] or ["2"])[0]), int((sys.argv[2:] or ["5"])[0])
    if not torch.cuda.is_available():
        print("SKIPPED: no GPU here")
        return 77
    blocks = int(gib * 2**30) // BLOCK
    size = blocks * BLOCK
    tensor = torch.empty(size // 4, dtype=torch.int32, device="cuda:0")
    expected = torch.arange(size // 4, dtype=torch.int32, device="cuda:0")
    torch.cuda.synchronize()
    with tempfile.NamedTemporaryFile(dir=os.environ.get("WEFT_DISK", "/var/tmp")) as file:
        os.posix_fallocate(file.fileno(), 0, size)
        calls: Dict[str, Callable[[List[int]], None]] = {}
        try:
            there = CuFile(file.name, tensor)
            calls.update({"cuFile write": lambda order: there.all("cuFileWrite", order), "cuFile read": lambda order: there.all("cuFileRead", order)})
            own = os.path.exists("/proc/driver/nvidia-fs/version")
            print(f"cuFile: {'by nvidia-fs' if own else 'compatibility mode (no nvidia-fs in this kernel)'}, buffer registered: {there.registered}")
        except OSError as error:
            print(f"cuFile: not run: {error}")
        servers = []
        for fabric in ("host", "tcp"):
            server = subprocess.Popen([sys.executable, "-c", SERVER, file.name, fabric, str(size)], stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE, text=True)
            servers.append(server)
            assert server.stdout is not None
            address, exported = map(bytes.fromhex, server.stdout.readline().split())
            endpoint = libweft.Endpoint(fabric, rails="lo" if fabric == "tcp" else None)
            remote = endpoint.connect(address).wait(30).import_memory(exported)
            local = endpoint.register(tensor)

            def move(order: List[int], way: str, endpoint: libweft.Endpoint = endpoint, remote: libweft.RemoteMemory = remote,
                     local: libweft.Memory = local) -> None:
                getattr(endpoint, way)(local, remote, BLOCK, local=order, remote=order, timeout=120).wait(120)

            calls[f"{fabric} write"] = lambda order, move=move: move(order, "write_pages")  # type: ignore[misc]
            calls[f"{fabric} read"] = lambda order, move=move: move(order, "read_pages")  # type: ignore[misc]
        times: Dict[str, List[float]] = {name: [] for name in calls}
        order = list(range(blocks))
        for turn in range(turns + 1):  # the first is not counted
            for name, call in calls.items():
                random.shuffle(order)
                tensor.copy_(expected) if name.endswith("write") else tensor.zero_()
                torch.cuda.synchronize()
                began = time.monotonic()
                call(order)
                took = time.monotonic() - began
                times[name] += [took] * (turn > 0)
                if name.endswith("read"):
                    torch.cuda.synchronize()
                    assert torch.equal(tensor, expected), name
        for name, took_each in times.items():
            print(f"{name:14} {size / statistics.median(took_each) / 1e9:6.2f} GB/s   {min(took_each):.2f} to {max(took_each):.2f} s")
        for server in servers:
            server.kill()
            server.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
