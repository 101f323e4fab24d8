"""The emulated NICs by Mooncake's transfer engine for EFA, between two processes: writes and reads, every byte checked.

Runs below `efa.sh run`: mooncake_pair.py [PAGES]. Prints the rate of writes.
"""

import ctypes
import os
import random
import sys
import time

from mooncake.engine import TransferEngine

PAGE = 65536


def engine_of(memory, size):
    engine = TransferEngine()
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "efa", "") == 0, "it does not initialize"
    assert engine.register_memory(memory, size) == 0, "it does not register the memory"
    return engine, f"127.0.0.1:{engine.get_rpc_port()}"


def target(pipe, pages):
    size = pages * PAGE
    memory = ctypes.create_string_buffer(size)
    _engine, session = engine_of(ctypes.addressof(memory), size)
    with os.fdopen(pipe, "w") as out:
        out.write(f"{session} {ctypes.addressof(memory)}\n")
        out.flush()
    time.sleep(600)


def main():
    pages = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    size = pages * PAGE
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        target(write, pages)
        os._exit(0)
    os.close(write)
    try:
        line = os.fdopen(read).readline().split()
        assert line, "the target has ended"
        session, there = line[0], int(line[1])
        memory = ctypes.create_string_buffer(2 * size)
        here = ctypes.addressof(memory)
        engine, _ = engine_of(here, 2 * size)
        content = random.Random(1).randbytes(size)
        ctypes.memmove(here, content, size)
        order = list(range(pages))
        random.Random(2).shuffle(order)
        mine = [here + page * PAGE for page in range(pages)]
        theirs = [there + page * PAGE for page in order]
        best = 0
        for _ in range(5):
            begin = time.monotonic()
            assert engine.batch_transfer_sync_write(session, mine, theirs, [PAGE] * pages) == 0, "the writes failed"
            best = max(best, size / (time.monotonic() - begin))
        back = [here + size + page * PAGE for page in range(pages)]
        assert engine.batch_transfer_sync_read(session, back, theirs, [PAGE] * pages) == 0, "the reads failed"
        assert memory.raw[size:] == content, "not the bytes that were written"
        print(f"verified: {pages} pages of {PAGE}, writes {8 * best / 1e9:.2f} Gbps")
        sys.stdout.flush()
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    os._exit(0)


if __name__ == "__main__":
    main()
