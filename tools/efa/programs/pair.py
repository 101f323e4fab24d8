"""Pages between two processes over the emulated NICs, by Weft or by Mooncake's transfer engine for EFA: writes and reads,
every byte checked.

Runs below `efa.sh run`: pair.py weft|mooncake [PAGES]. Prints the rate of writes.
"""

import ctypes
import os
import random
import sys
import time

PAGE = 65536


class Weft:
    """An endpoint, the content, and room for as many bytes."""

    def __init__(self, content):
        import libweft
        self.endpoint = libweft.Endpoint(fabric="efa")
        self.back = bytearray(len(content))
        self.local, self.room = self.endpoint.register(bytearray(content)), self.endpoint.register(self.back)

    def name(self):
        return f"{self.endpoint.address.hex()} {self.local.export().hex()}"

    def connect(self, address, descriptor):
        peer = self.endpoint.connect(bytes.fromhex(address)).wait()
        self.remote = peer.import_memory(bytes.fromhex(descriptor))

    def write(self, order):
        self.endpoint.write_pages(self.local, self.remote, PAGE, local=list(range(len(order))), remote=order).wait()

    def read(self, order):
        self.endpoint.read_pages(self.room, self.remote, PAGE, local=list(range(len(order))), remote=order).wait()
        return self.back


class Mooncake:
    """The same with its engine."""

    def __init__(self, content):
        from mooncake.engine import TransferEngine
        self.size = len(content)
        self.memory = ctypes.create_string_buffer(2 * self.size)
        self.here = ctypes.addressof(self.memory)
        ctypes.memmove(self.here, content, self.size)
        self.engine = TransferEngine()
        assert self.engine.initialize("127.0.0.1", "P2PHANDSHAKE", "efa", "") == 0, "it does not initialize"
        assert self.engine.register_memory(self.here, 2 * self.size) == 0, "it does not register the memory"

    def name(self):
        return f"127.0.0.1:{self.engine.get_rpc_port()} {self.here}"

    def connect(self, session, there):
        self.session, self.there = session, int(there)

    def _pages(self, local, order):
        mine = [local + page * PAGE for page in range(len(order))]
        return self.session, mine, [self.there + page * PAGE for page in order], [PAGE] * len(order)

    def write(self, order):
        assert self.engine.batch_transfer_sync_write(*self._pages(self.here, order)) == 0, "the writes failed"

    def read(self, order):
        back = self._pages(self.here + self.size, order)
        assert self.engine.batch_transfer_sync_read(*back) == 0, "the reads failed"
        return self.memory.raw[self.size:]


def target(engine, pipe, pages):
    end = engine(bytes(pages * PAGE))
    with os.fdopen(pipe, "w") as out:
        out.write(end.name() + "\n")
    time.sleep(600)


def main():
    engine = {"weft": Weft, "mooncake": Mooncake}[sys.argv[1]]
    pages = int(sys.argv[2]) if len(sys.argv) > 2 else 200
    size = pages * PAGE
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        target(engine, write, pages)
        os._exit(0)
    os.close(write)
    try:
        name = os.fdopen(read).readline().split()
        assert name, "the target has ended"
        content = random.Random(1).randbytes(size)
        end = engine(content)
        end.connect(*name)
        order = list(range(pages))
        random.Random(2).shuffle(order)
        best = 0
        for _ in range(5):
            begin = time.monotonic()
            end.write(order)
            best = max(best, size / (time.monotonic() - begin))
        assert end.read(order) == content, "not the bytes that were written"
        print(f"verified: {pages} pages of {PAGE}, writes {8 * best / 1e9:.2f} Gbps")
        sys.stdout.flush()
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    os._exit(0)


if __name__ == "__main__":
    main()
