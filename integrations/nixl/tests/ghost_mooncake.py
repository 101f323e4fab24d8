#!/usr/bin/env python3
"""As ghost.py, of Mooncake's transfer engine over tcp: it has no call that cancels, so whoever aborts stops asking.

    ghost_mooncake.py ROUNDS      one JSON object; needs an environment with Mooncake
"""

import json
import multiprocessing
import os
import sys
import time

import numpy as np
from mooncake.engine import TransferEngine

SIZE = 128 << 20
MINE, OLD = 0x55, 1
DONE, UNDER_WAY = 1, 0  # of transfer_check_status


def engine():
    made, memory = TransferEngine(), np.zeros(SIZE, dtype=np.uint8)
    assert made.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    assert made.register_memory(memory.ctypes.data, SIZE) == 0
    return made, memory


def target(pipe):
    made, memory = engine()
    pipe.send((f"127.0.0.1:{made.get_rpc_port()}", memory.ctypes.data))
    for what, value in iter(pipe.recv, None):
        if what == "reuse":
            memory[:] = value
        pipe.send(int(np.count_nonzero(memory != value)))
    os._exit(0)


def main(rounds):
    pipe, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=target, args=(theirs,), daemon=True)
    process.start()
    name, base = pipe.recv()
    here, memory = engine()

    def post(operation):
        call = here.batch_transfer_async_write if operation == "write" else here.batch_transfer_async_read
        return call(name, [memory.ctypes.data], [base], [SIZE])

    def there(what, value):
        pipe.send((what, value))
        return pipe.recv()

    counted = {"writes": 0, "reads": 0, "refused": 0, "ghost_writes": 0, "ghost_write_bytes": 0, "ghost_reads": 0,
               "ghost_read_bytes": 0, "release_ms": 0.0}
    began = time.perf_counter()
    batch = post("write")
    while here.transfer_check_status(batch) == UNDER_WAY:
        pass
    seconds = time.perf_counter() - began
    for round in range(rounds):
        for operation in "write", "read":
            memory[:] = OLD
            there("reuse", OLD)
            batch = post(operation)
            time.sleep(seconds * (round + 1) / (rounds + 2))
            if here.transfer_check_status(batch) != UNDER_WAY:
                continue  # it was quicker
            if operation == "write":
                there("reuse", MINE)
                time.sleep(0.5)
                foreign = there("count", MINE)
            else:
                memory[:] = MINE
                time.sleep(0.5)
                foreign = int(np.count_nonzero(memory != MINE))
            counted[f"{operation}s"] += 1
            counted[f"ghost_{operation}s"] += foreign > 0
            counted[f"ghost_{operation}_bytes"] += foreign
            time.sleep(1)  # what is still under way is not the next round's
    pipe.send(None)
    print(json.dumps(counted), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
