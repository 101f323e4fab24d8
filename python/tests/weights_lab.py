"""On each of the lab's two hosts: weights over all its rails, as a share of their line.

    tools/lab.sh --rails 4 --rate 1gbit "python3 weights_lab.py FOLDER GB GBITS"     GBITS: of all rails together

FOLDER is where the left host, the source, leaves its manifest. The right one pulls twice: with checksums, then timed.
"""

import mmap
import os
import pathlib
import sys
import time
from typing import Any, Dict

from libweft.weights import Shard, Source, Target

folder, size, line = pathlib.Path(sys.argv[1]), int(float(sys.argv[2]) * 1e9), float(sys.argv[3]) * 1e9 / 8
TENSORS, ROW = 16, 1 << 20
ROWS = size // TENSORS // ROW
OPTIONS: Dict[str, Any] = {"fabric": "tcp", "rails": "rail*"}
PATIENCE = 180.0


def found(name: str) -> pathlib.Path:
    until = time.monotonic() + PATIENCE
    while not (folder / name).exists():
        if time.monotonic() > until:
            sys.exit(f"no {name}")
        time.sleep(0.05)
    return folder / name


memory = mmap.mmap(-1, TENSORS * ROWS * ROW)
parts = [memoryview(memory)[i * ROWS * ROW:(i + 1) * ROWS * ROW] for i in range(TENSORS)]
shards = [Shard(f"layer.{i}", "U8", (ROWS, ROW), 0, ROWS, part) for i, part in enumerate(parts)]
if os.environ["WEFT_LAB_SIDE"] == "left":
    row = os.urandom(ROW)
    for part in parts:
        for at in range(0, len(part), ROW):
            part[at:at + ROW] = row
    with Source(shards, **OPTIONS) as source:
        (folder / "manifest.part").write_bytes(source.manifest())
        (folder / "manifest.part").rename(folder / "manifest")
        found("done")
else:
    with Target(shards, [found("manifest").read_bytes()], timeout=PATIENCE, **OPTIONS) as target:
        target.pull(verify=True)
        began = time.monotonic()
        target.pull()
        seconds = time.monotonic() - began
    (folder / "done").touch()
    print(f"{target.total / 1e9:.2f} GB in {seconds:.2f} s, {target.total / seconds / 1e9:.3f} GB/s")
    print(f"{'weights_line_share':28}{target.total / seconds / line:10.3f}")
