#!/usr/bin/env python3
"""Ghost writes: a transfer is released half-way, its pages are used again at once, and every byte that changes is counted.

    ghost.py ROUNDS      a table of all backends; MOONCAKE: a Python with Mooncake's engine, to be one of them
    ghost.py --one ROUNDS
"""

import json
import os
import pathlib
import subprocess
import sys
import time

from measure import BACKENDS, run

SIZE = 128 << 20
MINE, OLD = 0x55, 1


def released(agent, handle):
    try:
        agent.release_xfer_handle(handle)
        return True
    except Exception:
        return False


def one(rounds):
    from support import Agent, Child

    here, there = Agent(SIZE), Child(size=SIZE)
    name = here.meet(there.metadata)
    place = [(here.bytes.ctypes.data, SIZE)], [(there.base, SIZE)]
    whole = here.request("WRITE", *place, name)
    assert here.finish(whole) == "DONE"
    began = time.perf_counter()
    assert here.finish(whole) == "DONE"
    seconds = time.perf_counter() - began
    counted = {"writes": 0, "reads": 0, "refused": 0, "ghost_writes": 0, "ghost_write_bytes": 0, "ghost_reads": 0,
               "ghost_read_bytes": 0, "release_ms": 0.0}
    for round in range(rounds):
        for operation in "WRITE", "READ":
            here.bytes[:] = OLD
            there.ask("reuse", OLD)
            handle = here.request(operation, *place, name)
            here.post(handle)
            time.sleep(seconds * (round + 1) / (rounds + 2))
            if here.check_xfer_state(handle) != "PROC":
                continue  # it was quicker
            began = time.perf_counter()
            if not released(here, handle):
                counted["refused"] += 1
                here.end(handle)
                continue
            counted["release_ms"] = max(counted["release_ms"], (time.perf_counter() - began) * 1e3)
            if operation == "WRITE":
                there.ask("reuse", MINE)
                time.sleep(0.5)
                foreign = there.ask("foreign", MINE)
            else:
                here.bytes[:] = MINE
                time.sleep(0.5)
                foreign = int((here.bytes != MINE).sum())
            kind = operation.lower()
            counted[kind + "s"] += 1
            counted[f"ghost_{kind}s"] += foreign > 0
            counted[f"ghost_{kind}_bytes"] += foreign
    there.close()
    print(json.dumps(counted), flush=True)
    os._exit(0)


def main(rounds):
    rows = [(fabric, name, run(environment, __file__, "--one", str(rounds)))
            for fabric, backends in BACKENDS.items() for name, environment in backends.items()]
    if python := os.environ.get("MOONCAKE"):
        program = pathlib.Path(__file__).with_name("ghost_mooncake.py")
        done = subprocess.run([python, program, str(rounds)], capture_output=True, text=True, timeout=300, check=True)
        rows.append(("tcp", "Mooncake", json.loads(done.stdout.splitlines()[-1])))
    print(f"{'':24}" + "".join(f"{key:>18}" for key in rows[0][2]))
    for fabric, name, counted in rows:
        print(f"{fabric + ', ' + name:24}" + "".join(f"{value:18.0f}" for value in counted.values()))
    ours = sum(c["ghost_write_bytes"] + c["ghost_read_bytes"] for _, name, c in rows if name == "WEFT")
    print(f"\n{'ghost_bytes_weft':28}{ours:10}")


if __name__ == "__main__":
    one(int(sys.argv[2])) if sys.argv[1] == "--one" else main(int(sys.argv[1]))
