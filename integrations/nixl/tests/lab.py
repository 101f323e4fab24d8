"""On each of the lab's two hosts: a write and a read go on when a rail goes down under them.

    tools/lab.sh --rails 2 --rate 500mbit "python lab.py FOLDER"     FOLDER: where the two leave their metadata
"""

import os
import pathlib
import subprocess
import sys
import time

os.environ["WEFT_NIXL_FABRIC"] = "tcp"
os.environ["WEFT_NIXL_RAILS"] = "rail*"
import numpy as np
from support import PATIENCE, Agent, pattern

SIZE = 64 << 20
folder, side = pathlib.Path(sys.argv[1]), os.environ["WEFT_LAB_SIDE"]
agent = Agent(SIZE, name=side)


def leave(name, data):
    (folder / f"{name}.part").write_bytes(data)
    (folder / f"{name}.part").rename(folder / name)


def found(name):
    until = time.monotonic() + PATIENCE
    while not (folder / name).exists():
        assert time.monotonic() < until, f"no {name}"
        time.sleep(0.01)
    return (folder / name).read_bytes()


metadata, base = agent.describe()
leave(side, base.to_bytes(8, "little") + metadata)
if side == "right":
    agent.bytes[:] = pattern(SIZE, 1)
    leave("ready", b"")
    assert agent.notifications(2) == [("left", b"read"), ("left", b"written")]
    np.testing.assert_array_equal(agent.bytes, pattern(SIZE, 2))
    leave("right-is-done", b"")
else:
    theirs = found("right")
    found("ready")
    name = agent.meet(theirs[8:])
    place = [(agent.bytes.ctypes.data, SIZE)], [(int.from_bytes(theirs[:8], "little"), SIZE)]
    for operation, notification in ("READ", b"read"), ("WRITE", b"written"):
        if operation == "WRITE":
            np.testing.assert_array_equal(agent.bytes, pattern(SIZE, 1))
            agent.bytes[:] = pattern(SIZE, 2)
        handle = agent.request(operation, *place, name, notification)
        state = agent.post(handle)
        time.sleep(0.1)
        assert agent.check_xfer_state(handle) == "PROC", "it is over before the rail goes down"
        subprocess.run(["ip", "link", "set", "rail1", "down"], check=True)
        assert agent.end(handle, state) == "DONE"
        subprocess.run(["ip", "link", "set", "rail1", "up"], check=True)
        time.sleep(1)
    found("right-is-done")
